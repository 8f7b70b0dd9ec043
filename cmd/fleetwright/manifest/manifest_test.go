package manifest

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode/utf16"

	. "github.com/onsi/gomega"
)

// Every manifest that people have is taken as it is.
func TestAccepted(t *testing.T) {
	files, err := filepath.Glob("../testdata/accepted/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no test data", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			g := NewWithT(t)
			set, err := Source{Paths: []string{file}, Namespace: "default"}.Read()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(set.Warnings).To(BeEmpty())
			g.Expect(set.positions).NotTo(BeEmpty())
		})
	}
}

const (
	fleetHead = "apiVersion: fleet.kurator.dev/v1alpha1\nkind: Fleet\nmetadata:\n  name: prod\n"
	appHead   = "apiVersion: apps.kurator.dev/v1alpha1\nkind: Application\nmetadata:\n  name: web\n"
	appTail   = "  source:\n    gitRepository: {url: https://example.org/x, interval: 1m}\n  syncPolicies:\n  - kustomization: {}\n"
	memberDoc = "apiVersion: cluster.kurator.dev/v1alpha1\nkind: AttachedCluster\nmetadata:\n  name: c1\nspec:\n  kubeconfig: {name: c1}\n"
)

const (
	policyHead     = "apiVersion: policy.kurator.dev/v1alpha1\nkind: FleetSecurityPolicy\nmetadata:\n  name: base\nspec:\n  fleet: prod\n"
	complianceHead = "apiVersion: cluster.kurator.dev/v1alpha1\nkind: ClusterCompliance\nmetadata:\n  name: base\nspec:\n"
	podRule        = "  rules: [{name: a, match: {resources: {kinds: [Pod]}}, validate: {pattern: {}}}]\n"
)

// refused are documents that the API server refuses, too: see TestAdmissionAgrees.
const configHead = "apiVersion: cluster.kurator.dev/v1alpha1\nkind: ClusterConfig\nmetadata:\n  name: base\nspec:\n"

