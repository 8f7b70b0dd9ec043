package controllers

import (
	"context"
	"slices"

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
	for _, t := range []string{meta.StalledCondition, appsv1.ChangeBlockedCondition, appsv1.PruneBlockedCondition, appsv1.OverrideUnmatchedCondition} {
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
		prefix := ""
		if declared == rendered.Overlay {
			prefix = "overlay: "
		}
		judged = append(judged, take(config, clusterv1.ClusterConfigKind, &status.Members, &status.Objects, &status.Prune, &apps[i], prefix))
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
	note := ""
	if conditions.IsTrue(config, clusterv1.ConflictCondition) {
		note = "; in conflict: " + conditions.GetMessage(config, clusterv1.ConflictCondition)
	}
	setDelivered(config, judged, note)
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
		if isTrue(fluxReady(child)) && appliedRevision(child) != d.revision && !fluxSuspended(child) {
			n++
		}
	}
	return n, nil
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
