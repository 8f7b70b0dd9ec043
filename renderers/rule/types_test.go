package rule

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/ext"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	schemacel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/version"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	templates "github.com/fleetwright/fleetwright/fleet-templates"
	"github.com/fleetwright/fleetwright/renderers/plugin"
)

// The folders of testdata/types are named by a type, and, where it has several sets of parameters, by one more word after a
// dot. Each has manifests that keep to the type, compliant*.yaml, and that break it, violating*.yaml; of a type whose policies
// have names, violating-<policy>*.yaml. What is in params.yaml are the parameters.
const typesFolder = "testdata/types"

var ruleTypes = sync.OnceValues(func() (map[string]*plugin.Plugin, error) { return plugin.LoadAll(templates.Rules()) })

func allTypes(t testing.TB) map[string]*plugin.Plugin {
	t.Helper()
	all, err := ruleTypes()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return all
}

// typeCase is a folder.
type typeCase struct {
	name   string
	of     *plugin.Plugin
	params map[string]any
}

func typeCases(t testing.TB) (cases []typeCase) {
	t.Helper()
	g := NewWithT(t)
	entries, err := os.ReadDir(typesFolder)
	g.Expect(err).NotTo(HaveOccurred())
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "_") {
			continue
		}
		name, _, _ := strings.Cut(e.Name(), ".")
		c := typeCase{name: e.Name(), of: allTypes(t)[name]}
		g.Expect(c.of).NotTo(BeNil(), "%s/%s: there is no such type", typesFolder, e.Name())
		if b, err := os.ReadFile(filepath.Join(typesFolder, e.Name(), "params.yaml")); err == nil {
			g.Expect(yaml.UnmarshalStrict(b, &c.params)).To(Succeed(), e.Name())
		}
		cases = append(cases, c)
	}
	return cases
}

// manifest is one of a case. Policy is the one that it breaks.
type manifest struct {
	file, policy string
	object       map[string]any
}

// manifests returns those that keep to the type, and those that break it; of a set, those that break the types that it
// includes, too.
func (c typeCase) manifests(t testing.TB) (compliant, violating []manifest) {
	t.Helper()
	g := NewWithT(t)
	files, err := filepath.Glob(filepath.Join(typesFolder, c.name, "*.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	for _, file := range files {
		b, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		switch {
		case name == "params":
		case strings.HasPrefix(name, "compliant"):
			compliant = append(compliant, manifest{file, "", parsed(t, b)})
		case strings.HasPrefix(name, "violating"):
			violating = append(violating, manifest{file, c.policy(strings.TrimPrefix(name, "violating-")), parsed(t, b)})
		default:
			t.Fatalf("%s: is neither compliant nor violating", file)
		}
	}
	if c.params != nil {
		return compliant, violating
	}
	for _, in := range c.of.Spec.Include {
		_, others := typeCase{name: in.Type, of: allTypes(t)[in.Type]}.manifests(t)
		for _, m := range others {
			m.policy = cmp.Or(m.policy, in.Type)
			violating = append(violating, m)
		}
	}
	return compliant, violating
}

// policy returns the longest name of a policy that a text begins with.
func (c typeCase) policy(text string) (name string) {
	for _, p := range c.of.PolicyNames() {
		if len(p) > len(name) && (text == p || strings.HasPrefix(text, p+"-")) {
			name = p
		}
	}
	return name
}

const ownNamespace = "left-alone"

// renderType renders a rule r of a type, as a ClusterCompliance x has it.
func renderType(p *plugin.Plugin, params map[string]any, enforce bool) ([]*unstructured.Unstructured, error) {
	all := map[string]any{"enforce": enforce}
	maps.Copy(all, params)
	raw, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	c := &clusterv1.ClusterCompliance{}
	c.Name, c.Namespace, c.Spec.ClusterName, c.Spec.ExcludeNamespaces = "x", "default", "member1", []string{ownNamespace}
	c.Spec.Rules = []clusterv1.ComplianceRule{{Name: "r", Type: p.Metadata.Name, Params: &apiextensionsv1.JSON{Raw: raw}}}
	rendered, err := Render(Input{Set: OfCompliance(c), Find: func(string, bool) (*plugin.Plugin, map[string]any, error) { return p, nil, nil }})
	if err != nil {
		return nil, err
	}
	if rendered.Rules[0].Err != nil {
		return nil, rendered.Rules[0].Err
	}
	var out []*unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(rendered.Files)) {
		if filepath.Base(name) == "kustomization.yaml" {
			continue
		}
		for doc := range bytes.SplitSeq(rendered.Files[name], []byte("\n---\n")) {
			b, err := yaml.YAMLToJSON(doc)
			if err != nil {
				return nil, err
			}
			u := &unstructured.Unstructured{}
			if err := u.UnmarshalJSON(b); err != nil {
				return nil, err
			}
			out = append(out, u)
		}
	}
	return out, nil
}

