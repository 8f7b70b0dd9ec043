package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/baseline"
	"github.com/fleetwright/fleetwright/renderers/member"
)

// sharing returns the other ClusterConfigs that want, or may have on members, an object which this one does, too.
func (r *ClusterConfigReconciler) sharing(config *clusterv1.ClusterConfig, configs []*clusterv1.ClusterConfig) []*clusterv1.ClusterConfig {
	own := map[baseline.Key]bool{}
	for _, o := range r.Baselines.objects(config) {
		own[baseline.KeyOf(o)] = true
	}
	return slices.DeleteFunc(slices.Clone(configs), func(other *clusterv1.ClusterConfig) bool {
		return other.Name == config.Name || !slices.ContainsFunc(r.Baselines.objects(other), func(o *unstructured.Unstructured) bool { return own[baseline.KeyOf(o)] })
	})
}

// objects returns all that may be on members, or is to be.
func (b *Baselines) objects(config *clusterv1.ClusterConfig) []*unstructured.Unstructured {
	m := b.onMembers(config)
	if m.delivered == nil {
		return m.left
	}
	return append(m.left, m.delivered.Objects...)
}

// shares returns what this ClusterConfig and those that share objects with it want, and how it is on the members.
func (r *ClusterConfigReconciler) shares(ctx context.Context, config *clusterv1.ClusterConfig) (baseline.Shares, error) {
	configs := r.configs(ctx, config.Namespace)
	for _, c := range configs {
		if err := r.find(ctx, c); err != nil {
			return nil, err
		}
	}
	return r.sharesOf(ctx, append(r.sharing(config, configs), config))
}

func (r *ClusterConfigReconciler) sharesOf(ctx context.Context, configs []*clusterv1.ClusterConfig) (baseline.Shares, error) {
	var all []baseline.Wants
	for _, c := range configs {
		w, err := r.wants(ctx, c)
		if err != nil {
			return nil, err
		}
		all = append(all, *w)
	}
	return baseline.NewShares(all), nil
}

// find looks up what an earlier process has applied for a ClusterConfig, where it is not what this one would: in the
// inventories of its Kustomizations, once, as the cache has not got them.
func (r *ClusterConfigReconciler) find(ctx context.Context, config *clusterv1.ClusterConfig) error {
	on := r.Baselines.onMembers(config)
	if on.known {
		return nil
	}
	children, err := r.children(ctx, config)
	if err != nil {
		return err
	}
	if on.err == nil && !slices.ContainsFunc(children, func(k *kustomizev1.Kustomization) bool { return k.Status.LastAppliedRevision != on.delivered.Revision }) {
		r.Baselines.arrived(config)
		return nil
	}
	var list kustomizev1.KustomizationList
	if err := r.APIReader.List(ctx, &list, client.InNamespace(config.Namespace), client.MatchingLabels{appsv1.ApplicationLabel: baseline.Name(config.Name)}); err != nil {
		return err
	}
	var found []*unstructured.Unstructured
	for i := range list.Items {
		found = append(found, inventory(&list.Items[i])...)
	}
	r.Baselines.found(config, found)
	return nil
}

// inventory returns the names of what Flux has applied for a Kustomization, and would prune with it.
func inventory(k *kustomizev1.Kustomization) []*unstructured.Unstructured {
	if k.Status.Inventory == nil {
		return nil
	}
	var out []*unstructured.Unstructured
	for _, e := range k.Status.Inventory.Entries {
		id := strings.Split(e.ID, "_") // namespace, name, group, kind; a colon in a name is written as two underscores
		if len(id) < 4 {
			continue
		}
		o := &unstructured.Unstructured{}
		n := len(id)
		o.SetAPIVersion(strings.TrimPrefix(id[n-2]+"/"+e.Version, "/"))
		o.SetKind(id[n-1])
		o.SetNamespace(id[0])
		o.SetName(strings.ReplaceAll(strings.Join(id[1:n-2], "_"), "__", ":"))
		out = append(out, o)
	}
	return out
}

