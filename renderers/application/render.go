package application

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// Declared is everything that a repository declares.
type Declared struct {
	Applications     []*appsv1.Application
	Fleets           []*fleetv1.Fleet
	ClusterConfigs   []*clusterv1.ClusterConfig
	AttachedClusters []*clusterv1.AttachedCluster
	Clusters         []*clusterv1.Cluster

	FleetSecurityPolicies []*policyv1.FleetSecurityPolicy
	ClusterCompliances    []*clusterv1.ClusterCompliance
	ChangeBudgets         []*policyv1.ChangeBudget
}

// Rendered is one object and whom it is for.
type Rendered struct {
	*object.Object
	// Application is the name of the owner, in the object's namespace.
	Application string
	// Policy is the name of the sync policy; empty for a source that all policies share.
	Policy string
	// Member is the member's identity; zero for the hub itself and for what all members share.
	Member member.Key
	// Revision of the files that are published; empty for what is no ExternalArtifact.
	Revision string
}

// Artifact returns the ExternalArtifact that files are published as for an Application.
func Artifact(app, namespace, name string, spec *sourcev1.ExternalArtifactSpec, revision string) Rendered {
	o, _ := object.New(sourcev1.GroupVersion.WithKind(sourcev1.ExternalArtifactKind), namespace, name, spec) // a reference is always JSON
	return Rendered{Object: o, Application: app, Revision: revision}
}

// Problem is something that cannot be rendered, or not as it was meant.
type Problem struct {
	Namespace, Application string
	// Policy and Member are empty if the problem is about more than one.
	Policy string
	Member string
	// Reason is one word, as in a status.
	Reason  string
	Message string
	// Warning says that nothing stands still for it: most likely a mistake all the same.
	Warning bool
}

// Reasons of problems, beside those of the member package.
const (
	InvalidReason           = "InvalidSpec"
	FleetNotFoundReason     = "FleetNotFound"
	InvalidFleetReason      = "InvalidFleet"
	RenderFailedReason      = "RenderFailed"
	HeldReason              = "Held"
	NameCollisionReason     = "NameCollision"
	ReleaseConflictReason   = "ReleaseConflict"
	NotInEffectReason       = "NotInEffect"
	OverrideUnmatchedReason = "OverrideUnmatched"
	DependencyReason        = "DependencyNotFound"
	DependencyCycleReason   = "DependencyCycle"
	NoMembersReason         = "NoMembers"
)

// Result is what a repository renders to: objects by namespace and Application, sources first, then by policy and
// member; and problems by namespace and Application.
type Result struct {
	Objects  []Rendered
	Problems []Problem
}

type namespaced struct{ namespace, name string }

// rendering is the state of one Render.
type rendering struct {
	Result
	programs    map[namespaced]*Program
	invalid     map[namespaced]error // Applications that do not compile
	fleets      map[string]map[string]*Fleet
	fleetErrors map[namespaced]error
	// names and releases are what only one object may have, and who has it.
	names    map[namespaced]Rendered
	releases map[namespaced]Rendered
}

