package main

import (
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/tools/txtar"

	"github.com/fleetwright/fleetwright/renderers/plan"
)

const self = "https://git.example.org/platform/fleet"

// TestPullRequests holds what is said of pull requests that people open. GEN_GOLDEN=true writes the comments.
func TestPullRequests(t *testing.T) {
	pulls, err := filepath.Glob("testdata/pulls/*.txtar")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(len(pulls)).To(BeNumerically(">=", 20))
	for _, pull := range pulls {
		t.Run(strings.TrimSuffix(filepath.Base(pull), ".txtar"), func(t *testing.T) {
			g := NewWithT(t)
			to := filepath.Join(t.TempDir(), "to")
			g.Expect(os.CopyFS(to, os.DirFS("testdata/pulls/base"))).To(Succeed())
			changes, err := txtar.ParseFile(pull)
			g.Expect(err).NotTo(HaveOccurred())
			for _, f := range changes.Files {
				name := filepath.Join(to, f.Name)
				if len(f.Data) == 0 {
					g.Expect(os.Remove(name)).To(Succeed())
				} else {
					g.Expect(os.WriteFile(name, f.Data, 0o600)).To(Succeed())
				}
			}
			r := fleetwright("", "diff", "testdata/pulls/base", to, "--self", self, "-n", "fleet", "-o", "markdown")
			comment := strings.ReplaceAll(r.out, to, "to")
			if r.err != "" {
				comment += "\n" + strings.ReplaceAll(r.err, to, "to")
			}
			g.Expect(comment).NotTo(ContainSubstring("hunter2"), "no value of a Secret")
			golden := strings.TrimSuffix(pull, ".txtar") + ".md"
			if os.Getenv("GEN_GOLDEN") != "" {
				g.Expect(os.WriteFile(golden, []byte(comment), 0o600)).To(Succeed())
			}
			want, err := os.ReadFile(golden)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(comment).To(Equal(string(want)))
		})
	}
}

// TestDiffOfOtherOrder holds that files of other names and documents in another order are the same bytes.
func TestDiffOfOtherOrder(t *testing.T) {
	g := NewWithT(t)
	var plans []string
	for _, reverse := range []bool{false, true} {
		dir := t.TempDir()
		from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
		for _, side := range []string{from, to} {
			g.Expect(os.CopyFS(side, os.DirFS("testdata/pulls/base"))).To(Succeed())
		}
		edit(g, filepath.Join(to, "deploy/shop/kustomization.yaml"), `"1.2"`, `"1.3"`)
		edit(g, filepath.Join(to, "clusters.yaml"), "region: eu", "region: us")
		if reverse {
			for _, side := range []string{from, to} {
				file := filepath.Join(side, "clusters.yaml")
				b, err := os.ReadFile(file)
				g.Expect(err).NotTo(HaveOccurred())
				documents := strings.Split(strings.TrimPrefix(string(b), "---\n"), "---\n")
				slices.Reverse(documents)
				g.Expect(os.WriteFile(file, []byte(strings.Join(documents, "---\n")), 0o600)).To(Succeed())
				g.Expect(os.Rename(filepath.Join(side, "apps/shop.yaml"), filepath.Join(side, "zzz.yaml"))).To(Succeed())
			}
		}
		r := fleetwright("", "diff", from, to, "--self", self, "-n", "fleet", "-o", "json")
		g.Expect(r.code).To(Equal(0), r.err)
		plans = append(plans, strings.ReplaceAll(r.out, dir, ""))
	}
	g.Expect(plans[0]).To(Equal(plans[1]))
	g.Expect(plans[0]).To(ContainSubstring("shop:1.3"))
}

func edit(g *WithT, file, from, to string) {
	b, err := os.ReadFile(file)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(b)).To(ContainSubstring(from))
	g.Expect(os.WriteFile(file, []byte(strings.ReplaceAll(string(b), from, to)), 0o600)).To(Succeed())
}

