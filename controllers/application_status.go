package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
)

const (
	invalidReason      = application.InvalidReason
	succeededReason    = meta.ReconciliationSucceededReason
	notReadyReason     = "MembersNotReady"
	pruneBlockedReason = "PruneOverBudget"
	pruneHeldReason    = "PruneHeld"
)

// report writes what a pass has seen into the status.
func (r *ApplicationReconciler) report(obs *observed, p *plan) {
	app := obs.app
	app.Status.ObservedGeneration = app.Generation
	app.Status.Objects = p.objects
	app.Status.Prune = p.prune
	if !obs.someSuspended() { // otherwise it stands for what was rendered last
		app.Status.RenderDigest = p.rendered.Sum()
	}
	states := make([]*memberState, 0, len(p.members))
	for _, s := range p.members {
		states = append(states, s)
	}
	app.Status.Members = summarize(states)

	setNotInEffect(app, obs.state.NotInEffect())
	setOverrideUnmatched(app, p.unmatched)
	setPruneBlocked(app, p)
	setChangeBlocked(app, p)
	setApplicationReady(obs, p, states)
	obs.state.tidy(obs)
	syncLatency.observe(client.ObjectKeyFromObject(app), conditions.IsReady(app))
}

// summarize counts members and lists those that are not well, sorted and capped.
func summarize(states []*memberState) fleetv1.MemberSummary {
	slices.SortFunc(states, func(a, b *memberState) int {
		return slices.Compare([]string{a.key.Name, a.key.Kind}, []string{b.key.Name, b.key.Kind})
	})
	s := fleetv1.MemberSummary{Total: len(states)}
	for _, m := range states {
		switch {
		case m.rank == ready:
			s.Ready++
		case len(s.NotReady) < fleetv1.MaxListedMembers:
			s.NotReady = append(s.NotReady, fleetv1.NotReadyMember{Name: m.key.Name, Kind: m.key.Kind, Reason: m.reason, Message: m.message})
		default:
			s.NotReadyOmitted++
		}
	}
	s.Summary = fmt.Sprintf("%d/%d", s.Ready, s.Total)
	return s
}

func setNotInEffect(o conditions.Setter, paths []string) {
	if len(paths) == 0 {
		conditions.Delete(o, fleetv1.NotInEffectCondition)
		return
	}
	conditions.MarkTrue(o, fleetv1.NotInEffectCondition, "Accepted", "accepted without effect: %s", capped(paths, 10))
}

func setOverrideUnmatched(app *appsv1.Application, unmatched []string) {
	if len(unmatched) == 0 {
		conditions.Delete(app, appsv1.OverrideUnmatchedCondition)
		return
	}
	conditions.MarkTrue(app, appsv1.OverrideUnmatchedCondition, application.OverrideUnmatchedReason, "%s", capped(unmatched, 10))
}

func setPruneBlocked(app *appsv1.Application, p *plan) {
	switch prune := p.prune; {
	case prune != nil && prune.Allow != "":
		conditions.MarkTrue(app, appsv1.PruneBlockedCondition, pruneBlockedReason,
			"%d objects on %d of %d members would end, which is over budget: to allow it, annotate the Application with %s=%s",
			prune.Objects, prune.Members, prune.Of, fleetv1.AllowPruneAnnotation, prune.Allow)
	case len(p.held) > 0:
		conditions.MarkTrue(app, appsv1.PruneBlockedCondition, pruneHeldReason, "%s", capped(p.held, 5))
	default:
		conditions.Delete(app, appsv1.PruneBlockedCondition)
	}
}

