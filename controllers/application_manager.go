package controllers

import (
	"context"
	"maps"
	"slices"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/runtime/predicates"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
)

// Field indexes of the cache.
const (
	ownerIndex     = ".owner"     // generated objects by the name of their Application
	claimIndex     = ".claim"     // HelmReleases by the bucket of the Helm release that they claim
	fleetIndex     = ".fleets"    // Applications by the fleets and single clusters that they go to
	dependsOnIndex = ".dependsOn" // Applications by the Applications that they depend on
)

// settle is how long changes of children are collected before an Application is looked at: Flux changes the status of
// each child several times, and a pass over thousands of members for each is work for nothing.
const settle = time.Second

// SetupWithManager registers the reconciler, its indexes and its watches.
func (r *ApplicationReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, opts controller.Options) error {
	r.states, r.claims, r.keeping = map[types.NamespacedName]*appState{}, newReleaseClaims(), map[types.NamespacedName]bool{}
	if err := indexApplications(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	changed := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicates.ReconcileRequestedPredicate{}, predicate.AnnotationChangedPredicate{}))
	b := ctrl.NewControllerManagedBy(mgr).
		For(&appsv1.Application{}, changed).
		Watches(&appsv1.Application{}, handler.EnqueueRequestsFromMapFunc(r.dependents), changed).
		Watches(&fleetv1.Fleet{}, handler.EnqueueRequestsFromMapFunc(r.applicationsOfFleet), changed).
		Watches(&clusterv1.AttachedCluster{}, r.memberHandler(), builder.WithPredicates(memberChanged{})).
		Watches(&clusterv1.Cluster{}, r.memberHandler(), builder.WithPredicates(memberChanged{}))
	b = b.Watches(&policyv1.ChangeBudget{}, budgeted(r, func() client.ObjectList { return &appsv1.ApplicationList{} }))
	for _, kind := range generatedKinds {
		b = b.Watches(newFluxObject(kind), r.ownedHandler())
	}
	if r.Keep != nil { // what it waits for is in the Kustomizations and specs of others
		b = b.Watches(&kustomizev1.Kustomization{}, whenSettled(r.keepers)).
			Watches(&clusterv1.ClusterConfig{}, whenSettled(r.keepers), builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	}
	return b.WithOptions(opts).Complete(r)
}

