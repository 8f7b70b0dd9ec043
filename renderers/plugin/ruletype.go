package plugin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
)

// SystemNamespaces are those that no rule ever looks at, nor puts anything in: of Kubernetes, of Flux, and of Kyverno.
var SystemNamespaces = []string{"kube-system", "kube-public", "kube-node-lease", "flux-system", "kyverno"}

// RulePolicy is a policy that a rule becomes: a rule of a FleetSecurityPolicy whose strings are templates with config, fleet,
// vars, rule (name, id, enforce) and excluded, the namespaces that are left alone.
type RulePolicy struct {
	// Name of the policy, part of its name on members. It may be left out where a type has one policy and includes none.
	Name string `json:"name,omitempty"`
	// When is a CEL expression that says whether the policy is there; left out, it is.
	When string `json:"when,omitempty"`
	// Severity, Match, Exclude and Validate are those of a rule in a FleetSecurityPolicy.
	Severity string         `json:"severity,omitempty"`
	Match    map[string]any `json:"match"`
	Exclude  map[string]any `json:"exclude,omitempty"`
	Validate map[string]any `json:"validate"`
}

// RuleInclude takes the policies of another type of rules: each under its name, and one that has none under that of the type.
type RuleInclude struct {
	// Type is the other type, which has no objects. Only types that come with Fleetwright include others.
	Type string `json:"type"`
	// Params are the other type's parameters; their strings are templates.
	Params map[string]any `json:"params,omitempty"`
}

// RuleObject is an object that a rule becomes on members.
type RuleObject struct {
	// When is a CEL expression that says whether the object is there; left out, it is.
	When string `json:"when,omitempty"`
	// ForEach is a CEL expression of a list: there is an object for each of its items, which templates know as item.
	ForEach string `json:"forEach,omitempty"`
	// Object has templates in its strings.
	Object map[string]any `json:"object"`
}

// RuleUse is how a rule uses a type.
type RuleUse struct {
	// Name of the rule, and ID, with which the names of what it becomes begin.
	Name, ID string
	// Enforce says that what breaks the rule is refused.
	Enforce bool
	// Params are checked against the type's parameters. Numbers are json.Number.
	Params map[string]any
	// Fleet is read for its name and namespace, the clusters that it lists, and the plugins that it uses.
	Fleet *fleetv1.Fleet
	// Excluded are the namespaces that are left alone.
	Excluded []string
}

// IsRuleType says whether a definition is a type of rules, and no plugin.
func (p *Plugin) IsRuleType() bool { return p.Kind == RuleTypeKind }

// onlyRuleType refuses what a type of rules has no use for.
func (s *Spec) onlyRuleType() error {
	if len(s.Policies)+len(s.Include)+len(s.Objects) == 0 {
		return errors.New("spec: a type of rules needs policies, include or objects")
	}
	if len(s.Components)+len(s.After)+len(s.MemberRules)+len(s.Warnings)+len(s.Generated)+len(s.Facts) > 0 || s.DeletionPolicy != "" {
		return errors.New("spec: a type of rules has description, parameters, vars, rules, policies, include and objects, and nothing else")
	}
	return nil
}

// ruleType checks policies and objects.
func (c *checker) ruleType() {
	names := map[string]bool{}
	for i, policy := range c.p.Spec.Policies {
		at := fmt.Sprintf("spec.policies[%d]", i)
		if policy.Name != "" || len(c.p.Spec.Policies)+len(c.p.Spec.Include) > 1 {
			c.name(at+".name", policy.Name, names)
		}
		if policy.When != "" {
			c.expr(at+".when", policy.When, varRule)
		}
		c.template(at+".severity", policy.Severity, varRule)
		c.template(at+".match", policy.Match, varRule)
		c.template(at+".exclude", policy.Exclude, varRule)
		c.template(at+".validate", policy.Validate, varRule)
	}
	for i, in := range c.p.Spec.Include {
		c.template(fmt.Sprintf("spec.include[%d].params", i), in.Params, varRule)
	}
	made := map[[5]string]string{}
	for i, o := range c.p.Spec.Objects {
		at := fmt.Sprintf("spec.objects[%d]", i)
		vars := varRule
		if o.When != "" {
			c.expr(at+".when", o.When, varRule)
		}
		if o.ForEach != "" {
			vars = varItem
			c.expr(at+".forEach", o.ForEach, varRule)
		}
		c.template(at+".object", o.Object, vars)
		u := &unstructured.Unstructured{Object: o.Object}
		if _, template := o.Object["metadata"].(string); template {
			continue
		}
		if err := checkObject(u); err != nil {
			c.fail("%s.%v", at, err)
		}
		if InSystem(u) {
			c.fail("%s.object: is in a namespace of the system, which rules leave alone: choose another one", at)
		}
		// As they are written, before templates are filled in.
		key := [...]string{u.GroupVersionKind().GroupKind().String(), u.GetNamespace(), u.GetName(), o.When, o.ForEach}
		if first, ok := made[key]; ok {
			c.fail("%s.object: is the same one as in %s", at, first)
		}
		made[key] = at
	}
}

