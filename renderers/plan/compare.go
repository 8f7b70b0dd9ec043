package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/baseline"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/object"
	"github.com/fleetwright/fleetwright/renderers/repository"
)

// Compare says what changes from one state to another.
//
// Budgets hold beside the ChangeBudgets of the states.
func Compare(from, to Side, budgets ...*policyv1.ChangeBudget) *Plan {
	c := &comparison{from: index(from), to: index(to), pairs: map[pair]*Change{}}
	c.Schema = Schema
	c.From.Name, c.To.Name = from.Name, to.Name
	c.Problems = Problems(from, to)
	c.hold()
	c.children()
	c.hub()
	c.group()
	c.members()
	c.unknown()
	c.dangers()
	c.budget(budgets)
	c.owners()
	return &c.Plan
}

// comparison is the state of one Compare.
type comparison struct {
	Plan
	from, to *side
	// pairs are the changes that were made out, by what they depend on: many members have the same.
	pairs map[pair]*Change
	// changed are the changes of the members, one each.
	changed []changed
	held    holds
}

// changed is a change, and whom it is of.
type changed struct {
	*Change
	at member.Key
}

// id is what an object on the hub is known by.
type id struct{ namespace, kind, name string }

// side is a state, to look things up in.
type side struct {
	Side
	objects map[id]*application.Rendered
	// sources are the objects on the hub that children are made of.
	sources map[id]*application.Rendered
	// apps are the Applications, also those that were made of other kinds, by namespace and name.
	apps map[[2]string]*appsv1.Application
}

func idOf(x *application.Rendered) id { return id{x.Metadata.Namespace, x.Kind, x.Metadata.Name} }

func index(s Side) *side {
	out := &side{Side: s, objects: map[id]*application.Rendered{}, sources: map[id]*application.Rendered{}, apps: map[[2]string]*appsv1.Application{}}
	for _, app := range s.Declared.Applications {
		out.apps[[2]string{app.Namespace, app.Name}] = app
	}
	for i := range s.Objects {
		x := &s.Objects[i]
		if repository.IsSource(x) {
			out.sources[idOf(x)] = x
		} else {
			out.objects[idOf(x)] = x
		}
	}
	return out
}

// content identifies what a child is made of, beside its spec. Where what its source has is not at hand, that is the source as
// it is declared: if that changes, so may what the child puts on its member.
func (s *side) content(x *application.Rendered) string {
	if x == nil {
		return ""
	}
	if s.Contents != nil {
		if content := s.Contents.ID(x); content != "" {
			return content
		}
	}
	if files := s.Files(*x); files != nil {
		return baseline.Revision(files)
	}
	text := "unknown"
	for source := s.source(x); source != nil; source = s.source(source) {
		text += " " + source.Ref().String() + " " + fetched(source)
	}
	return text
}

// fetched identifies what a source fetches: of how often it does, nothing depends.
func fetched(source *application.Rendered) string {
	spec := jsonTree(source.Spec)
	for _, field := range []string{"interval", "timeout", "suspend"} {
		delete(spec, field)
	}
	return sum(spec)
}

// source returns the source that is rendered for an object; nil if it is somebody else's, or there is none.
func (s *side) source(x *application.Rendered) *application.Rendered {
	namespace, kind, name := "", "", ""
	switch spec := x.Spec.(type) {
	case *kustomizev1.KustomizationSpec:
		namespace, kind, name = spec.SourceRef.Namespace, spec.SourceRef.Kind, spec.SourceRef.Name
	case *helmv2.HelmReleaseSpec:
		if spec.ChartRef != nil {
			namespace, kind, name = spec.ChartRef.Namespace, spec.ChartRef.Kind, spec.ChartRef.Name
		}
	case *sourcev1.HelmChartSpec:
		kind, name = spec.SourceRef.Kind, spec.SourceRef.Name
	}
	return s.sources[id{cmp.Or(namespace, x.Metadata.Namespace), kind, name}]
}

// children compares what members, and the hub itself, have.
func (c *comparison) children() {
	for _, key := range slices.SortedFunc(maps.Keys(c.from.objects), compareID) {
		if to := c.to.objects[key]; to != nil {
			c.child(c.from.objects[key], to)
		} else {
			c.child(c.from.objects[key], nil)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(c.to.objects), compareID) {
		if c.from.objects[key] == nil {
			c.child(nil, c.to.objects[key])
		}
	}
}

func compareID(a, b id) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
}

