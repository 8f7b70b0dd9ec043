package main

import (
	"encoding/json"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

// TestMain takes every cluster away: building needs none.
func TestMain(m *testing.M) {
	os.Setenv("KUBECONFIG", "/nonexistent")
	os.Setenv("KUBERNETES_SERVICE_HOST", "")
	os.Exit(m.Run())
}

// GEN_GOLDEN=true rewrites testdata/*.golden.yaml.
func TestBuildGolden(t *testing.T) {
	for _, path := range []string{"shop", "kustomized/overlay"} {
		t.Run(path, func(t *testing.T) {
			g := NewWithT(t)
			r := fleetwright("", "build", filepath.Join("testdata", path), "--strict")
			g.Expect(r.err).To(BeEmpty())
			g.Expect(r.code).To(BeZero())
			golden := filepath.Join("testdata", filepath.Dir(path), filepath.Base(path)+".golden.yaml")
			if os.Getenv("GEN_GOLDEN") == "true" {
				g.Expect(os.WriteFile(golden, []byte(r.out), 0o644)).To(Succeed())
			}
			want, err := os.ReadFile(golden)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(r.out).To(Equal(string(want)))
		})
	}
}

// ClusterConfigs: what a fleet implies is built too; a conflict is said to both, what one member lacks is that member's.
func TestBuildClusterConfigs(t *testing.T) {
	for name, args := range map[string][]string{"baseline": nil, "baseline-expanded": {"--expand"}} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r := fleetwright("", append([]string{"build", "testdata/baseline"}, args...)...)
			g.Expect(r.code).To(Equal(exitFailed))
			g.Expect(strings.Split(strings.TrimSpace(r.err), "\n")).To(ConsistOf(
				And(HavePrefix("error: testdata/baseline/all.yaml:16: ClusterConfig base: policy objects: member m2: "), HaveSuffix(`the cluster has no label "region"`)),
				And(HavePrefix("warning: testdata/baseline/all.yaml:16: ClusterConfig base: ResourceQuota shop/q on m1: spec.hard.pods is "), ContainSubstring("ClusterConfig other, which has it")),
				And(HavePrefix("warning: testdata/baseline/all.yaml:27: ClusterConfig other: ResourceQuota shop/q on m1: spec.hard.pods is "), ContainSubstring("not \"10\", as in ClusterConfig base")),
			))
			golden := "testdata/" + name + ".golden.yaml"
			if os.Getenv("GEN_GOLDEN") == "true" {
				g.Expect(os.WriteFile(golden, []byte(r.out), 0o644)).To(Succeed())
			}
			want, err := os.ReadFile(golden)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(r.out).To(Equal(string(want)))
		})
	}
	g := NewWithT(t)
	r := fleetwright("", "build", "testdata/shop", "--expand")
	g.Expect(r.out).To(BeEmpty())
	g.Expect(r.err).To(ContainSubstring("GitRepository shop/base (https://git.example.org/base) is not at hand"))
	g.Expect(fleetwright("", "build", "testdata/shop", "--expand", "-o", "json").code).To(Equal(exitUsage))
}

// Building asks no cluster, even if one is configured, and nothing else.
func TestBuildOffline(t *testing.T) {
	g := NewWithT(t)
	var connections atomic.Int32
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ConnState = func(net.Conn, http.ConnState) { connections.Add(1) }
	server.Start()
	defer server.Close()
	t.Setenv("KUBECONFIG", writeKubeconfig(t, server.URL))
	t.Setenv("HTTP_PROXY", server.URL)
	t.Setenv("HTTPS_PROXY", server.URL)
	for _, path := range []string{"testdata/shop", "testdata/kustomized/overlay"} {
		r := fleetwright("", "build", path)
		g.Expect(r.code).To(BeZero(), r.err)
	}
	g.Expect(fleetwright("", "__complete", "build", "testdata/shop", "--member", "").code).To(BeZero())
	g.Expect(connections.Load()).To(BeZero())
	g.Expect(fleetwright("", "get", "fleets").code).To(Equal(exitFailed))
	g.Expect(connections.Load()).NotTo(BeZero(), "the server would have noticed")
}