// children returns the Kustomizations of what a ClusterConfig renders, from the cache, without those that end.
func (r *ClusterConfigReconciler) children(ctx context.Context, config *clusterv1.ClusterConfig) ([]*kustomizev1.Kustomization, error) {
	var list kustomizev1.KustomizationList
	opts := []client.ListOption{client.InNamespace(config.Namespace), client.MatchingFields{ownerIndex: baseline.Name(config.Name)}, client.UnsafeDisableDeepCopy}
	if err := r.List(ctx, &list, opts...); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(pointers(list.Items), func(k *kustomizev1.Kustomization) bool { return deleting(k) }), nil
}

// wants returns what a ClusterConfig wants, and how it is on the members.
func (r *ClusterConfigReconciler) wants(ctx context.Context, config *clusterv1.ClusterConfig) (*baseline.Wants, error) {
	children, err := r.children(ctx, config)
	if err != nil {
		return nil, err
	}
	on := r.Baselines.onMembers(config)
	published, err := r.published(ctx, config)
	if err != nil {
		return nil, err
	}
	w := &baseline.Wants{Config: config, Left: on.left, Children: map[member.Key]*baseline.Child{}}
	if on.delivered != nil {
		w.Objects = on.delivered.Objects
	} else {
		w.Objects, w.Left, w.Unknown = on.left, nil, true
	}
	if on.err == nil && published != on.delivered.Revision {
		w.Pending = map[baseline.Key]bool{}
		for _, o := range w.Objects {
			w.Pending[baseline.KeyOf(o)] = true
		}
		for _, o := range r.Baselines.before(config) {
			delete(w.Pending, baseline.KeyOf(o))
		}
	} else if on.err == nil && !slices.ContainsFunc(children, func(k *kustomizev1.Kustomization) bool { return k.Status.LastAppliedRevision != published }) {
		r.Baselines.arrived(config)
		w.Left = nil
	}
	unrendered, err := r.unrendered(ctx, config)
	if err != nil {
		return nil, err
	}
	for _, k := range children {
		w.Children[memberOf(k)] = childOf(k, unrendered[memberOf(k)])
	}
	members, unknown, err := r.targets(ctx, config)
	if err != nil {
		return nil, err
	}
	switch {
	case deleting(config):
		w.Frozen = "it is being deleted"
	case suspended(config, config.Spec.Suspend):
		w.Frozen = "it is suspended: resume it"
	case on.err != nil:
		w.Frozen = "it is invalid: mend it"
	default:
		w.Frozen = unknown
	}
	if !deleting(config) {
		w.Members = members
	} else {
		w.Left, w.Objects = append(w.Objects, w.Left...), nil
	}
	if w.Frozen == "" || deleting(config) {
		return w, nil
	}
	// Who cannot be told keeps what it has, wherever that is.
	for _, k := range children {
		if m := memberOf(k); !slices.Contains(w.Members, m) && !r.leaves(ctx, config.Namespace, m) {
			w.Members = append(w.Members, m)
		}
	}
	return w, nil
}

// published returns the revision that Flux is to apply; empty if there is none.
func (r *ClusterConfigReconciler) published(ctx context.Context, config *clusterv1.ClusterConfig) (string, error) {
	ea := &sourcev1.ExternalArtifact{}
	if err := r.Get(ctx, artifactKey(client.ObjectKeyFromObject(config)), ea, client.UnsafeDisableDeepCopyOption(true)); err != nil || ea.Status.Artifact == nil {
		return "", client.IgnoreNotFound(err)
	}
	return ea.Status.Artifact.Revision, nil
}

