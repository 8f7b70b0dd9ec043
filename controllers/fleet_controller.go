package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	runtimectrl "github.com/fluxcd/pkg/runtime/controller"
	"github.com/fluxcd/pkg/runtime/jitter"
	"github.com/fluxcd/pkg/runtime/predicates"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/member"
)

// +kubebuilder:rbac:groups=fleet.kurator.dev,resources=fleets,verbs=get;list;watch
// +kubebuilder:rbac:groups=fleet.kurator.dev,resources=fleets/status,verbs=patch

// DefaultFleetInterval is how often a fleet is looked at when nothing happens.
const DefaultFleetInterval = 10 * time.Minute

// FleetReconciler says in the status of each Fleet who its members are and how they are. It generates the ClusterConfig of
// spec.policy.networkIsolation; what else runs on the members is for those who refer to the fleet.
type FleetReconciler struct {
	client.Client
	record.EventRecorder
	runtimectrl.Metrics
	// Shard selects the Fleets to look after; nil selects all.
	Shard labels.Selector

	written written[*fleetv1.Fleet]
}

// SetupWithManager registers the reconciler and its watches.
func (r *FleetReconciler) SetupWithManager(mgr ctrl.Manager, opts controller.Options) error {
	changed := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicates.ReconcileRequestedPredicate{}, predicate.AnnotationChangedPredicate{}))
	return ctrl.NewControllerManagedBy(mgr).
		For(&fleetv1.Fleet{}, changed).
		Watches(&clusterv1.AttachedCluster{}, whenSettled(r.fleetsOf), builder.WithPredicates(memberChanged{})).
		Watches(&clusterv1.Cluster{}, whenSettled(r.fleetsOf), builder.WithPredicates(memberChanged{})).
		// The namespaces that a ClusterConfig declares are isolated as well.
		Watches(&clusterv1.ClusterConfig{}, whenSettled(fleetOf), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(opts).
		Complete(r)
}

func (r *FleetReconciler) fleetsOf(ctx context.Context, cluster client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, fleet := range fleetsOf(ctx, r.Client, cluster) {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(fleet)})
	}
	return requests
}

// Reconcile looks at the members of one Fleet.
func (r *FleetReconciler) Reconcile(ctx context.Context, req ctrl.Request) (_ ctrl.Result, err error) {
	start := time.Now()
	cached := &fleetv1.Fleet{}
	if err := r.Get(ctx, req.NamespacedName, cached); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.written.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if deleting(cached) || r.Shard != nil && !r.Shard.Matches(labels.Set(cached.Labels)) {
		return ctrl.Result{}, nil
	}
	cached = r.written.latest(cached)
	fleet := cached.DeepCopy()
	defer func() {
		err = errors.Join(err, r.patchStatus(ctx, cached, fleet))
		r.RecordDuration(ctx, fleet, start)
	}()

	if suspended(fleet, fleet.Spec.Suspend) {
		setSuspended(fleet, fleet.Annotations, &fleet.Status.ReconcileRequestStatus)
		return ctrl.Result{}, nil
	}
	conditions.Delete(fleet, suspendedCondition)
	if token, ok := meta.ReconcileAnnotationValue(fleet.Annotations); ok {
		fleet.Status.LastHandledReconcileAt = token
	}
	fleet.Status.ObservedGeneration = fleet.Generation

	clusters, err := listClusters(ctx, r.Client, fleet.Namespace)
	if err != nil {
		return ctrl.Result{}, err
	}
	members, err := member.Resolve(fleet, clusters)
	if err != nil {
		setStalled(fleet, application.InvalidFleetReason, err)
		return ctrl.Result{}, reconcile.TerminalError(err)
	}
	reportFleet(fleet, members)
	if err := r.isolate(ctx, fleet); err != nil {
		conditions.MarkFalse(fleet, meta.ReadyCondition, applyFailedReason, "spec.policy.networkIsolation: %s", shorten(err.Error()))
		return ctrl.Result{}, err
	}
	interval := DefaultFleetInterval
	if fleet.Spec.Interval != nil && fleet.Spec.Interval.Duration > 0 {
		interval = fleet.Spec.Interval.Duration
	}
	return jitter.JitteredRequeueInterval(ctrl.Result{RequeueAfter: interval}), nil
}

// reportFleet sets the status of a fleet from its members.
func reportFleet(fleet *fleetv1.Fleet, members []member.Member) {
	states := make([]*memberState, len(members))
	count := map[rank]int{}
	for i := range members {
		m := &members[i]
		states[i] = &memberState{key: m.Key()}
		switch {
		case m.Leaving:
			states[i].is(progressing, endingReason, "is leaving")
		case m.Reason == member.NotProbedReason:
			states[i].is(progressing, m.Reason, "%s", m.Message)
		case !m.Ready:
			states[i].is(failed, m.Reason, "%s", shorten(m.Message))
		}
		count[states[i].rank]++
	}
	fleet.Status.Members = summarize(states)
	setNotInEffect(fleet, fleetNotInEffect(fleet, members))

	conditions.Delete(fleet, meta.StalledCondition)
	conditions.Delete(fleet, meta.ReconcilingCondition)
	summary := fmt.Sprintf("%s members ready", fleet.Status.Members.Summary)
	if unwell := notWell(states); unwell != "" {
		summary += "; " + unwell
	}
	switch {
	case count[failed] > 0:
		conditions.MarkFalse(fleet, meta.ReadyCondition, notReadyReason, "%s", summary)
	case count[progressing] > 0:
		conditions.MarkReconciling(fleet, meta.ProgressingReason, "%s", summary)
		conditions.MarkUnknown(fleet, meta.ReadyCondition, meta.ProgressingReason, "%s", summary)
	default:
		conditions.MarkTrue(fleet, meta.ReadyCondition, succeededReason, "%s", summary)
	}
}

// fleetNotInEffect lists what a fleet declares that has no effect yet.
func fleetNotInEffect(fleet *fleetv1.Fleet, members []member.Member) []string {
	var paths []string
	if fleet.Spec.Plugin != nil {
		paths = append(paths, "spec.plugin")
	}
	if p := fleet.Spec.Policy; p != nil {
		if p.Placement != nil {
			paths = append(paths, "spec.policy.placement")
		}
		if p.Encryption != nil {
			paths = append(paths, notEncrypted(members))
		}
	}
	return paths
}

// notEncrypted says why spec.policy.encryption has no effect, by who runs the members' API servers.
func notEncrypted(members []member.Member) string {
	attached := 0
	for i := range members {
		if members[i].Kind != clusterv1.ClusterKind {
			attached++
		}
	}
	text := fmt.Sprintf("spec.policy.encryption (the API servers of %d attached members are not ours to configure: encrypt where they are run", attached)
	if n := len(members) - attached; n > 0 {
		text += fmt.Sprintf("; no provider provisions the other %d yet", n)
	}
	return text + ")"
}

// patchStatus writes the status if it has changed, in one request, as for an Application.
func (r *FleetReconciler) patchStatus(ctx context.Context, before, after *fleetv1.Fleet) error {
	if equality.Semantic.DeepEqual(before.Status, after.Status) {
		return nil
	}
	announce(r.EventRecorder, before, after)
	written := after.DeepCopy()
	if err := r.Status().Patch(ctx, written, client.MergeFrom(before), client.FieldOwner(FieldOwner)); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.written.remember(written)
	return nil
}
