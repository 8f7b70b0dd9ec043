package baseline

import (
	"maps"
	"slices"
	"strings"

	"github.com/fluxcd/pkg/apis/kustomize"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
)

// Mark is how Flux applies, for one ClusterConfig, an object that others want as well: Kept is never pruned (prune:
// disabled), and Yields is applied only where it is not there (ssa: IfNotPresent).
type Mark struct{ Kept, Yields bool }

// Marks returns the marks in the patches of a Kustomization. Of two, the later one holds.
func Marks(patches []kustomize.Patch) map[Key]Mark {
	out := map[Key]Mark{}
	for _, p := range patches {
		text, annotations, ok := strings.Cut(p.Patch, annotationsLine)
		if !ok || p.Target == nil || !strings.HasPrefix(text, "apiVersion: ") {
			continue // annotate has not written it
		}
		key := KeyOf(targetOf(p))
		mark := out[key]
		for line := range strings.Lines(annotations) {
			switch strings.TrimSpace(line) {
			case pruneAnnotation + ": disabled":
				mark.Kept = true
			case ssaAnnotation + ": IfNotPresent":
				mark.Yields = true
			case ssaAnnotation + ": Merge":
				mark.Yields = false
			}
		}
		if mark != (Mark{}) {
			out[key] = mark
		}
	}
	return out
}

// leave are the annotations of what Flux is to leave on members for good. The mark has to reach what is there, so it is
// applied even if it was to be applied only where it is not there; Merge touches nothing else.
const leave = pruneAnnotation + ": disabled\n    " + ssaAnnotation + ": Merge"

// Leave returns the patches that have Flux leave objects on a member when they are not wanted any more.
func Leave(objects []*unstructured.Unstructured) []kustomize.Patch {
	var out []kustomize.Patch
	for _, o := range objects {
		out = append(out, patchAnnotations(o, leave))
	}
	return out
}

// Left are the objects that Flux is to leave on members, by the names of these.
type Left map[string][]*unstructured.Unstructured

// Add adds an object, once.
func (l Left) Add(member string, o *unstructured.Unstructured) {
	if !slices.ContainsFunc(l[member], func(other *unstructured.Unstructured) bool { return KeyOf(other) == KeyOf(o) }) {
		l[member] = append(l[member], o)
	}
}

// LeftBy returns what an Application has Flux leave.
func LeftBy(app *appsv1.Application) Left {
	left := Left{}
	for _, policy := range app.Spec.SyncPolicies {
		for _, o := range policy.Overrides {
			if !leaves(&o) {
				continue
			}
			for _, p := range o.Kustomization.Patches {
				for _, m := range o.Clusters {
					left.Add(m, targetOf(p))
				}
			}
		}
	}
	return left
}

// leaves says whether an override is one that With has added.
func leaves(o *appsv1.Override) bool {
	return o.Kustomization != nil && len(o.Kustomization.Patches) > 0 && strings.HasSuffix(o.Kustomization.Patches[0].Patch, leave+"\n")
}

// With returns an Application that has Flux leave just this.
func (l Left) With(app *appsv1.Application) *appsv1.Application {
	app = app.DeepCopy()
	policy := &app.Spec.SyncPolicies[0]
	policy.Overrides = slices.DeleteFunc(policy.Overrides, func(o appsv1.Override) bool { return leaves(&o) })
	for _, m := range slices.Sorted(maps.Keys(l)) {
		objects := slices.SortedFunc(slices.Values(l[m]), func(a, b *unstructured.Unstructured) int { return compareKeys(KeyOf(a), KeyOf(b)) })
		if len(objects) == 0 {
			continue
		}
		patches := Leave(objects)
		same := func(o appsv1.Override) bool {
			return leaves(&o) && slices.EqualFunc(o.Kustomization.Patches, patches, samePatch)
		}
		if i := slices.IndexFunc(policy.Overrides, same); i >= 0 {
			policy.Overrides[i].Clusters = append(policy.Overrides[i].Clusters, m)
			continue
		}
		policy.Overrides = append(policy.Overrides, appsv1.Override{Clusters: []string{m}, Kustomization: &appsv1.KustomizationOverride{Patches: patches}})
	}
	return app
}

func samePatch(a, b kustomize.Patch) bool { return a.Patch == b.Patch && *a.Target == *b.Target }

// targetOf names the object that selector has made a target of.
func targetOf(p kustomize.Patch) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: strings.TrimPrefix(unquote(p.Target.Group), "^$"), Version: p.Target.Version, Kind: p.Target.Kind})
	o.SetNamespace(unquote(p.Target.Namespace))
	o.SetName(unquote(p.Target.Name))
	return o
}

// unquote undoes regexp.QuoteMeta.
func unquote(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
