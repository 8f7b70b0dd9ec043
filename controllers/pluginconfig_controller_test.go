package controllers

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	kuratorv1 "github.com/fleetwright/fleetwright/api/kurator/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/plugin"
)

func init() {
	if err := kuratorv1.AddToScheme(hubScheme); err != nil {
		panic(err)
	}
}

// startPlugins starts the controllers of PluginConfigs as a new process would, and returns its plugins.
func (h *hub) startPlugins() (plugins *Plugins, stop func()) {
	h.t.Helper()
	cfg := rest.CopyConfig(testConfig)
	cfg.QPS = -1
	cfg.Wrap(h.requests.wrap)
	opts := CacheOptions()
	opts.DefaultNamespaces = map[string]cache.Config{h.ns: {}}
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{Scheme: hubScheme, Cache: opts, Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)}})
	h.Expect(err).NotTo(HaveOccurred())
	catalog, err := plugin.Parse([]byte(strings.Replace(goodPlugin, "name: podinfo}", "name: metric}", 1)))
	h.Expect(err).NotTo(HaveOccurred())
	plugins = NewPlugins(map[string]*plugin.Plugin{"metric": catalog})
	h.events = record.NewFakeRecorder(10000)
	h.Expect((&PluginFetcher{Client: mgr.GetClient(), Plugins: plugins}).SetupWithManager(mgr, controller.Options{})).To(Succeed())
	h.Expect((&PluginConfigReconciler{Client: mgr.GetClient(), EventRecorder: h.events, Plugins: plugins}).SetupWithManager(mgr, controller.Options{})).To(Succeed())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := mgr.Start(ctx); err != nil {
			h.t.Errorf("manager: %v", err)
		}
	}()
	stop = func() { cancel(); <-done }
	h.t.Cleanup(stop)
	return plugins, stop
}

func (h *hub) pluginConfig(name string) *kuratorv1.PluginConfig {
	h.t.Helper()
	c := &kuratorv1.PluginConfig{}
	h.get(c, name)
	return c
}

// pluginSaid returns a condition of a PluginConfig as text.
func (h *hub) pluginSaid(name, t string) func() string {
	return func() string {
		c := apimeta.FindStatusCondition(h.pluginConfig(name).Status.Conditions, t)
		if c == nil {
			return ""
		}
		return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
	}
}

// fluxFetches says that Flux has fetched this; a message says that it could not.
func (h *hub) fluxFetches(o fluxSource, name string, artifact *meta.Artifact, message string) {
	h.t.Helper()
	h.Eventually(func() error {
		return h.Get(h.t.Context(), types.NamespacedName{Namespace: h.ns, Name: name}, o)
	}).Should(Succeed())
	before := o.DeepCopyObject().(client.Object)
	ready := metav1.Condition{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: "Succeeded", ObservedGeneration: o.GetGeneration(), Message: message}
	if message != "" {
		ready.Status, ready.Reason = metav1.ConditionFalse, "Failed"
	}
	if artifact != nil {
		artifact.LastUpdateTime = metav1.Now()
	}
	switch o := o.(type) {
	case *sourcev1.OCIRepository:
		o.Status.ObservedGeneration = o.Generation
		if artifact != nil {
			o.Status.Artifact = artifact
		}
		apimeta.SetStatusCondition(&o.Status.Conditions, ready)
	case *sourcev1.GitRepository:
		o.Status.ObservedGeneration = o.Generation
		if artifact != nil {
			o.Status.Artifact = artifact
		}
		apimeta.SetStatusCondition(&o.Status.Conditions, ready)
	}
	h.Expect(h.Status().Patch(h.t.Context(), o, client.MergeFrom(before))).To(Succeed())
}

const podinfoConfig = `
apiVersion: kurator.dev/v1alpha1
kind: PluginConfig
metadata: {name: team}
spec:
  plugins:
  - name: podinfo
    image: registry.test:5000/plugins/podinfo:1.0
    config: {message: hi, replicas: 9007199254740993}
`

