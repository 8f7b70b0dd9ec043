package rule

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/lazy"
	"k8s.io/utils/lru"
	"sigs.k8s.io/kustomize/kyaml/openapi"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
)

// environments are what expressions of policies are compiled in: that of Kubernetes, in the oldest version that Kyverno is
// made for. What conditions may use has no variables.
type environments struct{ conditions, validations *cel.Env }

var policyEnvironments = sync.OnceValues(func() (*environments, error) {
	variable := func(name string, t *cel.Type) environment.VersionedOptions {
		return environment.VersionedOptions{IntroducedVersion: version.MajorMinor(1, 0), EnvOptions: []cel.EnvOption{cel.Variable(name, t)}}
	}
	known, err := environment.MustBaseEnvSet(version.MajorMinor(1, 33)).Extend(variable("object", cel.DynType), variable("oldObject", cel.DynType),
		variable("request", cel.DynType), variable("namespaceObject", cel.DynType))
	if err != nil {
		return nil, err
	}
	withVariables, err := known.Extend(variable("variables", cel.MapType(cel.StringType, cel.DynType)))
	if err != nil {
		return nil, err
	}
	return &environments{known.StoredExpressionsEnv(), withVariables.StoredExpressionsEnv()}, nil
})

// evaluator is a ValidatingPolicy that is compiled. It may be used by one goroutine at a time.
type evaluator struct {
	constraints                        admissionv1.MatchResources
	conditions, variables, validations []expression
}

// expression is one that is compiled. Text is a variable's name, a condition's, or the message of a validation.
type expression struct {
	cel.Program
	text string
}

// newEvaluator compiles a ValidatingPolicy. The error names the expression.
func newEvaluator(policy *unstructured.Unstructured) (*evaluator, error) {
	var p struct {
		Spec struct {
			MatchConstraints admissionv1.MatchResources   `json:"matchConstraints"`
			MatchConditions  []admissionv1.MatchCondition `json:"matchConditions"`
			Variables        []admissionv1.Variable       `json:"variables"`
			Validations      []admissionv1.Validation     `json:"validations"`
		} `json:"spec"`
	}
	b, err := policy.MarshalJSON()
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &p); err != nil {
		return nil, err
	}
	envs, err := policyEnvironments()
	if err != nil {
		return nil, err
	}
	e := &evaluator{constraints: p.Spec.MatchConstraints}
	var failed []error
	add := func(to *[]expression, env *cel.Env, text, at, code string, kind *cel.Type) {
		program, err := compileExpression(env, code, kind)
		if err != nil {
			failed = append(failed, fmt.Errorf("spec.%s: %w", at, err))
			return
		}
		*to = append(*to, expression{program, text})
	}
	for i, c := range p.Spec.MatchConditions {
		add(&e.conditions, envs.conditions, c.Name, fmt.Sprintf("matchConditions[%d]", i), c.Expression, cel.BoolType)
	}
	for i, v := range p.Spec.Variables {
		add(&e.variables, envs.validations, v.Name, fmt.Sprintf("variables[%d]", i), v.Expression, nil)
	}
	for i, v := range p.Spec.Validations {
		add(&e.validations, envs.validations, v.Message, fmt.Sprintf("validations[%d]", i), v.Expression, cel.BoolType)
	}
	return e, errors.Join(failed...)
}

// compileExpression compiles an expression of a type; nil is any.
func compileExpression(env *cel.Env, code string, kind *cel.Type) (cel.Program, error) {
	compiled, err := parseExpression(env, code, kind)
	if err != nil {
		return nil, err
	}
	return env.Program(compiled)
}

func parseExpression(env *cel.Env, code string, kind *cel.Type) (*cel.Ast, error) {
	compiled, issues := env.Compile(code)
	if issues.Err() != nil {
		return nil, fmt.Errorf("%s: %w", code, issues.Err())
	}
	if kind != nil && !compiled.OutputType().IsExactType(kind) {
		return nil, fmt.Errorf("%s: is of type %s, and has to be of type %s", code, compiled.OutputType(), kind)
	}
	return compiled, nil
}

// checked are expressions that were checked: the same ones come again each time that rules are rendered.
var checked = lru.New(4096)

type checkedExpression struct {
	variables []string
	err       error
}

// checkExpression refuses an expression that could not be evaluated on members, and says whether it uses variables.pod, which
// is there for rules of Pods.
func checkExpression(code string, pods bool) (usesPod bool, err error) {
	known, ok := checked.Get(code)
	if !ok {
		c := checkedExpression{}
		c.variables, c.err = variablesOf(code)
		checked.Add(code, c)
		known = c
	}
	c := known.(checkedExpression)
	switch {
	case c.err != nil:
		return false, c.err
	case len(c.variables) == 0:
		return false, nil
	case !pods:
		return false, fmt.Errorf("variables.%s: the kinds have no Pod among them: read object", c.variables[0])
	case !slices.Equal(c.variables, []string{"pod"}):
		return false, fmt.Errorf("variables: there is only variables.pod, and not %s", strings.Join(c.variables, ", "))
	}
	return true, nil
}

