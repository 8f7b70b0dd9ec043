// Package rule renders FleetSecurityPolicies and ClusterCompliances: to the policies of Kyverno and other objects that
// members have, as files that all of them share, and to the Applications that deliver them.
package rule

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/baseline"
	"github.com/fleetwright/fleetwright/renderers/object"
	"github.com/fleetwright/fleetwright/renderers/plugin"
)

// EnginePlugin is the plugin of a fleet that is Kyverno.
const EnginePlugin = "policy"

// The folders of the files, and sync policies of the Applications: what needs Kyverno, and what does not.
const (
	policiesFolder = "policies"
	objectsFolder  = "objects"
)

// WithoutEngine says what to do where the fleet that rules are for does not bring Kyverno.
const WithoutEngine = "waits for Kyverno: the fleet does not have the plugin policy: set spec.plugin.policy.kyverno in it, or waitForKyverno: false where Kyverno comes in another way"

// applyTimeout bounds how long Flux waits for what it has applied to be healthy.
const applyTimeout = 5 * time.Minute

// Set is a FleetSecurityPolicy or a ClusterCompliance: both are rules for members.
type Set struct {
	// Kind, Namespace and Name are the object's.
	Kind            schema.GroupVersionKind
	Namespace, Name string
	// Destination is where the rules hold.
	Destination appsv1.ApplicationDestination
	policyv1.RuleOptions

	// policies are the rules of a FleetSecurityPolicy, and rules those of a ClusterCompliance.
	policies []policyv1.SecurityRule
	rules    []clusterv1.ComplianceRule
	// prefix is what the names of all policies on members begin with: a member may be one of fleets in several namespaces.
	prefix []string
}

// OfPolicy returns the rules of a FleetSecurityPolicy.
func OfPolicy(p *policyv1.FleetSecurityPolicy) *Set {
	return &Set{
		Kind: policyv1.GroupVersion.WithKind(policyv1.FleetSecurityPolicyKind), Namespace: p.Namespace, Name: p.Name,
		Destination: appsv1.ApplicationDestination{Fleet: p.Spec.Fleet, ClusterSelector: p.Spec.ClusterSelector},
		RuleOptions: p.Spec.RuleOptions, policies: p.Spec.Rules, prefix: []string{p.Namespace, p.Name},
	}
}

// OfCompliance returns the rules of a ClusterCompliance.
func OfCompliance(c *clusterv1.ClusterCompliance) *Set {
	s := &Set{
		Kind: clusterv1.GroupVersion.WithKind(clusterv1.ClusterComplianceKind), Namespace: c.Namespace, Name: c.Name,
		Destination: appsv1.ApplicationDestination{Fleet: c.Spec.Fleet, ClusterSelector: c.Spec.ClusterSelector},
		RuleOptions: c.Spec.RuleOptions, rules: c.Spec.Rules, prefix: []string{"compliance", c.Namespace, c.Name},
	}
	if c.Spec.ClusterName != "" {
		s.Destination = appsv1.ApplicationDestination{Cluster: &appsv1.ClusterReference{Name: c.Spec.ClusterName}}
	}
	return s
}

// Declared returns the names and types of the rules that are enabled.
func (s *Set) Declared() (rules []Rule) {
	for i := range s.policies {
		rules = append(rules, Rule{Name: string(s.policies[i].Name)})
	}
	for i := range s.rules {
		if enabled := s.rules[i].Enabled; enabled == nil || *enabled {
			rules = append(rules, Rule{Name: string(s.rules[i].Name), Type: s.rules[i].Type})
		}
	}
	return rules
}

// PoliciesName returns the name of the Application that delivers what needs Kyverno, and of the artifact of both; ObjectsName
// that of the Application that delivers the rest.
func (s *Set) PoliciesName() string {
	if s.Kind.Kind == clusterv1.ClusterComplianceKind {
		return object.Name(application.MaxNameLength, "compliance", s.Name)
	}
	return object.Name(application.MaxNameLength, "policy", s.Name)
}

// ObjectsName returns the name of the Application that delivers what does not need Kyverno.
func (s *Set) ObjectsName() string {
	return object.Name(application.MaxNameLength, "hardening", s.Name)
}

// Find returns a type of rules, or else a plugin, that the objects of a namespace may use, and the config that it has there
// under their own.
type Find func(name string, ruleType bool) (*plugin.Plugin, map[string]any, error)

// Input is what rules are rendered from.
type Input struct {
	*Set
	// Fleets are those that have the members: the one that is named, or those that the cluster is in. What their plugins run in
	// is left alone.
	Fleets []*fleetv1.Fleet
	// Engines are the names of the fleets that bring Kyverno to the members.
	Engines []string
	Find    Find
	// Types are the names of the types of rules that there are.
	Types []string
}

