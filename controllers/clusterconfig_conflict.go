package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/baseline"
	"github.com/fleetwright/fleetwright/renderers/member"
)

// sharing returns the other ClusterConfigs that want, or may have, an object which this one wants, on whichever members.
func (r *ClusterConfigReconciler) sharing(config *clusterv1.ClusterConfig, configs []*clusterv1.ClusterConfig) []*clusterv1.ClusterConfig {
	own := r.Baselines.Delivered(config)
	if own == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(configs), func(other *clusterv1.ClusterConfig) bool {
		if other.Name == config.Name || deleting(other) {
			return true
		}
		if r.Baselines.isUnknown(other) || suspended(other, other.Spec.Suspend) || r.dropping.is(client.ObjectKeyFromObject(other)) {
			return false // what it has is not what it declares
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
		w, err := r.wants(ctx, c)
		if err != nil {
			return nil, err
		}
		wants = append(wants, *w)
	}
	return slices.DeleteFunc(baseline.Conflicts(wants), func(c baseline.Conflict) bool {
		return c.Holder.Name != config.Name && c.Loser.Name != config.Name
	}), nil
}

// wants returns what a ClusterConfig wants on which members, and where what it applies cannot be changed now.
func (r *ClusterConfigReconciler) wants(ctx context.Context, config *clusterv1.ClusterConfig) (*baseline.Wants, error) {
	w := &baseline.Wants{Config: config, Frozen: map[member.Key]*baseline.Frozen{}}
	if rendered := r.Baselines.Delivered(config); rendered != nil {
		w.Objects = rendered.Objects
	}
	d, err := r.delivered(ctx, config.Namespace, config.Name)
	if err != nil {
		return nil, err
	}
	why, err := r.frozen(ctx, config)
	if err != nil {
		return nil, err
	}
	if _, invalid := r.Baselines.Render(config); invalid == nil {
		if w.Members, err = r.targets(ctx, config); err != nil {
			return nil, err
		}
	}
	for _, m := range w.Members {
		if why != "" {
			w.Frozen[m] = &baseline.Frozen{Why: why}
		}
	}
	app := &appsv1.Application{}
	key := artifactKey(client.ObjectKeyFromObject(config))
	if err := r.Get(ctx, key, app, client.UnsafeDisableDeepCopyOption(true)); client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	unrendered := map[member.Key]string{}
	for _, m := range app.Status.Members.NotReady {
		if m.Reason == application.RenderFailedReason {
			unrendered[member.Key{Kind: m.Kind, Name: m.Name}] = "it cannot be rendered for this member: " + m.Message
		}
	}
	anywhere := false
	for m, child := range d.children {
		f := &baseline.Frozen{Why: cmp.Or(why, unrendered[m])}
		if fluxSuspended(child) {
			f.Why = fmt.Sprintf("Kustomization %s is suspended: flux resume kustomization %s -n %s", child.Name, child.Name, child.Namespace)
		}
		// Where it is delivered still, because its fleet is gone or the budget holds it, it counts as well.
		if !slices.Contains(w.Members, m) {
			w.Members = append(w.Members, m)
		}
		if f.Why == "" || deleting(child) {
			continue
		}
		anywhere = true
		if f.Has, err = r.inventories.of(ctx, r.Keeper.APIReader, key, child); err != nil {
			return nil, err
		}
		f.Marks = baseline.Marks(child.Spec.Patches)
		w.Frozen[m] = f
	}
	if !anywhere {
		r.inventories.forget(key)
	}
	return w, nil
}

// frozen says why what a ClusterConfig applies does not change now, and what to do; empty if it does.
func (r *ClusterConfigReconciler) frozen(ctx context.Context, config *clusterv1.ClusterConfig) (string, error) {
	if suspended(config, config.Spec.Suspend) {
		return "it is suspended: resume it", nil
	}
	if _, err := r.Baselines.Render(config); err != nil {
		return "it is invalid: mend it", nil //nolint:nilerr // that is what is said
	}
	name := config.Spec.Target.Fleet
	if name == "" {
		return "", nil
	}
	fleets, err := fleetOfConfig(ctx, r.Client, config)
	if err != nil {
		return "", err
	}
	switch fleet := fleets[name]; {
	case fleet == nil:
		return fmt.Sprintf("there is no Fleet %s: create it", name), nil
	case deleting(fleet):
		return fmt.Sprintf("Fleet %s is being deleted", name), nil
	case suspended(fleet, fleet.Spec.Suspend):
		return fmt.Sprintf("Fleet %s is suspended: resume it", name), nil
	}
	return "", nil
}

// inventories remembers what Flux has applied for Kustomizations, by the names of their Applications: the cache has not
// got it, and it is read only where it matters.
type inventories struct {
	mu sync.Mutex
	m  map[types.NamespacedName]map[string]map[baseline.Key]*unstructured.Unstructured
}

// of returns what Flux has applied for a Kustomization of the cache.
func (i *inventories) of(ctx context.Context, reader client.Reader, app types.NamespacedName, child *kustomizev1.Kustomization) (map[baseline.Key]*unstructured.Unstructured, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if has, ok := i.m[app][inventoryVersion(child)]; ok {
		return has, nil
	}
	var list kustomizev1.KustomizationList
	if err := reader.List(ctx, &list, client.InNamespace(app.Namespace), client.MatchingLabels{appsv1.ApplicationLabel: app.Name}); err != nil {
		return nil, err
	}
	if i.m == nil {
		i.m = map[types.NamespacedName]map[string]map[baseline.Key]*unstructured.Unstructured{}
	}
	i.m[app] = map[string]map[baseline.Key]*unstructured.Unstructured{}
	found := map[baseline.Key]*unstructured.Unstructured{}
	for n := range list.Items {
		has := map[baseline.Key]*unstructured.Unstructured{}
		for _, o := range inventory(&list.Items[n]) {
			has[baseline.KeyOf(o)] = o
		}
		i.m[app][inventoryVersion(&list.Items[n])] = has
		if list.Items[n].UID == child.UID {
			found = has
		}
	}
	return found, nil
}

func (i *inventories) forget(app types.NamespacedName) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.m, app)
}

// inventoryVersion changes with what Flux has applied.
func inventoryVersion(child *kustomizev1.Kustomization) string {
	return fmt.Sprintf("%s/%d/%d/%s", child.UID, child.Generation, child.Status.ObservedGeneration, child.Status.LastAppliedRevision)
}

// targets returns the members that a ClusterConfig goes to.
func (r *ClusterConfigReconciler) targets(ctx context.Context, config *clusterv1.ClusterConfig) ([]member.Key, error) {
	clusters, err := listClusters(ctx, r.Client, config.Namespace)
	if err != nil {
		return nil, err
	}
	fleets, err := fleetOfConfig(ctx, r.Client, config)
	if err != nil {
		return nil, err
	}
	return baseline.Targets(config.Spec.Target, fleets, clusters), nil
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
