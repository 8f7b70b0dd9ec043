package controllers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	. "github.com/onsi/gomega"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

// memberStory is an AttachedCluster c1, and a reconciler whose clock and passes are the test's to make.
type memberStory struct {
	*hub
	*AttachedClusterReconciler
	events *record.FakeRecorder
	clock  time.Time
}

func newMemberStory(t *testing.T) *memberStory {
	s := &memberStory{hub: newHub(t), clock: time.Now()}
	s.restart()
	return s
}

// restart makes a reconciler that remembers nothing.
func (s *memberStory) restart() {
	s.events = record.NewFakeRecorder(100)
	s.AttachedClusterReconciler = &AttachedClusterReconciler{MemberReconciler{
		Client: s.Client, APIReader: s.Client, EventRecorder: s.events, Now: func() time.Time { return s.clock },
	}}
}

func (s *memberStory) request() ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Namespace: s.ns, Name: "c1"}}
}

// pass makes one pass, and returns the AttachedCluster after it.
func (s *memberStory) pass() *clusterv1.AttachedCluster {
	s.t.Helper()
	_, err := s.Reconcile(s.t.Context(), s.request())
	s.Expect(err).NotTo(HaveOccurred())
	return s.c1()
}

// later makes a pass after the interval.
func (s *memberStory) later() *clusterv1.AttachedCluster {
	s.t.Helper()
	s.clock = s.clock.Add(10 * time.Minute)
	return s.pass()
}

func (s *memberStory) c1() *clusterv1.AttachedCluster {
	s.t.Helper()
	c := &clusterv1.AttachedCluster{}
	s.get(c, "c1")
	return c
}

func (s *memberStory) event() string {
	select {
	case e := <-s.events.Events:
		return e
	default:
		return ""
	}
}

func (s *memberStory) annotate(key, value string) {
	s.t.Helper()
	patch(s.hub, s.c1(), fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, key, value))
}

// secret writes a Secret with a kubeconfig.
func (h *hub) secret(name, kubeconfig string) {
	h.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: h.ns}, StringData: map[string]string{"value": kubeconfig}}
	err := h.Create(h.t.Context(), secret)
	if apierrors.IsAlreadyExists(err) {
		secret.ResourceVersion = ""
		err = h.Update(h.t.Context(), secret)
	}
	h.Expect(err).NotTo(HaveOccurred())
}

// attachTo makes an AttachedCluster with a kubeconfig.
func (h *hub) attachTo(name, kubeconfig string) {
	h.t.Helper()
	h.secret(name+"-kubeconfig", kubeconfig)
	h.apply(fmt.Sprintf("apiVersion: cluster.kurator.dev/v1alpha1\nkind: AttachedCluster\nmetadata: {name: %s}\nspec: {kubeconfig: {name: %s-kubeconfig}}", name, name))
}

// readyOf returns the Ready condition of a member as one line.
func readyOf(o conditions.Getter) string {
	c := conditions.Get(o, meta.ReadyCondition)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
}

func healthMetric(h *hub, kind, name string) float64 {
	clusterHealth.mu.Lock()
	defer clusterHealth.mu.Unlock()
	if clusterHealth.ready[healthKey{kind, types.NamespacedName{Namespace: h.ns, Name: name}}] {
		return 1
	}
	return 0
}

func TestAttachedClusterReached(t *testing.T) {
	s := newMemberStory(t)
	m := newFakeMember(t)
	s.attachTo("c1", m.kubeconfig("s3cret"))

	c := s.pass()
	s.Expect(readyOf(c)).To(Equal("True Reached: reached: Kubernetes v1.36.3"))
	s.Expect(c.Status.Conditions).To(HaveLen(1))
	s.Expect(c.Status.Ready).To(BeTrue())
	s.Expect(c.Status.ObservedGeneration).To(Equal(c.Generation))
	s.Expect(c.Status.KubernetesVersion).To(Equal("v1.36.3"))
	s.Expect(c.Status.Nodes).To(HaveValue(BeEquivalentTo(3)))
	s.Expect(c.Status.ClusterID).To(Equal("id-1"))
	s.Expect(c.Status.CredentialsExpireAt).To(BeNil())
	s.Expect(c.Finalizers).To(ConsistOf(memberFinalizer))
	s.Expect(s.event()).To(Equal("Normal Reached reached: Kubernetes v1.36.3"))
	s.Expect(healthMetric(s.hub, "AttachedCluster", "c1")).To(Equal(1.0))

	// Until it is due, nothing asks the member.
	result, err := s.Reconcile(t.Context(), s.request())
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(result.RequeueAfter).To(And(BeNumerically(">", 4*time.Minute), BeNumerically("<=", 6*time.Minute)))
	s.Expect(m.probes()).To(Equal(1))

	// A look that sees nothing new writes nothing.
	for range 5 {
		s.Expect(s.later().ResourceVersion).To(Equal(c.ResourceVersion))
	}
	s.Expect(m.probes()).To(Equal(6))
	s.Expect(s.event()).To(BeEmpty())

	m.set(func(m *fakeMember) { m.nodes, m.version = 4, "v1.36.4" })
	c = s.later()
	s.Expect(c.Status.Nodes).To(HaveValue(BeEquivalentTo(4)))
	s.Expect(readyOf(c)).To(Equal("True Reached: reached: Kubernetes v1.36.4"))
	s.Expect(s.event()).To(BeEmpty(), "it was reached before")
}

