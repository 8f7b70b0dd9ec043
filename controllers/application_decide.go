package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"regexp"
	"strings"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// plan is what a pass is going to do, and how every member is.
type plan struct {
	// sources and children are to be applied.
	sources, children []write
	// endings are to be ended now. They are in order already: what depends on others ends first, in passes of its own.
	endings []client.Object
	// kept are the names of what the targets have, whether or not it could be rendered: on a member that is protected,
	// nothing else is not wanted any more. reachedBy says how Flux reaches the members that are protected.
	kept      map[object.Ref]bool
	reachedBy map[string]bool
	// surplus counts the children that are to end, whether or not now.
	surplus int
	// prune is there while there is a surplus.
	prune *appsv1.PruneStatus
	// handover has the HelmReleases whose Helm release another child of this Application is to have: of a policy that got
	// another name, say. If they are to end, they leave the release, and the other upgrades it.
	handover map[object.Ref]object.Ref
	// held says, one text each, why nothing is ended although something should be.
	held []string
	// waits says, one text each, what is to end after what of another Application, and again when to look at it at the latest.
	waits []string
	again time.Duration

	members map[member.Key]*memberState
	// sourceProblems says what is wrong with sources.
	sourceProblems []string
	// unmatched says which overrides match nothing.
	unmatched []string
	objects   int
	// rendered is all that was rendered, whether or not it is to be applied now.
	rendered object.Digests
	// renderedFor are the members of the children among it.
	renderedFor map[object.Ref]*member.Member
	// unwanted are the children that are not wanted any more, those that cannot end now because of their member included.
	unwanted []client.Object
	// overBudget says why nothing is done; empty if that is not so.
	overBudget string
}

// write is an object to be applied.
type write struct {
	*object.Object
	live   client.Object // nil if there is none
	member *memberState  // nil for a source
	claim  string
}

// childKey identifies a child by what it is for.
type childKey struct {
	policy string
	member member.Key
}

// childState is what was rendered for a child.
type childState struct {
	stamp           uint64 // of an application.Stamp
	ref             object.Ref
	digest          string
	waitsFor        []object.Ref
	source          *object.Object
	declaresSuspend bool
	err             string
	held            bool // err is why
}

// memberState is how a member is: the worst of its children.
type memberState struct {
	key             member.Key
	rank            rank
	reason, message string
	// protected members keep all their children: what they should have is not known.
	protected bool
	// arriving is a child that has not brought anything to the member yet; empty if there is none.
	arriving string
	children int
}

type rank int

const (
	ready rank = iota
	idle       // suspended by hand
	progressing
	waiting
	failed
)

// Reasons of members that are not well, beside those of the renderers and of the cluster objects.
const (
	progressingReason  = "Progressing"
	childFailedReason  = "NotReady"
	notOursReason      = "NotOurs"
	applyFailedReason  = "ApplyFailed"
	waitingReason      = "Waiting"
	suspendedReason    = "Suspended"
	endingReason       = "Ending"
	sourceFailedReason = "SourceNotReady"
)

// atWork is what is said from when a child is written until Flux is done with it: one status for all of that time.
const atWork = "%s: Flux is at work"

func (s *memberState) is(rank rank, reason, format string, args ...any) {
	if rank > s.rank {
		s.rank, s.reason, s.message = rank, reason, bounded(fmt.Sprintf(format, args...), 500)
	}
}

func (p *plan) member(key member.Key) *memberState {
	s, ok := p.members[key]
	if !ok {
		s = &memberState{key: key}
		p.members[key] = s
	}
	return s
}

// protect keeps all that a member has.
func (p *plan) protect(s *memberState, m *member.Member) {
	s.protected = true
	if m.KubeConfig != nil {
		p.reachedBy[application.Claim(m.KubeConfig, "", "")] = true
	}
}

