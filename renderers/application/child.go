package application

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/util/validation"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// Child is what a policy becomes on one member.
type Child struct {
	// Object is the Kustomization or HelmRelease.
	Object *object.Object
	// Source is a source object of this child's own; nil if it uses one that all members share.
	Source *object.Object
	// WaitsFor lists the objects that have to be ready before this one is created. Those of its own kind are in the
	// object's dependsOn, where Flux minds them.
	WaitsFor []object.Ref
	// Claim is what only one child may have: the Helm release on the member. It is empty for a Kustomization.
	Claim string
}

// Scope is what rendering knows beside the Application: where everybody goes.
type Scope struct {
	// Fleets are the fleets that the Application and those it depends on go to, by DestinationKey. One that does not
	// exist, or whose members are not known, is not in it.
	Fleets map[string]*Fleet
	// Dependencies are the Applications that the Application depends on and that exist, by name.
	Dependencies map[string]*Program
}

// Fleet is a fleet with its members.
type Fleet struct {
	Members []member.Member
	byKey   map[member.Key]*member.Member
}

// NewFleet takes the members of a fleet.
func NewFleet(members []member.Member) *Fleet {
	f := &Fleet{Members: members, byKey: make(map[member.Key]*member.Member, len(members))}
	for i := range members {
		if m := &members[i]; m.Reason != member.DuplicateReason {
			f.byKey[m.Key()] = m
		}
	}
	return f
}

// Hub is the member that a policy without a destination goes to: the cluster where everything here runs.
var Hub = &member.Member{Ready: true}

// Targets returns the members that a policy goes to. It is false if they are not known.
func (s *Scope) Targets(p *Policy) ([]*member.Member, bool) {
	if p.Fleet == "" {
		return []*member.Member{Hub}, true
	}
	fleet, ok := s.Fleets[p.Fleet]
	if !ok {
		return nil, false
	}
	targets := make([]*member.Member, 0, len(fleet.Members))
	for i := range fleet.Members {
		if m := &fleet.Members[i]; p.Selects(m) {
			targets = append(targets, m)
		}
	}
	return targets, true
}

// covers says whether a policy goes to a member, of whichever fleet.
func (s *Scope) covers(p *Policy, m *member.Member) bool {
	if p.Fleet == "" {
		return m.Name == ""
	}
	fleet, ok := s.Fleets[p.Fleet]
	if !ok {
		return false
	}
	in, ok := fleet.byKey[m.Key()]
	return ok && !in.Leaving && p.Selects(in)
}

// ChildName returns the name of what a policy becomes on a member.
func (p *Program) ChildName(policy *Policy, m *member.Member) string {
	name := m.Name
	if name == "" {
		name = "hub"
	}
	return object.Name(MaxNameLength, p.name, policy.Name, name)
}

