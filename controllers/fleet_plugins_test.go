package controllers

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

// reachable gives members a kubeconfig that leads to the API server of the test itself: what is read of a member is read there.
func (h *hub) reachable(members ...string) {
	h.t.Helper()
	b := h.kubeconfig()
	for _, m := range members {
		h.Expect(h.Create(h.t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: m + "-kubeconfig", Namespace: h.ns}, Data: map[string][]byte{"value": b}})).To(Succeed())
	}
}

// kubeconfig leads to the API server of the test.
func (h *hub) kubeconfig() []byte {
	h.t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: testConfig.Host, CertificateAuthorityData: testConfig.CAData}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: testConfig.CertData, ClientKeyData: testConfig.KeyData, Token: testConfig.BearerToken}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	b, err := clientcmd.Write(*config)
	h.Expect(err).NotTo(HaveOccurred())
	return b
}

// plugins makes or changes a fleet of a and b with these plugins.
func (h *hub) plugins(spec string) {
	h.t.Helper()
	h.apply("apiVersion: fleet.kurator.dev/v1alpha1\nkind: Fleet\nmetadata: {name: prod}\nspec:\n  clusters: [{name: a}, {name: b}]\n" + spec)
}

func (h *hub) plugin(name string) fleetv1.PluginStatus {
	f := &fleetv1.Fleet{}
	if err := h.Get(h.t.Context(), client.ObjectKey{Namespace: h.ns, Name: "prod"}, f); err != nil {
		return fleetv1.PluginStatus{}
	}
	for _, p := range f.Status.Plugins {
		if p.Name == name {
			return p
		}
	}
	return fleetv1.PluginStatus{}
}

// TestFleetPlugins follows plugins from their declaration to their end.
func TestFleetPlugins(t *testing.T) {
	h := newHub(t)
	h.reachable("a", "b")
	h.attach("a", "b")
	h.start()
	h.plugins("  plugin:\n    policy: {kyverno: {}}\n    grafana: {}\n")
	h.Eventually(func(g Gomega) {
		app := &appsv1.Application{}
		g.Expect(h.Get(t.Context(), client.ObjectKey{Namespace: h.ns, Name: "plugin-prod-policy"}, app)).To(Succeed())
		g.Expect(h.Get(t.Context(), client.ObjectKey{Namespace: h.ns, Name: "plugin-prod-grafana"}, &appsv1.Application{})).To(Succeed())
		g.Expect(h.Get(t.Context(), client.ObjectKey{Namespace: h.ns, Name: "plugin-prod-policy"}, &sourcev1.ExternalArtifact{})).To(Succeed())
		for _, m := range []string{"a", "b"} {
			ks := &kustomizev1.Kustomization{}
			g.Expect(h.Get(t.Context(), client.ObjectKey{Namespace: h.ns, Name: "plugin-prod-policy-namespaces-" + m}, ks)).To(Succeed())
			g.Expect(ks.Spec.SourceRef.Name).To(Equal("plugin-prod-policy"))
		}
		g.Expect(h.Get(t.Context(), client.ObjectKey{Namespace: h.ns, Name: "plugin-prod-grafana-grafana-hub"}, &helmv2.HelmRelease{})).To(Succeed())
		g.Expect(h.plugin("policy").Members).To(Equal("0/2"))
	}).Should(Succeed())

	// Not known is not gone: a plugin that nobody knows, and one with an error, take nothing away, and hinder no other.
	h.plugins("  plugins: [{name: nobody-knows}]\n  plugin:\n    policy: {kyverno: {}}\n    grafana: {components: {nosuch: {extraArgs: {a: 1}}}}\n")
	h.Eventually(func(g Gomega) {
		g.Expect(h.plugin("nobody-knows").Reason).To(Equal(unknownPluginReason))
		g.Expect(h.plugin("grafana").Reason).To(Equal(invalidReason))
		g.Expect(h.plugin("grafana").Message).To(ContainSubstring("components.nosuch"))
		g.Expect(h.plugin("policy").Application).To(Equal("plugin-prod-policy"))
	}).Should(Succeed())
	h.Expect(h.app("plugin-prod-grafana").DeletionTimestamp).To(BeNil())

	// One that is taken out ends, and with it its artifact; the other one stays.
	h.plugins("  plugin:\n    grafana: {}\n")
	h.Eventually(func(g Gomega) {
		h.endChildren()
		g.Expect(apierrors.IsNotFound(h.Get(t.Context(), client.ObjectKey{Namespace: h.ns, Name: "plugin-prod-policy"}, &appsv1.Application{}))).To(BeTrue())
		g.Expect(apierrors.IsNotFound(h.Get(t.Context(), client.ObjectKey{Namespace: h.ns, Name: "plugin-prod-policy"}, &sourcev1.ExternalArtifact{}))).To(BeTrue())
	}).Should(Succeed())
	h.Expect(h.app("plugin-prod-grafana").DeletionTimestamp).To(BeNil())

	// A fleet waits for its plugins.
	h.Expect(h.Delete(t.Context(), &fleetv1.Fleet{ObjectMeta: metav1.ObjectMeta{Name: "prod", Namespace: h.ns}})).To(Succeed())
	h.Eventually(func(g Gomega) {
		h.endChildren()
		g.Expect(apierrors.IsNotFound(h.Get(t.Context(), client.ObjectKey{Namespace: h.ns, Name: "prod"}, &fleetv1.Fleet{}))).To(BeTrue())
	}).Should(Succeed())
	var apps appsv1.ApplicationList
	var artifacts sourcev1.ExternalArtifactList
	h.Expect(h.List(t.Context(), &apps, client.InNamespace(h.ns))).To(Succeed())
	h.Expect(h.List(t.Context(), &artifacts, client.InNamespace(h.ns))).To(Succeed())
	h.Expect(apps.Items).To(BeEmpty())
	h.Expect(artifacts.Items).To(BeEmpty())
}