func (c typeCase) render(t testing.TB, enforce bool) []*unstructured.Unstructured {
	t.Helper()
	objects, err := renderType(c.of, c.params, enforce)
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), c.name)
	return objects
}

// evaluators returns the ValidatingPolicies among objects, by the name that the type gives them.
func evaluators(t testing.TB, objects []*unstructured.Unstructured) map[string]*evaluator {
	t.Helper()
	out := map[string]*evaluator{}
	for _, o := range objects {
		if o.GetKind() == "ValidatingPolicy" {
			e, err := newEvaluator(o)
			NewWithT(t).Expect(err).NotTo(HaveOccurred(), o.GetName())
			out[strings.Trim(strings.TrimPrefix(o.GetName(), "compliance.default.x.r"), ".")] = e
		}
	}
	return out
}

// TestTypes holds that every policy of every type passes what keeps to it, and fails what breaks it, with and without enforce.
func TestTypes(t *testing.T) {
	cases := typeCases(t)
	kinds, broken := map[string]bool{}, map[string]map[string]bool{}
	for _, c := range cases {
		for _, enforce := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/enforce=%t", c.name, enforce), func(t *testing.T) {
				g := NewWithT(t)
				policies := evaluators(t, c.render(t, enforce))
				compliant, violating := c.manifests(t)
				applied := map[string]bool{}
				for _, m := range compliant {
					for name, e := range policies {
						v, err := e.evaluate(created(m.object))
						g.Expect(err).NotTo(HaveOccurred(), m.file)
						g.Expect(v.Broken).To(BeEmpty(), "%s: policy %q", m.file, name)
						applied[name] = applied[name] || v.Applies
					}
				}
				for name := range policies {
					g.Expect(applied[name]).To(BeTrue(), "policy %q applies to nothing that is compliant", name)
				}
				for _, m := range violating {
					g.Expect(policies[m.policy]).NotTo(BeNil(), "%s: there is no policy %q", m.file, m.policy)
					for name, e := range policies {
						v, err := e.evaluate(created(m.object))
						g.Expect(err).NotTo(HaveOccurred(), m.file)
						if name == m.policy {
							g.Expect(v.Broken).NotTo(BeEmpty(), "%s: policy %q", m.file, name)
							g.Expect(v.Broken).NotTo(ContainElement(ContainSubstring("is broken")), "%s: has no message", m.file)
						}
					}
					kinds[fmt.Sprint(m.object["kind"])] = true
					if broken[c.of.Metadata.Name] == nil {
						broken[c.of.Metadata.Name] = map[string]bool{}
					}
					broken[c.of.Metadata.Name][m.policy] = true
				}
			})
		}
	}
	g := NewWithT(t)
	for name, p := range allTypes(t) {
		g.Expect(slices.ContainsFunc(cases, func(c typeCase) bool { return c.of == p })).To(BeTrue(), "%s: testdata/types has no folder", name)
		names := p.PolicyNames()
		if name == "install-security-agent" {
			names = []string{""} // it is an object
		}
		for _, policy := range names {
			g.Expect(broken[name]).To(HaveKey(policy), "%s: nothing in testdata/types breaks policy %q", name, policy)
		}
	}
	for _, kind := range []string{"Pod", "Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"} {
		g.Expect(kinds).To(HaveKey(kind), "no %s breaks anything", kind)
	}
}

// TestTypesManifests holds that an API server would take the manifests.
func TestTypesManifests(t *testing.T) {
	for _, c := range typeCases(t) {
		compliant, violating := c.manifests(t)
		for _, m := range append(compliant, violating...) {
			NewWithT(t).Expect(strict(m.object)).To(Succeed(), m.file)
		}
	}
}

// strict returns why an object is none of Kubernetes.
func strict(o map[string]any) error {
	b, err := json.Marshal(o)
	if err == nil {
		_, _, err = serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer().Decode(b, nil, nil)
	}
	return err
}

// TestTypesNeverFail holds that no policy fails to be evaluated, whatever is left out of an object or is empty in it.
func TestTypesNeverFail(t *testing.T) {
	for _, c := range typeCases(t) {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			policies := evaluators(t, c.render(t, true))
			compliant, violating := c.manifests(t)
			for _, m := range append(compliant, violating...) {
				if filepath.Base(filepath.Dir(m.file)) != c.name {
					continue // it is in that of another
				}
				each(m.object, func(path string) {
					for name, e := range policies {
						if _, err := e.evaluate(created(m.object)); err != nil {
							g.Expect(err).NotTo(HaveOccurred(), "%s without %s: policy %q", m.file, path, name)
						}
					}
				})
			}
		})
	}
}