// What labels hold stays text, in the values too, unless a number is asked for.
func TestBuildLabels(t *testing.T) {
	g := NewWithT(t)
	r := fleetwright("", "build", "testdata/shop", "--member", "edge-2")
	g.Expect(r.code).To(BeZero())
	for document := range strings.SplitSeq(r.out, "---\n") {
		var o struct {
			Kind string
			Spec struct{ Values map[string]any }
		}
		g.Expect(yaml.Unmarshal([]byte(document), &o)).To(Succeed())
		if o.Kind == "HelmRelease" {
			g.Expect(o.Spec.Values).To(Equal(map[string]any{
				"hosts": []any{"us.example.org"}, "tenant": "004", "legacy": "no", "replicas": 2.0, "text": "one\ntwo\n",
				"db": map[string]any{"host": "b"}, "replica": map[string]any{"host": "a", "port": 5432.0},
			}))
			return
		}
	}
	t.Error("there is no HelmRelease")
}

const (
	memberC1 = "apiVersion: cluster.kurator.dev/v1alpha1\nkind: AttachedCluster\nmetadata:\n  name: c1\nspec:\n  kubeconfig: {name: c1}\n---\n"
	fleetC1  = "apiVersion: fleet.kurator.dev/v1alpha1\nkind: Fleet\nmetadata:\n  name: prod\nspec:\n  clusters:\n  - name: c1\n---\n"
)

func app(name, policy string) string {
	return "apiVersion: apps.kurator.dev/v1alpha1\nkind: Application\nmetadata:\n  name: " + name + `
spec:
  source:
    helmRepository: {url: https://charts.example.org, interval: 1h}
  destination: {fleet: prod}
  syncPolicies:
  - name: p
    helm:
      chart: {spec: {chart: web, version: 1.4.2}}
` + policy + "---\n"
}

