package rule

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// creators are the resources that create Pods, and Pods themselves.
var creators = []schema.GroupVersionResource{
	{Version: "v1", Resource: "pods"}, {Version: "v1", Resource: "pods/ephemeralcontainers"}, {Version: "v1", Resource: "replicationcontrollers"},
	{Group: "apps", Version: "v1", Resource: "daemonsets"}, {Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "apps", Version: "v1", Resource: "replicasets"}, {Group: "apps", Version: "v1", Resource: "statefulsets"},
	{Group: "batch", Version: "v1", Resource: "cronjobs"}, {Group: "batch", Version: "v1", Resource: "jobs"},
}

// pods is the first of them.
var pods = creators[0]

// resources returns the resources of kinds: Kind, version/Kind or group/version/Kind.
func resources(kinds []string) ([]schema.GroupVersionResource, error) {
	var out []schema.GroupVersionResource
	for i, kind := range kinds {
		parts := strings.Split(kind, "/")
		var found []schema.GroupVersionResource
		switch {
		case strings.Contains(kind, "*"), strings.Contains(parts[len(parts)-1], "."): // Pod.exec is Kyverno's for a subresource
			return nil, fmt.Errorf("kinds[%d]: %s: a rule is for kinds that are named: Kind or group/version/Kind", i, kind)
		case len(parts) == 1:
			found = known()[kind]
		case len(parts) == 2:
			for _, r := range known()[parts[1]] {
				if r.Version == parts[0] {
					found = append(found, r)
				}
			}
		case len(parts) == 3:
			plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Group: parts[0], Version: parts[1], Kind: parts[2]})
			found = append(found, plural)
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("kinds[%d]: %s: is not known: write Pod or Deployment, say, or group/version/Kind", i, kind)
		}
		for _, r := range found {
			if !slices.Contains(out, r) {
				out = append(out, r)
			}
		}
	}
	slices.SortFunc(out, func(a, b schema.GroupVersionResource) int { return strings.Compare(a.String(), b.String()) })
	return out, nil
}

// known returns the resources that Kubernetes comes with, by kind.
var known = sync.OnceValue(func() map[string][]schema.GroupVersionResource {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionregistrationv1.AddToScheme, appsv1.AddToScheme, autoscalingv2.AddToScheme, batchv1.AddToScheme, certificatesv1.AddToScheme,
		coordinationv1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme, nodev1.AddToScheme,
		policyv1.AddToScheme, rbacv1.AddToScheme, schedulingv1.AddToScheme, storagev1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err) // they are types that do not change
		}
	}
	out := map[string][]schema.GroupVersionResource{}
	for gvk := range scheme.AllKnownTypes() {
		if scheme.Recognizes(gvk.GroupVersion().WithKind(gvk.Kind + "List")) {
			plural, _ := meta.UnsafeGuessKindToResource(gvk)
			out[gvk.Kind] = append(out[gvk.Kind], plural)
		}
	}
	return out
})
