package plugin

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/member"
	"sigs.k8s.io/yaml"
)

// outside renders a plugin from outside with one chart, whose value x is an expression.
func outside(t *testing.T, expr, config string) (*Rendered, error) {
	t.Helper()
	g := NewWithT(t)
	p, err := Parse(fmt.Appendf(nil, `
apiVersion: kurator.dev/v1alpha1
kind: Plugin
metadata: {name: x}
spec:
  components:
  - name: x
    chart: {repository: oci://example.org, name: x, version: 1.0.0}
    namespace: x
    values: {keep: me, x: %q}
`, "${"+expr+"}"))
	g.Expect(err).NotTo(HaveOccurred())
	fleet := &fleetv1.Fleet{}
	g.Expect(yaml.Unmarshal([]byte("metadata: {name: f, namespace: n}\nspec: {plugins: [{name: x, config: "+config+"}]}"), fleet)).To(Succeed())
	return p.Render(Input{Fleet: fleet, Use: Uses(fleet)[0], Members: []member.Member{{Name: "a", Kind: "AttachedCluster", Ready: true}}})
}

// TestExpressionsAreBounded is about what would fill the memory, or never end: for everybody, as all plugins share a process.
func TestExpressionsAreBounded(t *testing.T) {
	long := `"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"`
	for name, expr := range map[string]string{
		"range":   `string(lists.range(2000000000).size())`,
		"replace": `[` + long + `].map(x, x.replace("a", x)).map(x, x.replace("a", x)).map(x, x.replace("a", x)).map(x, x.replace("a", x))[0]`,
		"join":    `[lists.range(10000).map(i, ` + long + `).join("")].map(x, lists.range(10000).map(i, x).join(x))[0]`,
		"format":  `"%.1000000000f".format([1.0])`,
		"concat":  `[` + long + `].map(x, x+x+x+x+x+x+x+x).map(x, x+x+x+x+x+x+x+x).map(x, x+x+x+x+x+x+x+x).map(x, x+x+x+x+x+x+x+x).map(x, x+x+x+x+x+x+x+x).map(x, x+x+x+x+x+x+x+x).map(x, x+x+x+x+x+x+x+x)[0]`,
		"loops":   `string(lists.range(3000).exists(i, lists.range(3000).exists(j, i + j < 0)))`,
		"zero":    `1.0 / double(config.zero)`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := outside(t, expr, "{zero: 0}")
			NewWithT(t).Expect(err).To(HaveOccurred())
		})
	}
	g := NewWithT(t)
	r, err := outside(t, `lists.range(10).map(i, "a-b".replace("-", "+")).join(",")`, "{}")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(r.Application.Spec.SyncPolicies[0].Helm.Values.Raw)).To(ContainSubstring("a+b,a+b"))
}

// TestTheCatalogIsConfiguredInItsFields holds that spec.plugins is no way around what the fields of spec.plugin refuse.
func TestTheCatalogIsConfiguredInItsFields(t *testing.T) {
	g := NewWithT(t)
	fleet := &fleetv1.Fleet{}
	g.Expect(yaml.Unmarshal([]byte("metadata: {name: f, namespace: n}\nspec: {plugin: {grafana: {}}, plugins: [{name: distributedstorage}, {name: grafana}, {name: z, config: {a: 1}}]}"), fleet)).To(Succeed())
	errs := map[string]string{}
	for _, u := range Uses(fleet) {
		errs[u.Name] = fmt.Sprint(u.Err)
	}
	g.Expect(errs).To(Equal(map[string]string{
		"distributedstorage": "distributedstorage comes with Fleetwright: configure it in spec.plugin.distributedStorage",
		"grafana":            "the fleet has it twice, in spec.plugins[1] as well: take one out",
		"z":                  "<nil>",
	}))
}

// TestSecretsAreSecretHoweverTheyAreWritten holds that no way of writing the kind makes what is in a Secret a plain fact.
func TestSecretsAreSecretHoweverTheyAreWritten(t *testing.T) {
	for _, resource := range []string{"kind: secret", "kind: SECRET", "kind: Thing, plural: secrets", "kind: Thing, plural: Secrets"} {
		_, err := Parse([]byte(`
apiVersion: kurator.dev/v1alpha1
kind: Plugin
metadata: {name: x}
spec:
  facts:
  - {name: tok, resource: {apiVersion: v1, ` + resource + `, namespace: default, name: tok}, value: object.data.t}
  components:
  - {name: x, namespace: x, chart: {repository: oci://example.org, name: x, version: 1.0.0}}
`))
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("what is in a Secret is one")), resource)
	}
}

// TestArtifactsOfTwoPluginsAreTwo is about names that could be made in two ways.
func TestArtifactsOfTwoPluginsAreTwo(t *testing.T) {
	NewWithT(t).Expect(ChartName("f", "x")).NotTo(Equal(Name("f", "x-secret")))
}