var refused = []struct {
	name, in string
	errs     []string
}{
	{"a policy without rules", policyHead + "  rules: []\n", []string{"f.yaml:7: FleetSecurityPolicy base: spec.rules: Invalid value: 0: spec.rules in body should have at least 1 items"}},
	{"a policy without a fleet", strings.Replace(policyHead, "  fleet: prod\n", "", 1) + podRule, []string{"f.yaml:5: FleetSecurityPolicy base: spec.fleet: Required value"}},
	{"a policy with a dot", strings.Replace(policyHead, "base", "a.b", 1) + podRule, []string{"f.yaml:1: FleetSecurityPolicy a.b: Invalid value: the name of a FleetSecurityPolicy is part of the names of policies on members"}},
	{"a budget of nothing", "apiVersion: policy.kurator.dev/v1alpha1\nkind: ChangeBudget\nmetadata:\n  name: b\nspec: {}\n", []string{"f.yaml:5: ChangeBudget b: spec: Invalid value: a budget has to bound something"}},
	{"a budget of too much", "apiVersion: policy.kurator.dev/v1alpha1\nkind: ChangeBudget\nmetadata:\n  name: b\nspec: {members: 120%}\n", []string{"f.yaml:5: ChangeBudget b: spec.members: Invalid value"}},
	{"another enforcement", policyHead + strings.Replace(podRule, "name: a", "name: a, enforcement: Enforce", 1), []string{`f.yaml:7: FleetSecurityPolicy base: spec.rules[0].enforcement: Unsupported value: "Enforce": supported values: "enforce", "audit"`}},
	{"two patterns", policyHead + strings.Replace(podRule, "pattern: {}", "pattern: {}, anyPattern: [{}]", 1), []string{"f.yaml:7: FleetSecurityPolicy base: spec.rules[0].validate: Invalid value: validate needs exactly one of pattern, anyPattern and cel"}},
	{"what Kyverno has besides", policyHead + strings.Replace(podRule, "pattern: {}", "deny: {}", 1), []string{
		"f.yaml:7: FleetSecurityPolicy base: spec.rules[0].validate.deny: unknown field", "f.yaml:7: FleetSecurityPolicy base: spec.rules[0].validate: Invalid value: validate needs exactly one of pattern, anyPattern and cel (deny, foreach"}},
	{"one rule twice", policyHead + "  rules: [{name: a, match: {resources: {}}, validate: {pattern: {}}}, {name: a, match: {resources: {}}, validate: {pattern: {}}}]\n",
		[]string{"f.yaml:7: FleetSecurityPolicy base: spec.rules[1]: Duplicate value"}},
	{"a compliance of nobody", complianceHead + "  rules: [{name: a, type: b}]\n", []string{"f.yaml:5: ClusterCompliance base: spec: Invalid value: exactly one of clusterName and fleet is needed"}},
	{"a compliance of both", complianceHead + "  clusterName: c\n  fleet: f\n  rules: [{name: a, type: b}]\n", []string{"f.yaml:5: ClusterCompliance base: spec: Invalid value: exactly one of clusterName and fleet is needed"}},
	{"a rule without a type", complianceHead + "  clusterName: c\n  rules: [{name: a}]\n", []string{"f.yaml:7: ClusterCompliance base: spec.rules[0].type: Required value"}},
	{"params that are no map", complianceHead + "  clusterName: c\n  rules: [{name: a, type: b, params: [1]}]\n", []string{"f.yaml:7: ClusterCompliance base: spec.rules[0].params: Invalid value"}},
	{"no target", configHead + "  target: {}\n", []string{"f.yaml:6: ClusterConfig base: spec.target: Invalid value: target needs exactly one of fleet and cluster"}},
	{"a selector without a fleet", configHead + "  target: {cluster: {name: a}, clusterSelector: {}}\n", []string{"f.yaml:6: ClusterConfig base: spec.target: Invalid value: target.clusterSelector chooses members of a fleet: set target.fleet"}},
	{"a Secret", configHead + "  target: {fleet: prod}\n  manifests:\n    objects:\n    - {apiVersion: v1, kind: Secret, metadata: {name: a}}\n",
		[]string{"f.yaml:9: ClusterConfig base: spec.manifests.objects[0]: Invalid value: a Secret must not be published"}},
	{"an object without a name", configHead + "  target: {fleet: prod}\n  manifests: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {}}]}\n",
		[]string{"f.yaml:7: ClusterConfig base: spec.manifests.objects[0]: Invalid value: an object needs metadata.name"}},
	{"a network policy twice over", configHead + "  target: {fleet: prod}\n  networkPolicies: [{namespaces: [a], preset: DefaultDeny, spec: {podSelector: {}}}]\n",
		[]string{"f.yaml:7: ClusterConfig base: spec.networkPolicies[0]: Invalid value: a network policy needs exactly one of preset and spec"}},
	{"one namespace twice", configHead + "  target: {fleet: prod}\n  namespaces: [{name: a}, {name: a}]\n", []string{"f.yaml:7: ClusterConfig base: spec.namespaces[1]: Duplicate value"}},
	{"a binding of nobody", configHead + "  target: {fleet: prod}\n  rbac: {bindings: [{name: a, clusterRole: view}]}\n", []string{"f.yaml:7: ClusterConfig base: spec.rbac.bindings[0]: Invalid value: a binding needs groups, users or serviceAccounts"}},
	{"a role without a namespace", configHead + "  target: {fleet: prod}\n  rbac: {roles: [{name: a, rules: []}]}\n", []string{"f.yaml:7: ClusterConfig base: spec.rbac.roles: Invalid value: a role needs a namespace"}},
	{"a path without a source", configHead + "  target: {fleet: prod}\n  manifests: {path: ./a}\n", []string{"f.yaml:7: ClusterConfig base: spec.manifests: Invalid value: path and components are in a Flux source: set sourceRef"}},
	{"label of a member that is not a string", fleetHead + "spec: {clusters: [{name: c1, labels: {env: prod, gpu: true}}]}\n",
		[]string{`f.yaml:5: Fleet prod: spec.clusters[0].labels.gpu: Invalid value: "boolean": spec.clusters[0].labels.gpu in body must be of type string`}},
	{"label that is not a string", fleetHead + "  labels:\n    env: prod\n    gpu: yes\n",
		[]string{"f.yaml:7: Fleet prod: metadata.labels[gpu]: Invalid value: true: must be a string: put it into quotes"}},
	{"annotation that is not a string", fleetHead + "  annotations: {x: 1}\n", []string{"f.yaml:5: Fleet prod: metadata.annotations[x]: Invalid value: 1: must be a string"}},
	{"label value", fleetHead + "  labels: {x: a b}\n", []string{"f.yaml:5: Fleet prod: metadata.labels: Invalid value: \"a b\""}},
	{"unknown fields", fleetHead + "spec:\n  cluster: []\n  clusters:\n  - name: c1\n    label: {}\n",
		[]string{"f.yaml:6: Fleet prod: spec.cluster: unknown field", "f.yaml:9: Fleet prod: spec.clusters[0].label: unknown field"}},
	{"unknown field of metadata", fleetHead + "  label: {}\n", []string{"f.yaml:5: Fleet prod: metadata.label: unknown field"}},
	{"unknown field at the root", fleetHead + "sepc: {}\n", []string{"f.yaml:5: Fleet prod: sepc: unknown field"}},
	{"required fields", appHead + "spec:\n  syncPolicies: []\n",
		[]string{"f.yaml:5: Application web: spec.source: Required value", "f.yaml:6: Application web: spec.syncPolicies: Invalid value: 0: spec.syncPolicies in body should have at least 1 items"}},
	{"enum", fleetHead + "spec:\n  clusters:\n  - {name: c1, kind: Cluste}\n",
		[]string{`f.yaml:7: Fleet prod: spec.clusters[0].kind: Unsupported value: "Cluste": supported values: "Cluster", "AttachedCluster"`}},
	{"pattern", fleetHead + "spec:\n  interval: 5 minutes\n", []string{"f.yaml:6: Fleet prod: spec.interval: Invalid value"}},
	{"rule", appHead + "spec:\n  source:\n    gitRepository: {url: https://example.org/x, interval: 1m}\n  syncPolicies:\n  - {}\n",
		[]string{"f.yaml:9: Application web: spec.syncPolicies[0]: Invalid value: a sync policy needs exactly one of kustomization and helm"}},
	{"destination of nothing", appHead + "spec:\n  destination: {}\n" + appTail,
		[]string{"f.yaml:6: Application web: spec.destination: Invalid value: a destination needs exactly one of fleet and cluster"}},
	{"destination of both", appHead + "spec:\n  destination: {fleet: prod, cluster: {name: c1}}\n" + appTail,
		[]string{"f.yaml:6: Application web: spec.destination: Invalid value: a destination needs exactly one of fleet and cluster"}},
	{"destination that selects of a cluster", appHead + "spec:\n  destination: {cluster: {name: c1}, clusterSelector: {}}\n" + appTail,
		[]string{"f.yaml:6: Application web: spec.destination: Invalid value: clusterSelector chooses members of a fleet: set fleet"}},
	{"destination of an unknown kind", appHead + "spec:\n  destination: {cluster: {name: c1, kind: Machine}}\n" + appTail,
		[]string{`f.yaml:6: Application web: spec.destination.cluster.kind: Unsupported value: "Machine": supported values: "Cluster", "AttachedCluster"`}},
	{"rule on the name", strings.Replace(fleetHead, "prod", strings.Repeat("x", 64), 1),
		[]string{"f.yaml:1: Fleet " + strings.Repeat("x", 64) + ": Invalid value: the name of a Fleet becomes a label value and must have at most 63 characters"}},
	{"name", strings.Replace(fleetHead, "prod", "Prod_1", 1), []string{`f.yaml:4: Fleet Prod_1: metadata.name: Invalid value: "Prod_1"`}},
	{"no name", "apiVersion: fleet.kurator.dev/v1alpha1\nkind: Fleet\nmetadata: {}\n", []string{"f.yaml:3: Fleet: metadata.name: Required value"}},
	{"no metadata", "apiVersion: fleet.kurator.dev/v1alpha1\nkind: Fleet\n", []string{"f.yaml:1: Fleet: metadata.name: Required value"}},
	{"metadata that is text", "apiVersion: fleet.kurator.dev/v1alpha1\nkind: Fleet\nmetadata: x\n", []string{"f.yaml:3: Fleet: metadata: "}},
	{"spec that is text", fleetHead + "spec: x\n", []string{`f.yaml:5: Fleet prod: spec: Invalid value: "string"`}},
	{"namespace", fleetHead + "  namespace: a/b\n", []string{`f.yaml:5: Fleet prod: metadata.namespace: Invalid value: "a/b"`}},
	{"version", "apiVersion: fleet.kurator.dev/v1\nkind: Fleet\nmetadata:\n  name: prod\n", []string{"f.yaml:1: kind Fleet has no version v1: write apiVersion: fleet.kurator.dev/v1alpha1"}},
}

