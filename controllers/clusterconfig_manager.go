package controllers

import (
	"context"
	"slices"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/runtime/predicates"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
)

// SetupWithManager registers the reconciler and its watches.
func (r *ClusterConfigReconciler) SetupWithManager(mgr ctrl.Manager, opts controller.Options) error {
	changed := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicates.ReconcileRequestedPredicate{}, predicate.AnnotationChangedPredicate{}))
	owner := handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), &clusterv1.ClusterConfig{}, handler.OnlyControllerOwner())
	return ctrl.NewControllerManagedBy(mgr).
		For(&clusterv1.ClusterConfig{}, changed).
		Watches(&appsv1.Application{}, owner).
		Watches(&appsv1.Application{}, whenSettled(r.concerned)). // members for which it cannot be rendered are in its status
		Watches(&sourcev1.ExternalArtifact{}, owner).
		Watches(&policyv1.ChangeBudget{}, handler.EnqueueRequestsFromMapFunc(r.inNamespace)).
		// Who wants the same object may have to give it up, or to take it.
		Watches(&clusterv1.ClusterConfig{}, handler.EnqueueRequestsFromMapFunc(r.rivals), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&fleetv1.Fleet{}, whenSettled(r.inNamespace), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&clusterv1.AttachedCluster{}, whenSettled(r.inConflict), builder.WithPredicates(memberChanged{})).
		Watches(&clusterv1.Cluster{}, whenSettled(r.inConflict), builder.WithPredicates(memberChanged{})).
		Watches(&kustomizev1.Kustomization{}, whenSettled(r.configOf)).
		WithOptions(opts).
		Complete(r)
}

// rivals returns the other ClusterConfigs of a namespace.
func (r *ClusterConfigReconciler) rivals(ctx context.Context, o client.Object) []reconcile.Request {
	return r.selected(ctx, o.GetNamespace(), func(c *clusterv1.ClusterConfig) bool { return c.Name != o.GetName() })
}

func (r *ClusterConfigReconciler) inNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	return r.selected(ctx, o.GetNamespace(), func(*clusterv1.ClusterConfig) bool { return true })
}

// inConflict returns the ClusterConfigs for which it matters who is a member: those that share objects with others.
func (r *ClusterConfigReconciler) inConflict(ctx context.Context, o client.Object) []reconcile.Request {
	configs := r.configs(ctx, o.GetNamespace())
	return r.selected(ctx, o.GetNamespace(), func(c *clusterv1.ClusterConfig) bool { return len(r.sharing(c, configs)) > 0 })
}

func (r *ClusterConfigReconciler) selected(ctx context.Context, namespace string, choose func(*clusterv1.ClusterConfig) bool) []reconcile.Request {
	var requests []reconcile.Request
	for _, c := range r.configs(ctx, namespace) {
		if choose(c) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(c)})
		}
	}
	return requests
}

// configOf returns the ClusterConfig that a Kustomization of one of its Applications is for, and those that may wait for it.
func (r *ClusterConfigReconciler) configOf(ctx context.Context, o client.Object) []reconcile.Request {
	app := &appsv1.Application{}
	name := ownerName(o)
	if name == "" || r.Get(ctx, types.NamespacedName{Namespace: o.GetNamespace(), Name: name}, app, client.UnsafeDisableDeepCopyOption(true)) != nil {
		return nil
	}
	return r.concerned(ctx, app)
}

// concerned returns the ClusterConfig of an Application, the ClusterConfigs that share objects with it, and those that wait
// for others to take what they drop.
func (r *ClusterConfigReconciler) concerned(ctx context.Context, app client.Object) []reconcile.Request {
	owner := metav1.GetControllerOfNoCopy(app)
	if owner == nil || owner.Kind != clusterv1.ClusterConfigKind {
		return nil
	}
	configs := r.configs(ctx, app.GetNamespace())
	return r.selected(ctx, app.GetNamespace(), func(c *clusterv1.ClusterConfig) bool {
		return c.Name == owner.Name || r.dropping.is(client.ObjectKeyFromObject(c)) ||
			slices.ContainsFunc(r.sharing(c, configs), func(other *clusterv1.ClusterConfig) bool { return other.Name == owner.Name })
	})
}

// configs returns the ClusterConfigs of a namespace, from the cache.
func (r *ClusterConfigReconciler) configs(ctx context.Context, namespace string) []*clusterv1.ClusterConfig {
	var list clusterv1.ClusterConfigList
	if err := r.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache knows no error but a missing index
	}
	return pointers(list.Items)
}
