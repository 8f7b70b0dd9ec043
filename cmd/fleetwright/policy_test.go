package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// Policies, must hold 1: what the seed's cases become, and what ends up on the members.
func TestBuildPolicies(t *testing.T) {
	for name, args := range map[string][]string{"policies": {"--application", "policy-financial-security-baseline,compliance-prod-cluster-compliance,hardening-prod-cluster-compliance"}, "policies-expanded": {"--expand", "--member", "prod-cluster"}} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r := fleetwright("", append([]string{"build", "testdata/policies"}, args...)...)
			g.Expect(r.code).To(BeZero(), r.err)
			golden := "testdata/" + name + ".golden.yaml"
			if os.Getenv("GEN_GOLDEN") == "true" {
				g.Expect(os.WriteFile(golden, []byte(r.out), 0o644)).To(Succeed())
			}
			want, err := os.ReadFile(golden)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(r.out).To(Equal(string(want)))
		})
	}
}

// Policies, must hold 4: what is wrong with a rule is that rule's, with its name; the others are there.
func TestBuildBrokenPolicies(t *testing.T) {
	g := NewWithT(t)
	r := fleetwright("", "build", "testdata/policies-broken.yaml", "--expand")
	g.Expect(r.code).To(Equal(exitFailed))
	g.Expect(strings.Split(strings.TrimSpace(r.err), "\n")).To(ConsistOf(
		"error: testdata/policies-broken.yaml:1: FleetSecurityPolicy broken: there is no Fleet nobody in namespace default",
		HavePrefix("error: testdata/policies-broken.yaml:11: ClusterCompliance broken: rule unknown: there is no type or plugin nosuch"),
		HavePrefix("error: testdata/policies-broken.yaml:11: ClusterCompliance broken: rule bad: params.registries: Invalid value"),
		And(HavePrefix("warning: testdata/policies-broken.yaml:11: ClusterCompliance broken: "), ContainSubstring("waits for Kyverno: no Fleet that has alone has the plugin policy")),
	))
	g.Expect(r.out).To(BeEmpty(), "it is held")
	b, err := os.ReadFile("testdata/policies-broken.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	r = fleetwright(strings.Replace(string(b), "clusterName: alone", "clusterName: alone\n  waitForKyverno: false", 1), "build", "-", "--expand")
	g.Expect(r.out).To(And(ContainSubstring("name: compliance.default.broken.good"), Not(ContainSubstring("broken.bad"))))
}

const triedManifests = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: "x:1"}]}}}
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: good, namespace: shop}
  spec: {securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}, containers: [{name: c, image: "x:1"}]}
- apiVersion: v1
  kind: Pod
  metadata: {name: backup, namespace: velero}
  spec: {containers: [{name: c, image: "x:1"}]}
