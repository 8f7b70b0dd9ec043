package repository

import (
	"encoding/json"
	"fmt"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"sigs.k8s.io/yaml"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	"github.com/fleetwright/fleetwright/config/crd"
)

// withDefaults returns an Application that was made of something else as the API server has it when it is applied: that fills in
// the defaults, and the controller renders what comes out.
func withDefaults(app *appsv1.Application) *appsv1.Application {
	out, err := applyDefaults(app)
	if err != nil { // of an Application, and of our own CRD
		panic(fmt.Sprintf("Application %s: %v", app.Name, err))
	}
	return out
}

func applyDefaults(app *appsv1.Application) (*appsv1.Application, error) {
	schema, err := applicationSchema()
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(app)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := json.Unmarshal(b, &tree); err != nil {
		return nil, err
	}
	defaulting.PruneNonNullableNullsWithoutDefaults(tree, schema)
	defaulting.Default(tree, schema)
	if b, err = json.Marshal(tree); err != nil {
		return nil, err
	}
	out := &appsv1.Application{}
	return out, json.Unmarshal(b, out)
}

var applicationSchema = sync.OnceValues(func() (*structuralschema.Structural, error) {
	b, err := crd.Bases.ReadFile("bases/apps.kurator.dev_applications.yaml")
	if err != nil {
		return nil, err
	}
	var definition apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(b, &definition); err != nil {
		return nil, err
	}
	var properties apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(definition.Spec.Versions[0].Schema.OpenAPIV3Schema, &properties, nil); err != nil {
		return nil, err
	}
	return structuralschema.NewStructural(&properties)
})
