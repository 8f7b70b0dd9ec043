package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// hubServer answers lists as an API server does, and returns a kubeconfig for it.
func hubServer(t *testing.T, lists map[string][]map[string]any) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		items, ok := lists[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
			return
		}
		found := []map[string]any{}
		for _, item := range items {
			name := item["metadata"].(map[string]any)["name"].(string)
			if s := r.URL.Query().Get("fieldSelector"); s == "" || s == "metadata.name="+name {
				found = append(found, item)
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "v1", "kind": "List", "items": found})
	}))
	t.Cleanup(server.Close)
	return writeKubeconfig(t, server.URL)
}

func writeKubeconfig(t *testing.T, url string) string {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: hub, cluster: {server: %q}}]
contexts: [{name: hub, context: {cluster: hub, namespace: shop}}]
current-context: hub
`, url)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func hubObject(apiVersion, kind, name string, status map[string]any) map[string]any {
	return map[string]any{"apiVersion": apiVersion, "kind": kind, "status": status, "metadata": map[string]any{
		"name": name, "namespace": "shop", "creationTimestamp": time.Now().Add(-48 * time.Hour).Format(time.RFC3339),
		"managedFields": []any{map[string]any{"manager": "x"}},
	}}
}

func readyCondition(status, message string) []any {
	return []any{map[string]any{"type": "Ready", "status": status, "reason": "x", "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"}}
}

func testHub(t *testing.T) string {
	fleet := hubObject("fleet.kurator.dev/v1alpha1", "Fleet", "prod", map[string]any{
		"conditions": readyCondition("False", "6 of 10 members are ready"),
		"members": map[string]any{"total": 10, "ready": 6, "summary": "6/10", "notReadyOmitted": 3,
			"notReady": []any{map[string]any{"name": "edge-1", "kind": "AttachedCluster", "reason": "Unreachable", "message": "does not answer"}}},
	})
	attached := hubObject("cluster.kurator.dev/v1alpha1", "AttachedCluster", "edge-1", map[string]any{
		"conditions": readyCondition("True", "reachable"), "kubernetesVersion": "v1.36.4", "nodes": 3,
		"credentialsExpireAt": time.Now().Add(20*24*time.Hour + time.Hour).Format(time.RFC3339)})
	cluster := hubObject("cluster.kurator.dev/v1alpha1", "Cluster", "aws", nil)
	expired := hubObject("cluster.kurator.dev/v1alpha1", "Cluster", "old", map[string]any{
		"conditions": readyCondition("False", "credentials rejected"), "credentialsExpireAt": "2020-01-01T00:00:00Z"})
	rules := map[string]any{
		"conditions": append(readyCondition("True", "2/2 members ready"), map[string]any{"type": "Compliant", "status": "False", "reason": "RulesBroken", "message": "1/2 members are compliant", "lastTransitionTime": "2026-01-01T00:00:00Z"}),
		"members":    map[string]any{"total": 2, "ready": 2, "summary": "2/2"},
		"rules": []any{map[string]any{"name": "root", "type": "disable-root-user", "enforcement": "enforce", "ready": "True", "results": map[string]any{"pass": 7, "fail": 3}, "failingMembers": 1},
			map[string]any{"name": "bad", "type": "nosuch", "enforcement": "audit", "ready": "False", "message": "unknown type"}},
		"compliance": map[string]any{"summary": "1/2", "results": map[string]any{"fail": 3}, "membersOmitted": 1,
			"members": []any{map[string]any{"name": "edge-1", "results": map[string]any{"fail": 3, "pass": 2}, "rules": []any{"root"}},
				map[string]any{"name": "edge-2", "results": map[string]any{"pass": 5}, "message": "does not answer", "readAt": time.Now().Add(-3 * time.Hour).Format(time.RFC3339)}},
			"findings": []any{map[string]any{"member": "edge-1", "rule": "root", "result": "fail", "severity": "high", "resource": "Pod shop/a", "message": "runs as root"}}},
	}
	compliance := hubObject("cluster.kurator.dev/v1alpha1", "ClusterCompliance", "cis", rules)
	policy := hubObject("policy.kurator.dev/v1alpha1", "FleetSecurityPolicy", "base", nil)
	lists := map[string][]map[string]any{}
	for path, items := range map[string][]map[string]any{
		"fleet.kurator.dev/v1alpha1/%sfleets":                 {fleet},
		"cluster.kurator.dev/v1alpha1/%sattachedclusters":     {attached},
		"cluster.kurator.dev/v1alpha1/%sclusters":             {cluster, expired},
		"cluster.kurator.dev/v1alpha1/%sclustercompliances":   {compliance},
		"policy.kurator.dev/v1alpha1/%sfleetsecuritypolicies": {policy},
	} {
		lists["/apis/"+fmt.Sprintf(path, "")] = items
		lists["/apis/"+fmt.Sprintf(path, "namespaces/shop/")] = items
		lists["/apis/"+fmt.Sprintf(path, "namespaces/empty/")] = nil
	}
	return hubServer(t, lists)
}

func TestGet(t *testing.T) {
	kubeconfig := testHub(t)
	for _, tt := range []struct {
		name string
		args []string
		want string
		err  string
	}{
		{name: "fleets", args: []string{"fleets"}, want: `
NAME   READY   MEMBERS   AGE   STATUS
prod   False   6/10      2d    6 of 10 members are ready
`},
		{name: "wide", args: []string{"fleet", "prod", "-o", "wide"}, want: `
NAME   READY   MEMBERS   AGE   STATUS
prod   False   6/10      2d    6 of 10 members are ready

