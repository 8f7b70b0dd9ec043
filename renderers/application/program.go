// Package application renders an Application to Flux objects: one source for all members, and one Kustomization or
// HelmRelease for each policy on each of its members.
package application

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// DefaultInterval of sources and children that declare none, or 0s.
const DefaultInterval = 10 * time.Minute

// MaxNameLength of a generated object: Flux writes the names of Kustomizations and HelmReleases into labels of what
// they apply.
const MaxNameLength = 63

// Program is an Application made ready to be rendered for any member: its templates are parsed and its overrides
// merged once. Rendering is not safe for concurrent use.
type Program struct {
	name, namespace string
	policies        []*Policy
	sources         []*object.Object
	dependsOn       []string
	notInEffect     []string
}

// Policy is one sync policy of a Program.
type Policy struct {
	// Name is the policy's, or its place in the list.
	Name string
	// Kind of the children: Kustomization or HelmRelease.
	Kind string
	// Fleet is the DestinationKey: the fleet that the policy goes to, or what stands for it where that is one cluster. It
	// is empty if the policy goes to the hub itself.
	Fleet string
	// OneCluster says that the destination names a cluster.
	OneCluster bool
	// HasSelector says that the destination selects among the fleet's members.
	HasSelector bool

	index     int
	selector  labels.Selector
	dependsOn []string
	// after are the names in the dependsOn of the child itself, some of which are policies of the same kind.
	after     []string
	overrides []override
	// prepare merges overrides into the policy and compiles what comes out.
	prepare  func(matched []override) (*variant, error)
	variants map[string]*variant
	// chart makes the chart object of a HelmRelease whose chart holds templates. Other charts are among the sources.
	chart func(*appsv1.HelmChartTemplate) (*object.Object, error)
}

type override struct {
	*appsv1.Override
	names    map[string]bool // of Clusters
	selector labels.Selector // nil if there is none
}

// Compile makes an Application ready to be rendered. An error is about the spec, whatever the members.
func Compile(app *appsv1.Application) (*Program, error) {
	p := &Program{name: app.Name, namespace: app.Namespace}
	for _, d := range app.Spec.DependsOn {
		if d.Name == app.Name {
			return nil, fmt.Errorf("spec.dependsOn: an Application cannot depend on itself")
		}
		p.dependsOn = append(p.dependsOn, d.Name)
	}
	if err := checkSource(&app.Spec.Source, "spec.source"); err != nil {
		return nil, err
	}
	for i := range app.Spec.SyncPolicies {
		policy, err := p.compilePolicy(app, i)
		if err != nil {
			return nil, fmt.Errorf("spec.syncPolicies[%d]: %w", i, err)
		}
		if errs := validation.IsDNS1123Label(policy.Name); len(errs) > 0 {
			return nil, invalid(fmt.Sprintf("spec.syncPolicies[%d].name", i), policy.Name, errs)
		}
		if other := p.policy(policy.Name); other != nil {
			return nil, fmt.Errorf("spec.syncPolicies[%d].name: policy %d is named %q already: give each policy a name of its own",
				i, other.index, policy.Name)
		}
		p.policies = append(p.policies, policy)
	}
	if err := p.checkDependencies(); err != nil {
		return nil, err
	}
	return p, p.compileSources(app)
}

// Sources returns the source objects that all members share.
func (p *Program) Sources() []*object.Object { return p.sources }

// Policies returns the sync policies in their order.
func (p *Program) Policies() []*Policy { return p.policies }

// DependsOn returns the names of the Applications that come first.
func (p *Program) DependsOn() []string { return p.dependsOn }

// NotInEffect lists what the Application declares that has no effect, each by its path, with the reason if there is one.
func (p *Program) NotInEffect() []string { return p.notInEffect }

// Fleets returns the DestinationKeys of the policies, sorted.
func (p *Program) Fleets() []string {
	var names []string
	for _, policy := range p.policies {
		if policy.Fleet != "" && !slices.Contains(names, policy.Fleet) {
			names = append(names, policy.Fleet)
		}
	}
	slices.Sort(names)
	return names
}

// Selects says whether the policy goes to a member of its fleet.
func (p *Policy) Selects(m *member.Member) bool {
	return p.selector.Matches(labels.Set(m.Labels))
}

