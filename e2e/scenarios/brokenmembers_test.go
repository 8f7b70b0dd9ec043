package scenarios

import (
	"context"
	"fmt"
	"net"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/e2e/harness"
)

// silence listens on loopback, accepts and never answers, as a hung machine does.
func silence(t *testing.T) (address string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns = append(conns, conn) // kept, so that nothing closes it
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
	return l.Addr().String()
}

// edited returns a member's kubeconfig after a change.
func (s *scenario) edited(member *harness.Cluster, edit func(*clientcmdapi.Config)) []byte {
	s.t.Helper()
	config, err := clientcmd.Load(member.Kubeconfig)
	s.Expect(err).NotTo(HaveOccurred())
	edit(config)
	out, err := clientcmd.Write(*config)
	s.Expect(err).NotTo(HaveOccurred())
	return out
}

// Must hold 3: one member never stops another. Of ten members, four break in four ways; six are served, and what the
// four have stays where it is.
func TestBrokenMembers(t *testing.T) {
	s := begin(t)
	member := func(i int) *harness.Cluster { return env.Members[i%2] }
	name := func(i int) string { return fmt.Sprintf("m%d", i) }

	t.Log("all ten are well")
	s.push("shop", files{"config.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: shop}\ndata: {version: one}\n"})
	var all []string
	for i := range 10 {
		all = append(all, name(i))
		s.Expect(member(i).CreateNamespace(s.ctx, s.ns+"-"+name(i))).To(Succeed())
		s.attach(name(i), member(i), "site=s"+name(i))
	}
	s.apply(fleet("prod", all...))
	app := `
apiVersion: apps.kurator.dev/v1alpha1
kind: Application
metadata: {name: shop}
spec:
  source: {gitRepository: {url: $GIT/shop, interval: 1h, ref: {branch: main}}}
  destination: {fleet: prod}
  syncPolicies:
  - name: app
    kustomization:
      targetNamespace: $NAMESPACE-<< .cluster.name >>
      interval: 1h
      patches:
      - target: {kind: ConfigMap}
        patch: |
          - {op: add, path: /data/site, value: first << .cluster.labels.site >>}
`
	s.apply(app)
	on := func(i int) func() (map[string]string, error) {
		return s.data(member(i), s.ns+"-"+name(i), "shop")
	}
	for i := range 10 {
		s.Eventually(on(i)).Should(HaveKeyWithValue("site", "first s"+name(i)))
	}
	s.ready("shop", "10/10")
	had := []map[string]types.UID{s.applied(member(0))(), s.applied(member(1))()}
	children := s.kustomizations()
	s.Expect(children).To(HaveLen(10))

	t.Log("m2 is lost from the hub, m3 logs in by a program, m4 does not answer, m5 lacks a fact")
	s.restartController(func() {
		// While nobody looks, as a restore from a backup would: deleted in the usual way, it would be a member that leaves.
		s.merge(&clusterv1.AttachedCluster{ObjectMeta: s.named("m2")}, `{"metadata":{"finalizers":null}}`)
		s.delete(&clusterv1.AttachedCluster{ObjectMeta: s.named("m2")})
	})
	s.kubeconfig("m3", s.edited(member(3), func(c *clientcmdapi.Config) {
		c.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
			APIVersion: "client.authentication.k8s.io/v1", Command: "login", InteractiveMode: clientcmdapi.NeverExecInteractiveMode}}
	}))
	quietAddress := silence(t)
	s.kubeconfig("m4", s.edited(member(4), func(c *clientcmdapi.Config) {
		c.Clusters[member(4).Name].Server = "https://" + quietAddress
	}))
	s.merge(&clusterv1.AttachedCluster{ObjectMeta: s.named("m5")}, `{"metadata":{"labels":{"site":null}}}`)
	s.Eventually(s.health("m3")).Should(HavePrefix("False KubeconfigExec:"))
	s.Eventually(s.health("m4")).Should(HavePrefix("False Unreachable: https://" + quietAddress + " gave no answer"))
	broken := map[int]string{2: "NotFound", 3: "KubeconfigExec", 4: "Unreachable", 5: "RenderFailed"}
	reasons := map[string]string{}
	for i, reason := range broken {
		reasons[name(i)] = reason
	}

	t.Log("a change reaches the other six")
	s.apply(replace(app, "value: first", "value: second"))
	for i := range 10 {
		if _, ok := broken[i]; !ok {
			s.Eventually(on(i)).Should(HaveKeyWithValue("site", "second s"+name(i)))
		}
	}
	status := s.reports("shop", "False", "6/10").Status
	s.Expect(notReady(status.Members)).To(Equal(reasons))
	for i, reason := range broken {
		s.Expect(condition(status.Conditions, "Ready")).To(ContainSubstring("%s (%s)", name(i), reason))
	}
	s.Expect(memberMessage(status.Members, "m5")).To(ContainSubstring("site"))
	fleetStatus := get(s, &fleetv1.Fleet{}, "prod").Status.Members
	s.Expect(notReady(fleetStatus)).To(Equal(without(reasons, "m5")), "what a fact is for is the Application's matter")

	t.Log("nothing of the four was touched or deleted")
	s.Expect(status.Prune).To(BeNil())
	s.Consistently(func(g Gomega) {
		now := s.kustomizations()
		for i := range broken {
			child := "shop-app-" + name(i)
			g.Expect(now).To(HaveKey(child))
			g.Expect(now[child].UID).To(Equal(children[child].UID))
			g.Expect(now[child].Spec).To(Equal(children[child].Spec))
			g.Expect(on(i)()).To(HaveKeyWithValue("site", "first s"+name(i)))
		}
		g.Expect(s.applied(member(0))()).To(Equal(had[0]))
		g.Expect(s.applied(member(1))()).To(Equal(had[1]))
	}).Should(Succeed())

	t.Log("mended, they get what they missed")
	s.attach("m2", member(2), "site=sm2")
	s.kubeconfig("m3", member(3).Kubeconfig)
	s.kubeconfig("m4", member(4).Kubeconfig)
	s.merge(&clusterv1.AttachedCluster{ObjectMeta: s.named("m5")}, `{"metadata":{"labels":{"site":"sm5"}}}`)
	for i := range broken {
		s.Eventually(on(i)).Should(HaveKeyWithValue("site", "second s"+name(i)))
	}
	s.ready("shop", "10/10")
	s.Expect(s.applied(member(0))()).To(Equal(had[0]))
	s.Expect(s.applied(member(1))()).To(Equal(had[1]))
}