// each calls a function with every field of an object left out in turn, and with every map and list empty.
func each(o map[string]any, call func(path string)) {
	var walk func(v any, path string)
	change := func(value any, path string, set func(any)) {
		switch value.(type) {
		case map[string]any:
			set(map[string]any{})
			call(path + " with nothing in it")
		case []any:
			set([]any{})
			call(path + " with nothing in it")
		}
		set(nil)
		call(path)
		set(value)
	}
	walk = func(v any, path string) {
		switch v := v.(type) {
		case map[string]any:
			for k, item := range v {
				if path == "" && (k == "kind" || k == "apiVersion") {
					continue
				}
				change(item, path+"."+k, func(to any) { v[k] = to })
				walk(item, path+"."+k)
			}
		case []any:
			for i, item := range v {
				at := fmt.Sprintf("%s[%d]", path, i)
				change(item, at, func(to any) { v[i] = to })
				walk(item, at)
			}
		}
	}
	walk(o, "")
}

// TestTypesLeaveAlone holds that nothing is said of objects in namespaces that are left alone.
func TestTypesLeaveAlone(t *testing.T) {
	g := NewWithT(t)
	seen := 0
	for _, c := range typeCases(t) {
		policies := evaluators(t, c.render(t, true))
		_, violating := c.manifests(t)
		for _, m := range violating {
			u := &unstructured.Unstructured{Object: m.object}
			isNamespace := u.GetKind() == "Namespace"
			if !isNamespace && created(m.object).Namespace == nil {
				continue // it is in none
			}
			for _, namespace := range append(slices.Clone(plugin.SystemNamespaces), ownNamespace) {
				if isNamespace {
					u.SetName(namespace)
				} else {
					u.SetNamespace(namespace)
				}
				for name, e := range policies {
					v, err := e.evaluate(created(m.object))
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(v.Applies).To(BeFalse(), "%s in namespace %s: policy %q", m.file, namespace, name)
					seen++
				}
			}
		}
	}
	g.Expect(seen).To(BeNumerically(">", 1000))
}

// TestInclude holds which types can be included, and what becomes of a type whose policies are not there.
func TestInclude(t *testing.T) {
	policy := func(name string) string {
		return `{name: ` + name + `, match: {resources: {kinds: [Pod]}}, validate: {cel: {expressions: [{expression: "true"}]}}}`
	}
	one := func(name, spec string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("{apiVersion: kurator.dev/v1alpha1, kind: RuleType, metadata: {name: " + name + "}, spec: " + spec + "}")}
	}
	for _, c := range []struct{ a, b, message string }{
		{`{policies: [` + policy(`""`) + `]}`, `{include: [{type: a}], policies: [` + policy("own") + `]}`, ""},
		{`{policies: [` + policy(`""`) + `]}`, `{include: [{type: c}]}`, `b: spec.include[0]: there is no type of rules "c"`},
		{`{include: [{type: b}]}`, `{include: [{type: a}]}`, "a: spec.include: a includes itself"},
		{`{objects: [{object: {apiVersion: v1, kind: X, metadata: {name: x}}}]}`, `{include: [{type: a}]}`, "b: spec.include[0]: a has objects"},
		{`{policies: [` + policy(`""`) + `]}`, `{include: [{type: a}], policies: [` + policy("a") + `]}`, "b: spec.include: there are two policies a"},
		{`{policies: [` + policy(`""`) + `]}`, `{include: [{type: a}, {type: a}]}`, "b: spec.include: there are two policies a"},
		{`{policies: [` + policy(`""`) + `]}`, `{include: [{type: a}], policies: [` + policy(`""`) + `]}`, "spec.policies[0].name"},
		{`{policies: [` + policy(`""`) + `]}`, `{include: [{type: a, params: {x: "${members}"}}]}`, "spec.include[0].params.x"},
		{`{policies: [` + policy(`""`) + `]}`, `{include: [{type: a, params: {x: 1}}], policies: [` + policy("own") + `]}`, "include[0]: a: params.x"},
	} {
		g := NewWithT(t)
		c.a = strings.Replace(c.a, "{", "{parameters: {type: object}, ", 1)
		all, err := plugin.LoadAll(fstest.MapFS{"a/plugin.yaml": one("a", c.a), "b/plugin.yaml": one("b", c.b)})
		var objects []*unstructured.Unstructured
		if err == nil {
			objects, err = renderType(all["b"], nil, false)
		}
		if c.message != "" {
			g.Expect(err).To(MatchError(ContainSubstring(c.message)), c.b)
			continue
		}
		g.Expect(err).NotTo(HaveOccurred(), c.b)
		g.Expect(all["b"].PolicyNames()).To(Equal([]string{"own", "a"}))
		g.Expect(slices.Sorted(maps.Keys(evaluators(t, objects)))).To(Equal([]string{"a", "own"}))

		_, err = plugin.Load(fstest.MapFS{"plugin.yaml": one("b", c.b)})
		g.Expect(err).To(MatchError(ContainSubstring("only types that come with Fleetwright include others")))
	}
}