func indexApplications(ctx context.Context, indexer client.FieldIndexer) error {
	for _, kind := range generatedKinds {
		err := indexer.IndexField(ctx, newFluxObject(kind), ownerIndex, func(o client.Object) []string {
			if name := ownerName(o); name != "" {
				return []string{name}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, kind := range []client.Object{&appsv1.Application{}, &sourcev1.ExternalArtifact{}} {
		if err := indexer.IndexField(ctx, kind, deliveryIndex, indexByDelivery); err != nil {
			return err
		}
	}
	if err := indexer.IndexField(ctx, &helmv2.HelmRelease{}, claimIndex, func(o client.Object) []string { return []string{bucket(claimOf(o))} }); err != nil {
		return err
	}
	if err := indexer.IndexField(ctx, &appsv1.Application{}, fleetIndex, func(o client.Object) []string { return destinations(o.(*appsv1.Application)) }); err != nil {
		return err
	}
	return indexer.IndexField(ctx, &appsv1.Application{}, dependsOnIndex, func(o client.Object) []string {
		var names []string
		for _, d := range o.(*appsv1.Application).Spec.DependsOn {
			names = append(names, d.Name)
		}
		return names
	})
}

// destinations returns the keys of the fleets and single clusters that an Application goes to.
func destinations(app *appsv1.Application) []string {
	var keys []string
	add := func(d *appsv1.ApplicationDestination) {
		if d == nil {
			return
		}
		if key := application.DestinationKey(d); !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	add(app.Spec.Destination)
	for i := range app.Spec.SyncPolicies {
		add(app.Spec.SyncPolicies[i].Destination)
	}
	return keys
}

// dependents returns the Applications that depend on an Application, and, for when they end, those that it depends on.
func (r *ApplicationReconciler) dependents(ctx context.Context, o client.Object) []reconcile.Request {
	requests := r.indexed(ctx, o.GetNamespace(), dependsOnIndex, o.GetName())
	for _, d := range o.(*appsv1.Application).Spec.DependsOn {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: d.Name}})
	}
	return requests
}

func (r *ApplicationReconciler) applicationsOfFleet(ctx context.Context, fleet client.Object) []reconcile.Request {
	return r.applicationsOf(ctx, fleet.GetNamespace(), fleet.GetName())
}

// applicationsOf returns the Applications that go to a fleet or single cluster, by its key, and those that depend on them.
func (r *ApplicationReconciler) applicationsOf(ctx context.Context, namespace, key string) []reconcile.Request {
	requests := r.indexed(ctx, namespace, fleetIndex, key)
	for _, request := range slices.Clone(requests) {
		requests = append(requests, r.indexed(ctx, request.Namespace, dependsOnIndex, request.Name)...)
	}
	return requests
}

// applicationsFor returns the Applications that go to a cluster by its name, or to a fleet which has, or may have, it.
func (r *ApplicationReconciler) applicationsFor(ctx context.Context, cluster client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, fleet := range fleetsOf(ctx, r.Client, cluster) {
		requests = append(requests, r.applicationsOfFleet(ctx, fleet)...)
	}
	kind := clusterv1.AttachedClusterKind
	if _, ok := cluster.(*clusterv1.Cluster); ok {
		kind = clusterv1.ClusterKind
	}
	for _, kind := range []string{kind, ""} { // as destinations name it, with its kind or without
		requests = append(requests, r.applicationsOf(ctx, cluster.GetNamespace(), application.ClusterKey(kind, cluster.GetName()))...)
	}
	return requests
}

// fleetsOf returns the fleets that name a cluster, and those that select: a cluster whose label is taken away is one
// that was selected.
func fleetsOf(ctx context.Context, c client.Reader, cluster client.Object) []*fleetv1.Fleet {
	var fleets fleetv1.FleetList
	if err := c.List(ctx, &fleets, client.InNamespace(cluster.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache knows no error but a missing index
	}
	return slices.DeleteFunc(pointers(fleets.Items), func(f *fleetv1.Fleet) bool {
		named := slices.ContainsFunc(f.Spec.Clusters, func(ref fleetv1.FleetCluster) bool { return ref.Name == cluster.GetName() })
		return !named && f.Spec.ClusterSelector == nil
	})
}

func (r *ApplicationReconciler) indexed(ctx context.Context, namespace, index, value string) []reconcile.Request {
	var apps appsv1.ApplicationList
	if err := r.List(ctx, &apps, client.InNamespace(namespace), client.MatchingFields{index: value}, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache knows no error but a missing index
	}
	requests := make([]reconcile.Request, len(apps.Items))
	for i := range apps.Items {
		requests[i].NamespacedName = client.ObjectKeyFromObject(&apps.Items[i])
	}
	return requests
}

// memberHandler looks at the Applications of a member at once, but for a member that was not looked at yet: there is
// nothing to do for it before.
func (r *ApplicationReconciler) memberHandler() handler.EventHandler {
	now, later := handler.EnqueueRequestsFromMapFunc(r.applicationsFor), whenSettled(r.applicationsFor)
	probed := func(o client.Object) bool {
		return deleting(o) || conditions.Has(o.(conditions.Getter), meta.ReadyCondition)
	}
	h := handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			if probed(e.Object) {
				now.Create(ctx, e, q)
			} else {
				later.Create(ctx, e, q)
			}
		},
		DeleteFunc: now.Delete,
	}
	h.UpdateFunc = func(ctx context.Context, e event.UpdateEvent, q queue) {
		if probed(e.ObjectNew) {
			now.Update(ctx, e, q)
		} else {
			later.Update(ctx, e, q)
		}
	}
	return h
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// whenSettled looks at what an object leads to when its changes, and those of others, have been collected for a while.
func whenSettled(leadsTo handler.MapFunc) handler.EventHandler {
	later := func(ctx context.Context, o client.Object, q queue) {
		for _, request := range leadsTo(ctx, o) {
			q.AddAfter(request, settle)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { later(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { later(ctx, e.ObjectNew, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { later(ctx, e.Object, q) },
	}
}

// ownedHandler looks at the owner of a generated object, and at who waits for it: at once when it is gone, else when
// things have settled. What an object comes after may be waiting for it to go.
func (r *ApplicationReconciler) ownedHandler() handler.EventHandler {
	released := func(ctx context.Context, o client.Object, q queue) {
		if !isChild(o) {
			return
		}
		for _, name := range r.next(ctx, o.GetNamespace(), ownerName(o)) {
			q.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}, settle)
		}
	}
	later := func(ctx context.Context, o client.Object, q queue) {
		if name := ownerName(o); name != "" {
			q.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}, settle)
			for _, request := range r.indexed(ctx, o.GetNamespace(), dependsOnIndex, name) {
				q.AddAfter(request, settle)
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { later(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			later(ctx, e.ObjectNew, q)
			if ownerName(e.ObjectOld) != ownerName(e.ObjectNew) {
				later(ctx, e.ObjectOld, q)
			}
			if ownerName(e.ObjectOld) != ownerName(e.ObjectNew) || !slices.Equal(dependsOn(e.ObjectOld), dependsOn(e.ObjectNew)) {
				released(ctx, e.ObjectOld, q)
			}
			if was, is := claimOf(e.ObjectOld), claimOf(e.ObjectNew); was != is {
				r.freed(e.ObjectOld, false, q)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			if name := ownerName(e.Object); name != "" {
				key := types.NamespacedName{Namespace: e.Object.GetNamespace(), Name: name}
				r.gone(key, kindOf(e.Object))
				q.Add(reconcile.Request{NamespacedName: key})
			}
			released(ctx, e.Object, q)
			r.freed(e.Object, true, q)
		},
	}
}

// freed looks at the Applications that wait for what an object had: its name, if that is free, and its Helm release.
func (r *ApplicationReconciler) freed(o client.Object, name bool, q queue) {
	for _, key := range r.claims.freed(o, name) {
		q.Add(reconcile.Request{NamespacedName: key})
	}
}

// memberChanged lets through what matters to those who render for a member: not that it was looked at again.
type memberChanged struct{ predicate.Funcs }

// Update implements predicate.Predicate.
func (memberChanged) Update(e event.UpdateEvent) bool {
	return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
		deleting(e.ObjectOld) != deleting(e.ObjectNew) ||
		!maps.Equal(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels()) ||
		healthOf(e.ObjectOld) != healthOf(e.ObjectNew)
}

// renderedHealth is the part of a cluster's status that matters to those who render for it.
type renderedHealth struct {
	ready                       metav1.ConditionStatus
	reason, message, kubeconfig string
}

func healthOf(o client.Object) renderedHealth {
	var h renderedHealth
	if c := conditions.Get(o.(conditions.Getter), meta.ReadyCondition); c != nil {
		h.ready, h.reason, h.message = c.Status, c.Reason, c.Message
	}
	if c, ok := o.(*clusterv1.Cluster); ok {
		h.kubeconfig = c.Status.KubeconfigSecretRef
	}
	return h
}
