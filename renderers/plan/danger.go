package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// severity is the order of dangers.
var severity = []DangerKind{BudgetLifted, MemberLeaves, SelectsNothing, DeletesData, Deletes, Recreates, SelectsEverything, Enforces, MajorVersion, SecretChanges}

func (c *comparison) dangers() {
	for _, b := range c.from.Declared.ChangeBudgets {
		if !slices.ContainsFunc(c.to.Declared.ChangeBudgets, func(is *policyv1.ChangeBudget) bool {
			return is.Namespace == b.Namespace && is.Name == b.Name && jsonText(is.Spec) == jsonText(b.Spec)
		}) {
			c.Dangers = append(c.Dangers, Danger{Kind: BudgetLifted, Owner: &Ref{b.Namespace, policyv1.ChangeBudgetKind, b.Name},
				Message: "is another one, or none, from then on; here it still holds"})
		}
	}
	for _, m := range c.Members.Leaving {
		message := "leaves"
		if len(m.Loses) > 0 {
			message += "; it loses " + strings.Join(m.Loses, ", ")
		}
		if len(m.Keeps) > 0 {
			message += "; it keeps, without anybody's care, " + strings.Join(m.Keeps, ", ")
		}
		c.Dangers = append(c.Dangers, Danger{Kind: MemberLeaves, Members: []string{m.Name}, Message: message})
	}
	for i := range c.Changes {
		c.dangersOf(&c.Changes[i])
	}
	c.selections()
	slices.SortStableFunc(c.Dangers, func(a, b Danger) int {
		return cmp.Or(cmp.Compare(slices.Index(severity, a.Kind), slices.Index(severity, b.Kind)), cmp.Compare(len(b.Members), len(a.Members)))
	})
}

// dangersOf says what of a change is dangerous.
func (c *comparison) dangersOf(change *Change) {
	danger := func(kind DangerKind, format string, args ...any) {
		c.Dangers = append(c.Dangers, Danger{Kind: kind, Owner: &change.Owner, Members: change.Members, Message: fmt.Sprintf(format, args...)})
	}
	if change.Action == Delete && change.Unknown != "" && !c.allLeave(change.Members) {
		danger(Deletes, "the %s of policy %s ends, and all that it has put on a member: %s", change.Kind, change.Policy, change.Unknown)
	}
	var deleted, data, secrets []ObjectChange
	for _, o := range change.Objects {
		switch {
		case o.Action == Delete && holdsData(&o):
			data = append(data, o)
		case o.Action == Delete:
			deleted = append(deleted, o)
		case len(o.Immutable) > 0 && o.Action == Recreate:
			danger(Recreates, "%s is deleted and created anew: %s cannot be changed", &o, strings.Join(o.Immutable, ", "))
		case len(o.Immutable) > 0:
			danger(Recreates, "%s: %s cannot be changed: Flux fails on it, unless it is forced (spec.force), which deletes and creates it anew", &o, strings.Join(o.Immutable, ", "))
		}
		if o.Action != Delete && slices.ContainsFunc(o.Fields, func(f Field) bool { return f.Hidden }) {
			secrets = append(secrets, o)
		}
		if enforces(&o) {
			danger(Enforces, "%s refuses what breaks it: it was audited", &o)
		}
	}
	if len(data) > 0 {
		danger(DeletesData, "deletes %s", names(data, 5))
	}
	if len(deleted) > 0 && !c.allLeave(change.Members) { // what a member that leaves loses is said of it
		danger(Deletes, "deletes %s", names(deleted, 5))
	}
	if len(secrets) > 0 {
		danger(SecretChanges, "changes values that are not shown in %s", names(secrets, 5))
	} else if slices.ContainsFunc(change.Fields, func(f Field) bool { return f.Hidden }) {
		danger(SecretChanges, "changes values that are not shown in the %s", change.Kind)
	}
	for _, f := range change.Fields {
		if from, to, ok := majors(change.Kind, &f); ok {
			danger(MajorVersion, "%s %s: from %s to %s is a major version", change.Kind, change.Name, from, to)
			c.Dangers[len(c.Dangers)-1].Members = c.users(change)
		}
	}
}

// allLeave says whether some members all leave.
func (c *comparison) allLeave(members []string) bool {
	return len(members) > 0 && !slices.ContainsFunc(members, func(name string) bool {
		return !slices.ContainsFunc(c.Members.Leaving, func(m Member) bool { return m.Name == name })
	})
}

func holdsData(o *ObjectChange) bool {
	switch o.Kind {
	case "PersistentVolumeClaim", "PersistentVolume", "Namespace", "CustomResourceDefinition":
		return true
	}
	return false
}

// enforces says whether a policy goes from audit to enforce.
func enforces(o *ObjectChange) bool {
	return o.Action == Update && slices.ContainsFunc(o.Fields, func(f Field) bool {
		switch f.Path {
		case "spec.validationActions": // of ValidatingPolicies and ValidatingAdmissionPolicyBindings
			return contains(f.To, "Deny") && !contains(f.From, "Deny")
		case "spec.validationFailureAction": // of ClusterPolicies
			return strings.EqualFold(fmt.Sprint(f.To), "Enforce")
		case `metadata.labels["pod-security.kubernetes.io/enforce"]`:
			return f.To != nil && f.To != "privileged"
		}
		return false
	})
}

func contains(list any, text string) bool {
	items, _ := list.([]any)
	return slices.Contains(items, any(text))
}

