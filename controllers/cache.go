package controllers

import (
	"bytes"
	"compress/flate"
	"hash/maphash"
	"io"
	"strings"
	"sync"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
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
// kubeconfig so that a message can say so. They are compressed, as they are the largest part of what a member costs.
func stripSecret(in any) (any, error) {
	secret, ok := in.(*corev1.Secret)
	if !ok {
		return in, nil
	}
	secret.ManagedFields, secret.Annotations, secret.Finalizers = nil, nil, nil
	if secret.Labels[fleetv1.ManagedByLabel] != fleetv1.ManagedByValue { // else it is a plugin's, and found by them
		secret.Labels, secret.OwnerReferences = nil, nil
	}
	secret.Namespace = shared(secret.Namespace)
	for key, value := range secret.Data {
		plain := unpack(value) // of a Secret that was here before
		if looksLikeKubeconfig(plain) || encodesKubeconfig(plain) {
			secret.Data[key] = pack(plain)
		} else {
			secret.Data[key] = nil
		}
	}
	return secret, nil
}

// packed is what compressed values begin with, and no text.
const packed = 0

var packers = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.DefaultCompression) // errs for another level only
	return w
}}

func pack(value []byte) []byte {
	out := bytes.NewBuffer([]byte{packed})
	w := packers.Get().(*flate.Writer)
	defer packers.Put(w)
	w.Reset(out)
	_, _ = w.Write(value) // a buffer takes everything
	_ = w.Close()
	return bytes.Clone(out.Bytes())
}

// unpack returns a value as it is in the Secret. Anybody may write one that only looks compressed, and is endless: no
// Secret is larger than a mebibyte.
func unpack(value []byte) []byte {
	if len(value) == 0 || value[0] != packed {
		return value
	}
	plain, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(value[1:])), corev1.MaxSecretSize))
	if err != nil {
		return nil
	}
	return plain
}

// strip takes out of an object what nothing here looks at, and has it share with others what they have in common.
func strip(in any) (any, error) {
	if o, ok := in.(metav1.Object); ok {
		o.SetManagedFields(nil)
		delete(o.GetAnnotations(), corev1.LastAppliedConfigAnnotation)
		share(o)
	}
	if c, ok := in.(*clusterv1.AttachedCluster); ok {
		c.Status.KubernetesVersion = shared(c.Status.KubernetesVersion)
		if c.Spec.Kubeconfig != nil {
			c.Spec.Kubeconfig.Key = shared(c.Spec.Kubeconfig.Key)
		}
	}
	return in, nil
}

// stripFluxObject keeps of the status of a Kustomization or HelmRelease how it is doing. The inventory and the history
// are most of it, and nothing here looks at them.
func stripFluxObject(in any) (any, error) {
	o, ok := in.(client.Object)
	if !ok {
		return in, nil
	}
	// A map takes a third of a kilobyte, whatever is in it. The digest, which is all that most children have in theirs, is
	// kept in a field that is not used otherwise.
	if digest := o.GetAnnotations()[fleetv1.DigestAnnotation]; digest != "" {
		o.SetGenerateName(digest)
		delete(o.GetAnnotations(), fleetv1.DigestAnnotation)
	}
	if via := kubeConfigOf(o); via != nil && via.SecretRef != nil {
		via.SecretRef.Key = shared(via.SecretRef.Key)
	}
	switch o := in.(type) {
	case *kustomizev1.Kustomization:
		o.Spec.Path, o.Spec.TargetNamespace = shared(o.Spec.Path), shared(o.Spec.TargetNamespace)
		o.Spec.SourceRef.Kind, o.Spec.SourceRef.Name = shared(o.Spec.SourceRef.Kind), shared(o.Spec.SourceRef.Name)
		o.Status = kustomizev1.KustomizationStatus{
			ReconcileRequestStatus: o.Status.ReconcileRequestStatus,
			ObservedGeneration:     o.Status.ObservedGeneration,
			Conditions:             o.Status.Conditions,
			LastAppliedRevision:    shared(o.Status.LastAppliedRevision),
			LastAttemptedRevision:  shared(o.Status.LastAttemptedRevision),
		}
	case *helmv2.HelmRelease:
		o.Spec.TargetNamespace, o.Spec.StorageNamespace = shared(o.Spec.TargetNamespace), shared(o.Spec.StorageNamespace)
		o.Spec.ReleaseName, o.Spec.Values = shared(o.Spec.ReleaseName), sharedValues(o.Spec.Values)
		if o.Spec.ChartRef != nil {
			o.Spec.ChartRef = common(*o.Spec.ChartRef, o.Spec.ChartRef)
		}
		o.Status = helmv2.HelmReleaseStatus{
			ReconcileRequestStatus: o.Status.ReconcileRequestStatus,
			ObservedGeneration:     o.Status.ObservedGeneration,
			Conditions:             o.Status.Conditions,
			LastAttemptedRevision:  shared(o.Status.LastAttemptedRevision),
		}
	}
	return strip(in)
}