// endChildren does what Flux does with objects that are being deleted.
func (h *hub) endChildren() {
	h.t.Helper()
	var ks kustomizev1.KustomizationList
	var hr helmv2.HelmReleaseList
	h.Expect(h.List(h.t.Context(), &ks, client.InNamespace(h.ns))).To(Succeed())
	h.Expect(h.List(h.t.Context(), &hr, client.InNamespace(h.ns))).To(Succeed())
	for _, o := range append(objects(pointers(ks.Items)), objects(pointers(hr.Items))...) {
		if !deleting(o) || len(o.GetFinalizers()) == 0 {
			continue
		}
		before := o.DeepCopyObject().(client.Object)
		o.SetFinalizers(nil)
		h.Expect(client.IgnoreNotFound(h.Patch(h.t.Context(), o, client.MergeFrom(before)))).To(Succeed())
	}
}

// TestFleetPluginFacts reads from members what plugins need: addresses for one on the hub, and a secret that is in no spec.
func TestFleetPluginFacts(t *testing.T) {
	h := newHub(t)
	h.reachable("a", "b")
	h.attach("a", "b")
	h.start()
	ctx := t.Context()
	for _, ns := range []string{"monitoring", "submariner-k8s-broker"} {
		_ = h.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	}
	h.plugins(`  plugin:
    metric: {thanos: {objectStoreConfig: {secretName: store}}, prometheus: {external: {sourceRanges: [10.0.0.0/8]}}}
    submariner:
      clusterCidrs: {a: 10.1.0.0/16, b: 10.2.0.0/16}
      serviceCidrs: {a: 10.11.0.0/16, b: 10.12.0.0/16}
`)
	h.Eventually(func(g Gomega) {
		app := &appsv1.Application{}
		g.Expect(h.Get(ctx, client.ObjectKey{Namespace: h.ns, Name: "plugin-prod-submariner"}, app)).To(Succeed())
		g.Expect(holds(app)).To(ContainElement(ContainSubstring("submariner-k8s-broker-client-token of member a")))
	}).Should(Succeed())
	psk := &corev1.Secret{}
	h.get(psk, "plugin-prod-submariner")
	h.Expect(psk.Data).To(HaveKey("psk"))

	// The load balancer gets a name, and the broker a token.
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "prometheus-thanos-external", Namespace: "monitoring"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 10901}}}}
	h.Expect(h.Create(ctx, service)).To(Succeed())
	t.Cleanup(func() { _ = h.Delete(t.Context(), service) })
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "lb.example.org"}}
	h.Expect(h.Status().Update(ctx, service)).To(Succeed())
	token := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "submariner-k8s-broker-client-token", Namespace: "submariner-k8s-broker"},
		Data: map[string][]byte{"token": []byte("tell-nobody"), "ca.crt": []byte("authority")}}
	h.Expect(h.Create(ctx, token)).To(Succeed())
	t.Cleanup(func() { _ = h.Delete(t.Context(), token) })

	h.Eventually(func(g Gomega) {
		f := &fleetv1.Fleet{}
		h.get(f, "prod")
		g.Expect(f.Status.PluginEndpoints).To(HaveLen(2))
		g.Expect(f.Status.PluginEndpoints[0].Address).To(Equal("dns+lb.example.org:10901"))
		g.Expect(string(policyValues(h.app("plugin-prod-metric"), "thanos"))).To(ContainSubstring("dns+lb.example.org:10901"))
		kept := &corev1.Secret{}
		h.get(kept, "plugin-prod-submariner")
		g.Expect(string(kept.Data["brokerToken.a"])).To(Equal("tell-nobody"))
		g.Expect(string(kept.Data["brokerCA.a"])).To(Equal(base64.StdEncoding.EncodeToString([]byte("authority"))))
		g.Expect(kept.Data["psk"]).To(Equal(psk.Data["psk"]))
		g.Expect(holds(h.app("plugin-prod-submariner"))).To(BeEmpty())
	}).WithTimeout(40 * time.Second).Should(Succeed())

	// No secret is in anything but Secrets.
	var apps appsv1.ApplicationList
	h.Expect(h.List(ctx, &apps, client.InNamespace(h.ns))).To(Succeed())
	for _, app := range apps.Items {
		b, err := json.Marshal(app)
		h.Expect(err).NotTo(HaveOccurred())
		h.Expect(string(b)).NotTo(ContainSubstring("tell-nobody"))
		h.Expect(string(b)).NotTo(ContainSubstring(string(psk.Data["psk"])))
	}

	// A restart knows nothing, and changes nothing.
	h.stop()
	before := h.app("plugin-prod-metric")
	h.health("b", metav1.ConditionFalse, "Unreachable", "gone for a while")
	h.start()
	h.Eventually(func(g Gomega) { g.Expect(h.plugin("metric").Message).NotTo(BeEmpty()) }).Should(Succeed())
	h.Consistently(func(g Gomega) {
		app := h.app("plugin-prod-metric")
		g.Expect(app.Generation).To(Equal(before.Generation))
	}).WithTimeout(3 * time.Second).Should(Succeed())
	again := &corev1.Secret{}
	h.get(again, "plugin-prod-submariner")
	h.Expect(again.Data["psk"]).To(Equal(psk.Data["psk"]))
}

