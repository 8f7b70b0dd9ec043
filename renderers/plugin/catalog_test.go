package plugin

import (
	"io/fs"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	catalog "github.com/fleetwright/fleetwright/plugins-catalog"
)

// TestCatalog holds that the catalog has the plugins of a Fleet, each in a folder of its name.
func TestCatalog(t *testing.T) {
	g := NewWithT(t)
	all := plugins(t)
	fleet := &fleetv1.Fleet{}
	g.Expect(yaml.Unmarshal([]byte(`{spec: {plugin: {metric: {}, grafana: {}, policy: {}, backup: {}, distributedStorage: {}, flagger: {}, submariner: {}}}}`), fleet)).To(Succeed())
	uses := Uses(fleet)
	g.Expect(all).To(HaveLen(len(uses)))
	for _, u := range uses {
		g.Expect(all).To(HaveKey(u.Name))
		_, err := fs.Stat(catalog.FS, u.Name+"/"+DefinitionFile)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(all[u.Name].Spec.Description).To(HaveSuffix("."), u.Name)
	}
}

// TestChartVersions holds that what the tests check the catalog against is what it installs.
func TestChartVersions(t *testing.T) {
	for name, p := range plugins(t) {
		for _, k := range p.Spec.Components {
			if k.Chart == nil {
				continue
			}
			g := NewWithT(t)
			var c struct{ Version string }
			g.Expect(yaml.Unmarshal(chartFile(t, k.Chart.Name, "Chart.yaml"), &c)).To(Succeed())
			if strings.HasPrefix(c.Version, "0.0.") || k.Chart.Name == "ceph-csi-drivers" { // is filled in at a release
				continue
			}
			g.Expect(k.Chart.Version).To(Equal(c.Version), "component %s of plugin %s", k.Name, name)
		}
	}
}
