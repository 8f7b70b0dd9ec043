package controllers

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	artifacts "github.com/fluxcd/pkg/artifact/config"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/controllers/publisher"
	templates "github.com/fleetwright/fleetwright/fleet-templates"
	catalog "github.com/fleetwright/fleetwright/plugins-catalog"
	"github.com/fleetwright/fleetwright/renderers/plugin"
)

// hub is a namespace of the test's API server, with the Fleet and Application controllers on it while they are started.
// Clusters are ready because the test says so.
type hub struct {
	t *testing.T
	*WithT
	client.Client
	ns       string
	requests *requestLog
	events   *record.FakeRecorder
	stager   *ArtifactStager
	reports  *Reports
	stop     func()
}

func newHub(t *testing.T) *hub {
	t.Helper()
	t.Parallel() // each has a namespace of its own, and waits more than it works
	h := &hub{t: t, WithT: NewWithT(t), requests: &requestLog{}}
	h.SetDefaultEventuallyTimeout(20 * time.Second)
	h.SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	h.SetDefaultConsistentlyDuration(1500 * time.Millisecond)
	c, err := client.New(testConfig, client.Options{Scheme: hubScheme})
	h.Expect(err).NotTo(HaveOccurred())
	h.Client = c
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "hub-"}}
	h.Expect(c.Create(t.Context(), ns)).To(Succeed())
	h.ns = ns.Name
	return h
}

var hubScheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, kustomizev1.AddToScheme, helmv2.AddToScheme,
		sourcev1.AddToScheme, appsv1.AddToScheme, clusterv1.AddToScheme, fleetv1.AddToScheme, policyv1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}()

// start starts the controllers as a new process would, and stops them with the test or when stopped.
func (h *hub) start() *ApplicationReconciler {
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
	h.events = record.NewFakeRecorder(10000)
	baselines := &Baselines{}
	keeper := &Keeper{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Baselines: baselines}
	apps := &ApplicationReconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), EventRecorder: h.events, Keep: keeper.Keep}
	h.Expect(apps.SetupWithManager(ctx, mgr, controller.Options{})).To(Succeed())
	store, err := publisher.New(artifacts.Options{StoragePath: h.t.TempDir(), StorageAddress: "127.0.0.1:0", StorageAdvAddress: "artifacts.test",
		ArtifactRetentionTTL: time.Minute, ArtifactRetentionRecords: 2, ArtifactDigestAlgo: "sha256"})
	h.Expect(err).NotTo(HaveOccurred())
	known, err := plugin.LoadAll(catalog.FS, templates.Rules())
	h.Expect(err).NotTo(HaveOccurred())
	plugins, facts := NewPlugins(known), NewFacts()
	h.reports = NewReports()
	h.reports.pause, h.reports.retry, h.reports.settle = 200*time.Millisecond, time.Second, 100*time.Millisecond
	facts.retry = 500 * time.Millisecond
	h.Expect((&MemberReader{MemberReconciler: MemberReconciler{Client: mgr.GetClient()}, Facts: facts, Reports: h.reports}).SetupWithManager(mgr, 4)).To(Succeed())
	h.Expect((&FleetReconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), EventRecorder: h.events, Publisher: store, Plugins: plugins, Facts: facts}).
		SetupWithManager(mgr, controller.Options{})).To(Succeed())
	h.stager = NewConfigStager(mgr.GetClient(), store, baselines)
	h.Expect(h.stager.SetupWithManager(mgr, controller.Options{})).To(Succeed())
	h.Expect((&ClusterConfigReconciler{Client: mgr.GetClient(), EventRecorder: h.events, Publisher: store, Baselines: baselines, Keeper: keeper}).
		SetupWithManager(mgr, controller.Options{})).To(Succeed())
	rules := Rules{Client: mgr.GetClient(), EventRecorder: h.events, Publisher: store, Plugins: plugins, Reports: h.reports}
	h.Expect(FleetSecurityPolicies(rules).SetupWithManager(mgr, controller.Options{})).To(Succeed())
	h.Expect(ClusterCompliances(rules).SetupWithManager(mgr, controller.Options{})).To(Succeed())
	done := make(chan struct{})
	go func() {
		defer close(done)
		// A queue of controller-runtime hands out an item with its lock held, at times to a worker that has just gone: then one
		// runnable hangs at the end (v0.24.1, priorityqueue.handleReadyItems).
		if err := mgr.Start(ctx); err != nil && !strings.Contains(err.Error(), "failed waiting for all runnables to end") {
			h.t.Errorf("manager: %v", err)
		}
	}()
	var once sync.Once
	h.stop = func() { once.Do(func() { cancel(); <-done }) }
	h.t.Cleanup(h.stop)
	return apps
}

