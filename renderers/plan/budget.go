package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/budget"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/repository"
)

// OverBudget is a step that the controller does not begin, until it is allowed.
type OverBudget struct {
	// Owner is what people have written, and Application what it renders to.
	Owner       Ref    `json:"owner"`
	Application string `json:"application"`
	// Over says by how much, and which ChangeBudget that is.
	Over []string `json:"over"`
	// Allow is the value of the annotation fleet.kurator.dev/allow-change of the owner that allows just this step.
	Allow string `json:"allow"`
	// Allowed says that the owner has it.
	Allowed bool `json:"allowed,omitempty"`
}

// budget compares what changes of each Application of the new state with the ChangeBudgets of its namespace, and with some more.
// Those of the old state hold, too: a change does not lift the budget that it is over. An Application that is deleted is not
// compared: it is the explicit act itself.
func (c *comparison) budget(more []*policyv1.ChangeBudget) {
	budgets := map[string][]*policyv1.ChangeBudget{}
	seen := map[string]bool{}
	for _, b := range slices.Concat(c.to.Declared.ChangeBudgets, c.from.Declared.ChangeBudgets) {
		if key := b.Namespace + "/" + b.Name + jsonText(b.Spec); !seen[key] {
			seen[key] = true
			budgets[b.Namespace] = append(budgets[b.Namespace], b)
		}
	}
	digests := c.to.Digests()
	check := func(namespace, app, allow string, step *budget.Step) {
		over := slices.Compact(budget.Check(step, slices.Concat(budgets[namespace], more)))
		if len(over) == 0 {
			return
		}
		kind, name := c.to.Written(namespace, app)
		o := OverBudget{Owner: Ref{namespace, kind, name}, Application: app, Over: over, Allow: allow}
		o.Allowed = budget.Allows(c.to.annotations(o.Owner)[fleetv1.AllowChangeAnnotation], allow)
		c.OverBudget = append(c.OverBudget, o)
	}
	for key, step := range c.steps() {
		if c.to.apps[key] != nil {
			check(key[0], key[1], digests.Owners[repository.Name{Namespace: key[0], Kind: appsv1.ApplicationKind, Name: key[1]}], step)
		}
	}
	for artifact, step := range c.published() {
		check(artifact.Metadata.Namespace, artifact.Application, budget.DigestOf(artifact.Revision), step)
	}
	slices.SortFunc(c.OverBudget, func(a, b OverBudget) int {
		return cmp.Or(compareBool(a.Allowed, b.Allowed), compareRef(a.Owner, b.Owner), cmp.Compare(a.Application, b.Application), cmp.Compare(a.Allow, b.Allow))
	})
}

// steps are what changes of the Applications, as the controller sees it: in the objects on the hub.
func (c *comparison) steps() map[[2]string]*budget.Step {
	out := map[[2]string]*budget.Step{}
	members := map[[2]string]map[member.Key]bool{}
	labels := c.to.labels()
	step := func(x *application.Rendered) *budget.Step {
		key := [2]string{x.Metadata.Namespace, x.Application}
		if out[key] == nil {
			out[key], members[key] = &budget.Step{Kinds: map[string]bool{}}, map[member.Key]bool{}
		}
		if !members[key][x.Member] {
			members[key][x.Member] = true
			out[key].Members++
		}
		return out[key]
	}
	for key, from := range c.from.objects {
		s := step(from)
		switch to := c.to.objects[key]; {
		case to != nil && (to.Digest() != from.Digest() || c.from.sourcesOf(from) != c.to.sourcesOf(to)):
			s.Change(from.Member, labels[memberID{key.namespace, from.Member}])
		case to == nil && c.held.reason(from) == "" && c.held.owners[c.owner(from)] == "" && c.unread(from) == "":
			s.Delete(from.Member, labels[memberID{key.namespace, from.Member}])
			if c.orphans(from) || c.handedOver(from) {
				continue
			}
			objects, err := c.from.onMember(from)
			s.Unknown = s.Unknown || err != nil
			for _, o := range objects {
				s.Kinds[strings.TrimSuffix(fmt.Sprintf("%s.%s", o.GetKind(), o.GroupVersionKind().Group), ".")] = true
			}
		}
	}
	for key, to := range c.to.objects {
		s := step(to)
		if c.from.objects[key] == nil {
			s.Change(to.Member, labels[memberID{key.namespace, to.Member}])
		}
	}
	return out
}

// published are the steps to what is published anew, by what is published: that is another step than what the Flux objects are.
func (c *comparison) published() map[*application.Rendered]*budget.Step {
	out := map[*application.Rendered]*budget.Step{}
	labels := c.to.labels()
	for key, x := range c.from.objects {
		was := c.from.source(x)
		if was == nil || was.Revision == "" {
			continue
		}
		if is := c.to.sources[idOf(was)]; is != nil && is.Revision != was.Revision && c.held.owners[c.owner(x)] == "" {
			if out[is] == nil {
				out[is] = &budget.Step{}
			}
			out[is].Change(x.Member, labels[memberID{key.namespace, x.Member}])
			out[is].Members = len(out[is].Changed)
		}
	}
	return out
}

// sourcesOf identifies the sources of a child as they are declared.
func (s *side) sourcesOf(x *application.Rendered) (text string) {
	for source := s.source(x); source != nil; source = s.source(source) {
		text += " " + source.Ref().String() + " " + source.Digest()
	}
	return text
}

// handedOver says whether the Helm release of a child that ends is another child's.
func (c *comparison) handedOver(from *application.Rendered) bool {
	return slices.ContainsFunc(c.changed, func(x changed) bool {
		return x.Action == Orphan && x.Reason != "" && x.at == from.Member && x.Application == from.Application && x.Policy == from.Policy
	})
}

// labels returns the labels of the members of a state, with those that their fleets give them.
func (s *side) labels() map[memberID]map[string]string {
	out := map[memberID]map[string]string{}
	for _, x := range s.Declared.AttachedClusters {
		out[memberID{x.Namespace, member.Key{Kind: "AttachedCluster", Name: x.Name}}] = x.Labels
	}
	for _, x := range s.Declared.Clusters {
		out[memberID{x.Namespace, member.Key{Kind: "Cluster", Name: x.Name}}] = x.Labels
	}
	return out
}

// annotations returns the annotations of what people have written.
func (s *side) annotations(of Ref) map[string]string {
	find := func(kind string, o interface {
		GetNamespace() string
		GetName() string
	}) bool {
		return kind == of.Kind && o.GetNamespace() == of.Namespace && o.GetName() == of.Name
	}
	for _, o := range s.Declared.Applications {
		if find(appsv1.ApplicationKind, o) {
			return o.Annotations
		}
	}
	for _, o := range s.Declared.Fleets {
		if find(fleetv1.FleetKind, o) {
			return o.Annotations
		}
	}
	for _, o := range s.Declared.ClusterConfigs {
		if find("ClusterConfig", o) {
			return o.Annotations
		}
	}
	for _, o := range s.Declared.FleetSecurityPolicies {
		if find(policyv1.FleetSecurityPolicyKind, o) {
			return o.Annotations
		}
	}
	for _, o := range s.Declared.ClusterCompliances {
		if find("ClusterCompliance", o) {
			return o.Annotations
		}
	}
	return nil
}