func TestRefused(t *testing.T) {
	for _, tt := range refused {
		t.Run(tt.name, func(t *testing.T) {
			NewWithT(t).Expect(errorsOf(readText(t, tt.in))).To(matchPrefixes(tt.errs))
		})
	}
}

func readText(t *testing.T, text string) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Dir(file))
	_, err := Source{Paths: []string{"f.yaml"}, Namespace: "default"}.Read()
	return err
}

// errorsOf returns the single errors of joined ones.
func errorsOf(err error) (out []string) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			out = append(out, errorsOf(err)...)
		}
	} else if err != nil {
		out = append(out, err.Error())
	}
	return out
}

func TestSet(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		errs     []string
	}{
		{"declared twice", fleetHead + "---\n" + fleetHead + "  namespace: default\n", []string{"f.yaml:6: Fleet prod is in f.yaml:1 already, in the same namespace, default"}},
		{"another namespace", fleetHead + "---\n" + fleetHead + "  namespace: other\n", nil},
		{"in a list", "apiVersion: v1\nkind: List\nitems:\n- apiVersion: fleet.kurator.dev/v1alpha1\n  kind: Fleet\n  metadata:\n    name: prod\n  spec: {x: 1}\n- 5\n",
			[]string{"f.yaml:8: Fleet prod: spec.x: unknown field", "f.yaml:9: an item of a list has to be an object"}},
		{"list of our own", "apiVersion: fleet.kurator.dev/v1alpha1\nkind: FleetList\nitems: [{apiVersion: fleet.kurator.dev/v1alpha1, kind: Fleet, metadata: {name: a}}]\n", nil},
		{"other objects", "kind: ConfigMap\n---\napiVersion: example.org/v7\nkind: Fleet\nspec: 5\n---\napiVersion: apps/v1\nkind: Application\n---\na: b\n", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			NewWithT(t).Expect(errorsOf(readText(t, tt.in))).To(matchPrefixes(tt.errs))
		})
	}
}

