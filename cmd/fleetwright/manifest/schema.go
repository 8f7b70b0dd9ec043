package manifest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/fleetwright/fleetwright/config/crd"
)

// groupSuffix ends the names of our API groups.
const groupSuffix = "kurator.dev"

// admission is what the API server has of one kind to admit its objects with.
type admission struct {
	structural *structuralschema.Structural
	openAPI    schemavalidation.SchemaValidator
	rules      *cel.Validator
}

// admissions holds the kinds of the embedded CRDs by group; a group is there once its files are read.
type admissions map[string]map[schema.GroupVersionKind]func() (*admission, error)

// find returns what admits a kind: nil if the group is not ours.
func (a admissions) find(gvk schema.GroupVersionKind) (*admission, error) {
	kinds, err := a.group(gvk.Group)
	if err != nil || len(kinds) == 0 {
		return nil, err
	}
	if load, ok := kinds[gvk]; ok {
		return load()
	}
	var versions []string
	for known := range kinds {
		if known.Kind == gvk.Kind {
			versions = append(versions, known.GroupVersion().String())
		}
	}
	if len(versions) == 0 {
		return nil, fmt.Errorf("%s has no kind %s: %w", gvk.GroupVersion(), gvk.Kind, errUnknownKind)
	}
	slices.Sort(versions)
	return nil, fmt.Errorf("kind %s has no version %s: write apiVersion: %s", gvk.Kind, gvk.Version, strings.Join(versions, " or "))
}

// errUnknownKind is about a kind of our groups that we do not have: Kurator has more of them than we.
var errUnknownKind = errors.New("ignored")

// group reads the CRDs of a group.
func (a admissions) group(group string) (map[schema.GroupVersionKind]func() (*admission, error), error) {
	if kinds, ok := a[group]; ok || !strings.HasSuffix(group, groupSuffix) {
		return kinds, nil
	}
	kinds := map[schema.GroupVersionKind]func() (*admission, error){}
	files, err := crd.Bases.ReadDir("bases")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if !strings.HasPrefix(file.Name(), group+"_") {
			continue
		}
		data, err := crd.Bases.ReadFile(path.Join("bases", file.Name()))
		if err != nil {
			return nil, err
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(data, &definition); err != nil {
			return nil, err
		}
		for _, version := range definition.Spec.Versions {
			gvk := schema.GroupVersionKind{Group: group, Version: version.Name, Kind: definition.Spec.Names.Kind}
			kinds[gvk] = sync.OnceValues(func() (*admission, error) { return newAdmission(version.Schema.OpenAPIV3Schema) })
		}
	}
	a[group] = kinds
	return kinds, nil
}

func newAdmission(properties *apiextensionsv1.JSONSchemaProps) (*admission, error) {
	var internal apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(properties, &internal, nil); err != nil {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(&internal)
	if err != nil {
		return nil, err
	}
	openAPI, _, err := schemavalidation.NewSchemaValidator(&internal)
	if err != nil {
		return nil, err
	}
	return &admission{structural, openAPI, cel.NewValidator(structural, true, celconfig.PerCallLimit)}, nil
}

// refusal says why an object is refused; path is that of the field.
type refusal struct{ path, message string }

// admit does to an object what the API server does to one that kubectl creates: unknown fields are refused, defaults
// filled in, schema and rules checked.
//
// A live object, which another version of the CRD may have admitted, is not refused for fields that are not known, or by
// rules, and keeps its status.
func (a *admission) admit(object map[string]any, live bool) (refusals []refusal) {
	meta, _, unknown, err := objectmeta.GetObjectMetaWithOptions(object, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true})
	if err != nil {
		if errs := checkStrings(object); len(errs) > 0 {
			return toRefusals(errs)
		}
		return []refusal{{"metadata", err.Error()}}
	}
	if meta == nil || meta.Name == "" {
		return []refusal{{"metadata.name", "Required value"}}
	}
	unknown = append(unknown, pruning.PruneWithOptions(object, a.structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})...)
	if !live {
		for _, path := range unknown {
			refusals = append(refusals, refusal{path, "unknown field"})
		}
	}
	status, hasStatus := object["status"]
	delete(object, "status")
	defaulting.PruneNonNullableNullsWithoutDefaults(object, a.structural)
	defaulting.Default(object, a.structural)

	errs := validation.ValidateObjectMeta(meta, true, validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	errs = append(errs, schemavalidation.ValidateCustomResource(nil, object, a.openAPI)...)
	errs = append(errs, objectmeta.Validate(nil, object, a.structural, false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, a.structural, object)...)
	// The rules are for what the schema has let pass, and not for what the hub has let pass: of that, an inventory has only a part.
	if len(errs) == 0 && !live {
		errs, _ = a.rules.Validate(context.Background(), nil, a.structural, object, nil, celconfig.RuntimeCELCostBudget)
	}
	if live && hasStatus {
		object["status"] = status
	}
	return append(refusals, toRefusals(errs)...)
}

func toRefusals(errs field.ErrorList) []refusal {
	var out []refusal
	for _, err := range errs {
		// The path of the whole object comes out as <nil>.
		out = append(out, refusal{strings.TrimPrefix(err.Field, "<nil>"), err.ErrorBody()})
	}
	return out
}

// checkStrings says which label or annotation is not a string; the decoder only says that one is not.
func checkStrings(object map[string]any) (errs field.ErrorList) {
	metadata, _ := object["metadata"].(map[string]any)
	for _, name := range []string{"labels", "annotations"} {
		values, _ := metadata[name].(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(values)) {
			if _, ok := values[key].(string); !ok && values[key] != nil {
				errs = append(errs, field.TypeInvalid(field.NewPath("metadata", name).Key(key), values[key], "must be a string: put it into quotes"))
			}
		}
	}
	return errs
}
