// Package plugin renders the plugins of fleets: from their definitions, which are data, to the Application that delivers
// each of them, and the files that it delivers.
package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/fluxcd/pkg/apis/kustomize"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
)

// The header of a definition, and the file of a plugin's folder that it is in.
const (
	DefinitionAPIVersion = "kurator.dev/v1alpha1"
	DefinitionKind       = "Plugin"
	RuleTypeKind         = "RuleType"
	DefinitionFile       = "plugin.yaml"
)

// Definition says what a plugin consists of: the plugin.yaml in its folder. docs/plugins.md explains it to those who write one.
//
// Strings marked as templates may hold ${ CEL } with the variables config, fleet (name, id, namespace, clusters, plugins) and
// vars, and, where said, members, facts and cluster (name, kind, labels, ready, facts, kubernetes). A string that is nothing else becomes what the expression is, a list say; a field or list item whose
// expression is an empty optional (config.?size) is left out. $${ stands for ${.
type Definition struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		// Name of the plugin, which is that of its field in a Fleet.
		Name string `json:"name"`
	} `json:"metadata"`
	Spec Spec `json:"spec"`
}

// Spec is what a Definition says.
type Spec struct {
	// Description is for people, in a sentence.
	Description string `json:"description,omitempty"`
	// Parameters is the OpenAPI v3 schema of what a fleet may configure. A plugin that is a field of the Fleet has it there.
	Parameters *apiextensionsv1.JSONSchemaProps `json:"parameters,omitempty"`
	// DeletionPolicy is what happens on a member that leaves if the fleet does not say: Delete, the default, or Orphan.
	DeletionPolicy string `json:"deletionPolicy,omitempty"`
	// After lists plugins that come first on every member, where the fleet has them.
	After []string `json:"after,omitempty"`
	// Vars are CEL expressions with the variables config and fleet, that the templates may use as vars.<name>.
	Vars map[string]string `json:"vars,omitempty"`
	// Rules are what has to hold for a fleet; else nothing of the plugin changes. They have members and facts.
	Rules []Rule `json:"rules,omitempty"`
	// MemberRules are what has to hold for a member; else nothing of the plugin changes there. They have cluster and members.
	MemberRules []Rule `json:"memberRules,omitempty"`
	// Warnings are said, and hinder nothing.
	Warnings []Rule `json:"warnings,omitempty"`
	// Generated are random texts, made once for a fleet and kept in a Secret on the hub.
	Generated []Generated `json:"generated,omitempty"`
	// Facts are what is read from members.
	Facts []Fact `json:"facts,omitempty"`
	// Components are what is installed.
	Components []Component `json:"components,omitempty"`

	// Policies, those of other types, and Objects are what a rule of a ClusterCompliance becomes, in a definition of kind
	// RuleType, which has nothing else of the above but description, parameters, vars and rules.
	Policies []RulePolicy  `json:"policies,omitempty"`
	Include  []RuleInclude `json:"include,omitempty"`
	Objects  []RuleObject  `json:"objects,omitempty"`
}

// Rule is what has to hold.
type Rule struct {
	// Rule is a CEL expression that is true when all is well.
	Rule string `json:"rule"`
	// Message is a template that says what is wrong, and what to do.
	Message string `json:"message"`
}

// Generated is a random text.
type Generated struct {
	// Name is the key in the Secret.
	Name string `json:"name"`
	// Length in characters, letters and digits. Defaults to 48.
	Length int `json:"length,omitempty"`
}

