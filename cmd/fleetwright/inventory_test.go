package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

// token stands for a credential, wherever one might be.
const token = "c2VjcmV0LXRva2Vu"

// liveMembers are members as a hub has them, with a token everywhere but in what rendering goes by.
func liveMembers(version string) []map[string]any {
	return []map[string]any{
		liveMember("AttachedCluster", "edge-2", `{kubeconfig: {name: edge-2-kubeconfig, key: config}, healthCheck: {interval: 1m}, futureToken: `+token+`}`,
			`{kubernetesVersion: `+version+`, nodes: 3, clusterID: 0b1f, ready: true, lastHandledReconcileAt: `+token+`}`),
		liveMember("AttachedCluster", "edge-1", `{configMapRef: {name: edge-1-access}}`, `{observedGeneration: 4}`),
		liveMember("Cluster", "aws", `{infraType: aws, region: eu, version: v1.33.1, credential: {secretRef: {name: `+token+`}}, network: {vpc: {}, cni: {type: calico, extraArgs: {data: `+token+`}}},
			master: {replicas: 1, instanceType: t3}, workers: []}`, `{kubeconfigSecretRef: aws-kubeconfig, apiEndpoint: "https://`+token+`@10.0.0.1", kubernetesVersion: v1.33.1}`),
		liveMember("Cluster", "attached", `{kind: AttachedCluster, kubeconfigRef: {name: attached-kubeconfig, data: `+token+`}}`, `null`),
	}
}

func liveMember(kind, name, spec, status string) map[string]any {
	var o map[string]any
	if err := yaml.Unmarshal([]byte(`
apiVersion: cluster.kurator.dev/v1alpha1
kind: `+kind+`
metadata:
  name: `+name+`
  namespace: shop
  uid: 6a1c
  resourceVersion: "1234"
  generation: 4
  creationTimestamp: "2026-01-01T00:00:00Z"
  labels: {env: prod, name: `+name+`}
  finalizers: [fleet.kurator.dev/in-use]
  managedFields: [{manager: `+token+`, operation: Update, fieldsType: FieldsV1}]
  annotations:
    note: 'users: [{name: admin, user: {token: `+token+`}}]'
    kubectl.kubernetes.io/last-applied-configuration: '{"spec":{"token":"`+token+`"}}'
data: {value: `+token+`}
stringData: {value: `+token+`}
spec: `+spec+`
status: `+status), &o); err != nil {
		panic(err)
	}
	return o
}

// membersHub serves members.
func membersHub(t *testing.T, members []map[string]any) string {
	lists := map[string][]map[string]any{}
	for _, path := range []string{"/apis/cluster.kurator.dev/v1alpha1/", "/apis/cluster.kurator.dev/v1alpha1/namespaces/shop/", "/apis/cluster.kurator.dev/v1alpha1/namespaces/empty/"} {
		for kind, plural := range map[string]string{"AttachedCluster": "attachedclusters", "Cluster": "clusters"} {
			lists[path+plural] = nil
			for _, m := range members {
				if m["kind"] == kind && !strings.Contains(path, "empty") {
					lists[path+plural] = append(lists[path+plural], m)
				}
			}
		}
	}
	return hubServer(t, lists)
}

const inventory = inventoryHeader + `apiVersion: v1
items:
- apiVersion: cluster.kurator.dev/v1alpha1
  kind: Cluster
  metadata:
    labels:
      env: prod
      name: attached
    name: attached
    namespace: shop
  spec:
    kind: AttachedCluster
    kubeconfigRef:
      name: attached-kubeconfig
- apiVersion: cluster.kurator.dev/v1alpha1
  kind: Cluster
  metadata:
    labels:
      env: prod
      name: aws
    name: aws
    namespace: shop
  spec:
    infraType: aws
  status:
    kubeconfigSecretRef: aws-kubeconfig
    kubernetesVersion: v1.33.1
- apiVersion: cluster.kurator.dev/v1alpha1
  kind: AttachedCluster
  metadata:
    labels:
      env: prod
      name: edge-1
    name: edge-1
    namespace: shop
  spec:
    configMapRef:
      name: edge-1-access
- apiVersion: cluster.kurator.dev/v1alpha1
  kind: AttachedCluster
  metadata:
    labels:
      env: prod
      name: edge-2
    name: edge-2
    namespace: shop
  spec:
    kubeconfig:
      key: config
      name: edge-2-kubeconfig
  status:
    kubernetesVersion: v1.36.4
kind: List
`

