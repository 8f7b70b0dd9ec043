package controllers

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
)

// finalize ends the Applications, and with them what is on the members, and then the ClusterConfig. The artifact goes
// with its owner: ending needs no source.
func (r *ClusterConfigReconciler) finalize(ctx context.Context, config *clusterv1.ClusterConfig) error {
	if !controllerutil.ContainsFinalizer(config, ClusterConfigFinalizer) {
		return nil
	}
	apps, err := r.applications(ctx, config)
	if err != nil {
		return err
	}
	ends, err := r.delivery(config).endAll(ctx, apps)
	if err != nil {
		return err
	}
	if ends != "" {
		setEnds(config, ends)
		return nil
	}
	before := config.DeepCopy()
	controllerutil.RemoveFinalizer(config, ClusterConfigFinalizer)
	return client.IgnoreNotFound(r.Patch(ctx, config, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(FieldOwner)))
}