// Fact is something that is read from a member. Exactly one of Resource and Kubeconfig is set.
type Fact struct {
	Name string `json:"name"`
	// When is a CEL expression that says whether the fact is wanted; left out, it is.
	When string `json:"when,omitempty"`
	// From is a template for the name of the one member to read; left out, all are read. The fact of one member is
	// facts.<name>, that of each is cluster.facts.<name>; has() tells whether it is there.
	From string `json:"from,omitempty"`
	// Resource is the object to read.
	Resource *ResourceReference `json:"resource,omitempty"`
	// Value is a CEL expression over object; an empty optional, or an empty string, means that it is not there yet.
	Value string `json:"value,omitempty"`
	// Kubeconfig is what to read of the member's kubeconfig: server is the host and port of its API server.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Secret keeps the value in a Secret on the hub, for valuesFrom alone, and out of every expression. It needs from.
	Secret bool `json:"secret,omitempty"`
	// Endpoint shows the value in status.pluginEndpoints of the Fleet.
	Endpoint bool `json:"endpoint,omitempty"`
}

// ResourceReference names an object on a member.
type ResourceReference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Plural is the resource in the URL; left out, it is the kind in lower case with an s.
	Plural string `json:"plural,omitempty"`
	// Namespace and Name are templates.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// The places where a component runs, beside the name of a member.
const (
	OnMembers = "members"
	OnHub     = "hub"
)

// Component is one release of a chart, a set of objects, or a Secret. Exactly one of Chart, Objects and Secret is set.
type Component struct {
	// Name of the component, by which a fleet addresses it.
	Name string `json:"name"`
	// When is a CEL expression that says whether the component is there; left out, it is.
	When string `json:"when,omitempty"`
	// RunsOn says where it runs: members, the default, hub, or a template for the name of one member.
	RunsOn string `json:"runsOn,omitempty"`
	// DependsOn lists components that come first on every member that has both.
	DependsOn []string `json:"dependsOn,omitempty"`
	// Needs lists facts of one member, and generated texts, that have to be known before it is written.
	Needs []string `json:"needs,omitempty"`
	// Kubernetes is the range of versions that a member may have, >=1.31 say. Left out, any.
	Kubernetes string `json:"kubernetes,omitempty"`

	// Chart is the Helm chart.
	Chart *Chart `json:"chart,omitempty"`
	// Objects are Kubernetes objects; their strings are templates. Those of members may hold << .cluster.name >> too.
	Objects []map[string]any `json:"objects,omitempty"`
	// Secret is made on the member from Secrets of the hub.
	Secret *Secret `json:"secret,omitempty"`

	// Release is the name of the Helm release; a template. Defaults to the component's name.
	Release string `json:"release,omitempty"`
	// Namespace of the release; a template.
	Namespace string `json:"namespace,omitempty"`
	// Values for the chart; their strings are templates with members and facts.
	Values map[string]any `json:"values,omitempty"`
	// MemberValues are values for some members, over the others.
	MemberValues []MemberValues `json:"memberValues,omitempty"`
	// ValuesFrom are values that only Secrets of the hub hold.
	ValuesFrom []ValueFrom `json:"valuesFrom,omitempty"`
	// Options is where in config the fleet's chart and extraArgs for the component are: a path, or . for config itself.
	// Left out, only components.<name> of the fleet adjusts it.
	Options string `json:"options,omitempty"`
	// CRDs is what Flux does with the CRDs in the chart's crds folder: CreateReplace, the default, Create or Skip.
	CRDs string `json:"crds,omitempty"`
	// Timeout of an install or upgrade. Defaults to 15m.
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// HealthCheckExprs say when custom resources of the component are ready.
	HealthCheckExprs []kustomize.CustomHealthCheck `json:"healthCheckExprs,omitempty"`
}

// Chart says where a chart comes from.
type Chart struct {
	// Repository is oci://... without the chart's name, or https://... of an index.
	Repository string `json:"repository"`
	Name       string `json:"name"`
	// Version, exact.
	Version string `json:"version"`
	// Digest of an OCI chart, sha256:... ; it is what is fetched, whatever the version.
	Digest string `json:"digest,omitempty"`
}