// unread says why what an object was made of could not be read in the new state.
func (c *comparison) unread(from *application.Rendered) string {
	if c.to.Unread == nil {
		return ""
	}
	return c.to.Unread(c.owner(from))
}

// pair is what the change of a child depends on.
type pair struct {
	namespace, application, policy, kind string
	from, to                             string // digests of the specs, without what is the member's alone
	fromContent, toContent               string
	// member is set if something of the member's alone changes, too.
	member string
}

func (c *comparison) child(from, to *application.Rendered) {
	x := cmp.Or(to, from)
	p := pair{namespace: x.Metadata.Namespace, application: x.Application, policy: x.Policy, kind: x.Kind,
		fromContent: c.from.content(from), toContent: c.to.content(to)}
	if from != nil && to != nil && from.Digest() == to.Digest() && p.fromContent == p.toContent {
		return
	}
	if from != nil && to == nil {
		if reason := cmp.Or(c.held.reason(from), c.unread(from)); reason != "" {
			c.add(&Change{Action: Hold, Reason: reason}, from)
			return
		}
	}
	a, aOwn := c.from.common(from)
	b, bOwn := c.to.common(to)
	p.from, p.to = a, b
	if from != nil && to != nil && aOwn != bOwn {
		p.member = from.Member.Kind + "/" + from.Member.Name
	}
	change := c.pairs[p]
	if change == nil {
		change = c.compare(from, to, p)
		c.pairs[p] = change
	}
	if change.Action != "" {
		c.add(change, x)
	}
}

// common returns the digest of what children of a policy have in common, if they are declared the same, and of what is the
// member's alone.
func (s *side) common(x *application.Rendered) (common, own string) {
	if x == nil {
		return "", ""
	}
	o, kubeConfig := s.withoutMember(x)
	return sum(o), sum(kubeConfig)
}

func sum(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:16])
}

// withoutMember returns an object without what is the member's alone: its name in names, and how it is reached.
func (s *side) withoutMember(x *application.Rendered) (*object.Object, *meta.KubeConfigReference) {
	o := *x.Object
	o.Metadata.Name = ""
	o.Metadata.Labels = without(o.Metadata.Labels, fleetv1.MemberLabel, fleetv1.MemberKindLabel)
	o.Metadata.Annotations = without(o.Metadata.Annotations, fleetv1.DigestAnnotation)
	if waits := o.Metadata.Annotations[fleetv1.WaitsForAnnotation]; waits != "" {
		var names []string
		for _, ref := range strings.Split(waits, ",") {
			kind, name, _ := strings.Cut(ref, "/")
			names = append(names, s.nameFor(x, kind, name))
		}
		o.Metadata.Annotations[fleetv1.WaitsForAnnotation] = strings.Join(names, ",")
	}
	dependencies := func(of []meta.DependencyReference) []meta.DependencyReference {
		of = slices.Clone(of)
		for i := range of {
			if of[i].Namespace == "" {
				of[i].Name = s.nameFor(x, x.Kind, of[i].Name)
			}
		}
		return of
	}
	switch spec := x.Spec.(type) {
	case *kustomizev1.KustomizationSpec:
		own := *spec
		own.KubeConfig, own.DependsOn = nil, dependencies(spec.DependsOn)
		o.Spec = &own
		return &o, spec.KubeConfig
	case *helmv2.HelmReleaseSpec:
		own := *spec
		own.KubeConfig, own.DependsOn = nil, dependencies(spec.DependsOn)
		o.Spec = &own
		return &o, spec.KubeConfig
	}
	return &o, nil
}

// nameFor names another child of the same member, so that it is the same for all members.
func (s *side) nameFor(x *application.Rendered, kind, name string) string {
	if other := s.objects[id{x.Metadata.Namespace, kind, name}]; other != nil && other.Member == x.Member {
		return fmt.Sprintf("%s of Application %s, policy %s", kind, other.Application, other.Policy)
	}
	return name
}

func without(from map[string]string, keys ...string) map[string]string {
	out := maps.Clone(from)
	for _, key := range keys {
		delete(out, key)
	}
	return out
}

