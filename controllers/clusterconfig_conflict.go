package controllers

import (
	"context"
	"fmt"
	"slices"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/kustomize"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/baseline"
	"github.com/fleetwright/fleetwright/renderers/member"
)

// sharing returns the other ClusterConfigs that want an object which this one wants, on whichever members.
func (r *ClusterConfigReconciler) sharing(config *clusterv1.ClusterConfig, configs []*clusterv1.ClusterConfig) []*clusterv1.ClusterConfig {
	own, err := r.Baselines.Render(config)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(configs), func(other *clusterv1.ClusterConfig) bool {
		if other.Name == config.Name || deleting(other) {
			return true
		}
		theirs, err := r.Baselines.Render(other)
		return err != nil || !own.Shares(theirs)
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
		rendered, err := r.Baselines.Render(c)
		if err != nil || rendered.Application == nil {
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
	return baseline.Targets(config, fleets, clusters), nil
}

// withoutLosses returns the Application that delivers a ClusterConfig, without the objects that another one has on a member.
//
// What this one has applied there is given up only when the other one has applied it: Flux prunes what is taken out of a
// Kustomization, unless it belongs to another one by then.
func (r *ClusterConfigReconciler) withoutLosses(ctx context.Context, config *clusterv1.ClusterConfig, rendered *baseline.Rendered, conflicts []baseline.Conflict) (*appsv1.Application, error) {
	if len(conflicts) == 0 || rendered.Application == nil {
		return rendered.Application, nil
	}
	own, err := r.delivered(ctx, config.Namespace, config.Name)
	if err != nil {
		return nil, err
	}
	holders := map[string]*delivered{}
	var losses []baseline.Loss
	for _, loss := range baseline.Losses(conflicts, config.Name) {
		if holders[loss.Holder] == nil {
			if holders[loss.Holder], err = r.delivered(ctx, config.Namespace, loss.Holder); err != nil {
				return nil, err
			}
		}
		holder := holders[loss.Holder]
		loss.Members = slices.DeleteFunc(slices.Clone(loss.Members), func(m member.Key) bool {
			return own.has(loss.Object, m) && !holder.arrived(loss.Object, m)
		})
		if len(loss.Members) > 0 {
			losses = append(losses, loss)
		}
	}
	return rendered.Without(losses), nil
}

// delivered is what a ClusterConfig has on the members by now.
type delivered struct {
	app      *appsv1.Application // nil if there is none
	revision string
	objects  []*unstructured.Unstructured
	children map[member.Key]*kustomizev1.Kustomization
}

func (r *ClusterConfigReconciler) delivered(ctx context.Context, namespace, config string) (*delivered, error) {
	name := baseline.Name(config)
	d := &delivered{children: map[member.Key]*kustomizev1.Kustomization{}}
	app := &appsv1.Application{}
	if err := r.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, app, client.UnsafeDisableDeepCopyOption(true)); err == nil {
		d.app = app
	} else if client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	for _, c := range r.configs(ctx, namespace) {
		if c.Name == config {
			if rendered, err := r.Baselines.Render(c); err == nil {
				d.revision, d.objects = rendered.Revision, rendered.Objects
			}
		}
	}
	var list kustomizev1.KustomizationList
	if err := r.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{ownerIndex: name}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	for i := range list.Items {
		d.children[memberOf(&list.Items[i])] = &list.Items[i]
	}
	return d, nil
}

// has says whether an object may have been applied to a member: there is a child, and it is not to leave the object out.
func (d *delivered) has(object *unstructured.Unstructured, m member.Key) bool {
	if d.children[m] == nil || d.app == nil || len(d.app.Spec.SyncPolicies) == 0 {
		return false
	}
	return !slices.ContainsFunc(d.app.Spec.SyncPolicies[0].Overrides, func(o appsv1.Override) bool {
		return o.Kustomization != nil && slices.Contains(o.Clusters, m.Name) && d.leaveOut(o.Kustomization.Patches, object)
	})
}

// arrived says whether a member has what is declared now, and an object with it. What counts is the child that Flux has
// applied: one that left the object out until now, to another one, is not brought up to date at once, and is Ready meanwhile.
func (d *delivered) arrived(object *unstructured.Unstructured, m member.Key) bool {
	child := d.children[m]
	return child != nil && d.app != nil && d.app.Status.ObservedGeneration == d.app.Generation &&
		isTrue(fluxReady(child)) && child.Status.LastAppliedRevision == d.revision && !d.leaveOut(child.Spec.Patches, object)
}

// leaveOut says whether patches leave an object to another ClusterConfig.
func (d *delivered) leaveOut(patches []kustomize.Patch, object *unstructured.Unstructured) bool {
	// The other one may want it in another version.
	if i := slices.IndexFunc(d.objects, func(o *unstructured.Unstructured) bool { return baseline.SameObject(o, object) }); i >= 0 {
		object = d.objects[i]
	}
	exclusion := baseline.Exclude([]*unstructured.Unstructured{object}, nil).Kustomization.Patches[0]
	return slices.ContainsFunc(patches, func(p kustomize.Patch) bool { return equality.Semantic.DeepEqual(p, exclusion) })
}

// takers says which ClusterConfig is to take over what this one, which is being deleted, has on a member, and has not
// done so yet; empty if none is. What ended before that would be gone from the member for a while.
func (r *ClusterConfigReconciler) takers(ctx context.Context, config *clusterv1.ClusterConfig) (string, error) {
	if config.Spec.DeletionPolicy == appsv1.DeletionPolicyOrphan {
		return "", nil
	}
	own, err := r.Baselines.Render(config)
	if err != nil { // then it has nothing that could be taken over
		return "", nil //nolint:nilerr // the status of its spec does not matter any more
	}
	mine, err := r.delivered(ctx, config.Namespace, config.Name)
	if err != nil {
		return "", err
	}
	for _, other := range r.sharing(config, r.configs(ctx, config.Namespace)) {
		theirs, err := r.delivered(ctx, config.Namespace, other.Name)
		if err != nil {
			return "", err
		}
		rendered, err := r.Baselines.Render(other)
		if err != nil || rendered.Application == nil || suspended(other, other.Spec.Suspend) {
			continue
		}
		conflicts, err := r.conflicts(ctx, other)
		if err != nil {
			return "", err
		}
		members, err := r.targets(ctx, other)
		if err != nil {
			return "", err
		}
		for _, m := range members {
			if mine.children[m] == nil {
				continue
			}
			for _, object := range own.SharedWith(rendered) {
				loses := slices.ContainsFunc(baseline.Losses(conflicts, other.Name), func(l baseline.Loss) bool {
					return baseline.SameObject(l.Object, object) && slices.Contains(l.Members, m)
				})
				if !loses && !theirs.arrived(object, m) {
					return fmt.Sprintf("waits for ClusterConfig %s to take over %s %s on %s", other.Name, object.GetKind(), object.GetName(), m.Name), nil
				}
			}
		}
	}
	return "", nil
}