// onlyEnforced are the objects that a case has with enforce alone.
var onlyEnforced = map[string][]string{
	"configure-security-group":            {"GeneratingPolicy"},
	"configure-security-group.deny":       {"GeneratingPolicy"},
	"configure-security-group.none":       {"GeneratingPolicy"},
	"configure-security-group.namespaces": {"NetworkPolicy", "NetworkPolicy"},
}

// TestTypesEnforce holds that enforce changes what happens to what breaks a policy, and nothing else.
func TestTypesEnforce(t *testing.T) {
	for _, c := range typeCases(t) {
		g := NewWithT(t)
		rendered := map[string][]*unstructured.Unstructured{}
		var extra []string
		for _, enforce := range []bool{false, true} {
			action := map[bool]string{false: "Audit", true: "Deny"}[enforce]
			for _, o := range c.render(t, enforce) {
				if o.GetKind() == "ValidatingPolicy" {
					actions, _, err := unstructured.NestedStringSlice(o.Object, "spec", "validationActions")
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(actions).To(Equal([]string{action}), c.name)
					unstructured.RemoveNestedField(o.Object, "spec", "validationActions")
				} else if enforce && slices.Contains(onlyEnforced[c.name], o.GetKind()) {
					extra = append(extra, o.GetKind())
					continue
				}
				rendered[action] = append(rendered[action], o)
			}
		}
		g.Expect(rendered["Deny"]).To(Equal(rendered["Audit"]), c.name)
		g.Expect(extra).To(Equal(onlyEnforced[c.name]), c.name)
	}
}

// TestTypesDescribe holds that types and parameters say what they are, and that policies have a severity.
func TestTypesDescribe(t *testing.T) {
	g := NewWithT(t)
	for name, p := range allTypes(t) {
		g.Expect(p.Spec.Description).To(HaveSuffix("."), name)
		g.Expect(p.Spec.Parameters).NotTo(BeNil(), name)
		for param, schema := range p.Spec.Parameters.Properties {
			g.Expect(schema.Description).To(HaveSuffix("."), "%s: %s", name, param)
		}
		for _, policy := range p.Spec.Policies {
			g.Expect(policy.Severity).To(BeElementOf("critical", "high", "medium", "low", "info"), "%s: %s", name, policy.Name)
		}
	}
}