// carriedDigest returns the digest that a child carries, in its annotations or where stripFluxObject keeps it.
func carriedDigest(child client.Object) string {
	if digest, ok := child.GetAnnotations()[fleetv1.DigestAnnotation]; ok {
		return digest
	}
	return child.GetGenerateName()
}

// share replaces parts of an object's metadata and conditions that thousands have alike by one copy of each.
func share(o metav1.Object) {
	o.SetNamespace(shared(o.GetNamespace()))
	o.SetLabels(sharedLabels(o.GetLabels()))
	o.SetAnnotations(withSharedKeys(o.GetAnnotations()))
	for i, f := range o.GetFinalizers() {
		o.GetFinalizers()[i] = shared(f)
	}
	if owners := o.GetOwnerReferences(); len(owners) > 0 {
		var key strings.Builder
		for i := range owners {
			key.WriteString(owners[i].String())
		}
		o.SetOwnerReferences(common(ownersKey(key.String()), owners))
	}
	if c, ok := o.(conditions.Getter); ok {
		for i := range c.GetConditions() {
			condition := &c.GetConditions()[i]
			condition.Type, condition.Reason, condition.Message = shared(condition.Type), shared(condition.Reason), shared(condition.Message)
		}
	}
}

// sharedLabels returns the one copy of labels. Those of a child name its member, and are shared text by text.
func sharedLabels(m map[string]string) map[string]string {
	if _, ok := m[fleetv1.MemberLabel]; !ok && len(m) > 0 {
		return common(labelsKey(labels.Set(m).String()), m)
	}
	m = withSharedKeys(m)
	for k, v := range m {
		if k != fleetv1.MemberLabel {
			m[k] = shared(v)
		}
	}
	return m
}

// withSharedKeys returns a map that is new: one that has shrunk keeps its size. An empty one becomes nil.
func withSharedKeys(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[shared(k)] = v
	}
	return out
}

// sharedValues returns the one copy of a chart's values. They are found by a hash, as they may be long.
func sharedValues(values *apiextensionsv1.JSON) *apiextensionsv1.JSON {
	if values == nil {
		return nil
	}
	if one := common(valuesKey(maphash.Bytes(seed, values.Raw)), values); bytes.Equal(one.Raw, values.Raw) {
		return one
	}
	return values
}

// shared returns the one copy of a text.
func shared(s string) string { return common(s, s) }

// Keys of what is no text.
type (
	labelsKey string
	ownersKey string
	valuesKey uint64
)

var seed = maphash.MakeSeed()

// commons has what cached objects share. Unlike package unique it knows it from one collection of garbage to the next,
// so that objects which change one at a time share it, too.
var commons = struct {
	sync.Mutex
	m map[any]any
}{m: map[any]any{}}

// mostCommons bounds the commons: beyond it they start anew, and what comes after that has copies of its own.
const mostCommons = 1024

// common returns what was given for a key first. It must only be read.
func common[T any](key any, value T) T {
	commons.Lock()
	defer commons.Unlock()
	if one, ok := commons.m[key].(T); ok {
		return one
	}
	if len(commons.m) >= mostCommons {
		clear(commons.m)
	}
	commons.m[key] = value
	return value
}
