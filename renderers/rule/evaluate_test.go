package rule

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func policyOf(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	return &unstructured.Unstructured{Object: parsed(t, []byte(text))}
}

// parsed returns an object of YAML.
func parsed(t testing.TB, text []byte) map[string]any {
	t.Helper()
	g := NewWithT(t)
	b, err := yaml.YAMLToJSONStrict(text)
	g.Expect(err).NotTo(HaveOccurred())
	u := &unstructured.Unstructured{}
	g.Expect(u.UnmarshalJSON(b)).To(Succeed())
	return u.Object
}

const evaluatedPolicy = `
apiVersion: policies.kyverno.io/v1
kind: ValidatingPolicy
metadata: {name: x}
spec:
  matchConstraints:
    namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system]}]}
    objectSelector: {matchExpressions: [{key: skip, operator: DoesNotExist}]}
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], resources: [pods, namespaces], operations: [CREATE, UPDATE]}
    - {apiGroups: [apps], apiVersions: ["*"], resources: ["*"], resourceNames: [known], operations: ["*"]}
    excludeResourceRules:
    - {apiGroups: [apps], apiVersions: [v1], resources: [daemonsets], operations: ["*"]}
  matchConditions:
  - {name: named, expression: 'object == null || object.?metadata.?name.orValue("") != "ignored"'}
  variables:
  - {name: bad, expression: object.not.there}
  - {name: spec, expression: 'object.?spec.orValue({})'}
  - {name: host, expression: 'variables.spec.?hostPID.orValue(false)'}
  validations:
  - {expression: variables.host != true, message: hostPID}
  - {expression: '!variables.spec.?trap.orValue(false) || variables.bad == 1', message: trap}
  - {expression: '(!has(request.namespace) || request.namespace != "x") && request.resource.resource != "x" && (namespaceObject == null || has(request.namespace) && namespaceObject.metadata.name == request.namespace)', message: request}
`

func TestEvaluate(t *testing.T) {
	g := NewWithT(t)
	e, err := newEvaluator(policyOf(t, evaluatedPolicy))
	g.Expect(err).NotTo(HaveOccurred())
	for _, c := range []struct {
		manifest string
		applies  bool
		broken   []string
		err      string
	}{
		{manifest: `{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {}}`, applies: true},
		{manifest: `{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {hostPID: true}}`, applies: true, broken: []string{"hostPID"}},
		{manifest: `{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {hostPID: null}}`, applies: true},
		{manifest: `{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: x}, spec: {hostPID: true}}`, applies: true, broken: []string{"hostPID", "request"}},
		{manifest: `{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: kube-system}, spec: {hostPID: true}}`},
		{manifest: `{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {skip: "1"}}, spec: {hostPID: true}}`},
		{manifest: `{apiVersion: v1, kind: Pod, metadata: {name: ignored}, spec: {hostPID: true}}`},
		{manifest: `{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {trap: true}}`, applies: true, err: "variables.bad"},
		{manifest: `{apiVersion: v1, kind: Namespace, metadata: {name: kube-system}, spec: {hostPID: true}}`},
		{manifest: `{apiVersion: v1, kind: Namespace, metadata: {name: a}, spec: {hostPID: true}}`, applies: true, broken: []string{"hostPID"}},
		{manifest: `{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {hostPID: true}}`},
		{manifest: `{apiVersion: apps/v1, kind: Deployment, metadata: {name: known}, spec: {hostPID: true}}`, applies: true, broken: []string{"hostPID"}},
		{manifest: `{apiVersion: apps/v1, kind: Deployment, metadata: {name: other}, spec: {hostPID: true}}`},
		{manifest: `{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: known}, spec: {hostPID: true}}`},
	} {
		v, err := e.evaluate(created(parsed(t, []byte(c.manifest))))
		if c.err != "" {
			g.Expect(err).To(MatchError(ContainSubstring(c.err)), c.manifest)
		} else {
			g.Expect(err).NotTo(HaveOccurred(), c.manifest)
		}
		g.Expect(v).To(Equal(verdict{Applies: c.applies, Broken: c.broken}), c.manifest)
	}

	pod := created(parsed(t, []byte(`{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {hostPID: true}}`)))
	for _, c := range []struct {
		name    string
		change  func(a *admission)
		applies bool
	}{
		{"an update", func(a *admission) { a.Operation, a.OldObject = admissionv1.Update, a.Object }, true},
		{"a deletion", func(a *admission) { a.Operation, a.OldObject, a.Object = admissionv1.Delete, a.Object, nil }, false},
		{"a subresource", func(a *admission) { a.Operation, a.Subresource = admissionv1.Update, "status" }, false},
		{"nothing", func(a *admission) { *a = admission{} }, false},
	} {
		a := pod
		c.change(&a)
		v, err := e.evaluate(a)
		g.Expect(err).NotTo(HaveOccurred(), c.name)
		g.Expect(v.Applies).To(Equal(c.applies), c.name)
	}
}

