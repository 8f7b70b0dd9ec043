package controllers

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
)

// +kubebuilder:rbac:groups=cluster.kurator.dev,resources=clusters,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=cluster.kurator.dev,resources=clusters/status,verbs=patch

// ClusterReconciler looks after the health of Clusters. It makes none, and leaves alone what a provider writes into
// their status.
type ClusterReconciler struct{ MemberReconciler }

// Reconcile looks at one Cluster, if that is due.
func (r *ClusterReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	c := &clusterv1.Cluster{}
	if err := r.Get(ctx, req.NamespacedName, c); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.forget(clusterv1.ClusterKind, req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	return r.reconcile(ctx, clusterSubject(c))
}

func clusterSubject(c *clusterv1.Cluster) *subject {
	return &subject{
		object: c,
		kind:   clusterv1.ClusterKind,
		health: &c.Status.MemberHealth,
		check:  c.Spec.HealthCheck,
		secret: clusterKubeconfig(c),
	}
}

// SetupWithManager starts the controller with the manager.
func (r *ClusterReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, opts controller.Options) error {
	return memberKind{
		name:     clusterv1.ClusterKind,
		object:   &clusterv1.Cluster{},
		list:     &clusterv1.ClusterList{},
		secretOf: clusterSecret,
		changed:  predicate.Or(declarationChanged(), kubeconfigWritten()),
	}.setup(ctx, mgr, opts, r)
}

// clusterKubeconfig returns where the kubeconfig of a Cluster is: where its spec says, or else where its provider says.
func clusterKubeconfig(c *clusterv1.Cluster) *clusterv1.KubeconfigReference {
	switch {
	case c.Spec.KubeconfigRef != nil:
		return c.Spec.KubeconfigRef
	case c.Status.KubeconfigSecretRef != "":
		return &clusterv1.KubeconfigReference{Name: c.Status.KubeconfigSecretRef, Key: clusterv1.DefaultKubeconfigKey}
	}
	return nil
}

func clusterSecret(o client.Object) []string {
	if ref := clusterKubeconfig(o.(*clusterv1.Cluster)); ref != nil {
		return []string{ref.Name}
	}
	return nil
}

// kubeconfigWritten lets pass what a provider writes into the status that is of interest here.
func kubeconfigWritten() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		old, ok := e.ObjectOld.(*clusterv1.Cluster)
		if !ok {
			return false
		}
		return old.Status.KubeconfigSecretRef != e.ObjectNew.(*clusterv1.Cluster).Status.KubeconfigSecretRef
	}}
}
