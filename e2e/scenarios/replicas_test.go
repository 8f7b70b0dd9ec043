package scenarios

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	"github.com/fleetwright/fleetwright/e2e/harness"
)

// Baselines, must hold 5: whichever replica leads, or serves, with whatever disk, and of whichever version, Flux applies
// nothing again that has not changed. An environment of its own, as its replicas elect a leader.
func TestReplicas(t *testing.T) {
	r := beginReplicas(t)
	r.Expect(r.Members[0].CreateNamespace(r.ctx, r.ns)).To(Succeed())
	// A short lease makes for a short test.
	lease := []string{"--leader-election-lease-duration=10s", "--leader-election-renew-deadline=8s", "--leader-election-retry-period=1s"}
	start := func(name string, args ...string) *harness.Replica {
		t.Helper()
		replica, err := r.StartReplica(r.ctx, name, r.service, append(slices.Clone(lease), args...)...)
		r.Expect(err).NotTo(HaveOccurred())
		return replica
	}

	first := start("first")
	r.backend.Store(&first.Addr)
	r.deliver()
	was := r.written()
	artifact := r.artifact()
	file := strings.TrimPrefix(artifact.URL, "http://"+r.service)
	status, bytes := r.fetch(first, file)
	r.Expect(status).To(Equal(http.StatusOK))

	t.Log("a standby serves the same bytes, without being the leader, and what is not there is not there at either")
	standby := start("standby")
	r.Expect(r.leads(standby)()).To(BeFalse())
	served, same := r.fetch(standby, file)
	r.Expect(served).To(Equal(http.StatusOK))
	r.Expect(same).To(Equal(bytes))
	unknown := path.Join(path.Dir(file), strings.Repeat("0", 64)+".tar.gz")
	for _, replica := range []*harness.Replica{first, standby} {
		for _, absent := range []string{"/", "/externalartifact/", path.Dir(file), path.Dir(file) + "/", unknown, "/healthz"} {
			status, _ := r.fetch(replica, absent)
			r.Expect(status).To(Equal(http.StatusNotFound), "%s at %s", absent, replica.Name)
		}
	}

	t.Log("killed, another one leads, and changes nothing")
	first.Kill()
	r.backend.Store(&standby.Addr)
	r.Eventually(r.leads(standby)).Should(BeTrue())
	r.unchanged(was)

	t.Log("back with an empty disk, it has the file again before it is ready")
	r.Expect(os.RemoveAll(first.Storage)).To(Succeed())
	first = start("first")
	served, same = r.fetch(first, file)
	r.Expect(served).To(Equal(http.StatusOK))
	r.Expect(same).To(Equal(bytes))

	t.Log("all of them killed, with empty disks")
	first.Kill()
	standby.Kill()
	r.Expect(os.RemoveAll(first.Storage)).To(Succeed())
	r.Expect(os.RemoveAll(standby.Storage)).To(Succeed())
	alone := start("first")
	r.backend.Store(&alone.Addr)
	served, same = r.fetch(alone, file)
	r.Expect(served).To(Equal(http.StatusOK))
	r.Expect(same).To(Equal(bytes))
	r.Eventually(r.leads(alone)).Should(BeTrue())
	r.unchanged(was)
	r.Expect(r.artifact()).To(Equal(artifact))

	t.Log("a replica that makes other bytes of the same contents, as one of another version might, has not got the file")
	other := start("other", "--artifact-digest-algo=sha512")
	served, _ = r.fetch(other, file)
	r.Expect(served).To(Equal(http.StatusNotFound))
	r.backend.Store(&other.Addr) // the Service asks the wrong one
	child := r.child()
	r.Expect(harness.RequestReconcile(r.ctx, r.Hub.Client, child)).To(Succeed())
	r.Eventually(func() string { return condition(r.child().Status.Conditions, fluxmeta.ReadyCondition) }).Should(ContainSubstring("artifact not found, retrying"))
	r.Expect(r.onMember()).To(Equal(was["member"]), "what the member has stays")
	r.backend.Store(&alone.Addr)
	r.Eventually(func() string { return condition(r.child().Status.Conditions, fluxmeta.ReadyCondition) }).Should(HavePrefix("True "))
	r.settled()
	was = r.written()

	t.Log("it takes over: another digest and address, the same revision, and nothing is applied again")
	alone.Kill()
	r.backend.Store(&other.Addr)
	r.Eventually(func() string { return r.artifact().Digest }).Should(HavePrefix("sha512:"))
	r.Expect(r.artifact().Revision).To(Equal(artifact.Revision))
	r.Expect(r.artifact().URL).NotTo(Equal(artifact.URL))
	r.Eventually(r.leads(other)).Should(BeTrue())
	delete(was, "artifact")
	r.unchanged(was)
	asked := r.child()
	r.Expect(harness.RequestReconcile(r.ctx, r.Hub.Client, asked)).To(Succeed())
	r.Eventually(func(g Gomega) {
		now := r.child()
		g.Expect(now.Status.LastHandledReconcileAt).To(Equal(asked.Annotations[fluxmeta.ReconcileRequestAnnotation]))
		g.Expect(condition(now.Status.Conditions, fluxmeta.ReadyCondition)).To(HavePrefix("True "))
	}).Should(Succeed())
	r.Expect(r.onMember()).To(Equal(was["member"]))
}

// replicas is an environment with several replicas of the controller, and what stands for their Service.
type replicas struct {
	*WithT
	*harness.Env
	t       *testing.T
	ctx     context.Context
	ns      string
	service string
	backend atomic.Pointer[string] // who answers for the service
}

