package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fluxcd/pkg/runtime/conditions"
	runtimectrl "github.com/fluxcd/pkg/runtime/controller"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// +kubebuilder:rbac:groups=apps.kurator.dev,resources=applications,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=apps.kurator.dev,resources=applications/status,verbs=patch
// +kubebuilder:rbac:groups=apps.kurator.dev,resources=applications/finalizers,verbs=update
// +kubebuilder:rbac:groups=fleet.kurator.dev,resources=fleets,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.kurator.dev,resources=attachedclusters;clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=kustomize.toolkit.fluxcd.io,resources=kustomizations,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=helm.toolkit.fluxcd.io,resources=helmreleases,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=source.toolkit.fluxcd.io,resources=gitrepositories;ocirepositories;buckets;helmrepositories;helmcharts,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// ApplicationFinalizer keeps an Application until its children have ended.
const ApplicationFinalizer = "apps.kurator.dev/children"

// FieldOwner is the field manager of everything that is applied, and RequestOwner that of a reconcile request passed on.
const (
	FieldOwner   = object.FieldManager
	RequestOwner = "fleetwright-request"
)

// ApplicationReconciler turns Applications into Flux objects.
//
// A pass reads everything from the cache (observe), decides what to do with each object (decide), does it (apply, end)
// and says so (report). What it remembers between passes only saves work: a new process comes to the same.
type ApplicationReconciler struct {
	client.Client
	// APIReader reads past the cache, which is done only before something is ended.
	APIReader client.Reader
	record.EventRecorder
	runtimectrl.Metrics
	// Shard selects the Applications to look after; nil selects all.
	Shard labels.Selector
	// Keep, if there is one, says what has to be waited for before a child may end; empty if nothing is.
	Keep func(ctx context.Context, app *appsv1.Application, child client.Object) (wait string, err error)

	written written[*appsv1.Application]

	mu     sync.Mutex
	states map[types.NamespacedName]*appState
	claims *releaseClaims
	// keeping are the Applications of which children wait for Keep.
	keeping map[types.NamespacedName]bool
}

// Reconcile brings the objects of one Application to what is declared.
func (r *ApplicationReconciler) Reconcile(ctx context.Context, req ctrl.Request) (_ ctrl.Result, err error) {
	start := time.Now()
	cached := &appsv1.Application{}
	if err := r.Get(ctx, req.NamespacedName, cached); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if r.Shard != nil && !r.Shard.Matches(labels.Set(cached.Labels)) {
		r.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	cached = r.written.latest(cached)
	app := cached.DeepCopy()
	defer func() {
		err = errors.Join(err, r.patchStatus(ctx, cached, app))
		r.RecordDuration(ctx, app, start)
	}()

	if !app.DeletionTimestamp.IsZero() {
		return r.finalize(ctx, app)
	}
	if suspended(app, app.Spec.Suspend) {
		setSuspended(app, app.Annotations, &app.Status.ReconcileRequestStatus)
		return ctrl.Result{}, nil
	}
	conditions.Delete(app, suspendedCondition)
	if !controllerutil.ContainsFinalizer(app, ApplicationFinalizer) {
		if err := r.addFinalizer(ctx, app); err != nil {
			return ctrl.Result{}, err
		}
	}

	obs, err := r.observe(ctx, app)
	if err != nil {
		if errors.Is(err, errInvalid) {
			setStalled(app, invalidReason, err)
			return ctrl.Result{}, reconcile.TerminalError(err)
		}
		return ctrl.Result{}, fmt.Errorf("reading what is there: %w", err)
	}
	plan := r.decide(ctx, obs)
	if err := r.bound(ctx, obs, plan); err != nil {
		return ctrl.Result{}, fmt.Errorf("what changes, and the ChangeBudgets: %w", err)
	}
	failed := r.apply(ctx, obs, plan)
	if was := cached.Status.Prune; plan.prune != nil && plan.prune.AllowedBy != "" && (was == nil || was.AllowedBy != plan.prune.AllowedBy) {
		// A permission is used up before it is used: a process that is killed in between cannot use it twice.
		app.Status.Prune = plan.prune
		if err := r.patchStatus(ctx, cached, app); err != nil {
			return ctrl.Result{}, fmt.Errorf("nothing was ended: %w", err)
		}
		cached = r.written.latest(cached)
	}
	ending := r.end(ctx, obs, plan)
	if len(ending) > 0 && !errors.Is(ending[0], errStale) { // a cache that is behind catches up
		plan.held = append(plan.held, fmt.Sprintf("tried again: %v", ending[0]))
	}
	failed = append(failed, ending...)
	failed = append(failed, r.passOnRequest(ctx, obs)...)
	r.report(obs, plan)
	// An error is in the status of its member; returning it makes the queue try again.
	if len(failed) > 0 {
		return ctrl.Result{}, kerrors.NewAggregate(first(failed, 3))
	}
	return ctrl.Result{RequeueAfter: plan.again}, nil
}

// appState is what is remembered of an Application between passes.
type appState struct {
	*compiled
	children map[childKey]*childState
	// verified has the version at which an object was last seen to be as declared, by the hash of its UID.
	verified map[uint64]uint64
	mu       sync.Mutex // guards verified
	// allowed are the objects that a prune over budget may end which was allowed; nil if none was since the process began.
	allowed map[types.UID]bool
	// since is from when what is to end has waited for Applications that depend on this one and may leave the member, too.
	since map[types.UID]time.Time
	// applied is what was written and may not have come back through the watch yet: object.Ref to applied.
	applied sync.Map
}

func (r *ApplicationReconciler) state(key types.NamespacedName) *appState {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.states[key]
	if !ok {
		s = &appState{verified: map[uint64]uint64{}}
		r.states[key] = s
	}
	return s
}

func (r *ApplicationReconciler) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.states, key)
	delete(r.keeping, key)
	r.written.forget(key)
	syncLatency.forget(key)
}

// gone forgets the write of an object that was deleted, so that it is made anew at once.
func (r *ApplicationReconciler) gone(key types.NamespacedName, ref object.Ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.states[key]; ok {
		s.applied.Delete(ref)
	}
}

func (r *ApplicationReconciler) addFinalizer(ctx context.Context, app *appsv1.Application) error {
	before := app.DeepCopy()
	controllerutil.AddFinalizer(app, ApplicationFinalizer)
	// The lock keeps a finalizer that somebody adds in between.
	return r.Patch(ctx, app, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(FieldOwner))
}

func first[T any](items []T, n int) []T { return items[:min(n, len(items))] }
