package controllers

import (
	"context"
	"slices"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/baseline"
	"github.com/fleetwright/fleetwright/renderers/member"
)

// sharing returns the other ClusterConfigs that want an object which this one wants, on whichever members.
func (r *ClusterConfigReconciler) sharing(config *clusterv1.ClusterConfig, configs []*clusterv1.ClusterConfig) []*clusterv1.ClusterConfig {
	own := r.Baselines.Delivered(config)
	if own == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(configs), func(other *clusterv1.ClusterConfig) bool {
		if other.Name == config.Name || deleting(other) {
			return true
		}
		theirs := r.Baselines.Delivered(other)
		return theirs == nil || !own.Shares(theirs)
	})
}

// conflicts returns what this ClusterConfig and others want on the same members. One that is being deleted wants nothing.
func (r *ClusterConfigReconciler) conflicts(ctx context.Context, config *clusterv1.ClusterConfig) ([]baseline.Conflict, error) {
	sharing := r.sharing(config, r.configs(ctx, config.Namespace))
	if len(sharing) == 0 {
		return nil, nil
	}
	var wants []baseline.Wants
	for _, c := range append(sharing, config) {
		rendered := r.Baselines.Delivered(c)
		if rendered == nil || rendered.Application == nil {
			continue
		}
		members, err := r.targets(ctx, c)
		if err != nil {
			return nil, err
		}
		wants = append(wants, baseline.Wants{Config: c, Objects: rendered.Objects, Members: members})
	}
	return baseline.Conflicts(wants), nil
}

// targets returns the members that a ClusterConfig goes to.
func (r *ClusterConfigReconciler) targets(ctx context.Context, config *clusterv1.ClusterConfig) ([]member.Key, error) {
	clusters, err := listClusters(ctx, r.Client, config.Namespace)
	if err != nil {
		return nil, err
	}
	fleets := map[string]*fleetv1.Fleet{}
	if name := config.Spec.Target.Fleet; name != "" {
		fleet := &fleetv1.Fleet{}
		err := r.Get(ctx, client.ObjectKey{Namespace: config.Namespace, Name: name}, fleet, client.UnsafeDisableDeepCopyOption(true))
		if client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		if err == nil {
			fleets[name] = fleet
		}
	}
	members := baseline.Targets(config, fleets, clusters)
	// Where it is delivered still, because its fleet is gone or the budget holds it, it counts as well.
	d, err := r.delivered(ctx, config.Namespace, config.Name)
	if err != nil {
		return nil, err
	}
	for m := range d.children {
		if !slices.Contains(members, m) {
			members = append(members, m)
		}
	}
	return members, nil
}

// delivered is what a ClusterConfig has on the members by now.
type delivered struct {
	revision string // what it is to be
	children map[member.Key]*kustomizev1.Kustomization
}

func (r *ClusterConfigReconciler) delivered(ctx context.Context, namespace, config string) (*delivered, error) {
	d := &delivered{children: map[member.Key]*kustomizev1.Kustomization{}}
	for _, c := range r.configs(ctx, namespace) {
		if c.Name == config {
			if rendered, err := r.Baselines.Render(c); err == nil {
				d.revision = rendered.Revision
			}
		}
	}
	var list kustomizev1.KustomizationList
	opts := []client.ListOption{client.InNamespace(namespace), client.MatchingFields{ownerIndex: baseline.Name(config)}, client.UnsafeDisableDeepCopy}
	if err := r.List(ctx, &list, opts...); err != nil {
		return nil, err
	}
	for i := range list.Items {
		d.children[memberOf(&list.Items[i])] = &list.Items[i]
	}
	return d, nil
}