// MemberValues are values for the members for which When holds.
type MemberValues struct {
	// When is a CEL expression with cluster; left out, it holds for all.
	When string `json:"when,omitempty"`
	// Values have cluster in their templates.
	Values map[string]any `json:"values"`
}

// ValueFrom takes one value from a Secret on the hub. Exactly one of SecretName, Fact and Generated is set.
type ValueFrom struct {
	// SecretName is a template for the name of a Secret in the fleet's namespace; empty leaves the value out.
	SecretName string `json:"secretName,omitempty"`
	// Key in that Secret.
	Key string `json:"key,omitempty"`
	// Fact is the name of a secret fact, and Generated that of a generated text.
	Fact      string `json:"fact,omitempty"`
	Generated string `json:"generated,omitempty"`
	// TargetPath is where the value goes, as in --set-literal of Helm.
	TargetPath string `json:"targetPath"`
}

// Secret is a Secret on a member that has what Secrets of the hub have, byte for byte.
type Secret struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	// Data by key: the parts of each, joined.
	Data map[string][]Part `json:"data"`
}

// Part is literal text, or what a Secret on the hub has.
type Part struct {
	Text string `json:"text,omitempty"`
	// SecretName is a template for the name of a Secret in the fleet's namespace, and Key its key.
	SecretName string `json:"secretName,omitempty"`
	Key        string `json:"key,omitempty"`
}

// Plugin is a Definition that was checked and compiled.
type Plugin struct {
	*Definition
	env        *environment
	parameters *parameters
	// included are the types of Spec.Include, once LoadAll has found them.
	included []*Plugin
}

// Load reads the plugin in a folder. The error names the field.
func Load(dir fs.FS) (*Plugin, error) { return load(dir, Parse) }

func load(dir fs.FS, parse func([]byte) (*Plugin, error)) (*Plugin, error) {
	b, err := fs.ReadFile(dir, DefinitionFile)
	if err != nil {
		return nil, fmt.Errorf("a plugin is a folder with a %s: %w", DefinitionFile, err)
	}
	p, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", DefinitionFile, err)
	}
	return p, nil
}

// Parse reads a definition that does not come with Fleetwright. The error names the field.
func Parse(b []byte) (*Plugin, error) {
	p, err := parseAny(b)
	if err == nil && len(p.Spec.Include) > 0 {
		err = errors.New("spec.include: only types that come with Fleetwright include others")
	}
	return p, err
}

func parseAny(b []byte) (*Plugin, error) {
	b, err := yaml.YAMLToJSONStrict(b)
	if err != nil {
		return nil, err
	}
	d := &Definition{}
	decoder := json.NewDecoder(bytes.NewReader(b))
	decoder.DisallowUnknownFields()
	decoder.UseNumber()
	if err := decoder.Decode(d); err != nil {
		return nil, wrongField(err)
	}
	if d.APIVersion != DefinitionAPIVersion || d.Kind != DefinitionKind && d.Kind != RuleTypeKind {
		return nil, fmt.Errorf("apiVersion has to be %s, and kind %s or %s", DefinitionAPIVersion, DefinitionKind, RuleTypeKind)
	}
	if errs := validation.IsDNS1035Label(strings.ToLower(d.Metadata.Name)); len(errs) > 0 {
		return nil, fmt.Errorf("metadata.name: %q: has to be a letter, and then letters, digits and dashes", d.Metadata.Name)
	}
	env, err := newEnvironment()
	if err != nil {
		return nil, err
	}
	p := &Plugin{Definition: d, env: env}
	return p, p.check()
}