// The seed's PluginConfig names an image that is not one of ours: it is accepted, says what is wrong, and hinders nobody.
func TestPluginConfigOfTheSeed(t *testing.T) {
	h := newHub(t)
	seed, err := os.ReadFile("testdata/pluginconfig_seed.yaml")
	h.Expect(err).NotTo(HaveOccurred())
	err = h.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kurator-system"}})
	h.Expect(client.IgnoreAlreadyExists(err)).To(Succeed())
	o := &kuratorv1.PluginConfig{ObjectMeta: metav1.ObjectMeta{Name: "vmware-provisioner-config", Namespace: "kurator-system"}}
	h.Expect(h.Patch(t.Context(), o, client.RawPatch(types.ApplyPatchType, h.json(string(seed))), client.FieldOwner("test"),
		client.FieldValidation("Strict"), client.DryRunAll)).To(Succeed())

	server := newArtifactServer(t)
	plugins, _ := h.startPlugins()
	h.apply(strings.Replace(string(seed), "kurator-system", h.ns, 1))
	h.apply(podinfoConfig)
	h.fluxFetches(&sourcev1.OCIRepository{}, "team-podinfo", server.publish("1.0@sha256:1", archive(file{name: "plugin.yaml", content: goodPlugin})), "")
	h.Eventually(h.pluginSaid("team", meta.ReadyCondition)).Should(Equal("True ReconciliationSucceeded: 1/1 plugins ready"))

	t.Log("nobody answers at that registry")
	name := "vmware-provisioner-config-vmware-provisioner"
	h.fluxFetches(&sourcev1.OCIRepository{}, name, nil, "failed to determine artifact digest: lookup your-registry: no such host")
	h.Eventually(h.pluginSaid("vmware-provisioner-config", meta.ReadyCondition)).Should(Equal("False PluginsNotReady: 0/1 plugins ready; " +
		"vmware-provisioner (OCIRepository/" + name + ": failed to determine artifact digest: lookup your-registry: no such host)"))
	h.Expect(h.pluginSaid("vmware-provisioner-config", meta.StalledCondition)()).To(BeEmpty())
	_, err = plugins.Get(h.ns, "vmware-provisioner")
	h.Expect(err).To(MatchError(errPluginNotLoaded))
	h.Expect(err).To(MatchError(ContainSubstring("no such host")))

	t.Log("somebody does, with a container image")
	h.fluxFetches(&sourcev1.OCIRepository{}, name, server.publish("v1.0.0@sha256:2", archive(file{name: "bin/provisioner", content: "\x7fELF"})), "")
	h.Eventually(h.pluginSaid("vmware-provisioner-config", meta.StalledCondition)).Should(Equal("True InvalidPlugin: 0/1 plugins ready; " +
		"vmware-provisioner (OCIRepository/" + name + ": v1.0.0@sha256:2: what was fetched is not a plugin: there is no plugin.yaml: it has bin/provisioner)"))
	h.Expect(h.pluginConfig("vmware-provisioner-config").Status.Plugins).To(ConsistOf(And(
		HaveField("Name", "vmware-provisioner"), HaveField("Type", "ClusterProvisioner"), HaveField("Ready", "False"), HaveField("Revision", ""))))
	h.Expect(h.pluginSaid("team", meta.ReadyCondition)()).To(HavePrefix("True "))
}

func TestPluginConfigAdmission(t *testing.T) {
	h := newHub(t)
	for problem, item := range map[string]string{
		"exactly one of image":         "{name: a}",
		"one of image (an OCI":         "{name: a, image: r/b:1, sourceRef: {kind: GitRepository, name: a}}",
		"are for an image":             "{name: a, sourceRef: {kind: GitRepository, name: a}, interval: 1m}",
		"an image is registry/":        "{name: a, image: 'https://r/b:1'}",
		"image is registry/repository": "{name: a, image: podinfo}",
		"has no .. in it":              "{name: a, image: r/b:1, path: a/../../b}",
		"path is relative":             "{name: a, image: r/b:1, path: /b}",
		"spec.plugins[0].name":         "{name: Upper, image: r/b:1}",
		".config: expected map":        "{name: a, image: r/b:1, config: [1]}",
		"Unsupported value":            "{name: a, sourceRef: {kind: HelmRepository, name: a}}",
		"not declared in schema":       "{name: a, image: r/b:1, images: b}",
		"duplicate entries":            "{name: a, image: r/b:1}\n  - {name: a, image: r/b:1}",
	} {
		doc := "apiVersion: kurator.dev/v1alpha1\nkind: PluginConfig\nmetadata: {name: c}\nspec:\n  plugins:\n  - " + item
		o := &kuratorv1.PluginConfig{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: h.ns}}
		err := h.Patch(t.Context(), o, client.RawPatch(types.ApplyPatchType, h.json(doc)), client.FieldOwner("test"), client.FieldValidation("Strict"))
		h.Expect(err).To(MatchError(ContainSubstring(problem)), item)
	}
	page, err := os.ReadFile("../docs/pluginconfigs.md")
	h.Expect(err).NotTo(HaveOccurred())
	examples := regexp.MustCompile("(?s)```yaml\n(apiVersion: .*?)```").FindAllStringSubmatch(string(page), -1)
	h.Expect(examples).To(HaveLen(2))
	for _, example := range examples {
		h.apply(strings.Replace(example[1], "namespace: default", "namespace: "+h.ns, 1))
	}
	sample, err := os.ReadFile("../config/samples/pluginconfig.yaml")
	h.Expect(err).NotTo(HaveOccurred())
	h.apply(string(sample))
	for _, image := range []string{"ghcr.io/o/p:1.0", "oci://ghcr.io/o/p", "localhost:5000/p:1", "r/p@sha256:" + strings.Repeat("a", 64), "r/p__q/x-y:v1@sha256:" + strings.Repeat("a", 64)} {
		h.apply("apiVersion: kurator.dev/v1alpha1\nkind: PluginConfig\nmetadata: {name: c}\nspec:\n  plugins:\n  - {name: a, image: '" + image + "'}")
	}
}