// checkObject refuses an object that rules do not make.
func checkObject(o *unstructured.Unstructured) error {
	switch {
	case o.GetKind() == "Secret" || strings.HasSuffix(o.GetKind(), "List"):
		return fmt.Errorf("object: a %s is not published: write objects one by one", o.GetKind())
	case o.GetAPIVersion() == "" || o.GetKind() == "" || o.GetName() == "":
		return errors.New("object: apiVersion, kind and metadata.name are needed")
	}
	return nil
}

// InSystem says whether an object is in a namespace of the system, or is one.
func InSystem(o *unstructured.Unstructured) bool {
	return slices.Contains(SystemNamespaces, o.GetNamespace()) || o.GetKind() == "Namespace" && slices.Contains(SystemNamespaces, o.GetName())
}

// include finds the types that types of rules include. The error names the type.
func include(all map[string]*Plugin) error {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		p := all[name]
		for i, in := range p.Spec.Include {
			at := fmt.Sprintf("%s: spec.include[%d]", name, i)
			other := all[in.Type]
			switch {
			case other == nil || !other.IsRuleType():
				return fmt.Errorf("%s: there is no type of rules %q", at, in.Type)
			case len(other.Spec.Objects) > 0:
				return fmt.Errorf("%s: %s has objects: only a type that has policies alone can be included", at, in.Type)
			}
			p.included = append(p.included, other)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		names, err := all[name].policies(nil)
		if err != nil {
			return fmt.Errorf("%s: spec.include: %w", name, err)
		}
		slices.Sort(names)
		for i := range names[:max(len(names)-1, 0)] {
			if names[i] == names[i+1] {
				return fmt.Errorf("%s: spec.include: there are two policies %s", name, names[i])
			}
		}
	}
	return nil
}

// PolicyNames returns the names of the policies of a type of rules, in their order, those that it includes last: of one
// that has none, it is empty.
func (p *Plugin) PolicyNames() []string {
	names, _ := p.policies(nil) // LoadAll has looked at the error
	return names
}

// policies returns the names of a type's policies. Includers are the types that include it, one another.
func (p *Plugin) policies(includers []string) (names []string, err error) {
	if slices.Contains(includers, p.Metadata.Name) {
		return nil, fmt.Errorf("%s includes itself", p.Metadata.Name)
	}
	for i := range p.Spec.Policies {
		names = append(names, p.Spec.Policies[i].Name)
	}
	for _, other := range p.included {
		got, err := other.policies(append(includers, p.Metadata.Name))
		if err != nil {
			return nil, err
		}
		for _, name := range got {
			names = append(names, cmp.Or(name, other.Metadata.Name))
		}
	}
	return names, nil
}

// Expand returns what a rule becomes: policies, named by what comes after the rule's ID, and objects. An error is an
// InvalidError.
func (p *Plugin) Expand(use RuleUse) ([]policyv1.SecurityRule, []*unstructured.Unstructured, error) {
	r := newRendering(p, Input{Fleet: use.Fleet, Use: Use{Name: use.Name, Config: use.Params}})
	rules, objects, err := r.expandRule(use)
	if err != nil {
		return nil, nil, InvalidError{err}
	}
	return rules, objects, nil
}

func (r *rendering) expandRule(use RuleUse) (rules []policyv1.SecurityRule, objects []*unstructured.Unstructured, err error) {
	if !r.IsRuleType() {
		return nil, nil, fmt.Errorf("%s is a plugin of fleets, and no type of rules", r.Metadata.Name)
	}
	if err := r.setConfig(); err != nil {
		return nil, nil, errors.New(strings.Replace(err.Error(), "config.", "params.", 1))
	}
	excluded := []any{}
	for _, n := range use.Excluded {
		excluded = append(excluded, n)
	}
	r.values["rule"] = map[string]any{"name": use.Name, "id": use.ID, "enforce": use.Enforce}
	r.values["excluded"] = excluded
	for _, rule := range r.Spec.Rules {
		text, err := r.broken(rule, varRule, r.values)
		if err != nil {
			return nil, nil, err
		}
		if text != "" {
			return nil, nil, errors.New(text)
		}
	}
	for i := range r.Spec.Policies {
		policy := &r.Spec.Policies[i]
		at := fmt.Sprintf("policies[%d]", i)
		if ok, err := r.env.holds(policy.When, varRule, r.values); err != nil {
			return nil, nil, located(at+".when", err)
		} else if !ok {
			continue
		}
		rule, err := r.policy(policy)
		if err != nil {
			return nil, nil, located(at, err)
		}
		rule.Enforcement = policyv1.Audit
		if use.Enforce {
			rule.Enforcement = policyv1.Enforce
		}
		rules = append(rules, *rule)
	}
	for i := range r.Spec.Include {
		got, err := r.include(i, use)
		if err != nil {
			return nil, nil, located(fmt.Sprintf("include[%d]", i), err)
		}
		rules = append(rules, got...)
	}
	for i := range r.Spec.Objects {
		got, err := r.ruleObjects(&r.Spec.Objects[i])
		if err != nil {
			return nil, nil, located(fmt.Sprintf("objects[%d]", i), err)
		}
		objects = append(objects, got...)
	}
	return rules, objects, nil
}