func TestAttachedClusterTriggers(t *testing.T) {
	s := newMemberStory(t)
	m := newFakeMember(t)
	s.attachTo("c1", m.kubeconfig("s3cret"))
	s.pass()
	probes := 1
	once := func(what string) {
		t.Helper()
		probes++
		for range 3 {
			s.pass()
		}
		s.Expect(m.probes()).To(Equal(probes), what)
	}

	patch(s.hub, s.c1(), `{"spec":{"healthCheck":{"interval":"1h"}}}`)
	once("a new spec")
	s.annotate(meta.ReconcileRequestAnnotation, `"now"`)
	once("a reconcile request")
	s.Expect(s.c1().Status.LastHandledReconcileAt).To(Equal("now"))
	s.annotate(fleetv1.ReconcileAnnotation, `"force"`)
	once("Kurator's reconcile request")
	s.annotate(fleetv1.ReconcileAnnotation, `null`)
	s.pass()
	s.annotate(fleetv1.ReconcileAnnotation, `"force"`)
	once("Kurator's reconcile request, set again")
	s.secret("c1-kubeconfig", m.kubeconfig("s3cret")+"# rotated\n")
	once("a new kubeconfig")
	s.clock = s.clock.Add(30 * time.Minute)
	s.pass()
	s.Expect(m.probes()).To(Equal(probes), "half of its interval of an hour")
	s.clock = s.clock.Add(40 * time.Minute)
	once("its interval")
}

func TestAttachedClusterLost(t *testing.T) {
	s := newMemberStory(t)
	m := newFakeMember(t)
	s.attachTo("c1", m.kubeconfig("s3cret"))
	s.pass()
	s.event()

	m.set(func(m *fakeMember) { m.status[versionPath] = 503 })
	c := s.later()
	s.Expect(readyOf(c)).To(HavePrefix("False Unhealthy: " + m.URL + " answers /version with 503"))
	s.Expect(conditions.IsReconciling(c)).To(BeTrue())
	s.Expect(conditions.IsStalled(c)).To(BeFalse())
	s.Expect(c.Status.Ready).To(BeFalse())
	s.Expect(c.Status.KubernetesVersion).To(Equal("v1.36.3"), "what was seen before stays")
	s.Expect(c.Status.Nodes).To(HaveValue(BeEquivalentTo(3)))
	s.Expect(s.event()).To(HavePrefix("Warning Unhealthy "))
	s.Expect(healthMetric(s.hub, "AttachedCluster", "c1")).To(BeZero())
	for range 3 {
		s.Expect(s.later().ResourceVersion).To(Equal(c.ResourceVersion))
	}

	m.set(func(m *fakeMember) { delete(m.status, versionPath) })
	c = s.later()
	s.Expect(readyOf(c)).To(HavePrefix("True Reached: "))
	s.Expect(c.Status.Conditions).To(HaveLen(1))
	s.Expect(s.event()).To(HavePrefix("Normal Reached "))
}

func TestAttachedClusterRotatedToken(t *testing.T) {
	s := newMemberStory(t)
	m := newFakeMember(t)
	s.attachTo("c1", m.kubeconfig("s3cret"))
	s.pass()

	m.set(func(m *fakeMember) { m.token = "rotated" })
	s.Expect(readyOf(s.later())).To(HavePrefix("False CredentialsRejected: "))
	s.secret("c1-kubeconfig", m.kubeconfig("rotated"))
	s.Expect(readyOf(s.pass())).To(HavePrefix("True Reached: "))
}