func TestRepositoryOf(t *testing.T) {
	g := NewWithT(t)
	digest := "sha256:" + strings.Repeat("a", 64)
	for image, want := range map[string]sourcev1.OCIRepositorySpec{
		"ghcr.io/o/p:1.0":                       {URL: "oci://ghcr.io/o/p", Reference: &sourcev1.OCIRepositoryRef{Tag: "1.0"}},
		"oci://localhost:5000/p":                {URL: "oci://localhost:5000/p"},
		"localhost:5000/p@" + digest:            {URL: "oci://localhost:5000/p", Reference: &sourcev1.OCIRepositoryRef{Digest: digest}},
		"oci://localhost:5000/p:v1@" + digest:   {URL: "oci://localhost:5000/p", Reference: &sourcev1.OCIRepositoryRef{Digest: digest}},
		"your-registry/vmware-provisioner:v1.0": {URL: "oci://your-registry/vmware-provisioner", Reference: &sourcev1.OCIRepositoryRef{Tag: "v1.0"}},
	} {
		want.Interval.Duration = 10 * time.Minute
		g.Expect(*repositoryOf(&kuratorv1.PluginConfig{}, &kuratorv1.PluginSource{Image: image})).To(Equal(want), image)
	}
}

func TestPluginConfigOfAnImage(t *testing.T) {
	h := newHub(t)
	server := newArtifactServer(t)
	plugins, stop := h.startPlugins()
	_, err := plugins.Get(h.ns, "podinfo")
	h.Eventually(func() error { _, err = plugins.Get(h.ns, "podinfo"); return err }).Should(MatchError(errUnknownPlugin))
	h.Expect(err).To(MatchError(ContainSubstring("there are metric;")))

	h.apply(podinfoConfig + "    verify: {provider: cosign, secretRef: {name: keys}}\n    interval: 1m\n")
	h.Eventually(h.pluginSaid("team", meta.ReadyCondition)).Should(HavePrefix("Unknown Progressing: 0/1 plugins ready; podinfo (OCIRepository/team-podinfo is being"))
	repository := &sourcev1.OCIRepository{}
	h.Eventually(func() error {
		return h.Get(t.Context(), types.NamespacedName{Namespace: h.ns, Name: "team-podinfo"}, repository)
	}).Should(Succeed())
	h.Expect(repository.Spec.URL).To(Equal("oci://registry.test:5000/plugins/podinfo"))
	h.Expect(repository.Spec.Reference.Tag).To(Equal("1.0"))
	h.Expect(repository.Spec.Interval.Duration).To(Equal(time.Minute))
	h.Expect(repository.Spec.Verify.SecretRef.Name).To(Equal("keys"))
	h.Expect(metav1.GetControllerOf(repository).Name).To(Equal("team"))

	t.Log("what is not verified is not used")
	first := server.publish("1.0@sha256:1", archive(file{name: "plugin.yaml", content: goodPlugin}))
	h.fluxFetches(repository, "team-podinfo", first, "")
	h.Eventually(h.pluginSaid("team", meta.ReadyCondition)).Should(ContainSubstring("1.0@sha256:1 is not verified, so it is not taken: Flux has not looked at it yet"))
	h.Expect(server.count()).To(BeZero())
	h.apply(podinfoConfig + "    interval: 1m\n")
	h.Eventually(func() any { h.get(repository, "team-podinfo"); return repository.Spec.Verify }).Should(BeNil())
	h.fluxFetches(repository, "team-podinfo", first, "")
	h.Eventually(h.pluginSaid("team", meta.ReadyCondition)).Should(Equal("True ReconciliationSucceeded: 1/1 plugins ready"))
	h.Expect(h.pluginConfig("team").Status.Plugins).To(Equal([]kuratorv1.PluginSourceStatus{{Name: "podinfo", Ready: "True", Revision: "1.0@sha256:1"}}))
	h.Expect(h.pluginConfig("team").Status.Summary).To(Equal("1/1"))
	got, err := plugins.Get(h.ns, "podinfo")
	h.Expect(err).NotTo(HaveOccurred())
	h.Expect(got.Revision).To(Equal("1.0@sha256:1"))
	h.Expect(fmt.Sprint(got.Config)).To(Equal("map[message:hi replicas:9007199254740993]"))
	h.Expect(got.Spec.Components).To(HaveLen(1))
	_, err = plugins.Get("another", "podinfo")
	h.Expect(err).To(MatchError(errUnknownPlugin), "a plugin is its namespace's")

	t.Log("standing still is free: Flux looking at it again is no download and no write")
	served := server.count()
	h.requests.reset()
	h.fluxFetches(repository, "team-podinfo", first, "")
	h.Consistently(func() int { return server.count() }).Should(Equal(served))
	h.Expect(h.requests.counted()).NotTo(Or(HaveKey(HavePrefix("PATCH")), HaveKey(HavePrefix("POST"))))

	t.Log("neither is a restart a write, but for the plugin to be fetched again")
	stop()
	h.requests.reset()
	plugins, stop = h.startPlugins()
	h.Eventually(func() error { got, err = plugins.Get(h.ns, "podinfo"); return err }).Should(Succeed())
	h.Consistently(h.requests.counted).ShouldNot(Or(HaveKey(HavePrefix("PATCH")), HaveKey(HavePrefix("POST"))))

	t.Log("a new revision that is broken leaves the last good one in use, and is looked at once")
	broken := server.publish("1.1@sha256:2", archive(file{name: "plugin.yaml", content: "apiVersion: v1"}))
	h.fluxFetches(repository, "team-podinfo", broken, "")
	h.Eventually(h.pluginSaid("team", meta.StalledCondition)).Should(And(HavePrefix("True InvalidPlugin: 0/1 plugins ready; podinfo (OCIRepository/team-podinfo: 1.1@sha256:2: what was fetched is not a plugin: plugin.yaml: "),
		HaveSuffix("1.0@sha256:1 stays in use)")))
	h.Expect(h.pluginConfig("team").Status.Plugins[0].Revision).To(Equal("1.0@sha256:1"))
	still, err := plugins.Get(h.ns, "podinfo")
	h.Expect(err).NotTo(HaveOccurred())
	h.Expect(still.Plugin).To(BeIdenticalTo(got.Plugin))
	served = server.count()
	h.fluxFetches(repository, "team-podinfo", broken, "")
	h.Consistently(func() int { return server.count() }).Should(Equal(served))

	t.Log("so does one that does not arrive, as it is not what Flux says it is; it is tried again")
	server.mu.Lock()
	lost := server.files["/"+first.Path]
	server.mu.Unlock()
	changed := server.publish("1.2@sha256:3", lost)
	changed.Digest = broken.Digest
	h.fluxFetches(repository, "team-podinfo", changed, "")
	h.Eventually(h.pluginSaid("team", meta.ReadyCondition)).Should(And(HavePrefix("False PluginsNotReady: "), ContainSubstring("it was changed on the way"), HaveSuffix("1.0@sha256:1 stays in use)")))
	h.Expect(h.pluginSaid("team", meta.StalledCondition)()).To(BeEmpty())

	t.Log("one that is good is used, and who uses it is woken")
	woken := make(chan string, 100)
	plugins.OnChange(func(namespace string) { woken <- namespace })
	second := server.publish("1.3@sha256:4", archive(file{name: "plugin.yaml", content: goodPlugin + "      replicas: 2\n"}))
	h.fluxFetches(repository, "team-podinfo", second, "")
	h.Eventually(woken).Should(Receive(Equal(h.ns)))
	h.Eventually(h.pluginSaid("team", meta.ReadyCondition)).Should(HavePrefix("True "))
	got, err = plugins.Get(h.ns, "podinfo")
	h.Expect(err).NotTo(HaveOccurred())
	h.Expect(got.Spec.Components[0].Values).To(HaveKey("replicas"))

	t.Log("a registry that does not answer takes nothing away; neither then does a restart")
	h.fluxFetches(repository, "team-podinfo", nil, "connection refused")
	h.Eventually(h.pluginSaid("team", meta.ReadyCondition)).Should(And(HavePrefix("False "), HaveSuffix("connection refused; 1.3@sha256:4 stays in use)")))
	stop()
	plugins, stop = h.startPlugins()
	h.Eventually(func() error { _, err := plugins.Get(h.ns, "podinfo"); return err }).Should(Succeed())

	t.Log("while it is suspended, no other revision is taken, not even after a restart")
	h.fluxFetches(repository, "team-podinfo", second, "")
	h.Eventually(h.pluginSaid("team", meta.ReadyCondition)).Should(HavePrefix("True "))
	h.apply(podinfoConfig + "  suspend: true\n")
	h.Eventually(h.pluginSaid("team", suspendedCondition)).Should(HavePrefix("True Suspended: "))
	h.fluxFetches(repository, "team-podinfo", first, "")
	h.Consistently(func() string { r, _ := plugins.Get(h.ns, "podinfo"); return r.Revision }).Should(Equal("1.3@sha256:4"))
	stop()
	plugins, _ = h.startPlugins()
	h.Eventually(func() error { _, err := plugins.Get(h.ns, "podinfo"); return err }).Should(MatchError(ContainSubstring("the PluginConfig is suspended, so 1.0@sha256:1 is not taken")))
	h.fluxFetches(repository, "team-podinfo", second, "")
	h.Eventually(func() string { r, _ := plugins.Get(h.ns, "podinfo"); return r.Revision }).Should(Equal("1.3@sha256:4"))
	h.apply(podinfoConfig)
	h.Eventually(h.pluginSaid("team", suspendedCondition)).Should(BeEmpty())

	t.Log("a request to look again reaches Flux")
	before := h.pluginConfig("team")
	after := before.DeepCopy()
	after.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now"}
	h.Expect(h.Patch(t.Context(), after, client.MergeFrom(before))).To(Succeed())
	h.Eventually(func() string { return h.pluginConfig("team").Status.LastHandledReconcileAt }).Should(Equal("now"))
	h.get(repository, "team-podinfo")
	h.Expect(repository.Annotations).To(HaveKeyWithValue(meta.ReconcileRequestAnnotation, "now"))

	t.Log("one that is taken out ends, and its source; with the last one, the PluginConfig has nothing to do")
	h.apply("apiVersion: kurator.dev/v1alpha1\nkind: PluginConfig\nmetadata: {name: team}\nspec: {plugins: []}")
	h.Eventually(func() bool {
		return apierrors.IsNotFound(h.Get(t.Context(), types.NamespacedName{Namespace: h.ns, Name: "team-podinfo"}, repository))
	}).Should(BeTrue())
	h.Eventually(h.pluginSaid("team", meta.ReadyCondition)).Should(Equal("True ReconciliationSucceeded: 0/0 plugins ready"))
	_, err = plugins.Get(h.ns, "podinfo")
	h.Expect(err).To(MatchError(errUnknownPlugin))
}