// include returns the policies of another type.
func (r *rendering) include(i int, use RuleUse) ([]policyv1.SecurityRule, error) {
	params, _, err := r.env.expand(native(r.Spec.Include[i].Params), varRule, r.values, "params")
	if err != nil {
		return nil, err
	}
	use.Params = params.(map[string]any)
	other := r.included[i]
	rules, _, err := newRendering(other, Input{Fleet: use.Fleet, Use: Use{Name: use.Name, Config: use.Params}}).expandRule(use)
	if err != nil {
		return nil, located(other.Metadata.Name, err)
	}
	for j := range rules {
		rules[j].Name = cmp.Or(rules[j].Name, policyv1.RuleName(other.Metadata.Name))
	}
	return rules, nil
}

// policy fills in a policy.
func (r *rendering) policy(policy *RulePolicy) (*policyv1.SecurityRule, error) {
	fields := map[string]any{"name": policy.Name, "match": policy.Match, "validate": policy.Validate}
	if policy.Severity != "" {
		fields["severity"] = policy.Severity
	}
	if policy.Exclude != nil {
		fields["exclude"] = policy.Exclude
	}
	got, _, err := r.env.expand(native(fields), varRule, r.values, "")
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(got)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(b))
	decoder.DisallowUnknownFields()
	rule := &policyv1.SecurityRule{}
	if err := decoder.Decode(rule); err != nil {
		return nil, wrongField(err)
	}
	return rule, nil
}

// ruleObjects fills in an object, for each item if it is one of several.
func (r *rendering) ruleObjects(o *RuleObject) (out []*unstructured.Unstructured, err error) {
	if ok, err := r.env.holds(o.When, varRule, r.values); err != nil || !ok {
		return nil, err
	}
	items, vars := []any{nil}, varRule
	if o.ForEach != "" {
		got, ok, err := r.env.eval(o.ForEach, varRule, r.values)
		if err != nil || !ok {
			return nil, err
		}
		if items, ok = got.([]any); !ok {
			return nil, fmt.Errorf("forEach: %s: is no list", o.ForEach)
		}
		vars = varItem
	}
	for _, item := range items {
		values := maps.Clone(r.values)
		values["item"] = item
		got, _, err := r.env.expand(native(o.Object), vars, values, "object")
		if err != nil {
			return nil, err
		}
		u := &unstructured.Unstructured{Object: got.(map[string]any)}
		if err := checkObject(u); err != nil {
			return nil, err
		}
		out = append(out, u)
	}
	return out, nil
}

// Namespaces returns the namespaces on members that a plugin of a fleet runs in, sorted. It needs neither members nor facts.
func (p *Plugin) Namespaces(fleet *fleetv1.Fleet, use Use) ([]string, error) {
	r := newRendering(p, Input{Fleet: fleet, Use: use})
	if err := r.setConfig(); err != nil {
		return nil, err
	}
	var out []string
	for i := range p.Spec.Components {
		k := &p.Spec.Components[i]
		if ok, err := r.env.holds(k.When, varConfig, r.values); err != nil {
			return nil, fmt.Errorf("component %s: %w", k.Name, err)
		} else if !ok || k.RunsOn == OnHub {
			continue
		}
		texts := []string{k.Namespace}
		if k.Secret != nil {
			texts = append(texts, k.Secret.Namespace)
		}
		for _, o := range k.Objects {
			u := unstructured.Unstructured{Object: o}
			texts = append(texts, u.GetNamespace())
			if u.GetKind() == "Namespace" {
				texts = append(texts, u.GetName())
			}
		}
		for _, text := range texts {
			namespace, err := r.env.text(text, varConfig, r.values)
			if err != nil {
				return nil, fmt.Errorf("component %s: %w", k.Name, err)
			}
			if namespace != "" {
				out = append(out, namespace)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}
