package plugin

import (
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	catalog "github.com/fleetwright/fleetwright/plugins-catalog"
	"github.com/fleetwright/fleetwright/renderers/member"
)

func TestTry(t *testing.T) {
	g := NewWithT(t)
	plugins, err := LoadAll(catalog.FS)
	g.Expect(err).NotTo(HaveOccurred())
	fleet := &fleetv1.Fleet{}
	g.Expect(yaml.Unmarshal([]byte(`
metadata: {name: prod, namespace: default}
spec:
  clusters: [{name: a}, {name: b}]
  plugin:
    metric: {thanos: {objectStoreConfig: {secretName: s}}, prometheus: {external: {sourceRanges: [10.0.0.0/8]}, extraArgs: {a: false, b: null}}}
    grafana: {}
`), fleet)).To(Succeed())
	uses, err := Uses(fleet)
	g.Expect(err).NotTo(HaveOccurred())
	for _, u := range uses {
		r, err := plugins[u.Name].Render(Input{Fleet: fleet, Use: u, Members: []member.Member{{Name: "a", Kubernetes: "v1.31.0-gke.1"}, {Name: "b", Kubernetes: "v1.34.1"}}, Observed: Observed{
			OfMembers: map[member.Key]map[string]any{{Name: "a"}: {"endpoint": "1.2.3.4:10901"}}}})
		g.Expect(err).NotTo(HaveOccurred())
		b, _ := yaml.Marshal(r.Application)
		t.Log(string(b), r.Warnings, r.Reads)
		for k, v := range r.Files {
			t.Log(k, string(v))
		}
	}
}