func matchPrefixes(prefixes []string) OmegaMatcher {
	if len(prefixes) == 0 {
		return BeEmpty()
	}
	matchers := make([]any, len(prefixes))
	for i, prefix := range prefixes {
		matchers[i] = HavePrefix(prefix)
	}
	return HaveExactElements(matchers...)
}

func TestUnknownKind(t *testing.T) {
	g := NewWithT(t)
	set, err := Source{Paths: []string{"-"}, Stdin: strings.NewReader(strings.Replace(fleetHead, "kind: Fleet", "kind: Flet", 1))}.Read()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(set.Warnings).To(HaveExactElements(
		MatchError("stdin:1: fleet.kurator.dev/v1alpha1 has no kind Flet: ignored"),
		MatchError("no Fleet, Application, ClusterConfig, FleetSecurityPolicy, ClusterCompliance, PluginConfig, AttachedCluster or Cluster in -"),
	))
}

// What kubectl apply drops, the status, is dropped; defaults are filled in.
func TestAdmitted(t *testing.T) {
	g := NewWithT(t)
	set, err := Source{Paths: []string{"-"}, Stdin: strings.NewReader(memberDoc + "status: {kubernetesVersion: v1.36.4}\n"), Namespace: "shop"}.Read()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(set.AttachedClusters).To(HaveLen(1))
	c := set.AttachedClusters[0]
	g.Expect(c.Namespace).To(Equal("shop"))
	g.Expect(c.Spec.Kubeconfig.Key).To(Equal("value"))
	g.Expect(c.Status.KubernetesVersion).To(BeEmpty())
}

