package plan

import (
	"cmp"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fleetwright/fleetwright/renderers/application"
)

// objectKey is what an object on a member is known by, in whichever version of its API.
type objectKey struct{ group, kind, namespace, name string }

func keyOf(o *unstructured.Unstructured) objectKey {
	return objectKey{o.GroupVersionKind().Group, o.GetKind(), o.GetNamespace(), o.GetName()}
}

func (o *ObjectChange) key() objectKey {
	group, _, ok := strings.Cut(o.APIVersion, "/")
	if !ok {
		group = ""
	}
	return objectKey{group, o.Kind, o.Namespace, o.Name}
}

// String is Kind namespace/name.
func (o *ObjectChange) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// compareObjects compares what a child puts on a member. One of the children may be nil.
func compareObjects(from, to []*unstructured.Unstructured, was, is *application.Rendered) []ObjectChange {
	old := make(map[objectKey]*unstructured.Unstructured, len(from))
	for _, o := range from {
		old[keyOf(o)] = o
	}
	var out []ObjectChange
	for _, o := range to {
		before := old[keyOf(o)]
		delete(old, keyOf(o))
		change := change(o)
		switch {
		case before == nil:
			change.Action = Create
		case reflect.DeepEqual(before.Object, o.Object):
			continue
		default:
			compareObject(&change, before, o, is)
		}
		if change.Action != "" {
			out = append(out, change)
		}
	}
	for _, o := range from {
		if old[keyOf(o)] == nil {
			continue
		}
		change := change(o)
		if change.Action = Delete; stays(o, was, is) {
			change.Action = Orphan
		}
		out = append(out, change)
	}
	slices.SortFunc(out, func(a, b ObjectChange) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.APIVersion, b.APIVersion))
	})
	return out
}

func change(o *unstructured.Unstructured) ObjectChange {
	return ObjectChange{APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName(), object: o}
}

// compareObject fills in how an object changes.
func compareObject(change *ObjectChange, from, to *unstructured.Unstructured, by *application.Rendered) {
	change.Fields = compareFields(hidden(from.Object), hidden(to.Object))
	if len(change.Fields) == 0 {
		return
	}
	change.Action = Update
	for _, f := range change.Fields {
		if immutable(from, f.Path) {
			change.Immutable = append(change.Immutable, f.Path)
		}
	}
	if len(change.Immutable) > 0 && forced(to, by) {
		change.Action = Recreate
	}
}

// stays says whether an object that is not declared any more stays on the member. Was and is are the child that it was of.
// https://fluxcd.io/flux/components/kustomize/kustomizations/#controlling-the-apply-behavior-of-resources
// https://helm.sh/docs/howto/charts_tips_and_tricks/#tell-helm-not-to-uninstall-a-resource
func stays(o *unstructured.Unstructured, was, is *application.Rendered) bool {
	annotations, labels := o.GetAnnotations(), o.GetLabels()
	either := func(key, value string) bool {
		return strings.EqualFold(annotations[key], value) || strings.EqualFold(labels[key], value)
	}
	if spec, ok := was.Spec.(*kustomizev1.KustomizationSpec); ok {
		prune := spec.Prune
		if is != nil {
			if spec, ok := is.Spec.(*kustomizev1.KustomizationSpec); ok {
				prune = spec.Prune
			}
		}
		return !prune && is != nil || either("kustomize.toolkit.fluxcd.io/prune", "disabled") || either("kustomize.toolkit.fluxcd.io/ssa", "Ignore")
	}
	return annotations["helm.sh/resource-policy"] == "keep"
}

// forced says whether Flux creates an object anew that it cannot change.
func forced(o *unstructured.Unstructured, by *application.Rendered) bool {
	switch spec := by.Spec.(type) {
	case *kustomizev1.KustomizationSpec:
		return spec.Force || strings.EqualFold(o.GetAnnotations()["kustomize.toolkit.fluxcd.io/force"], "enabled")
	case *helmv2.HelmReleaseSpec:
		return spec.Upgrade != nil && spec.Upgrade.Force
	}
	return false
}

// fixed are the fields that the API server does not change of an object that is there, by group and kind. Of a kind with a !,
// they are those that it does change. https://github.com/kubernetes/kubernetes/tree/master/pkg/apis (the ValidateUpdate functions)
var fixed = map[[2]string][]string{
	{"apps", "Deployment"}:                               {"spec.selector"},
	{"apps", "DaemonSet"}:                                {"spec.selector"},
	{"apps", "ReplicaSet"}:                               {"spec.selector"},
	{"apps", "StatefulSet"}:                              {"!spec", "spec.replicas", "spec.ordinals", "spec.template", "spec.updateStrategy", "spec.revisionHistoryLimit", "spec.persistentVolumeClaimRetentionPolicy", "spec.minReadySeconds"},
	{"batch", "Job"}:                                     {"spec.selector", "spec.template", "spec.completionMode", "spec.podFailurePolicy", "spec.successPolicy", "spec.backoffLimitPerIndex", "spec.managedBy"},
	{"", "Pod"}:                                          {"!spec", "spec.activeDeadlineSeconds", "spec.terminationGracePeriodSeconds", "spec.tolerations", "spec.schedulingGates"},
	{"", "Service"}:                                      {"spec.clusterIP", "spec.clusterIPs"},
	{"", "PersistentVolumeClaim"}:                        {"!spec", "spec.resources", "spec.volumeAttributesClassName"},
	{"rbac.authorization.k8s.io", "RoleBinding"}:         {"roleRef"},
	{"rbac.authorization.k8s.io", "ClusterRoleBinding"}:  {"roleRef"},
	{"storage.k8s.io", "StorageClass"}:                   {"provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"},
	{"scheduling.k8s.io", "PriorityClass"}:               {"value", "preemptionPolicy"},
	{"node.k8s.io", "RuntimeClass"}:                      {"handler"},
	{"apiextensions.k8s.io", "CustomResourceDefinition"}: {"spec.group", "spec.scope", "spec.names.plural", "spec.names.kind"},
	{"", "Secret"}:                                       {"type"},
}

// immutable says whether the API server refuses to change a field of an object.
func immutable(o *unstructured.Unstructured, path string) bool {
	within := func(field string) bool {
		rest, ok := strings.CutPrefix(path, field)
		return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
	}
	if set, _, _ := unstructured.NestedBool(o.Object, "immutable"); set && slices.ContainsFunc([]string{"data", "stringData", "binaryData", "immutable"}, within) {
		return true
	}
	fields := fixed[[2]string{o.GroupVersionKind().Group, o.GetKind()}]
	if len(fields) > 0 && strings.HasPrefix(fields[0], "!") {
		if o.GetKind() == "Pod" && strings.HasSuffix(path, ".image") {
			return false
		}
		return within(fields[0][1:]) && !slices.ContainsFunc(fields[1:], within)
	}
	return slices.ContainsFunc(fields, within)
}

func jsonText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