// variablesOf returns the variables that an expression uses, sorted.
func variablesOf(code string) (names []string, err error) {
	envs, err := policyEnvironments()
	if err != nil {
		return nil, err
	}
	compiled, err := parseExpression(envs.validations, code, cel.BoolType)
	if err != nil {
		return nil, err
	}
	ast.PostOrderVisit(compiled.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() == ast.SelectKind && e.AsSelect().Operand().Kind() == ast.IdentKind && e.AsSelect().Operand().AsIdent() == "variables" {
			names = append(names, e.AsSelect().FieldName())
		}
	}))
	slices.Sort(names)
	return slices.Compact(names), nil
}

// admission is what is asked of an API server.
type admission struct {
	// Operation is CREATE, UPDATE or DELETE.
	Operation admissionv1.OperationType
	// Object is there unless it is deleted, and OldObject unless it is created.
	Object, OldObject *unstructured.Unstructured
	Resource          schema.GroupVersionResource
	Subresource       string
	// Namespace is that of the object, with its labels; nil for one that is in none.
	Namespace *unstructured.Unstructured
}

// created returns what is asked when a manifest is applied that is not there yet. What is of no use for an API server, nulls,
// is left out, and namespace default filled in, and of Pods the ports of their node.
func created(manifest map[string]any) admission {
	u := &unstructured.Unstructured{Object: stored(manifest).(map[string]any)}
	a := admission{Operation: admissionv1.Create, Object: u}
	gvk := u.GroupVersionKind()
	a.Resource, _ = meta.UnsafeGuessKindToResource(gvk)
	namespaced, known := openapi.IsNamespaceScoped(kyaml.TypeMeta{APIVersion: u.GetAPIVersion(), Kind: u.GetKind()})
	if namespaced && u.GetNamespace() == "" {
		u.SetNamespace("default")
	}
	if gvk == corev1.SchemeGroupVersion.WithKind("Pod") {
		setHostPorts(u.Object)
	}
	if namespace := u.GetNamespace(); namespace != "" && (namespaced || !known) {
		a.Namespace = &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace",
			"metadata": map[string]any{"name": namespace, "labels": map[string]any{"kubernetes.io/metadata.name": namespace}}}}
	}
	return a
}

// setHostPorts makes the ports of a Pod's containers those of its node where they are: an API server does so for Pods, and not
// for templates of Pods.
func setHostPorts(pod map[string]any) {
	if hostNetwork, _, _ := unstructured.NestedBool(pod, "spec", "hostNetwork"); !hostNetwork {
		return
	}
	items := func(of any, field string) []any {
		m, _ := of.(map[string]any)
		list, _ := m[field].([]any)
		return list
	}
	for _, c := range append(items(pod["spec"], "containers"), items(pod["spec"], "initContainers")...) {
		for _, p := range items(c, "ports") {
			if port, ok := p.(map[string]any); ok && port["containerPort"] != nil && (port["hostPort"] == nil || fmt.Sprint(port["hostPort"]) == "0") {
				port["hostPort"] = port["containerPort"]
			}
		}
	}
}

// stored returns a JSON value without nulls.
func stored(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, item := range v {
			if item != nil {
				out[k] = stored(item)
			}
		}
		return out
	case []any:
		out := make([]any, 0, len(v))
		for _, item := range v {
			if item != nil {
				out = append(out, stored(item))
			}
		}
		return out
	}
	return v
}

// verdict is what a policy says.
type verdict struct {
	// Applies says whether the policy looks at it at all.
	Applies bool
	// Broken are the messages of what does not hold.
	Broken []string
}

// evaluate returns what the policy says. An error is one of an expression.
func (e *evaluator) evaluate(a admission) (verdict, error) {
	if applies, err := e.constrained(a); err != nil || !applies {
		return verdict{}, err
	}
	values := a.values()
	for _, c := range e.conditions {
		if holds, err := c.holds(values); err != nil || !holds {
			return verdict{}, err
		}
	}
	values["variables"] = e.lazily(values)
	v := verdict{Applies: true}
	for _, x := range e.validations {
		holds, err := x.holds(values)
		if err != nil {
			return v, err
		}
		if !holds {
			v.Broken = append(v.Broken, x.text)
		}
	}
	return v, nil
}

