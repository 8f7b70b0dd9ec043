package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
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
	// Err is what is wrong with it.
	Err error
}

// Uses returns the plugins that a fleet uses, sorted by name: the fields of spec.plugin, and the items of spec.plugins. What
// is wrong with one is in its Err.
func Uses(fleet *fleetv1.Fleet) []Use {
	var uses []Use
	if fleet.Spec.Plugin != nil {
		plugins := reflect.ValueOf(fleet.Spec.Plugin).Elem()
		for i := range plugins.NumField() {
			if plugins.Field(i).IsNil() {
				continue
			}
			name := fieldName(plugins.Type().Field(i))
			u := Use{Name: name, Path: "spec.plugin." + name}
			b, err := json.Marshal(plugins.Field(i).Interface())
			if err == nil {
				u.Config, err = decode(b)
			}
			if err == nil {
				err = json.Unmarshal(b, &u.PluginOptions)
			}
			u.Err = err
			delete(u.Config, "components")
			delete(u.Config, "deletionPolicy")
			uses = append(uses, u)
		}
	}
	for i, p := range fleet.Spec.Plugins {
		u := Use{Name: p.Name, Path: fmt.Sprintf("spec.plugins[%d]", i), PluginOptions: p.PluginOptions}
		if name := ofFleet(p.Name); name != "" {
			u.Err = fmt.Errorf("%s comes with Fleetwright: configure it in spec.plugin.%s", p.Name, name)
		}
		if p.Config != nil && string(p.Config.Raw) != "null" {
			var err error
			if u.Config, err = decode(p.Config.Raw); err != nil {
				u.Err = errors.New("config: has to be a map")
			}
		}
		uses = append(uses, u)
	}
	slices.SortStableFunc(uses, func(a, b Use) int { return strings.Compare(lower(a.Name), lower(b.Name)) })
	// One name is one Application.
	var out []Use
	for _, u := range uses {
		if n := len(out); n > 0 && strings.EqualFold(out[n-1].Name, u.Name) {
			out[n-1].Err = fmt.Errorf("the fleet has it twice, in %s as well: take one out", u.Path)
			continue
		}
		out = append(out, u)
	}
	return out
}

// ofFleet returns the name of the field in spec.plugin that a name stands for; empty if there is none.
func ofFleet(name string) string {
	t := reflect.TypeFor[fleetv1.FleetPlugins]()
	for i := range t.NumField() {
		if field := fieldName(t.Field(i)); strings.EqualFold(field, name) {
			return field
		}
	}
	return ""
}

func fieldName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
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
	root := p.schema()
	if _, ok := root.Properties["enforce"]; ok && p.IsRuleType() {
		return errors.New("properties[enforce]: every rule has it already: give the parameter another name")
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
	if err := checkTypes("", structural); err != nil {
		return err
	}
	if errs, err := defaulting.ValidateDefaults(context.Background(), nil, structural, false, true); err != nil {
		return err
	} else if len(errs) > 0 {
		return errs.ToAggregate()
	}
	openAPI, _, err := schemavalidation.NewSchemaValidator(&internal)
	if err != nil {
		return err
	}
	p.parameters = &parameters{structural, openAPI, cel.NewValidator(structural, true, celconfig.PerCallLimit)}
	return nil
}

// schema returns the schema of the parameters.
func (p *Plugin) schema() *apiextensionsv1.JSONSchemaProps {
	root := p.Spec.Parameters.DeepCopy()
	root.Type = cmp.Or(root.Type, "object")
	return root
}

// checkTypes refuses types that no value has.
func checkTypes(path string, s *structuralschema.Structural) error {
	if !slices.Contains([]string{"", "array", "boolean", "integer", "number", "object", "string"}, s.Type) {
		return fmt.Errorf("%stype: %s: has to be array, boolean, integer, number, object or string", path, s.Type)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		property := s.Properties[name]
		if err := checkTypes(fmt.Sprintf("%sproperties[%s].", path, name), &property); err != nil {
			return err
		}
	}
	if s.Items != nil {
		return checkTypes(path+"items.", s.Items)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Structural != nil {
		return checkTypes(path+"additionalProperties.", s.AdditionalProperties.Structural)
	}
	return nil
}

// known returns the schemas of variables that are known before anything is rendered.
func (p *Plugin) known() map[string]apiextensionsv1.JSONSchemaProps {
	having := func(fields ...string) apiextensionsv1.JSONSchemaProps {
		s := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{}}
		for _, name := range fields {
			s.Properties[name] = apiextensionsv1.JSONSchemaProps{} // anything
		}
		return s
	}
	known := map[string]apiextensionsv1.JSONSchemaProps{
		"fleet": having("name", "id", "namespace", "clusters", "plugins"),
		"rule":  having("name", "id", "enforce"),
		"vars":  having(slices.Collect(maps.Keys(p.Spec.Vars))...),
	}
	if p.Spec.Parameters != nil {
		known["config"] = *p.schema()
	}
	return known
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