Members that are not well:
NAMESPACE   NAME   MEMBER       REASON        MESSAGE
shop        prod   edge-1       Unreachable   does not answer
shop        prod   and 3 more
`},
		{name: "all namespaces", args: []string{"fleets", "-A"}, want: `
NAMESPACE   NAME   READY   MEMBERS   AGE   STATUS
shop        prod   False   6/10      2d    6 of 10 members are ready
`},
		{name: "clusters", args: []string{"clusters", "-n", "shop"}, want: `
NAME     KIND              READY     VERSION   NODES    EXPIRES   AGE   STATUS
aws      Cluster           Unknown   <none>    <none>   <none>    2d    has no status yet: is the controller running?
edge-1   AttachedCluster   True      v1.36.4   3        20d       2d    reachable
old      Cluster           False     <none>    <none>   expired   2d    credentials rejected
`},
		{name: "policies", args: []string{"policies"}, want: `
NAME   READY     MEMBERS   COMPLIANT   FAILING   AGE   STATUS
base   Unknown   <none>    <none>      0         2d    has no status yet: is the controller running?
`},
		{name: "compliance", args: []string{"compliance", "-o", "wide"}, want: `
NAME   READY   MEMBERS   COMPLIANT   FAILING   AGE   STATUS
cis    True    2/2       1/2         3         2d    1/2 members are compliant

Rules:
NAMESPACE   NAME   RULE   TYPE                ENFORCEMENT   READY   PASS   FAIL   MEMBERS   MESSAGE
shop        cis    root   disable-root-user   enforce       True    7      3      1
shop        cis    bad    nosuch              audit         False   0      0      0         unknown type

Members that break rules, or could not be read:
NAMESPACE   NAME   MEMBER       FAIL   ERROR   PASS   READ     RULES    MESSAGE
shop        cis    edge-1       3      0       2      <now>    root
shop        cis    edge-2       0      0       5      3h ago   <none>   does not answer
shop        cis    and 1 more

The worst of what breaks rules:
NAMESPACE   NAME   MEMBER   RULE   RESULT   SEVERITY   RESOURCE     MESSAGE
shop        cis    edge-1   root   fail     high       Pod shop/a   runs as root
`},
		{name: "compliance of a member", args: []string{"clustercompliance", "cis", "--member", "edge-2"}, want: `
NAME   READY   MEMBERS   COMPLIANT   FAILING   AGE   STATUS
cis    True    2/2       1/2         3         2d    1/2 members are compliant

Rules:
NAMESPACE   NAME   RULE   TYPE                ENFORCEMENT   READY   PASS   FAIL   MEMBERS   MESSAGE
shop        cis    root   disable-root-user   enforce       True    7      3      1
shop        cis    bad    nosuch              audit         False   0      0      0         unknown type

Members that break rules, or could not be read:
NAMESPACE   NAME   MEMBER       FAIL   ERROR   PASS   READ     RULES    MESSAGE
shop        cis    edge-2       0      0       5      3h ago   <none>   does not answer
shop        cis    and 1 more
`},
		{name: "names", args: []string{"cluster", "-o", "name"}, want: `
cluster.cluster.kurator.dev/aws
attachedcluster.cluster.kurator.dev/edge-1
cluster.cluster.kurator.dev/old
`},
		{name: "empty", args: []string{"fleets", "-n", "empty"}, want: "\n", err: "there are no fleets in namespace empty"},
		{name: "no such name", args: []string{"fleets", "prd"}, want: "\n", err: "error: there is no prd among the fleets in namespace shop: did you mean prod?"},
		{name: "no CRD", args: []string{"apps"}, want: "\n", err: "does not know applications.apps.kurator.dev: is it the hub, and are Fleetwright's CRDs installed there?"},
		{name: "no such context", args: []string{"fleets", "--context", "x"}, want: "\n", err: `error: context "x" does not exist`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			r := fleetwright("", append([]string{"get", "--kubeconfig", kubeconfig}, tt.args...)...)
			g.Expect("\n" + trimLines(r.out)).To(Equal(tt.want))
			if tt.err == "" {
				g.Expect(r.err).To(BeEmpty())
				g.Expect(r.code).To(BeZero())
			} else {
				g.Expect(r.err).To(ContainSubstring(tt.err))
				g.Expect(r.code).To(Equal(map[bool]int{true: exitFailed}[strings.HasPrefix(r.err, "error: ")]))
			}
		})
	}
}

// trimLines takes away what fills up the last column.
func trimLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

func TestGetData(t *testing.T) {
	g := NewWithT(t)
	kubeconfig := testHub(t)
	r := fleetwright("", "get", "fleets", "prod", "-o", "yaml", "--kubeconfig", kubeconfig)
	g.Expect(r.out).To(ContainSubstring("\nkind: Fleet\n"))
	g.Expect(r.out).NotTo(ContainSubstring("managedFields"))
	r = fleetwright("", "get", "clusters", "-o", "json", "--kubeconfig", kubeconfig)
	var list struct{ Items []any }
	g.Expect(json.Unmarshal([]byte(r.out), &list)).To(Succeed())
	g.Expect(list.Items).To(HaveLen(3))
	g.Expect(fleetwright("", "__complete", "get", "--kubeconfig", kubeconfig, "clusters", "").out).To(HavePrefix("aws\nedge-1\nold\n"))
}

func TestGetWithoutCluster(t *testing.T) {
	g := NewWithT(t)
	r := fleetwright("", "get", "fleets")
	g.Expect(r.code).To(Equal(exitFailed))
	g.Expect(r.err).To(HavePrefix("error: no cluster is configured: "))
}
