package controllers

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// decideEndings plans the end of what is not wanted any more: only where it is known that it is not, within the
// budget, and in reverse order of dependencies.
func (o *observed) decideEndings(p *plan, wanted map[object.Ref]bool) {
	// What a protected member has and is not to have is not ended now, and counts for the budget: a prune that is too large
	// is not smaller because some of its members do not answer.
	var surplus, unwanted []client.Object
	for ref, live := range o.children {
		protected := p.protects(live)
		if wanted[ref] || protected && p.kept[ref] || o.goesNowhere(p, live) || !protected && (p.disputed(live) || p.nameless(live)) {
			continue
		}
		unwanted = append(unwanted, live)
		if !protected {
			surplus = append(surplus, live)
		}
	}
	sortObjects(surplus)
	slices.Sort(p.held)
	p.unwanted = unwanted

	if unknown := o.unknownFleets(); len(unknown) > 0 && len(surplus) > 0 {
		p.held = append(p.held, fmt.Sprintf("%d objects are not ended as long as the members are not all known: %s",
			len(surplus), o.unknown[unknown[0]].message))
	} else if o.withinBudget(p, surplus, unwanted) {
		p.endings = append(p.endings, inReverseOrder(surplus, p.replaced(o.endable(p, surplus)))...)
	}
	p.surplus = len(surplus)
	o.endSources(p, wanted)
	for key, s := range p.members { // members that were only asked after
		if s.children == 0 && s.rank == ready {
			delete(p.members, key)
		}
	}
}

// goesNowhere says whether a child is of a policy that names a cluster which does not exist: as with a fleet that does
// not exist, what it has elsewhere stays. Most likely the name has a mistake.
func (o *observed) goesNowhere(p *plan, live client.Object) bool {
	for _, policy := range o.state.Policies() {
		if !policy.OneCluster || policy.Name != live.GetLabels()[appsv1.PolicyLabel] {
			continue
		}
		if targets, _ := o.scope.Targets(policy); targets[0].Kind == "" {
			p.held = append(p.held, fmt.Sprintf("%s is not ended as long as its policy's destination is unknown: %s", kindOf(live), targets[0].Message))
			return true
		}
	}
	return false
}

// nameless says whether a child has lost the label that says for which member it is.
func (p *plan) nameless(live client.Object) bool {
	if memberOf(live).Name != "" || kubeConfigOf(live) == nil {
		return false
	}
	p.held = append(p.held, fmt.Sprintf("%s has lost its label %s, which says for which member it is: put it back, or delete the object", kindOf(live), fleetv1.MemberLabel))
	return true
}

// disputed says whether somebody has changed whose an object is. It may be another Application's, which still wants it.
func (p *plan) disputed(live client.Object) bool {
	text := disputed(live)
	if text != "" {
		p.held = append(p.held, text)
	}
	return text != ""
}

// undisputed leaves out what is disputed.
func (p *plan) undisputed(objects []client.Object) []client.Object {
	return slices.DeleteFunc(slices.Clone(objects), p.disputed)
}

// endable leaves out what the user has suspended: Flux would not clean up after it.
func (o *observed) endable(p *plan, surplus []client.Object) []client.Object {
	return slices.DeleteFunc(slices.Clone(surplus), func(live client.Object) bool {
		if deleting(live) || !fluxSuspended(live) || p.orphans(o.app, live) {
			return false
		}
		p.held = append(p.held, fmt.Sprintf("%s is suspended and would leave everything behind: resume it so that it cleans up, or delete it",
			kindOf(live).String()))
		return true
	})
}

// orphans says whether what a child applied is to stay when the child ends.
func (p *plan) orphans(app *appsv1.Application, live client.Object) bool {
	_, handedOver := p.handover[kindOf(live)]
	return handedOver || app.Spec.DeletionPolicy == appsv1.DeletionPolicyOrphan
}

// replaced leaves out what is on a member where another child is new, or has changed, and is still to arrive. Where a
// policy got another name or place, that one takes over what this one applied; what ended before would take it away.
func (p *plan) replaced(surplus []client.Object) []client.Object {
	return slices.DeleteFunc(slices.Clone(surplus), func(live client.Object) bool {
		s := p.member(memberOf(live))
		if s.arriving == "" || deleting(live) {
			return false
		}
		if s.rank == failed {
			p.held = append(p.held, fmt.Sprintf("%s stays until %s is applied", kindOf(live), s.arriving))
		}
		return true
	})
}

// inReverseOrder returns those of the candidates that can end now: nothing that another one that is to end comes after,
// whether or not that one can end now.
func inReverseOrder(surplus, candidates []client.Object) []client.Object {
	needed := map[object.Ref]bool{}
	for _, live := range surplus {
		for _, ref := range dependsOn(live) {
			needed[ref] = true
		}
	}
	now := slices.DeleteFunc(slices.Clone(candidates), func(live client.Object) bool { return needed[kindOf(live)] })
	if len(now) == 0 && len(candidates) == len(surplus) {
		return candidates // they wait for each other, which only a hand can have made
	}
	return now
}