// TestTypesRefuse holds that a parameter that makes no sense is refused with a message that names it.
func TestTypesRefuse(t *testing.T) {
	g := NewWithT(t)
	refused := func(name string, params map[string]any, message string) {
		_, err := renderType(allTypes(t)[name], params, true)
		g.Expect(err).To(MatchError(ContainSubstring(message)), "%s: %v", name, params)
	}
	for _, c := range typeCases(t) {
		name := c.of.Metadata.Name
		for param := range c.of.Spec.Parameters.Properties {
			params := map[string]any{}
			maps.Copy(params, c.params)
			params[param] = 5
			refused(name, params, "params."+param)
		}
		for _, param := range c.of.Spec.Parameters.Required {
			refused(name, nil, "params."+param)
		}
		params := map[string]any{"unheard": true}
		maps.Copy(params, c.params)
		refused(name, params, "params.unheard")
	}
	list := func(items ...any) []any { return append([]any{}, items...) }
	for _, c := range []struct {
		name    string
		params  map[string]any
		message string
	}{
		{"disallow-host-ports", map[string]any{"allowed": list(0)}, "params.allowed[0]"},
		{"disallow-host-ports", map[string]any{"allowed": list(65536)}, "params.allowed[0]"},
		{"drop-capabilities", map[string]any{"allowed": list("ALL")}, "params.allowed: ALL"},
		{"drop-capabilities", map[string]any{"allowed": list("net_raw")}, "params.allowed[0]"},
		{"cis-workloads", map[string]any{"allowedCapabilities": list("ALL")}, "params.allowedCapabilities: ALL"},
		{"pod-security-restricted", map[string]any{"allowedHostPorts": list(-1)}, "params.allowedHostPorts[0]"},
		{"require-resource-limits", map[string]any{"cpu": false, "memory": false}, "params.cpu, params.memory and params.requests are all false"},
		{"require-probes", map[string]any{"probes": list()}, "params.probes"},
		{"require-probes", map[string]any{"probes": list("health")}, "params.probes[0]"},
		{"allowed-registries", map[string]any{"registries": list()}, "params.registries"},
		{"allowed-registries", map[string]any{"registries": list("registry.example.com/")}, "params.registries[0]"},
		{"allowed-registries", map[string]any{"registries": list("*.example.com")}, "params.registries[0]"},
		{"allowed-registries", map[string]any{"registries": list("a|b")}, "params.registries[0]"},
		{"disable-service-account-token", map[string]any{"allowed": list("a/b/c")}, "params.allowed[0]"},
		{"require-labels", map[string]any{"labels": list()}, "params.labels: has to be"},
		{"require-labels", map[string]any{"labels": "team"}, "params.labels: has to be"},
		{"require-labels", map[string]any{"labels": list("team", 1)}, "params.labels: keys and values"},
		{"require-labels", map[string]any{"labels": map[string]any{"team": nil}}, "params.labels: keys and values"},
		{"require-labels", map[string]any{"labels": map[string]any{"team": "a|b"}}, "params.labels: a|b: is no value"},
		{"require-labels", map[string]any{"labels": list(`a"] || true`)}, "params.labels: a\"] || true: is no key"},
		{"require-labels", map[string]any{"labels": list("team"), "kinds": list("Pod", "Namespace")}, "params.kinds: Pod stands"},
		{"require-labels", map[string]any{"labels": list("team"), "kinds": list("Nothing")}, "kinds[0]: Nothing"},
		{"restrict-external-ips", map[string]any{"allowed": list("any")}, "params.allowed[0]"},
		{"restrict-cluster-admin", map[string]any{"allowed": list("alice")}, "params.allowed[0]"},
		{"configure-security-group", nil, "params.allowPorts and params.denyPorts are both left out"},
		{"configure-security-group", map[string]any{"denyPorts": list()}, "params.allowPorts and params.denyPorts are both left out"},
		{"configure-security-group", map[string]any{"allowPorts": list(22, 80, 443), "denyPorts": list(443, 22)}, "params.allowPorts and params.denyPorts both have 443, 22"},
		{"configure-security-group", map[string]any{"allowPorts": list(0)}, "params.allowPorts[0]"},
		{"configure-security-group", map[string]any{"denyPorts": list(65536)}, "params.denyPorts[0]"},
		{"configure-security-group", map[string]any{"denyPorts": list("ssh")}, "params.denyPorts[0]"},
		{"configure-security-group", map[string]any{"denyPorts": list(22), "namespaces": list("a*")}, "params.namespaces[0]"},
		{"configure-security-group", map[string]any{"denyPorts": list(22), "namespaces": list("kube-system")}, "no rule looks at the namespaces of the system"},
		{"install-security-agent", map[string]any{"agentImage": "agent"}, "params.agentImage: agent: does not say which"},
		{"install-security-agent", map[string]any{"agentImage": "localhost:5000/agent"}, "params.agentImage"},
		{"install-security-agent", map[string]any{"agentImage": "agent:latest"}, "params.agentImage"},
		{"install-security-agent", map[string]any{"agentImage": "a b:1"}, "params.agentImage"},
		{"install-security-agent", map[string]any{"agentImage": "a:1", "namespace": "kube-system"}, "params.namespace: kube-system"},
		{"install-security-agent", map[string]any{"agentImage": "a:1", "hostPaths": list("/var/../etc")}, "params.hostPaths"},
		{"install-security-agent", map[string]any{"agentImage": "a:1", "hostPaths": list("etc")}, "params.hostPaths[0]"},
	} {
		refused(c.name, c.params, c.message)
	}
}

// TestTypesObjects holds that API servers take what types become, and Kyverno its policies.
func TestTypesObjects(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range typeCases(t) {
		for _, enforce := range []bool{false, true} {
			g := NewWithT(t)
			for _, o := range c.render(t, enforce) {
				seen[o.GetKind()] = true
				if o.GroupVersionKind().Group == policiesGroup {
					g.Expect(refusedByCRD(o)).To(BeEmpty(), "%s: %s %s", c.name, o.GetKind(), o.GetName())
					g.Expect(refusedByKyverno(o)).To(Succeed(), "%s: %s %s", c.name, o.GetKind(), o.GetName())
				} else {
					g.Expect(strict(o.Object)).To(Succeed(), "%s: %s %s", c.name, o.GetKind(), o.GetName())
				}
			}
		}
	}
	for _, kind := range []string{"ValidatingPolicy", "GeneratingPolicy", "NetworkPolicy", "Namespace", "ServiceAccount", "DaemonSet"} {
		NewWithT(t).Expect(seen).To(HaveKey(kind))
	}
}

// policyCRDs are the CRDs of Kyverno 1.19, as published.
var policyCRDs = sync.OnceValues(func() (map[schema.GroupVersionKind]*apiextensions.JSONSchemaProps, error) {
	files, err := filepath.Glob(filepath.Join(typesFolder, "_crds", "*.yaml.gz"))
	if err != nil {
		return nil, err
	}
	all := map[schema.GroupVersionKind]*apiextensions.JSONSchemaProps{}
	for _, file := range files {
		compressed, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		r, err := gzip.NewReader(bytes.NewReader(compressed))
		if err != nil {
			return nil, err
		}
		b, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		var d apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(b, &d); err != nil {
			return nil, err
		}
		for _, v := range d.Spec.Versions {
			var internal apiextensions.JSONSchemaProps
			if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v.Schema.OpenAPIV3Schema, &internal, nil); err != nil {
				return nil, err
			}
			all[schema.GroupVersionKind{Group: d.Spec.Group, Version: v.Name, Kind: d.Spec.Names.Kind}] = &internal
		}
	}
	return all, nil
})

