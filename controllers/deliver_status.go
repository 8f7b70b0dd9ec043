package controllers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

// take adds what an Application says to the status of the object that it delivers, and returns how ready it is.
func take(o conditions.Setter, kind string, members *fleetv1.MemberSummary, objects *int, prune **appsv1.PruneStatus, app *appsv1.Application, prefix string) *metav1.Condition {
	// What the Application asks for is asked of its owner, which passes it on.
	own := func(message string) string {
		message = strings.ReplaceAll(message, "annotate the Application", "annotate the "+kind)
		if strings.Contains(message, "ExternalArtifact feature gate is disabled") {
			message += ": start Flux's kustomize-controller with --feature-gates=ExternalArtifact=true"
		}
		return prefix + message
	}
	theirs := &app.Status
	*objects += theirs.Objects
	if theirs.Prune != nil && *prune == nil {
		*prune = theirs.Prune.DeepCopy()
	}
	summary := theirs.Members.DeepCopy()
	for i := range summary.NotReady {
		summary.NotReady[i].Message = own(summary.NotReady[i].Message)
	}
	join(members, summary)
	for _, t := range []string{appsv1.ChangeBlockedCondition, appsv1.PruneBlockedCondition, appsv1.OverrideUnmatchedCondition} {
		if c := conditions.Get(app, t); c != nil {
			conditions.MarkTrue(o, t, c.Reason, "%s", own(c.Message))
		}
	}
	ready := *conditions.Get(app, meta.ReadyCondition)
	ready.Message = own(ready.Message)
	return &ready
}

// join adds the members of another Application of the same owner, which are the same ones.
func join(to, from *fleetv1.MemberSummary) {
	if to.Total == 0 {
		*to = *from
		return
	}
	for _, m := range from.NotReady {
		if slices.ContainsFunc(to.NotReady, func(n fleetv1.NotReadyMember) bool { return n.Name == m.Name && n.Kind == m.Kind }) {
			continue
		}
		if len(to.NotReady) < fleetv1.MaxListedMembers {
			to.NotReady = append(to.NotReady, m)
		}
	}
	notReady := max(len(to.NotReady), to.Total-to.Ready, from.Total-from.Ready)
	to.Total = max(to.Total, from.Total)
	to.Ready, to.NotReadyOmitted = to.Total-notReady, notReady-len(to.NotReady)
	to.Summary = fmt.Sprintf("%d/%d", to.Ready, to.Total)
}

// setDelivered sets Ready and Reconciling to the worst of what was judged. A note comes after the message.
func setDelivered(o conditions.Setter, judged []*metav1.Condition, note string) {
	order := []metav1.ConditionStatus{metav1.ConditionFalse, metav1.ConditionUnknown, metav1.ConditionTrue}
	slices.SortStableFunc(judged, func(a, b *metav1.Condition) int { return slices.Index(order, a.Status) - slices.Index(order, b.Status) })
	var messages []string
	for _, c := range judged {
		if (c.Status != metav1.ConditionTrue || judged[0].Status == metav1.ConditionTrue) && !slices.Contains(messages, c.Message) {
			messages = append(messages, c.Message)
		}
	}
	message := bounded(bounded(strings.Join(messages, "; "), 2000)+note, 2000)
	switch worst := judged[0]; worst.Status {
	case metav1.ConditionTrue:
		conditions.MarkTrue(o, meta.ReadyCondition, worst.Reason, "%s", message)
		conditions.Delete(o, meta.ReconcilingCondition)
	case metav1.ConditionFalse:
		conditions.MarkFalse(o, meta.ReadyCondition, worst.Reason, "%s", message)
		conditions.Delete(o, meta.ReconcilingCondition)
	default:
		conditions.MarkUnknown(o, meta.ReadyCondition, meta.ProgressingReason, "%s", message)
		conditions.MarkReconciling(o, meta.ProgressingReason, "%s", message)
	}
}
