package controllers

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/baseline"
	"github.com/fleetwright/fleetwright/renderers/member"
)

// Keeper sees to it that nothing goes from a member with one ClusterConfig that another one wants there.
//
// Flux prunes what its labels on the member call a Kustomization's own, and leaves what is annotated prune: disabled. So
// before a Kustomization ends, or drops an object, it has to have applied that annotation.
type Keeper struct {
	client.Client
	// APIReader reads past the cache: what others want is asked only before something goes.
	APIReader client.Reader
	Baselines *Baselines
}

// Keep says what has to be waited for before a Kustomization may end; empty if nothing is. It has Flux leave what others
// want. What it appends to the patches is not rendered for what is to end, and so not taken back.
func (k *Keeper) Keep(ctx context.Context, app *appsv1.Application, o client.Object) (wait string, err error) {
	owner := metav1.GetControllerOfNoCopy(app)
	if _, ok := o.(*kustomizev1.Kustomization); !ok || owner == nil || owner.Kind != clusterv1.ClusterConfigKind {
		return "", nil
	}
	child := &kustomizev1.Kustomization{}
	if err := k.APIReader.Get(ctx, client.ObjectKeyFromObject(o), child); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	objects := inventory(child)
	if child.UID != o.GetUID() || deleting(child) || len(objects) == 0 {
		return "", nil
	}
	if memberOf(child).Name == "" {
		return fmt.Sprintf("%s has lost its label %s, which says for which member it is: put it back", kindOf(child), fleetv1.MemberLabel), nil
	}
	w, err := k.wishes(ctx, app.Namespace, owner.Name, client.MatchingLabels{fleetv1.MemberLabel: memberOf(child).Name})
	if err != nil {
		return "", err
	}
	untold, wait := w.unsafe(app.Name, child, objects)
	if len(untold) == 0 {
		return wait, nil
	}
	if err := k.tell(ctx, child, untold); !apierrors.IsConflict(err) {
		return wait, err
	}
	return wait, nil // it has just changed, and is looked at again when the cache has that
}

// tell appends to a Kustomization that Flux is to leave objects. Applied as a whole, it is as declared again when the member
// is to have it after all; without the digest, that is looked at.
func (k *Keeper) tell(ctx context.Context, child *kustomizev1.Kustomization, objects []*unstructured.Unstructured) error {
	annotations := maps.Clone(child.Annotations)
	delete(annotations, fleetv1.DigestAnnotation)
	delete(annotations, meta.ReconcileRequestAnnotation)
	spec := child.Spec.DeepCopy()
	spec.Patches = append(spec.Patches, baseline.Leave(objects)...)
	body, err := json.Marshal(map[string]any{
		"apiVersion": kustomizev1.GroupVersion.String(), "kind": kustomizev1.KustomizationKind,
		"metadata": map[string]any{"name": child.Name, "namespace": child.Namespace, "resourceVersion": child.ResourceVersion,
			"labels": child.Labels, "annotations": annotations, "ownerReferences": child.OwnerReferences},
		"spec": spec,
	})
	if err != nil {
		return err
	}
	return applyBody(ctx, k.Client, body, true)
}

// wishes are what the ClusterConfigs of a namespace want on members.
type wishes struct {
	configs  []*clusterv1.ClusterConfig
	children map[member.Key][]*kustomizev1.Kustomization
	objects  map[string][]*unstructured.Unstructured // what is rendered, by the name of the ClusterConfig
	targets  map[string][]member.Key
	unwell   map[member.Key]string // what the Application in question says of members
}

