package baseline

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sigs.k8s.io/yaml"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/template"
)

// TestPatchesAreExact holds that just the object meant is changed: kustomize takes names for regular expressions, and what
// is empty in a target for anything.
func TestPatchesAreExact(t *testing.T) {
	g := NewWithT(t)
	r, err := Render(parse(t, `
metadata: {name: c}
spec:
  target: {fleet: prod}
  manifests:
    objects:
    - {apiVersion: v1, kind: Service, metadata: {name: a.b, namespace: shop}}
    - {apiVersion: serving.knative.dev/v1, kind: Service, metadata: {name: a.b, namespace: shop}}
    - {apiVersion: v1, kind: Service, metadata: {name: axb, namespace: shop}}
    - {apiVersion: v1, kind: Service, metadata: {name: a.b, namespace: shop-2}}
    - {apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: "a:'\"*\\"}}
`))
	g.Expect(err).NotTo(HaveOccurred())
	for _, one := range r.Objects {
		built, err := Expand(r.Files, annotate([]*unstructured.Unstructured{one}, []string{"m1"}, ssaAnnotation+": IfNotPresent").Kustomization.Patches, "./")
		g.Expect(err).NotTo(HaveOccurred())
		var changed, all []Key
		for _, doc := range strings.Split(string(built), "\n---\n") {
			o := &unstructured.Unstructured{}
			g.Expect(yaml.Unmarshal([]byte(doc), &o.Object)).To(Succeed())
			all = append(all, KeyOf(o))
			if o.GetAnnotations()[ssaAnnotation] == "IfNotPresent" {
				changed = append(changed, KeyOf(o))
			}
		}
		g.Expect(changed).To(ConsistOf(KeyOf(one)))
		g.Expect(all).To(HaveLen(len(r.Objects)))
	}
}

func TestRefusedToo(t *testing.T) {
	for says, spec := range map[string]string{
		"spec.kernelParams[1].key: vm/swappiness is spec.kernelParams[0], too":                    `{kernelParams: [{key: vm.swappiness, value: "1"}, {key: vm/swappiness, value: "2"}]}`,
		`spec.manifests.objects[0].kind: "../../x" is no kind`:                                    `{manifests: {objects: [{apiVersion: v1, kind: ../../x, metadata: {name: a}}]}}`,
		"it is kustomize's own, which leaves out what has it":                                     `{manifests: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a, annotations: {config.kubernetes.io/local-config: ""}}}]}}`,
		"spec.manifests.objects[0]: ConfigMap b/a: data.a: the character U+0085 does not come":    `{manifests: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: b}, data: {a: "\u0085"}}]}}`,
		"spec.manifests.objects[0]: ConfigMap b/a: data: YAML takes the key << for another thing": `{manifests: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: b}, data: {"<<": x}}]}}`,
		"spec.manifests.objects[0]: Namespace shop is in spec.namespaces[0] already":              `{namespaces: [{name: shop}], manifests: {objects: [{apiVersion: v1, kind: Namespace, metadata: {name: shop}}]}}`,
		"spec.kernelParams or spec.containerRuntime: Namespace fleetwright-node is in spec":       `{namespaces: [{name: fleetwright-node}], kernelParams: [{key: vm.swappiness, value: "1"}]}`,
		"NetworkPolicy a/allow-dns is in spec.networkPolicies[0] already":                         `{networkPolicies: [{namespaces: [a], preset: AllowDNS}, {namespaces: [b, a], preset: AllowDNS}]}`,
	} {
		_, err := Render(parse(t, "metadata: {name: x}\nspec: "+strings.Replace(spec, "{", "{target: {fleet: prod}, ", 1)))
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(says)))
	}
}

// TestBigQuantity holds that bytes can be written as a whole number: what is not read stops every ClusterConfig.
func TestBigQuantity(t *testing.T) {
	g := NewWithT(t)
	c := &clusterv1.ClusterConfig{}
	g.Expect(json.Unmarshal([]byte(`{"metadata":{"name":"x"},"spec":{"target":{"fleet":"f"},"resourceQuotas":[{"name":"q","namespace":"n","hard":{"memory":107374182400,"cpu":"1.50"}}]}}`), c)).To(Succeed())
	r, err := Render(c)
	g.Expect(err).NotTo(HaveOccurred())
	hard, _, err := unstructured.NestedMap(r.Objects[0].Object, "spec", "hard")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(hard).To(Equal(map[string]any{"memory": "107374182400", "cpu": "1.50"}))
}

