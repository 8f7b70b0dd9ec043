package controllers

import (
	"context"
	"fmt"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
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
	if len(apps) > 0 {
		if err := r.delivery(config).end(ctx, apps, nil); err != nil {
			return err
		}
		var texts []string
		for i := range apps {
			text := "was asked to end" // until it says how that goes, it says how the members were
			if deleting(&apps[i]) {
				text = conditions.GetMessage(&apps[i], meta.ReadyCondition)
			}
			texts = append(texts, fmt.Sprintf("Application %s: %s", apps[i].Name, text))
		}
		setConfigEnding(config, "ends on the members: "+strings.Join(texts, "; "))
		return nil
	}
	before := config.DeepCopy()
	controllerutil.RemoveFinalizer(config, ClusterConfigFinalizer)
	return client.IgnoreNotFound(r.Patch(ctx, config, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(FieldOwner)))
}

func setConfigEnding(config *clusterv1.ClusterConfig, message string) {
	message = bounded(message, 2000)
	conditions.MarkReconciling(config, endingReason, "%s", message)
	conditions.MarkFalse(config, meta.ReadyCondition, endingReason, "%s", message)
}