func TestAttachedClusterChanged(t *testing.T) {
	s := newMemberStory(t)
	m := newFakeMember(t)
	s.attachTo("c1", m.kubeconfig("s3cret"))
	s.pass()

	m.set(func(m *fakeMember) { m.clusterID = "id-2" })
	c := s.later()
	s.Expect(readyOf(c)).To(Equal("False ClusterChanged: another cluster answers than the one this AttachedCluster was made for: " +
		"correct key value of Secret c1-kubeconfig, or, if this is meant, delete and re-create the AttachedCluster"))
	s.Expect(conditions.IsStalled(c)).To(BeTrue())
	s.Expect(c.Status.ClusterID).To(Equal("id-1"))

	// Credentials that may not read the identity any more do not make it another cluster's.
	m.set(func(m *fakeMember) { m.status[clusterPath] = 403 })
	c = s.later()
	s.Expect(readyOf(c)).To(HavePrefix("True Reached: "))
	s.Expect(c.Status.ClusterID).To(Equal("id-1"))
}

func TestAttachedClusterRefused(t *testing.T) {
	s := newMemberStory(t)
	m := newFakeMember(t)
	s.attachTo("c1", m.kubeconfig("s3cret"))
	s.Expect(s.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "c1-kubeconfig"}})).To(Succeed())

	c := s.pass()
	s.Expect(readyOf(c)).To(Equal("False KubeconfigNotFound: there is no Secret c1-kubeconfig in namespace " + s.ns + ": create it with the kubeconfig"))
	s.Expect(conditions.IsStalled(c)).To(BeTrue())
	s.Expect(conditions.IsReconciling(c)).To(BeFalse())
	s.Expect(s.event()).To(HavePrefix("Warning KubeconfigNotFound "))

	s.secret("c1-kubeconfig", strings.Replace(m.kubeconfig("s3cret"), "{token: s3cret}", "{token: s3cret, as: admin}", 1))
	c = s.pass()
	s.Expect(readyOf(c)).To(HavePrefix("False KubeconfigImpersonates: key value of Secret c1-kubeconfig: "))
	s.Expect(m.probes()).To(BeZero())
	s.Expect(s.later().ResourceVersion).To(Equal(c.ResourceVersion))

	// Mended while the controller was away.
	s.secret("c1-kubeconfig", m.kubeconfig("s3cret"))
	s.restart()
	c = s.pass()
	s.Expect(readyOf(c)).To(HavePrefix("True Reached: "))
	s.Expect(c.Status.Conditions).To(HaveLen(1))
}

func TestAttachedClusterCredentialsExpire(t *testing.T) {
	s := newMemberStory(t)
	member := newCertificate(t, "c1", time.Now().Add(365*24*time.Hour))
	user := newCertificate(t, "flux", time.Now().Add(30*24*time.Hour))
	config := member.serverConfig()
	config.ClientAuth, config.ClientCAs = tls.RequireAnyClientCert, x509.NewCertPool()
	probes := 0
	srv := serverWith(t, config, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == versionPath {
			probes++
			_, _ = w.Write([]byte(`{"gitVersion":"v1.36.3"}`))
			return
		}
		w.WriteHeader(http.StatusForbidden)
	}))
	s.attachTo("c1", strings.Replace(kubeconfigFor(srv.URL, member.certPEM, user.user()), "server:", "tls-server-name: c1, server:", 1))

	c := s.pass()
	s.Expect(readyOf(c)).To(Equal("True Reached: reached: Kubernetes v1.36.3"))
	s.Expect(c.Status.CredentialsExpireAt.Time).To(BeTemporally("==", user.cert.NotAfter))
	s.Expect(c.Status.Nodes).To(BeNil())
	s.Expect(c.Status.ClusterID).To(BeEmpty())
	s.Expect(s.event()).To(HavePrefix("Normal Reached "))

	s.clock = user.cert.NotAfter.Add(-6 * 24 * time.Hour)
	c = s.pass()
	s.Expect(readyOf(c)).To(Equal("True Reached: reached: Kubernetes v1.36.3; the client certificate expires soon (see status.credentialsExpireAt): write a new kubeconfig"))
	s.Expect(s.event()).To(HavePrefix("Warning CredentialsExpireSoon "))
	s.restart()
	s.pass()
	s.Expect(s.later().ResourceVersion).To(Equal(c.ResourceVersion))
	s.Expect(s.event()).To(BeEmpty(), "it is said once, whether or not the controller restarts")

	before := probes
	s.clock = user.cert.NotAfter.Add(time.Minute)
	c = s.later()
	s.Expect(readyOf(c)).To(Equal("False CredentialsExpired: key value of Secret c1-kubeconfig: the client certificate has expired (see status.credentialsExpireAt): write a new kubeconfig"))
	s.Expect(probes).To(Equal(before))
	s.Expect(s.event()).To(HavePrefix("Warning CredentialsExpired "))
}