// refusedByCRD returns why an API server with the CRDs of Kyverno refuses a policy.
func refusedByCRD(o *unstructured.Unstructured) (problems []string) {
	known, err := policyCRDs()
	if err != nil {
		return []string{err.Error()}
	}
	props := known[o.GroupVersionKind()]
	if props == nil {
		return []string{fmt.Sprintf("there is no CRD of %s", o.GroupVersionKind())}
	}
	structural, err := structuralschema.NewStructural(props)
	if err != nil {
		return []string{err.Error()}
	}
	object := o.DeepCopy().Object
	for _, path := range pruning.PruneWithOptions(object, structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}) {
		problems = append(problems, path+": unknown field")
	}
	v, _, err := schemavalidation.NewSchemaValidator(props)
	if err != nil {
		return []string{err.Error()}
	}
	errs := schemavalidation.ValidateCustomResource(nil, object, v)
	if len(errs) == 0 {
		errs, _ = schemacel.NewValidator(structural, true, celconfig.PerCallLimit).Validate(context.Background(), nil, structural, object, nil, celconfig.RuntimeCELCostBudget)
	}
	for _, err := range errs {
		problems = append(problems, err.Error())
	}
	return problems
}

// kyvernoEnvironment is what Kyverno 1.19 compiles expressions in, without its own libraries. There, orValue is of any type.
// https://github.com/kyverno/kyverno/blob/v1.19.0/pkg/cel/compiler/env.go
var kyvernoEnvironment = sync.OnceValues(func() (*cel.Env, error) {
	anyValue := cel.ReceiverMacro("orValue", 1, func(f cel.MacroExprFactory, target ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
		return f.NewCall("orAnyValue", target, args[0]), nil
	})
	options := []cel.EnvOption{
		cel.HomogeneousAggregateLiterals(), cel.EagerlyValidateDeclarations(true), cel.DefaultUTCTimeZone(true), cel.CrossTypeNumericComparisons(true),
		cel.OptionalTypes(), ext.Bindings(), ext.Encoders(), ext.Lists(ext.ListsVersion(3)), ext.Math(), ext.Protos(), ext.Sets(),
		ext.Strings(ext.StringsVersion(2)), library.CIDR(), library.Format(), library.IP(), library.Lists(), library.Regex(), library.URLs(),
		library.Quantity(), library.SemverLib(library.SemverVersion(1)),
		cel.Macros(anyValue), cel.Function("orAnyValue", cel.Overload("orAnyValue_dyn_dyn", []*cel.Type{cel.DynType, cel.DynType}, cel.DynType,
			cel.BinaryBinding(func(v, or ref.Val) ref.Val {
				if o, ok := v.(*types.Optional); ok && o.HasValue() {
					return o.GetValue()
				} else if ok {
					return or
				}
				return v
			}))),
	}
	for _, name := range []string{"object", "oldObject", "request", "namespaceObject"} {
		options = append(options, cel.Variable(name, cel.DynType))
	}
	options = append(options, cel.Variable("variables", cel.MapType(cel.StringType, cel.DynType)))
	set, err := environment.MustBaseEnvSet(version.MajorMinor(1, 0)).Extend(environment.VersionedOptions{IntroducedVersion: version.MajorMinor(1, 0), EnvOptions: options})
	if err != nil {
		return nil, err
	}
	return set.StoredExpressionsEnv(), nil
})

// interpolated are the expressions in the template of a GeneratingPolicy.
var interpolated = regexp.MustCompile(`\(\(\s*(.*?)\s*\)\)`)

// refusedByKyverno returns why Kyverno does not take the expressions of a policy.
func refusedByKyverno(o *unstructured.Unstructured) error {
	env, err := kyvernoEnvironment()
	if err != nil {
		return err
	}
	var failed []error
	check := func(expression any, kind *cel.Type) {
		_, err := compileExpression(env, fmt.Sprint(expression), kind)
		failed = append(failed, err)
	}
	for _, field := range []string{"matchConditions", "variables", "validations"} {
		items, _, err := unstructured.NestedSlice(o.Object, "spec", field)
		failed = append(failed, err)
		for _, item := range items {
			kind := cel.BoolType
			if field == "variables" {
				kind = nil
			}
			check(item.(map[string]any)["expression"], kind)
		}
	}
	generate, _, err := unstructured.NestedSlice(o.Object, "spec", "generate")
	failed = append(failed, err)
	for _, item := range generate {
		value, _, err := unstructured.NestedString(item.(map[string]any), "template", "value")
		failed = append(failed, err)
		for _, found := range interpolated.FindAllStringSubmatch(value, -1) {
			check(found[1], nil)
		}
	}
	return errors.Join(failed...)
}

