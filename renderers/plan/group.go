package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/rule"
)

// memberID is a member, or the hub itself, in a namespace.
type memberID struct {
	namespace string
	member.Key
}

// holds says what the controllers leave as it is, because the new state does not say what becomes of it.
type holds struct {
	// problems of the new state that keep something from being rendered, by namespace and Application.
	problems map[[2]string][]application.Problem
	// owners of which all is held, and why.
	owners map[Ref]string
}

// holding are the reasons of problems for which what there is stays. Those of members, which have reasons of their own, do, too.
var holding = map[string]bool{
	application.InvalidReason: true, application.FleetNotFoundReason: true, application.InvalidFleetReason: true,
	application.RenderFailedReason: true, application.HeldReason: true, application.NameCollisionReason: true,
	application.ReleaseConflictReason: true, application.NoMembersReason: true,
}

// hold notes what the new state does not say enough of.
func (c *comparison) hold() {
	failedBefore := map[Ref]bool{}
	for i := range c.from.Problems {
		p := &c.from.Problems[i]
		owner := writtenFor(c.from.Side, p)
		failedBefore[owner] = failedBefore[owner] || p.Reason == rule.RuleFailedReason
	}
	c.held = holds{problems: map[[2]string][]application.Problem{}, owners: map[Ref]string{}}
	for i := range c.to.Problems {
		p := &c.to.Problems[i]
		owner := writtenFor(c.to.Side, p)
		if holding[p.Reason] || p.Member != "" && !p.Warning {
			key := [2]string{p.Namespace, p.Application}
			c.held.problems[key] = append(c.held.problems[key], *p)
		}
		switch {
		case p.Reason == rule.RuleFailedReason && !failedBefore[owner], holding[p.Reason] && p.Policy == "" && p.Member == "" && owner.Kind != appsv1.ApplicationKind:
			c.held.owners[owner] = p.Message
		}
	}
}

// writtenFor returns what people have written that has a problem.
func writtenFor(s Side, p *application.Problem) Ref {
	kind, name := s.Written(p.Namespace, p.Application)
	return Ref{p.Namespace, kind, name}
}

// Problems returns the problems of the new state, with the members that have the same, errors and what is new first.
func Problems(from, to Side) []Problem {
	type of struct {
		owner           Ref
		policy, message string
	}
	known, groups := map[of]bool{}, map[of]int{}
	for i := range from.Problems {
		p := &from.Problems[i]
		known[of{writtenFor(from, p), p.Policy, p.Message}] = true
	}
	var out []Problem
	for i := range to.Problems {
		p := &to.Problems[i]
		owner := writtenFor(to, p)
		key := of{owner, p.Policy, p.Message}
		g, ok := groups[key]
		if !ok {
			g, groups[key] = len(out), len(out)
			out = append(out, Problem{Owner: owner, Policy: p.Policy, Reason: p.Reason, Message: p.Message, Warning: p.Warning, New: !known[key]})
		}
		if p.Member != "" {
			out[g].Members = append(out[g].Members, p.Member)
		}
	}
	for i := range out {
		slices.Sort(out[i].Members)
	}
	slices.SortStableFunc(out, func(a, b Problem) int {
		return cmp.Or(compareBool(a.Warning, b.Warning), compareBool(b.New, a.New), compareRef(a.Owner, b.Owner), cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Message, b.Message))
	})
	return out
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func compareRef(a, b Ref) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}

// reason says why a child that the new state does not have stays all the same; empty if it does not.
func (h *holds) reason(x *application.Rendered) string {
	for _, p := range h.problems[[2]string{x.Metadata.Namespace, x.Application}] {
		if (p.Policy == "" || p.Policy == x.Policy) && (p.Member == "" || p.Member == x.Member.Name) {
			return p.Message
		}
	}
	return ""
}

// group joins equal changes of members.
func (c *comparison) group() {
	c.moves()
	groups := map[string]int{}
	for _, x := range c.changed {
		if reason := c.held.owners[x.Owner]; reason != "" && x.Action != Hold {
			x.Change = &Change{Owner: x.Owner, Application: x.Application, Policy: x.Policy, Kind: x.Kind, Name: x.Name, Action: Hold, Reason: reason}
		}
		key := jsonText(x.Change)
		i, ok := groups[key]
		if !ok {
			i = len(c.Changes)
			groups[key] = i
			c.Changes = append(c.Changes, *x.Change)
		}
		if x.at.Name != "" {
			c.Changes[i].Members = append(c.Changes[i].Members, x.at.Name)
		}
	}
	for i := range c.Changes {
		slices.Sort(c.Changes[i].Members)
	}
	slices.SortStableFunc(c.Changes, func(a, b Change) int {
		return cmp.Or(compareRef(a.Owner, b.Owner), cmp.Compare(a.Application, b.Application), cmp.Compare(len(b.Members), len(a.Members)),
			cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), slices.Compare(a.Members, b.Members))
	})
}