`

func TestPolicyTest(t *testing.T) {
	g := NewWithT(t)
	r := fleetwright(triedManifests, "policy", "test", "-", "--rules", "testdata/policies")
	g.Expect(r.code).To(Equal(exitFailed))
	g.Expect(r.err).To(Equal("warning: ClusterCompliance prod-cluster-compliance: not tried, as they look at none of the manifests: install-security-agent\n"))
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	g.Expect(lines).To(HaveLen(4))
	g.Expect(strings.Fields(lines[0])).To(Equal([]string{"OBJECT", "RULE", "ENFORCEMENT", "RESULT", "MESSAGE"}))
	g.Expect(strings.Fields(lines[1])).To(Equal(strings.Fields("Deployment shop/web financial-security-baseline/require-pod-security enforce fail 必须配置Pod安全标准")))
	g.Expect(lines[2]).To(HavePrefix("Deployment shop/web   ClusterCompliance prod-cluster-compliance/disable-root-user"))
	g.Expect(lines[3]).To(MatchRegexp(`^\d+ pass, 2 fail, 0 error$`))
	g.Expect(r.out).NotTo(ContainSubstring("velero"), "the namespaces of the fleet's plugins are left alone")

	r = fleetwright(triedManifests, "policy", "test", "-", "--rules", "testdata/policies", "-o", "json")
	var all []tried
	g.Expect(json.Unmarshal([]byte(r.out), &all)).To(Succeed())
	g.Expect(all).To(ContainElement(tried{Object: "Pod shop/good", At: "stdin:9", From: "FleetSecurityPolicy financial-security-baseline", Rule: "require-pod-security", Enforcement: "enforce", Result: "pass"}))

	t.Log("what is audited fails with --strict alone")
	dir := t.TempDir()
	b, err := os.ReadFile("testdata/policies/policy.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(dir, "all.yaml")
	g.Expect(os.WriteFile(file, []byte(strings.Replace(string(b), "enforcement: enforce", "enforcement: audit", 1)+"---\n"+triedManifests), 0o600)).To(Succeed())
	g.Expect(fleetwright("", "policy", "test", file).code).To(BeZero())
	g.Expect(fleetwright("", "policy", "test", file, "--strict").code).To(Equal(exitFailed))
	g.Expect(fleetwright("", "policy", "test", dir).code).To(BeZero(), "a folder with manifests of others")

	t.Log("what cannot be")
	for want, args := range map[string][]string{
		"error: FILE is missing: name a file or a folder with manifests, or - for stdin\n":                               {},
		"error: what is on stdin is tried on the rules of --rules: name them\n":                                          {"-"},
		"error: there is no FleetSecurityPolicy and no ClusterCompliance in testdata/shop\n":                             {file, "--rules", "testdata/shop"},
		"error: --output yaml: has to be json\n":                                                                         {file, "-o", "yaml"},
		"error: stat nosuch: no such file or directory\n":                                                                {"nosuch", "--rules", "testdata/policies"},
		"error: --plugin nosuch: a plugin is a folder with a plugin.yaml: open plugin.yaml: no such file or directory\n": {file, "--plugin", "nosuch"},
	} {
		r := fleetwright("", append([]string{"policy", "test"}, args...)...)
		g.Expect(r.err).To(Equal(want))
		g.Expect(r.code).To(Equal(exitUsage))
	}
	r = fleetwright(triedManifests, "policy", "test", "-", "--rules", "testdata/policies-broken.yaml")
	g.Expect(r.code).To(Equal(exitFailed))
	g.Expect(r.err).To(And(ContainSubstring("ClusterCompliance broken: rule unknown: "), ContainSubstring("rule bad: ")))
	g.Expect(r.out).To(ContainSubstring(" pass, 0 fail, 0 error"), "the others are tried")
}

// Nobody believes that rules hold which were not tried.
func TestPolicyTestOfNothing(t *testing.T) {
	g := NewWithT(t)
	t.Chdir(t.TempDir())
	write := func(name, text string) {
		g.Expect(writeFile(name, []byte(text))).To(Succeed())
	}
	const policy = `apiVersion: policy.kurator.dev/v1alpha1
kind: FleetSecurityPolicy
metadata: {name: baseline}
spec:
  fleet: prod
  rules:
  - {name: pods, match: {resources: {kinds: [Pod]}}, validate: {message: set it, pattern: {spec: {securityContext: {runAsNonRoot: true}}}}}
  - {name: secrets, match: {resources: {kinds: [Secret]}}, validate: {message: none, pattern: {type: "?*"}}}
