package plugin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"reflect"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	catalog "github.com/fleetwright/fleetwright/plugins-catalog"
	"github.com/fleetwright/fleetwright/renderers/member"
)

// FuzzParse holds that no definition, which anybody may write, does more harm than to be refused, and that one that is
// taken can be rendered or says why not.
func FuzzParse(f *testing.F) {
	g := NewWithT(f)
	files, err := fs.Glob(catalog.FS, "*/"+DefinitionFile)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).NotTo(BeEmpty())
	for _, file := range files {
		b, err := fs.ReadFile(catalog.FS, file)
		g.Expect(err).NotTo(HaveOccurred())
		f.Add(b)
	}
	const header = "apiVersion: kurator.dev/v1alpha1\nkind: Plugin\nmetadata: {name: x}\nspec: "
	for _, spec := range []string{
		`{}`, `null`, `{components: [null]}`, `{components: [{name: a, objects: [null]}]}`, `{components: [{name: a, objects: [{a: "${"}]}]}`,
		`{components: [{name: a, objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: "${config}"}}]}]}`,
		`{components: [{name: a, objects: [{apiVersion: v1, kind: 1, metadata: [x]}]}]}`,
		`{parameters: {type: object, properties: {a: null}}, components: [{name: a, chart: {repository: "oci://x", name: y, version: "1"}, namespace: z}]}`,
		`{parameters: {properties: {a: {type: string, default: 7}}}, components: [{name: a, chart: {repository: "oci://x", name: y, version: "1"}, namespace: z, values: {a: "${config.a}"}}]}`,
		`{vars: {a: "[1,2].map(x, [1,2].map(y, [1,2]))"}, rules: [{rule: "1", message: "${vars.a}"}], components: [{name: a, secret: {name: a, namespace: b, data: {c: [{text: x}]}}}]}`,
		`{facts: [{name: a, from: x, kubeconfig: server}], components: [{name: a, runsOn: "${x}", needs: [a], chart: {repository: "oci://x", name: y, version: "1"}, namespace: z}]}`,
	} {
		f.Add([]byte(header + spec))
	}
	fleet := &fleetv1.Fleet{Spec: fleetv1.FleetSpec{Clusters: []fleetv1.FleetCluster{{Name: "a"}}}}
	fleet.Name, fleet.Namespace = "f", "n"
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse(b)
		if err != nil {
			return
		}
		r, err := p.Render(Input{Fleet: fleet, Use: Use{Name: p.Metadata.Name, Config: map[string]any{}}, Members: []member.Member{{Name: "a", Kubernetes: "v1.34.1"}}})
		if (r == nil) == (err == nil) {
			t.Fatalf("rendered %v, and the error is %v", r, err)
		}
	})
}

// FuzzConfig holds that the values of a fleet reach the chart as they were written: numbers as long as they are, false, 0,
// "" and null too, and what looks like an expression of ours.
func FuzzConfig(f *testing.F) {
	for _, args := range []string{
		`{}`, `{"a": null}`, `{"a": false, "b": 0, "c": "", "d": [], "e": {}}`, `{"a": 12345678901234567890, "b": 1.0, "c": 1e400, "d": -0}`, `{"a": "${1/0}", "b": "$${", "c": "}"}`,
		`{"prometheus": null}`, `{"prometheus": {"prometheusSpec": {"externalLabels": {"cluster": "x"}}}}`, `{"crds": []}`, `{"": {"": {"": 1}}}`, `{"a": "<&>\u2028\"'"}`, `{"a": "<< .cluster.name >>"}`, `{"a": [[[{"b": [null]}]]]}`,
	} {
		f.Add(args)
	}
	f.Fuzz(func(t *testing.T, args string) {
		if !json.Valid([]byte(args)) {
			return
		}
		want, err := exact([]byte(args))
		if err != nil || want == nil {
			return
		}
		fleet := &fleetv1.Fleet{Spec: fleetv1.FleetSpec{Clusters: []fleetv1.FleetCluster{{Name: "a"}}, Plugin: &fleetv1.FleetPlugins{
			Metric: &fleetv1.MetricPlugin{Prometheus: &fleetv1.PrometheusPlugin{PluginChart: fleetv1.PluginChart{ExtraArgs: &apiextensionsv1.JSON{Raw: []byte(args)}}}}}}}
		fleet.Name, fleet.Namespace = "f", "n"
		g := NewWithT(t)
		uses := Uses(fleet)
		r, err := plugins(t)["metric"].Render(Input{Fleet: fleet, Use: uses[0], Members: []member.Member{{Name: "a", Kubernetes: "v1.34.1"}}})
		if err != nil {
			// << is what differs between members, and has to be well-formed.
			g.Expect(fmt.Sprint(want)).To(ContainSubstring("<<"), "%v", err)
			return
		}
		p := policy(r, "prometheus")
		g.Expect(p.Overrides).To(HaveLen(1))
		for _, raw := range []*apiextensionsv1.JSON{p.Helm.Values, p.Overrides[0].Helm.Values} {
			got, err := exact(raw.Raw)
			g.Expect(err).NotTo(HaveOccurred())
			if path := differs(want, got); path != "" {
				t.Fatalf("%s of %s became %s", path, args, raw.Raw)
			}
		}
	})
}

// exact reads a map with its numbers as they are written.
func exact(raw []byte) (out map[string]any, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return out, d.Decode(&out)
}

// differs returns where values are not what was said; other ones may be beside them.
func differs(want, got map[string]any) string {
	for name, w := range want {
		v, ok := got[name]
		if !ok {
			return "." + name
		}
		wm, wok := w.(map[string]any)
		vm, vok := v.(map[string]any)
		if wok && vok {
			if path := differs(wm, vm); path != "" {
				return "." + name + path
			}
		} else if !reflect.DeepEqual(w, v) {
			return "." + name
		}
	}
	return ""
}

// TestDiffers holds that FuzzConfig can fail.
func TestDiffers(t *testing.T) {
	g := NewWithT(t)
	values := func(text string) map[string]any {
		v, err := exact([]byte(text))
		g.Expect(err).NotTo(HaveOccurred())
		return v
	}
	g.Expect(differs(values(`{"a": {"b": 1}}`), values(`{"a": {"b": 1, "c": 2}, "d": 3}`))).To(BeEmpty())
	for want, got := range map[string]string{`{"a": 1}`: `{"a": 1.0}`, `{"a": null}`: `{}`, `{"a": ""}`: `{"a": null}`, `{"a": []}`: `{"a": {}}`, `{"a": {"b": 1}}`: `{"a": {}}`} {
		g.Expect(differs(values(want), values(got))).NotTo(BeEmpty(), strings.Join([]string{want, got}, " "))
	}
}
