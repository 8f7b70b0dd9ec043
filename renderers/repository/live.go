package repository

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/fleetwright/fleetwright/renderers/object"
)

// Kind is a kind of the objects that a repository renders to.
type Kind struct {
	schema.GroupVersionResource
	// spec returns an empty one.
	spec func() any
}

// Kinds are the kinds of the objects that a repository renders to, by name.
var Kinds = map[string]Kind{
	kustomizev1.KustomizationKind: {kustomizev1.GroupVersion.WithResource("kustomizations"), func() any { return &kustomizev1.KustomizationSpec{} }},
	helmv2.HelmReleaseKind:        {helmv2.GroupVersion.WithResource("helmreleases"), func() any { return &helmv2.HelmReleaseSpec{} }},
	sourcev1.GitRepositoryKind:    {sourcev1.GroupVersion.WithResource("gitrepositories"), func() any { return &sourcev1.GitRepositorySpec{} }},
	sourcev1.OCIRepositoryKind:    {sourcev1.GroupVersion.WithResource("ocirepositories"), func() any { return &sourcev1.OCIRepositorySpec{} }},
	sourcev1.BucketKind:           {sourcev1.GroupVersion.WithResource("buckets"), func() any { return &sourcev1.BucketSpec{} }},
	sourcev1.HelmRepositoryKind:   {sourcev1.GroupVersion.WithResource("helmrepositories"), func() any { return &sourcev1.HelmRepositorySpec{} }},
	sourcev1.HelmChartKind:        {sourcev1.GroupVersion.WithResource("helmcharts"), func() any { return &sourcev1.HelmChartSpec{} }},
	sourcev1.ExternalArtifactKind: {sourcev1.GroupVersion.WithResource("externalartifacts"), func() any { return &sourcev1.ExternalArtifactSpec{} }},
}

// Live returns an object on the hub as it was declared there: the fields that are still those which were applied, sealed. Where
// nobody has changed any, these are the bytes that were rendered.
func Live(live *unstructured.Unstructured) (*object.Object, error) {
	set := &fieldpath.Set{}
	for _, entry := range live.GetManagedFields() {
		if entry.Manager != object.FieldManager || entry.Operation != metav1.ManagedFieldsOperationApply || entry.Subresource != "" {
			continue
		}
		fields, err := fieldsOf(entry)
		if err != nil {
			return nil, err
		}
		set = set.Union(fields)
	}
	value, err := typed.DeducedParseableType.FromUnstructured(live.Object)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(value.ExtractItems(set.Leaves()).AsValue().Unstructured())
	if err != nil {
		return nil, err
	}
	kind, ok := Kinds[live.GetKind()]
	if !ok {
		return nil, fmt.Errorf("%s is no kind that is generated", live.GetKind())
	}
	o := &object.Object{Spec: kind.spec()}
	if err := json.Unmarshal(b, o); err != nil {
		return nil, err
	}
	o.APIVersion, o.Kind = live.GetAPIVersion(), live.GetKind()
	o.Metadata.Name, o.Metadata.Namespace, o.Metadata.OwnerReferences = live.GetName(), live.GetNamespace(), nil
	return o, o.Seal()
}

// Changed returns the fields of the spec of an object on the hub that are somebody else's, with whose they are, sorted.
func Changed(live *unstructured.Unstructured) (out []string, err error) {
	for _, entry := range live.GetManagedFields() {
		if entry.Manager == object.FieldManager || entry.Subresource != "" {
			continue
		}
		fields, err := fieldsOf(entry)
		if err != nil {
			return nil, err
		}
		fields.Leaves().Iterate(func(path fieldpath.Path) {
			if text := strings.TrimPrefix(path.String(), "."); strings.HasPrefix(text, "spec.") {
				out = append(out, text+" ("+entry.Manager+")")
			}
		})
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func fieldsOf(entry metav1.ManagedFieldsEntry) (*fieldpath.Set, error) {
	set := &fieldpath.Set{}
	if entry.FieldsV1 == nil {
		return set, nil
	}
	return set, set.FromJSON(entry.FieldsV1.GetRawReader())
}