func TestBuildProblems(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		args     []string
		code     int
		errs     []string // one a line
		objects  int
	}{
		{name: "one release, two Applications", in: memberC1 + fleetC1 + app("a", "      releaseName: ingress\n      targetNamespace: ingress\n") + app("b", "      releaseName: ingress\n      targetNamespace: ingress\n"),
			code: 1, objects: 5, errs: []string{"error: stdin:31: Application b: policy p: member c1: Helm release ingress/ingress"}},
		{name: "override that matches nothing", in: memberC1 + fleetC1 + app("a", "    overrides:\n    - selector: {matchLabels: {env: prod}}\n      helm: {values: {}}\n"),
			objects: 3, errs: []string{"warning: stdin:16: Application a: policy p: override 1 of p matches no member"}},
		{name: "override that matches nothing, strict", in: memberC1 + fleetC1 + app("a", "    overrides:\n    - selector: {matchLabels: {env: prod}}\n      helm: {values: {}}\n"), args: []string{"--strict"},
			code: 1, objects: 3, errs: []string{"error: stdin:16: Application a: policy p: override 1 of p matches no member"}},
		{name: "worst first", in: memberC1 + strings.Replace(fleetC1, "- name: c1", "- name: c1\n  - name: c2", 1) + app("a", "    overrides:\n    - clusters: [c3]\n      helm: {values: {}}\n"),
			code: 1, objects: 3, errs: []string{"error: stdin:17: Application a: policy p: member c2: there is no Cluster or AttachedCluster c2", "warning: stdin:17: Application a: policy p: override 1 of p matches no member"}},
		{name: "one problem of many members", in: memberC1 + strings.Replace(fleetC1, "- name: c1", "- name: c1\n    labels: {x: a}\n  clusterSelector: {}", 1) +
			strings.ReplaceAll(memberC1, "c1", "c2") + strings.ReplaceAll(memberC1, "c1", "c3") + app("a", "      values: {x: '<< .cluster.labels.x >>'}\n"),
			code: 1, objects: 3, errs: []string{"error: stdin:32: Application a: policy p: members c2, c3: helm.values.x: "}},
		{name: "only the other member", in: memberC1 + strings.Replace(fleetC1, "- name: c1", "- name: c1\n  - name: c2", 1) + app("a", ""), args: []string{"--member", "c1"}, objects: 3},
		{name: "only the other Application", in: memberC1 + fleetC1 + app("a", "") + app("b", "      values: {x: << .cluster.labels.x >>}\n"), args: []string{"--application", "a"}, objects: 3},
		{name: "a cluster by its name", in: memberC1 + strings.Replace(app("a", ""), "{fleet: prod}", "{cluster: {name: c1}}", 1), args: []string{"--member", "c1"}, objects: 3},
		{name: "a cluster by its name that is not there", in: strings.Replace(app("a", ""), "{fleet: prod}", "{cluster: {name: c1}}", 1), args: []string{"--member", "c1"},
			code: 1, errs: []string{"error: stdin:1: Application a: policy p: member c1: there is no Cluster or AttachedCluster c1 in namespace default: create it, or change the destination"}},
		{name: "no such member", in: memberC1 + fleetC1 + app("a", ""), args: []string{"--member", "c7"}, code: 2, errs: []string{"error: --member c7: there is none of that name: did you mean c1?"}},
		{name: "no such Application", in: app("a", ""), args: []string{"--application", "b"}, code: 2, errs: []string{"error: --application b: there is none of that name: did you mean a?"}},
		{name: "refused", in: app("a", "") + fleetC1 + "apiVersion: fleet.kurator.dev/v1alpha1\nkind: Fleet\nmetadata: {name: x}\nspec: {clusters: [{name: c1, labels: {env: prod, gpu: true}}]}\n",
			code: 2, errs: []string{"error: stdin:25: Fleet x: spec.clusters[0].labels.gpu: Invalid value:"}},
		{name: "duplicate key", in: app("a", "      values:\n        db: &db {host: a}\n        replica: {<<: *db, port: 5432}\n        db: {host: b}\n"),
			code: 2, errs: []string{`error: stdin:16: the key "db" is in line 14 already`}},
		{name: "nothing", in: "# nothing\n", errs: []string{"warning: no Fleet, Application, ClusterConfig, FleetSecurityPolicy, ClusterCompliance, PluginConfig, AttachedCluster or Cluster in -"}},
		{name: "nothing of ours, strict", in: "apiVersion: v1\nkind: ConfigMap\n", args: []string{"--strict"}, code: 1, errs: []string{"error: no Fleet, Application, ClusterConfig, FleetSecurityPolicy, ClusterCompliance, PluginConfig, AttachedCluster or Cluster in -"}},
		{name: "members and nothing else", in: memberC1},
		{name: "UTF-16", in: "\xFF\xFEa\x00:\x00", code: 2, errs: []string{"error: stdin: is in UTF-16: save it as UTF-8"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			r := fleetwright(tt.in, append([]string{"build", "-"}, tt.args...)...)
			g.Expect(r.code).To(Equal(tt.code), r.err)
			var lines []string
			if r.err != "" {
				lines = strings.Split(strings.TrimSuffix(r.err, "\n"), "\n")
			}
			g.Expect(lines).To(HaveLen(len(tt.errs)))
			for i := range tt.errs {
				g.Expect(lines[i]).To(HavePrefix(tt.errs[i]))
			}
			g.Expect(strings.Count(r.out, "---\n")).To(Equal(tt.objects))
		})
	}
}

func TestBuildJSON(t *testing.T) {
	g := NewWithT(t)
	r := fleetwright("", "build", "testdata/shop", "-o", "json")
	g.Expect(r.code).To(BeZero())
	var list struct {
		Kind  string
		Items []map[string]any
	}
	g.Expect(json.Unmarshal([]byte(r.out), &list)).To(Succeed())
	g.Expect(list.Kind).To(Equal("List"))
	g.Expect(list.Items).To(HaveLen(8))
	g.Expect(fleetwright("", "build", "-", "-o", "json").out).To(ContainSubstring(`"items": []`))
}

