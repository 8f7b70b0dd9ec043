package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// documented returns the files that a page has as examples: blocks of YAML whose first line is a comment with a path.
func documented(t *testing.T, page string) map[string]string {
	t.Helper()
	g := NewWithT(t)
	b, err := os.ReadFile(page)
	g.Expect(err).NotTo(HaveOccurred())
	files := map[string]string{}
	for _, m := range regexp.MustCompile("(?s)```yaml\n# (\\S+\\.yaml)\n(.*?)```").FindAllStringSubmatch(string(b), -1) {
		files[m[1]] = m[2]
	}
	return files
}

// Plugins, must hold 9: the example in the docs is a plugin, and only a file.
func TestPluginOfTheDocs(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	files := documented(t, "../../docs/plugins.md")
	g.Expect(files).To(And(HaveLen(2), HaveKey("plugins/podinfo/plugin.yaml"), HaveKey("config.yaml")))
	for name, content := range files {
		g.Expect(writeFile(filepath.Join(dir, name), []byte(content))).To(Succeed())
	}
	folder := filepath.Join(dir, "plugins/podinfo")
	g.Expect(fleetwright("", "plugin", "lint", folder)).To(Equal(outcome{out: folder + "/plugin.yaml: plugin podinfo with 3 components\n"}))
	g.Expect(fleetwright("", "plugin", "lint", filepath.Join(dir, "plugins"))).To(Equal(outcome{out: folder + "/plugin.yaml: plugin podinfo with 3 components\n"}))

	r := fleetwright("", "plugin", "lint", folder, "--config", filepath.Join(dir, "config.yaml"))
	g.Expect(r.err).To(BeEmpty())
	g.Expect(r.code).To(BeZero())
	golden := "testdata/plugin-podinfo.golden.yaml"
	if os.Getenv("GEN_GOLDEN") == "true" {
		g.Expect(os.WriteFile(golden, []byte(r.out), 0o644)).To(Succeed())
	}
	want, err := os.ReadFile(golden)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(r.out).To(Equal(string(want)))
	g.Expect(fleetwright(files["config.yaml"], "plugin", "lint", folder, "--config", "-")).To(Equal(r))

	t.Log("what a fleet gets wrong")
	for config, problem := range map[string]string{
		"{}":                        "config.message: Required value",
		"{message: a, replica: 1}":  "config.replica: unknown field",
		"{message: a, replicas: 0}": "config.replicas: Invalid value: 0",
		"{message: TODO}":           "message: TODO: say something",
		"[a]":                       "config: has to be a map",
	} {
		r := fleetwright(config, "plugin", "lint", folder, "--config", "-")
		g.Expect(r.code).To(Equal(exitFailed), config)
		g.Expect(r.err).To(And(HavePrefix("error: "+folder+"/plugin.yaml: "), ContainSubstring(problem)), config)
		g.Expect(r.out).To(BeEmpty(), config)
	}
	r = fleetwright("{message: a, replicas: 1}", "plugin", "lint", folder, "--config", "-")
	g.Expect(r.err).To(Equal("warning: with one replica it is away while a node is drained\n"))
	g.Expect(r.code).To(BeZero())
}