func TestMembers(t *testing.T) {
	g := NewWithT(t)
	members := filepath.Join(t.TempDir(), "members.yaml")
	g.Expect(os.WriteFile(members, []byte(`apiVersion: v1
kind: List
items:
- apiVersion: cluster.kurator.dev/v1alpha1
  kind: AttachedCluster
  metadata:
    name: c1
    namespace: shop
    uid: 0b5f6a52-5e0c-4a0b-b7ac-0a8e3d9a4b0e
    resourceVersion: "5"
    creationTimestamp: "2026-01-01T00:00:00Z"
    managedFields: [{manager: kubectl, operation: Apply, fieldsType: FieldsV1, fieldsV1: {"f:spec": {}}}]
  spec:
    kubeconfig: {name: live, key: value}
    addedLater: true
  status: {kubernetesVersion: v1.36.4, addedLater: true}
- apiVersion: cluster.kurator.dev/v1alpha1
  kind: AttachedCluster
  metadata: {name: c2, namespace: shop}
  spec:
    kubeconfig: {name: c2}
- apiVersion: fleet.kurator.dev/v1alpha1
  kind: Fleet
  metadata: {name: not-taken, namespace: shop}
`), 0o600)).To(Succeed())
	set, err := Source{Paths: []string{"-"}, Stdin: strings.NewReader(memberDoc), Members: members, Namespace: "shop"}.Read()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(set.Fleets).To(BeEmpty())
	g.Expect(set.AttachedClusters).To(HaveLen(2))
	c := set.AttachedClusters[0]
	g.Expect(c.Spec.Kubeconfig.Name).To(Equal("c1"), "the file counts")
	g.Expect(c.Status.KubernetesVersion).To(Equal("v1.36.4"), "and the status of the live object")
	g.Expect(set.AttachedClusters[1].Name).To(Equal("c2"))
}