// Rendered is what rules become. It is shared and only read.
type Rendered struct {
	// Files are the manifests, by path; nil if there are none.
	Files map[string][]byte
	// Revision is "latest@sha256:" and a digest of the paths and contents.
	Revision string
	// Policies delivers what needs Kyverno, and Objects the rest; nil where there is nothing.
	Policies, Objects *appsv1.Application
	// Rules are how the rules are, in their order; those that are not enabled are left out.
	Rules []Rule
	// Excluded are the namespaces that are left alone, sorted.
	Excluded []string
	// Manifests are the policies and other objects that are in the files.
	Manifests []*unstructured.Unstructured
	// Removed is a fleet that Kyverno is removed from by force, so that nothing that needs it is delivered; empty if there is none.
	Removed string
	// names are those of all objects, and the rules that they are of.
	names map[string]string
}

// Rule is how a rule was rendered.
type Rule struct {
	Name, Type string
	Enforce    bool
	// ID is the name of its policy on members, or what the names of its policies begin with, before a dot.
	ID string
	// Policies are the names of its policies on members; nil of a rule that could not be rendered.
	Policies []string
	// Err is why there is nothing of it: only a change of what is declared mends it.
	Err error
}

// Counted returns the names of the policies whose results on members are those of the rules, sorted. One that ends with *
// stands for all that begin so: what is there of a rule that cannot be rendered any more.
func (r *Rendered) Counted() []string {
	var out []string
	for _, rule := range r.Rules {
		if out = append(out, rule.Policies...); rule.Err != nil {
			out = append(out, rule.ID, rule.ID+".*")
		}
	}
	slices.Sort(out)
	return out
}

// RuleOf returns the index of the rule that a policy on members is of; false if it is of none. Of a rule that could not be
// rendered, members may have policies from before.
func (r *Rendered) RuleOf(policy string) (int, bool) {
	i := slices.IndexFunc(r.Rules, func(rule Rule) bool {
		if rule.Err != nil {
			return policy == rule.ID || strings.HasPrefix(policy, rule.ID+".")
		}
		return slices.Contains(rule.Policies, policy)
	})
	return i, i >= 0
}

// Failed returns the rules that could not be rendered.
func (r *Rendered) Failed() (failed []Rule) {
	for _, rule := range r.Rules {
		if rule.Err != nil {
			failed = append(failed, rule)
		}
	}
	return failed
}

// Render renders rules. What is wrong with a rule is in its Err; an error is one of all of them.
func Render(in Input) (*Rendered, error) {
	if _, err := metav1.LabelSelectorAsSelector(in.Destination.ClusterSelector); err != nil {
		return nil, fmt.Errorf("spec.clusterSelector: %w", err)
	}
	excluded, err := Excluded(in.Fleets, in.Find)
	if err != nil {
		return nil, err
	}
	excluded = append(excluded, in.ExcludeNamespaces...)
	c := compose(in, excluded)
	// What the rules themselves install, an agent say, is left alone, too.
	installed := slices.Clone(excluded)
	for _, o := range c.objects {
		if o.GetKind() == "Namespace" {
			installed = append(installed, o.GetName())
		}
	}
	if len(installed) > len(excluded) {
		c = compose(in, installed)
	}
	return c.Rendered, c.deliver()
}

// compose renders all rules, which leave namespaces alone.
func compose(in Input, excluded []string) *composing {
	excluded = slices.Compact(slices.Sorted(slices.Values(excluded)))
	c := &composing{Input: in, Rendered: &Rendered{Excluded: excluded, names: map[string]string{}}}
	for i := range in.policies {
		c.securityRule(&in.policies[i])
	}
	for i := range in.rules {
		if enabled := in.rules[i].Enabled; enabled == nil || *enabled {
			c.complianceRule(&in.rules[i])
		}
	}
	return c
}

// composing is the state of one Render.
type composing struct {
	Input
	*Rendered
	rendered, objects []*unstructured.Unstructured
}

// securityRule renders a rule of a FleetSecurityPolicy.
func (c *composing) securityRule(rule *policyv1.SecurityRule) {
	out := Rule{Name: string(rule.Name), ID: c.policyName(string(rule.Name)), Enforce: rule.Enforcement == policyv1.Enforce}
	policy, err := validatingPolicy(rule, out.ID, c.Excluded)
	c.add(out, []*unstructured.Unstructured{policy}, nil, err)
}