func TestInventoryExport(t *testing.T) {
	g := NewWithT(t)
	members := liveMembers("v1.36.4")
	want := outcome{out: inventory}
	g.Expect(fleetwright("", "inventory", "export", "--kubeconfig", membersHub(t, members))).To(Equal(want), "without a token")
	g.Expect(fleetwright("", "inventory", "export", "-A", "--kubeconfig", membersHub(t, members))).To(Equal(want))
	slices.Reverse(members)
	g.Expect(fleetwright("", "inventory", "export", "-n", "shop", "--kubeconfig", membersHub(t, members))).To(Equal(want), "in whatever order")

	r := fleetwright("", "inventory", "export", "-o", "json", "--kubeconfig", membersHub(t, members))
	g.Expect(r.code).To(BeZero())
	g.Expect(json.Valid([]byte(r.out))).To(BeTrue())
	g.Expect(r.out).To(MatchYAML(inventory))
}

func TestInventoryOfNobody(t *testing.T) {
	g := NewWithT(t)
	hub := membersHub(t, liveMembers("v1.36.4"))
	r := fleetwright("", "inventory", "export", "-n", "empty", "--kubeconfig", hub)
	g.Expect(r).To(Equal(outcome{code: exitFailed, err: "error: there are no AttachedClusters and Clusters in namespace empty: name another one with --namespace, or all with --all-namespaces\n"}))
	g.Expect(fleetwright("", "inventory", "export", "-o", "wide").code).To(Equal(exitUsage))
	g.Expect(fleetwright("", "inventory", "exprot").code).To(Equal(exitUsage))
}

// TestInventoryRenders holds that an inventory renders to what the objects of the hub do: plugins, an Application and a
// baseline, and a member that leaves.
func TestInventoryRenders(t *testing.T) {
	for _, version := range []string{"v1.36.4", "v1.24.3-gke.100"} {
		g := NewWithT(t)
		members := liveMembers(version)
		leaving := liveMember("AttachedCluster", "edge-3", `{kubeconfig: {name: edge-3-kubeconfig}}`, `{kubernetesVersion: v1.36.4}`)
		leaving["metadata"].(map[string]any)["deletionTimestamp"] = "2026-01-02T00:00:00Z"
		members = append(members, leaving)
		dir := t.TempDir()
		live, exported := filepath.Join(dir, "live.json"), filepath.Join(dir, "exported.yaml")
		list, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": members})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(os.WriteFile(live, list, 0o600)).To(Succeed())
		r := fleetwright("", "inventory", "export", "-A", "--kubeconfig", membersHub(t, members))
		g.Expect(r.err).To(BeEmpty())
		g.Expect(os.WriteFile(exported, []byte(r.out), 0o600)).To(Succeed())

		const repository = `
apiVersion: fleet.kurator.dev/v1alpha1
kind: Fleet
metadata: {name: prod}
spec:
  clusterSelector: {matchLabels: {env: prod}}
  plugin:
    flagger: {trafficRoutingProvider: nginx, publicTestloader: true}
    policy: {kyverno: {}}
---
apiVersion: apps.kurator.dev/v1alpha1
kind: Application
metadata: {name: web}
spec:
  source: {gitRepository: {url: "https://git.example/web", ref: {branch: main}, interval: 5m}}
  destination: {fleet: prod}
  syncPolicies: [{name: app, kustomization: {path: "./<< .cluster.labels.name >>", prune: true, interval: 5m}}]
---
apiVersion: cluster.kurator.dev/v1alpha1
kind: ClusterConfig
metadata: {name: base}
spec:
  target: {fleet: prod}
  namespaces: [{name: web, labels: {member: "<< .cluster.name >>"}}]
`
		want := fleetwright(repository, "build", "-", "-n", "shop", "--members", live)
		g.Expect(want.code).To(BeZero(), want.err)
		g.Expect(want.out).To(And(ContainSubstring("aws-kubeconfig"), ContainSubstring("edge-1-access"), Not(ContainSubstring("edge-3"))))
		g.Expect(fleetwright(repository, "build", "-", "-n", "shop", "--members", exported)).To(Equal(want))
		want = fleetwright(repository, "build", "-", "-n", "shop", "--expand", "--members", live)
		g.Expect(want.code).To(BeZero(), want.err)
		g.Expect(fleetwright(repository, "build", "-", "-n", "shop", "--expand", "--members", exported)).To(Equal(want))
	}
}