// TestSecurityGroupTraffic holds what comes into a namespace that configure-security-group is enforced in, whether it is named
// or not.
func TestSecurityGroupTraffic(t *testing.T) {
	ports := func(ports ...int) (out []any) {
		for _, p := range ports {
			out = append(out, p)
		}
		return out
	}
	all := []int32{1, 21, 22, 23, 80, 3388, 3389, 3390, 8080, 65535}
	for _, c := range []struct {
		name           string
		params         map[string]any
		inside, beyond []int32
		anyProtocol    bool
	}{
		{"both", map[string]any{"allowPorts": ports(443, 80), "denyPorts": ports(3389, 22, 22)}, []int32{1, 21, 23, 80, 3388, 3390, 8080, 65535}, []int32{80}, false},
		{"allowed", map[string]any{"allowPorts": ports(80)}, all, []int32{80}, true},
		{"none allowed", map[string]any{"allowPorts": []any{}}, all, nil, true},
		{"none allowed, some denied", map[string]any{"allowPorts": []any{}, "denyPorts": ports(1, 65535)}, []int32{21, 22, 23, 80, 3388, 3389, 3390, 8080}, nil, false},
		{"denied", map[string]any{"denyPorts": ports(22, 21, 23)}, []int32{1, 80, 3388, 3389, 3390, 8080, 65535}, []int32{1, 80, 3388, 3389, 3390, 8080, 65535}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			named := map[string]any{"namespaces": []any{"shop"}}
			maps.Copy(named, c.params)
			group := allTypes(t)["configure-security-group"]
			objects, err := renderType(group, named, true)
			g.Expect(err).NotTo(HaveOccurred())
			policy := networkPolicy(t, objects)
			objects, err = renderType(group, c.params, true)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(networkPolicy(t, objects)).To(Equal(policy))

			g.Expect(policy.Namespace).To(Equal("shop"))
			g.Expect(policy.Spec.PodSelector.Size()).To(Equal(new(networkingv1.NetworkPolicy).Spec.PodSelector.Size()))
			g.Expect(policy.Spec.PolicyTypes).To(Equal([]networkingv1.PolicyType{networkingv1.PolicyTypeIngress}))
			for _, port := range all {
				for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
					g.Expect(comesIn(policy, true, protocol, port)).To(Equal(slices.Contains(c.inside, port)), "%d/%s within the namespace", port, protocol)
					g.Expect(comesIn(policy, false, protocol, port)).To(Equal(slices.Contains(c.beyond, port)), "%d/%s from beyond", port, protocol)
				}
			}
			g.Expect(comesIn(policy, true, corev1.ProtocolSCTP, 7)).To(Equal(c.anyProtocol))
			g.Expect(comesIn(policy, false, corev1.ProtocolSCTP, 7)).To(BeFalse())
		})
	}
}

// networkPolicy returns the one among objects, or the one that a GeneratingPolicy makes in namespace shop, and in no other
// that is left alone.
func networkPolicy(t testing.TB, objects []*unstructured.Unstructured) *networkingv1.NetworkPolicy {
	t.Helper()
	g := NewWithT(t)
	policy := &networkingv1.NetworkPolicy{}
	for _, o := range objects {
		switch o.GetKind() {
		case "NetworkPolicy":
			g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, policy, true)).To(Succeed())
		case "GeneratingPolicy":
			e, err := newEvaluator(o)
			g.Expect(err).NotTo(HaveOccurred())
			for _, namespace := range append(slices.Clone(plugin.SystemNamespaces), ownNamespace, "shop") {
				v, err := e.evaluate(created(map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace}}))
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(v.Applies).To(Equal(namespace == "shop"), namespace)
			}
			for _, field := range []string{"generateExisting", "synchronize"} {
				on, _, err := unstructured.NestedBool(o.Object, "spec", "evaluation", field, "enabled")
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(on).To(BeTrue(), field)
			}
			generate, _, err := unstructured.NestedSlice(o.Object, "spec", "generate")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(generate).To(HaveLen(1))
			value, _, err := unstructured.NestedString(generate[0].(map[string]any), "template", "value")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(interpolated.FindAllString(value, -1)).To(Equal([]string{"(( object.metadata.name ))"}))
			g.Expect(yaml.UnmarshalStrict([]byte(interpolated.ReplaceAllString(value, "shop")), policy)).To(Succeed())
		}
	}
	g.Expect(policy.Name).To(Equal("compliance.default.x.r"))
	return policy
}

// comesIn says whether a NetworkPolicy lets a connection in, from its namespace or from beyond.
func comesIn(policy *networkingv1.NetworkPolicy, within bool, protocol corev1.Protocol, port int32) bool {
	return slices.ContainsFunc(policy.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool {
		if len(r.From) > 0 && !within {
			return false
		}
		return len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, func(p networkingv1.NetworkPolicyPort) bool {
			last := p.Port.IntVal
			if p.EndPort != nil {
				last = *p.EndPort
			}
			return *p.Protocol == protocol && port >= p.Port.IntVal && port <= last
		})
	})
}