func TestBuildDir(t *testing.T) {
	g := NewWithT(t)
	dir := filepath.Join(t.TempDir(), "rendered")
	files := func() (names []string) {
		g.Expect(filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				name, _ := filepath.Rel(dir, path)
				names = append(names, name)
			}
			return err
		})).To(Succeed())
		return names
	}
	all := []string{"shop/hub.yaml", "shop/members/edge-1.yaml", "shop/members/edge-2.yaml", "shop/shared.yaml"}

	r := fleetwright("", "build", "testdata/shop", "--output-dir", dir)
	g.Expect(r).To(Equal(outcome{}))
	g.Expect(files()).To(Equal(all))
	content, err := os.ReadFile(filepath.Join(dir, all[1]))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(content)).To(HavePrefix(header + "---\n"))
	g.Expect(strings.Count(string(content), "---\n")).To(Equal(2))

	// Files of what is gone go, but not those of somebody else, and only if all was rendered.
	g.Expect(os.WriteFile(filepath.Join(dir, "shop/members/edge-3.yaml"), []byte(header), 0o600)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(dir, "mine.yaml"), []byte("a: b\n"), 0o600)).To(Succeed())
	g.Expect(fleetwright("", "build", "testdata/shop", "--output-dir", dir, "--member", "edge-1").code).To(BeZero())
	g.Expect(files()).To(ContainElement("shop/members/edge-3.yaml"))
	g.Expect(fleetwright(app("a", ""), "build", "testdata/shop", "-", "--output-dir", dir).code).To(Equal(exitFailed))
	g.Expect(files()).To(ContainElement("shop/members/edge-3.yaml"))
	g.Expect(fleetwright("", "build", "testdata/shop", "--output-dir", dir).code).To(BeZero())
	g.Expect(files()).To(Equal(append([]string{"mine.yaml"}, all...)))

	// Nor is somebody else's file written over.
	g.Expect(os.WriteFile(filepath.Join(dir, "shop/hub.yaml"), []byte("a: b\n"), 0o600)).To(Succeed())
	r = fleetwright("", "build", "testdata/shop", "--output-dir", dir)
	g.Expect(r.code).To(Equal(exitFailed))
	g.Expect(r.err).To(ContainSubstring("hub.yaml is there and was not written by fleetwright build"))

	// A pipe is not waited for.
	g.Expect(os.Remove(filepath.Join(dir, "shop/hub.yaml"))).To(Succeed())
	g.Expect(syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o600)).To(Succeed())
	g.Expect(fleetwright("", "build", "testdata/shop", "--output-dir", dir)).To(Equal(outcome{}))
}

func TestBuildMembers(t *testing.T) {
	g := NewWithT(t)
	file := filepath.Join(t.TempDir(), "members.yaml")
	g.Expect(os.WriteFile(file, []byte(strings.Replace(memberC1, "name: c1\n", "name: c1\n  namespace: default\n  managedFields: []\n", 1)+"status: {ready: true}\n"), 0o600)).To(Succeed())
	in := strings.TrimSuffix(fleetC1+app("a", ""), "---\n")
	g.Expect(fleetwright(in, "build", "-").code).To(Equal(exitFailed))
	r := fleetwright(in, "build", "-", "--members", file)
	g.Expect(r.err).To(BeEmpty())
	g.Expect(r.out).To(ContainSubstring("name: a-p-c1\n"))

	for _, nobody := range []string{"", "---\n", "apiVersion: v1\nkind: List\nitems: []\n", strings.TrimSuffix(fleetC1, "---\n")} {
		g.Expect(os.WriteFile(file, []byte(nobody), 0o600)).To(Succeed())
		r := fleetwright(in, "build", "-", "--members", file)
		g.Expect(r.code).To(Equal(exitUsage))
		g.Expect(r.out).To(BeEmpty())
		g.Expect(r.err).To(Equal("error: --members " + file + ": no AttachedCluster or Cluster is in it: write it with fleetwright inventory export -A\n"))
	}
}

func TestCompletion(t *testing.T) {
	g := NewWithT(t)
	complete := func(args ...string) []string {
		lines := strings.Split(fleetwright("", append([]string{"__complete"}, args...)...).out, "\n")
		return lines[:len(lines)-2] // without the directive
	}
	g.Expect(complete("build", "testdata/shop", "--member", "")).To(Equal([]string{"edge-1", "edge-2"}))
	g.Expect(complete("build", "testdata/shop", "--application", "")).To(Equal([]string{"base", "web"}))
	g.Expect(complete("build", "testdata/shop", "-o", "")).To(Equal([]string{"yaml", "json"}))
}

func TestSuggest(t *testing.T) {
	g := NewWithT(t)
	known := []string{"edge-1", "edge-2", "edge-10", "hub", "london", "paris", "edge-1"}
	g.Expect(suggest("edeg-1", known)).To(Equal(": did you mean edge-1?"))
	g.Expect(suggest("edge-1000", known)).To(HavePrefix(": did you mean edge-10, edge-1"))
	g.Expect(suggest("zzzzzzzzz", known)).To(BeEmpty())
	g.Expect(suggest("x", []string{"b", "a"})).To(Equal(": did you mean a, b?"))
	g.Expect(suggest("x", nil)).To(BeEmpty())
}
