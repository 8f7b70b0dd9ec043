package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/cmd/fleetwright/contents"
	"github.com/fleetwright/fleetwright/cmd/fleetwright/manifest"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/baseline"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/plan"
	"github.com/fleetwright/fleetwright/renderers/plugin"
	"github.com/fleetwright/fleetwright/renderers/repository"
)

// explaining says why objects are there.
type explaining struct {
	set      *manifest.Set
	rendered *repository.Rendered
	made     *contents.Contents
	plugins  []string // folders
}

// tracing is what is known of one object on the way up.
type tracing struct {
	*explaining
	x *application.Rendered
	o *unstructured.Unstructured // nil if it is x that is asked for
	// kind and name are those of what people have written.
	kind, name string
	app        *appsv1.Application
	policy     int // the index; -1 if it is none of them
	steps      []step
}

// steps returns the way from an object that a child puts on its member, or from the child, up to the member.
func (e *explaining) steps(x *application.Rendered, o *unstructured.Unstructured) []step {
	t := &tracing{explaining: e, x: x, o: o, policy: -1}
	t.kind, t.name = e.rendered.Written(x.Metadata.Namespace, x.Application)
	for _, app := range e.rendered.Declared.Applications {
		if app.Namespace == x.Metadata.Namespace && app.Name == x.Application {
			t.app = app
		}
	}
	for i := range t.app.Spec.SyncPolicies {
		if application.PolicyName(t.app, i) == x.Policy {
			t.policy = i
		}
	}
	if o != nil {
		t.written()
		t.add("applied by", manifest.Position{}, titled(x.Kind, x.Metadata.Namespace, x.Metadata.Name), "")
	}
	if t.kind == appsv1.ApplicationKind {
		t.ofApplication()
	} else {
		t.ofOther()
	}
	if !repository.IsSource(x) {
		t.destination()
	}
	return t.steps
}

func (t *tracing) add(role string, at manifest.Position, what, why string, changes ...string) {
	t.steps = append(t.steps, step{role, shown(at.File), at.Line, what, why, changes})
}

// at returns where a field of an object of the namespace is written.
func (t *tracing) at(kind, name, path string) manifest.Position {
	return t.set.Position(kind, t.x.Metadata.Namespace, name).In(path)
}

// written adds the file that the object is written in, if people have written one.
func (t *tracing) written() {
	from := t.made.Origin(t.x, t.o)
	switch {
	case from.Chart != "":
		t.add("template", from.Position, fmt.Sprintf("%s of chart %s %s", from.Template, from.Chart, from.Version), "")
	case from.File != "":
		ref := t.x.Spec.(*kustomizev1.KustomizationSpec).SourceRef
		t.add("file", from.Position, titled(ref.Kind, cmp.Or(ref.Namespace, t.x.Metadata.Namespace), ref.Name), "")
	}
}

// ofApplication adds the Application and the policy.
func (t *tracing) ofApplication() {
	what := titled("Application", t.app.Namespace, t.app.Name)
	if t.policy < 0 {
		t.add("source", t.at(t.kind, t.name, "spec.source"), what, "")
		return
	}
	path := fmt.Sprintf("spec.syncPolicies[%d]", t.policy)
	role := "policy"
	if repository.IsSource(t.x) {
		role = "source"
		if t.x.Kind == sourcev1.HelmChartKind {
			path += ".helm.chart"
		} else {
			path += ".source"
		}
	}
	t.add(role, t.at(t.kind, t.name, path), what, "policy "+application.PolicyName(t.app, t.policy))
}

// ofOther adds the field of what people have written, and the plugin or type of rules that makes objects of it.
func (t *tracing) ofOther() {
	key := baseline.Key{}
	if t.o != nil {
		key = baseline.KeyOf(t.o)
	}
	origin := t.rendered.Origin(t.x.Metadata.Namespace, t.x.Application, key)
	kind, name, path := t.kind, t.name, origin.Path
	if fleet := t.isolated(); fleet != "" {
		kind, name, path = fleetv1.FleetKind, fleet, "spec.policy.networkIsolation"
	}
	switch {
	case origin.Plugin != "":
		file, where := t.brought(origin.Plugin)
		t.add("plugin", file, origin.Plugin+where, "component "+t.x.Policy)
	case origin.RuleType != "":
		file, where := t.brought(origin.RuleType)
		t.add("rule type", file, origin.RuleType+where, "")
	}
	t.add("rendered from", t.at(kind, name, path), titled(kind, t.x.Metadata.Namespace, name), path)
}

