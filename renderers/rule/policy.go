package rule

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/fluxcd/pkg/apis/kustomize"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/object"
	"github.com/fleetwright/fleetwright/renderers/plugin"
)

const (
	policiesGroup      = "policies.kyverno.io"
	policiesAPIVersion = policiesGroup + "/v1"
	// maxPolicyName is what Kyverno takes: the name becomes part of a label's key on reports.
	maxPolicyName = 63
)

// health is when Kyverno has taken a policy. https://kyverno.io/docs/policy-types/validating-policy/
var health = kustomize.CustomHealthCheck{
	APIVersion: policiesAPIVersion, Kind: "ValidatingPolicy",
	HealthCheckExpressions: kustomize.HealthCheckExpressions{
		Current: "has(status.conditionStatus) && has(status.conditionStatus.ready) && status.conditionStatus.ready",
	},
}

// policyName makes one name of those of the object, its namespace, a rule and a policy, which have no dots: no two are the same.
func (s *Set) policyName(parts ...string) string {
	return object.Name(maxPolicyName, strings.Join(append(slices.Clone(s.prefix), parts...), "."))
}

// podOf is an expression for the Pod, or the template of Pods, of an object.
const podOf = `%[1]s.kind == "Pod" ? %[1]s : %[1]s.kind == "CronJob" ? %[1]s.?spec.?jobTemplate.?spec.?template.orValue({}) : %[1]s.?spec.?template.orValue({})`

// podChanged is an expression that is false of an update that does not touch Pods: the scaling of a Deployment that was there
// before the rule, or a finalizer that is taken off a Pod. What is there is reported, and goes on. It is a condition, which
// the API server evaluates itself, and not a validation, which would report that all is well.
var podChanged = fmt.Sprintf(`request.operation != "UPDATE" || [[%s, %s]].exists(p, p[0].?spec != p[1].?spec || `+
	`p[0].?metadata.?labels != p[1].?metadata.?labels || p[0].?metadata.?annotations != p[1].?metadata.?annotations)`,
	fmt.Sprintf(podOf, "object"), fmt.Sprintf(podOf, "oldObject"))

// validatingPolicy renders a rule to a policy of Kyverno.
func validatingPolicy(rule *policyv1.SecurityRule, name string, excluded []string) (*unstructured.Unstructured, error) {
	filter := &rule.Match.Resources
	if len(filter.Kinds) == 0 {
		return nil, fmt.Errorf("match.resources.kinds: is missing: say which kinds the rule is for")
	}
	of, err := resources(filter.Kinds)
	if err != nil {
		return nil, fmt.Errorf("match.resources.%w", err)
	}
	if err := checkMatch(filter); err != nil {
		return nil, fmt.Errorf("match.resources.%w", err)
	}
	v := &validation{rule: rule}
	if slices.Contains(of, pods) {
		if i := slices.IndexFunc(of, func(r schema.GroupVersionResource) bool { return !slices.Contains(creators, r) }); i >= 0 {
			return nil, fmt.Errorf("match.resources.kinds: Pod and %s have nothing in common: write a rule for each", of[i].Resource)
		}
		v.pods = true
	}
	validations, err := v.render()
	if err != nil {
		return nil, err
	}
	spec := map[string]any{
		"validationActions": []any{map[bool]string{true: "Deny", false: "Audit"}[rule.Enforcement == policyv1.Enforce]},
		// What is refused is refused while Kyverno answers; a member does not stand still with it.
		"failurePolicy": "Ignore",
		"validations":   validations,
	}
	if v.usesPod {
		of = creators
		spec["variables"] = []any{map[string]any{"name": "pod", "expression": fmt.Sprintf(podOf, "object")}}
	}
	operations := filter.Operations
	if len(operations) == 0 {
		operations = []string{"CREATE", "UPDATE"}
	}
	constraints := map[string]any{"resourceRules": resourceRules(of, operations)}
	spec["matchConstraints"] = constraints
	if filter.Selector != nil {
		constraints["objectSelector"] = tree(filter.Selector)
	}
	selector := metav1.LabelSelector{}
	if filter.NamespaceSelector != nil {
		selector = *filter.NamespaceSelector.DeepCopy()
	}
	selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
		Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn, Values: excluded})
	constraints["namespaceSelector"] = tree(selector)

	conditions, err := matchConditions(rule, excluded)
	if err != nil {
		return nil, err
	}
	if v.usesPod {
		conditions = append(conditions, matchCondition("pods-change", podChanged))
	}
	spec["matchConditions"] = conditions
	severity := cmp.Or(rule.Severity, "medium")
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": policiesAPIVersion, "kind": "ValidatingPolicy",
		"metadata": map[string]any{
			"name":        name,
			"annotations": map[string]any{"policies.kyverno.io/severity": severity, "policies.kyverno.io/category": "Fleetwright"},
		},
		"spec": spec,
	}}
	return o, nil
}

