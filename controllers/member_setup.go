package controllers

import (
	"context"
	"fmt"
	"slices"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
)

// secretIndex finds the members that refer to a Secret.
const secretIndex = ".kubeconfigSecret"

// memberKind is what differs between the kinds of members when they are watched.
type memberKind struct {
	name     string
	object   client.Object
	list     client.ObjectList
	secretOf client.IndexerFunc
	// changed lets through the changes of a member that matter.
	changed predicate.Predicate
}

// setup watches the members of a kind, the Secrets that they refer to, and the end of what is generated for them, with
// what keeps it from ending.
func (k memberKind) setup(ctx context.Context, mgr ctrl.Manager, opts controller.Options, r reconcile.Reconciler) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, k.object, secretIndex, k.secretBucket); err != nil {
		return fmt.Errorf("indexing %ss by Secret: %w", k.name, err)
	}
	ends, ended := childEnds(k.name)
	return ctrl.NewControllerManagedBy(mgr).
		For(k.object, builder.WithPredicates(k.changed)).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(k.referring(mgr.GetClient()))).
		Watches(&kustomizev1.Kustomization{}, ends, builder.WithPredicates(ended)).
		Watches(&helmv2.HelmRelease{}, ends, builder.WithPredicates(ended)).
		Watches(&appsv1.Application{}, handler.EnqueueRequestsFromMapFunc(k.leaving(mgr.GetClient())), builder.WithPredicates(pruneBlocked())).
		WithOptions(opts).
		Complete(r)
}

func (k memberKind) secretBucket(o client.Object) []string {
	names := k.secretOf(o)
	for i := range names {
		names[i] = bucket(names[i])
	}
	return names
}

// referring returns the members that refer to a Secret.
func (k memberKind) referring(c client.Reader) handler.MapFunc {
	return func(ctx context.Context, secret client.Object) []reconcile.Request {
		return k.members(ctx, c, func(m client.Object) bool { return slices.Contains(k.secretOf(m), secret.GetName()) },
			client.InNamespace(secret.GetNamespace()), client.MatchingFields{secretIndex: bucket(secret.GetName())})
	}
}

// leaving returns the members that are being deleted and may wait for an Application.
func (k memberKind) leaving(c client.Reader) handler.MapFunc {
	return func(ctx context.Context, app client.Object) []reconcile.Request {
		return k.members(ctx, c, deleting, client.InNamespace(app.GetNamespace()))
	}
}

// members returns those of the listed members that are wanted.
func (k memberKind) members(ctx context.Context, c client.Reader, wanted func(client.Object) bool, opts ...client.ListOption) (requests []reconcile.Request) {
	list := k.list.DeepCopyObject().(client.ObjectList)
	if err := c.List(ctx, list, append(opts, client.UnsafeDisableDeepCopy)...); err != nil {
		return nil // the cache knows no error but a missing index
	}
	_ = apimeta.EachListItem(list, func(o runtime.Object) error {
		if m := o.(client.Object); wanted(m) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)})
		}
		return nil
	})
	return requests
}

// declarationChanged lets everything pass but changes of the status, most of which are our own.
func declarationChanged() predicate.Predicate {
	return predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, predicate.LabelChangedPredicate{})
}
