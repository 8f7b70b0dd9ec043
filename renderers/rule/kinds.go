package rule

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// creators are the resources that create Pods, and Pods themselves.
var creators = []schema.GroupVersionResource{
	{Version: "v1", Resource: "pods"}, {Version: "v1", Resource: "replicationcontrollers"},
	{Group: "apps", Version: "v1", Resource: "daemonsets"}, {Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "apps", Version: "v1", Resource: "replicasets"}, {Group: "apps", Version: "v1", Resource: "statefulsets"},
	{Group: "batch", Version: "v1", Resource: "cronjobs"}, {Group: "batch", Version: "v1", Resource: "jobs"},
}

// pods is the first of them; namespaces are what all of them are in.
var (
	pods       = creators[0]
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
)

// resources returns the resources of kinds: Kind, version/Kind or group/version/Kind.
func resources(kinds []string) ([]schema.GroupVersionResource, error) {
	var out []schema.GroupVersionResource
	for i, kind := range kinds {
		parts := strings.Split(kind, "/")
		var found []schema.GroupVersionResource
		switch {
		case strings.Contains(kind, "*"), strings.Contains(kind, "."):
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

// known returns the resources that Kubernetes comes with, by kind: of each, the version that comes first.
var known = sync.OnceValue(func() map[string][]schema.GroupVersionResource {
	out := map[string][]schema.GroupVersionResource{}
	for _, gv := range scheme.Scheme.PrioritizedVersionsAllGroups() {
		if gv.Group == "extensions" {
			continue
		}
		types := scheme.Scheme.KnownTypes(gv)
		for kind := range types {
			if _, listed := types[kind+"List"]; !listed {
				continue
			}
			if slices.ContainsFunc(out[kind], func(r schema.GroupVersionResource) bool { return r.Group == gv.Group }) {
				continue
			}
			plural, _ := meta.UnsafeGuessKindToResource(gv.WithKind(kind))
			out[kind] = append(out[kind], plural)
		}
	}
	return out
})