// lazily returns the variables, of which each is evaluated when it is looked at.
func (e *evaluator) lazily(values map[string]any) ref.Val {
	variables := lazy.NewMapValue(types.MapType)
	for _, v := range e.variables {
		variables.Append(v.text, func(*lazy.MapValue) ref.Val {
			out, _, err := v.Eval(values)
			if err != nil {
				return types.NewErr("variables.%s: %v", v.text, err)
			}
			return out
		})
	}
	return variables
}

// holds evaluates an expression that is true or false.
func (x expression) holds(values map[string]any) (bool, error) {
	out, _, err := x.Eval(values)
	if err != nil {
		return false, fmt.Errorf("%s: %w", x.text, err)
	}
	holds, ok := out.Value().(bool)
	if !ok {
		return false, fmt.Errorf("%s: is neither true nor false", x.text)
	}
	return holds, nil
}

// values are what expressions know.
func (a admission) values() map[string]any {
	of := func(u *unstructured.Unstructured) any {
		if u == nil {
			return nil
		}
		return u.Object
	}
	o := a.either()
	kind := o.GroupVersionKind()
	resource := map[string]any{"group": a.Resource.Group, "version": a.Resource.Version, "resource": a.Resource.Resource}
	gvk := map[string]any{"group": kind.Group, "version": kind.Version, "kind": kind.Kind}
	values := map[string]any{
		"object": of(a.Object), "oldObject": of(a.OldObject), "namespaceObject": of(a.Namespace),
		"request": map[string]any{
			"operation": string(a.Operation), "name": o.GetName(), "dryRun": false,
			"resource": resource, "requestResource": resource, "kind": gvk, "requestKind": gvk,
			"subResource": a.Subresource, "requestSubResource": a.Subresource,
			"userInfo": map[string]any{"username": "", "uid": "", "groups": []any{}, "extra": map[string]any{}},
		},
	}
	if a.Namespace != nil { // what is in none has not even the field
		values["request"].(map[string]any)["namespace"] = a.Namespace.GetName()
	}
	return values
}

// either returns the object, or the old one.
func (a admission) either() *unstructured.Unstructured {
	for _, u := range []*unstructured.Unstructured{a.Object, a.OldObject} {
		if u != nil {
			return u
		}
	}
	return &unstructured.Unstructured{Object: map[string]any{}}
}

// constrained says whether the constraints are true of what is asked.
func (e *evaluator) constrained(a admission) (bool, error) {
	c := &e.constraints
	named := func(rules []admissionv1.NamedRuleWithOperations) bool {
		return slices.ContainsFunc(rules, func(r admissionv1.NamedRuleWithOperations) bool { return a.isOf(&r) })
	}
	if !named(c.ResourceRules) || named(c.ExcludeResourceRules) {
		return false, nil
	}
	inNamespace, err := selects(c.NamespaceSelector)
	if err != nil {
		return false, err
	}
	isNamespace := a.Resource.GroupResource() == schema.GroupResource{Resource: "namespaces"}
	switch {
	case isNamespace && !inNamespace(a.either()):
		return false, nil
	case a.Namespace != nil && !inNamespace(a.Namespace):
		return false, nil
	}
	isObject, err := selects(c.ObjectSelector)
	if err != nil {
		return false, err
	}
	return a.Object != nil && isObject(a.Object) || a.OldObject != nil && isObject(a.OldObject), nil
}

// isOf says whether a rule names what is asked.
func (a admission) isOf(r *admissionv1.NamedRuleWithOperations) bool {
	has := func(list []string, item string) bool {
		return slices.Contains(list, item) || slices.Contains(list, "*")
	}
	resource := a.Resource.Resource
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	if r.Scope != nil && *r.Scope != admissionv1.AllScopes && (*r.Scope == admissionv1.NamespacedScope) != (a.Namespace != nil) {
		return false
	}
	return has(r.APIGroups, a.Resource.Group) && has(r.APIVersions, a.Resource.Version) && has(r.Resources, resource) &&
		(slices.Contains(r.Operations, a.Operation) || slices.Contains(r.Operations, admissionv1.OperationAll)) &&
		(len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, a.either().GetName()))
}

// selects returns whether a selector takes the labels of an object. Every Namespace has its name as a label.
func selects(selector *metav1.LabelSelector) (func(*unstructured.Unstructured) bool, error) {
	if selector == nil {
		return func(*unstructured.Unstructured) bool { return true }, nil
	}
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return nil, err
	}
	return func(u *unstructured.Unstructured) bool {
		set := labels.Set{}
		for k, v := range u.GetLabels() {
			set[k] = v
		}
		if u.GetKind() == "Namespace" {
			set["kubernetes.io/metadata.name"] = u.GetName()
		}
		return s.Matches(set)
	}, nil
}