func holds(app *appsv1.Application) (texts []string) {
	for _, p := range app.Spec.SyncPolicies {
		for _, o := range p.Overrides {
			if o.Hold != "" {
				texts = append(texts, o.Hold)
			}
		}
	}
	return texts
}

func policyValues(app *appsv1.Application, name string) []byte {
	for _, p := range app.Spec.SyncPolicies {
		if strings.EqualFold(p.Name, name) && p.Helm.Values != nil {
			return p.Helm.Values.Raw
		}
	}
	return nil
}

// TestFleetPluginOrder holds that what comes after others ends before them, on every member, and that a member which is not
// there keeps what it has and holds up nobody.
func TestFleetPluginOrder(t *testing.T) {
	h := newHub(t)
	h.attach("a", "b")
	h.start()
	ctx := t.Context()
	h.plugins("  plugin: {policy: {kyverno: {podSecurity: {}}}}\n")
	all := []string{}
	for _, m := range []string{"a", "b"} {
		all = append(all, "plugin-prod-policy-kyverno-"+m, "plugin-prod-policy-policies-"+m)
	}
	h.Eventually(h.kustomizations).Should(HaveLen(2))
	h.fluxDoes(metav1.ConditionTrue, "done") // the namespaces come first
	h.Eventually(func() []string { return names(h.releases()) }).Should(ConsistOf(all))
	h.fluxDoes(metav1.ConditionTrue, "done")
	h.Eventually(func() string { return h.plugin("policy").Ready + " " + h.plugin("policy").Members }).Should(Equal("True 2/2"))

	// Nothing happens by itself.
	h.requests.reset()
	h.Consistently(h.requests.counted).WithTimeout(3 * time.Second).ShouldNot(Or(HaveKey(HavePrefix("PATCH")), HaveKey(HavePrefix("POST")), HaveKey(HavePrefix("DELETE"))))

	// One is away while the plugin changes: it keeps what it has, and the other one gets what is new.
	h.health("b", metav1.ConditionFalse, "Unreachable", "gone")
	version := h.releases()["plugin-prod-policy-kyverno-b"].ResourceVersion
	h.plugins("  plugin: {policy: {kyverno: {podSecurity: {}, extraArgs: {admissionController: {replicas: 5}}}}}\n")
	h.Eventually(func() string { return string(h.releases()["plugin-prod-policy-kyverno-a"].Spec.Values.Raw) }).Should(ContainSubstring(`"replicas":5`))
	h.Expect(h.releases()["plugin-prod-policy-kyverno-b"].ResourceVersion).To(Equal(version))
	h.Eventually(func() string { return h.plugin("policy").Message }).Should(ContainSubstring("gone"))
	h.health("b", metav1.ConditionTrue, "Reached", "")
	h.Eventually(func() string { return string(h.releases()["plugin-prod-policy-kyverno-b"].Spec.Values.Raw) }).Should(ContainSubstring(`"replicas":5`))
	h.fluxDoes(metav1.ConditionTrue, "done")
	h.Eventually(func() string { return h.plugin("policy").Ready }).Should(Equal("True"))

	// It fails on one: the status says where, nothing is taken away, and the other one goes on.
	failed := h.releases()["plugin-prod-policy-kyverno-b"]
	h.fluxDoesOne(failed, metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "InstallFailed", Message: "no room"})
	h.Eventually(func() string { return h.plugin("policy").Ready + " " + h.plugin("policy").Message }).Should(And(HavePrefix("False"), ContainSubstring("member b: "), ContainSubstring("no room")))
	h.plugins("  plugin: {policy: {kyverno: {podSecurity: {}, extraArgs: {admissionController: {replicas: 4}}}}}\n")
	h.Eventually(func() string { return string(h.releases()["plugin-prod-policy-kyverno-a"].Spec.Values.Raw) }).Should(ContainSubstring(`"replicas":4`))
	h.Expect(names(h.releases())).To(ConsistOf(all))
	h.fluxDoes(metav1.ConditionTrue, "done")
	h.Eventually(func() string { return h.plugin("policy").Ready }).Should(Equal("True"))

	// The end, with Flux's finalizers in place: each step is seen before the next may be.
	for _, o := range h.children() {
		before := o.DeepCopyObject().(client.Object)
		o.SetFinalizers([]string{"test.example.org/flux"})
		h.Expect(h.Patch(ctx, o, client.MergeFrom(before))).To(Succeed())
	}
	ending := func() (names []string) {
		for _, o := range h.children() {
			if deleting(o) {
				names = append(names, o.GetName())
			}
		}
		return names
	}
	h.plugins("  interval: 5m\n")
	for _, step := range []string{"policies", "kyverno", "namespaces"} {
		want := []string{"plugin-prod-policy-" + step + "-a", "plugin-prod-policy-" + step + "-b"}
		h.Eventually(ending).Should(ConsistOf(want))
		h.Consistently(ending).WithTimeout(time.Second).Should(ConsistOf(want))
		h.Expect(h.app("plugin-prod-policy").DeletionTimestamp).NotTo(BeNil())
		h.endChildren()
	}
	h.Eventually(func() int { return len(h.children()) }).Should(BeZero())
	h.Eventually(func() bool {
		f := &fleetv1.Fleet{}
		h.get(f, "prod")
		return len(f.Finalizers) == 0 && len(f.Status.Plugins) == 0
	}).Should(BeTrue())
}