// wishes reads what ClusterConfigs want, beside the one that asks, and what is delivered by Kustomizations with these labels.
func (k *Keeper) wishes(ctx context.Context, namespace, self string, labels client.MatchingLabels) (*wishes, error) {
	var configs clusterv1.ClusterConfigList
	var children kustomizev1.KustomizationList
	if err := k.APIReader.List(ctx, &configs, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	if n := len(configs.Items); n == 0 || n == 1 && configs.Items[0].Name == self && configs.Items[0].Spec.Manifests == nil {
		return &wishes{}, nil // there is nobody else
	}
	if err := k.APIReader.List(ctx, &children, client.InNamespace(namespace), labels); err != nil {
		return nil, err
	}
	clusters, err := listClusters(ctx, k.Client, namespace)
	if err != nil {
		return nil, err
	}
	w := &wishes{children: map[member.Key][]*kustomizev1.Kustomization{}, objects: map[string][]*unstructured.Unstructured{}, targets: map[string][]member.Key{}}
	for i := range children.Items {
		if child := &children.Items[i]; !deleting(child) {
			w.children[memberOf(child)] = append(w.children[memberOf(child)], child)
		}
	}
	for _, c := range pointers(configs.Items) {
		if deleting(c) {
			continue // it wants nothing
		}
		w.configs = append(w.configs, c)
		fleets, err := fleetOfConfig(ctx, k.APIReader, c)
		if err != nil {
			return nil, err
		}
		w.targets[c.Name] = baseline.Targets(c.Spec.Target, fleets, clusters)
		// That of this generation: the one in the cache may be older.
		if rendered, err := k.Baselines.peek(c); err == nil {
			w.objects[c.Name] = rendered.Objects
		}
	}
	return w, nil
}

// fleetOfConfig returns the fleet that a ClusterConfig goes to, by its name, if there is one.
func fleetOfConfig(ctx context.Context, c client.Reader, config *clusterv1.ClusterConfig) (map[string]*fleetv1.Fleet, error) {
	name := config.Spec.Target.Fleet
	if name == "" {
		return nil, nil
	}
	fleet := &fleetv1.Fleet{}
	err := c.Get(ctx, types.NamespacedName{Namespace: config.Namespace, Name: name}, fleet, client.UnsafeDisableDeepCopyOption(true))
	if err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return map[string]*fleetv1.Fleet{name: fleet}, nil
}

// wish is who else wants an object on a member.
type wish struct {
	by string
	// taken says that another one has applied it over what was there.
	taken bool
}

// others returns what is wanted on a member, but for what one Application delivers there.
func (w *wishes) others(app string, m member.Key) map[baseline.Key]wish {
	out := map[baseline.Key]wish{}
	want := func(o *unstructured.Unstructured, by string, taken bool) {
		key := baseline.KeyOf(o)
		out[key] = wish{cmp.Or(out[key].by, by), out[key].taken || taken}
	}
	for _, c := range w.configs {
		name, overlay := baseline.Name(c.Name), baseline.OverlayName(c.Name)
		by := "ClusterConfig " + c.Name
		if app == name || app == overlay {
			by = "the other Application of " + by
		}
		if app != name && slices.ContainsFunc(w.targets[c.Name], func(t member.Key) bool { return t.Name == m.Name && (t.Kind == m.Kind || t.Kind == "") }) {
			for _, o := range w.objects[c.Name] {
				want(o, by, false)
			}
		}
		for _, child := range w.children[m] {
			if of := child.Labels[appsv1.ApplicationLabel]; of == app || of != name && of != overlay {
				continue
			}
			marks, taken := baseline.Marks(child.Spec.Patches), hasApplied(child)
			for _, o := range inventory(child) {
				want(o, by, taken && !marks[baseline.KeyOf(o)].Yields)
			}
		}
	}
	return out
}

// unsafe returns which of the objects of a Kustomization others want and Flux has not been told to leave, and what has to
// be waited for before it may lose them; empty if nothing is.
func (w *wishes) unsafe(app string, child *kustomizev1.Kustomization, objects []*unstructured.Unstructured) (untold []*unstructured.Unstructured, wait string) {
	m := memberOf(child)
	others, marks := w.others(app, m), baseline.Marks(child.Spec.Patches)
	for _, o := range objects {
		key := baseline.KeyOf(o)
		other, ok := others[key]
		mark := marks[key]
		told := mark.Kept && !mark.Yields
		// Who has applied it since has it, and Flux leaves it, if this one cannot have applied it again in between.
		taken := other.taken && isSeen(child) && (mark.Kept || mark.Yields || !isBuilt(child))
		if !ok || told && hasApplied(child) || taken {
			continue
		}
		if !told {
			untold = append(untold, o)
		}
		if wait == "" {
			wait = fmt.Sprintf("%s is to leave %s on %s first, which %s wants, too: %s", kindOf(child), key, m.Name, other.by, w.state(child, other.by))
		}
	}
	return untold, wait
}

// state says how it is with a Kustomization that is waited for, and what to do.
func (w *wishes) state(child *kustomizev1.Kustomization, by string) string {
	ready := conditions.Get(child, meta.ReadyCondition)
	switch {
	case fluxSuspended(child):
		return fmt.Sprintf("it is suspended: flux resume kustomization %s -n %s", child.Name, child.Namespace)
	case ready != nil && ready.Status == metav1.ConditionFalse:
		return fmt.Sprintf("mend what Flux says of it, or take the object out of %s: %s", by, shorten(ready.Message))
	case w.unwell[memberOf(child)] != "":
		return w.unwell[memberOf(child)]
	}
	return "Flux is at work"
}

// hasApplied says whether Flux has applied a Kustomization as it is declared now. Where that is not healthy, or not all of
// the rest could be pruned, it has, although it does not raise observedGeneration.
func hasApplied(child *kustomizev1.Kustomization) bool {
	if child.Status.ObservedGeneration >= child.Generation {
		return true
	}
	ready := conditions.Get(child, meta.ReadyCondition)
	return ready != nil && ready.Status == metav1.ConditionFalse && ready.ObservedGeneration >= child.Generation &&
		(ready.Reason == meta.HealthCheckFailedReason || ready.Reason == meta.PruneFailedReason)
}

// isSeen says whether Flux knows a Kustomization as it is declared now: whatever it applies from now on is that.
func isSeen(child *kustomizev1.Kustomization) bool {
	ready := conditions.Get(child, meta.ReadyCondition)
	return hasApplied(child) || ready != nil && ready.ObservedGeneration >= child.Generation
}

// isBuilt says whether Flux gets as far as applying anything.
func isBuilt(child *kustomizev1.Kustomization) bool {
	ready := conditions.Get(child, meta.ReadyCondition)
	return ready == nil || ready.Status != metav1.ConditionFalse ||
		!slices.Contains([]string{meta.ArtifactFailedReason, meta.BuildFailedReason, meta.DependencyNotReadyReason}, ready.Reason)
}

// inventory returns the names of what Flux has applied for a Kustomization, and would prune with it.
func inventory(child *kustomizev1.Kustomization) []*unstructured.Unstructured {
	if child.Status.Inventory == nil {
		return nil
	}
	var out []*unstructured.Unstructured
	for _, e := range child.Status.Inventory.Entries {
		id := strings.Split(e.ID, "_") // namespace, name, group, kind; a colon in a name is written as two underscores
		n := len(id)
		if n < 4 {
			continue
		}
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(schema.GroupVersionKind{Group: id[n-2], Version: e.Version, Kind: id[n-1]})
		o.SetNamespace(id[0])
		o.SetName(strings.ReplaceAll(strings.Join(id[1:n-2], "_"), "__", ":"))
		out = append(out, o)
	}
	return out
}