func beginReplicas(t *testing.T) *replicas {
	t.Helper()
	t.Parallel()
	r := &replicas{WithT: NewWithT(t), t: t, ctx: t.Context(), ns: "replicas"}
	r.SetDefaultEventuallyTimeout(timeout)
	r.SetDefaultConsistentlyDuration(quiet)
	r.SetDefaultConsistentlyPollingInterval(quiet / 10)
	var err error
	r.Env, err = harness.Start(t.Context(), harness.Options{Members: 1})
	r.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if t.Failed() {
			r.KeepLogs()
		}
		r.Expect(r.Close()).To(Succeed())
	})
	service := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(req *httputil.ProxyRequest) {
		req.SetURL(&url.URL{Scheme: "http", Host: *r.backend.Load()})
	}})
	t.Cleanup(service.Close)
	r.service = strings.TrimPrefix(service.URL, "http://")
	r.Expect(r.Hub.CreateNamespace(r.ctx, r.ns)).To(Succeed())
	return r
}

// deliver brings a ClusterConfig to the member and waits until nothing happens any more.
func (r *replicas) deliver() {
	r.t.Helper()
	s := &scenario{WithT: r.WithT, t: r.t, ctx: r.ctx, ns: r.ns}
	r.Expect(r.Hub.Client.Create(r.ctx, r.Members[0].KubeconfigSecret(r.ns, "one-kubeconfig"))).To(Succeed())
	for _, o := range s.decode(attachedCluster("one") + "\n---\n" + fleet("prod", "one") + "\n---\n" + baselineOf("base", "prod", "10")) {
		r.Expect(r.Hub.Client.Apply(r.ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("kubectl"))).To(Succeed())
	}
	r.Eventually(func() string { return condition(r.config().Status.Conditions, fluxmeta.ReadyCondition) }).Should(HavePrefix("True "))
	r.settled()
}

func (r *replicas) get(o client.Object, name string) {
	r.t.Helper()
	r.Expect(r.Hub.Client.Get(r.ctx, client.ObjectKey{Namespace: r.ns, Name: name}, o)).To(Succeed())
}

func (r *replicas) config() *clusterv1.ClusterConfig {
	c := &clusterv1.ClusterConfig{}
	r.get(c, "base")
	return c
}

func (r *replicas) child() *kustomizev1.Kustomization {
	k := &kustomizev1.Kustomization{}
	r.get(k, "baseline-base-objects-one")
	return k
}

func (r *replicas) artifact() *fluxmeta.Artifact {
	a := &sourcev1.ExternalArtifact{}
	r.get(a, "baseline-base")
	r.Expect(a.Status.Artifact).NotTo(BeNil())
	return a.Status.Artifact
}

// onMember returns the resourceVersion of what the member has.
func (r *replicas) onMember() string {
	q := quota(r.Members[0], r.ns, "default")
	r.Expect(r.Members[0].Client.Get(r.ctx, client.ObjectKeyFromObject(q), q)).To(Succeed())
	return q.ResourceVersion
}

// written tells whether anything was written, on the hub or on the member.
func (r *replicas) written() map[string]string {
	artifact, app := &sourcev1.ExternalArtifact{}, &appsv1.Application{}
	r.get(artifact, "baseline-base")
	r.get(app, "baseline-base")
	return map[string]string{
		"artifact": artifact.ResourceVersion, "application": app.ResourceVersion, "config": r.config().ResourceVersion,
		"child": r.child().ResourceVersion, "member": r.onMember(),
	}
}

// settled waits until nothing is written any more.
func (r *replicas) settled() {
	r.t.Helper()
	var last map[string]string
	r.Eventually(func() bool {
		before := last
		last = r.written()
		return maps.Equal(before, last)
	}, timeout, quiet).Should(BeTrue())
}

// unchanged sees that nothing is written but what is not among these.
func (r *replicas) unchanged(was map[string]string) {
	r.t.Helper()
	r.Consistently(func() map[string]string {
		now := r.written()
		maps.DeleteFunc(now, func(key, _ string) bool { return was[key] == "" })
		return now
	}).Should(Equal(was))
}

// fetch asks one replica for a file.
func (r *replicas) fetch(replica *harness.Replica, file string) (int, string) {
	r.t.Helper()
	return r.http("http://" + replica.Addr + file)
}

func (r *replicas) http(address string) (int, string) {
	r.t.Helper()
	resp, err := http.Get(address)
	r.Expect(err).NotTo(HaveOccurred())
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	r.Expect(err).NotTo(HaveOccurred())
	return resp.StatusCode, string(body)
}

var reconciled = regexp.MustCompile(`(?m)^controller_runtime_reconcile_total\{controller="clusterconfig",result="success"\} [1-9]`)

// leads says whether a replica is the leader and has looked at the ClusterConfig since.
func (r *replicas) leads(replica *harness.Replica) func() bool {
	return func() bool {
		_, text := r.http(replica.MetricsURL)
		return reconciled.MatchString(text)
	}
}

// baselineOf returns a ClusterConfig with a quota of Pods in the scenario's namespace.
func baselineOf(name, fleet, pods string) string {
	return fmt.Sprintf(`
apiVersion: cluster.kurator.dev/v1alpha1
kind: ClusterConfig
metadata: {name: %s}
spec:
  target: {fleet: %s}
  resourceQuotas:
  - {name: default, namespace: $NAMESPACE, hard: {pods: '%s'}}
`, name, fleet, pods)
}