`
	write("rules/policy.yaml", policy)
	write("deploy/values.yaml", "replicas: 1\n")

	t.Log("nothing is there to try: policies are none, nor are the files of other programs")
	nothing := func(paths string) string {
		return "error: there are no manifests to try in " + paths + ": name files or folders with what is deployed, or pipe it in: helm template … | fleetwright policy test - --rules rules\n"
	}
	g.Expect(fleetwright("", "policy", "test", "rules")).To(Equal(outcome{code: exitUsage, err: nothing("rules")}))
	g.Expect(fleetwright("", "policy", "test", "-", "--rules", "rules")).To(Equal(outcome{code: exitUsage, err: nothing("-")}))
	g.Expect(fleetwright("", "policy", "test", "rules", "deploy", "--rules", "rules", "-o", "json")).To(Equal(outcome{code: exitUsage,
		err: "warning: deploy/values.yaml:1: apiVersion or kind is missing: it is not tried\n" + nothing("rules, deploy")}))

	t.Log("a rule that looks at nothing is named")
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  securityContext: {runAsNonRoot: true}\n  containers: [{name: c, image: x}]\n"
	write("deploy/pod.yaml", pod)
	r := fleetwright("", "policy", "test", "deploy", "--rules", "rules")
	g.Expect(r).To(Equal(outcome{out: "1 pass, 0 fail, 0 error\n", err: "warning: deploy/values.yaml:1: apiVersion or kind is missing: it is not tried\n" +
		"warning: FleetSecurityPolicy baseline: not tried, as they look at none of the manifests: secrets\n"}))

	t.Log("what is named is refused without a kind, or as an item that is no object")
	for in, want := range map[string]string{
		pod + "---\napiVersion: v1\nmetadata: {name: x}\n":                               "error: stdin:8: apiVersion or kind is missing\n",
		"apiVersion: v1\nkind: List\nitems:\n- {kind: Pod}\n- Pod\n":                     "error: stdin:5: an item of a list has to be an object\n",
		"apiVersion: v1\nkind: List\nitems:\n- {kind: Pod}\n- {apiVersion: v1, kind: 1}": "error: stdin:4: apiVersion or kind is missing\nerror: stdin:5: apiVersion or kind is missing\n",
	} {
		g.Expect(fleetwright(in, "policy", "test", "-", "--rules", "rules")).To(Equal(outcome{code: exitUsage, err: want}))
	}
	r = fleetwright("", "policy", "test", "deploy/values.yaml", "--rules", "rules")
	g.Expect(r).To(Equal(outcome{code: exitUsage, err: "error: deploy/values.yaml:1: apiVersion or kind is missing\n"}))

	t.Log("a field that is written wrongly does not only look like one that is missing")
	r = fleetwright(strings.Replace(pod, "securityContext", "securityContxt", 1)+"  hostNetwrok: true\n", "policy", "test", "-", "--rules", "rules")
	g.Expect(r.code).To(Equal(exitFailed))
	g.Expect(r.out).To(HaveSuffix("0 pass, 1 fail, 0 error\n"))
	g.Expect(strings.Split(r.err, "\n")[1:]).To(Equal([]string{"error: stdin:5: Pod web: spec.securityContxt: unknown field", "error: stdin:7: Pod web: spec.hostNetwrok: unknown field", ""}))
	r = fleetwright(strings.Replace(pod, "containers: [", "containers: [{imagePullPolicy: 1, name: d, image: x}, ", 1), "policy", "test", "-", "--rules", "rules")
	g.Expect(r.code).To(Equal(exitFailed))
	g.Expect(r.err).To(ContainSubstring("error: stdin:1: Pod web: json: cannot unmarshal number"))
	r = fleetwright(pod+"---\n{apiVersion: example.org/v1, kind: Pod, metadata: {name: own}, spec: {any: thing}}\n", "policy", "test", "-", "--rules", "rules")
	g.Expect(r.code).To(BeZero(), "kinds that are not Kubernetes' own are not known")

	t.Log("what a manifest holds does not reach the terminal")
	r = fleetwright(strings.NewReplacer("name: web", `name: "w\x1b[2K\u202eeb"`, "true", "false").Replace(pod), "policy", "test", "-", "--rules", "rules")
	g.Expect(r.out).To(ContainSubstring("Pod w\uFFFD[2K\uFFFDeb   baseline/pods"))
}

// What is wrong is said in the words of what people have written.
func TestBuildWithoutKyverno(t *testing.T) {
	g := NewWithT(t)
	b, err := os.ReadFile("testdata/policies/policy.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	for plugins, want := range map[string]string{
		"":                     "waits for Kyverno: the fleet does not have the plugin policy: set spec.plugin.policy.kyverno in it, or waitForKyverno: false where Kyverno comes in another way\n",
		"plugin: {policy: {}}": "waits for Kyverno: the plugin policy of the fleet could not be rendered\n",
	} {
		r := fleetwright(string(b)+"---\napiVersion: fleet.kurator.dev/v1alpha1\nkind: Fleet\nmetadata: {name: financial-fleet, namespace: kurator-system}\nspec: {clusters: [], "+plugins+"}\n", "build", "-")
		g.Expect(r.code).To(Equal(exitFailed))
		g.Expect(r.err).To(ContainSubstring("error: stdin:1: FleetSecurityPolicy financial-security-baseline: "+want), plugins)
	}
}

// A type that is written wrongly is named as it is right.
func TestSuggestedType(t *testing.T) {
	g := NewWithT(t)
	b, err := os.ReadFile("testdata/policies-broken.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	in := strings.Replace(string(b), "name: unknown, type: nosuch", "name: unknown, type: disable-rot-user", 1)
	want := "ClusterCompliance broken: rule unknown: there is no type or plugin disable-rot-user: name its folder with --plugin; did you mean disable-root-user?\n"
	g.Expect(fleetwright(in, "build", "-").err).To(ContainSubstring(want))
	file := filepath.Join(t.TempDir(), "rules.yaml")
	g.Expect(os.WriteFile(file, []byte(in), 0o600)).To(Succeed())
	g.Expect(fleetwright(triedManifests, "policy", "test", "-", "--rules", file).err).To(ContainSubstring(want))
}

// The type of rules in docs/policies.md is one that a user could write: what the docs say of it holds.
func TestRuleTypeOfTheDocs(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	files := documented(t, "../../docs/policies.md")
	g.Expect(files).To(HaveKey("rules/team-quota/plugin.yaml"))
	folder := filepath.Join(dir, "rules/team-quota")
	g.Expect(writeFile(filepath.Join(folder, "plugin.yaml"), []byte(files["rules/team-quota/plugin.yaml"]))).To(Succeed())
	g.Expect(fleetwright("", "plugin", "lint", folder)).To(Equal(outcome{out: folder + "/plugin.yaml: type of rules team-quota with 1 policies and 1 objects\n"}))
	r := fleetwright("enforce: true\nteam: shop\nreplicas: 3\n", "plugin", "lint", folder, "--config", "-")
	g.Expect(r.err).To(BeEmpty())
	g.Expect(r.out).To(And(ContainSubstring("kind: ValidatingPolicy"), ContainSubstring("team: shop"), ContainSubstring("kind: ConfigMap"), ContainSubstring("- Deny")))
	r = fleetwright("team: shop\nreplicas: 3\n", "plugin", "lint", folder, "--config", "-")
	g.Expect(r.out).To(And(ContainSubstring("- Audit"), Not(ContainSubstring("kind: ConfigMap"))))
	for params, want := range map[string]string{"{}": "params.team: Required value", "{team: a, replicas: 0}": "params.replicas: Invalid value", "{team: a, replicas: 1, x: 1}": "params.x: unknown field", "{enforce: maybe}": "params.enforce: maybe: has to be true or false"} {
		g.Expect(fleetwright(params, "plugin", "lint", folder, "--config", "-").err).To(ContainSubstring(want))
	}

	t.Log("and it can be used")
	rules := `apiVersion: cluster.kurator.dev/v1alpha1
