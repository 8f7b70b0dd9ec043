package controllers

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
)

// +kubebuilder:rbac:groups=cluster.kurator.dev,resources=attachedclusters,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=cluster.kurator.dev,resources=attachedclusters/status,verbs=patch
// +kubebuilder:rbac:groups=kustomize.toolkit.fluxcd.io,resources=kustomizations,verbs=get;list;watch
// +kubebuilder:rbac:groups=helm.toolkit.fluxcd.io,resources=helmreleases,verbs=get;list;watch
// +kubebuilder:rbac:groups=apps.kurator.dev,resources=applications,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// AttachedClusterReconciler looks after the health of AttachedClusters.
type AttachedClusterReconciler struct{ MemberReconciler }

// Reconcile looks at one AttachedCluster, if that is due.
func (r *AttachedClusterReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	c := &clusterv1.AttachedCluster{}
	if err := r.Get(ctx, req.NamespacedName, c); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.forget(clusterv1.AttachedClusterKind, req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	return r.reconcile(ctx, attachedSubject(c))
}

func attachedSubject(c *clusterv1.AttachedCluster) *subject {
	return &subject{
		object:    c,
		kind:      clusterv1.AttachedClusterKind,
		health:    &c.Status.MemberHealth,
		check:     c.Spec.HealthCheck,
		secret:    c.Spec.Kubeconfig,
		configMap: c.Spec.ConfigMapRef,
	}
}

// SetupWithManager starts the controller with the manager.
func (r *AttachedClusterReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, opts controller.Options) error {
	return memberKind{
		name:     clusterv1.AttachedClusterKind,
		object:   &clusterv1.AttachedCluster{},
		list:     &clusterv1.AttachedClusterList{},
		secretOf: attachedClusterSecret,
		changed:  declarationChanged(),
	}.setup(ctx, mgr, opts, r)
}

func attachedClusterSecret(o client.Object) []string {
	if ref := o.(*clusterv1.AttachedCluster).Spec.Kubeconfig; ref != nil {
		return []string{ref.Name}
	}
	return nil
}