// checkMatch refuses a filter that no API server would take, or that nothing could pass.
func checkMatch(f *policyv1.ResourceFilter) error {
	for field, selector := range map[string]*metav1.LabelSelector{"selector": f.Selector, "namespaceSelector": f.NamespaceSelector} {
		if _, err := metav1.LabelSelectorAsSelector(selector); err != nil {
			return fmt.Errorf("%s: %w (labels have no wildcards here: write cel for that)", field, err)
		}
	}
	if len(f.Namespaces) > 0 && !slices.ContainsFunc(f.Namespaces, func(n string) bool { return !slices.Contains(plugin.SystemNamespaces, n) }) {
		return fmt.Errorf("namespaces: %s: no rule looks at the namespaces of the system", strings.Join(f.Namespaces, ", "))
	}
	return nil
}

// validation renders what has to hold.
type validation struct {
	rule *policyv1.SecurityRule
	// pods says that the rule is for Pods, and usesPod that it is for all that creates them.
	pods, usesPod bool
}

func (v *validation) render() ([]any, error) {
	validate := &v.rule.Validate
	message := cmp.Or(validate.Message, fmt.Sprintf("rule %s is broken", v.rule.Name))
	one := func(expression, message string) map[string]any {
		return map[string]any{"expression": expression, "message": oneLine(message)}
	}
	switch {
	case validate.CEL != nil:
		var out []any
		for i, e := range validate.CEL.Expressions {
			usesPod, err := checkExpression(e.Expression, v.pods)
			if err != nil {
				return nil, fmt.Errorf("validate.cel.expressions[%d].expression: %w", i, err)
			}
			v.usesPod = v.usesPod || usesPod
			out = append(out, one(e.Expression, cmp.Or(e.Message, message)))
		}
		return out, nil
	case validate.Pattern != nil:
		pattern, value, err := v.pattern(validate.Pattern.Raw)
		if err == nil {
			var expression string
			if expression, err = patternCEL(pattern, value); err == nil {
				return []any{one(expression, message)}, nil
			}
		}
		return nil, ofPattern("validate.pattern", err)
	case len(validate.AnyPattern) > 0:
		var patterns []any
		var of string
		for i := range validate.AnyPattern {
			pattern, value, err := v.pattern(validate.AnyPattern[i].Raw)
			if err != nil {
				return nil, ofPattern(fmt.Sprintf("validate.anyPattern[%d]", i), err)
			}
			patterns, of = append(patterns, pattern), value
		}
		expression, err := anyPatternCEL(patterns, of)
		if err != nil {
			return nil, ofPattern("validate.anyPattern", err)
		}
		return []any{one(expression, message)}, nil
	}
	return nil, fmt.Errorf("validate: exactly one of pattern, anyPattern and cel is needed")
}

// ofPattern says which field an error is in, which begins with a path in a pattern, or with what the pattern as a whole is.
func ofPattern(field string, err error) error {
	return errors.New(strings.Replace(strings.Replace(field+"."+err.Error(), ".the pattern:", ":", 1), ".[", "[", 1))
}

// pattern reads a pattern, and returns the expression for what it is of; one of Pods is for all that creates them.
func (v *validation) pattern(raw []byte) (pattern map[string]any, value string, err error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if err := decoder.Decode(&pattern); err != nil {
		return nil, "", fmt.Errorf("the pattern: has to be a map")
	}
	if len(pattern) == 0 {
		return nil, "", fmt.Errorf("the pattern: is empty, and so true of everything")
	}
	if !v.pods {
		return pattern, "object", nil
	}
	pod, ok := podPattern(pattern)
	if !ok {
		return nil, "", fmt.Errorf("the pattern: says something of what a Pod does not have, and is for Pods: write a rule for them, and one for what creates them")
	}
	v.usesPod = true
	return pod, "variables.pod", nil
}

// resourceRules returns rules for resources, one for each group and version.
func resourceRules(of []schema.GroupVersionResource, operations []string) (out []any) {
	for _, r := range of {
		i := slices.IndexFunc(out, func(o any) bool {
			rule := o.(map[string]any)
			return rule["apiGroups"].([]any)[0] == r.Group && rule["apiVersions"].([]any)[0] == r.Version
		})
		if i < 0 {
			out = append(out, map[string]any{"apiGroups": []any{r.Group}, "apiVersions": []any{r.Version}, "operations": list(operations), "resources": []any{r.Resource}})
			continue
		}
		rule := out[i].(map[string]any)
		rule["resources"] = append(rule["resources"].([]any), r.Resource)
	}
	return out
}

// namespaceOf is the namespace of what is asked; of a Namespace, itself. What is in no namespace has no request.namespace, and
// a Namespace has it for an API server, and not when Kyverno looks at what is there.
const namespaceOf = `has(request.namespace) ? request.namespace : request.resource.resource == "namespaces" ? request.name : ""`