func TestAttachedClusterRestart(t *testing.T) {
	s := newMemberStory(t)
	m := newFakeMember(t)
	s.attachTo("c1", m.kubeconfig("s3cret"))
	s.annotate(fleetv1.ReconcileAnnotation, `"force"`)
	c := s.pass()

	dues := map[time.Duration]bool{}
	for range 20 {
		s.restart()
		result, err := s.Reconcile(t.Context(), s.request())
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(result.RequeueAfter).To(And(BeNumerically(">", 0), BeNumerically("<=", defaultProbeInterval)))
		dues[result.RequeueAfter] = true
	}
	s.Expect(m.probes()).To(Equal(1))
	s.Expect(len(dues)).To(BeNumerically(">", 10), "they are spread over the interval")
	s.Expect(s.c1().ResourceVersion).To(Equal(c.ResourceVersion))
	s.Expect(healthMetric(s.hub, "AttachedCluster", "c1")).To(Equal(1.0), "it is known without a look")

	s.later()
	s.Expect(m.probes()).To(Equal(2))
}

func TestAttachedClusterPaused(t *testing.T) {
	s := newMemberStory(t)
	m := newFakeMember(t)
	s.attachTo("c1", m.kubeconfig("s3cret"))
	s.pass()

	s.annotate(fleetv1.PauseAnnotation, `"true"`)
	c := s.later()
	s.Expect(conditions.GetMessage(c, suspendedCondition)).To(Equal("paused: not looked at until the annotation kurator.dev/pause is taken back"))
	s.Expect(readyOf(c)).To(Equal("True Reached: reached: Kubernetes v1.36.3"))
	s.Expect(s.later().ResourceVersion).To(Equal(c.ResourceVersion))
	s.Expect(m.probes()).To(Equal(1))

	s.restart()
	s.annotate(fleetv1.PauseAnnotation, `null`)
	c = s.pass()
	s.Expect(conditions.Has(c, suspendedCondition)).To(BeFalse())
	s.Expect(m.probes()).To(Equal(2), "it is looked at at once")
}

func TestAttachedClusterOfAnotherShard(t *testing.T) {
	s := newMemberStory(t)
	m := newFakeMember(t)
	s.attachTo("c1", m.kubeconfig("s3cret"))
	s.Shard = labels.SelectorFromSet(labels.Set{"shard": "a"})
	s.Expect(s.pass().Finalizers).To(BeEmpty())
	patch(s.hub, s.c1(), `{"metadata":{"labels":{"shard":"a"}}}`)
	s.Expect(readyOf(s.pass())).To(HavePrefix("True Reached: "))
}

func TestAttachedClusterWhenTheControllerStops(t *testing.T) {
	s := newMemberStory(t)
	arrived := make(chan struct{})
	srv := serverWith(t, nil, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	}))
	s.attachTo("c1", kubeconfigFor(srv.URL, nil, "token: t"))
	s.KubeConfigOptions.InsecureTLS = true
	s.secret("c1-kubeconfig", strings.Replace(kubeconfigFor(srv.URL, nil, "token: t"), "server:", "insecure-skip-tls-verify: true, server:", 1))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	_, err := s.Reconcile(ctx, s.request())
	s.Expect(err).To(MatchError(context.Canceled))
	s.Expect(readyOf(s.c1())).To(BeEmpty(), "that says nothing about the member")
}

// members starts the member controllers as a new process would. They end with the test.
type members struct {
	attached *AttachedClusterReconciler
	clusters *ClusterReconciler
	ahead    atomic.Int64 // how far the clock is ahead
}

