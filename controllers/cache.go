package controllers

import (
	"unique"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// CacheOptions says what the manager's cache keeps. What it strips is not needed and is most of an object; an object
// from the cache must therefore never be sent back whole.
func CacheOptions() cache.Options {
	return cache.Options{
		DefaultTransform: strip,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}:             {Field: secretTypes(), Transform: stripSecret},
			&kustomizev1.Kustomization{}: {Transform: stripFluxObject},
			&helmv2.HelmRelease{}:        {Transform: stripFluxObject},
		},
	}
}

// secretTypes leaves out the types that never hold a kubeconfig and that a hub has thousands of.
func secretTypes() fields.Selector {
	return fields.AndSelectors(
		fields.OneTermNotEqualSelector("type", "helm.sh/release.v1"),
		fields.OneTermNotEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)),
		fields.OneTermNotEqualSelector("type", string(corev1.SecretTypeDockerConfigJson)),
		fields.OneTermNotEqualSelector("type", string(corev1.SecretTypeTLS)),
	)
}

// stripSecret keeps the kubeconfigs of a Secret, and of everything else in it only that the key is there.
//
// Secrets are cached, against the habit of Flux, because a member is probed every few minutes for ever: reading its
// Secret each time would be the hub's main load, and a rotated token would be noticed at the next probe at best. Which
// Secrets are needed is only known from the members, so the watch is on all of them, and this function sees to it that
// no other secret stays in memory. The keys are kept so that a message can list them, and a value that is base64 of a
// kubeconfig so that a message can say so.
func stripSecret(in any) (any, error) {
	secret, ok := in.(*corev1.Secret)
	if !ok {
		return in, nil
	}
	secret.ManagedFields = nil
	secret.Annotations = nil
	for key, value := range secret.Data {
		if !looksLikeKubeconfig(value) && !encodesKubeconfig(value) {
			secret.Data[key] = nil
		}
	}
	return secret, nil
}

// strip takes out of an object what nothing here looks at, and has it share with others what they have in common.
func strip(in any) (any, error) {
	if o, ok := in.(metav1.Object); ok {
		o.SetManagedFields(nil)
		intern(o)
	}
	return in, nil
}

// intern replaces texts that thousands of objects have alike by one copy of each.
func intern(o metav1.Object) {
	sharedKeys := func(m map[string]string, values bool) map[string]string {
		if len(m) == 0 {
			return nil
		}
		out := make(map[string]string, len(m))
		for k, v := range m {
			if values {
				v = shared(v)
			}
			out[shared(k)] = v
		}
		return out
	}
	o.SetNamespace(shared(o.GetNamespace()))
	o.SetLabels(sharedKeys(o.GetLabels(), true))
	o.SetAnnotations(sharedKeys(o.GetAnnotations(), false))
	for i, f := range o.GetFinalizers() {
		o.GetFinalizers()[i] = shared(f)
	}
	for i := range o.GetOwnerReferences() {
		owner := &o.GetOwnerReferences()[i]
		owner.APIVersion, owner.Kind, owner.Name = shared(owner.APIVersion), shared(owner.Kind), shared(owner.Name)
		owner.UID = types.UID(shared(string(owner.UID)))
	}
	if c, ok := o.(conditions.Getter); ok {
		for i := range c.GetConditions() {
			condition := &c.GetConditions()[i]
			condition.Type, condition.Reason, condition.Message = shared(condition.Type), shared(condition.Reason), shared(condition.Message)
		}
	}
}

// shared returns the one copy of a text.
func shared(s string) string { return unique.Make(s).Value() }

// stripFluxObject keeps of the status of a Kustomization or HelmRelease how it is doing. The inventory and the history
// are most of it, and nothing here looks at them.
func stripFluxObject(in any) (any, error) {
	o, ok := in.(metav1.Object)
	if !ok {
		return in, nil
	}
	if annotations := o.GetAnnotations(); annotations[corev1.LastAppliedConfigAnnotation] != "" {
		delete(annotations, corev1.LastAppliedConfigAnnotation)
		o.SetAnnotations(annotations)
	}
	switch o := in.(type) {
	case *kustomizev1.Kustomization:
		o.Spec.Path, o.Spec.SourceRef.Kind, o.Spec.SourceRef.Name = shared(o.Spec.Path), shared(o.Spec.SourceRef.Kind), shared(o.Spec.SourceRef.Name)
		o.Status = kustomizev1.KustomizationStatus{
			ReconcileRequestStatus: o.Status.ReconcileRequestStatus,
			ObservedGeneration:     o.Status.ObservedGeneration,
			Conditions:             o.Status.Conditions,
			LastAppliedRevision:    shared(o.Status.LastAppliedRevision),
			LastAttemptedRevision:  shared(o.Status.LastAttemptedRevision),
		}
	case *helmv2.HelmRelease:
		o.Status = helmv2.HelmReleaseStatus{
			ReconcileRequestStatus: o.Status.ReconcileRequestStatus,
			ObservedGeneration:     o.Status.ObservedGeneration,
			Conditions:             o.Status.Conditions,
			LastAttemptedRevision:  shared(o.Status.LastAttemptedRevision),
		}
	}
	return strip(in)
}