func TestPluginConfigOfASource(t *testing.T) {
	h := newHub(t)
	server := newArtifactServer(t)
	plugins, _ := h.startPlugins()
	h.apply(`
apiVersion: kurator.dev/v1alpha1
kind: PluginConfig
metadata: {name: git}
spec:
  plugins:
  - {name: podinfo, sourceRef: {kind: GitRepository, name: platform}, path: plugins/podinfo}
  - {name: metric, sourceRef: {kind: GitRepository, name: platform}, path: plugins/metric}
  - {name: other, sourceRef: {kind: Bucket, name: other}}
`)
	h.Eventually(h.pluginSaid("git", meta.ReadyCondition)).Should(Equal("False InvalidPlugin: 0/3 plugins ready; " +
		"podinfo (there is no GitRepository/platform in the namespace), " +
		"metric (the name is taken: metric comes with Fleetwright, and cannot be replaced: give the plugin another name), " +
		"other (there is no Bucket/other in the namespace)"))
	git := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Name: "platform", Namespace: h.ns}, Spec: sourcev1.GitRepositorySpec{URL: "https://git.test/platform"}}
	h.Expect(h.Create(t.Context(), git)).To(Succeed())
	h.Eventually(h.pluginSaid("git", meta.ReadyCondition)).Should(ContainSubstring("podinfo (GitRepository/platform is being fetched)"))
	h.fluxFetches(git, "platform", server.publish("main@sha1:1", archive(file{name: "plugins/podinfo/plugin.yaml", content: goodPlugin},
		file{name: "plugins/metric/plugin.yaml", content: strings.Replace(goodPlugin, "name: podinfo}", "name: metric}", 1)})), "")
	h.Eventually(func() error { _, err := plugins.Get(h.ns, "podinfo"); return err }).Should(Succeed())
	h.Eventually(h.pluginSaid("git", meta.ReadyCondition)).Should(HavePrefix("False InvalidPlugin: 1/3 plugins ready; metric ("))
	metric, err := plugins.Get(h.ns, "metric")
	h.Expect(err).NotTo(HaveOccurred())
	h.Expect(metric.Revision).To(BeEmpty(), "that of the catalog")
	_, err = plugins.Get(h.ns, "Metric")
	h.Expect(err).To(MatchError(errUnknownPlugin))

	t.Log("the older one has the name; when it is gone, the other one has it")
	older := h.pluginConfig("git").CreationTimestamp.Time
	h.Eventually(func() time.Time { return time.Now().Truncate(time.Second) }).Should(BeTemporally(">", older), "creation times have seconds")
	h.apply(podinfoConfig)
	h.fluxFetches(&sourcev1.OCIRepository{}, "team-podinfo", server.publish("1.0@sha256:1", archive(file{name: "plugin.yaml", content: goodPlugin})), "")
	h.Eventually(h.pluginSaid("team", meta.StalledCondition)).Should(Equal("True InvalidPlugin: 0/1 plugins ready; podinfo (the name is taken: " +
		"PluginConfig git brings a plugin podinfo already: give this one another name, or take it out of one of the two)"))
	got, err := plugins.Get(h.ns, "podinfo")
	h.Expect(err).NotTo(HaveOccurred())
	h.Expect(got.Revision).To(Equal("main@sha1:1"))
	h.Expect(h.Delete(t.Context(), h.pluginConfig("git"))).To(Succeed())
	h.Eventually(h.pluginSaid("team", meta.ReadyCondition)).Should(HavePrefix("True "))
	got, err = plugins.Get(h.ns, "podinfo")
	h.Expect(err).NotTo(HaveOccurred())
	h.Expect(got.Revision).To(Equal("1.0@sha256:1"))
}