// endSources plans the end of sources that nothing wants and nothing uses.
func (o *observed) endSources(p *plan, wanted map[object.Ref]bool) {
	used := map[object.Ref]bool{}
	for _, live := range o.children {
		used[sourceOf(live)] = true
	}
	for _, live := range o.sources {
		if wanted[kindOf(live)] {
			used[sourceOf(live)] = true
		}
	}
	var unused []client.Object
	for ref, live := range o.sources {
		if !wanted[ref] && !used[ref] && len(o.unknownFleets()) == 0 {
			unused = append(unused, live)
		}
	}
	sortObjects(unused)
	p.endings = append(p.endings, p.undisputed(unused)...)
}

// withinBudget fills in the prune status, and says whether the surplus may end. Unwanted is the surplus and what cannot
// end now because its member is protected.
func (o *observed) withinBudget(p *plan, surplus, unwanted []client.Object) bool {
	ending, having := map[member.Key]bool{}, map[member.Key]bool{}
	for _, live := range o.children {
		having[memberOf(live)] = true
	}
	for _, live := range unwanted {
		ending[memberOf(live)] = true
	}
	status, before := &o.app.Status, o.app.Status.Prune
	given, allow := o.app.Annotations[fleetv1.AllowPruneAnnotation], allowPruneFor(o.app.Generation, o.app.Status.LastHandledPrune)
	within := !o.overBudget(ending, len(having))
	if given == allow && (within || before == nil || before.Allow != allow) {
		// It was given before it was asked for: with an old commit, or for what did not come to be. It would lie in wait.
		status.LastHandledPrune, allow = given, allowPruneFor(o.app.Generation, given)
	}
	if len(surplus) == 0 {
		return false
	}
	p.prune = &appsv1.PruneStatus{Members: len(ending), Of: len(having), Objects: len(unwanted)}
	switch {
	case within:
		return true
	case before != nil && before.AllowedBy != "" && before.AllowedBy == given && o.wasAllowed(surplus, before): // goes on
		p.prune.AllowedBy = given
	case given == allow:
		p.prune.AllowedBy, status.LastHandledPrune = given, given
		o.state.allowed = uids(surplus)
	default:
		p.prune.Allow = allow
		return false
	}
	p.prune.Digest = digestOf(surplus)
	return true
}

// wasAllowed says whether a prune that was allowed covers all of the surplus. What came to be too many since is another
// prune. A new process knows only the digest of what was left: if that is something else by now, it asks again.
func (o *observed) wasAllowed(surplus []client.Object, before *appsv1.PruneStatus) bool {
	if o.state.allowed == nil {
		if digestOf(surplus) != before.Digest {
			return false
		}
		o.state.allowed = uids(surplus)
	}
	return !slices.ContainsFunc(surplus, func(live client.Object) bool { return !o.state.allowed[live.GetUID()] })
}

// digestOf stands for just these objects.
func digestOf(objects []client.Object) string {
	h := sha256.New()
	for _, uid := range slices.Sorted(maps.Keys(uids(objects))) {
		fmt.Fprintln(h, uid)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func uids(objects []client.Object) map[types.UID]bool {
	out := make(map[types.UID]bool, len(objects))
	for _, o := range objects {
		out[o.GetUID()] = true
	}
	return out
}

// overBudget says whether this many members are too many to lose in one step. A selector that suddenly matches nothing
// is, whatever the number.
func (o *observed) overBudget(ending map[member.Key]bool, having int) bool {
	if n := len(ending); n > 1 && n > o.budget(having) {
		return true
	}
	for _, policy := range o.state.Policies() {
		fleet := o.fleets[policy.Fleet]
		if fleet == nil || !policy.HasSelector && fleet.Spec.ClusterSelector == nil {
			continue
		}
		if targets, known := o.scope.Targets(policy); known && len(targets) == 0 {
			for _, live := range o.children {
				if live.GetLabels()[appsv1.PolicyLabel] == policy.Name {
					return true
				}
			}
		}
	}
	return false
}

// budget returns how many of this many members may lose children in one step.
func (o *observed) budget(having int) int {
	budget := intstr.FromString("50%")
	if o.app.Spec.PruneBudget != nil {
		budget = *o.app.Spec.PruneBudget
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(&budget, having, false)
	if err != nil { // admission does not let it through
		return 0
	}
	return n
}

func sortObjects(objects []client.Object) {
	slices.SortFunc(objects, func(a, b client.Object) int { return strings.Compare(kindOf(a).String(), kindOf(b).String()) })
}

// allowPruneFor returns the value of the allow-prune annotation that allows a prune of this generation.
func allowPruneFor(generation int64, used string) string {
	plain := strconv.FormatInt(generation, 10)
	if used != plain && !strings.HasPrefix(used, plain+"-") {
		return plain
	}
	n, err := strconv.Atoi(strings.TrimPrefix(used, plain+"-"))
	if err != nil || used == plain {
		n = 1
	}
	return plain + "-" + strconv.Itoa(n+1)
}