// protects says whether a child belongs to a member that is protected: by its labels; by its name alone, where the
// member's object is gone and with it the kind; or by how Flux reaches it, whatever somebody has done to the labels.
func (p *plan) protects(live client.Object) bool {
	key := memberOf(live)
	for _, k := range []member.Key{key, {Name: key.Name}} {
		if s, ok := p.members[k]; ok && k.Name != "" && s.protected {
			return true
		}
	}
	if s, ok := p.members[key]; ok && s.protected { // the hub
		return true
	}
	via := kubeConfigOf(live)
	return via != nil && p.reachedBy[application.Claim(via, "", "")]
}

// count notes what was rendered for a child. Of two of one name, the first has it.
func (p *plan) count(child *childState, m *member.Member) {
	if _, taken := p.rendered[child.ref]; taken || child.err != "" {
		return
	}
	p.rendered[child.ref], p.renderedFor[child.ref] = child.digest, m
	if child.source != nil {
		p.rendered.Add(child.source)
	}
}

// decide compares what is declared with what is there.
func (r *ApplicationReconciler) decide(ctx context.Context, obs *observed) *plan {
	p := &plan{members: map[member.Key]*memberState{}, handover: map[object.Ref]object.Ref{},
		kept: map[object.Ref]bool{}, reachedBy: map[string]bool{}, rendered: object.Digests{}, renderedFor: map[object.Ref]*member.Member{}}
	wanted := map[object.Ref]bool{}

	sourcesOurs := true
	for _, source := range obs.state.Sources() {
		wanted[source.Ref()] = true
		sourcesOurs = r.decideSource(obs, p, source) && sourcesOurs
	}
	for _, policy := range obs.state.Policies() {
		targets, known := obs.scope.Targets(policy)
		if !known {
			continue
		}
		p.unmatched = append(p.unmatched, policy.Unmatched(targets)...)
		for _, m := range targets {
			if m.Leaving {
				continue
			}
			state := p.member(m.Key())
			p.kept[object.Ref{Kind: policy.Kind, Name: obs.state.ChildName(policy, m)}] = true
			var child *childState
			if m.KubeConfig != nil || m.Name == "" { // of one that does not answer, too: what it should have does not depend on that
				child = obs.render(policy, m)
				p.count(child, m)
			}
			if child == nil || !m.Ready {
				p.protect(state, m)
				rank := failed
				if m.Reason == member.NotProbedReason {
					rank = waiting
				}
				state.is(rank, m.Reason, "%s", m.Message)
				continue
			}
			if text := obs.unknownDependency(); text != "" {
				p.protect(state, m)
				state.is(waiting, waitingReason, "%s", text)
				continue
			}
			if child.err != "" {
				p.protect(state, m)
				if child.held {
					state.is(waiting, application.HeldReason, "%s", child.err)
				} else {
					state.is(failed, application.RenderFailedReason, "%s", child.err)
				}
				continue
			}
			if wanted[child.ref] {
				state.is(failed, application.NameCollisionReason, "%s is the name of another policy's object, too: rename the policy", child.ref)
				continue
			}
			wanted[child.ref] = true
			if child.source != nil && !wanted[child.source.Ref()] {
				wanted[child.source.Ref()] = true
				r.decideSource(obs, p, child.source)
			}
			if !sourcesOurs && obs.children[child.ref] == nil {
				state.is(failed, notOursReason, "the source has the name of an object that is not this Application's")
				continue
			}
			r.decideChild(ctx, obs, p, policy, m, state, child, wanted)
		}
	}
	obs.decideEndings(p, wanted)
	return p
}

// render renders a policy for a member, or remembers that nothing has changed since it was.
func (o *observed) render(policy *application.Policy, m *member.Member) *childState {
	key := childKey{policy.Name, m.Key()}
	stamp := maphash.Comparable(seed, o.state.Stamp(o.scope, policy, m))
	if s, ok := o.state.children[key]; ok && s.stamp == stamp {
		return s
	}
	s := &childState{stamp: stamp}
	o.state.children[key] = s
	child, err := o.state.Child(o.scope, policy, m)
	if err != nil {
		s.err = fmt.Sprintf("policy %s: %v", policy.Name, err)
		held := (*application.HeldError)(nil)
		s.held = errors.As(err, &held)
		return s
	}
	s.ref, s.digest, s.waitsFor = child.Object.Ref(), child.Object.Digest(), child.WaitsFor
	s.source, s.declaresSuspend = child.Source, declaresSuspend(child.Object)
	return s
}