// apply creates or changes what the YAML documents declare, as kubectl apply would, with strict validation.
func (h *hub) apply(docs string) {
	h.t.Helper()
	for doc := range strings.SplitSeq(docs, "\n---\n") {
		u := h.decode(doc)
		h.Expect(h.Patch(h.t.Context(), u, client.RawPatch(types.ApplyPatchType, h.json(doc)), client.ForceOwnership,
			client.FieldOwner("test"), client.FieldValidation("Strict"))).To(Succeed())
	}
}

func (h *hub) json(doc string) []byte {
	b, err := yaml.YAMLToJSON([]byte(doc))
	h.Expect(err).NotTo(HaveOccurred())
	return b
}

func (h *hub) decode(doc string) client.Object {
	var tm metav1.PartialObjectMetadata
	h.Expect(yaml.Unmarshal([]byte(doc), &tm)).To(Succeed())
	o, err := hubScheme.New(tm.GroupVersionKind())
	h.Expect(err).NotTo(HaveOccurred())
	obj := o.(client.Object)
	obj.SetName(tm.Name)
	obj.SetNamespace(h.ns)
	return obj
}

// attach makes clusters that are ready; a name may be followed by labels, "c1 env=prod".
func (h *hub) attach(clusters ...string) {
	h.t.Helper()
	for _, c := range clusters {
		f := strings.Fields(c)
		a := &clusterv1.AttachedCluster{ObjectMeta: metav1.ObjectMeta{Name: f[0], Namespace: h.ns, Labels: map[string]string{}}}
		for _, l := range f[1:] {
			k, v, _ := strings.Cut(l, "=")
			a.Labels[k] = v
		}
		a.Spec.Kubeconfig = &clusterv1.KubeconfigReference{Name: f[0] + "-kubeconfig"}
		h.Expect(h.Create(h.t.Context(), a)).To(Succeed())
		h.health(f[0], metav1.ConditionTrue, "Reached", "")
	}
}

// health says how a cluster is.
func (h *hub) health(name string, status metav1.ConditionStatus, reason, message string) {
	h.t.Helper()
	a := &clusterv1.AttachedCluster{}
	h.get(a, name)
	before := a.DeepCopy()
	a.Status.ObservedGeneration = a.Generation
	apimeta.SetStatusCondition(&a.Status.Conditions, metav1.Condition{Type: meta.ReadyCondition, Status: status, Reason: reason, Message: message})
	h.Expect(h.Status().Patch(h.t.Context(), a, client.MergeFrom(before))).To(Succeed())
}

// fleet makes or changes a fleet of these members.
func (h *hub) fleet(name string, members ...string) {
	h.t.Helper()
	doc := "apiVersion: fleet.kurator.dev/v1alpha1\nkind: Fleet\nmetadata: {name: " + name + "}\nspec:\n  clusters:\n"
	for _, m := range members {
		doc += "  - {name: " + m + "}\n"
	}
	h.apply(doc)
}

func (h *hub) get(o client.Object, name string) {
	h.t.Helper()
	h.Expect(h.Get(h.t.Context(), types.NamespacedName{Namespace: h.ns, Name: name}, o)).To(Succeed())
}

func (h *hub) app(name string) *appsv1.Application {
	h.t.Helper()
	app := &appsv1.Application{}
	h.get(app, name)
	return app
}

// kustomizations returns the Kustomizations by name, without those that are being deleted.
func (h *hub) kustomizations() map[string]*kustomizev1.Kustomization {
	var list kustomizev1.KustomizationList
	h.Expect(h.List(h.t.Context(), &list, client.InNamespace(h.ns))).To(Succeed())
	out := map[string]*kustomizev1.Kustomization{}
	for i := range list.Items {
		out[list.Items[i].Name] = &list.Items[i]
	}
	return out
}

func (h *hub) releases() map[string]*helmv2.HelmRelease {
	var list helmv2.HelmReleaseList
	h.Expect(h.List(h.t.Context(), &list, client.InNamespace(h.ns))).To(Succeed())
	out := map[string]*helmv2.HelmRelease{}
	for i := range list.Items {
		out[list.Items[i].Name] = &list.Items[i]
	}
	return out
}