// moves finds what one child gives up and another one takes over on the same member: Flux and the controllers hand it over.
func (c *comparison) moves() {
	byMember := map[memberID][]int{}
	for i, x := range c.changed {
		key := memberID{x.Owner.Namespace, x.at}
		byMember[key] = append(byMember[key], i)
	}
	for _, indexes := range byMember {
		c.releases(indexes)
		type place struct{ change, object int }
		created := map[objectKey]place{}
		for _, i := range indexes {
			for j, o := range c.changed[i].Objects {
				if o.Action == Create {
					created[o.key()] = place{i, j}
				}
			}
		}
		for _, i := range indexes {
			var left []ObjectChange
			for j, o := range c.changed[i].Objects {
				at, ok := created[o.key()]
				if o.Action != Delete && o.Action != Orphan || !ok || at.change == i || !c.handsOver(c.changed[i].Change, c.changed[at.change].Change) {
					continue
				}
				if left == nil {
					left = slices.Clone(c.changed[i].Objects)
				}
				left[j].Action = ""
				to := slices.Clone(c.changed[at.change].Objects)
				to[at.object].Action, to[at.object].MovedFrom = Update, fmt.Sprintf("policy %s of Application %s", c.changed[i].Policy, c.changed[i].Application)
				to[at.object].Fields = compareFields(hidden(o.object.Object), hidden(to[at.object].object.Object))
				c.changed[at.change].Objects = to
			}
			if left != nil {
				c.changed[i].Objects = slices.DeleteFunc(left, func(o ObjectChange) bool { return o.Action == "" })
			}
		}
	}
}

// releases finds the HelmReleases of a member that end while another one takes over their release.
func (c *comparison) releases(indexes []int) {
	takes := map[string]*Change{}
	for _, i := range indexes {
		if x := c.changed[i]; x.Action == Create && x.release != "" {
			takes[x.release] = x.Change
		}
	}
	for _, i := range indexes {
		if x := c.changed[i]; x.Action == Delete && takes[x.release] != nil {
			x.Action, x.Unknown = Orphan, ""
			x.Reason = fmt.Sprintf("policy %s of Application %s takes the release over", takes[x.release].Policy, takes[x.release].Application)
		}
	}
}

// handsOver says whether what a child has applied stays when another one has it, too: Flux does not prune what belongs to
// another Kustomization, while Helm uninstalls all of a release, unless it is the same release.
func (c *comparison) handsOver(from, to *Change) bool {
	return from.Kind == to.Kind && (from.Kind != helmv2.HelmReleaseKind || from.release == to.release)
}

// members counts the members, and says who comes and goes.
func (c *comparison) members() {
	all, there := map[memberID]bool{}, map[memberID]bool{}
	for _, x := range c.from.objects {
		all[memberID{x.Metadata.Namespace, x.Member}] = true
	}
	for _, x := range c.to.objects {
		there[memberID{x.Metadata.Namespace, x.Member}] = true
	}
	type fate struct {
		Member
		joins, leaves, changes bool
	}
	fates := map[memberID]*fate{}
	for _, x := range c.changed {
		key := memberID{x.Owner.Namespace, x.at}
		f := fates[key]
		if f == nil {
			f = &fate{Member: Member{Namespace: x.Owner.Namespace, Kind: x.at.Kind, Name: x.at.Name}, joins: !all[key], leaves: !there[key]}
			fates[key] = f
		}
		what := x.what()
		switch {
		case c.held.owners[x.Owner] != "" || x.Action == Hold:
			f.leaves = false
			continue
		case x.Action == Create:
			f.Gets = append(f.Gets, what)
		case x.Action == Delete:
			f.Loses = append(f.Loses, what)
		case x.Action == Orphan:
			f.Keeps = append(f.Keeps, what)
		}
		f.changes = true
	}
	maps.Copy(all, there)
	for key := range all {
		if key.Name != "" {
			c.Members.Total++
		}
	}
	compare := func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	}
	for key, f := range fates {
		if key.Name == "" || !f.changes {
			continue
		}
		c.Members.Changed++
		for _, list := range [][]string{f.Gets, f.Loses, f.Keeps} {
			slices.Sort(list)
		}
		switch {
		case f.joins:
			c.Members.Joining = append(c.Members.Joining, f.Member)
		case f.leaves:
			c.Members.Leaving = append(c.Members.Leaving, f.Member)
		}
	}
	slices.SortFunc(c.Members.Joining, compare)
	slices.SortFunc(c.Members.Leaving, compare)
}

// what names what a change is of, and how much that is on a member.
func (c *Change) what() string {
	text := fmt.Sprintf("%s %s", c.Owner.Kind, c.Owner.Name)
	if c.Policy != "" && c.Owner.Kind == appsv1.ApplicationKind {
		text += ", policy " + c.Policy
	}
	switch {
	case c.Unknown != "":
		text += " (what that is on a member is not known)"
	case len(c.Objects) == 1:
		text += " (1 object)"
	default:
		text += fmt.Sprintf(" (%d objects)", len(c.Objects))
	}
	return text
}

// unknown says what of the new state is not at hand.
func (c *comparison) unknown() {
	counts := map[string]int{}
	for _, x := range c.to.objects {
		if c.to.Contents == nil {
			counts[errNotLookedAt.Error()]++
		} else if c.to.Contents.ID(x) == "" {
			if _, err := c.to.Contents.Objects(x); err != nil {
				counts[err.Error()]++
			}
		}
	}
	for _, message := range slices.Sorted(maps.Keys(counts)) {
		c.Unknown = append(c.Unknown, Unknown{message, counts[message]})
	}
	slices.SortStableFunc(c.Unknown, func(a, b Unknown) int { return b.Children - a.Children })
}

func names(of []ObjectChange, most int) string {
	var out []string
	for i := range of {
		if i == most {
			out = append(out, fmt.Sprintf("and %d more", len(of)-most))
			break
		}
		out = append(out, of[i].String())
	}
	return strings.Join(out, ", ")
}
