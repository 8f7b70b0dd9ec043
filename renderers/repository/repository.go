// Package repository renders all that a repository declares: what the command line prints and compares, from the functions
// that the controllers call for each object.
package repository

import (
	"cmp"
	"slices"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/baseline"
	"github.com/fleetwright/fleetwright/renderers/plugin"
	"github.com/fleetwright/fleetwright/renderers/rule"
)

// Rendered is what a repository renders to.
type Rendered struct {
	// Result has the objects of all kinds, and all problems.
	application.Result
	// Declared is what was declared, with the Applications that were made of the other kinds.
	Declared application.Declared

	baselines *baseline.Composition
	plugins   *plugin.Composition
	rules     *rule.Composition
}

// Render renders a repository. Find returns a plugin, or a type of rules, that the objects of a namespace may use, and the
// config that it has there under their own; nil if there is none. Types are the names of the types of rules that there are.
func Render(d application.Declared, find func(namespace, name string) (*plugin.Plugin, map[string]any), types []string) *Rendered {
	r := &Rendered{}
	d, r.plugins = plugin.Compose(d, find)
	d, r.baselines = baseline.Compose(d)
	d, r.rules = rule.Compose(d, find, types)
	r.Declared = d
	d.Applications = slices.Clone(d.Applications)
	for i, app := range d.Applications {
		if kind, _ := r.Written(app.Namespace, app.Name); kind != appsv1.ApplicationKind {
			d.Applications[i] = withDefaults(app)
		}
	}
	r.Result = application.Render(d)
	r.rules.Explain(r.Problems)
	r.Objects = slices.Concat(r.baselines.Artifacts(), r.plugins.Artifacts(), r.rules.Artifacts(), r.Objects)
	r.Problems = slices.Concat(r.plugins.Problems, r.baselines.Problems, r.rules.Problems, r.Problems)
	return r
}

// Files returns the published files that a Kustomization applies; nil if it applies something else.
func (r *Rendered) Files(x application.Rendered) map[string][]byte {
	if files := r.baselines.Files(x); files != nil {
		return files
	}
	if files := r.plugins.Files(x); files != nil {
		return files
	}
	return r.rules.Files(x)
}

// Origin is the field that an object in published files, or a chart of a plugin, comes from.
type Origin struct {
	// Path is in what Written names; empty if it is not one field.
	Path string
	// Plugin is the name of the plugin that makes the object, and RuleType that of the type of rules; empty if there is none.
	Plugin, RuleType string
}

// Origin returns what an object on members comes from that an Application delivers which nobody has written.
func (r *Rendered) Origin(namespace, app string, object baseline.Key) Origin {
	use := r.plugins.UseOf(namespace, app)
	path, ruleType := r.rules.PathOf(namespace, app, object)
	return Origin{Path: cmp.Or(r.baselines.PathOf(namespace, app, object), use.Path, path), Plugin: use.Name, RuleType: ruleType}
}

// Written returns the kind and name of what people have written to get an Application.
func (r *Rendered) Written(namespace, app string) (kind, name string) {
	if config := r.baselines.ConfigOf(namespace, app); config != nil {
		return config.Kind, config.Name
	}
	if fleet := r.plugins.FleetOf(namespace, app); fleet != nil {
		return fleetv1.FleetKind, fleet.Name
	}
	if set := r.rules.SetOf(namespace, app); set != nil {
		return set.Kind.Kind, set.Name
	}
	return appsv1.ApplicationKind, app
}