// TestRenderReadsOnly holds that rendering changes nothing of what is declared, and comes out the same again.
func TestRenderReadsOnly(t *testing.T) {
	g := NewWithT(t)
	config := parse(t, `{metadata: {name: x}, spec: {target: {fleet: f}, namespaces: [{name: a, labels: {x: '\<< .cluster.name >>', y: "<< .cluster.name >>"}}], manifests: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: b, uid: u}, data: {a: '\<< .cluster.name >>'}}]}}}`)
	before := config.DeepCopy()
	first, err := Render(config)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(config).To(Equal(before))
	second, err := Render(config)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(reflect.DeepEqual(first, second)).To(BeTrue())
}

func TestRevision(t *testing.T) {
	g := NewWithT(t)
	seen := map[string]string{}
	for what, files := range map[string]map[string][]byte{
		"none": {}, "one": {"a": []byte("bc")}, "moved": {"ab": []byte("c")}, "two": {"a": []byte("b"), "c": nil}, "empty": {"abc": nil},
	} {
		r := revision(files)
		g.Expect(r).To(MatchRegexp("^latest@sha256:[0-9a-f]{64}$"))
		g.Expect(seen).NotTo(HaveKey(r), "%s and %s", what, seen[r])
		seen[r] = what
	}
}

// FuzzData holds that any key and value of an object comes out of kustomize as it went in, beside a member fact, too.
func FuzzData(f *testing.F) {
	for _, v := range append(values, "0o14", "0b1", "1:30", "2020-01-01", "y", ".inf", "---", "--- a\n...\n", "😀", "\x01", "$patch: delete") {
		f.Add(v, v)
		f.Add("k"+v, v)
	}
	f.Fuzz(func(t *testing.T, key, value string) {
		if !utf8.ValidString(key) || !utf8.ValidString(value) || strings.HasPrefix(key, "$") {
			t.Skip("no API server has it, or it is a directive of kustomize")
		}
		if text, literal, err := template.JSONText(value); err != nil || text != "" || literal != value {
			t.Skip("it has a fact")
		}
		data := map[string]any{key: value}
		raw, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": data,
			"metadata": map[string]any{"name": "x", "namespace": "y", "annotations": map[string]any{"example.org/fact": "<< .cluster.name >>"}}})
		if err != nil {
			t.Fatal(err)
		}
		config := parse(t, "{metadata: {name: c}, spec: {target: {fleet: f}}}")
		config.Spec.Manifests = &clusterv1.BaselineManifests{Objects: make([]clusterv1.EmbeddedObject, 1)}
		config.Spec.Manifests.Objects[0].Raw = raw
		if _, err := Render(config); err != nil {
			t.Skip(err)
		}
		objects, err := onMember(t, config, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := objects[0].Object["data"]; !reflect.DeepEqual(got, any(data)) {
			t.Errorf("%q became %q", data, got)
		}
		if got := objects[0].GetAnnotations()["example.org/fact"]; got != "m1" {
			t.Errorf("the fact became %q", got)
		}
	})
}

// FuzzFacts holds that what is put into a patch is, once executed, what the string itself would have become.
func FuzzFacts(f *testing.F) {
	for _, s := range []string{"<< .cluster.name >>", `a"<< .cluster.name >>\n`, `\<< .cluster.name >> << .cluster.label >>`, "<<EOF\n<< .cluster.label >>\nEOF",
		"<< .cluster.label | number >>", "<< .cluster.label | bool >>", "<< number .cluster.label >>", `<< index .cluster "name" >>`, "<<- .cluster.name ->>",
		"<<<< .cluster.name >>", `\\<< .cluster.name >>`, "a\\\n<< .cluster.name | upper >>", `<< .cluster.name | replace "c" "$x" >>`} {
		for _, label := range []string{"a", "3", "true", "é", "0123"} {
			f.Add(s, label)
		}
	}
	f.Fuzz(func(t *testing.T, s, label string) {
		if !utf8.ValidString(s) || !utf8.ValidString(label) || strings.ContainsFunc(label, func(r rune) bool { return r < ' ' }) {
			t.Skip("no label has it")
		}
		text, _, err := template.JSONText(s)
		if err != nil || text == "" {
			return
		}
		run := func(s string) (any, error) {
			v, err := template.Compile(s)
			if err != nil {
				return nil, err
			}
			return v.Execute(map[string]any{"cluster": map[string]any{"name": "c1", "label": label}, "fleet": map[string]any{"name": "f"}, "application": map[string]any{"name": "a"}})
		}
		want, err := run(s)
		if err != nil {
			return // a number within a text is none here
		}
		patched, err := run(text)
		if err != nil {
			t.Fatalf("%q became %s: %v", s, text, err)
		}
		var got any
		d := json.NewDecoder(strings.NewReader(patched.(string)))
		d.UseNumber()
		if err := d.Decode(&got); err != nil {
			t.Fatalf("%q became %s: %v", s, patched, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q became %v, not %v", s, got, want)
		}
	})
}
