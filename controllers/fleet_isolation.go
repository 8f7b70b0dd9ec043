package controllers

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/baseline"
)

// isolate brings the ClusterConfig that isolates the namespaces of a fleet's members to what the fleet declares.
func (r *FleetReconciler) isolate(ctx context.Context, fleet *fleetv1.Fleet) error {
	var configs clusterv1.ClusterConfigList
	if err := r.List(ctx, &configs, client.InNamespace(fleet.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	wanted := baseline.Isolation(fleet, pointers(configs.Items))
	live := &clusterv1.ClusterConfig{}
	err := r.Get(ctx, types.NamespacedName{Namespace: fleet.Namespace, Name: baseline.IsolationName(fleet.Name)}, live, client.UnsafeDisableDeepCopyOption(true))
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	there := err == nil
	owner := metav1.GetControllerOfNoCopy(live)
	ours := there && owner != nil && owner.Kind == fleetv1.FleetKind && owner.Name == fleet.Name
	switch {
	case wanted == nil && (!ours || deleting(live)):
		return nil
	case wanted == nil:
		gone := &clusterv1.ClusterConfig{}
		gone.Name, gone.Namespace = live.Name, live.Namespace
		return client.IgnoreNotFound(r.Delete(ctx, gone, client.Preconditions{UID: &live.UID}))
	case there && !ours:
		return fmt.Errorf("ClusterConfig %s %w: rename it", live.Name, errNotOurs)
	}
	body, declared, err := declare(fleet, fleetv1.GroupVersion.WithKind(fleetv1.FleetKind), clusterv1.GroupVersion.WithKind(clusterv1.ClusterConfigKind), wanted.Name, wanted.Spec)
	if err != nil {
		return err
	}
	if there && (deleting(live) || isDeclared(declared, live, live.Spec)) {
		return nil
	}
	err = applyBody(ctx, r.Client, body, there)
	if apierrors.IsConflict(err) && !there {
		return fmt.Errorf("ClusterConfig %s %w: rename it", wanted.Name, errNotOurs)
	}
	return err
}

// fleetOf returns the fleet that a ClusterConfig is for.
func fleetOf(_ context.Context, o client.Object) []reconcile.Request {
	name := o.(*clusterv1.ClusterConfig).Spec.Target.Fleet
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
}