// wrongField says what is wrong with a field that cannot be decoded, without the names of Go.
func wrongField(err error) error {
	typed := (*json.UnmarshalTypeError)(nil)
	if !errors.As(err, &typed) {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	wanted := "a number"
	switch typed.Type.Kind() {
	case reflect.Map, reflect.Struct:
		wanted = "a map"
	case reflect.Slice:
		wanted = "a list"
	case reflect.String:
		wanted = "a text"
	case reflect.Bool:
		wanted = "true or false"
	}
	if typed.Field == "" {
		return fmt.Errorf("has to be %s", wanted)
	}
	return fmt.Errorf("%s: has to be %s", typed.Field, wanted)
}

// LoadAll reads the plugins and types of rules in the folders of folders, by name. Those are the ones that come with
// Fleetwright.
func LoadAll(dirs ...fs.FS) (map[string]*Plugin, error) {
	plugins := map[string]*Plugin{}
	for _, dir := range dirs {
		entries, err := fs.ReadDir(dir, ".")
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if !e.IsDir() {
				continue
			}
			sub, err := fs.Sub(dir, e.Name())
			if err != nil {
				return nil, err
			}
			p, err := load(sub, parseAny)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", e.Name(), err)
			}
			if plugins[p.Metadata.Name] != nil {
				return nil, fmt.Errorf("%s: metadata.name: there is a plugin %s already", path.Join(e.Name(), DefinitionFile), p.Metadata.Name)
			}
			plugins[p.Metadata.Name] = p
		}
	}
	if err := include(plugins); err != nil {
		return nil, err
	}
	return plugins, nil
}

// check checks what a decoder does not, and compiles every expression.
func (p *Plugin) check() error {
	s := &p.Spec
	switch {
	case p.IsRuleType():
		if err := s.onlyRuleType(); err != nil {
			return err
		}
	case len(s.Policies)+len(s.Include)+len(s.Objects) > 0:
		return fmt.Errorf("spec.policies, spec.include and spec.objects are for kind %s", RuleTypeKind)
	case len(s.Components) == 0:
		return errors.New("spec.components: there is none")
	}
	if s.DeletionPolicy != "" && s.DeletionPolicy != appsv1.DeletionPolicyDelete && s.DeletionPolicy != appsv1.DeletionPolicyOrphan {
		return fmt.Errorf("spec.deletionPolicy: %q: has to be Delete or Orphan", s.DeletionPolicy)
	}
	if err := p.checkParameters(); err != nil {
		return fmt.Errorf("spec.parameters: %w", err)
	}
	p.env.known = p.known()
	c := checker{p: p}
	for _, name := range slices.Sorted(maps.Keys(s.Vars)) {
		c.expr("spec.vars."+name, s.Vars[name], varVars)
	}
	ofRules := varFleet
	if p.IsRuleType() {
		ofRules = varRule
	}
	for _, rules := range []struct {
		path  string
		rules []Rule
		vars  variables
	}{{"spec.rules", s.Rules, ofRules}, {"spec.memberRules", s.MemberRules, varMember}, {"spec.warnings", s.Warnings, varFleet}} {
		for i, r := range rules.rules {
			c.expr(fmt.Sprintf("%s[%d].rule", rules.path, i), r.Rule, rules.vars)
			c.template(fmt.Sprintf("%s[%d].message", rules.path, i), r.Message, rules.vars)
			if r.Message == "" {
				c.fail("%s[%d].message: is missing: say what is wrong, and what to do", rules.path, i)
			}
		}
	}
	known := map[string]bool{}
	for i, g := range s.Generated {
		c.name(fmt.Sprintf("spec.generated[%d].name", i), g.Name, known)
		if g.Length < 0 || g.Length > 4096 {
			c.fail("spec.generated[%d].length: has to be between 1 and 4096", i)
		}
	}
	for i := range s.Facts {
		c.fact(fmt.Sprintf("spec.facts[%d]", i), &s.Facts[i], known)
	}
	seen := map[string]bool{}
	for i := range s.Components {
		c.component(fmt.Sprintf("spec.components[%d]", i), &s.Components[i], seen)
	}
	c.ruleType()
	return c.err
}

// checker keeps the first error.
type checker struct {
	p   *Plugin
	err error
}

