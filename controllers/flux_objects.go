package controllers

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// generatedKinds are the kinds of objects that are generated for an Application.
var generatedKinds = []string{
	kustomizev1.KustomizationKind, helmv2.HelmReleaseKind, sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind,
	sourcev1.BucketKind, sourcev1.HelmRepositoryKind, sourcev1.HelmChartKind,
}

// kindOf returns the kind and name of a generated object, which the cache returns without a kind.
func kindOf(o client.Object) object.Ref {
	ref := object.Ref{Name: o.GetName()}
	switch o.(type) {
	case *kustomizev1.Kustomization:
		ref.Kind = kustomizev1.KustomizationKind
	case *helmv2.HelmRelease:
		ref.Kind = helmv2.HelmReleaseKind
	case *sourcev1.GitRepository:
		ref.Kind = sourcev1.GitRepositoryKind
	case *sourcev1.OCIRepository:
		ref.Kind = sourcev1.OCIRepositoryKind
	case *sourcev1.Bucket:
		ref.Kind = sourcev1.BucketKind
	case *sourcev1.HelmRepository:
		ref.Kind = sourcev1.HelmRepositoryKind
	case *sourcev1.HelmChart:
		ref.Kind = sourcev1.HelmChartKind
	}
	return ref
}

// newFluxObject returns an empty object of a kind that is generated.
func newFluxObject(kind string) client.Object {
	switch kind {
	case kustomizev1.KustomizationKind:
		return &kustomizev1.Kustomization{}
	case helmv2.HelmReleaseKind:
		return &helmv2.HelmRelease{}
	case sourcev1.GitRepositoryKind:
		return &sourcev1.GitRepository{}
	case sourcev1.OCIRepositoryKind:
		return &sourcev1.OCIRepository{}
	case sourcev1.BucketKind:
		return &sourcev1.Bucket{}
	case sourcev1.HelmRepositoryKind:
		return &sourcev1.HelmRepository{}
	case sourcev1.HelmChartKind:
		return &sourcev1.HelmChart{}
	}
	panic("no generated kind: " + kind)
}

// ownerName returns the name of the Application that owns a generated object; empty if none does. It goes by name and
// not by UID, so that an Application restored from a backup has its objects back; and by the owner reference before the
// labels, so that who takes a label off does not take the object away from us.
func ownerName(o client.Object) string {
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil {
		if owner.Kind == appsv1.ApplicationKind && strings.HasPrefix(owner.APIVersion, appsv1.GroupVersion.Group+"/") {
			return owner.Name
		}
		return ""
	}
	if o.GetLabels()[fleetv1.ManagedByLabel] == fleetv1.ManagedByValue {
		return o.GetLabels()[appsv1.ApplicationLabel]
	}
	return ""
}

// disputed says that the owner and the labels of an object name different Applications: somebody has changed one of them.
func disputed(o client.Object) string {
	label, owner := o.GetLabels()[appsv1.ApplicationLabel], metav1.GetControllerOfNoCopy(o)
	if label == "" || owner == nil || label == ownerName(o) {
		return ""
	}
	return fmt.Sprintf("%s has the label %s=%s and the owner %s %s: put back which of them was changed",
		kindOf(o), appsv1.ApplicationLabel, label, owner.Kind, owner.Name)
}

// isChild says whether a generated object is a child, and not a source.
func isChild(o client.Object) bool {
	switch o.(type) {
	case *kustomizev1.Kustomization, *helmv2.HelmRelease:
		return true
	}
	return false
}

// kubeConfigOf returns how Flux reaches the cluster that a child is for; nil for the hub.
func kubeConfigOf(o client.Object) *meta.KubeConfigReference {
	switch o := o.(type) {
	case *kustomizev1.Kustomization:
		return o.Spec.KubeConfig
	case *helmv2.HelmRelease:
		return o.Spec.KubeConfig
	}
	return nil
}

// memberOf returns the identity of the member that a child serves; zero for the hub.
func memberOf(o client.Object) member.Key {
	return member.Key{Kind: o.GetLabels()[fleetv1.MemberKindLabel], Name: o.GetLabels()[fleetv1.MemberLabel]}
}

func deleting(o client.Object) bool { return !o.GetDeletionTimestamp().IsZero() }

// fluxSuspended says whether a child is suspended.
func fluxSuspended(o client.Object) bool {
	switch o := o.(type) {
	case *kustomizev1.Kustomization:
		return o.Spec.Suspend
	case *helmv2.HelmRelease:
		return o.Spec.Suspend
	}
	return false
}

// arrives says whether a child is yet to bring what it declares to its member; nil is. kustomize-controller raises
// observedGeneration when it has applied, and not before.
func arrives(o client.Object) bool {
	if o == nil {
		return true
	}
	if fluxSuspended(o) {
		return false
	}
	if h, ok := o.(*helmv2.HelmRelease); ok {
		released := apimeta.FindStatusCondition(h.Status.Conditions, helmv2.ReleasedCondition)
		return released == nil || released.Reason == helmv2.InstallFailedReason
	}
	return observedGeneration(o) < o.GetGeneration()
}

