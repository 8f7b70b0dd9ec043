package rule

import (
	"cmp"
	"fmt"
	"slices"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/baseline"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/plugin"
)

// RuleFailedReason is that of a rule that could not be rendered.
const RuleFailedReason = "RuleFailed"

// Of returns the fleets of a namespace that have the members: the one that is named, or those that the cluster is in. It is
// an error if the one that is named is not there.
func (s *Set) Of(fleets []*fleetv1.Fleet, clusters member.Clusters) ([]*fleetv1.Fleet, error) {
	if name := s.Destination.Fleet; name != "" {
		for _, f := range fleets {
			if f.Name == name {
				return []*fleetv1.Fleet{f}, nil
			}
		}
		return nil, fmt.Errorf("there is no Fleet %s in namespace %s", name, s.Namespace)
	}
	var out []*fleetv1.Fleet
	for _, f := range fleets {
		members, err := member.Resolve(f, clusters)
		if err == nil && slices.ContainsFunc(members, func(m member.Member) bool { return m.Name == s.Destination.Cluster.Name }) {
			out = append(out, f)
		}
	}
	slices.SortFunc(out, func(a, b *fleetv1.Fleet) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// Members returns the members of fleets, or the cluster, that the rules are for.
func (s *Set) Members(fleets []*fleetv1.Fleet, clusters member.Clusters) []member.Key {
	named := map[string]*fleetv1.Fleet{}
	for _, f := range fleets {
		named[f.Name] = f
	}
	return baseline.Targets(clusterv1.ClusterConfigTarget(s.Destination), named, clusters)
}

// EnginesOf returns the names of the fleets that bring Kyverno: the one that is named, whether it has it or not yet, or those
// that declare it, or have it still. One that people have taken it from by force is none.
func (s *Set) EnginesOf(fleets []*fleetv1.Fleet, has func(fleet string) bool) (names []string) {
	for _, f := range fleets {
		if !Removed(f) && (s.Destination.Fleet != "" || Declares(f) || has(f.Name)) {
			names = append(names, f.Name)
		}
	}
	return names
}

// Declares says whether a fleet declares the plugin that is Kyverno.
func Declares(fleet *fleetv1.Fleet) bool {
	return slices.ContainsFunc(plugin.Uses(fleet), func(u plugin.Use) bool { return u.Name == EnginePlugin })
}

// Removed says whether Kyverno is to be removed from a fleet although rules need it.
func Removed(fleet *fleetv1.Fleet) bool {
	return !Declares(fleet) && fleet.Annotations[fleetv1.RemovePluginAnnotation] == EnginePlugin
}

// Composition is what the FleetSecurityPolicies and ClusterCompliances of a repository become.
type Composition struct {
	// Problems are theirs; those of the Applications that they become are found when these are rendered.
	Problems []application.Problem

	sets  []*composed
	byApp map[[2]string]*composed // namespace and name of an Application
}

type composed struct {
	*Rendered
	*Set
	fleets []*fleetv1.Fleet
}

// Compose renders the rules of a repository, and returns what is declared with the Applications that deliver them added. Find
// returns a plugin, or a type of rules, that the objects of a namespace may use, and the config that it has there under
// their own; nil if there is none. Types are the names of the types of rules that there are.
func Compose(d application.Declared, find func(namespace, name string) (*plugin.Plugin, map[string]any), types []string) (application.Declared, *Composition) {
	c := &Composition{byApp: map[[2]string]*composed{}}
	taken := map[[2]string]bool{}
	for _, app := range d.Applications {
		taken[[2]string{app.Namespace, app.Name}] = true
	}
	d.Applications = slices.Clone(d.Applications)
	for _, set := range sets(d) {
		of, err := set.in(d)
		if err != nil {
			c.problem(set, application.FleetNotFoundReason, err.Error())
			continue
		}
		rendered, err := set.renderIn(of, find, types)
		if err != nil {
			c.problem(set, application.InvalidReason, err.Error())
			continue
		}
		for _, rule := range rendered.Failed() {
			c.problem(set, RuleFailedReason, fmt.Sprintf("rule %s: %v", rule.Name, rule.Err))
		}
		x := &composed{rendered, set, of}
		c.sets = append(c.sets, x)
		for _, app := range rendered.Applications() {
			key := [2]string{app.Namespace, app.Name}
			if taken[key] {
				c.problem(set, application.NameCollisionReason, fmt.Sprintf("Application %s exists and is not this %s's: rename one of them", app.Name, set.Kind.Kind))
				break
			}
			taken[key], c.byApp[key] = true, x
			d.Applications = append(d.Applications, app)
		}
	}
	return d, c
}

// RenderedSet is a FleetSecurityPolicy or a ClusterCompliance, and what it becomes.
type RenderedSet struct {
	*Set
	*Rendered
}

// Sets renders the rules of a repository, whether or not their fleets are in it. The errors are of those that could not be
// rendered, and of their rules.
func Sets(d application.Declared, find func(namespace, name string) (*plugin.Plugin, map[string]any), types []string) (out []RenderedSet, errs []error) {
	for _, set := range sets(d) {
		of, _ := set.in(d)
		rendered, err := set.renderIn(of, find, types)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", set.Kind.Kind, set.Name, err))
			continue
		}
		for _, rule := range rendered.Failed() {
			errs = append(errs, fmt.Errorf("%s %s: rule %s: %w", set.Kind.Kind, set.Name, rule.Name, rule.Err))
		}
		out = append(out, RenderedSet{set, rendered})
	}
	return out, errs
}

func sets(d application.Declared) (out []*Set) {
	for _, p := range d.FleetSecurityPolicies {
		out = append(out, OfPolicy(p))
	}
	for _, p := range d.ClusterCompliances {
		out = append(out, OfCompliance(p))
	}
	return out
}

// in returns the fleets of a repository that have the members.
func (s *Set) in(d application.Declared) ([]*fleetv1.Fleet, error) {
	other := func(o interface{ GetNamespace() string }) bool { return o.GetNamespace() != s.Namespace }
	fleets := slices.DeleteFunc(slices.Clone(d.Fleets), func(f *fleetv1.Fleet) bool { return other(f) })
	return s.Of(fleets, member.NewClusters(
		slices.DeleteFunc(slices.Clone(d.AttachedClusters), func(c *clusterv1.AttachedCluster) bool { return other(c) }),
		slices.DeleteFunc(slices.Clone(d.Clusters), func(c *clusterv1.Cluster) bool { return other(c) })))
}

func (s *Set) renderIn(of []*fleetv1.Fleet, find func(namespace, name string) (*plugin.Plugin, map[string]any), types []string) (*Rendered, error) {
	return Render(Input{Set: s, Fleets: of, Types: types, Engines: s.EnginesOf(of, func(string) bool { return false }), Find: func(name string, _ bool) (*plugin.Plugin, map[string]any, error) {
		p, config := find(s.Namespace, name)
		if p == nil {
			return nil, nil, fmt.Errorf("there is no type or plugin %s: name its folder with --plugin", name)
		}
		return p, config, nil
	}})
}

// Applications returns the Applications that deliver rules.
func (r *Rendered) Applications() (apps []*appsv1.Application) {
	for _, app := range []*appsv1.Application{r.Policies, r.Objects} {
		if app != nil {
			apps = append(apps, app)
		}
	}
	return apps
}

func (c *Composition) problem(set *Set, reason, message string) {
	// A problem names an Application; what people have written is found by SetOf.
	name := set.PoliciesName()
	if key := [2]string{set.Namespace, name}; c.byApp[key] == nil {
		c.byApp[key] = &composed{&Rendered{}, set, nil}
	}
	c.Problems = append(c.Problems, application.Problem{Namespace: set.Namespace, Application: name, Reason: reason, Message: message})
}

// Explain says what to do where the plugin that rules wait for is not there: the Applications that deliver them, and name it,
// are not what people have written.
func (c *Composition) Explain(problems []application.Problem) {
	for i := range problems {
		p := &problems[i]
		x := c.byApp[[2]string{p.Namespace, p.Application}]
		switch {
		case x == nil || x.Policies == nil || p.Reason != application.DependencyReason:
		case slices.ContainsFunc(x.fleets, Declares):
			p.Message = "waits for Kyverno: the plugin policy of the fleet could not be rendered"
		default:
			p.Message = WithoutEngine
		}
	}
}

// SetOf returns the rules that an Application delivers; nil if it delivers something else.
func (c *Composition) SetOf(namespace, app string) *Set {
	if x := c.byApp[[2]string{namespace, app}]; x != nil {
		return x.Set
	}
	return nil
}

// PathOf returns the rule that an object on members is of, as a field, and its type; both are empty if it is of none.
func (c *Composition) PathOf(namespace, app string, key baseline.Key) (path, ruleType string) {
	x := c.byApp[[2]string{namespace, app}]
	if x == nil {
		return "", ""
	}
	name := x.names[key.String()]
	for i := range x.policies {
		if string(x.policies[i].Name) == name {
			return fmt.Sprintf("spec.rules[%d]", i), ""
		}
	}
	for i := range x.rules {
		if string(x.rules[i].Name) == name {
			return fmt.Sprintf("spec.rules[%d]", i), x.rules[i].Type
		}
	}
	return "", ""
}

// Files returns the files that a Kustomization is built of; nil if they are not rendered here.
func (c *Composition) Files(r application.Rendered) map[string][]byte {
	x := c.byApp[[2]string{r.Metadata.Namespace, r.Application}]
	if _, ok := r.Spec.(*kustomizev1.KustomizationSpec); x == nil || !ok {
		return nil
	}
	return x.Files
}

// Artifacts returns the ExternalArtifacts of rules, as they are declared.
func (c *Composition) Artifacts() (out []application.Rendered) {
	for _, x := range c.sets {
		if x.Files == nil {
			continue
		}
		out = append(out, application.Artifact(x.Applications()[0].Name, x.Namespace, x.PoliciesName(), x.ArtifactSpec(), x.Revision))
	}
	return out
}