// TestCreatedHostPorts holds which ports of the node an API server fills in.
func TestCreatedHostPorts(t *testing.T) {
	const ports = `hostNetwork: true, containers: [{ports: [{containerPort: 1}, {containerPort: 2, hostPort: 2}]}], initContainers: [{ports: [{containerPort: 3, hostPort: 0}]}]`
	const odd = `hostNetwork: true, containers: [{ports: [{}, 1]}, {ports: 1}, 1], initContainers: 1`
	for _, c := range []struct{ of, spec, want string }{
		{"v1, kind: Pod", ports, `hostNetwork: true, containers: [{ports: [{containerPort: 1, hostPort: 1}, {containerPort: 2, hostPort: 2}]}], initContainers: [{ports: [{containerPort: 3, hostPort: 3}]}]`},
		{"v1, kind: Pod", strings.Replace(ports, "true", "false", 1), strings.Replace(ports, "true", "false", 1)},
		{"apps/v1, kind: Deployment", ports, ports},
		{"v1, kind: Pod", odd, odd},
	} {
		read := func(spec string) map[string]any { return parsed(t, []byte("{apiVersion: "+c.of+", spec: {"+spec+"}}")) }
		NewWithT(t).Expect(created(read(c.spec)).Object.Object["spec"]).To(Equal(read(c.want)["spec"]), c.of+c.spec)
	}
}

// TestEvaluatorRefuses holds that what Kyverno would not take is found, and where.
func TestEvaluatorRefuses(t *testing.T) {
	g := NewWithT(t)
	for text, message := range map[string]string{
		`{validations: [{expression: "object.spec.hostPID"}]}`:                    "spec.validations[0]: object.spec.hostPID: is of type dyn",
		`{validations: [{expression: "true"}, {expression: "nothing > 1"}]}`:      "spec.validations[1]: nothing > 1",
		`{matchConditions: [{name: x, expression: "variables.pod == null"}]}`:     "spec.matchConditions[0]",
		`{variables: [{name: x, expression: "object.?"}]}`:                        "spec.variables[0]",
		`{validations: [{expression: "[1, \"a\"].all(x, x != object.kind)"}]}`:    "spec.validations[0]",
		`{validations: [{expression: "object.kind.matches(\"[\")"}]}`:             "spec.validations[0]",
		`{matchConstraints: [], validations: [{expression: "true", message: x}]}`: "matchConstraints",
	} {
		_, err := newEvaluator(policyOf(t, "{apiVersion: policies.kyverno.io/v1, kind: ValidatingPolicy, metadata: {name: x}, spec: "+text+"}"))
		g.Expect(err).To(MatchError(ContainSubstring(message)), text)
	}
}

// FuzzEvaluate holds that no manifest makes it panic.
func FuzzEvaluate(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `[]`, `{kind: Pod}`, `{apiVersion: v1, kind: Pod, metadata: 1}`, `{apiVersion: v1, kind: Pod, metadata: {labels: []}, spec: 1}`,
		`{apiVersion: v1, kind: Pod, metadata: {name: {}, namespace: [1]}, spec: {hostPID: {}, trap: x}}`, `{apiVersion: a/b/c, kind: 7}`,
		`{apiVersion: v1, kind: Namespace, metadata: {name: x, labels: {a: 1}}, spec: [null, 1.5]}`,
	} {
		f.Add(seed)
	}
	e, err := newEvaluator(policyOf(f, evaluatedPolicy))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(_ *testing.T, text string) {
		var manifest map[string]any
		if yaml.Unmarshal([]byte(text), &manifest) != nil {
			return
		}
		_, _ = e.evaluate(created(manifest))
	})
}