func (h *hub) children() (all []client.Object) {
	for _, k := range h.kustomizations() {
		all = append(all, k)
	}
	for _, r := range h.releases() {
		all = append(all, r)
	}
	return all
}

// TestTwoFleetsOnePlugin holds that a plugin is the older fleet's where two fleets with it have a member.
func TestTwoFleetsOnePlugin(t *testing.T) {
	h := newHub(t)
	h.attach("a", "b", "c")
	h.start()
	h.plugins("  plugin: {policy: {kyverno: {}}}\n")
	h.Eventually(h.kustomizations).Should(HaveLen(2))
	h.Eventually(func() bool { // creation times are in seconds
		f := &fleetv1.Fleet{}
		h.get(f, "prod")
		return time.Since(f.CreationTimestamp.Time) > 1100*time.Millisecond
	}).Should(BeTrue())
	h.apply("apiVersion: fleet.kurator.dev/v1alpha1\nkind: Fleet\nmetadata: {name: another}\nspec:\n  clusters: [{name: b}, {name: c}]\n  plugin: {policy: {kyverno: {}}}\n")
	h.Eventually(func() []string { return names(h.kustomizations()) }).Should(ConsistOf(
		"plugin-prod-policy-namespaces-a", "plugin-prod-policy-namespaces-b", "plugin-another-policy-namespaces-c"))
	h.Eventually(func() string { return fmt.Sprint(h.app("plugin-another-policy").Status.Members.NotReady) }).Should(ContainSubstring("Fleet prod has plugin policy there"))
	h.Consistently(func() []string { return names(h.kustomizations()) }).WithTimeout(time.Second).ShouldNot(ContainElement("plugin-another-policy-namespaces-b"))
	h.Expect(holds(h.app("plugin-prod-policy"))).To(BeEmpty())

	// It is the other's when the older one goes.
	h.Expect(h.Delete(t.Context(), &fleetv1.Fleet{ObjectMeta: metav1.ObjectMeta{Name: "prod", Namespace: h.ns}})).To(Succeed())
	h.Eventually(func() []string { h.endChildren(); return names(h.kustomizations()) }).Should(ConsistOf("plugin-another-policy-namespaces-b", "plugin-another-policy-namespaces-c"))
}