// Child renders a policy for one member. An error is about this member alone.
func (p *Program) Child(scope *Scope, policy *Policy, m *member.Member) (*Child, error) {
	if m.Name != "" && m.KubeConfig == nil {
		return nil, errors.New(m.Message)
	}
	matched := policy.Matching(m)
	for _, i := range matched {
		if hold := policy.overrides[i].Hold; hold != "" {
			return nil, &HeldError{hold}
		}
	}
	v, err := policy.variant(matched)
	if err != nil {
		return nil, err
	}
	spec, err := v.render(func() map[string]any { return p.facts(policy, m) })
	if err != nil {
		return nil, fmt.Errorf("%s.%w", policy.field(), policy.explainNoFleet(err))
	}
	if errs := validation.IsValidLabelValue(m.Labels[ShardLabel]); len(errs) > 0 {
		return nil, invalid("label "+ShardLabel+" of the member", m.Labels[ShardLabel], errs)
	}

	c := &Child{Object: &object.Object{Kind: policy.Kind, Metadata: p.childMetadata(policy, m)}}
	same := p.dependencies(scope, policy, m, c)
	if len(c.WaitsFor) > 0 {
		refs := make([]string, len(c.WaitsFor))
		for i, ref := range c.WaitsFor {
			refs[i] = ref.String()
		}
		c.Object.Metadata.Annotations = map[string]string{fleetv1.WaitsForAnnotation: strings.Join(refs, ",")}
	}
	switch spec := spec.(type) {
	case *kustomizev1.KustomizationSpec:
		own := *spec // shallow: what is shared is replaced, never changed
		own.KubeConfig = m.KubeConfig
		own.DependsOn = p.childDependsOn(scope, own.DependsOn, same, policy, m)
		if err := checkNamespace("kustomization.targetNamespace", own.TargetNamespace); err != nil {
			return nil, err
		}
		c.Object.APIVersion, c.Object.Spec = kustomizev1.GroupVersion.String(), &own
	case *release:
		own := spec.HelmReleaseSpec
		own.KubeConfig = m.KubeConfig
		own.DependsOn = p.childDependsOn(scope, own.DependsOn, same, policy, m)
		if spec.TemplatedChart != nil {
			if c.Source, err = policy.chart(spec.TemplatedChart); err != nil {
				return nil, fmt.Errorf("helm.%w", err)
			}
			own.ChartRef = &helmv2.CrossNamespaceSourceReference{Kind: c.Source.Kind, Name: c.Source.Metadata.Name}
		}
		if err := checkRelease(&own); err != nil {
			return nil, err
		}
		c.Claim = Claim(own.KubeConfig, own.StorageNamespace, own.ReleaseName)
		c.Object.APIVersion, c.Object.Spec = helmv2.GroupVersion.String(), &own
	}
	return c, c.Object.Seal()
}

// HeldError says why an override holds a member.
type HeldError struct{ Reason string }

func (e *HeldError) Error() string { return e.Reason }

// Claim identifies a Helm release among the HelmReleases of one namespace: the cluster, by how Flux reaches it, the
// namespace that Helm keeps the release in, and its name.
func Claim(cluster *meta.KubeConfigReference, storageNamespace, releaseName string) string {
	via := "hub"
	switch {
	case cluster == nil:
	case cluster.SecretRef != nil:
		via = "secret/" + cluster.SecretRef.Name + "/" + cmp.Or(cluster.SecretRef.Key, clusterv1.DefaultKubeconfigKey)
	case cluster.ConfigMapRef != nil:
		via = "configmap/" + cluster.ConfigMapRef.Name
	}
	return via + "/" + storageNamespace + "/" + releaseName
}

// Stamp changes whenever what Child returns for a member may have changed, as long as the Program is the same.
type Stamp struct {
	version member.Version
	waits   string
}

// Stamp is cheap, next to Child.
func (p *Program) Stamp(scope *Scope, policy *Policy, m *member.Member) Stamp {
	s := Stamp{version: m.Version}
	if len(policy.dependsOn)+len(policy.after)+len(p.dependsOn) > 0 {
		var c Child
		same := p.dependencies(scope, policy, m, &c)
		s.waits = fmt.Sprint(same, c.WaitsFor)
	}
	return s
}

func (p *Program) facts(policy *Policy, m *member.Member) map[string]any {
	facts := map[string]any{"application": map[string]any{"name": p.name, "namespace": p.namespace}}
	if m.Name != "" {
		facts["cluster"] = map[string]any{"name": m.Name, "kind": m.Kind, "labels": m.Labels}
	}
	if m.Name != "" && !policy.OneCluster {
		facts["fleet"] = map[string]any{"name": policy.Fleet}
	}
	return facts
}

func (p *Program) childMetadata(policy *Policy, m *member.Member) object.Metadata {
	meta := p.metadata(p.ChildName(policy, m), policy)
	if m.Name != "" {
		if !policy.OneCluster {
			meta.Labels[fleetv1.FleetLabel] = policy.Fleet
		}
		meta.Labels[fleetv1.MemberLabel] = m.Name
		meta.Labels[fleetv1.MemberKindLabel] = m.Kind
		if shard := m.Labels[ShardLabel]; shard != "" {
			meta.Labels[ShardLabel] = shard
		}
	}
	return meta
}