// TestSecurityAgent holds what install-security-agent installs.
func TestSecurityAgent(t *testing.T) {
	g := NewWithT(t)
	agent := func(params map[string]any) (namespace corev1.Namespace, account corev1.ServiceAccount, set appsv1.DaemonSet) {
		objects, err := renderType(allTypes(t)["install-security-agent"], params, true)
		g.Expect(err).NotTo(HaveOccurred())
		into := map[string]any{"Namespace": &namespace, "ServiceAccount": &account, "DaemonSet": &set}
		for _, o := range objects {
			if typed := into[o.GetKind()]; typed != nil {
				g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, typed, true)).To(Succeed())
			}
		}
		return namespace, account, set
	}
	namespace, account, set := agent(map[string]any{"agentImage": "your-registry/security-agent:v2.0.0", "namespace": "security-infra"})
	g.Expect(namespace.Name).To(Equal("security-infra"))
	g.Expect(namespace.Labels).To(BeEmpty())
	g.Expect(namespace.Annotations).To(HaveKeyWithValue("kustomize.toolkit.fluxcd.io/prune", "disabled"))
	g.Expect(account.Namespace + "/" + account.Name).To(Equal("security-infra/security-agent"))
	g.Expect(*account.AutomountServiceAccountToken).To(BeFalse())
	g.Expect(set.Namespace + "/" + set.Name).To(Equal("security-infra/security-agent"))
	pod := set.Spec.Template.Spec
	g.Expect(set.Spec.Selector.MatchLabels).To(Equal(set.Spec.Template.Labels))
	g.Expect(pod.ServiceAccountName).To(Equal("security-agent"))
	g.Expect(*pod.AutomountServiceAccountToken).To(BeFalse())
	g.Expect(pod.Tolerations).To(Equal([]corev1.Toleration{{Operator: corev1.TolerationOpExists}}))
	g.Expect(pod.Containers).To(HaveLen(1))
	g.Expect(pod.Containers[0].Image).To(Equal("your-registry/security-agent:v2.0.0"))
	g.Expect(pod.Containers[0].Resources.Limits.Memory().IsZero()).To(BeFalse())
	g.Expect(*pod.Containers[0].SecurityContext.AllowPrivilegeEscalation).To(BeFalse())
	g.Expect(pod.Volumes).To(BeEmpty())
	g.Expect(pod.ImagePullSecrets).To(BeEmpty())

	namespace, account, set = agent(map[string]any{"agentImage": "a:1", "name": "guard", "imagePullSecret": "pull", "hostPaths": []any{"/var/log", "/proc"},
		"tolerations": []any{}, "resources": map[string]any{}, "securityContext": map[string]any{"privileged": true}})
	pod = set.Spec.Template.Spec
	g.Expect(namespace.Name).To(Equal("security-agent"))
	g.Expect(namespace.Labels).To(HaveKeyWithValue("pod-security.kubernetes.io/enforce", "privileged"))
	g.Expect(account.Name).To(Equal("guard"))
	g.Expect(set.Name).To(Equal("guard"))
	g.Expect(pod.Tolerations).To(BeEmpty())
	g.Expect(pod.ImagePullSecrets).To(Equal([]corev1.LocalObjectReference{{Name: "pull"}}))
	g.Expect(pod.Volumes).To(HaveLen(2))
	g.Expect(pod.Volumes[1].HostPath.Path).To(Equal("/proc"))
	g.Expect(pod.Containers[0].VolumeMounts[1]).To(Equal(corev1.VolumeMount{Name: pod.Volumes[1].Name, MountPath: "/host/proc", ReadOnly: true}))
	g.Expect(*pod.Containers[0].SecurityContext.Privileged).To(BeTrue())
	g.Expect(pod.Containers[0].SecurityContext.AllowPrivilegeEscalation).To(BeNil())
}

// A type that is not known is suggested as it is written rightly, if it nearly is.
func TestUnknownType(t *testing.T) {
	for kind, want := range map[string]string{"disable-rot-user": "not known; did you mean disable-root-user?", "nosuch": "not known", "disable-root-user": "not known"} {
		g := NewWithT(t)
		c := read[clusterv1.ClusterCompliance](t, "metadata: {name: c, namespace: ns}\nspec: {clusterName: a, rules: [{name: r, type: "+kind+"}]}")
		r, err := Render(Input{Set: OfCompliance(c), Types: []string{"disable-root-user", "drop-capabilities"}, Find: func(string, bool) (*plugin.Plugin, map[string]any, error) {
			return nil, nil, errors.New("not known")
		}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(r.Rules[0].Err).To(MatchError(want))
	}
}
