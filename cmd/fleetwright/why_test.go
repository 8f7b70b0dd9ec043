package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// TestWhy holds what is said of objects. GEN_GOLDEN=true writes it.
func TestWhy(t *testing.T) {
	g := NewWithT(t)
	const here = "--source=" + self + "=testdata/pulls/base"
	var all strings.Builder
	for _, args := range [][]string{
		{"oregon/deploy/shop/web", "testdata/pulls/base", here},              // an override with a patch
		{"berlin/Deployment/web", "testdata/pulls/base", here},               // none, and any namespace
		{"lab/services/shop/web", "testdata/pulls/base", here},               // a fleet that lists its members
		{"berlin/sts/db", "testdata/pulls/base", here},                       // a selector in the destination
		{"oregon/deployment/ingress", "testdata/pulls/base", here},           // a chart, and values of an override
		{"oregon/hr/ingress-controller-oregon", "testdata/pulls/base", here}, // on the hub
		{"berlin/gitrepo/shop", "testdata/pulls/base", here},
		{"hub/helmchart/ingress-controller", "testdata/pulls/base", here},
		{"berlin/vpol/fleet.security.non-root", "testdata/pulls/base", here}, // a rule
		{"berlin/deployment/shop/wbe", "testdata/pulls/base", here},          // not found
		{"m1/quota/shop/q", "testdata/baseline"},                             // two that have the same
		{"m1/ns/shop", "testdata/baseline"},                                  // an override that changes nothing
		{"m2/ns/shop", "testdata/baseline"},                                  // a member that could not be rendered
		{"m1/externalartifacts/baseline-other", "testdata/baseline"},         // what is published
		{"m2/netpol/default/isolation", "testdata/baseline"},                 // what a Fleet implies
		{"prod-cluster/ds/security-agent", "testdata/policies"},              // a type of rules
		{"prod-cluster/hr/plugin-financial-fleet-policy-kyverno-prod-cluster", "testdata/policies"},
	} {
		r := fleetwright("", append([]string{"why"}, args...)...)
		fmt.Fprintf(&all, "$ fleetwright why %s\n%s%s(%d)\n\n", strings.Join(args[:2], " "), r.out, r.err, r.code)
	}
	const golden = "testdata/why.golden.txt"
	if os.Getenv("GEN_GOLDEN") != "" {
		g.Expect(os.WriteFile(golden, []byte(all.String()), 0o600)).To(Succeed())
	}
	want, err := os.ReadFile(golden)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all.String()).To(Equal(string(want)))
}

func TestWhyJSON(t *testing.T) {
	g := NewWithT(t)
	r := fleetwright("", "why", "oregon/deployment/shop/web", "testdata/pulls/base", "-o", "json", "--source", self+"=testdata/pulls/base")
	g.Expect(r.code).To(BeZero(), r.err)
	var out struct {
		Objects       []reason
		NotLookedInto []string
	}
	g.Expect(json.Unmarshal([]byte(r.out), &out)).To(Succeed())
	g.Expect(out.Objects).To(HaveLen(1))
	g.Expect(out.Objects[0].Steps).To(ContainElement(step{Role: "override", File: "testdata/pulls/base/apps/shop.yaml", Line: 25,
		What: "spec.syncPolicies[0].overrides[0]", Why: "selector region=us", Changes: []string{"spec.replicas"}}))
	g.Expect(out.NotLookedInto).To(ContainElement(ContainSubstring("podinfo 6.5.4 is not at hand")))

	r = fleetwright("", "why", "oregon/deployment/nothing", "testdata/pulls/base", "-o", "json")
	g.Expect(r.code).To(Equal(exitFailed))
	g.Expect(r.out).To(ContainSubstring(`"objects": []`))
}

func TestWhyUsage(t *testing.T) {
	g := NewWithT(t)
	for args, message := range map[string]string{
		"":                                "requires at least 1 arg",
		"berlin/web":                      "has to be MEMBER/KIND/NAME or MEMBER/KIND/NAMESPACE/NAME",
		"berlin//web":                     "there is a name missing",
		"berlni/cm/x testdata/pulls/base": "member berlni: there is none of that name: did you mean berlin?",
		"berlin/cm/x nowhere":             "nowhere",
		"berlin/cm/x testdata -o yaml":    "has to be text or json",
		"hub/cm/x testdata/baseline --plugin nowhere": "--plugin",
	} {
		r := fleetwright("", append([]string{"why"}, strings.Fields(args)...)...)
		g.Expect(r.code).To(Equal(exitUsage), args)
		g.Expect(r.err).To(ContainSubstring(message), args)
		g.Expect(r.out).To(BeEmpty(), args)
	}
}

// TestWhyFiles holds where objects are written that kustomize renames, generates, and takes from other folders.
func TestWhyFiles(t *testing.T) {
	g := NewWithT(t)
	root := t.TempDir()
	for name, content := range map[string]string{
		"fleet.yaml": `apiVersion: cluster.kurator.dev/v1alpha1
kind: AttachedCluster
metadata: {name: m1}
spec: {kubeconfig: {name: m1}}
---
apiVersion: apps.kurator.dev/v1alpha1
kind: Application
metadata: {name: web}
spec:
  source: {gitRepository: {url: https://git.example.org/web, interval: 1m}}
  syncPolicies:
  - destination: {cluster: {name: m1}}
    kustomization: {path: overlay}
    overrides:
    - clusters: [m1]
      kustomization: {components: [../extra]}
  - name: plain
    kustomization: {path: plain}
`,
		"overlay/kustomization.yaml": "namePrefix: a-\nnamespace: web\nresources: [../base]\nconfigMapGenerator:\n- name: one\n  literals: [a=b]\n- name: two\n  literals: [a=b]\n",
		"base/kustomization.yaml":    "resources: [all.yaml]\n",
		"base/all.yaml":              "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: web-2}\n",
		"extra/kustomization.yaml":   "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nresources: [sa.yaml]\n",
		"extra/sa.yaml":              "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: extra}\n",
		"plain/cm.yaml":              "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: plain, namespace: web}\n",
	} {
		g.Expect(os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o700)).To(Succeed())
		g.Expect(os.WriteFile(filepath.Join(root, name), []byte(content), 0o600)).To(Succeed())
	}
	why := func(object string) string {
		r := fleetwright("", "why", object, root, "--self", "https://git.example.org/web")
		g.Expect(r.code).To(BeZero(), r.err)
		return strings.ReplaceAll(r.out, root+"/", "")
	}
	g.Expect(why("m1/cm/a-web")).To(ContainSubstring("base/all.yaml:1 "))
	g.Expect(why("m1/cm/a-web-2")).To(ContainSubstring("base/all.yaml:5 "))
	g.Expect(why("m1/cm/a-two-4h2mbtbbt6")).To(ContainSubstring("overlay/kustomization.yaml:7 "))
	g.Expect(why("m1/sa/a-extra")).To(And(ContainSubstring("extra/sa.yaml:1 "), ContainSubstring("fleet.yaml:15 "),
		ContainSubstring("clusters has m1; changes all of it"), MatchRegexp(`destination +fleet.yaml:12 +cluster m1`)))
	g.Expect(why("hub/cm/plain")).To(And(ContainSubstring("ConfigMap web/plain on hub"), ContainSubstring("plain/cm.yaml:1 "),
		ContainSubstring("the policy has no destination")))
}