func names[T any](m map[string]T) []string {
	out := make([]string, 0, len(m))
	for name := range m {
		out = append(out, name)
	}
	return out
}

// fluxDoes says that Flux has reconciled every child: Ready as given.
func (h *hub) fluxDoes(status metav1.ConditionStatus, message string) {
	h.t.Helper()
	condition := metav1.Condition{Type: meta.ReadyCondition, Status: status, Reason: "Test", Message: message}
	for _, k := range h.kustomizations() {
		h.fluxDoesOne(k, condition)
	}
	for _, r := range h.releases() {
		h.fluxDoesOne(r, condition)
	}
}

func (h *hub) fluxDoesOne(o client.Object, condition metav1.Condition) {
	h.t.Helper()
	before := o.DeepCopyObject().(client.Object)
	condition.ObservedGeneration = o.GetGeneration()
	switch o := o.(type) {
	case *kustomizev1.Kustomization:
		// kustomize-controller does not count a failure as observed.
		if condition.Status == metav1.ConditionTrue {
			o.Status.ObservedGeneration = o.Generation
			o.Status.LastAppliedRevision, o.Status.LastAttemptedRevision = "main@sha1:1", "main@sha1:1"
		}
		apimeta.SetStatusCondition(&o.Status.Conditions, condition)
	case *helmv2.HelmRelease:
		o.Status.ObservedGeneration = o.Generation
		apimeta.SetStatusCondition(&o.Status.Conditions, condition)
		condition.Type = helmv2.ReleasedCondition
		apimeta.SetStatusCondition(&o.Status.Conditions, condition)
	}
	h.Expect(h.Status().Patch(h.t.Context(), o, client.MergeFrom(before))).To(Succeed())
}

// ready waits until the Application says this of its members and its Ready condition.
func (h *hub) ready(app string, status metav1.ConditionStatus, summary string) *appsv1.Application {
	h.t.Helper()
	var a *appsv1.Application
	h.Eventually(func(g Gomega) {
		a = h.app(app)
		g.Expect(a.Status.ObservedGeneration).To(Equal(a.Generation), "observed generation")
		g.Expect(a.Status.Members.Summary).To(Equal(summary))
		c := apimeta.FindStatusCondition(a.Status.Conditions, meta.ReadyCondition)
		g.Expect(c).NotTo(BeNil())
		g.Expect(c.Status).To(Equal(status), c.Message)
	}).Should(Succeed())
	return a
}

func condition(a *appsv1.Application, t string) string {
	c := apimeta.FindStatusCondition(a.Status.Conditions, t)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
}

// versions returns the resource versions of all children and sources, to show that nothing was written.
func (h *hub) versions() map[string]string {
	out := map[string]string{}
	for name, k := range h.kustomizations() {
		out["Kustomization/"+name] = k.ResourceVersion
	}
	for name, r := range h.releases() {
		out["HelmRelease/"+name] = r.ResourceVersion
	}
	var git sourcev1.GitRepositoryList
	h.Expect(h.List(h.t.Context(), &git, client.InNamespace(h.ns))).To(Succeed())
	for _, g := range git.Items {
		out["GitRepository/"+g.Name] = g.ResourceVersion
	}
	return out
}

// requestLog counts the requests that the controllers send, but for watches.
type requestLog struct {
	mu    sync.Mutex
	count map[string]int
}

func (l *requestLog) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Query().Get("watch") == "" {
			parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
			key := r.Method + " " + parts[len(parts)-1]
			for i, p := range parts {
				if p == "namespaces" && i+2 < len(parts) {
					key = r.Method + " " + parts[i+2]
					if last := parts[len(parts)-1]; last == "status" {
						key += "/status"
					} else if r.Method == http.MethodGet && i+3 < len(parts) {
						key = "GET one of " + parts[i+2]
					}
				}
			}
			l.mu.Lock()
			if l.count == nil {
				l.count = map[string]int{}
			}
			l.count[key]++
			l.mu.Unlock()
		}
		return next.RoundTrip(r)
	})
}

// reset forgets what was counted, and counted returns it.
func (l *requestLog) reset() { l.mu.Lock(); defer l.mu.Unlock(); l.count = nil }
func (l *requestLog) counted() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]int{}
	for k, v := range l.count {
		out[k] = v
	}
	return out
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