kind: ClusterCompliance
metadata: {name: teams}
spec:
  clusterName: c
  rules: [{name: shop, type: team-quota, params: {enforce: true, team: shop, replicas: 3}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, labels: {team: shop}}
spec: {replicas: 4}
`
	file := filepath.Join(dir, "all.yaml")
	g.Expect(os.WriteFile(file, []byte(rules), 0o600)).To(Succeed())
	r = fleetwright("", "policy", "test", file, "--plugin", folder)
	g.Expect(r.out).To(ContainSubstring("team shop has at most 3 replicas in a Deployment"))
	g.Expect(r.code).To(Equal(exitFailed))
	g.Expect(fleetwright("", "policy", "test", file).err).To(ContainSubstring("rule shop: there is no type or plugin team-quota: name its folder with --plugin"))
}

// The docs name every type of rules, and no other.
func TestTypesOfTheDocs(t *testing.T) {
	g := NewWithT(t)
	b, err := os.ReadFile("../../docs/policies.md")
	g.Expect(err).NotTo(HaveOccurred())
	r := fleetwright("", "plugin", "list")
	_, types, _ := strings.Cut(r.out, "\nTYPE ")
	n := 0
	for line := range strings.SplitSeq(strings.TrimSpace(types), "\n") {
		if name, _, ok := strings.Cut(line, " "); ok && n > 0 {
			g.Expect(string(b)).To(ContainSubstring("\n| `" + name + "` | "))
		}
		n++
	}
	g.Expect(strings.Count(string(b), "\n| `")).To(BeNumerically(">=", n-1))
	g.Expect(n).To(BeNumerically(">", 20))
}
