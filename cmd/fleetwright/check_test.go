package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

const checkedPlugin = `apiVersion: kurator.dev/v1alpha1
kind: Plugin
metadata: {name: %s}
spec:
  components:
  - name: objects
    objects:
    - apiVersion: policy/v1beta1
      kind: PodDisruptionBudget
      metadata: {name: web, namespace: %[1]s}
      spec: {maxUnavailable: 1}
    - apiVersion: apiextensions.k8s.io/v1
      kind: CustomResourceDefinition
      metadata: {name: widgets.example.com}
      spec: {group: example.com, scope: Namespaced, names: {kind: Widget, plural: widgets}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}
    - apiVersion: example.com/v1
      kind: Widget
      metadata: {name: w, namespace: %[1]s}
`

func TestBuildCheck(t *testing.T) {
	g := NewWithT(t)
	args := []string{"build", "-", "--check"}
	for _, name := range []string{"one", "two"} {
		dir := filepath.Join(t.TempDir(), name)
		g.Expect(os.Mkdir(dir, 0o755)).To(Succeed())
		g.Expect(os.WriteFile(filepath.Join(dir, "plugin.yaml"), fmt.Appendf(nil, checkedPlugin, name), 0o600)).To(Succeed())
		args = append(args, "--plugin", dir)
	}
	var members strings.Builder
	for name, version := range map[string]string{"m1": "v1.22.9", "m2": "v1.24.3", "m3": "v1.36.4", "m4": "v1.35.1"} {
		fmt.Fprintf(&members, "---\napiVersion: cluster.kurator.dev/v1alpha1\nkind: AttachedCluster\nmetadata: {name: %s, namespace: default}\nspec: {kubeconfig: {name: %[1]s}}\nstatus: {kubernetesVersion: %s}\n", name, version)
	}
	file := filepath.Join(t.TempDir(), "members.yaml")
	g.Expect(os.WriteFile(file, []byte(members.String()), 0o600)).To(Succeed())
	const repository = `apiVersion: fleet.kurator.dev/v1alpha1
kind: Fleet
metadata: {name: prod}
spec:
  clusterSelector: {}
  plugins: [{name: one}]
---
apiVersion: fleet.kurator.dev/v1alpha1
kind: Fleet
metadata: {name: edge}
spec:
  clusters: [{name: m1}]
  plugins: [{name: two}]
`
	r := fleetwright(repository, append(args, "--members", file)...)
	g.Expect(r.code).To(BeZero(), r.err)
	g.Expect(strings.Split(strings.TrimSpace(r.err), "\n")).To(ConsistOf(
		"warning: stdin:1: Fleet prod: policy objects: members m3, m4: PodDisruptionBudget one/web: policy/v1beta1 is not served since Kubernetes 1.25 (here v1.35.1, v1.36.4): write policy/v1",
		"warning: stdin:1: Fleet prod: policy objects: member m2: PodDisruptionBudget one/web: policy/v1beta1 is not served from Kubernetes 1.25 on, the next version (here v1.24.3): before the upgrade, write policy/v1",
		And(HavePrefix("warning: stdin:1: Fleet prod: policy objects: member m1: CustomResourceDefinition widgets.example.com comes from Fleet edge, policy objects, too: "), HaveSuffix("crds: Skip")),
	))
	g.Expect(fleetwright(repository, append(args, "--members", file, "--strict")...).code).To(Equal(exitFailed))
	args[2] = "--members=" + file
	g.Expect(fleetwright(repository, args...).err).To(BeEmpty(), "nothing of it where nobody asks")
}
