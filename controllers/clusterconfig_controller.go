package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	runtimectrl "github.com/fluxcd/pkg/runtime/controller"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/controllers/publisher"
	"github.com/fleetwright/fleetwright/renderers/baseline"
)

// +kubebuilder:rbac:groups=cluster.kurator.dev,resources=clusterconfigs,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=cluster.kurator.dev,resources=clusterconfigs/status,verbs=patch
// +kubebuilder:rbac:groups=cluster.kurator.dev,resources=clusterconfigs/finalizers,verbs=update
// +kubebuilder:rbac:groups=apps.kurator.dev,resources=applications,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=source.toolkit.fluxcd.io,resources=externalartifacts,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=source.toolkit.fluxcd.io,resources=externalartifacts/status,verbs=patch

// ClusterConfigFinalizer keeps a ClusterConfig until its Applications have ended.
const ClusterConfigFinalizer = "cluster.kurator.dev/baseline"

// ClusterConfigReconciler turns each ClusterConfig into one published artifact, and one Application that delivers it:
// how it reaches the members, and leaves them, is the Application's.
type ClusterConfigReconciler struct {
	client.Client
	record.EventRecorder
	runtimectrl.Metrics
	// Publisher is where the rendered files are fetched from.
	Publisher publisher.Publisher
	// Baselines are what was rendered, shared with the stager.
	Baselines *Baselines
	// Keeper knows what others want.
	Keeper *Keeper
	// Shard selects the ClusterConfigs to look after; nil selects all.
	Shard labels.Selector

	written     written[*clusterv1.ClusterConfig]
	dropping    dropping
	inventories inventories
}

// Reconcile publishes one ClusterConfig and brings its Applications to what is declared.
func (r *ClusterConfigReconciler) Reconcile(ctx context.Context, req ctrl.Request) (_ ctrl.Result, err error) {
	start := time.Now()
	cached := &clusterv1.ClusterConfig{}
	if err := r.Get(ctx, req.NamespacedName, cached); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.written.forget(req.NamespacedName)
			r.dropping.end(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if r.Shard != nil && !r.Shard.Matches(labels.Set(cached.Labels)) {
		return ctrl.Result{}, nil
	}
	cached = r.written.latest(cached)
	config := cached.DeepCopy()
	defer func() {
		err = errors.Join(err, r.written.patch(ctx, r.Client, r.EventRecorder, cached, config))
		r.RecordDuration(ctx, config, start)
	}()

	if deleting(config) {
		return ctrl.Result{}, r.finalize(ctx, config)
	}
	if suspended(config, config.Spec.Suspend) {
		setSuspended(config, config.Annotations, &config.Status.ReconcileRequestStatus)
		return ctrl.Result{}, r.passOn(ctx, config)
	}
	conditions.Delete(config, suspendedCondition)
	if !controllerutil.ContainsFinalizer(config, ClusterConfigFinalizer) {
		before := config.DeepCopy()
		controllerutil.AddFinalizer(config, ClusterConfigFinalizer)
		if err := r.Patch(ctx, config, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(FieldOwner)); err != nil {
			return ctrl.Result{}, err
		}
		config.Status = before.Status
	}

	rendered, err := r.Baselines.Render(config)
	if err != nil {
		config.Status.ObservedGeneration = config.Generation
		setStalled(config, invalidReason, err)
		return ctrl.Result{}, reconcile.TerminalError(err)
	}
	wait, err := r.deliver(ctx, config, rendered)
	if err != nil {
		if errors.Is(err, errNotOurs) {
			config.Status.ObservedGeneration = config.Generation
			setStalled(config, notOursReason, err)
			return ctrl.Result{}, reconcile.TerminalError(err)
		}
		if errors.Is(err, errOverBudget) {
			config.Status.ObservedGeneration = config.Generation
			setOverBudget(config, err)
			return ctrl.Result{}, r.passOn(ctx, config)
		}
		conditions.MarkFalse(config, "Ready", applyFailedReason, "%s", shorten(err.Error()))
		return ctrl.Result{}, err
	}
	if err := r.passOn(ctx, config); err != nil {
		return ctrl.Result{}, err
	}
	if wait != "" {
		setConfigWaiting(config, wait)
		return ctrl.Result{RequeueAfter: r.dropping.left(req.NamespacedName)}, nil
	}
	return ctrl.Result{}, r.report(ctx, config, rendered)
}

func (r *ClusterConfigReconciler) passOn(ctx context.Context, config *clusterv1.ClusterConfig) error {
	apps, err := r.applications(ctx, config)
	if err != nil {
		return err
	}
	return r.delivery(config).passOn(ctx, apps, suspended(config, config.Spec.Suspend),
		fleetv1.AllowPruneAnnotation, fleetv1.AllowChangeAnnotation, fleetv1.ReconcileAnnotation, meta.ReconcileRequestAnnotation, fleetv1.PauseAnnotation)
}

// Baselines remembers what ClusterConfigs were rendered to, one generation of each.
type Baselines struct {
	mu sync.Mutex
	m  map[types.NamespacedName]renderedBaseline
}

type renderedBaseline struct {
	uid        types.UID
	generation int64
	*baseline.Rendered
	err error
	// last is the one before, if this one cannot be rendered: what is delivered still.
	last *baseline.Rendered
}

// Render renders a ClusterConfig, or returns what it was rendered to before. The outcome is shared and only read.
func (b *Baselines) Render(config *clusterv1.ClusterConfig) (*baseline.Rendered, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := client.ObjectKeyFromObject(config)
	if r, ok := b.m[key]; ok && r.uid == config.UID && r.generation == config.Generation {
		return r.Rendered, r.err
	}
	rendered, err := baseline.Render(config)
	if err != nil {
		err = fmt.Errorf("%w: %w", errInvalid, err)
	}
	if b.m == nil {
		b.m = map[types.NamespacedName]renderedBaseline{}
	}
	next := renderedBaseline{uid: config.UID, generation: config.Generation, Rendered: rendered, err: err}
	if before := b.m[key]; err != nil && before.uid == config.UID {
		next.last = before.Rendered
		if before.err != nil {
			next.last = before.last
		}
	}
	b.m[key] = next
	return rendered, err
}

// peek renders a ClusterConfig without remembering it, unless it is remembered already.
func (b *Baselines) peek(config *clusterv1.ClusterConfig) (*baseline.Rendered, error) {
	b.mu.Lock()
	r, ok := b.m[client.ObjectKeyFromObject(config)]
	b.mu.Unlock()
	if ok && r.uid == config.UID && r.generation == config.Generation {
		return r.Rendered, r.err
	}
	return baseline.Render(config)
}

// Delivered returns what of a ClusterConfig is on the members: what it renders to, or, if it cannot be rendered, what it
// did before, as far as this process knows.
func (b *Baselines) Delivered(config *clusterv1.ClusterConfig) *baseline.Rendered {
	rendered, err := b.Render(config)
	if err == nil {
		return rendered
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.m[client.ObjectKeyFromObject(config)].last
}

// isUnknown says whether a ClusterConfig cannot be rendered, so that what it has on members is not what it declares.
func (b *Baselines) isUnknown(config *clusterv1.ClusterConfig) bool {
	_, err := b.Render(config)
	return err != nil
}

func (b *Baselines) forget(key types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.m, key)
}
