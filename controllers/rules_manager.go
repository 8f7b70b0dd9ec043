package controllers

import (
	"context"

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
func (r *RulesReconciler[T]) SetupWithManager(mgr ctrl.Manager, opts controller.Options) error {
	changed := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicates.ReconcileRequestedPredicate{}, predicate.AnnotationChangedPredicate{}))
	owner := handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), r.kind.new(), handler.OnlyControllerOwner())
	return ctrl.NewControllerManagedBy(mgr).
		For(r.kind.new(), changed).
		Watches(&appsv1.Application{}, owner).
		Watches(&sourcev1.ExternalArtifact{}, owner).
		Watches(&policyv1.ChangeBudget{}, handler.EnqueueRequestsFromMapFunc(r.inNamespace)).
		// Whose plugins' namespaces are left alone, and who brings Kyverno.
		Watches(&fleetv1.Fleet{}, whenSettled(r.inNamespace), changed).
		Watches(&clusterv1.AttachedCluster{}, whenSettled(r.inNamespace), builder.WithPredicates(memberChanged{})).
		Watches(&clusterv1.Cluster{}, whenSettled(r.inNamespace), builder.WithPredicates(memberChanged{})).
		Watches(&kustomizev1.Kustomization{}, whenSettled(r.ownerOf)).
		WatchesRawSource(r.Plugins.Changes(r.in)).
		WatchesRawSource(r.Reports.changes(r.kind.name)).
		WithOptions(opts).
		Complete(r)
}

func (r *RulesReconciler[T]) inNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	return r.in(ctx, o.GetNamespace())
}

// in returns the objects of a namespace, or of all.
func (r *RulesReconciler[T]) in(ctx context.Context, namespace string) []reconcile.Request {
	return rulesIn(ctx, r.Client, r.kind, namespace)
}

func rulesIn[T ruled](ctx context.Context, c client.Reader, kind ruleKind[T], namespace string) (requests []reconcile.Request) {
	all, err := kind.list(ctx, c, client.InNamespace(namespace), client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil // the cache knows no error
	}
	for _, o := range all {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
	}
	return requests
}

// ownerOf returns the object that a Kustomization of one of its Applications is for.
func (r *RulesReconciler[T]) ownerOf(ctx context.Context, o client.Object) []reconcile.Request {
	app := &appsv1.Application{}
	name := ownerName(o)
	if name == "" || r.Get(ctx, types.NamespacedName{Namespace: o.GetNamespace(), Name: name}, app, client.UnsafeDisableDeepCopyOption(true)) != nil {
		return nil
	}
	owner := metav1.GetControllerOfNoCopy(app)
	if owner == nil || owner.Kind != r.kind.name {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: owner.Name}}}
}