// dependencies fills in what a child waits for, and returns the names of those of its own kind. What does not go to
// the member is not waited for.
func (p *Program) dependencies(scope *Scope, policy *Policy, m *member.Member, c *Child) (same []string) {
	add := func(of *Program, dependency *Policy) {
		if !scope.covers(dependency, m) {
			return
		}
		ref := object.Ref{Kind: dependency.Kind, Name: of.ChildName(dependency, m)}
		if ref.Kind == policy.Kind {
			same = append(same, ref.Name)
		} else if !slices.Contains(c.WaitsFor, ref) {
			c.WaitsFor = append(c.WaitsFor, ref)
		}
	}
	for _, name := range policy.dependsOn {
		add(p, p.policy(name))
	}
	for _, name := range policy.after {
		if of := p.sibling(policy, name); of != nil {
			add(p, of)
		}
	}
	for _, name := range p.dependsOn {
		if of := scope.Dependencies[name]; of != nil {
			for _, dependency := range of.policies {
				add(of, dependency)
			}
		}
	}
	return same
}

// childDependsOn returns the dependsOn of a child: the declared ones, where the name of a policy stands for that policy's
// object on the same member, and those of its own kind that the policy and the Application declare. A policy that does
// not go to the member is not waited for.
func (p *Program) childDependsOn(scope *Scope, declared []meta.DependencyReference, same []string, policy *Policy, m *member.Member) []meta.DependencyReference {
	if len(declared)+len(same) == 0 {
		return nil
	}
	out := make([]meta.DependencyReference, 0, len(declared)+len(same))
	for _, d := range declared {
		if of := p.sibling(policy, d.Name); of != nil && d.Namespace == "" {
			if !scope.covers(of, m) {
				continue
			}
			d.Name = p.ChildName(of, m)
		}
		out = append(out, d)
	}
	for _, name := range same {
		if !slices.ContainsFunc(out, func(d meta.DependencyReference) bool { return d.Name == name && d.Namespace == "" }) {
			out = append(out, meta.DependencyReference{Name: name})
		}
	}
	return out
}

// checkRelease checks what a template may have made of names; Flux would only say so later.
func checkRelease(r *helmv2.HelmReleaseSpec) error {
	if len(r.ReleaseName) > maxReleaseName {
		return fmt.Errorf("helm.releaseName: %q has more than %d characters", r.ReleaseName, maxReleaseName)
	}
	if errs := validation.IsDNS1123Subdomain(r.ReleaseName); len(errs) > 0 {
		return invalid("helm.releaseName", r.ReleaseName, errs)
	}
	if err := checkNamespace("helm.targetNamespace", r.TargetNamespace); err != nil {
		return err
	}
	return checkNamespace("helm.storageNamespace", r.StorageNamespace)
}

func checkNamespace(field, name string) error {
	if name == "" {
		return nil
	}
	if errs := validation.IsDNS1123Label(name); len(errs) > 0 {
		return invalid(field, name, errs)
	}
	return nil
}

// invalid says what is wrong with a value, without the examples and the regular expression.
func invalid(field, value string, errs []string) error {
	short, _, _ := strings.Cut(errs[0], " (e.g. ")
	return fmt.Errorf("%s: %q: %s", field, value, short)
}

// ReleaseConflict says that a child would be the second HelmRelease for one Helm release on a member.
func ReleaseConflict(c *Child, application, name string) string {
	r := c.Object.Spec.(*helmv2.HelmReleaseSpec)
	return fmt.Sprintf("Helm release %s/%s is that of HelmRelease %s of Application %s already: change releaseName or targetNamespace of one",
		r.StorageNamespace, r.ReleaseName, name, application)
}