// complianceRule renders a rule of a ClusterCompliance.
func (c *composing) complianceRule(rule *clusterv1.ComplianceRule) {
	out := Rule{Name: string(rule.Name), Type: rule.Type, ID: c.policyName(string(rule.Name))}
	policies, objects, err := c.expand(rule, &out)
	c.add(out, policies, objects, err)
}

func (c *composing) expand(rule *clusterv1.ComplianceRule, out *Rule) (policies, objects []*unstructured.Unstructured, err error) {
	params, enforce, err := parameters(rule)
	if err != nil {
		return nil, nil, err
	}
	out.Enforce = enforce
	kind, config, err := c.Find(rule.Type, true)
	if err != nil {
		if near := object.Nearest(rule.Type, c.Types); near != "" {
			err = fmt.Errorf("%w; did you mean %s?", err, near)
		}
		return nil, nil, err
	}
	use := plugin.RuleUse{Name: string(rule.Name), ID: out.ID, Enforce: enforce, Params: application.MergeValues(config, params), Excluded: c.Excluded,
		Fleet: &fleetv1.Fleet{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace}}}
	if len(c.Fleets) > 0 {
		use.Fleet = c.Fleets[0]
	}
	rules, objects, err := kind.Expand(use)
	if err != nil {
		return nil, nil, err
	}
	for i := range rules {
		name := out.ID
		if rules[i].Name != "" {
			name = c.policyName(string(rule.Name), string(rules[i].Name))
		}
		policy, err := validatingPolicy(&rules[i], name, c.Excluded)
		if err != nil {
			return nil, nil, fmt.Errorf("policies[%d]: %w", i, err)
		}
		policies = append(policies, policy)
	}
	return policies, objects, nil
}

// parameters returns the parameters of a rule, without enforce, which every type has.
func parameters(rule *clusterv1.ComplianceRule) (params map[string]any, enforce bool, err error) {
	if rule.Params == nil || string(rule.Params.Raw) == "null" {
		return nil, false, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(rule.Params.Raw))
	decoder.UseNumber()
	if err := decoder.Decode(&params); err != nil {
		return nil, false, errors.New("params: has to be a map")
	}
	if v, ok := params["enforce"]; ok {
		if enforce, ok = v.(bool); !ok {
			return nil, false, fmt.Errorf("params.enforce: %v: has to be true or false", v)
		}
		delete(params, "enforce")
	}
	return params, enforce, nil
}

// add adds what a rule becomes, all of it or nothing.
func (c *composing) add(out Rule, policies, objects []*unstructured.Unstructured, err error) {
	own := map[string]bool{}
	for _, o := range append(slices.Clone(policies), objects...) {
		if err != nil {
			break
		}
		key := baseline.KeyOf(o).String()
		if other, ok := c.names[key]; own[key] {
			err = fmt.Errorf("makes %s twice", key)
		} else if ok {
			err = fmt.Errorf("makes %s, which rule %s makes, too: change the one or the other", key, other)
		} else if plugin.InSystem(o) || o.GetKind() == "NetworkPolicy" && slices.Contains(c.Excluded, o.GetNamespace()) {
			err = fmt.Errorf("%s is in a namespace that is left alone: that of the system, of Flux or of a plugin", key)
		}
		own[key] = true
	}
	if err != nil {
		out.Err = err
		c.Rules = append(c.Rules, out)
		return
	}
	for _, o := range append(slices.Clone(policies), objects...) {
		c.names[baseline.KeyOf(o).String()] = out.Name
		if isKyverno(o) {
			c.rendered = append(c.rendered, o)
			out.Policies = append(out.Policies, o.GetName())
		} else {
			c.objects = append(c.objects, o)
		}
	}
	c.Rules = append(c.Rules, out)
}

// isKyverno says whether an object is one that only Kyverno knows.
func isKyverno(o *unstructured.Unstructured) bool {
	group := o.GroupVersionKind().Group
	return group == policiesGroup || group == "kyverno.io"
}

// deliver writes the files, and the Applications that deliver them.
func (c *composing) deliver() error {
	if i := slices.IndexFunc(c.Fleets, Removed); i >= 0 && len(c.Engines) == 0 && c.waits() {
		c.Removed, c.rendered = c.Fleets[i].Name, nil
	}
	if len(c.rendered)+len(c.objects) == 0 {
		return nil
	}
	c.Files = map[string][]byte{}
	for _, part := range []struct {
		folder, name string
		objects      []*unstructured.Unstructured
		app          **appsv1.Application
	}{{policiesFolder, c.PoliciesName(), c.rendered, &c.Policies}, {objectsFolder, c.ObjectsName(), c.objects, &c.Objects}} {
		if len(part.objects) == 0 {
			continue
		}
		slices.SortFunc(part.objects, func(a, b *unstructured.Unstructured) int {
			return cmp.Compare(baseline.KeyOf(a).String(), baseline.KeyOf(b).String())
		})
		files, patches, err := baseline.Manifests(part.objects)
		if err != nil {
			return err
		}
		for name, content := range files {
			c.Files[part.folder+"/"+name] = content
		}
		c.Manifests = append(c.Manifests, part.objects...)
		app := c.application(part.name, part.folder, patches)
		if part.folder == policiesFolder {
			c.await(app)
		}
		if _, err := application.Compile(app); err != nil {
			return fmt.Errorf("what this becomes is invalid: %w", err)
		}
		*part.app = app
	}
	c.Revision = baseline.Revision(c.Files)
	return nil
}

