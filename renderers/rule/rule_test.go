package rule

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	catalog "github.com/fleetwright/fleetwright/plugins-catalog"
	"github.com/fleetwright/fleetwright/renderers/plugin"
)

func read[T any](t testing.TB, text string) *T {
	t.Helper()
	out := new(T)
	NewWithT(t).Expect(yaml.UnmarshalStrict([]byte(text), out)).To(Succeed())
	return out
}

// renderRules renders the rules of a FleetSecurityPolicy called fsp for a fleet called prod.
func renderRules(t testing.TB, rules string, fleets ...*fleetv1.Fleet) *Rendered {
	t.Helper()
	p := read[policyv1.FleetSecurityPolicy](t, "metadata: {name: fsp, namespace: ns}\nspec: {fleet: prod, rules: "+rules+"}")
	catalog, err := plugin.LoadAll(catalog.FS)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	r, err := Render(Input{Set: OfPolicy(p), Fleets: fleets, Engines: []string{"prod"}, Find: func(name string, _ bool) (*plugin.Plugin, map[string]any, error) {
		if catalog[name] == nil {
			return nil, nil, errors.New("is not loaded")
		}
		return catalog[name], nil, nil
	}})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return r
}

// said is what the rules say of a manifest that is created: the messages of what is broken; nil if no rule looks at it.
func said(t testing.TB, r *Rendered, manifest string) []string {
	t.Helper()
	trial, err := r.Try()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	var out []string
	for _, v := range trial.Object(&unstructured.Unstructured{Object: parsed(t, []byte(manifest))}) {
		NewWithT(t).Expect(v.Err).NotTo(HaveOccurred())
		out = append(append(out, "looked at by "+v.Rule.Name), v.Broken...)
	}
	return out
}

const rootPod = `{name: r, match: {resources: {kinds: [Pod]}}, validate: {message: bad, pattern: {spec: {securityContext: {runAsNonRoot: true}}}}}`