func (c *checker) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *checker) expr(path, text string, vars variables) {
	if _, err := c.p.env.program(text, vars); err != nil {
		c.fail("%s: %v", path, err)
	}
}

func (c *checker) template(path string, value any, vars variables) {
	if err := c.p.env.check(value, vars); err != nil {
		c.fail("%s%v", path, err)
	}
}

func (c *checker) name(path, name string, known map[string]bool) {
	if errs := validation.IsDNS1123Label(strings.ToLower(name)); len(errs) > 0 {
		c.fail("%s: %q: has to be letters, digits and dashes", path, name)
	}
	if known[name] || known[strings.ToLower(name)] {
		c.fail("%s: there is a %s already", path, name)
	}
	known[name], known[strings.ToLower(name)] = true, true
}

func (c *checker) fact(path string, f *Fact, known map[string]bool) {
	c.name(path+".name", f.Name, known)
	if f.When != "" {
		c.expr(path+".when", f.When, varConfig)
	}
	c.template(path+".from", f.From, varConfig)
	switch {
	case (f.Resource != nil) == (f.Kubeconfig != ""):
		c.fail("%s: exactly one of resource and kubeconfig is needed", path)
	case f.Kubeconfig != "" && f.Kubeconfig != "server":
		c.fail("%s.kubeconfig: %q: has to be server", path, f.Kubeconfig)
	case f.Resource != nil:
		if f.Resource.APIVersion == "" || f.Resource.Kind == "" || f.Resource.Name == "" {
			c.fail("%s.resource: apiVersion, kind and name are needed", path)
		}
		c.template(path+".resource.namespace", f.Resource.Namespace, varConfig)
		c.template(path+".resource.name", f.Resource.Name, varConfig)
		c.expr(path+".value", f.Value, varObject)
	}
	if f.Secret && f.From == "" {
		c.fail("%s.from: a secret is read from one member: say which", path)
	}
	if f.Secret && f.Endpoint {
		c.fail("%s.endpoint: a secret is shown nowhere", path)
	}
	if f.Resource != nil && !f.Secret && (strings.EqualFold(f.Resource.Kind, "Secret") || strings.EqualFold(f.Resource.Plural, "secrets")) {
		c.fail("%s.secret: what is in a Secret is one: set secret", path)
	}
	if f.Resource != nil && strings.ContainsAny(f.Resource.Kind+f.Resource.Plural+f.Resource.APIVersion, "${}?#%") {
		c.fail("%s.resource: apiVersion, kind and plural are no templates", path)
	}
}

func (c *checker) component(path string, k *Component, seen map[string]bool) {
	c.name(path+".name", k.Name, seen)
	if k.When != "" {
		c.expr(path+".when", k.When, varConfig)
	}
	c.template(path+".runsOn", k.RunsOn, varConfig)
	for i, name := range k.DependsOn {
		if !seen[name] || name == k.Name {
			c.fail("%s.dependsOn[%d]: there is no component %q before this one", path, i, name)
		}
	}
	for i, name := range k.Needs {
		f := c.p.fact(name)
		if f == nil && !c.p.generates(name) || f != nil && f.From == "" {
			c.fail("%s.needs[%d]: %q is no fact of one member, and nothing that is generated", path, i, name)
		}
	}
	if _, err := parseRange(k.Kubernetes); err != nil {
		c.fail("%s.kubernetes: %v", path, err)
	}
	n := 0
	for _, set := range []bool{k.Chart != nil, len(k.Objects) > 0, k.Secret != nil} {
		if set {
			n++
		}
	}
	if n != 1 {
		c.fail("%s: exactly one of chart, objects and secret is needed", path)
		return
	}
	if k.Chart == nil && (k.Values != nil || k.MemberValues != nil || k.ValuesFrom != nil || k.Options != "" || k.Release != "") {
		c.fail("%s: release, values, memberValues, valuesFrom and options are for a chart", path)
	}
	switch {
	case k.Chart != nil:
		c.chart(path, k)
	case k.Secret != nil:
		c.secret(path+".secret", k.Secret)
	default:
		for i, o := range k.Objects {
			at := fmt.Sprintf("%s.objects[%d]", path, i)
			c.template(at, o, varConfig)
			if o == nil {
				c.fail("%s: has to be an object", at)
			}
			if o["kind"] == "Secret" {
				c.fail("%s: a Secret is not published: use secret", at)
			}
		}
		if k.RunsOn == OnHub {
			c.fail("%s.runsOn: objects are for members", path)
		}
	}
}