// majors says whether a field is a version whose major one changes.
func majors(kind string, f *Field) (from, to string, ok bool) {
	versions := map[string][]string{
		sourcev1.HelmChartKind:     {"spec.version"},
		sourcev1.OCIRepositoryKind: {"spec.ref.tag", "spec.ref.semver"},
		sourcev1.GitRepositoryKind: {"spec.ref.tag", "spec.ref.semver"},
	}
	from, okFrom := f.From.(string)
	to, okTo := f.To.(string)
	if !slices.Contains(versions[kind], f.Path) || !okFrom || !okTo {
		return "", "", false
	}
	a, errA := semver.NewVersion(bare(from))
	b, errB := semver.NewVersion(bare(to))
	return from, to, errA == nil && errB == nil && a.Major() != b.Major()
}

// bare returns the version of a range such as ^1.2 or 1.2.x.
func bare(version string) string {
	version = strings.TrimLeft(version, "^~=<>v ")
	if i := strings.IndexAny(version, " ,|"); i >= 0 {
		version = version[:i]
	}
	return strings.TrimSuffix(strings.NewReplacer(".x", "", ".*", "").Replace(version), ".")
}

// users returns the members that have something made of a source.
func (c *comparison) users(change *Change) []string {
	var out []string
	for _, x := range c.to.objects {
		for source := c.to.source(x); source != nil; source = c.to.source(source) {
			if x.Member.Name != "" && idOf(source) == (id{change.Owner.Namespace, change.Kind, change.Name}) {
				out = append(out, x.Member.Name)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// selections finds what goes to no member any more, or to all that there are.
func (c *comparison) selections() {
	type policy struct{ namespace, application, policy string }
	count := func(s *side) map[policy]int {
		out := map[policy]int{}
		for _, x := range s.objects {
			if x.Member.Name != "" {
				out[policy{x.Metadata.Namespace, x.Application, x.Policy}]++
			}
		}
		return out
	}
	clusters := func(s *side, namespace string) (n int) {
		for _, x := range s.Declared.AttachedClusters {
			if x.Namespace == namespace {
				n++
			}
		}
		for _, x := range s.Declared.Clusters {
			if x.Namespace == namespace {
				n++
			}
		}
		return n
	}
	from, to := count(c.from), count(c.to)
	var owners []Danger
	add := func(kind DangerKind, p policy, format string, args ...any) {
		owner := c.owner(&application.Rendered{Object: &object.Object{Metadata: object.Metadata{Namespace: p.namespace}}, Application: p.application})
		owners = append(owners, Danger{Kind: kind, Owner: &owner, Message: fmt.Sprintf(format, args...)})
	}
	for p, n := range from {
		if to[p] == 0 && c.nothing(p.namespace, p.application, p.policy) {
			add(SelectsNothing, p, "policy %s went to %d members and now goes to none: what they have stays", p.policy, n)
		}
	}
	// One selector of a fleet is one danger, whatever goes to the fleet.
	fleets := map[[2]string]bool{}
	was := fleetMembers(c.from)
	for fleet, n := range fleetMembers(c.to) {
		if all := clusters(c.to, fleet[0]); n == all && n > 2 && was[fleet] > 0 && was[fleet] < n && was[fleet] < clusters(c.from, fleet[0]) {
			fleets[fleet] = true
			owners = append(owners, Danger{Kind: SelectsEverything, Owner: &Ref{fleet[0], fleetv1.FleetKind, fleet[1]},
				Message: fmt.Sprintf("it had %d members and now has all %d clusters of the namespace", was[fleet], n)})
		}
	}
	inFleet := map[policy]string{}
	for _, x := range c.to.objects {
		inFleet[policy{x.Metadata.Namespace, x.Application, x.Policy}] = x.Metadata.Labels[fleetv1.FleetLabel]
	}
	for p, n := range to {
		all := clusters(c.to, p.namespace)
		if n == all && n > 2 && from[p] > 0 && from[p] < n && from[p] < clusters(c.from, p.namespace) && !fleets[[2]string{p.namespace, inFleet[p]}] {
			add(SelectsEverything, p, "policy %s went to %d members and now goes to all %d clusters of the namespace", p.policy, from[p], n)
		}
	}
	slices.SortFunc(owners, func(a, b Danger) int {
		return cmp.Or(compareRef(*a.Owner, *b.Owner), cmp.Compare(a.Message, b.Message))
	})
	c.Dangers = append(c.Dangers, owners...)
}

// nothing says whether the new state says that a policy goes to no member.
func (c *comparison) nothing(namespace, app, policy string) bool {
	return slices.ContainsFunc(c.held.problems[[2]string{namespace, app}], func(p application.Problem) bool {
		return p.Reason == application.NoMembersReason && p.Policy == policy
	})
}

// fleetMembers counts the members of the fleets of a state.
func fleetMembers(s *side) map[[2]string]int {
	out := map[[2]string]int{}
	for _, x := range s.objects {
		if fleet := x.Metadata.Labels[fleetv1.FleetLabel]; fleet != "" {
			out[[2]string{x.Metadata.Namespace, fleet}] = 0
		}
	}
	for fleet := range out {
		members := map[member.Key]bool{}
		for _, x := range s.objects {
			if x.Metadata.Namespace == fleet[0] && x.Metadata.Labels[fleetv1.FleetLabel] == fleet[1] {
				members[x.Member] = true
			}
		}
		out[fleet] = len(members)
	}
	return out
}