func matchCondition(name, expression string) any {
	return map[string]any{"name": name, "expression": expression}
}

// matchConditions say what the constraints cannot.
func matchConditions(rule *policyv1.SecurityRule, excluded []string) ([]any, error) {
	var out []any
	add := func(name, expression string) { out = append(out, matchCondition(name, expression)) }
	add("not-the-systems", fmt.Sprintf("!((%s) in %s)", namespaceOf, celList(excluded)))
	filter := rule.Match.Resources
	if len(filter.Namespaces) > 0 {
		add("namespaces", anyOf("("+namespaceOf+")", filter.Namespaces))
	}
	if len(filter.Names) > 0 {
		add("names", anyOf(`object.?metadata.?name.orValue("")`, filter.Names))
	}
	if rule.Exclude == nil {
		return out, nil
	}
	expression, err := filterCEL(&rule.Exclude.Resources)
	if err != nil {
		return nil, fmt.Errorf("exclude.resources%w", err)
	}
	add("excluded", "!("+expression+")")
	return out, nil
}

// filterCEL returns an expression that is true of an object that all the fields of a filter are true of.
func filterCEL(f *policyv1.ResourceFilter) (string, error) {
	var all []string
	if f.NamespaceSelector != nil || len(f.Operations) > 0 {
		return "", fmt.Errorf(": namespaceSelector and operations are for match alone")
	}
	if len(f.Kinds) > 0 {
		of, err := resources(f.Kinds)
		if err != nil {
			return "", fmt.Errorf(".%w", err)
		}
		var names []string
		for _, r := range of {
			names = append(names, strings.Trim(r.Group+"/"+r.Resource, "/"))
		}
		all = append(all, fmt.Sprintf(`(request.resource.group == "" ? request.resource.resource : request.resource.group + "/" + request.resource.resource) in %s`, celList(names)))
	}
	if len(f.Names) > 0 {
		all = append(all, anyOf(`object.?metadata.?name.orValue("")`, f.Names))
	}
	if len(f.Namespaces) > 0 {
		all = append(all, anyOf("("+namespaceOf+")", f.Namespaces))
	}
	if f.Selector != nil {
		text, err := selectorCEL(f.Selector)
		if err != nil {
			return "", fmt.Errorf(".selector: %w", err)
		}
		all = append(all, text)
	}
	if len(all) == 0 {
		return "", fmt.Errorf(": is empty, and would leave out nothing: say what")
	}
	return strings.Join(all, " && "), nil
}

// selectorCEL returns an expression that is true of an object whose labels match.
func selectorCEL(s *metav1.LabelSelector) (string, error) {
	if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
		return "", err
	}
	requirements := slices.Clone(s.MatchExpressions)
	for key, value := range s.MatchLabels {
		requirements = append(requirements, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{value}})
	}
	slices.SortFunc(requirements, func(a, b metav1.LabelSelectorRequirement) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(string(a.Operator), string(b.Operator)))
	})
	var all []string
	for _, r := range requirements {
		label := "object.?metadata.?labels[?" + strconv.Quote(r.Key) + "]"
		switch r.Operator {
		case metav1.LabelSelectorOpIn:
			all = append(all, fmt.Sprintf("(%s.hasValue() && %s.value() in %s)", label, label, celList(r.Values)))
		case metav1.LabelSelectorOpNotIn:
			all = append(all, fmt.Sprintf("!(%s.hasValue() && %s.value() in %s)", label, label, celList(r.Values)))
		case metav1.LabelSelectorOpExists:
			all = append(all, label+".hasValue()")
		default:
			all = append(all, "!"+label+".hasValue()")
		}
	}
	return strings.Join(all, " && "), nil
}

// anyOf returns an expression that is true of a text that matches one of several, with * and ?.
func anyOf(value string, texts []string) string {
	if !slices.ContainsFunc(texts, func(t string) bool { return strings.ContainsAny(t, "*?") }) {
		return value + " in " + celList(texts)
	}
	var parts []string
	for _, t := range texts {
		t = regexp.QuoteMeta(t)
		t = strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(t)
		parts = append(parts, t)
	}
	return fmt.Sprintf("%s.matches(%s)", value, strconv.Quote("^("+strings.Join(parts, "|")+")$"))
}

func celList(texts []string) string {
	quoted := make([]string, len(texts))
	for i, t := range texts {
		quoted[i] = strconv.Quote(t)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

func list(texts []string) []any {
	out := make([]any, len(texts))
	for i, t := range texts {
		out[i] = t
	}
	return out
}

// tree makes plain JSON of a value.
func tree(v any) (out map[string]any) {
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		panic(err) // it is of our own types
	}
	return out
}

// oneLine makes a message of a policy, which has no line breaks.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