func (h *hub) startMembers(concurrent int) *members {
	h.t.Helper()
	cfg := rest.CopyConfig(testConfig)
	cfg.QPS = -1
	cfg.Wrap(h.requests.wrap)
	opts := CacheOptions()
	opts.DefaultNamespaces = map[string]cache.Config{h.ns: {}}
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: hubScheme, Cache: opts,
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	h.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	started := &members{}
	shared := func() MemberReconciler {
		return MemberReconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), EventRecorder: record.NewFakeRecorder(10000),
			Now: func() time.Time { return time.Now().Add(time.Duration(started.ahead.Load())) }}
	}
	started.attached, started.clusters = &AttachedClusterReconciler{shared()}, &ClusterReconciler{shared()}
	h.Expect(IndexChildren(ctx, mgr)).To(Succeed())
	h.Expect(started.attached.SetupWithManager(ctx, mgr, controller.Options{MaxConcurrentReconciles: concurrent})).To(Succeed())
	h.Expect(started.clusters.SetupWithManager(ctx, mgr, controller.Options{MaxConcurrentReconciles: concurrent})).To(Succeed())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := mgr.Start(ctx); err != nil {
			h.t.Errorf("manager: %v", err)
		}
	}()
	var once sync.Once
	h.stop = func() { once.Do(func() { cancel(); <-done }) }
	h.t.Cleanup(h.stop)
	return started
}

// attached returns the Ready condition of an AttachedCluster as one line.
func (h *hub) attached(name string) func() string {
	return func() string {
		c := &clusterv1.AttachedCluster{}
		h.get(c, name)
		return readyOf(c)
	}
}

func TestAttachedClusterWatchesItsSecret(t *testing.T) {
	h := newHub(t)
	m := newFakeMember(t)
	h.attachTo("c1", m.kubeconfig("old"))
	h.startMembers(1)
	h.Eventually(h.attached("c1")).Should(HavePrefix("False CredentialsRejected: "))
	h.secret("c1-kubeconfig", m.kubeconfig("s3cret"))
	h.Eventually(h.attached("c1")).Should(HavePrefix("True Reached: "))
	h.Consistently(m.probes).Should(Equal(2), "writing its status is no reason to look again")
}

func TestAttachedClusterStandsStill(t *testing.T) {
	h := newHub(t)
	m := newFakeMember(t)
	h.attachTo("c1", m.kubeconfig("s3cret"))
	started := h.startMembers(1)
	h.Eventually(h.attached("c1")).Should(HavePrefix("True Reached: "))

	key := types.NamespacedName{Namespace: h.ns, Name: "c1"}
	h.Eventually(func(g Gomega) { // what was written is in the cache, and the pass that wrote it has ended
		c := &clusterv1.AttachedCluster{}
		g.Expect(started.attached.Get(t.Context(), key, c)).To(Succeed())
		g.Expect(c.Status.Ready).To(BeTrue())
		_, ok := started.attached.looks.last(key)
		g.Expect(ok).To(BeTrue())
	}).Should(Succeed())

	h.requests.reset()
	for range 3 {
		started.ahead.Add(int64(10 * time.Minute))
		_, err := started.attached.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
		h.Expect(err).NotTo(HaveOccurred())
	}
	h.Expect(m.probes()).To(Equal(4))
	h.Expect(h.requests.counted()).To(BeEmpty())
}

func TestAttachedClusterDeadDelaysNobody(t *testing.T) {
	h := newHub(t)
	m := newFakeMember(t)
	dead := listenDead(t)
	for i := range 2 {
		h.attachTo(fmt.Sprintf("a-dead-%d", i), kubeconfigFor("https://"+dead, nil, "token: t"))
	}
	for i := range 5 {
		h.attachTo(fmt.Sprintf("good-%d", i), m.kubeconfig("s3cret"))
	}
	h.startMembers(3)
	for i := range 5 {
		h.Eventually(h.attached(fmt.Sprintf("good-%d", i)), defaultProbeTimeout-2*time.Second).Should(HavePrefix("True Reached: "))
	}
	h.Expect(h.attached("a-dead-0")()).To(BeEmpty(), "it still has time to answer")
}