// Render renders all Applications. What has a problem is left out; everything else is rendered.
func Render(d Declared) Result {
	r := &rendering{
		programs: map[namespaced]*Program{},
		invalid:  map[namespaced]error{},
		names:    map[namespaced]Rendered{},
		releases: map[namespaced]Rendered{},
	}
	apps := slices.Clone(d.Applications)
	slices.SortFunc(apps, func(a, b *appsv1.Application) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, app := range apps {
		key := namespaced{app.Namespace, app.Name}
		if program, err := Compile(app); err != nil {
			r.invalid[key] = err
		} else {
			r.programs[key] = program
		}
	}
	r.fleets, r.fleetErrors = d.fleets(r.programs)
	for _, app := range apps {
		key := namespaced{app.Namespace, app.Name}
		if err := r.invalid[key]; err != nil {
			r.Problems = append(r.Problems, Problem{Namespace: app.Namespace, Application: app.Name, Reason: InvalidReason, Message: err.Error()})
		} else {
			r.application(r.programs[key])
		}
	}
	return r.Result
}

// fleets resolves all fleets, and the single clusters that Applications go to, by namespace and DestinationKey.
func (d Declared) fleets(programs map[namespaced]*Program) (map[string]map[string]*Fleet, map[namespaced]error) {
	fleets, errs := map[string]map[string]*Fleet{}, map[namespaced]error{}
	clusters := map[string]member.Clusters{}
	in := func(namespace string) member.Clusters {
		if _, ok := clusters[namespace]; !ok {
			clusters[namespace] = member.NewClusters(inNamespace(d.AttachedClusters, namespace), inNamespace(d.Clusters, namespace))
			fleets[namespace] = map[string]*Fleet{}
		}
		return clusters[namespace]
	}
	for _, f := range d.Fleets {
		members, err := member.Resolve(f, in(f.Namespace))
		if err != nil {
			errs[namespaced{f.Namespace, f.Name}] = err
			continue
		}
		fleets[f.Namespace][f.Name] = NewFleet(members)
	}
	for _, p := range programs {
		for _, key := range p.Fleets() {
			if one := OneCluster(key, p.namespace, in(p.namespace)); one != nil {
				fleets[p.namespace][key] = one
			}
		}
	}
	return fleets, errs
}

func inNamespace[T interface{ GetNamespace() string }](objects []T, namespace string) []T {
	var out []T
	for _, o := range objects {
		if o.GetNamespace() == namespace {
			out = append(out, o)
		}
	}
	return out
}

// problem adds a problem of an Application, and returns it for more to be filled in.
func (r *rendering) problem(p *Program, reason, format string, args ...any) *Problem {
	r.Problems = append(r.Problems, Problem{Namespace: p.namespace, Application: p.name, Reason: reason, Message: fmt.Sprintf(format, args...)})
	return &r.Problems[len(r.Problems)-1]
}

func (r *rendering) application(p *Program) {
	scope := r.scope(p)
	for _, text := range p.notInEffect {
		r.problem(p, NotInEffectReason, "%s has no effect", text).Warning = true
	}
	// An Application without its own sources would run what is in somebody else's.
	var sources []Rendered
	for _, source := range p.sources {
		o := Rendered{Object: source, Application: p.name, Policy: source.Metadata.Labels[appsv1.PolicyLabel]}
		if other, taken := r.names[nameOf(o)]; taken {
			r.problem(p, NameCollisionReason, "%s", collision(o, other))
			return
		}
		sources = append(sources, o)
	}
	r.add(sources...)
	for _, policy := range p.policies {
		r.policy(p, scope, policy)
	}
}

func (r *rendering) scope(p *Program) *Scope {
	scope := &Scope{Fleets: r.fleets[p.namespace], Dependencies: map[string]*Program{}}
	for _, name := range p.dependsOn {
		key := namespaced{p.namespace, name}
		switch {
		case r.programs[key] != nil:
			scope.Dependencies[name] = r.programs[key]
		case r.invalid[key] != nil:
			r.problem(p, DependencyReason, "spec.dependsOn: Application %s is invalid", name)
		default:
			r.problem(p, DependencyReason, "spec.dependsOn: there is no Application %s in namespace %s: create it, or take it out", name, p.namespace)
		}
	}
	path := Cycle(p.name, func(name string) []string {
		if program := r.programs[namespaced{p.namespace, name}]; program != nil {
			return program.dependsOn
		}
		return nil
	})
	if path != "" {
		r.problem(p, DependencyCycleReason, "spec.dependsOn: the Applications wait for each other: %s", path)
	}
	return scope
}

func (r *rendering) policy(p *Program, scope *Scope, policy *Policy) {
	targets, ok := scope.Targets(policy)
	if !ok {
		if err := r.fleetErrors[namespaced{p.namespace, policy.Fleet}]; err != nil {
			r.problem(p, InvalidFleetReason, "Fleet %s: %v", policy.Fleet, err).Policy = policy.Name
		} else {
			r.problem(p, FleetNotFoundReason, "there is no Fleet %s in namespace %s: create it, or change the destination",
				policy.Fleet, p.namespace).Policy = policy.Name
		}
		return
	}
	warn := func(reason, format string, args ...any) {
		problem := r.problem(p, reason, format, args...)
		problem.Policy, problem.Warning = policy.Name, true
	}
	if len(targets) == 0 {
		warn(NoMembersReason, "%s goes to no member of Fleet %s", policy.title(), policy.Fleet)
	}
	for _, text := range policy.Unmatched(targets) {
		warn(OverrideUnmatchedReason, "%s", text)
	}
	for _, m := range targets {
		if m.Leaving {
			continue // what it has is to end
		}
		r.child(p, scope, policy, m)
	}
}

func (r *rendering) child(p *Program, scope *Scope, policy *Policy, m *member.Member) {
	fail := func(reason, format string, args ...any) {
		problem := r.problem(p, reason, format, args...)
		problem.Policy, problem.Member = policy.Name, m.Name
	}
	if m.KubeConfig == nil && m.Name != "" {
		fail(m.Reason, "%s", m.Message)
		return
	}
	child, err := p.Child(scope, policy, m)
	if held := (*HeldError)(nil); errors.As(err, &held) {
		fail(HeldReason, "%v", err)
		r.Problems[len(r.Problems)-1].Warning = true
		return
	}
	if err != nil {
		fail(RenderFailedReason, "%v", err)
		return
	}

	out := []Rendered{{Object: child.Object, Application: p.name, Policy: policy.Name, Member: m.Key()}}
	if child.Source != nil {
		out = slices.Insert(out, 0, Rendered{Object: child.Source, Application: p.name, Policy: policy.Name})
	}
	for _, o := range out {
		if other, taken := r.names[nameOf(o)]; taken && !same(o, other) {
			fail(NameCollisionReason, "%s", collision(o, other))
			return
		}
	}
	if child.Claim != "" {
		release := namespaced{p.namespace, child.Claim}
		if m.Name == "" {
			release.namespace = "" // all namespaces have one hub
		}
		if other, taken := r.releases[release]; taken {
			application := other.Application
			if other.Metadata.Namespace != p.namespace {
				application = other.Metadata.Namespace + "/" + application
			}
			fail(ReleaseConflictReason, "%s", ReleaseConflict(child, application, other.Metadata.Name))
			return
		}
		r.releases[release] = out[len(out)-1]
	}
	r.add(out...)
}

// add adds objects, but for those that are there already.
func (r *rendering) add(objects ...Rendered) {
	for _, o := range objects {
		if _, there := r.names[nameOf(o)]; !there {
			r.names[nameOf(o)] = o
			r.Objects = append(r.Objects, o)
		}
	}
}

func nameOf(o Rendered) namespaced { return namespaced{o.Metadata.Namespace, o.Ref().String()} }

// same says whether two objects of one name are one: a chart that several members of a policy use.
func same(a, b Rendered) bool {
	return a.Application == b.Application && a.Policy == b.Policy && a.Digest() == b.Digest()
}

func collision(o, other Rendered) string {
	if other.Application != o.Application {
		return fmt.Sprintf("%s is the name of an object of Application %s, too: rename one of the Applications or policies", o.Ref(), other.Application)
	}
	return fmt.Sprintf("%s is the name of an object of policy %s, too: rename one of the policies", o.Ref(), other.Policy)
}