// decideSource plans a source, and says whether the name is free or ours.
func (r *ApplicationReconciler) decideSource(obs *observed, p *plan, source *object.Object) bool {
	p.objects++
	p.rendered.Add(source)
	live := obs.sources[source.Ref()]
	if live == nil {
		if other := obs.lookup(source.Ref()); other != nil {
			delete(p.rendered, source.Ref())
			r.claims.wait(nameKey(obs.app.Namespace, source.Ref()), obs.app)
			p.sourceProblems = append(p.sourceProblems, cmp.Or(disputed(other), fmt.Sprintf("%s exists and is not this Application's: rename one of them", source.Ref())))
			return false
		}
	}
	if live != nil && deleting(live) {
		return true
	}
	if !obs.isAsDeclared(source.Digest(), live, func() *object.Object { return source }) {
		if obs.state.isPending(source.Ref(), source.Digest(), live) {
			return true
		}
		p.sources = append(p.sources, write{Object: source, live: live})
		return true
	}
	if c := fluxReady(live); c != nil && c.Status == metav1.ConditionFalse {
		p.sourceProblems = append(p.sourceProblems, fmt.Sprintf("%s: %s", source.Ref(), shorten(c.Message)))
	}
	return true
}

// isAsDeclared says whether a live object is as declared. The digest in its annotations says so at once, unless
// somebody has changed the object since, which its generation tells.
func (o *observed) isAsDeclared(digest string, live client.Object, declared func() *object.Object) bool {
	if live == nil || carriedDigest(live) != digest {
		return false
	}
	if o.state.isVerified(live) {
		return true
	}
	if d := declared(); d == nil || !asDeclared(d, live) {
		return false
	}
	o.state.verify(live)
	return true
}

func (r *ApplicationReconciler) decideChild(ctx context.Context, obs *observed, p *plan, policy *application.Policy, m *member.Member, state *memberState, child *childState, wanted map[object.Ref]bool) {

	p.objects++
	state.children++
	live := obs.children[child.ref]
	arriving := state.arriving
	if arrives(live) && !child.declaresSuspend {
		state.arriving = child.ref.String()
	}
	rendered := func() *application.Child {
		c, err := obs.state.Child(obs.scope, policy, m)
		if err != nil { // it was rendered before, from the same input
			return &application.Child{}
		}
		return c
	}

	switch {
	case live == nil:
		if other := obs.lookup(child.ref); other != nil && ownerName(other) != obs.app.Name {
			delete(p.rendered, child.ref)
			delete(p.renderedFor, child.ref)
			r.claims.wait(nameKey(obs.app.Namespace, child.ref), obs.app)
			state.is(failed, notOursReason, "%s", cmp.Or(disputed(other), fmt.Sprintf("%s exists and is not this Application's: rename the policy, or delete it", child.ref)))
			return
		}
		if len(obs.missing) > 0 {
			state.is(waiting, waitingReason, "waits for Application %s, which is not there or invalid", obs.missing[0])
			return
		}
		for _, ref := range child.waitsFor {
			if dependency := obs.lookup(ref); dependency == nil || !isTrue(fluxReady(dependency)) {
				state.is(waiting, waitingReason, "%s waits for %s", child.ref, ref)
				return
			}
		}
	case deleting(live):
		state.is(progressing, progressingReason, "%s is being deleted, and made anew after that", child.ref)
		return
	case memberOf(live) != m.Key() && !equality.Semantic.DeepEqual(kubeConfigOf(live), m.KubeConfig):
		// It serves another member under the same name: that one's end comes first, then the new one. It is never pointed
		// at another cluster.
		delete(wanted, child.ref)
		state.is(progressing, progressingReason, "%s is still that of another member, %s, and ends first", child.ref, cmp.Or(memberOf(live).Name, "the hub"))
		return
	case fluxSuspended(live) && !child.declaresSuspend:
		state.is(idle, suspendedReason, "%s is suspended: flux resume %s %s -n %s", child.ref, fluxCommand(child.ref.Kind), child.ref.Name, obs.app.Namespace)
		return
	case obs.isAsDeclared(child.digest, live, func() *object.Object { return rendered().Object }):
		if _, was := obs.state.applied.LoadAndDelete(child.ref); was {
			r.claims.release(obs.app.Namespace, claimOf(live), child.ref.Name) // the cache shows it now
		}
		state.judge(child.ref, live)
		return
	}

	if obs.state.isPending(child.ref, child.digest, live) {
		state.arriving = child.ref.String()
		state.is(progressing, progressingReason, atWork, child.ref)
		return
	}
	c := rendered()
	claim := claimIn(obs.app.Namespace, c.Claim)
	if claim != "" && (live == nil || claimOf(live) != claim) {
		if other, own := r.takeClaim(ctx, obs.app, child.ref, claim); other != "" {
			if own != nil {
				p.handover[kindOf(own)] = child.ref
			} else {
				delete(p.rendered, child.ref)
				delete(p.renderedFor, child.ref)
			}
			state.arriving = arriving // it cannot come before the other has ended
			state.is(failed, application.ReleaseConflictReason,
				"the Helm release of %s on the member is that of %s already: change releaseName or targetNamespace of one", child.ref, other)
			return
		}
	}
	if c.Object != nil {
		state.arriving = child.ref.String()
		state.is(progressing, progressingReason, atWork, child.ref)
		p.children = append(p.children, write{Object: c.Object, live: live, member: state, claim: claim})
	}
}