func (p *Program) compilePolicy(app *appsv1.Application, i int) (*Policy, error) {
	declared := &app.Spec.SyncPolicies[i]
	if declared.Source != nil {
		if err := checkSource(declared.Source, "source"); err != nil {
			return nil, err
		}
	}
	policy := &Policy{Name: PolicyName(app, i), index: i, selector: labels.Everything(), variants: map[string]*variant{}}
	for _, d := range declared.DependsOn {
		policy.dependsOn = append(policy.dependsOn, d.Name)
	}
	if declared.Rollout != nil {
		p.ignores("spec.syncPolicies[%d].rollout", i)
	}

	destination := declared.Destination
	if destination == nil {
		destination = app.Spec.Destination
	}
	if destination != nil {
		if err := checkDestination(destination); err != nil {
			return nil, err
		}
		policy.Fleet, policy.OneCluster = DestinationKey(destination), destination.Cluster != nil
		if destination.ClusterSelector != nil {
			selector, err := metav1.LabelSelectorAsSelector(destination.ClusterSelector)
			if err != nil {
				return nil, fmt.Errorf("destination.clusterSelector: %w", err)
			}
			policy.selector, policy.HasSelector = selector, true
		}
	}

	for j := range declared.Overrides {
		o := override{Override: &declared.Overrides[j], names: map[string]bool{}}
		for _, name := range o.Clusters {
			o.names[name] = true
		}
		if o.Selector != nil {
			selector, err := metav1.LabelSelectorAsSelector(o.Selector)
			if err != nil {
				return nil, fmt.Errorf("overrides[%d].selector: %w", j, err)
			}
			o.selector = selector
		}
		policy.overrides = append(policy.overrides, o)
	}

	var err error
	switch {
	case declared.Kustomization != nil:
		policy.Kind, policy.after = kustomizev1.KustomizationKind, siblingNames(declared.Kustomization.DependsOn)
		policy.prepare, err = p.compileKustomization(app, i)
	case declared.Helm != nil:
		policy.Kind, policy.after = helmv2.HelmReleaseKind, siblingNames(declared.Helm.DependsOn)
		policy.prepare, err = p.compileHelm(app, policy)
	default:
		err = fmt.Errorf("neither kustomization nor helm is set")
	}
	if err != nil {
		return nil, err
	}
	// What can be known of the templates without a member is known now.
	_, err = policy.variant(nil)
	return policy, err
}

// field is the field of the policy that its children are made of.
func (p *Policy) field() string {
	if p.Kind == helmv2.HelmReleaseKind {
		return "helm"
	}
	return "kustomization"
}

// title names the policy for people.
func (p *Policy) title() string {
	if p.Name == strconv.Itoa(p.index) {
		return "syncPolicies[" + p.Name + "]"
	}
	return p.Name
}

// PolicyName returns the name of the i-th sync policy of an Application.
func PolicyName(app *appsv1.Application, i int) string {
	if name := app.Spec.SyncPolicies[i].Name; name != "" {
		return name
	}
	return strconv.Itoa(i)
}

func (p *Program) ignores(format string, args ...any) {
	p.notInEffect = append(p.notInEffect, fmt.Sprintf(format, args...))
}

// interval returns the default for an interval that is left out or zero; zero, which Kurator's users write, is said.
func (p *Program) interval(declared *metav1.Duration, path string, args ...any) metav1.Duration {
	if declared != nil && declared.Duration > 0 {
		return *declared
	}
	if declared != nil {
		p.ignores("%s: %s (it is %s)", fmt.Sprintf(path, args...), declared.Duration, DefaultInterval)
	}
	return metav1.Duration{Duration: DefaultInterval}
}

// sibling returns the policy that a name in the dependsOn of a child stands for; nil if it is the name of an object.
func (p *Program) sibling(policy *Policy, name string) *Policy {
	if other := p.policy(name); other != nil && other.Kind == policy.Kind {
		return other
	}
	return nil
}

func (p *Program) policy(name string) *Policy {
	for _, policy := range p.policies {
		if policy.Name == name {
			return policy
		}
	}
	return nil
}

// siblingNames returns the names in the dependsOn of a child that may stand for policies.
func siblingNames(dependsOn []meta.DependencyReference) []string {
	var names []string
	for _, d := range dependsOn {
		if d.Namespace == "" {
			names = append(names, d.Name)
		}
	}
	return names
}

// checkDependencies refuses unknown policies and cycles, which Flux would wait on for ever.
func (p *Program) checkDependencies() error {
	for _, policy := range p.policies {
		for _, name := range policy.dependsOn {
			if p.policy(name) == nil {
				return fmt.Errorf("spec.syncPolicies[%d].dependsOn: there is no policy %q", policy.index, name)
			}
		}
	}
	next := func(name string) []string {
		policy := p.policy(name)
		names := slices.Clone(policy.dependsOn)
		for _, name := range policy.after {
			if p.sibling(policy, name) != nil {
				names = append(names, name)
			}
		}
		return names
	}
	for _, policy := range p.policies {
		if path := Cycle(policy.Name, next); path != "" {
			return fmt.Errorf("spec.syncPolicies[%d].dependsOn: the policies wait for each other: %s", policy.index, path)
		}
	}
	return nil
}

// Cycle returns the way from something back to itself, as text; next returns what a name depends on. It is empty if
// there is no way back.
func Cycle(start string, next func(name string) []string) string {
	seen := map[string]bool{}
	var walk func(name, path string) string
	walk = func(name, path string) string {
		for _, n := range next(name) {
			if n == start {
				return path + " → " + n
			}
			if seen[n] {
				continue
			}
			seen[n] = true
			if found := walk(n, path+" → "+n); found != "" {
				return found
			}
		}
		return ""
	}
	return walk(start, start)
}

// metadata returns the declared metadata of an object that all members share.
func (p *Program) metadata(name string, policy *Policy) object.Metadata {
	l := map[string]string{
		fleetv1.ManagedByLabel:  fleetv1.ManagedByValue,
		appsv1.ApplicationLabel: p.name,
	}
	if policy != nil {
		l[appsv1.PolicyLabel] = policy.Name
	}
	return object.Metadata{Name: name, Namespace: p.namespace, Labels: l}
}

// ShardLabel, on a member, assigns the member's objects to a shard of Flux's controllers.
// https://fluxcd.io/flux/installation/configuration/sharding/
const ShardLabel = "sharding.fluxcd.io/key"
