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
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/controllers/publisher"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/plugin"
)

// +kubebuilder:rbac:groups=fleet.kurator.dev,resources=fleets,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=fleet.kurator.dev,resources=fleets/status,verbs=patch
// +kubebuilder:rbac:groups=fleet.kurator.dev,resources=fleets/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch;create;patch;delete

// DefaultFleetInterval is how often a fleet is looked at when nothing happens.
const DefaultFleetInterval = 10 * time.Minute

// FleetReconciler says in the status of each Fleet who its members are and how they are. It generates the ClusterConfig of
// spec.policy.networkIsolation and an Application for each plugin; what else runs on the members is for those who refer to
// the fleet.
type FleetReconciler struct {
	client.Client
	// APIReader reads past the cache, which has Secrets without what is in them.
	APIReader client.Reader
	record.EventRecorder
	runtimectrl.Metrics
	// Publisher is where what plugins consist of is fetched from.
	Publisher publisher.Publisher
	// Plugins are those that fleets may use, and Facts what was read of members for them.
	Plugins *Plugins
	Facts   *Facts
	// Shard selects the Fleets to look after; nil selects all.
	Shard labels.Selector

	written written[*fleetv1.Fleet]
	kept    keptVersions
}

// SetupWithManager registers the reconciler and its watches.
func (r *FleetReconciler) SetupWithManager(mgr ctrl.Manager, opts controller.Options) error {
	fetched := coalesced(r.Plugins)
	owner := handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), &fleetv1.Fleet{}, handler.OnlyControllerOwner())
	changed := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicates.ReconcileRequestedPredicate{}, predicate.AnnotationChangedPredicate{}))
	return ctrl.NewControllerManagedBy(mgr).
		For(&fleetv1.Fleet{}, changed).
		Watches(&clusterv1.AttachedCluster{}, whenSettled(r.fleetsOf), builder.WithPredicates(memberChanged{})).
		Watches(&clusterv1.Cluster{}, whenSettled(r.fleetsOf), builder.WithPredicates(memberChanged{})).
		// The namespaces that a ClusterConfig declares are isolated as well.
		Watches(&clusterv1.ClusterConfig{}, whenSettled(fleetOf), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		// What one fleet has a plugin on, another one has not.
		Watches(&fleetv1.Fleet{}, whenSettled(r.rivals), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&appsv1.Application{}, whenSettled(fleetOfOwner)).
		Watches(&appsv1.Application{}, whenSettled(r.neededBy)).
		Watches(&sourcev1.ExternalArtifact{}, owner).
		Watches(&policyv1.ChangeBudget{}, budgeted(r, func() client.ObjectList { return &fleetv1.FleetList{} })).
		Watches(&corev1.Secret{}, owner).
		WatchesRawSource(source.Channel(r.Facts.fleets, &handler.EnqueueRequestForObject{})).
		WatchesRawSource(source.Channel(fetched, handler.EnqueueRequestsFromMapFunc(usersOfPlugins(r.Client)))).
		WithOptions(opts).
		Complete(r)
}

// rivals returns the other fleets of a namespace that use plugins.
func (r *FleetReconciler) rivals(ctx context.Context, o client.Object) (requests []reconcile.Request) {
	var fleets fleetv1.FleetList
	if err := r.List(ctx, &fleets, client.InNamespace(o.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache knows no error
	}
	for i := range fleets.Items {
		if f := &fleets.Items[i]; f.Name != o.GetName() && len(plugin.Uses(f)) > 0 {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(f)})
		}
	}
	return requests
}

// neededBy returns the fleets with plugins that an Application depends on: they may wait for it to end.
func (r *FleetReconciler) neededBy(ctx context.Context, o client.Object) (requests []reconcile.Request) {
	for _, d := range o.(*appsv1.Application).Spec.DependsOn {
		app := &appsv1.Application{}
		if r.Get(ctx, types.NamespacedName{Namespace: o.GetNamespace(), Name: d.Name}, app, client.UnsafeDisableDeepCopyOption(true)) == nil {
			requests = append(requests, fleetOfOwner(ctx, app)...)
		}
	}
	return requests
}

func fleetOfOwner(_ context.Context, o client.Object) []reconcile.Request {
	owner := metav1.GetControllerOfNoCopy(o)
	if owner == nil || owner.Kind != fleetv1.FleetKind {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: owner.Name}}}
}

// coalesced returns events for changes of plugins from outside. One that waits to be taken stands for all of them, so that
// nobody waits on a replica where nobody takes it.
func coalesced(plugins *Plugins) chan event.GenericEvent {
	events := make(chan event.GenericEvent, 1)
	plugins.OnChange(func(string) {
		select {
		case events <- event.GenericEvent{Object: &fleetv1.Fleet{}}:
		default:
		}
	})
	return events
}

// usersOfPlugins returns the fleets that use plugins from outside.
func usersOfPlugins(c client.Reader) handler.MapFunc {
	return func(ctx context.Context, _ client.Object) (requests []reconcile.Request) {
		var fleets fleetv1.FleetList
		if err := c.List(ctx, &fleets, client.UnsafeDisableDeepCopy); err != nil {
			return nil // the cache knows no error
		}
		for i := range fleets.Items {
			if len(fleets.Items[i].Spec.Plugins) > 0 {
				requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&fleets.Items[i])})
			}
		}
		return requests
	}
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
	if r.Shard != nil && !r.Shard.Matches(labels.Set(cached.Labels)) {
		return ctrl.Result{}, nil
	}
	cached = r.written.latest(cached)
	fleet := cached.DeepCopy()
	defer func() {
		err = errors.Join(err, r.written.patch(ctx, r.Client, r.EventRecorder, cached, fleet))
		r.RecordDuration(ctx, fleet, start)
	}()

	if deleting(fleet) {
		return ctrl.Result{}, r.finalize(ctx, fleet)
	}
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
	err = r.deliverPlugins(ctx, fleet, members)
	reportPlugins(fleet)
	if err != nil {
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