// judge says how a child is that is as declared.
func (s *memberState) judge(ref object.Ref, live client.Object) {
	condition := fluxReady(live)
	switch {
	case fluxSuspended(live):
		s.is(idle, suspendedReason, "%s is declared suspended", ref)
	case condition == nil || condition.Status == metav1.ConditionUnknown:
		s.is(progressing, progressingReason, atWork, ref)
	case condition.Status == metav1.ConditionFalse && fluxWaits(condition):
		s.is(waiting, waitingReason, "%s: %s", ref, shorten(condition.Message))
	case condition.Status == metav1.ConditionFalse:
		s.is(failed, childFailedReason, "%s: %s", ref, explain(condition.Message))
	}
}

// fluxWaits says whether a child is only waiting for a source or a dependency, which Flux calls not ready as well.
// ArtifactFailed is also its word for what does not end by itself, a path that is not in the source, say.
func fluxWaits(c *metav1.Condition) bool {
	return c.Reason == meta.DependencyNotReadyReason || c.Reason == sourceFailedReason ||
		c.Reason == meta.ArtifactFailedReason && strings.Contains(c.Message, "artifact not found, retrying")
}

func isTrue(c *metav1.Condition) bool { return c != nil && c.Status == metav1.ConditionTrue }

func fluxCommand(kind string) string {
	if kind == helmv2.HelmReleaseKind {
		return "helmrelease"
	}
	return "kustomization"
}

// explain adds what to do to messages of Flux that do not say so.
func explain(message string) string {
	short := shorten(message)
	for _, kind := range []string{"HelmRepository", "HelmRelease", "GitRepository", "OCIRepository", "Bucket", "HelmChart", kustomizev1.KustomizationKind} {
		if strings.Contains(message, `no matches for kind "`+kind+`"`) {
			return short + ": members have no Flux, so a " + kind + " belongs on the hub: use a helm policy, or a policy without a destination"
		}
	}
	return short
}

// temporary is a folder of Flux with another name at each try, which would be another status each time.
var temporary = regexp.MustCompile(`[\w./-]*/kustomization-[0-9]+/?`)

// shorten makes what somebody else wrote a part of a message.
func shorten(message string) string { return bounded(temporary.ReplaceAllString(message, ""), 250) }

// bounded makes a message one line of at most this many characters, so that a status stays small.
func bounded(message string, most int) string {
	message = object.OneLine(message)
	if runes := []rune(message); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return message
}