func TestFolders(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	write := func(name, text string) {
		g.Expect(os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755)).To(Succeed())
		g.Expect(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)).To(Succeed())
	}
	named := func(name string) string { return strings.Replace(fleetHead, "prod", name, 1) }
	write("b/fleet.yml", named("b"))
	write("a.yaml", named("a"))
	write("c.json", `{"apiVersion": "fleet.kurator.dev/v1alpha1", "kind": "Fleet", "metadata": {"name": "c"}}`)
	write("chart/templates/x.yaml", "{{ if }}\n")
	write(".git/x.yaml", named("hidden"))
	write("README.md", named("text"))
	write("k/kustomization.yaml", "resources: [fleet.yaml]\nnamePrefix: k-\n")
	write("k/fleet.yaml", named("x"))
	write("k/unused.yaml", named("unused"))

	set, err := Source{Paths: []string{dir}, Namespace: "default"}.Read()
	g.Expect(err).NotTo(HaveOccurred())
	var names []string
	for _, f := range set.Fleets {
		names = append(names, f.Name)
	}
	g.Expect(names).To(Equal([]string{"a", "b", "c", "k-x"}))
	g.Expect(set.Position("Fleet", "default", "k-x")).To(Equal(Position{File: filepath.Join(dir, "k/kustomization.yaml")}))
	g.Expect(Names([]string{dir}, "Fleet")).To(Equal(names))

	write("k/fleet.yaml", fleetHead+"spec: {x: 1}\n")
	_, err = Source{Paths: []string{dir, filepath.Join(dir, "nowhere")}, Namespace: "default"}.Read()
	g.Expect(errorsOf(err)).To(matchPrefixes([]string{
		"stat " + filepath.Join(dir, "nowhere"),
		filepath.Join(dir, "k/kustomization.yaml") + ": Fleet k-prod: spec.x: unknown field",
	}))
}

// Of a folder, what is not a file is refused and not waited for, and what is ours is not passed over for its encoding.
func TestFolderRefused(t *testing.T) {
	in16 := func(text string, order binary.AppendByteOrder) []byte {
		var out []byte
		for _, u := range utf16.Encode([]rune("\uFEFF" + text)) {
			out = order.AppendUint16(out, u)
		}
		return out
	}
	for _, tt := range []struct {
		name string
		make func(file string) error
		errs []string
	}{
		{"f.yaml", func(file string) error { return syscall.Mkfifo(file, 0o600) }, []string{"f.yaml: is not a regular file"}},
		{"kustomization.yaml", func(file string) error { return syscall.Mkfifo(file, 0o600) }, []string{"kustomization.yaml: is not a regular file"}},
		{"device.json", func(file string) error { return os.Symlink("/dev/zero", file) }, []string{"device.json: is not a regular file"}},
		{"dangling.yaml", func(file string) error { return os.Symlink("nowhere", file) }, []string{"dangling.yaml: is a link to nowhere, which is not there"}},
		{"loop.yaml", func(file string) error { return os.Symlink("loop.yaml", file) }, []string{"stat loop.yaml: "}},
		{"link.yaml", func(file string) error { return os.Symlink("good.yaml.txt", file) }, nil},
		{"little.yaml", func(file string) error { return os.WriteFile(file, in16(fleetHead, binary.LittleEndian), 0o600) }, []string{"little.yaml: is in UTF-16"}},
		{"big.yaml", func(file string) error { return os.WriteFile(file, in16(fleetHead, binary.BigEndian), 0o600) }, []string{"big.yaml: is in UTF-16"}},
		{"other.json", func(file string) error { return os.WriteFile(file, in16("{}", binary.LittleEndian), 0o600) }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			t.Chdir(t.TempDir())
			g.Expect(os.WriteFile("good.yaml.txt", []byte(fleetHead), 0o600)).To(Succeed())
			g.Expect(os.WriteFile("z.yaml", []byte(memberDoc), 0o600)).To(Succeed())
			g.Expect(tt.make(tt.name)).To(Succeed())
			set, err := Source{Paths: []string{"."}, Namespace: "default"}.Read()
			g.Expect(errorsOf(err)).To(matchPrefixes(tt.errs))
			g.Expect(set.AttachedClusters).To(HaveLen(1), "the rest is read")
		})
	}
}

// A pipe that is named itself is read: /dev/stdin, or what a shell makes of <(…).
func TestPipe(t *testing.T) {
	g := NewWithT(t)
	r, w, err := os.Pipe()
	g.Expect(err).NotTo(HaveOccurred())
	defer r.Close()
	_, err = w.WriteString(memberDoc)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.Close()).To(Succeed())
	set, err := Source{Paths: []string{fmt.Sprintf("/dev/fd/%d", r.Fd())}, Namespace: "default"}.Read()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(set.AttachedClusters).To(HaveLen(1))
}