// setApplicationReady sets Ready, Reconciling and Stalled from how the members are.
func setApplicationReady(obs *observed, p *plan, states []*memberState) {
	app := obs.app
	conditions.Delete(app, meta.StalledCondition)
	count := map[rank]int{}
	for _, s := range states {
		count[s.rank]++
	}
	summary := fmt.Sprintf("%s members ready", app.Status.Members.Summary)
	if unwell := notWell(states); unwell != "" {
		summary += "; " + unwell
	}

	for _, t := range []string{appsv1.PruneBlockedCondition, appsv1.OverrideUnmatchedCondition} {
		if conditions.IsTrue(app, t) {
			summary += "; " + conditions.GetMessage(app, t)
		}
	}

	if len(p.waits) > 0 {
		summary += "; " + capped(p.waits, 3)
	}

	unknown := obs.unknownFleets()
	busy := count[progressing]+count[waiting] > 0 || p.surplus > 0 && (p.prune == nil || p.prune.Allow == "") && len(p.held) == 0
	switch {
	case len(unknown) > 0:
		f := obs.unknown[unknown[0]]
		conditions.MarkFalse(app, meta.ReadyCondition, f.reason, "%s", f.message)
		conditions.Delete(app, meta.ReconcilingCondition)
		return
	case p.overBudget != "":
		conditions.MarkFalse(app, meta.ReadyCondition, overBudgetReason, "%s", p.overBudget)
		conditions.Delete(app, meta.ReconcilingCondition)
		return
	case len(p.sourceProblems) > 0:
		conditions.MarkFalse(app, meta.ReadyCondition, sourceFailedReason, "%s", capped(p.sourceProblems, 3))
	case count[failed] > 0:
		conditions.MarkFalse(app, meta.ReadyCondition, notReadyReason, "%s", summary)
	case busy:
		conditions.MarkUnknown(app, meta.ReadyCondition, meta.ProgressingReason, "%s", summary)
	case conditions.IsTrue(app, appsv1.PruneBlockedCondition):
		conditions.MarkFalse(app, meta.ReadyCondition, conditions.GetReason(app, appsv1.PruneBlockedCondition), "%s", conditions.GetMessage(app, appsv1.PruneBlockedCondition))
	default:
		conditions.MarkTrue(app, meta.ReadyCondition, succeededReason, "%s", summary)
	}
	if busy {
		conditions.MarkReconciling(app, meta.ProgressingReason, "%s", summary)
	} else {
		conditions.Delete(app, meta.ReconcilingCondition)
	}
}

// notWell names the members that are not well, worst first, at most ten.
func notWell(states []*memberState) string {
	unwell := slices.DeleteFunc(slices.Clone(states), func(s *memberState) bool { return s.rank == ready })
	slices.SortStableFunc(unwell, func(a, b *memberState) int { return int(b.rank - a.rank) })
	names := make([]string, len(unwell))
	for i, s := range unwell {
		name := s.key.Name
		if name == "" {
			name = "the hub"
		}
		names[i] = fmt.Sprintf("%s (%s)", name, s.reason)
	}
	return capped(names, 10)
}

// capped joins at most n texts, and counts the rest.
func capped(texts []string, n int) string {
	if len(texts) <= n {
		return strings.Join(texts, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(texts[:n], ", "), len(texts)-n)
}

func setStalled(o conditions.Setter, reason string, err error) {
	if app, ok := o.(*appsv1.Application); ok {
		app.Status.ObservedGeneration = app.Generation
	}
	conditions.MarkStalled(o, reason, "%s", shorten(err.Error()))
	conditions.MarkFalse(o, meta.ReadyCondition, reason, "%s", shorten(err.Error()))
	conditions.Delete(o, meta.ReconcilingCondition)
}

func setEnding(app *appsv1.Application, format string, args ...any) {
	conditions.MarkReconciling(app, endingReason, format, args...)
	conditions.MarkFalse(app, meta.ReadyCondition, endingReason, format, args...)
}

// tidy forgets what is remembered of objects that are gone.
func (s *appState) tidy(obs *observed) {
	most := 2*max(len(obs.children)+len(obs.sources), obs.app.Status.Objects) + 100
	if len(s.children) > most {
		clear(s.children)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.verified) > most {
		clear(s.verified)
	}
}

// patchStatus writes the status if it has changed, in one request. (The patch helper of fluxcd/pkg/runtime makes one
// for the conditions and one for the rest, and reads the object first.) Nobody else writes the status, so the last
// word is right.
func (r *ApplicationReconciler) patchStatus(ctx context.Context, before, after *appsv1.Application) error {
	if before.Status.ObservedGeneration == -1 && after.Status.ObservedGeneration == -1 && len(after.Status.Conditions) == 0 {
		return nil
	}
	return r.written.patch(ctx, r.Client, r.EventRecorder, before, after)
}

// announce tells people when an object becomes ready, or stops being so.
func announce(recorder record.EventRecorder, before, after conditions.Setter) {
	for _, t := range []string{meta.ReadyCondition, policyv1.CompliantCondition} {
		was, is := conditions.Get(before, t), conditions.Get(after, t)
		if is == nil || was != nil && was.Status == is.Status && was.Reason == is.Reason {
			continue
		}
		switch is.Status {
		case metav1.ConditionTrue:
			recorder.Event(after, corev1.EventTypeNormal, is.Reason, is.Message)
		case metav1.ConditionFalse:
			recorder.Event(after, corev1.EventTypeWarning, is.Reason, is.Message)
		}
	}
}
