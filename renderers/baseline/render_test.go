package baseline

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/member"
)

var update = flag.Bool("update", false, "write the golden files")

func parse(t testing.TB, text string) *clusterv1.ClusterConfig {
	t.Helper()
	c := &clusterv1.ClusterConfig{}
	NewWithT(t).Expect(yaml.UnmarshalStrict([]byte(text), c)).To(Succeed())
	if c.Namespace == "" {
		c.Namespace = "fleet"
	}
	return c
}

// cases returns those of testdata by name, and the ClusterConfig of a fleet's isolation.
func cases(t testing.TB) map[string]*clusterv1.ClusterConfig {
	t.Helper()
	g := NewWithT(t)
	inputs, err := filepath.Glob("testdata/*.input.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(inputs).NotTo(BeEmpty())
	fleet := &fleetv1.Fleet{Spec: fleetv1.FleetSpec{Policy: &fleetv1.FleetPolicy{NetworkIsolation: true}}}
	fleet.Name, fleet.Namespace = "prod", "fleet"
	all := map[string]*clusterv1.ClusterConfig{"isolation": Isolation(fleet, nil)}
	for _, input := range inputs {
		text, err := os.ReadFile(input)
		g.Expect(err).NotTo(HaveOccurred())
		all[strings.TrimSuffix(filepath.Base(input), ".input.yaml")] = parse(t, string(text))
	}
	return all
}

// Must hold 4: every template has a golden file.
func TestGolden(t *testing.T) {
	for name, config := range cases(t) {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r, err := Render(config)
			g.Expect(err).NotTo(HaveOccurred())
			var out strings.Builder
			for _, name := range sortedKeys(r.Files) {
				out.WriteString("# file " + name + "\n" + string(r.Files[name]))
			}
			for _, x := range []any{r.Application, r.Overlay} {
				b, err := yaml.Marshal(x)
				g.Expect(err).NotTo(HaveOccurred())
				out.WriteString("# Application\n" + string(b))
			}
			out.WriteString("# not in effect\n" + strings.Join(r.NotInEffect, "\n") + "\n")
			golden := filepath.Join("testdata", name+".golden.yaml")
			if *update {
				g.Expect(os.WriteFile(golden, []byte(out.String()), 0o644)).To(Succeed())
			}
			want, err := os.ReadFile(golden)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(out.String()).To(Equal(string(want)), "go test ./renderers/baseline -update writes it anew")
		})
	}
}

// onMember returns what ends up on a member with these labels, as the controller and Flux would have it.
func onMember(t testing.TB, config *clusterv1.ClusterConfig, labels map[string]string) ([]*unstructured.Unstructured, error) {
	t.Helper()
	r, err := Render(config)
	if err != nil {
		return nil, err
	}
	program, err := application.Compile(r.Application)
	if err != nil {
		return nil, err
	}
	patches, err := patchesFor(program, labels)
	if err != nil {
		return nil, err
	}
	b, err := Expand(r.Files, patches, "./")
	if err != nil {
		return nil, err
	}
	var out []*unstructured.Unstructured
	for doc := range strings.SplitSeq(string(b), "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	return out, nil
}

const annotated = `
metadata: {name: base}
spec:
  target: {fleet: prod}
  namespaces:
  - name: shop
    annotations: {a: "%s"}
`

func withAnnotation(t testing.TB, value string) *clusterv1.ClusterConfig {
	c := parse(t, strings.Replace(annotated, "%s", "", 1))
	c.Spec.Namespaces[0].Annotations["a"] = value
	return c
}

// Must hold 5, by hand; FuzzValues tries everything else.
func TestValuesComeOutAsTheyWentIn(t *testing.T) {
	for _, value := range values {
		g := NewWithT(t)
		objects, err := onMember(t, withAnnotation(t, value), nil)
		g.Expect(err).NotTo(HaveOccurred(), "%q", value)
		g.Expect(objects[0].GetAnnotations()["a"]).To(Equal(value))
	}
}

var values = []string{
	`"`, `'`, `a: b`, "a\nb\n", "\n", `${x}`, `{{ x }}`, `$(x)`, "ü→日本", "no", "1e3", "0123", "0x1F", "1_000", "~", "null", "=", "<<", "- a", "#a", " a ", "\t",
	"2001-01-01", "12:30:45", "!!binary x", "&a", "*a", "%", "@a", "`", "|", ">", "cat <<EOF >>x\n", `\<< x >>`, "\u2028", "\ufeff", "a\r\nb",
}

func FuzzValues(f *testing.F) {
	for _, v := range values {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if !validText(value) || strings.Contains(value, "<<") && strings.Contains(value, ">>") {
			t.Skip("no text of a Kubernetes object, or one with member facts")
		}
		g := NewWithT(t)
		objects, err := onMember(t, withAnnotation(t, value), nil)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(objects[0].GetAnnotations()["a"]).To(Equal(value))
	})
}