// compare makes out the change of one child, for all that are like it. It has no action if there is none.
func (c *comparison) compare(from, to *application.Rendered, p pair) *Change {
	change := &Change{Action: Update}
	switch {
	case from == nil:
		change.Action = Create
	case to == nil:
		change.Action = Delete
		if c.orphans(from) {
			change.Action = Orphan
		}
	default:
		change.Fields = c.hubFields(from, to)
	}
	a, errA := c.from.onMember(from)
	b, errB := c.to.onMember(to)
	switch {
	case p.fromContent == p.toContent && p.from == p.to: // what is reached otherwise is made of the same
	case errA != nil && from != nil:
		change.Unknown = errA.Error()
	case errB != nil && to != nil:
		change.Unknown = errB.Error()
	default:
		change.Objects = compareObjects(a, b, from, to)
		for i := range change.Objects {
			if change.Action == Orphan {
				change.Objects[i].Action = Orphan
			}
		}
	}
	if change.Action == Update && len(change.Fields) == 0 && len(change.Objects) == 0 && change.Unknown == "" {
		change.Action = ""
	}
	return change
}

// add notes a change of a member.
func (c *comparison) add(change *Change, x *application.Rendered) {
	own := *change
	own.Application, own.Policy, own.Kind = x.Application, x.Policy, x.Kind
	own.Owner = c.owner(x)
	if spec, ok := x.Spec.(*helmv2.HelmReleaseSpec); ok {
		own.release = cmp.Or(spec.StorageNamespace, spec.TargetNamespace) + "/" + spec.ReleaseName
	}
	if x.Member.Name == "" {
		own.Name = x.Metadata.Name
	}
	c.changed = append(c.changed, changed{&own, x.Member})
}

// owner returns what people have written, or had, to get an object.
func (c *comparison) owner(x *application.Rendered) Ref {
	for _, s := range []*side{c.to, c.from} {
		if kind, name := s.Written(x.Metadata.Namespace, x.Application); kind != "Application" {
			return Ref{x.Metadata.Namespace, kind, name}
		}
	}
	return Ref{x.Metadata.Namespace, "Application", x.Application}
}

// hub compares what all members share.
func (c *comparison) hub() {
	keys := slices.Collect(maps.Keys(c.from.sources))
	for key := range c.to.sources {
		if c.from.sources[key] == nil {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, compareID)
	for _, key := range keys {
		from, to := c.from.sources[key], c.to.sources[key]
		change := &Change{Action: Update}
		switch {
		case from == nil:
			change.Action = Create
		case to == nil:
			if len(c.held.problems[[2]string{from.Metadata.Namespace, from.Application}]) > 0 || c.held.owners[c.owner(from)] != "" || c.unread(from) != "" {
				continue
			}
			change.Action = Delete
		default:
			if change.Fields = c.hubFields(from, to); len(change.Fields) == 0 {
				continue
			}
		}
		x := cmp.Or(to, from)
		own := *change
		own.Application, own.Policy, own.Kind, own.Name, own.Owner = x.Application, x.Policy, x.Kind, x.Metadata.Name, c.owner(x)
		c.changed = append(c.changed, changed{&own, member.Key{}})
	}
}

// hubFields are the fields of an object on the hub that change.
func (c *comparison) hubFields(from, to *application.Rendered) []Field {
	a, aOwn := c.from.withoutMember(from)
	b, bOwn := c.to.withoutMember(to)
	fields := compareFields(hidden(jsonTree(a)), hidden(jsonTree(b)))
	if aOwn != nil && bOwn != nil {
		fields = append(fields, compareFields(jsonTree(reached{aOwn}), jsonTree(reached{bOwn}))...)
	}
	return fields
}

// reached is what of a child is its member's alone, where it is in the object.
type reached struct {
	KubeConfig *meta.KubeConfigReference `json:"spec.kubeConfig"`
}

func jsonTree(v any) (out map[string]any) {
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil { // our own types marshal
		panic(err)
	}
	return out
}

// orphans says whether what a child has put on its member stays there when the child ends.
func (c *comparison) orphans(x *application.Rendered) bool {
	for _, s := range []*side{c.to, c.from} {
		if app := s.apps[[2]string{x.Metadata.Namespace, x.Application}]; app != nil {
			if app.Spec.DeletionPolicy == appsv1.DeletionPolicyOrphan {
				return true
			}
			break
		}
	}
	spec, ok := x.Spec.(*kustomizev1.KustomizationSpec)
	return ok && (spec.DeletionPolicy == kustomizev1.DeletionPolicyOrphan ||
		!spec.Prune && (spec.DeletionPolicy == "" || spec.DeletionPolicy == kustomizev1.DeletionPolicyMirrorPrune))
}

// onMember returns what a child puts on its member.
func (s *side) onMember(x *application.Rendered) ([]*unstructured.Unstructured, error) {
	if x == nil {
		return nil, nil
	}
	if s.Contents == nil {
		return nil, errNotLookedAt
	}
	return s.Contents.Objects(x)
}

var errNotLookedAt = errors.New("what ends up on members is not looked at")