// Every mistake names file and field.
func TestPluginLint(t *testing.T) {
	good := documented(t, "../../docs/plugins.md")["plugins/podinfo/plugin.yaml"]
	for _, tt := range []struct{ old, new, problem string }{
		{"apiVersion: kurator.dev/v1alpha1", "apiVersion: kurator.dev/v1", "apiVersion has to be kurator.dev/v1alpha1, and kind Plugin"},
		{"name: podinfo\nspec", "name: 'a b'\nspec", `metadata.name: "a b": has to be a letter`},
		{"  vars:", "  var:", `unknown field "var"`},
		{"kind: Plugin", "kind: Plugin\nkind: Plugin", `key "kind" already set`},
		{"{type: string, maxLength: 80}", "{maxLength: 80}", "spec.parameters: properties[message].type: Required value"},
		{"config.?tokenSecretName.", "conf.?tokenSecretName.", "spec.vars.token: conf.?tokenSecretName.orValue(\"\"): undeclared reference to 'conf'"},
		{`'!config.message.contains("TODO")'`, "members.size(", "spec.rules[0].rule: members.size(: "},
		{"message: ${config.message}, from", "message: ${config.message, from", "spec.components[2].values.ui.message: "},
		{"replicaCount: ${config.replicas}", "replicaCount: ${cluster.name}", "spec.components[2].values.replicaCount: cluster.name: undeclared reference to 'cluster'"},
		{"dependsOn: [namespaces, token]", "dependsOn: [namespaces, tokens]", `spec.components[2].dependsOn[1]: there is no component "tokens" before this one`},
		{"kubernetes: '>=1.25'", "kubernetes: new", "spec.components[2].kubernetes: "},
		{"    namespace: podinfo\n    options", "    options", "spec.components[2].namespace: is missing"},
		{"kind: Namespace", "kind: Secret", "spec.components[0].objects[0]: a Secret is not published: use secret"},
		{"    when: config.public\n", "    secret: true\n", "spec.facts[0].from: a secret is read from one member: say which"},
		{"kind: Service", "kind: Secret", "spec.facts[0].secret: what is in a Secret is one: set secret"},
	} {
		t.Run(tt.problem, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(strings.Count(good, tt.old)).To(BeNumerically(">=", 1), tt.old)
			dir := t.TempDir()
			file := filepath.Join(dir, "plugin.yaml")
			g.Expect(writeFile(file, []byte(strings.Replace(good, tt.old, tt.new, 1)))).To(Succeed())
			r := fleetwright("", "plugin", "lint", dir)
			g.Expect(r.code).To(Equal(exitFailed))
			g.Expect(r.out).To(BeEmpty())
			g.Expect(r.err).To(And(HavePrefix("error: "+file+": "), ContainSubstring(tt.problem)))
		})
	}
}

// What is wrong with a type of rules is found before a rule has it.
func TestRuleTypeLint(t *testing.T) {
	good := documented(t, "../../docs/policies.md")["rules/team-quota/plugin.yaml"]
	const parameter, message, object, policies = "{type: integer, minimum: 1}", "message: team ${config.team} has at most ${config.replicas} replicas in a Deployment", "          name: ${rule.id}\n          namespace: default\n", "  policies:\n    - "
	for _, tt := range []struct{ old, new, problem string }{
		{"        metadata:\n" + object, "", "spec.objects[0].object: apiVersion, kind and metadata.name are needed"},
		{"        metadata:\n" + object, "        metadata: [a]\n", "spec.objects[0].object: apiVersion, kind and metadata.name are needed"},
		{"kind: ConfigMap", "kind: ConfigMapList", "spec.objects[0].object: a ConfigMapList is not published"},
		{"namespace: default", "namespace: kube-system", "spec.objects[0].object: is in a namespace of the system"},
		{"kind: ConfigMap\n        metadata:\n          name: ${rule.id}", "kind: Namespace\n        metadata:\n          name: flux-system", "spec.objects[0].object: is in a namespace of the system"},
		{"  objects:\n", "  objects:\n    - {when: rule.enforce, object: {apiVersion: v1, kind: ConfigMap, metadata: {name: '${rule.id}', namespace: default}}}\n", "spec.objects[1].object: is the same one as in spec.objects[0]"},
		{policies, "  vars: {a: vars.b, b: vars.a}\n" + policies, "spec.vars.a: vars.b: vars do not know each other"},
		{parameter, "{type: foo}", "spec.parameters: properties[replicas].type: foo: has to be array, boolean"},
		{parameter, "{type: array, items: {type: object, properties: {a: {type: foo}}}}", "spec.parameters: properties[replicas].items.properties[a].type: foo: has to be"},
		{parameter, "{type: integer, default: x}", "properties[replicas].default: Invalid value"},
		{parameter, "{type: integer, minimum: 1, default: 0}", "properties[replicas].default: Invalid value: 0"},
		{parameter, parameter + "\n      enforce: {type: boolean}", "spec.parameters: properties[enforce]: every rule has it already"},
		{message, "message: ${config.nope}", "spec.policies[0].validate.message: config.nope: there is no config.nope"},
		{message, "message: '${config[?\"nope\"]}'", "there is no config.nope"},
		{message, "message: '${has(config.nope)}'", "there is no config.nope"},
		{message, "message: '${config.?nope.?more.orValue(\"\")}'", "there is no config.nope"},
		{message, "message: ${vars.nope}", "there is no vars.nope"},
		{message, "message: ${rule.nope}", "there is no rule.nope"},
		{message, "message: ${fleet.nope}", "there is no fleet.nope"},
		{policies, "  include: [{type: team-quota}]\n" + policies + "name: a\n      ", "spec.include: only types that come with Fleetwright include others"},
		{policies, "  include: [{type: nosuch}]\n" + policies + "name: a\n      ", "spec.include: only types that come with Fleetwright include others"},
		{policies, policies + "name: a\n      match: {}\n      validate: {}\n    - ", `spec.policies[1].name: "": has to be letters`},
		{"name: team-quota", "name: Disallow-Latest-Tag", "metadata.name: disallow-latest-tag comes with Fleetwright, and cannot be replaced"},
		{"name: team-quota", "name: metric", "metadata.name: metric comes with Fleetwright, and cannot be replaced"},
		{"severity: low", "severity: [low]", "spec.policies.severity: has to be a text"},
		{"      match:\n", "      match: []\n      exclude:\n", "spec.policies.match: has to be a map"},
		{"  objects:\n    -", "  objects:\n     ", "spec.objects: has to be a list"},
		{parameter, "{type: integer, minimum: a}", "spec.parameters.properties.minimum: has to be a number"},
		{parameter, "{type: integer, nullable: 1}", "spec.parameters.properties.nullable: has to be true or false"},
	} {
		t.Run(tt.problem, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(strings.Count(good, tt.old)).To(Equal(1), tt.old)
			dir := t.TempDir()
			file := filepath.Join(dir, "plugin.yaml")
			g.Expect(writeFile(file, []byte(strings.Replace(good, tt.old, tt.new, 1)))).To(Succeed())
			r := fleetwright("", "plugin", "lint", dir)
			g.Expect(r.code).To(Equal(exitFailed), r.out)
			g.Expect(r.out).To(BeEmpty())
			g.Expect(r.err).To(And(HavePrefix("error: "+file+": "), ContainSubstring(tt.problem), Not(ContainSubstring("Go "))))
		})
	}

	t.Log("only when it is filled in")
	const params = "{enforce: true, team: shop, replicas: 3}"
	for _, tt := range []struct{ old, new, problem string }{
		{"namespace: default", "namespace: '${\"kube-system\"}'", "is in a namespace that is left alone"},
		{"  objects:\n", "  objects:\n    - object: {apiVersion: v1, kind: ConfigMap, metadata: {name: '${rule.id}', namespace: default}}\n", "makes ConfigMap default/compliance.default.sample.sample twice"},
		{message, "message: '${[{\"a\": config.team}].map(config, config.a)[0]}'", ""},
	} {
		g := NewWithT(t)
		dir := t.TempDir()
		g.Expect(writeFile(filepath.Join(dir, "plugin.yaml"), []byte(strings.Replace(good, tt.old, tt.new, 1)))).To(Succeed())
		g.Expect(fleetwright("", "plugin", "lint", dir).code).To(BeZero(), tt.new)
		r := fleetwright(params, "plugin", "lint", dir, "--config", "-")
		g.Expect(r.err).To(ContainSubstring(tt.problem))
		g.Expect(r.code == 0).To(Equal(tt.problem == ""), r.err)
	}
}