// Policies, must hold 2: what is for Pods holds for all that creates them, however the pattern is written.
func TestPodRules(t *testing.T) {
	for name, rule := range map[string]string{
		"of a Pod":            rootPod,
		"of a template":       `{name: r, match: {resources: {kinds: [Pod, Deployment, StatefulSet]}}, validate: {message: bad, pattern: {spec: {template: {spec: {securityContext: {runAsNonRoot: true}}}}}}}`,
		"one of two patterns": `{name: r, match: {resources: {kinds: [Pod]}}, validate: {message: bad, anyPattern: [{spec: {never: true}}, {spec: {securityContext: {runAsNonRoot: true}}}]}}`,
		"in CEL":              `{name: r, match: {resources: {kinds: [Pod]}}, validate: {message: bad, cel: {expressions: [{expression: 'variables.pod.?spec.?securityContext.?runAsNonRoot == optional.of(true)'}]}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r := renderRules(t, "["+rule+"]")
			g.Expect(r.Failed()).To(BeEmpty())
			for kind, shape := range map[string]string{
				"v1 Pod": `spec: POD`, "v1 ReplicationController": `spec: {template: {spec: POD}}`,
				"apps/v1 Deployment": `spec: {template: {spec: POD}}`, "apps/v1 StatefulSet": `spec: {template: {spec: POD}}`, "apps/v1 DaemonSet": `spec: {template: {spec: POD}}`,
				"apps/v1 ReplicaSet": `spec: {template: {spec: POD}}`, "batch/v1 Job": `spec: {template: {spec: POD}}`, "batch/v1 CronJob": `spec: {jobTemplate: {spec: {template: {spec: POD}}}}`,
			} {
				version, kind, _ := strings.Cut(kind, " ")
				manifest := func(pod, ns string) string {
					return fmt.Sprintf("{apiVersion: %s, kind: %s, metadata: {name: x, namespace: %s}, %s}", version, kind, ns, strings.Replace(shape, "POD", pod, 1))
				}
				g.Expect(said(t, r, manifest("{securityContext: {runAsNonRoot: true}}", "shop"))).To(Equal([]string{"looked at by r"}), kind)
				g.Expect(said(t, r, manifest("{securityContext: {}}", "shop"))).To(Equal([]string{"looked at by r", "bad"}), kind)
				for _, ns := range plugin.SystemNamespaces {
					g.Expect(said(t, r, manifest("{}", ns))).To(BeEmpty(), kind)
				}
			}
			g.Expect(said(t, r, "{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {}}")).To(BeEmpty())
			g.Expect(said(t, r, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}}")).To(HaveLen(2), "nothing in it")
		})
	}
}

// Policies, must hold 3: to enforce is one field; what was there goes on.
func TestEnforcement(t *testing.T) {
	g := NewWithT(t)
	audit := renderRules(t, "["+rootPod+"]")
	enforce := renderRules(t, "["+strings.Replace(rootPod, "name: r", "name: r, enforcement: enforce", 1)+"]")
	a, b := audit.Manifests[0].DeepCopy(), enforce.Manifests[0].DeepCopy()
	action := func(o *unstructured.Unstructured) []any {
		actions, _, _ := unstructured.NestedSlice(o.Object, "spec", "validationActions")
		unstructured.RemoveNestedField(o.Object, "spec", "validationActions")
		return actions
	}
	g.Expect(action(a)).To(Equal([]any{"Audit"}))
	g.Expect(action(b)).To(Equal([]any{"Deny"}))
	g.Expect(a).To(Equal(b))
	g.Expect(audit.Rules[0].Enforce).To(BeFalse())
	g.Expect(enforce.Rules[0].Enforce).To(BeTrue())

	e, err := newEvaluator(enforce.Manifests[0])
	g.Expect(err).NotTo(HaveOccurred())
	for name, c := range map[string]struct {
		kind, was, is string
		looks         bool
	}{
		"scaled":                {"Deployment", "replicas: 1, template: {spec: {a: 1}}", "replicas: 2, template: {spec: {a: 1}}", false},
		"another image":         {"Deployment", "template: {spec: {a: 1}}", "template: {spec: {a: 2}}", true},
		"another label":         {"Deployment", "template: {metadata: {labels: {a: b}}, spec: {}}", "template: {metadata: {labels: {a: c}}, spec: {}}", true},
		"another annotation":    {"Deployment", "template: {spec: {}}", "template: {metadata: {annotations: {a: c}}, spec: {}}", true},
		"a schedule":            {"CronJob", "schedule: a, jobTemplate: {spec: {template: {spec: {a: 1}}}}", "schedule: b, jobTemplate: {spec: {template: {spec: {a: 1}}}}", false},
		"the Pods of a CronJob": {"CronJob", "jobTemplate: {spec: {template: {spec: {a: 1}}}}", "jobTemplate: {spec: {template: {spec: {a: 2}}}}", true},
	} {
		object := func(spec string) *unstructured.Unstructured {
			version := map[string]string{"Deployment": "apps/v1", "CronJob": "batch/v1"}[c.kind]
			return &unstructured.Unstructured{Object: parsed(t, []byte(fmt.Sprintf("{apiVersion: %s, kind: %s, metadata: {name: x, namespace: shop}, spec: {%s}}", version, c.kind, spec)))}
		}
		asked := created(object(c.is).Object)
		asked.Operation, asked.OldObject = admissionv1.Update, object(c.was)
		v, err := e.evaluate(asked)
		g.Expect(err).NotTo(HaveOccurred(), name)
		g.Expect(v.Applies).To(Equal(c.looks), name)
	}
}

// What is left alone: the system, Flux, what the fleet's plugins run in, what is asked for; of the Namespaces themselves, too.
func TestLeftAlone(t *testing.T) {
	g := NewWithT(t)
	fleet := read[fleetv1.Fleet](t, `{metadata: {name: prod, namespace: ns}, spec: {plugin: {policy: {kyverno: {}}, metric: {thanos: {objectStoreConfig: {secretName: s}}}, backup: {storage: {location: {bucket: b, provider: aws, endpoint: "https://x", region: r}, secretName: v}}}}}`)
	rule := `{name: r, match: {resources: {kinds: [Namespace]}}, validate: {message: bad, pattern: {metadata: {labels: {team: "?*"}}}}}`
	r := renderRules(t, "["+rule+", "+strings.Replace(rootPod, "name: r", "name: p", 1)+"], excludeNamespaces: [mine]", fleet)
	g.Expect(r.Excluded).To(ConsistOf("kube-system", "kube-public", "kube-node-lease", "flux-system", "kyverno", "monitoring", "velero", "mine"))
	for _, ns := range r.Excluded {
		g.Expect(said(t, r, "{apiVersion: v1, kind: Namespace, metadata: {name: "+ns+"}}")).To(BeEmpty(), ns)
		g.Expect(said(t, r, "{apiVersion: v1, kind: Pod, metadata: {name: x, namespace: "+ns+"}, spec: {}}")).To(BeEmpty(), ns)
	}
	g.Expect(said(t, r, "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}")).To(Equal([]string{"looked at by r", "bad"}))
	g.Expect(said(t, r, "{apiVersion: v1, kind: Pod, metadata: {name: x, namespace: shop}, spec: {}}")).To(Equal([]string{"looked at by p", "bad"}))

	t.Log("of a plugin that is not loaded it is not known what it runs in: then nothing is rendered")
	fleet.Spec.Plugins = []fleetv1.FleetPlugin{{Name: "nosuch"}}
	p := read[policyv1.FleetSecurityPolicy](t, "metadata: {name: fsp, namespace: ns}\nspec: {fleet: prod, rules: ["+rule+"]}")
	_, err := Render(Input{Set: OfPolicy(p), Fleets: []*fleetv1.Fleet{fleet}, Find: func(name string, _ bool) (*plugin.Plugin, map[string]any, error) {
		if name == "nosuch" {
			return nil, nil, errors.New("is not loaded")
		}
		all, err := plugin.LoadAll(catalog.FS)
		return all[name], nil, err
	}})
	g.Expect(err).To(MatchError("which namespaces plugin nosuch of Fleet prod has, and are to be left alone, is not known: is not loaded"))
}

// Match and exclude.
func TestMatch(t *testing.T) {
	g := NewWithT(t)
	rule := func(match, exclude string) *Rendered {
		if exclude != "" {
			exclude = ", exclude: {resources: {" + exclude + "}}"
		}
		return renderRules(t, "[{name: r, match: {resources: {kinds: [ConfigMap], "+match+"}}"+exclude+", validate: {message: bad, pattern: {data: {a: b}}}}]")
	}
	manifest := func(name, ns, labels string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, namespace: %s, labels: {%s}}}", name, ns, labels)
	}
	for _, c := range []struct {
		match, exclude, name, ns, labels string
		looks                            bool
	}{
		{"", "", "a", "shop", "", true},
		{"names: [a, 'b-*']", "", "a", "shop", "", true},
		{"names: [a, 'b-*']", "", "b-1", "shop", "", true},
		{"names: [a, 'b-*']", "", "b", "shop", "", false},
		{"names: ['a.?']", "", "axb", "shop", "", false},
		{"namespaces: ['shop-?']", "", "a", "shop-1", "", true},
		{"namespaces: ['shop-?']", "", "a", "shop-12", "", false},
		{"selector: {matchLabels: {a: b}}", "", "a", "shop", "a: b", true},
		{"selector: {matchLabels: {a: b}}", "", "a", "shop", "", false},
		{"namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}", "", "a", "shop", "", true},
		{"namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}", "", "a", "other", "", false},
		{"", "names: [a], namespaces: [shop]", "a", "shop", "", false},
		{"", "names: [a], namespaces: [shop]", "a", "other", "", true},
		{"", "selector: {matchLabels: {a: b}, matchExpressions: [{key: c, operator: DoesNotExist}]}", "a", "shop", "a: b", false},
		{"", "selector: {matchLabels: {a: b}, matchExpressions: [{key: c, operator: DoesNotExist}]}", "a", "shop", "a: b, c: d", true},
		{"", "selector: {matchExpressions: [{key: a, operator: NotIn, values: [b]}, {key: e, operator: Exists}]}", "a", "shop", "e: f", false},
		{"", "selector: {matchExpressions: [{key: a, operator: NotIn, values: [b]}, {key: e, operator: Exists}]}", "a", "shop", "e: f, a: b", true},
		{"", "kinds: [ConfigMap]", "a", "shop", "", false},
		{"", "kinds: [apps/v1/Deployment]", "a", "shop", "", true},
	} {
		g.Expect(said(t, rule(c.match, c.exclude), manifest(c.name, c.ns, c.labels))).To(HaveLen(map[bool]int{true: 2, false: 0}[c.looks]), "%+v", c)
	}
	g.Expect(said(t, renderRules(t, "[{name: r, match: {resources: {kinds: [example.com/v1/Widget]}}, validate: {message: bad, pattern: {spec: {a: 1}}}}]"),
		"{apiVersion: example.com/v1, kind: Widget, metadata: {name: x}}")).To(HaveLen(2))
}

// Policies, must hold 4: what is wrong with a rule is said of it, and the others are rendered.
func TestRulesThatFail(t *testing.T) {
	g := NewWithT(t)
	for rule, want := range map[string]string{
		`match: {resources: {}}, validate: {pattern: {a: 1}}`:                                                                               "match.resources.kinds: is missing: say which kinds the rule is for",
		`match: {resources: {kinds: [Nosuch]}}, validate: {pattern: {a: 1}}`:                                                                "match.resources.kinds[0]: Nosuch: is not known",
		`match: {resources: {kinds: ["*"]}}, validate: {pattern: {a: 1}}`:                                                                   "match.resources.kinds[0]: *: a rule is for kinds that are named",
		`match: {resources: {kinds: [Pod, Service]}}, validate: {pattern: {a: 1}}`:                                                          "match.resources.kinds: Pod and services have nothing in common: write a rule for each",
		`match: {resources: {kinds: [Pod]}}, validate: {pattern: {spec: {replicas: 1, template: {spec: {a: 1}}}}}`:                          "validate.pattern: says something of what a Pod does not have",
		`match: {resources: {kinds: [Pod]}}, validate: {pattern: {spec: {+(a): 1}}}`:                                                        "validate.pattern.spec.+(a): +() is for what changes objects",
		`match: {resources: {kinds: [Pod]}}, validate: {anyPattern: [{a: 1}, {a: "{{x}}"}]}`:                                                "validate.anyPattern[1].a: {{x}}: variables and references are not known",
		`match: {resources: {kinds: [Pod]}}, validate: {pattern: {}}`:                                                                       "validate.pattern: is empty, and so true of everything",
		`match: {resources: {kinds: [Pod]}}, validate: {pattern: {spec: {"&(a)": 1}}}`:                                                      "validate.pattern.spec.&(a): is no anchor",
		`match: {resources: {kinds: [Pod]}}, validate: {pattern: {spec: {"=((a))": 1}}}`:                                                    "validate.pattern.spec.=((a)): is no anchor",
		`match: {resources: {kinds: [Pod], namespaces: [kube-system]}}, validate: {pattern: {a: 1}}`:                                        "match.resources.namespaces: kube-system: no rule looks at",
		`match: {resources: {kinds: [Pod], selector: {matchLabels: {app: "a*"}}}}, validate: {pattern: {a: 1}}`:                             "match.resources.selector: ",
		`match: {resources: {kinds: [Pod], selector: {matchExpressions: [{key: a, operator: In}]}}}, validate: {pattern: {a: 1}}`:           "match.resources.selector: ",
		`match: {resources: {kinds: [Pod], namespaceSelector: {matchExpressions: [{key: a, operator: Foo}]}}}, validate: {pattern: {a: 1}}`: "match.resources.namespaceSelector: ",
		`match: {resources: {kinds: [Pod]}}, validate: {cel: {expressions: [{expression: "object.spec.("}]}}`:                               "validate.cel.expressions[0].expression: object.spec.(: ",
		`match: {resources: {kinds: [Pod]}}, validate: {cel: {expressions: [{expression: "true"}, {expression: "1 + 1"}]}}`:                 "validate.cel.expressions[1].expression: 1 + 1: is of type int, and has to be of type bool",
		`match: {resources: {kinds: [Pod]}}, validate: {cel: {expressions: [{expression: "params.x == 1"}]}}`:                               "validate.cel.expressions[0].expression: params.x == 1: ",
		`match: {resources: {kinds: [Pod]}}, validate: {cel: {expressions: [{expression: "has(variables.pods.spec)"}]}}`:                    "validate.cel.expressions[0].expression: variables: there is only variables.pod",
		`match: {resources: {kinds: [Service]}}, validate: {cel: {expressions: [{expression: "has(variables.pod.spec)"}]}}`:                 "validate.cel.expressions[0].expression: variables.pod: the kinds have no Pod among them",
		`match: {resources: {kinds: [Pod]}}, validate: {}`:                                                                                  "validate: exactly one of pattern, anyPattern and cel is needed",
		`match: {resources: {kinds: [Pod]}}, exclude: {resources: {}}, validate: {pattern: {a: 1}}`:                                         "exclude.resources: is empty",
		`match: {resources: {kinds: [Pod]}}, exclude: {resources: {operations: [CREATE]}}, validate: {pattern: {a: 1}}`:                     "exclude.resources: namespaceSelector and operations are for match alone",
		`match: {resources: {kinds: [Pod]}}, exclude: {resources: {kinds: [Nope]}}, validate: {pattern: {a: 1}}`:                            "exclude.resources.kinds[0]: Nope: is not known",
	} {
		r := renderRules(t, "[{name: bad, "+rule+"}, "+rootPod+"]")
		g.Expect(r.Failed()).To(HaveLen(1), rule)
		g.Expect(r.Failed()[0].Name).To(Equal("bad"))
		g.Expect(r.Failed()[0].Err).To(MatchError(HavePrefix(want)), rule)
		g.Expect(r.Manifests).To(HaveLen(1))
		g.Expect(r.Manifests[0].GetName()).To(Equal("ns.fsp.r"))
	}
}

// Names are at most what Kyverno takes, and no two are the same.
func TestPolicyNames(t *testing.T) {
	g := NewWithT(t)
	long := strings.Repeat("a", 63)
	name := func(namespace, name, rule string) string {
		p := &policyv1.FleetSecurityPolicy{}
		p.Namespace, p.Name = namespace, name
		return OfPolicy(p).policyName(rule)
	}
	g.Expect(name("ns", "a", "b")).To(Equal("ns.a.b"))
	g.Expect(name("ns", long, long)).To(HaveLen(63))
	g.Expect(name("ns", long, long)).NotTo(Equal(name("ns", long, long[:62])))
	g.Expect(name("ns", "a-b", "c")).NotTo(Equal(name("ns", "a", "b-c")))
	g.Expect(name("ns", "a", "c")).NotTo(Equal(name("other", "a", "c")), "a member may be one of fleets of both")
}

// Who brings Kyverno, and what of it is removed by force.
func TestEngines(t *testing.T) {
	g := NewWithT(t)
	with := read[fleetv1.Fleet](t, `{metadata: {name: with}, spec: {plugin: {policy: {kyverno: {}}}}}`)
	without := read[fleetv1.Fleet](t, `{metadata: {name: without}}`)
	removed := read[fleetv1.Fleet](t, `{metadata: {name: removed, annotations: {fleet.kurator.dev/remove-plugin: policy}}}`)
	again := read[fleetv1.Fleet](t, `{metadata: {name: again, annotations: {fleet.kurator.dev/remove-plugin: policy}}, spec: {plugin: {policy: {kyverno: {}}}}}`)
	all := []*fleetv1.Fleet{again, removed, with, without}
	no, yes := func(string) bool { return false }, func(string) bool { return true }
	var byFleet, byCluster Set
	byFleet.Destination.Fleet = "x"
	g.Expect(byFleet.EnginesOf(all, no)).To(Equal([]string{"again", "with", "without"}), "one that has it not yet is waited for")
	g.Expect(byCluster.EnginesOf(all, no)).To(Equal([]string{"again", "with"}))
	g.Expect(byCluster.EnginesOf(all, yes)).To(Equal([]string{"again", "with", "without"}), "one that has it still")

	p := read[policyv1.FleetSecurityPolicy](t, "metadata: {name: fsp, namespace: ns}\nspec: {fleet: removed, rules: ["+rootPod+"]}")
	r, err := Render(Input{Set: OfPolicy(p), Fleets: []*fleetv1.Fleet{removed}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(r.Removed).To(Equal("removed"))
	g.Expect(r.Applications()).To(BeEmpty())
	p.Spec.WaitForKyverno = new(false)
	r, err = Render(Input{Set: OfPolicy(p), Fleets: []*fleetv1.Fleet{removed}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(r.Applications()).To(HaveLen(1), "Kyverno comes in another way")
	b, err := json.Marshal(r.Policies.Spec)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(b)).NotTo(ContainSubstring("dependsOn"))
}