// TestDiffShowsNoSecret holds that no value of a Secret is in any output: plain, encoded, encrypted, in a patch, or new.
func TestDiffShowsNoSecret(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	write := func(side, value string, more string) string {
		folder := filepath.Join(dir, side)
		g.Expect(os.MkdirAll(filepath.Join(folder, "deploy"), 0o700)).To(Succeed())
		g.Expect(os.WriteFile(filepath.Join(folder, "fleet.yaml"), []byte(`
apiVersion: cluster.kurator.dev/v1alpha1
kind: AttachedCluster
metadata: {name: a, namespace: fleet}
spec: {kubeconfig: {name: a}}
---
apiVersion: fleet.kurator.dev/v1alpha1
kind: Fleet
metadata: {name: all, namespace: fleet}
spec: {clusters: [{name: a}]}
---
apiVersion: apps.kurator.dev/v1alpha1
kind: Application
metadata: {name: app, namespace: fleet}
spec:
  source: {gitRepository: {url: "`+self+`", interval: 1m, ref: {branch: main}}}
  destination: {fleet: all}
  syncPolicies:
  - name: app
    kustomization:
      path: ./deploy
      prune: true
      patches:
      - target: {kind: Secret, name: patched}
        patch: "- {op: add, path: /stringData/patched, value: `+value+`-patch}"
      - patch: |
          kind: Secret
          apiVersion: v1
          metadata: {name: patched, namespace: x}
          stringData: {merged: `+value+`-merge}
  - name: chart
    helm:
      releaseName: chart
      chart: {spec: {chart: ./chart}}
      values: {adminPassword: `+value+`-value, env: [{name: API_TOKEN, value: `+value+`-env}]}
`), 0o600)).To(Succeed())
		g.Expect(os.WriteFile(filepath.Join(folder, "deploy/secrets.yaml"), []byte(`
apiVersion: v1
kind: Secret
metadata: {name: plain, namespace: x, annotations: {kubectl.kubernetes.io/last-applied-configuration: '{"stringData":"`+value+`-last"}'}}
stringData: {a: `+value+`-string}
data: {b: `+base64.StdEncoding.EncodeToString([]byte(value+"-data"))+`}
---
apiVersion: v1
kind: Secret
metadata: {name: patched, namespace: x}
stringData: {}
---
apiVersion: v1
kind: Secret
metadata: {name: encrypted, namespace: x}
stringData: {a: "ENC[AES256_GCM,data:`+value+`-enc,iv:x,tag:y,type:str]"}
sops: {mac: "ENC[AES256_GCM,data:`+value+`-mac]", lastmodified: "`+value+`-time"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: encrypted, namespace: x}
data: {a: "ENC[AES256_GCM,data:`+value+`-enc,iv:x,tag:y,type:str]"}
sops: {mac: "ENC[AES256_GCM,data:`+value+`-mac]"}
`+more), 0o600)).To(Succeed())
		return folder
	}
	from := write("from", "hunter2-old", "")
	to := write("to", "hunter2-new", `---
apiVersion: v1
kind: Secret
metadata: {name: new, namespace: x}
stringData: {a: hunter2-created}
`)
	broken := write("broken", "hunter2-broken", "")
	edit(g, filepath.Join(broken, "fleet.yaml"), "path: /stringData/patched", "path: [/stringData/patched")
	r := fleetwright("", "diff", from, broken, "--self", self)
	g.Expect(r.out+r.err).To(And(ContainSubstring("not known"), Not(ContainSubstring("hunter2"))), "nor in what kustomize says of a patch")
	for _, format := range []string{"text", "markdown", "json", "html"} {
		r := fleetwright("", "diff", from, to, "--self", self, "-o", format)
		g.Expect(r.code).To(Equal(0), r.err)
		g.Expect(r.out).To(And(ContainSubstring("plain"), ContainSubstring("new"), ContainSubstring("stringData")))
		g.Expect(r.out+r.err).NotTo(ContainSubstring("hunter2"), format)
		g.Expect(r.out).NotTo(ContainSubstring(base64.StdEncoding.EncodeToString([]byte("hunter2-new-data"))))
	}
}

