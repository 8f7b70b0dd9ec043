package plugin

import (
	"bytes"
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

// RulePolicy is a policy that a rule becomes: a rule of a FleetSecurityPolicy whose strings are templates with config, fleet,
// vars, rule (name, id, enforce) and excluded, the namespaces that are left alone.
type RulePolicy struct {
	// Name of the policy, part of its name on members. It may be left out where a rule becomes one policy.
	Name string `json:"name,omitempty"`
	// When is a CEL expression that says whether the policy is there; left out, it is.
	When string `json:"when,omitempty"`
	// Severity, Match, Exclude and Validate are those of a rule in a FleetSecurityPolicy.
	Severity string         `json:"severity,omitempty"`
	Match    map[string]any `json:"match"`
	Exclude  map[string]any `json:"exclude,omitempty"`
	Validate map[string]any `json:"validate"`
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
	if len(s.Policies)+len(s.Objects) == 0 {
		return errors.New("spec: a type of rules needs policies or objects")
	}
	if len(s.Components)+len(s.After)+len(s.MemberRules)+len(s.Warnings)+len(s.Generated)+len(s.Facts) > 0 || s.DeletionPolicy != "" {
		return errors.New("spec: a type of rules has description, parameters, vars, rules, policies and objects, and nothing else")
	}
	return nil
}

// ruleType checks policies and objects.
func (c *checker) ruleType() {
	names := map[string]bool{}
	for i, policy := range c.p.Spec.Policies {
		at := fmt.Sprintf("spec.policies[%d]", i)
		if policy.Name != "" || len(c.p.Spec.Policies) > 1 {
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
		if o.Object == nil {
			c.fail("%s.object: is missing", at)
		}
		if o.Object["kind"] == "Secret" {
			c.fail("%s.object: a Secret is not published", at)
		}
		c.template(at+".object", o.Object, vars)
	}
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
	for i := range r.Spec.Objects {
		got, err := r.ruleObjects(&r.Spec.Objects[i])
		if err != nil {
			return nil, nil, located(fmt.Sprintf("objects[%d]", i), err)
		}
		objects = append(objects, got...)
	}
	return rules, objects, nil
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
		return nil, errors.New(strings.TrimPrefix(err.Error(), "json: "))
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
		switch {
		case u.GetKind() == "Secret" || strings.HasSuffix(u.GetKind(), "List"):
			return nil, fmt.Errorf("object: a %s is not published: write objects one by one", u.GetKind())
		case u.GetAPIVersion() == "" || u.GetKind() == "" || u.GetName() == "":
			return nil, errors.New("object: apiVersion, kind and metadata.name are needed")
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