// isolated returns the fleet for whose network isolation a ClusterConfig was made; empty if people have written it.
func (t *tracing) isolated() string {
	for _, f := range t.rendered.Declared.Fleets {
		if t.kind == clusterv1.ClusterConfigKind && f.Namespace == t.x.Metadata.Namespace && baseline.IsolationName(f.Name) == t.name && t.at(t.kind, t.name, "").File == "" {
			return f.Name
		}
	}
	return ""
}

// brought returns where a plugin or type of rules is: in a folder, or in the catalog.
func (e *explaining) brought(name string) (manifest.Position, string) {
	for _, folder := range e.plugins {
		if p, err := plugin.Load(os.DirFS(folder)); err == nil && p.Metadata.Name == name {
			return manifest.Position{File: filepath.Join(folder, plugin.DefinitionFile)}, ""
		}
	}
	return manifest.Position{}, " of the catalog"
}

// destination adds the overrides that match the member, and why it is one.
func (t *tracing) destination() {
	program, err := application.Compile(t.app)
	if err != nil {
		return // then there would be nothing to explain
	}
	policy := program.Policies()[t.policy]
	if policy.Fleet == "" {
		t.add("member", manifest.Position{}, "the hub", "the policy has no destination")
		return
	}
	fleet, m := t.member(policy)
	if m == nil {
		return
	}
	for _, j := range policy.Matching(m) {
		t.override(j, m)
	}
	if policy.OneCluster || policy.HasSelector {
		t.selected(policy)
	}
	if fleet != nil {
		at, why := t.listed(fleet, m)
		t.add("fleet", at, titled(fleetv1.FleetKind, fleet.Namespace, fleet.Name), why)
	}
	t.add("member", t.at(m.Kind, m.Name, ""), titled(m.Kind, t.x.Metadata.Namespace, m.Name), "")
}

// member returns the member, and the fleet that it is a member of; the fleet is nil if the destination is one cluster.
func (t *tracing) member(policy *application.Policy) (*fleetv1.Fleet, *member.Member) {
	d, namespace := t.rendered.Declared, t.x.Metadata.Namespace
	clusters := member.NewClusters(
		slices.DeleteFunc(slices.Clone(d.AttachedClusters), func(c *clusterv1.AttachedCluster) bool { return c.Namespace != namespace }),
		slices.DeleteFunc(slices.Clone(d.Clusters), func(c *clusterv1.Cluster) bool { return c.Namespace != namespace }))
	var fleet *fleetv1.Fleet
	var members []member.Member
	if one := application.OneCluster(policy.Fleet, namespace, clusters); one != nil {
		members = one.Members
	}
	for _, f := range d.Fleets {
		if f.Namespace == namespace && f.Name == policy.Fleet {
			fleet = f
			members, _ = member.Resolve(f, clusters) // it was resolved before
		}
	}
	i := slices.IndexFunc(members, func(m member.Member) bool { return m.Key() == t.x.Member })
	if i < 0 {
		return nil, nil
	}
	return fleet, &members[i]
}

// selected adds what the destination says beside the fleet.
func (t *tracing) selected(policy *application.Policy) {
	declared := cmp.Or(t.app.Spec.SyncPolicies[t.policy].Destination, t.app.Spec.Destination)
	path := "spec.destination"
	switch {
	case t.kind == clusterv1.ClusterConfigKind:
		path = "spec.target"
	case t.kind != appsv1.ApplicationKind:
		path = "spec"
	case t.app.Spec.SyncPolicies[t.policy].Destination != nil:
		path = fmt.Sprintf("spec.syncPolicies[%d].destination", t.policy)
	}
	if policy.OneCluster {
		field := ".cluster"
		if path == "spec" {
			field = ".clusterName"
		}
		t.add("destination", t.at(t.kind, t.name, path+field), "", "cluster "+declared.Cluster.Name)
		return
	}
	t.add("destination", t.at(t.kind, t.name, path+".clusterSelector"), "", "clusterSelector "+selectorText(declared.ClusterSelector))
}