// TestDiffOfRevisions holds what is compared in a Git repository, and that it is left as it is.
func TestDiffOfRevisions(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	git := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"}, args...)...)
		out, err := cmd.CombinedOutput()
		g.Expect(err).NotTo(HaveOccurred(), string(out))
		return string(out)
	}
	git("init", "-q", "-b", "main")
	git("remote", "add", "origin", "git@git.example.org:platform/fleet.git")
	g.Expect(os.CopyFS(filepath.Join(dir, "fleet"), os.DirFS("testdata/pulls/base"))).To(Succeed())
	edit(g, filepath.Join(dir, "fleet/apps/shop.yaml"), "./deploy", "./fleet/deploy")
	git("add", "-A")
	git("commit", "-qm", "base")
	git("checkout", "-qb", "change")
	edit(g, filepath.Join(dir, "fleet/deploy/shop/kustomization.yaml"), `"1.2"`, `"1.3"`)
	git("commit", "-qam", "change")
	git("checkout", "-q", "main")
	edit(g, filepath.Join(dir, "fleet/baseline/config.yaml"), `"50"`, `"80"`)
	git("commit", "-qam", "main goes on")
	edit(g, filepath.Join(dir, "fleet/apps/ingress.yaml"), `replicas: 3`, `replicas: 5`)
	status := git("status", "--porcelain")

	diff := func(args ...string) outcome {
		return fleetwright("", append([]string{"diff", filepath.Join(dir, "fleet"), "-n", "fleet"}, args...)...)
	}
	image, quota, replicas := ContainSubstring("shop:1.2 → registry.example.org/shop:1.3"), ContainSubstring("spec.hard.pods"), ContainSubstring("spec.values.replicas: 3 → 5")
	r := diff("--from", "main", "--to", "change")
	g.Expect(r.out).To(And(HavePrefix("main → change: "), image, quota, Not(replicas)), r.err)
	r = diff("--from", "main", "--to", "change", "--merge-base", "--exit-code")
	g.Expect(r.out).To(And(image, Not(quota), Not(replicas)), r.err)
	g.Expect(r.code).To(Equal(exitChanges))
	r = diff("--from", "main")
	g.Expect(r.out).To(And(HavePrefix("main → the working tree: "), replicas, Not(image), Not(quota)), r.err)
	g.Expect(diff("--from", "main", "--to", "main", "--exit-code").code).To(Equal(0))
	r = diff("--from", "nosuch")
	g.Expect(r.code).To(Equal(exitUsage))
	g.Expect(r.err).To(ContainSubstring("there is no revision nosuch here: fetch it first"))
	g.Expect(diff("--from", "--upload-pack=x").err).To(ContainSubstring("there is no revision --upload-pack=x"))
	g.Expect(fleetwright("", "diff", t.TempDir(), "--from", "main").err).To(ContainSubstring("is in no Git repository"))
	g.Expect(git("status", "--porcelain")).To(Equal(status), "nothing of the repository is changed")
}

// TestPlanIsDocumented holds that each field of the JSON document is in the documentation.
func TestPlanIsDocumented(t *testing.T) {
	g := NewWithT(t)
	b, err := os.ReadFile("../../docs/diff.md")
	g.Expect(err).NotTo(HaveOccurred())
	var walk func(of reflect.Type)
	walk = func(of reflect.Type) {
		switch of.Kind() {
		case reflect.Slice, reflect.Pointer:
			walk(of.Elem())
		case reflect.Struct:
			for i := range of.NumField() {
				if f := of.Field(i); f.IsExported() {
					if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
						g.Expect(string(b)).To(ContainSubstring("`"+name+"`"), "%s.%s", of.Name(), f.Name)
					}
					walk(f.Type)
				}
			}
		}
	}
	walk(reflect.TypeFor[plan.Plan]())
}
