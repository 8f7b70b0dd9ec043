package plugin

import (
	"fmt"
	"testing"

	"sigs.k8s.io/yaml"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	catalog "github.com/fleetwright/fleetwright/plugins-catalog"
	"github.com/fleetwright/fleetwright/renderers/member"
)

// BenchmarkRender renders the plugins that a large fleet has for 5,000 members.
func BenchmarkRender(b *testing.B) {
	plugins, err := LoadAll(catalog.FS)
	if err != nil {
		b.Fatal(err)
	}
	fleet := &fleetv1.Fleet{}
	err = yaml.Unmarshal([]byte(`
metadata: {name: prod, namespace: default}
spec:
  plugin:
    metric: {thanos: {objectStoreConfig: {secretName: store}}, prometheus: {external: {sourceRanges: [10.0.0.0/8]}}}
    grafana: {}
    policy: {kyverno: {podSecurity: {}}}
    backup: {storage: {secretName: s, location: {bucket: b, provider: aws, endpoint: https://s3.example.org}}}
`), fleet)
	if err != nil {
		b.Fatal(err)
	}
	uses := Uses(fleet)
	in := Input{Fleet: fleet, Observed: Observed{OfMembers: map[member.Key]map[string]any{}}}
	for i := range 5000 {
		m := member.Member{Name: fmt.Sprintf("member-%04d", i), Kind: "AttachedCluster", Ready: true, Kubernetes: fmt.Sprintf("v1.%d.0", 32+i%3), Labels: map[string]string{"env": "prod"}}
		in.Members = append(in.Members, m)
		in.Observed.OfMembers[m.Key()] = map[string]any{"endpoint": fmt.Sprintf("10.0.%d.%d:10901", i/256, i%256)}
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, use := range uses {
			in.Use = use
			if _, err := plugins[use.Name].Render(in); err != nil {
				b.Fatal(err)
			}
		}
	}
}