func (c *checker) chart(path string, k *Component) {
	if k.Chart.Repository == "" || k.Chart.Name == "" || k.Chart.Version == "" {
		c.fail("%s.chart: repository, name and version are needed", path)
	}
	if err := checkRepository(k.Chart.Repository); err != nil {
		c.fail("%s.%v", path, err)
	}
	if k.Chart.Digest != "" && !strings.HasPrefix(k.Chart.Repository, "oci://") {
		c.fail("%s.chart.digest: is for a chart of oci://", path)
	}
	if k.Namespace == "" {
		c.fail("%s.namespace: is missing", path)
	}
	if k.CRDs != "" && !slices.Contains([]string{"CreateReplace", "Create", "Skip"}, k.CRDs) {
		c.fail("%s.crds: %q: has to be CreateReplace, Create or Skip", path, k.CRDs)
	}
	c.template(path+".namespace", k.Namespace, varConfig)
	c.template(path+".release", k.Release, varConfig)
	c.template(path+".values", k.Values, varFleet)
	for i, m := range k.MemberValues {
		if m.When != "" {
			c.expr(fmt.Sprintf("%s.memberValues[%d].when", path, i), m.When, varMember)
		}
		c.template(fmt.Sprintf("%s.memberValues[%d].values", path, i), m.Values, varMember)
	}
	for i, v := range k.ValuesFrom {
		at := fmt.Sprintf("%s.valuesFrom[%d]", path, i)
		n := 0
		for _, s := range []string{v.SecretName, v.Fact, v.Generated} {
			if s != "" {
				n++
			}
		}
		f := c.p.fact(v.Fact)
		switch {
		case n != 1:
			c.fail("%s: exactly one of secretName, fact and generated is needed", at)
		case v.TargetPath == "":
			c.fail("%s.targetPath: is missing", at)
		case v.SecretName != "" && v.Key == "":
			c.fail("%s.key: is missing", at)
		case v.Fact != "" && (f == nil || !f.Secret):
			c.fail("%s.fact: %q is no secret fact", at, v.Fact)
		case v.Generated != "" && !c.p.generates(v.Generated):
			c.fail("%s.generated: nothing generates %q", at, v.Generated)
		}
		c.template(at+".secretName", v.SecretName, varConfig)
	}
}

func (c *checker) secret(path string, s *Secret) {
	if s.Name == "" || s.Namespace == "" || len(s.Data) == 0 {
		c.fail("%s: name, namespace and data are needed", path)
	}
	for key, parts := range s.Data {
		for i, part := range parts {
			at := fmt.Sprintf("%s.data[%q][%d]", path, key, i)
			if (part.SecretName != "") != (part.Key != "") || (part.SecretName != "") == (part.Text != "") {
				c.fail("%s: either text, or secretName and key are needed", at)
			}
			c.template(at+".secretName", part.SecretName, varConfig)
		}
	}
}

// fact returns the fact of a name; nil if there is none.
func (p *Plugin) fact(name string) *Fact {
	for i := range p.Spec.Facts {
		if p.Spec.Facts[i].Name == name {
			return &p.Spec.Facts[i]
		}
	}
	return nil
}

func (p *Plugin) generates(name string) bool {
	return slices.ContainsFunc(p.Spec.Generated, func(g Generated) bool { return g.Name == name })
}