// An OCIRepository that is somebody else's is neither written nor used.
func TestPluginConfigTakesNothingOver(t *testing.T) {
	h := newHub(t)
	server := newArtifactServer(t)
	h.apply(`
apiVersion: source.toolkit.fluxcd.io/v1
kind: OCIRepository
metadata: {name: team-podinfo}
spec: {url: oci://elsewhere.test/x, interval: 1h}
`)
	plugins, _ := h.startPlugins()
	h.apply(podinfoConfig)
	h.fluxFetches(&sourcev1.OCIRepository{}, "team-podinfo", server.publish("1.0@sha256:1", archive(file{name: "plugin.yaml", content: goodPlugin})), "")
	h.Eventually(h.pluginSaid("team", meta.StalledCondition)).Should(Equal("True InvalidPlugin: 0/1 plugins ready; " +
		"podinfo (OCIRepository team-podinfo exists and is not this object's: rename the PluginConfig or the plugin, or delete it)"))
	o := &sourcev1.OCIRepository{}
	h.get(o, "team-podinfo")
	h.Expect(o.Spec.URL).To(Equal("oci://elsewhere.test/x"))
	h.Expect(o.OwnerReferences).To(BeEmpty())
	_, err := plugins.Get(h.ns, "podinfo")
	h.Expect(err).To(MatchError(errPluginNotLoaded))
}
