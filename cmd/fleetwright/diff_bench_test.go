package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/fleetwright/fleetwright/cmd/fleetwright/manifest"
	"github.com/fleetwright/fleetwright/renderers/plan"
)

// generate writes a repository with members and Applications, which have overrides for regions and for single members.
func generate(tb testing.TB, dir string, members, applications int) {
	g := NewWithT(tb)
	write := func(name, text string) {
		name = filepath.Join(dir, name)
		g.Expect(os.MkdirAll(filepath.Dir(name), 0o700)).To(Succeed())
		g.Expect(os.WriteFile(name, []byte(text), 0o600)).To(Succeed())
	}
	var b strings.Builder
	for i := range members {
		fmt.Fprintf(&b, `---
apiVersion: cluster.kurator.dev/v1alpha1
kind: AttachedCluster
metadata:
  name: m%03d
  namespace: fleet
  labels: {env: prod, region: r%d}
spec:
  kubeconfig: {name: m%03d-kubeconfig}
`, i, i%5, i)
	}
	write("clusters.yaml", b.String())
	write("fleet.yaml", "apiVersion: fleet.kurator.dev/v1alpha1\nkind: Fleet\nmetadata: {name: prod, namespace: fleet}\nspec: {clusterSelector: {matchLabels: {env: prod}}}\n")
	for i := range applications {
		write(fmt.Sprintf("apps/app%02d.yaml", i), fmt.Sprintf(`apiVersion: apps.kurator.dev/v1alpha1
kind: Application
metadata: {name: app%02[1]d, namespace: fleet}
spec:
  source: {gitRepository: {url: %[2]s, interval: 1m, ref: {branch: main}}}
  destination: {fleet: prod}
  syncPolicies:
  - name: app
    kustomization:
      path: ./deploy/app%02[1]d
      prune: true
      interval: 10m
      postBuild: {substitute: {cluster: '<< .cluster.name >>', region: '<< .cluster.labels.region >>'}}
    overrides:
    - selector: {matchLabels: {region: r1}}
      kustomization:
        patches:
        - target: {kind: Deployment}
          patch: "- {op: replace, path: /spec/replicas, value: 3}"
    - clusters: [m007]
      kustomization:
        patches:
        - target: {kind: Deployment}
          patch: "- {op: replace, path: /spec/replicas, value: 7}"
`, i, self))
		write(fmt.Sprintf("deploy/app%02d/all.yaml", i), fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: app%02[1]d, namespace: apps}
spec:
  replicas: 1
  selector: {matchLabels: {app: app%02[1]d}}
  template:
    metadata: {labels: {app: app%02[1]d}}
    spec:
      containers:
      - name: app
        image: registry.example.org/app:1.0
        env: [{name: CLUSTER, value: "${cluster}"}, {name: REGION, value: "${region}"}]
---
apiVersion: v1
kind: Service
metadata: {name: app%02[1]d, namespace: apps}
spec: {selector: {app: app%02[1]d}, ports: [{port: 80}]}
`, i))
	}
}

// BenchmarkDiff compares repositories of 500 members and 20 Applications: one changed value, and nothing.
func BenchmarkDiff(b *testing.B) {
	from, to := filepath.Join(b.TempDir(), "from"), filepath.Join(b.TempDir(), "to")
	generate(b, from, 500, 20)
	generate(b, to, 500, 20)
	diff := func(b *testing.B, want string) {
		g := NewWithT(b)
		for b.Loop() {
			r := fleetwright("", "diff", from, to, "--self", self, "-n", "fleet", "-o", "markdown")
			g.Expect(r.out).To(ContainSubstring(want), r.err)
		}
		var usage syscall.Rusage
		g.Expect(syscall.Getrusage(syscall.RUSAGE_SELF, &usage)).To(Succeed())
		b.ReportMetric(float64(usage.Maxrss)/1024, "MiB-peak")
	}
	b.Run("where the time goes", func(b *testing.B) {
		var reading, rendering, comparing, writing time.Duration
		for b.Loop() {
			lap := time.Now()
			since := func() time.Duration { d := time.Since(lap); lap = time.Now(); return d }
			o := diffOptions{source: manifest.Source{Namespace: "fleet"}, atHand: atHand{self: []string{self}}}
			var sides [2]*readState
			for i, root := range []string{from, to} {
				source := o.source
				source.Paths = []string{root}
				_, err := source.Read()
				NewWithT(b).Expect(err).NotTo(HaveOccurred())
				reading += since()
				sides[i], _, err = o.read(state{name: root, root: root, paths: []string{root}})
				NewWithT(b).Expect(err).NotTo(HaveOccurred())
				defer sides[i].contents.Close()
				rendering += since()
			}
			p := plan.Compare(sides[0].Side, sides[1].Side)
			comparing += since()
			NewWithT(b).Expect(writePlanMarkdown(io.Discard, p, false)).To(Succeed())
			writing += since()
		}
		for name, d := range map[string]time.Duration{"read-ms": reading, "read+render-ms": rendering, "compare-ms": comparing, "write-ms": writing} {
			b.ReportMetric(float64(d.Milliseconds())/float64(b.N), name)
		}
	})
	b.Run("nothing", func(b *testing.B) { diff(b, "nothing changes on 500 members") })
	file := filepath.Join(to, "deploy/app03/all.yaml")
	text, err := os.ReadFile(file)
	NewWithT(b).Expect(err).NotTo(HaveOccurred())
	NewWithT(b).Expect(os.WriteFile(file, []byte(strings.Replace(string(text), "app:1.0", "app:1.1", 1)), 0o600)).To(Succeed())
	b.Run("one value", func(b *testing.B) { diff(b, "500 of 500 members change") })
}