// H3: dashboards with ${DS_PROMETHEUS} come out as they are: nothing is substituted.
func TestDashboards(t *testing.T) {
	g := NewWithT(t)
	c := parse(t, `
metadata: {name: dashboards}
spec:
  target: {fleet: prod}
  manifests:
    objects:
    - apiVersion: v1
      kind: ConfigMap
      metadata: {name: dashboards, namespace: grafana}
      data: {api.json: '{"datasource": "${DS_PROMETHEUS}"}'}
`)
	objects, err := onMember(t, c, nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(objects[0].Object["data"]).To(Equal(map[string]any{"api.json": `{"datasource": "${DS_PROMETHEUS}"}`}))
	r, _ := Render(c)
	g.Expect(r.Application.Spec.SyncPolicies[0].Kustomization.PostBuild).To(BeNil())
}

func TestFacts(t *testing.T) {
	g := NewWithT(t)
	c := withAnnotation(t, `in "<< index .cluster.labels "region" >>": \<< .cluster.name >> & << .cluster.name >>`)
	objects, err := onMember(t, c, map[string]string{"region": "eu"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(objects).To(HaveLen(1), "the object of the facts is not applied")
	g.Expect(objects[0].GetAnnotations()["a"]).To(Equal(`in "eu": << .cluster.name >> & m1`))

	t.Log("without its facts, a member gets nothing")
	_, err = onMember(t, c, nil)
	g.Expect(err).To(MatchError(ContainSubstring(`the cluster has no label "region"`)))
	r, err := Render(c)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = Expand(r.Files, nil, "./")
	g.Expect(err).To(MatchError(ContainSubstring("facts-")))

	t.Log("a static change changes no patch")
	other := c.DeepCopy()
	other.Spec.Namespaces[0].Labels = map[string]string{"x": "y"}
	changed, err := Render(other)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(changed.Application).To(Equal(r.Application))
	g.Expect(changed.Revision).NotTo(Equal(r.Revision))

	t.Log("numbers")
	c = parse(t, `
metadata: {name: classes}
spec:
  target: {fleet: prod}
  manifests:
    objects:
    - {apiVersion: example.org/v1, kind: Thing, metadata: {name: a.b}, spec: {size: '<< index .cluster.labels "size" | number >>', a~b/c: << .cluster.name >>}}
`)
	objects, err = onMember(t, c, map[string]string{"size": "3"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(objects[0].Object["spec"]).To(Equal(map[string]any{"size": 3.0, "a~b/c": "m1"}))
}

func TestRefused(t *testing.T) {
	for says, spec := range map[string]string{
		"there is nothing in this ClusterConfig":                                            `{}`,
		"spec.resourceQuotas[1]: ResourceQuota shop/a is in spec.resourceQuotas[0]":         `{resourceQuotas: [{name: a, namespace: shop, hard: {pods: 1}}, {name: a, namespace: shop, hard: {pods: 1}}]}`,
		`spec.resourceQuotas[0].hard[pods]: "many" is not a quantity`:                       `{resourceQuotas: [{name: a, namespace: shop, hard: {pods: many}}]}`,
		`spec.resourceQuotas[0].hard[pods]: "-5" is negative`:                               `{resourceQuotas: [{name: a, namespace: shop, hard: {pods: "-5"}}]}`,
		"spec.limitRanges[0].limits[0].max[cpu]: -1 is negative":                            `{limitRanges: [{name: a, namespace: shop, limits: [{type: Container, max: {cpu: "-1"}}]}]}`,
		`spec.manifests.objects[0].kind: "configmap" is no kind`:                            `{manifests: {objects: [{apiVersion: v1, kind: configmap, metadata: {name: a, namespace: b}}]}}`,
		`spec.manifests.objects[0]: metadata.name: "S_bad": a lowercase`:                    `{manifests: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: S_bad, namespace: b}}]}}`,
		`spec.manifests.objects[0]: metadata.namespace: "B": a lowercase`:                   `{manifests: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: B}}]}}`,
		"spec.manifests.objects[0].metadata.namespace: a ClusterRole is in no namespace":    `{manifests: {objects: [{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: "a:b", namespace: default}}]}}`,
		"spec.manifests.objects[0]: Secret a must not be published":                         `{manifests: {objects: [{apiVersion: v1, kind: Secret, metadata: {name: a}}]}}`,
		"spec.manifests.objects[0]: ConfigMapList: write each object":                       `{manifests: {objects: [{apiVersion: v1, kind: ConfigMapList, metadata: {name: a}, items: []}]}}`,
		"the name of an object cannot differ between members":                               `{manifests: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: "<< .cluster.name >>", namespace: a}}]}}`,
		"spec.manifests.objects[0]: ConfigMap a needs metadata.namespace":                   `{manifests: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}]}}`,
		"ConfigMap fleetwright-facts is Fleetwright's own":                                  `{manifests: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: fleetwright-facts, namespace: a}}]}}`,
		"spec.kernelParams[0].value: has to be one line":                                    `{kernelParams: [{key: vm.swappiness, value: "1\n2"}]}`,
		"quotes, backslashes and control characters cannot be in a string here":             `{namespaces: [{name: a, labels: {x: '<< replace "a" "\"" .cluster.name >>'}}]}`,
		"metadata.labels.x: << .cluster.name | printf >>: function \"printf\" is not known": `{namespaces: [{name: a, labels: {x: '<< .cluster.name | printf >>'}}]}`,
	} {
		_, err := Render(parse(t, "metadata: {name: x}\nspec: "+strings.Replace(spec, "{", "{target: {fleet: prod}, ", 1)))
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(says)))
	}
}

func TestConflicts(t *testing.T) {
	g := NewWithT(t)
	config := func(name, pods string, priority int32) Wants {
		c := parse(t, "metadata: {name: "+name+"}\nspec: {target: {fleet: prod}, namespaces: [{name: shop}], resourceQuotas: [{name: q, namespace: shop, hard: {pods: "+pods+"}}]}")
		c.Spec.Priority = priority
		r, err := Render(c)
		g.Expect(err).NotTo(HaveOccurred())
		return Wants{Config: c, Objects: r.Objects, Members: []member.Key{{Name: "m1"}, {Name: "m2"}}}
	}
	a, b, strict := config("a", "1", 0), config("b", "2", 0), config("strict", "0", 5)
	strict.Members = []member.Key{{Name: "m2"}, {Name: "m3"}}
	conflicts := Conflicts([]Wants{b, strict, a})
	g.Expect(Texts(conflicts, "a")).To(ConsistOf(
		`ResourceQuota shop/q on m2: spec.hard.pods is "0", as in ClusterConfig strict, which has it (priority 5), and not "1", as here`,
		`ResourceQuota shop/q on m1: spec.hard.pods is "1", as here, and not "2", as in ClusterConfig b (priority 0)`))
	r, err := Render(a.Config)
	g.Expect(err).NotTo(HaveOccurred())
	on := map[string][]string{}
	for _, o := range r.Settled(conflicts, "a").Spec.SyncPolicies[0].Overrides {
		for _, p := range o.Kustomization.Patches {
			_, annotation, _ := strings.Cut(p.Patch, "annotations:\n    ")
			on[p.Target.Kind+" "+strings.TrimSpace(annotation)] = o.Clusters
		}
	}
	g.Expect(on).To(Equal(map[string][]string{
		"ResourceQuota kustomize.toolkit.fluxcd.io/ssa: IfNotPresent": {"m2"}, "Namespace kustomize.toolkit.fluxcd.io/ssa: IfNotPresent": {"m2"},
		"ResourceQuota kustomize.toolkit.fluxcd.io/prune: disabled": {"m1", "m2"}, "Namespace kustomize.toolkit.fluxcd.io/prune: disabled": {"m1", "m2"},
	}), "what both want alike is one's, too, and nothing to report")
	g.Expect(r.Settled(nil, "a")).To(BeIdenticalTo(r.Application))
	g.Expect(Conflicts([]Wants{a, config("other", "1", 0)})).NotTo(BeEmpty())
	g.Expect(Texts(Conflicts([]Wants{a, config("other", "1", 0)}), "a")).To(BeEmpty())
}

// TestGoldenKinds holds that the golden files have objects of every kind that is rendered here, and every preset.
func TestGoldenKinds(t *testing.T) {
	g := NewWithT(t)
	kinds, used := map[string]bool{}, map[string]bool{}
	for _, config := range cases(t) {
		r, err := Render(config)
		g.Expect(err).NotTo(HaveOccurred())
		for _, o := range r.Objects {
			kinds[o.GetKind()] = true
		}
		for _, p := range config.Spec.NetworkPolicies {
			used[p.Preset] = true
		}
	}
	g.Expect(sortedKeys(kinds)).To(ContainElements("ClusterRole", "ClusterRoleBinding", "ConfigMap", "DaemonSet", "LimitRange", "Namespace",
		"NetworkPolicy", "PriorityClass", "ResourceQuota", "Role", "RoleBinding", "ServiceAccount", "StorageClass"))
	g.Expect(sortedKeys(used)).To(ContainElements(sortedKeys(presets)))
	g.Expect(used).To(HaveKey(""), "one in full")
}

// everything returns a ClusterConfig with all kinds of objects, facts and settings of nodes.
func everything(t testing.TB) *clusterv1.ClusterConfig {
	all := cases(t)
	config, facts := all["every-field"], all["facts"]
	config.Spec.KernelParams, config.Spec.ContainerRuntime = all["nodes"].Spec.KernelParams, all["nodes"].Spec.ContainerRuntime
	config.Spec.Manifests.Objects = append(config.Spec.Manifests.Objects, facts.Spec.Manifests.Objects...)
	config.Spec.NetworkPolicies = append(config.Spec.NetworkPolicies, facts.Spec.NetworkPolicies...)
	config.Spec.ResourceQuotas = append(config.Spec.ResourceQuotas, facts.Spec.ResourceQuotas...)
	return config
}

func BenchmarkRender(b *testing.B) {
	config := everything(b)
	for b.Loop() {
		if _, err := Render(config); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMembers renders one ClusterConfig, and the Kustomizations of 1,000 members with their facts and overrides.
func BenchmarkMembers(b *testing.B) {
	config := everything(b)
	labels := map[string]string{"region": "eu", "pods": "5", "replicas": "3", "swappiness": "7"}
	for b.Loop() {
		r, err := Render(config)
		if err != nil {
			b.Fatal(err)
		}
		program, err := application.Compile(r.Application)
		if err != nil {
			b.Fatal(err)
		}
		for range 1000 {
			if _, err := patchesFor(program, labels); err != nil {
				b.Fatal(err)
			}
		}
	}
}
