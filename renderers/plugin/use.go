package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

// Use is how a fleet uses a plugin.
type Use struct {
	// Name of the plugin.
	Name string
	// Path of the field of the fleet, for people.
	Path string
	// Config is what the fleet configures. Numbers are json.Number.
	Config map[string]any
	fleetv1.PluginOptions
}

// Uses returns the plugins that a fleet uses, sorted by name: the fields of spec.plugin, and the items of spec.plugins.
func Uses(fleet *fleetv1.Fleet) ([]Use, error) {
	var uses []Use
	if fleet.Spec.Plugin != nil {
		b, err := json.Marshal(fleet.Spec.Plugin)
		if err != nil {
			return nil, fmt.Errorf("spec.plugin: %w", err)
		}
		fields, err := decode(b)
		if err != nil {
			return nil, fmt.Errorf("spec.plugin: %w", err)
		}
		for name, v := range fields {
			u := Use{Name: name, Path: "spec.plugin." + name, Config: v.(map[string]any)}
			b, err := json.Marshal(v)
			if err != nil {
				return nil, err
			}
			if err := json.Unmarshal(b, &u.PluginOptions); err != nil {
				return nil, fmt.Errorf("spec.plugin.%s: %w", name, err)
			}
			delete(u.Config, "components")
			delete(u.Config, "deletionPolicy")
			uses = append(uses, u)
		}
	}
	for i, p := range fleet.Spec.Plugins {
		u := Use{Name: p.Name, Path: fmt.Sprintf("spec.plugins[%d]", i), PluginOptions: p.PluginOptions}
		if p.Config != nil && string(p.Config.Raw) != "null" {
			var err error
			if u.Config, err = decode(p.Config.Raw); err != nil {
				return nil, fmt.Errorf("spec.plugins[%d].config: has to be a map", i)
			}
		}
		uses = append(uses, u)
	}
	slices.SortStableFunc(uses, func(a, b Use) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(uses); i++ {
		if strings.EqualFold(uses[i].Name, uses[i-1].Name) {
			return nil, fmt.Errorf("%s: the fleet has plugin %s already: %s", uses[i].Path, uses[i].Name, uses[i-1].Path)
		}
	}
	return uses, nil
}

// parameters checks what fleets configure.
type parameters struct {
	structural *structuralschema.Structural
	openAPI    schemavalidation.SchemaValidator
	rules      *cel.Validator
}

// checkParameters compiles the schema of what a fleet may configure.
func (p *Plugin) checkParameters() error {
	if p.Spec.Parameters == nil {
		return nil
	}
	root := p.Spec.Parameters.DeepCopy()
	if root.Type == "" {
		root.Type = "object"
	}
	var internal apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(root, &internal, nil); err != nil {
		return err
	}
	structural, err := structuralschema.NewStructural(&internal)
	if err != nil {
		return err
	}
	if errs := structuralschema.ValidateStructural(nil, structural); len(errs) > 0 {
		return errs.ToAggregate()
	}
	openAPI, _, err := schemavalidation.NewSchemaValidator(&internal)
	if err != nil {
		return err
	}
	p.parameters = &parameters{structural, openAPI, cel.NewValidator(structural, true, celconfig.PerCallLimit)}
	return nil
}

// config returns what the fleet configures, checked and with defaults.
func (r *rendering) config() (map[string]any, error) {
	config := map[string]any{}
	maps.Copy(config, r.in.Use.Config)
	if r.parameters == nil {
		return config, nil
	}
	config = native(config).(map[string]any) // a copy, which defaults are filled into
	unknown := pruning.PruneWithOptions(config, r.parameters.structural, false, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	if len(unknown) > 0 {
		return nil, fmt.Errorf("config.%s: unknown field", unknown[0])
	}
	defaulting.Default(config, r.parameters.structural)
	errs := schemavalidation.ValidateCustomResource(nil, config, r.parameters.openAPI)
	if len(errs) == 0 {
		errs, _ = r.parameters.rules.Validate(context.Background(), nil, r.parameters.structural, config, nil, celconfig.RuntimeCELCostBudget)
	}
	for _, err := range errs {
		return nil, fmt.Errorf("config.%s: %s", strings.TrimPrefix(err.Field, "<nil>"), err.ErrorBody())
	}
	return config, nil
}