func TestAttachedClusterStaysWhileInUse(t *testing.T) {
	h := newHub(t)
	m := newFakeMember(t)
	h.attachTo("c1", m.kubeconfig("s3cret"))
	h.startMembers(1)
	h.Eventually(h.attached("c1")).Should(HavePrefix("True Reached: "))

	child := func(name, kind string) *kustomizev1.Kustomization {
		return &kustomizev1.Kustomization{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: h.ns, Labels: map[string]string{fleetv1.MemberLabel: "c1", fleetv1.MemberKindLabel: kind},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps.kurator.dev/v1alpha1", Kind: "Application", Name: name, UID: "u", Controller: new(true)}}},
			Spec: kustomizev1.KustomizationSpec{Interval: metav1.Duration{Duration: time.Minute}, Prune: true,
				SourceRef: kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "x"}},
		}
	}
	web, db, others := child("web", "AttachedCluster"), child("db", "AttachedCluster"), child("others", "Cluster")
	for _, k := range []client.Object{web, db, others} {
		h.Expect(h.Create(t.Context(), k)).To(Succeed())
	}
	c1 := &clusterv1.AttachedCluster{ObjectMeta: metav1.ObjectMeta{Name: "c1", Namespace: h.ns}}
	h.Expect(h.Delete(t.Context(), c1)).To(Succeed())
	const see = " to end: see kubectl get kustomizations,helmreleases -l fleet.kurator.dev/member=c1"
	h.Eventually(h.attached("c1")).Should(Equal("False Terminating: waiting for 2 objects of Application db, Application web" + see))

	h.Expect(h.Delete(t.Context(), db)).To(Succeed())
	h.Eventually(h.attached("c1")).Should(Equal("False Terminating: waiting for 1 objects of Application web" + see))
	h.Expect(h.Delete(t.Context(), web)).To(Succeed())
	h.Eventually(func() bool { return apierrors.IsNotFound(h.Get(t.Context(), client.ObjectKeyFromObject(c1), c1)) }).Should(BeTrue())
	h.Eventually(func() (string, error) {
		text, err := testutil.CollectAndFormat(clusterHealth, expfmt.TypeTextPlain)
		return string(text), err
	}).ShouldNot(ContainSubstring(h.ns))
}

// Who waits for a prune that is over budget says so, and how to allow it.
func TestAttachedClusterSaysThatAPruneIsBlocked(t *testing.T) {
	h := newHub(t)
	for _, name := range []string{"c1", "c2", "c3"} {
		m := newFakeMember(t)
		m.clusterID = name
		h.attachTo(name, m.kubeconfig("s3cret"))
	}
	h.fleet("prod", "c1", "c2", "c3")
	h.apply(web)
	h.startMembers(1)
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(3))
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.ready("web", metav1.ConditionTrue, "3/3")

	const see = "False Terminating: waiting for 1 objects of Application web to end: see kubectl get kustomizations,helmreleases -l fleet.kurator.dev/member="
	patch(h, h.app("web"), `{"metadata":{"annotations":{"kurator.dev/pause":"true"}}}`) // so that all leave in one step
	h.Eventually(func() string { return condition(h.app("web"), suspendedCondition) }).ShouldNot(BeEmpty())
	h.Expect(h.DeleteAllOf(t.Context(), &clusterv1.AttachedCluster{}, client.InNamespace(h.ns))).To(Succeed())
	h.Eventually(h.attached("c3")).Should(Equal(see + "c3"))
	h.Eventually(func() string {
		fleet := &fleetv1.Fleet{}
		h.get(fleet, "prod")
		return conditions.GetMessage(fleet, meta.ReadyCondition)
	}).Should(ContainSubstring("c1 (Ending), c2 (Ending), c3 (Ending)"))
	patch(h, h.app("web"), `{"metadata":{"annotations":{"kurator.dev/pause":null}}}`)
	for _, name := range []string{"c1", "c2", "c3"} {
		h.Eventually(h.attached(name)).Should(Equal(see + name +
			"; the prune of Application web is over budget: to allow it, annotate the Application with fleet.kurator.dev/allow-prune=1"))
	}
	t.Log("a prune that is held back for another reason")
	patch(h, h.app("web"), `{"spec":{"destination":{"fleet":"none"}}}`)
	h.Eventually(h.attached("c1")).Should(Equal(see + "c1; Application web does not end everything: see its condition PruneBlocked"))
	patch(h, h.app("web"), `{"spec":{"destination":{"fleet":"prod"}}}`)
	h.Eventually(h.attached("c1")).Should(HaveSuffix("allow-prune=3"))
	patch(h, h.app("web"), `{"metadata":{"annotations":{"fleet.kurator.dev/allow-prune":"3"}}}`)
	h.Eventually(func() []clusterv1.AttachedCluster {
		var left clusterv1.AttachedClusterList
		h.Expect(h.List(t.Context(), &left, client.InNamespace(h.ns))).To(Succeed())
		return left.Items
	}).Should(BeEmpty())
}
