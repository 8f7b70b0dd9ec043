package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/baseline"
)

// report says in the status what the Applications say in theirs, and whether the members have the present revision.
func (r *ClusterConfigReconciler) report(ctx context.Context, config *clusterv1.ClusterConfig, rendered *baseline.Rendered) error {
	status := &config.Status
	status.ObservedGeneration = config.Generation
	status.Revision = ""
	setNotInEffect(config, rendered.NotInEffect)
	apps, err := r.applications(ctx, config)
	if err != nil {
		return err
	}
	status.Members, status.Objects, status.Prune = fleetv1.MemberSummary{}, 0, nil
	var judged []*metav1.Condition
	for _, t := range []string{meta.StalledCondition, appsv1.PruneBlockedCondition, appsv1.OverrideUnmatchedCondition} {
		conditions.Delete(config, t)
	}
	for _, declared := range []*appsv1.Application{rendered.Application, rendered.Overlay} {
		if declared == nil {
			continue
		}
		i := slices.IndexFunc(apps, func(a appsv1.Application) bool { return a.Name == declared.Name })
		if i < 0 || apps[i].Status.ObservedGeneration != apps[i].Generation || conditions.Get(&apps[i], meta.ReadyCondition) == nil {
			judged = append(judged, conditions.UnknownCondition(meta.ReadyCondition, meta.ProgressingReason, "Application %s is at work", declared.Name))
			continue
		}
		judged = append(judged, take(config, &apps[i], declared == rendered.Overlay))
	}
	if rendered.Application != nil {
		status.Revision = rendered.Revision
		behind, err := r.behind(ctx, config)
		if err != nil {
			return err
		}
		if behind > 0 {
			judged = append(judged, conditions.UnknownCondition(meta.ReadyCondition, meta.ProgressingReason, "%d members do not have %s yet: Flux is at work", behind, rendered.Revision))
		}
	}
	setConfigReady(config, judged)
	if token, ok := meta.ReconcileAnnotationValue(config.Annotations); ok {
		status.LastHandledReconcileAt = token
	}
	return nil
}

// behind counts the members that are well, but with an older revision.
func (r *ClusterConfigReconciler) behind(ctx context.Context, config *clusterv1.ClusterConfig) (int, error) {
	d, err := r.delivered(ctx, config.Namespace, config.Name)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, child := range d.children {
		if isTrue(fluxReady(child)) && child.Status.LastAppliedRevision != d.revision && !fluxSuspended(child) {
			n++
		}
	}
	return n, nil
}

// take adds what an Application says to the status of its ClusterConfig, and returns how ready it is.
func take(config *clusterv1.ClusterConfig, app *appsv1.Application, overlay bool) *metav1.Condition {
	// What the Application asks for is asked of the ClusterConfig, which passes it on.
	own := func(message string) string {
		message = strings.ReplaceAll(message, "annotate the Application", "annotate the ClusterConfig")
		if strings.Contains(message, "ExternalArtifact feature gate is disabled") {
			message += ": start Flux's kustomize-controller with --feature-gates=ExternalArtifact=true"
		}
		if overlay {
			message = "overlay: " + message
		}
		return message
	}
	status, theirs := &config.Status, &app.Status
	status.Objects += theirs.Objects
	if theirs.Prune != nil && status.Prune == nil {
		status.Prune = theirs.Prune.DeepCopy()
	}
	members := theirs.Members.DeepCopy()
	for i := range members.NotReady {
		members.NotReady[i].Message = own(members.NotReady[i].Message)
	}
	join(&status.Members, members)
	for _, t := range []string{appsv1.PruneBlockedCondition, appsv1.OverrideUnmatchedCondition} {
		if c := conditions.Get(app, t); c != nil {
			conditions.MarkTrue(config, t, c.Reason, "%s", own(c.Message))
		}
	}
	ready := *conditions.Get(app, meta.ReadyCondition)
	ready.Message = own(ready.Message)
	return &ready
}

// join adds the members of an overlay, which are the same as those of the rest.
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

// setConfigReady sets Ready and Reconciling to the worst of what was judged.
func setConfigReady(config *clusterv1.ClusterConfig, judged []*metav1.Condition) {
	order := []metav1.ConditionStatus{metav1.ConditionFalse, metav1.ConditionUnknown, metav1.ConditionTrue}
	slices.SortStableFunc(judged, func(a, b *metav1.Condition) int { return slices.Index(order, a.Status) - slices.Index(order, b.Status) })
	var messages []string
	for _, c := range judged {
		if c.Status != metav1.ConditionTrue || judged[0].Status == metav1.ConditionTrue {
			messages = append(messages, c.Message)
		}
	}
	message := bounded(strings.Join(messages, "; "), 2000)
	if conditions.IsTrue(config, clusterv1.ConflictCondition) {
		message = bounded(message+"; in conflict: "+conditions.GetMessage(config, clusterv1.ConflictCondition), 2000)
	}
	switch worst := judged[0]; worst.Status {
	case metav1.ConditionTrue:
		conditions.MarkTrue(config, meta.ReadyCondition, worst.Reason, "%s", message)
		conditions.Delete(config, meta.ReconcilingCondition)
	case metav1.ConditionFalse:
		conditions.MarkFalse(config, meta.ReadyCondition, worst.Reason, "%s", message)
		conditions.Delete(config, meta.ReconcilingCondition)
	default:
		conditions.MarkUnknown(config, meta.ReadyCondition, meta.ProgressingReason, "%s", message)
		conditions.MarkReconciling(config, meta.ProgressingReason, "%s", message)
	}
}

// setConfigWaiting says what is waited for before anything of a change is published.
func setConfigWaiting(config *clusterv1.ClusterConfig, wait string) {
	config.Status.ObservedGeneration = config.Generation
	message := bounded("nothing of the change is published yet: "+wait, 2000)
	conditions.Delete(config, meta.StalledCondition)
	conditions.MarkUnknown(config, meta.ReadyCondition, meta.ProgressingReason, "%s", message)
	conditions.MarkReconciling(config, meta.ProgressingReason, "%s", message)
}

// setConflict says which objects others want, too.
func setConflict(config *clusterv1.ClusterConfig, conflicts []baseline.Conflict) {
	texts := baseline.Texts(conflicts, config.Name)
	if len(texts) == 0 {
		conditions.Delete(config, clusterv1.ConflictCondition)
		return
	}
	conditions.MarkTrue(config, clusterv1.ConflictCondition, clusterv1.ConflictCondition, "%s", bounded(capped(texts, 10), 2000))
}