// declaresSuspend says whether a rendered child is declared suspended.
func declaresSuspend(o *object.Object) bool {
	switch spec := o.Spec.(type) {
	case *kustomizev1.KustomizationSpec:
		return spec.Suspend
	case *helmv2.HelmReleaseSpec:
		return spec.Suspend
	}
	return false
}

// dependsOn returns the objects that a child comes after.
func dependsOn(o client.Object) []object.Ref {
	var refs []object.Ref
	switch o := o.(type) {
	case *kustomizev1.Kustomization:
		for _, d := range o.Spec.DependsOn {
			refs = append(refs, object.Ref{Kind: kustomizev1.KustomizationKind, Name: d.Name})
		}
	case *helmv2.HelmRelease:
		for _, d := range o.Spec.DependsOn {
			refs = append(refs, object.Ref{Kind: helmv2.HelmReleaseKind, Name: d.Name})
		}
	}
	for ref := range strings.SplitSeq(o.GetAnnotations()[fleetv1.WaitsForAnnotation], ",") {
		if kind, name, ok := strings.Cut(ref, "/"); ok {
			refs = append(refs, object.Ref{Kind: kind, Name: name})
		}
	}
	return refs
}

// sourceOf returns the sources that a child or a HelmChart uses.
func sourceOf(o client.Object) object.Ref {
	switch o := o.(type) {
	case *kustomizev1.Kustomization:
		return object.Ref{Kind: o.Spec.SourceRef.Kind, Name: o.Spec.SourceRef.Name}
	case *helmv2.HelmRelease:
		if o.Spec.ChartRef != nil {
			return object.Ref{Kind: o.Spec.ChartRef.Kind, Name: o.Spec.ChartRef.Name}
		}
	case *sourcev1.HelmChart:
		return object.Ref{Kind: o.Spec.SourceRef.Kind, Name: o.Spec.SourceRef.Name}
	}
	return object.Ref{}
}

// fluxReady returns the Ready condition of a Flux object if it is about the object's present generation.
func fluxReady(o client.Object) *metav1.Condition {
	getter, ok := o.(conditions.Getter)
	if !ok {
		return nil
	}
	ready := apimeta.FindStatusCondition(getter.GetConditions(), meta.ReadyCondition)
	// After a failure Flux leaves status.observedGeneration as it was; the condition has its own.
	if ready == nil || max(ready.ObservedGeneration, observedGeneration(o)) < o.GetGeneration() {
		return nil
	}
	return ready
}

// appliedRevision returns the revision that Flux has applied. Where one comes back that was there before, Flux sometimes takes
// it for the last one already, and leaves lastAppliedRevision as it is.
func appliedRevision(k *kustomizev1.Kustomization) string {
	if isTrue(fluxReady(k)) {
		return k.Status.LastAttemptedRevision
	}
	return k.Status.LastAppliedRevision
}

func observedGeneration(o client.Object) int64 {
	switch o := o.(type) {
	case *kustomizev1.Kustomization:
		return o.Status.ObservedGeneration
	case *helmv2.HelmRelease:
		return o.Status.ObservedGeneration
	case *sourcev1.GitRepository:
		return o.Status.ObservedGeneration
	case *sourcev1.OCIRepository:
		return o.Status.ObservedGeneration
	case *sourcev1.Bucket:
		return o.Status.ObservedGeneration
	case *sourcev1.HelmRepository:
		// One of type oci has nothing to fetch, and so no status.
		if o.Spec.Type == sourcev1.HelmRepositoryTypeOCI {
			return o.Generation
		}
		return o.Status.ObservedGeneration
	case *sourcev1.HelmChart:
		return o.Status.ObservedGeneration
	}
	return 0
}

// asDeclared says whether a live object has everything that is declared: what the server defaulted and what others
// added beside it does not matter.
func asDeclared(declared *object.Object, live client.Object) bool {
	want, err := toTree(declared)
	if err != nil {
		return false
	}
	got, err := toTree(live)
	if err != nil {
		return false
	}
	w, g := want.(map[string]any), got.(map[string]any)
	return metav1.GetControllerOfNoCopy(live) != nil && contains(w["spec"], g["spec"]) &&
		contains(w["metadata"].(map[string]any)["labels"], g["metadata"].(map[string]any)["labels"])
}

func toTree(v any) (any, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var tree any
	return tree, json.Unmarshal(b, &tree)
}

func contains(want, got any) bool {
	switch want := want.(type) {
	case map[string]any:
		got, ok := got.(map[string]any)
		if !ok {
			return len(want) == 0
		}
		for k, v := range want {
			if g, ok := got[k]; !ok && !empty(v) || !contains(v, g) {
				return false
			}
		}
		return true
	case []any:
		got, ok := got.([]any)
		if !ok || len(got) != len(want) {
			return len(want) == 0 && !ok
		}
		for i := range want {
			if !contains(want[i], got[i]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(want, got) || empty(want) && got == nil
}

func empty(v any) bool {
	return v == nil || v == "" || v == false || v == float64(0)
}
