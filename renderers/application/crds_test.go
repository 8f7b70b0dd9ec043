package application

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// crds do what an API server does with objects of their kinds, by group and kind.
type crds map[string]*crd

type crd struct {
	structural *schema.Structural
	schema     validation.SchemaValidator
	cel        *cel.Validator
}

// loadCRDs reads the CRDs in folders.
func loadCRDs(t testing.TB, folders ...string) crds {
	t.Helper()
	out := crds{}
	for _, folder := range folders {
		files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no CRDs in %s: %v", folder, err)
		}
		for _, file := range files {
			if err := out.load(file); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
		}
	}
	return out
}

func (c crds) load(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var declared apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(b, &declared); err != nil {
		return err
	}
	for _, version := range declared.Spec.Versions {
		if !version.Storage {
			continue
		}
		var internal apiextensions.JSONSchemaProps
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(version.Schema.OpenAPIV3Schema, &internal, nil); err != nil {
			return err
		}
		structural, err := schema.NewStructural(&internal)
		if err != nil {
			return err
		}
		validator, _, err := validation.NewSchemaValidator(&internal)
		if err != nil {
			return err
		}
		c[declared.Spec.Group+"/"+version.Name+" "+declared.Spec.Names.Kind] = &crd{structural, validator,
			cel.NewValidator(structural, true, celconfig.PerCallLimit)}
	}
	return nil
}

// admit fills in the defaults of an object and returns what an API server has against it.
func (c crds) admit(o *unstructured.Unstructured) error {
	crd := c[o.GetAPIVersion()+" "+o.GetKind()]
	if crd == nil {
		return fmt.Errorf("%s %s: no CRD", o.GetAPIVersion(), o.GetKind())
	}
	unknown := pruning.PruneWithOptions(o.Object, crd.structural, true, schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	defaulting.Default(o.Object, crd.structural)

	var errs []error
	for _, path := range unknown {
		errs = append(errs, fmt.Errorf("%s: unknown field", path))
	}
	all := apivalidation.ValidateObjectMetaAccessor(o, true, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	all = append(all, validation.ValidateCustomResource(nil, o.UnstructuredContent(), crd.schema)...)
	if crd.cel != nil {
		broken, _ := crd.cel.Validate(context.Background(), nil, crd.structural, o.Object, nil, celconfig.RuntimeCELCostBudget)
		all = append(all, broken...)
	}
	for _, err := range all {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s/%s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

// readDeclared reads the objects in files as an API server would take them.
func (c crds) readDeclared(files ...string) (Declared, error) {
	var d Declared
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return d, err
		}
		for _, doc := range strings.Split(string(b), "\n---\n") {
			j, err := yaml.YAMLToJSON([]byte(doc))
			if err != nil {
				return d, fmt.Errorf("%s: %w", file, err)
			}
			o := &unstructured.Unstructured{}
			if err := o.UnmarshalJSON(j); err != nil {
				return d, fmt.Errorf("%s: %w", file, err)
			}
			if err := c.admit(o); err != nil {
				return d, fmt.Errorf("%s: %w", file, err)
			}
			if err := d.add(o); err != nil {
				return d, fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return d, nil
}

func (d *Declared) add(o *unstructured.Unstructured) error {
	switch o.GetKind() {
	case "Application":
		return addTo(&d.Applications, o)
	case "Fleet":
		return addTo(&d.Fleets, o)
	case "AttachedCluster":
		return addTo(&d.AttachedClusters, o)
	default:
		return addTo(&d.Clusters, o)
	}
}

func addTo[T any](list *[]*T, o *unstructured.Unstructured) error {
	typed := new(T)
	*list = append(*list, typed)
	return runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, typed)
}