// unrendered says for which members the Application of a ClusterConfig cannot be rendered, so that they keep what they have.
func (r *ClusterConfigReconciler) unrendered(ctx context.Context, config *clusterv1.ClusterConfig) (map[member.Key]string, error) {
	app := &appsv1.Application{}
	err := r.Get(ctx, artifactKey(client.ObjectKeyFromObject(config)), app, client.UnsafeDisableDeepCopyOption(true))
	out := map[member.Key]string{}
	for _, m := range app.Status.Members.NotReady {
		if m.Reason == application.RenderFailedReason {
			out[member.Key{Kind: m.Kind, Name: m.Name}] = m.Message
		}
	}
	return out, client.IgnoreNotFound(err)
}

// childOf returns what of a Kustomization matters to others.
func childOf(k *kustomizev1.Kustomization, unrendered string) *baseline.Child {
	c := &baseline.Child{Name: k.Name, Marks: baseline.Marks(k.Spec.Patches), Frozen: unrendered}
	ready := apimeta.FindStatusCondition(k.Status.Conditions, meta.ReadyCondition)
	of := k.Status.ObservedGeneration
	if ready != nil {
		of = max(of, ready.ObservedGeneration)
	}
	c.Seen = of >= k.Generation || k.Generation == 1 // the first it can see
	// What is applied and not healthy, or could not prune all, was applied.
	c.Told = k.Status.ObservedGeneration >= k.Generation || ready != nil && ready.Status == metav1.ConditionFalse && ready.ObservedGeneration >= k.Generation &&
		slices.Contains([]string{meta.HealthCheckFailedReason, meta.HealthCheckCanceledReason, meta.PruneFailedReason}, ready.Reason)
	if ready != nil && ready.Status == metav1.ConditionFalse && of >= k.Generation {
		c.Status = shorten(ready.Message)
	}
	if fluxSuspended(k) {
		c.Frozen = fmt.Sprintf("it is suspended: flux resume kustomization %s -n %s", k.Name, k.Namespace)
	}
	return c
}

// leaves says whether a cluster is being deleted: what is on it is to end.
func (r *ClusterConfigReconciler) leaves(ctx context.Context, namespace string, m member.Key) bool {
	var o client.Object = &clusterv1.AttachedCluster{}
	if m.Kind == clusterv1.ClusterKind {
		o = &clusterv1.Cluster{}
	}
	return r.Get(ctx, client.ObjectKey{Namespace: namespace, Name: m.Name}, o) == nil && deleting(o)
}

// targets returns the members that a ClusterConfig goes to, or why they are not known.
func (r *ClusterConfigReconciler) targets(ctx context.Context, config *clusterv1.ClusterConfig) (members []member.Key, unknown string, err error) {
	clusters, err := listClusters(ctx, r.Client, config.Namespace)
	if err != nil {
		return nil, "", err
	}
	fleets := map[string]*fleetv1.Fleet{}
	if name := config.Spec.Target.Fleet; name != "" {
		fleet := &fleetv1.Fleet{}
		err := r.Get(ctx, client.ObjectKey{Namespace: config.Namespace, Name: name}, fleet, client.UnsafeDisableDeepCopyOption(true))
		switch {
		case client.IgnoreNotFound(err) != nil:
			return nil, "", err
		case err != nil:
			unknown = fmt.Sprintf("there is no Fleet %s", name)
		case deleting(fleet):
			unknown = fmt.Sprintf("its Fleet %s is being deleted", name)
		case suspended(fleet, fleet.Spec.Suspend):
			unknown = fmt.Sprintf("its Fleet %s is suspended: resume it", name)
		}
		if err == nil {
			fleets[name] = fleet
			if _, err := member.Resolve(fleet, clusters); err != nil {
				unknown = fmt.Sprintf("its Fleet %s is invalid: mend it", name)
			}
		}
	}
	return baseline.Targets(config, fleets, clusters), unknown, nil
}

// reportConflict says what a ClusterConfig that is not delivered now and others do not agree on.
func (r *ClusterConfigReconciler) reportConflict(ctx context.Context, config *clusterv1.ClusterConfig) error {
	shares, err := r.shares(ctx, config)
	if err == nil {
		setConflict(config, shares.Conflicts())
	}
	return err
}