func (c *composing) application(name, folder string, patches []kustomize.Patch) *appsv1.Application {
	app := &appsv1.Application{}
	app.APIVersion, app.Kind = appsv1.GroupVersion.String(), appsv1.ApplicationKind
	app.Name, app.Namespace = name, c.Namespace
	app.Spec = appsv1.ApplicationSpec{
		Source:         appsv1.ApplicationSource{SourceRef: &appsv1.SourceReference{Kind: sourcev1.ExternalArtifactKind, Name: c.PoliciesName()}},
		Destination:    c.Destination.DeepCopy(),
		DeletionPolicy: c.DeletionPolicy,
		PruneBudget:    c.PruneBudget,
		SyncPolicies: []appsv1.ApplicationSyncPolicy{{
			Name: folder,
			Kustomization: &appsv1.Kustomization{
				Path: "./" + folder, Prune: new(true), Wait: true, Patches: patches,
				Interval: c.Interval, Timeout: &metav1.Duration{Duration: applyTimeout}, RetryInterval: &metav1.Duration{Duration: time.Minute},
			},
		}},
	}
	if i := c.Interval; i == nil || i.Duration <= 0 {
		app.Spec.SyncPolicies[0].Kustomization.Interval = &metav1.Duration{Duration: application.DefaultInterval}
	}
	return app
}

// await has the policies come after Kyverno on every member, and says when they are ready.
func (c *composing) await(app *appsv1.Application) {
	policy := &app.Spec.SyncPolicies[0]
	policy.Kustomization.HealthCheckExprs = []kustomize.CustomHealthCheck{health}
	if !c.waits() {
		return
	}
	for _, fleet := range c.Engines {
		app.Spec.DependsOn = append(app.Spec.DependsOn, appsv1.NameReference{Name: plugin.Name(fleet, EnginePlugin)})
	}
	if len(c.Engines) == 0 {
		policy.Overrides = append(policy.Overrides, appsv1.Override{Selector: &metav1.LabelSelector{}, Hold: fmt.Sprintf(
			"waits for Kyverno: no Fleet that has %s has the plugin policy: set spec.plugin.policy.kyverno in one, or waitForKyverno: false where Kyverno comes in another way",
			c.where())})
	}
}

// waits says whether policies wait for the plugin of a fleet.
func (c *composing) waits() bool { return c.WaitForKyverno == nil || *c.WaitForKyverno }

func (c *composing) where() string {
	if c.Destination.Cluster != nil {
		return c.Destination.Cluster.Name
	}
	return "these members"
}

// Excluded returns the namespaces that are left alone on the members of fleets: those of the system, of Flux, and of the
// fleets' plugins. What a plugin has cannot be told while the plugin itself cannot be.
func Excluded(fleets []*fleetv1.Fleet, find Find) ([]string, error) {
	out := slices.Clone(plugin.SystemNamespaces)
	for _, fleet := range fleets {
		for _, use := range plugin.Uses(fleet) {
			p, config, err := find(use.Name, false)
			if err != nil {
				return nil, fmt.Errorf("which namespaces plugin %s of Fleet %s has, and are to be left alone, is not known: %w", use.Name, fleet.Name, err)
			}
			use.Config = application.MergeValues(config, use.Config)
			namespaces, err := p.Namespaces(fleet, use)
			if err != nil {
				return nil, fmt.Errorf("which namespaces plugin %s of Fleet %s has, and are to be left alone, is not known: %w", use.Name, fleet.Name, err)
			}
			out = append(out, namespaces...)
		}
	}
	return out, nil
}

// ArtifactSpec returns the spec of the ExternalArtifact of rules, which flux trace follows.
func (s *Set) ArtifactSpec() *sourcev1.ExternalArtifactSpec {
	return &sourcev1.ExternalArtifactSpec{SourceRef: &meta.NamespacedObjectKindReference{
		APIVersion: s.Kind.GroupVersion().String(), Kind: s.Kind.Kind, Name: s.Name, Namespace: s.Namespace}}
}