// listed says why a member is one of a fleet.
func (t *tracing) listed(fleet *fleetv1.Fleet, m *member.Member) (manifest.Position, string) {
	for i, c := range fleet.Spec.Clusters {
		if c.Name == m.Name && (c.Kind == "" || c.Kind == m.Kind) {
			return t.at(fleetv1.FleetKind, fleet.Name, fmt.Sprintf("spec.clusters[%d]", i)), "lists it"
		}
	}
	return t.at(fleetv1.FleetKind, fleet.Name, "spec.clusterSelector"), "clusterSelector " + selectorText(fleet.Spec.ClusterSelector)
}

// selectorText returns a selector for people.
func selectorText(s *metav1.LabelSelector) string {
	if s == nil || len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		return "{}, which is everything"
	}
	return metav1.FormatLabelSelector(s)
}

// override adds an override that matches the member, and what it changes.
func (t *tracing) override(j int, m *member.Member) {
	o := t.app.Spec.SyncPolicies[t.policy].Overrides[j]
	why := "selector " + selectorText(o.Selector)
	if slices.Contains(o.Clusters, m.Name) {
		why = "clusters has " + m.Name
	}
	path := fmt.Sprintf("spec.syncPolicies[%d].overrides[%d]", t.policy, j)
	switch t.kind {
	case appsv1.ApplicationKind:
	case clusterv1.ClusterConfigKind:
		if path = fmt.Sprintf("spec.overrides[%d]", j); j >= t.overridesOf() {
			path, why = "", "another ClusterConfig wants the same on it"
		}
	default:
		path, why = "", "the plugin has something else for it"
	}
	changes, known := t.changed(j, m)
	if known && len(changes) == 0 {
		if path == "" {
			return // it was made for other objects
		}
		why += "; changes nothing of this object"
	}
	at := manifest.Position{}
	if path != "" {
		at = t.at(t.kind, t.name, path)
	}
	t.add("override", at, path, why, changes...)
}

// overridesOf returns how many overrides people have written in the ClusterConfig.
func (t *tracing) overridesOf() int {
	for _, c := range t.rendered.Declared.ClusterConfigs {
		if c.Namespace == t.x.Metadata.Namespace && c.Name == t.name {
			return len(c.Spec.Overrides)
		}
	}
	return 0
}

// changed returns the fields that would be others without an override. It is false if that is not known.
func (t *tracing) changed(j int, m *member.Member) ([]string, bool) {
	without := t.app.DeepCopy()
	policy := &without.Spec.SyncPolicies[t.policy]
	policy.Overrides = slices.Delete(policy.Overrides, j, j+1)
	with, ok := t.child(t.app, m)
	other, otherOK := t.child(without, m)
	if !ok || !otherOK {
		return nil, false
	}
	if t.o == nil {
		return plan.Paths(specOf(other.Object), specOf(with.Object)), true
	}
	objects, err := t.made.Objects(other)
	if err != nil {
		return nil, false
	}
	i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return baseline.KeyOf(o) == baseline.KeyOf(t.o) })
	if i < 0 {
		return []string{"all of it"}, true
	}
	return plan.Paths(objects[i].Object, t.o.Object), true
}

// child renders the policy for the member from an Application, without what it waits for.
func (t *tracing) child(app *appsv1.Application, m *member.Member) (*application.Rendered, bool) {
	program, err := application.Compile(app)
	if err != nil {
		return nil, false
	}
	child, err := program.Child(&application.Scope{}, program.Policies()[t.policy], m)
	if err != nil {
		return nil, false
	}
	return &application.Rendered{Object: child.Object, Application: t.x.Application, Policy: t.x.Policy, Member: t.x.Member}, true
}

// specOf returns the spec of an object in JSON's types.
func specOf(o any) map[string]any {
	var out map[string]any
	b, err := json.Marshal(o)
	if err != nil || json.Unmarshal(b, &out) != nil {
		return nil
	}
	return map[string]any{"spec": out["spec"]}
}
