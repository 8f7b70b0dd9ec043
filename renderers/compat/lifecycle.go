package compat

import (
	"fmt"
	"maps"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes/scheme"
)

// lifecycle is when Kubernetes 1.x serves a kind in an API version: from introduced on, and, if that is not 0, until
// before removed.
type lifecycle struct {
	introduced, removed int
	replacement         schema.GroupVersionKind
}

func (l lifecycle) serves(minor int) bool {
	return minor >= l.introduced && (l.removed == 0 || minor < l.removed)
}

// gone are those that the Go types of Kubernetes have no more, or never had. From the deprecated API migration guide,
// https://kubernetes.io/docs/reference/using-api/deprecation-guide/.
var gone = map[schema.GroupVersionKind]lifecycle{
	gvk("extensions/v1beta1", "PodSecurityPolicy"):        {removed: 16, replacement: gvk("policy/v1beta1", "PodSecurityPolicy")},
	gvk("policy/v1beta1", "PodSecurityPolicy"):            {introduced: 10, removed: 25},
	gvk("apiregistration.k8s.io/v1beta1", "APIService"):   {introduced: 7, removed: 22, replacement: gvk("apiregistration.k8s.io/v1", "APIService")},
	gvk("apiregistration.k8s.io/v1", "APIService"):        {introduced: 10},
	gvk("autoscaling/v2beta1", "HorizontalPodAutoscaler"): {introduced: 8, removed: 25, replacement: gvk("autoscaling/v2", "HorizontalPodAutoscaler")},
	gvk("autoscaling/v2beta2", "HorizontalPodAutoscaler"): {introduced: 12, removed: 26, replacement: gvk("autoscaling/v2", "HorizontalPodAutoscaler")},
}

func gvk(apiVersion, kind string) schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(apiVersion, kind)
}

// lifecycles are those of all kinds of Kubernetes of which they are known.
var lifecycles = sync.OnceValue(func() map[schema.GroupVersionKind]lifecycle {
	out := ofTypes()
	maps.Copy(out, gone)
	return out
})

// ofTypes returns what the Go types of Kubernetes say of themselves.
func ofTypes() map[schema.GroupVersionKind]lifecycle {
	types := runtime.NewScheme()
	utilruntime.Must(scheme.AddToScheme(types))
	utilruntime.Must(apiextensionsv1.AddToScheme(types))
	utilruntime.Must(apiextensionsv1beta1.AddToScheme(types))
	out := map[schema.GroupVersionKind]lifecycle{}
	for gvk := range types.AllKnownTypes() {
		o, err := types.New(gvk)
		if err != nil {
			continue
		}
		var l lifecycle
		if o, ok := o.(interface{ APILifecycleIntroduced() (int, int) }); ok {
			_, l.introduced = o.APILifecycleIntroduced()
		}
		if o, ok := o.(interface{ APILifecycleRemoved() (int, int) }); ok {
			_, l.removed = o.APILifecycleRemoved()
		}
		if o, ok := o.(interface {
			APILifecycleReplacement() schema.GroupVersionKind
		}); ok {
			l.replacement = o.APILifecycleReplacement()
		}
		if l != (lifecycle{}) {
			out[gvk] = l
		}
	}
	return out
}

// instead says what to do where a kind is not served in a version, with what is there instead or without.
func instead(of schema.GroupVersionKind, minor int, with, without string) string {
	best := lifecycles()[of].replacement
	if l, ok := lifecycles()[best]; !ok || !l.serves(minor) {
		best = schema.GroupVersionKind{}
		for other, l := range lifecycles() {
			if other.GroupKind() == of.GroupKind() && other != of && l.serves(minor) && (best.Empty() || version.CompareKubeAwareVersionStrings(other.Version, best.Version) > 0) {
				best = other
			}
		}
	}
	switch {
	case best.Empty() && of.Kind == "PodSecurityPolicy":
		return without + ", and use the labels of Pod Security Admission or a FleetSecurityPolicy"
	case best.Empty():
		return without
	case best.Kind != of.Kind:
		return fmt.Sprintf(with, best.GroupVersion().String()+" "+best.Kind)
	}
	return fmt.Sprintf(with, best.GroupVersion().String())
}