func TestPluginUsage(t *testing.T) {
	g := NewWithT(t)
	for _, args := range [][]string{{"nonsense"}, {"lint"}, {"lint", "nowhere"}, {"lint", "testdata"}, {"lint", "../../plugins-catalog", "--config", "x"},
		{"lint", "../../plugins-catalog/metric", "--config", "nowhere"}, {"list", "metric"}} {
		r := fleetwright("", append([]string{"plugin"}, args...)...)
		g.Expect(r.code).To(Equal(exitUsage), "%v", args)
		g.Expect(r.err).To(HavePrefix("error: "), "%v", args)
		g.Expect(r.out).To(BeEmpty(), "%v", args)
	}
	r := fleetwright("", "plugin", "list")
	g.Expect(r.code).To(BeZero())
	g.Expect(r.out).To(MatchRegexp(`(?m)^PLUGIN +COMPONENT +CHART +VERSION +REPOSITORY +RUNS ON$`))
	g.Expect(r.out).To(MatchRegexp(`(?m)^metric +prometheus +kube-prometheus-stack +\S+ +oci://\S+ +members$`))
	g.Expect(r.out).To(MatchRegexp(`(?m)^metric +thanos +thanos +\S+ +\S+ +hub$`))
	g.Expect(fleetwright("", "plugin", "lint", "../../plugins-catalog", "../../fleet-templates/rules").code).To(BeZero())
	g.Expect(runAs("flux-fleet", "", "plugin", "--help").out).To(ContainSubstring("  flux fleet plugin lint plugins"))
}
