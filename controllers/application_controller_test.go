package controllers

import (
	"context"
	"fmt"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

const web = `
apiVersion: apps.kurator.dev/v1alpha1
kind: Application
metadata: {name: web}
spec:
  source: {gitRepository: {url: https://example.org/app, interval: 1m}}
  destination: {fleet: prod}
  syncPolicies:
  - name: app
    kustomization: {path: ./app, interval: 5m}
`

func patch(h *hub, o client.Object, patch string) {
	h.t.Helper()
	o.SetNamespace(h.ns)
	h.Expect(h.Patch(h.t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch)))).To(Succeed())
}

func TestApplicationServesItsFleet(t *testing.T) {
	h := newHub(t)
	h.attach("c1", "c2")
	h.fleet("prod", "c1", "c2")
	h.apply(web)
	h.start()
	h.Eventually(func() []string { return names(h.kustomizations()) }).Should(ConsistOf("web-app-c1", "web-app-c2"))
	h.ready("web", metav1.ConditionUnknown, "0/2")

	k := h.kustomizations()["web-app-c1"]
	app := h.app("web")
	h.Expect(metav1.IsControlledBy(k, app)).To(BeTrue())
	h.Expect(k.Spec.KubeConfig.SecretRef).To(Equal(&meta.SecretKeyReference{Name: "c1-kubeconfig", Key: "value"}))
	h.Expect(k.Spec.SourceRef).To(Equal(kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "web"}))
	h.Expect(k.Labels).To(HaveKeyWithValue(fleetv1.MemberLabel, "c1"))

	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.Expect(condition(h.ready("web", metav1.ConditionTrue, "2/2"), meta.ReconcilingCondition)).To(BeEmpty())

	t.Log("a member joins and gets everything; the others are not written to")
	before := h.versions()
	h.attach("c3")
	h.fleet("prod", "c1", "c2", "c3")
	h.Eventually(h.kustomizations).Should(HaveKey("web-app-c3"))
	after := h.versions()
	delete(after, "Kustomization/web-app-c3")
	h.Expect(after).To(Equal(before))

	t.Log("a member leaves and loses everything; the others are not written to")
	before = h.versions()
	h.fleet("prod", "c1", "c3")
	h.Eventually(h.kustomizations).ShouldNot(HaveKey("web-app-c2"))
	delete(before, "Kustomization/web-app-c2")
	h.Expect(h.versions()).To(Equal(before))

	t.Log("the Application goes, and everything with it")
	h.Expect(h.Delete(t.Context(), h.app("web"))).To(Succeed())
	h.Eventually(h.versions).Should(BeEmpty())
	h.Eventually(func() bool {
		return apierrors.IsNotFound(h.Get(t.Context(), types.NamespacedName{Namespace: h.ns, Name: "web"}, &appsv1.Application{}))
	}).Should(BeTrue())
}

// Must hold 3: one member never stops another.
func TestApplicationServesWhoIsWell(t *testing.T) {
	h := newHub(t)
	for i := range 10 {
		if i != 3 {
			h.attach(fmt.Sprintf("c%d site=s%d", i, i))
		}
	}
	members := strings.Fields("c0 c1 c2 c3 c4 c5 c6 c7 c8 c9")
	h.fleet("prod", members...)
	h.attach("c3 site=s3")
	h.apply(strings.Replace(web, "path: ./app", `path: './<< .cluster.labels.site >>'`, 1))
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(10))
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.ready("web", metav1.ConditionTrue, "10/10")

	t.Log("one is missing, one has a broken kubeconfig, one does not answer, one lacks a label")
	h.Expect(h.Delete(t.Context(), &clusterv1.AttachedCluster{ObjectMeta: metav1.ObjectMeta{Name: "c3", Namespace: h.ns}})).To(Succeed())
	h.health("c4", metav1.ConditionFalse, "InvalidKubeconfig", "the kubeconfig uses exec")
	h.health("c5", metav1.ConditionFalse, "Unreachable", "does not answer")
	patch(h, &clusterv1.AttachedCluster{ObjectMeta: metav1.ObjectMeta{Name: "c6"}}, `{"metadata":{"labels":{"site":null}}}`)
	broken := []string{"web-app-c3", "web-app-c4", "web-app-c5", "web-app-c6"}
	before := h.kustomizations()

	patch(h, h.app("web"), `{"spec":{"syncPolicies":[{"name":"app","kustomization":{"path":"./<< .cluster.labels.site >>/new","interval":"5m"}}]}}`)
	h.Eventually(func(g Gomega) {
		for name, k := range h.kustomizations() {
			if strings.Contains(strings.Join(broken, " "), name) {
				g.Expect(k.ResourceVersion).To(Equal(before[name].ResourceVersion), "%s is as it was", name)
			} else {
				g.Expect(k.Spec.Path).To(HaveSuffix("/new"))
			}
		}
	}).Should(Succeed())
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	app := h.ready("web", metav1.ConditionFalse, "6/10")
	reasons := map[string]string{}
	for _, m := range app.Status.Members.NotReady {
		reasons[m.Name] = m.Reason
	}
	h.Expect(reasons).To(Equal(map[string]string{"c3": "NotFound", "c4": "InvalidKubeconfig", "c5": "Unreachable", "c6": "RenderFailed"}))
	h.Expect(names(h.kustomizations())).To(ContainElements(broken))
	h.Expect(app.Status.Prune).To(BeNil())

	t.Log("H8: the label alone heals its member, and only that one is written")
	versions := h.versions()
	patch(h, &clusterv1.AttachedCluster{ObjectMeta: metav1.ObjectMeta{Name: "c6"}}, `{"metadata":{"labels":{"site":"x"}}}`)
	h.Eventually(func() string { return h.kustomizations()["web-app-c6"].Spec.Path }).Should(Equal("./x/new"))
	after := h.versions()
	delete(versions, "Kustomization/web-app-c6")
	delete(after, "Kustomization/web-app-c6")
	h.Expect(after).To(Equal(versions))

	t.Log("a member that comes back has what it missed")
	h.health("c5", metav1.ConditionTrue, "Reached", "")
	h.Eventually(func() string { return h.kustomizations()["web-app-c5"].Spec.Path }).Should(Equal("./s5/new"))

	t.Log("W2, W3: somebody else's trouble does not keep what should go")
	h.fleet("prod", "c0", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9")
	h.Eventually(h.kustomizations).ShouldNot(HaveKey("web-app-c1"))
	h.Expect(names(h.kustomizations())).To(ContainElements(broken))
}

func TestPruneBudget(t *testing.T) {
	h := newHub(t)
	h.attach("c1 env=prod", "c2 env=prod", "c3 env=prod", "c4 env=prod")
	h.apply("apiVersion: fleet.kurator.dev/v1alpha1\nkind: Fleet\nmetadata: {name: prod}\nspec: {clusterSelector: {matchLabels: {env: prod}}}")
	h.apply(web)
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(4))
	versions := h.versions()

	t.Log("a selector that suddenly matches nothing ends nothing")
	h.apply("apiVersion: fleet.kurator.dev/v1alpha1\nkind: Fleet\nmetadata: {name: prod}\nspec: {clusterSelector: {matchLabels: {env: prd}}}")
	h.Eventually(func() string { return condition(h.app("web"), appsv1.PruneBlockedCondition) }).
		Should(Equal(`True PruneOverBudget: 4 objects on 4 of 4 members would end, which is over budget: to allow it, annotate the Application with fleet.kurator.dev/allow-prune=1`))
	h.Expect(h.app("web").Status.Prune).To(HaveField("Allow", "1"))
	h.Expect(h.versions()).To(Equal(versions))

	t.Log("nor does it when three of four would go, restarted or not")
	h.apply("apiVersion: fleet.kurator.dev/v1alpha1\nkind: Fleet\nmetadata: {name: prod}\nspec: {clusters: [{name: c1}]}")
	h.Eventually(func() *appsv1.PruneStatus { return h.app("web").Status.Prune }).Should(Equal(&appsv1.PruneStatus{Members: 3, Of: 4, Objects: 3, Allow: "1"}))
	h.stop()
	h.start()
	h.Consistently(h.versions).Should(Equal(versions))

	t.Log("an annotation for another generation allows nothing")
	patch(h, h.app("web"), `{"metadata":{"annotations":{"fleet.kurator.dev/allow-prune":"7"}}}`)
	h.Consistently(h.versions).Should(Equal(versions))

	t.Log("the right one allows it once")
	patch(h, h.app("web"), `{"metadata":{"annotations":{"fleet.kurator.dev/allow-prune":"1"}}}`)
	h.Eventually(func() []string { return names(h.kustomizations()) }).Should(ConsistOf("web-app-c1"))
	h.Eventually(func() *appsv1.PruneStatus { return h.app("web").Status.Prune }).Should(BeNil())
	h.Expect(h.app("web").Status.LastHandledPrune).To(Equal("1"))
	h.fleet("prod", "c1", "c2", "c3")
	h.Eventually(h.kustomizations).Should(HaveLen(3))
	h.fleet("prod", "c1")
	h.Eventually(func() *appsv1.PruneStatus { return h.app("web").Status.Prune }).Should(HaveField("Allow", "1-2"))
	h.Expect(h.kustomizations()).To(HaveLen(3))
	patch(h, h.app("web"), `{"metadata":{"annotations":{"fleet.kurator.dev/allow-prune":"1-2"}}}`)
	h.Eventually(h.kustomizations).Should(HaveLen(1))

	t.Log("what was allowed for some does not cover others: two are held back, suspended, and then the rest is to go")
	h.fleet("prod", "c1", "c2", "c3", "c4")
	h.Eventually(h.kustomizations).Should(HaveLen(4))
	for _, name := range []string{"web-app-c2", "web-app-c3", "web-app-c4"} {
		patch(h, h.kustomizations()[name], `{"spec":{"suspend":true}}`)
	}
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.fleet("prod", "c1")
	h.Eventually(func() *appsv1.PruneStatus { return h.app("web").Status.Prune }).Should(HaveField("Allow", "1-3"))
	patch(h, h.app("web"), `{"metadata":{"annotations":{"fleet.kurator.dev/allow-prune":"1-3"}}}`)
	h.Eventually(func() *appsv1.PruneStatus { return h.app("web").Status.Prune }).Should(HaveField("AllowedBy", "1-3"))
	h.apply("apiVersion: fleet.kurator.dev/v1alpha1\nkind: Fleet\nmetadata: {name: prod}\nspec: {clusters: []}")
	h.Eventually(func() *appsv1.PruneStatus { return h.app("web").Status.Prune }).Should(Equal(&appsv1.PruneStatus{Members: 4, Of: 4, Objects: 4, Allow: "1-4"}))
	h.Consistently(h.kustomizations).Should(HaveKey("web-app-c1"))
	for _, name := range []string{"web-app-c2", "web-app-c3", "web-app-c4"} {
		patch(h, h.kustomizations()[name], `{"spec":{"suspend":false}}`)
	}
	h.fleet("prod", "c1")
	h.Eventually(func() *appsv1.PruneStatus { return h.app("web").Status.Prune }).Should(HaveField("Allow", "1-4"))
	patch(h, h.app("web"), `{"metadata":{"annotations":{"fleet.kurator.dev/allow-prune":"1-4"}}}`)
	h.Eventually(h.kustomizations).Should(HaveLen(1))

	t.Log("a single member that a selector loses stays, too")
	h.apply("apiVersion: fleet.kurator.dev/v1alpha1\nkind: Fleet\nmetadata: {name: prod}\nspec: {clusters: [], clusterSelector: {matchLabels: {env: prd}}}")
	h.Eventually(func() string { return condition(h.app("web"), appsv1.PruneBlockedCondition) }).Should(ContainSubstring("1 objects on 1 of 1"))
	h.Expect(h.kustomizations()).To(HaveLen(1))
}

func TestUnknownIsNotGone(t *testing.T) {
	h := newHub(t)
	h.attach("c1", "c2", "c3")
	h.fleet("prod", "c1", "c2", "c3")
	h.apply(web)
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(3))
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.ready("web", metav1.ConditionTrue, "3/3")
	versions := h.versions()

	t.Log("a fleet that is gone")
	fleet := &fleetv1.Fleet{ObjectMeta: metav1.ObjectMeta{Name: "prod", Namespace: h.ns}}
	h.Expect(h.Delete(t.Context(), fleet)).To(Succeed())
	h.Eventually(func() string { return condition(h.app("web"), meta.ReadyCondition) }).
		Should(Equal(fmt.Sprintf("False FleetNotFound: there is no Fleet prod in namespace %s: create it, or change the destination", h.ns)))
	patch(h, h.app("web"), `{"spec":{"syncPolicies":[{"name":"other","kustomization":{"path":"./other"}}]}}`)
	h.Consistently(h.versions).Should(Equal(versions))

	t.Log("W16: an Application whose fleet is gone can be deleted")
	h.Expect(h.Delete(t.Context(), h.app("web"))).To(Succeed())
	h.Eventually(h.versions).Should(BeEmpty())
}

// A destination may be one cluster, in a fleet or not.
func TestApplicationGoesToOneCluster(t *testing.T) {
	h := newHub(t)
	h.attach("c1", "c2", "c3 site=a")
	h.fleet("prod", "c1", "c2")
	h.apply(web)
	toC3 := strings.NewReplacer("name: web", "name: solo", "{fleet: prod}", "{cluster: {name: c3}}", "./app", "'./<< .cluster.labels.site >>'")
	h.apply(toC3.Replace(web))
	reconciler := h.start()
	h.Eventually(func() []string { return names(h.kustomizations()) }).Should(ConsistOf("web-app-c1", "web-app-c2", "solo-app-c3"))
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.ready("web", metav1.ConditionTrue, "2/2")
	h.ready("solo", metav1.ConditionTrue, "1/1")
	k := h.kustomizations()["solo-app-c3"]
	h.Expect(k.Labels).To(And(HaveKeyWithValue(fleetv1.MemberLabel, "c3"), Not(HaveKey(fleetv1.FleetLabel))))
	h.Expect(k.Spec.KubeConfig.SecretRef.Name).To(Equal("c3-kubeconfig"))

	t.Log("a change of the cluster is seen")
	patch(h, &clusterv1.AttachedCluster{ObjectMeta: metav1.ObjectMeta{Name: "c3"}}, `{"metadata":{"labels":{"site":"b"}}}`)
	h.Eventually(func() string { return h.kustomizations()["solo-app-c3"].Spec.Path }).Should(Equal("./b"))

	t.Log("from a fleet to one of its members: that one keeps its object, the others lose theirs")
	uid := h.kustomizations()["web-app-c1"].UID
	h.apply(strings.Replace(web, "{fleet: prod}", "{cluster: {name: c1, kind: AttachedCluster}}", 1))
	h.Eventually(h.kustomizations).ShouldNot(HaveKey("web-app-c2"))
	h.Expect(h.kustomizations()["web-app-c1"].UID).To(Equal(uid))
	h.Expect(h.kustomizations()["web-app-c1"].Labels).NotTo(HaveKey(fleetv1.FleetLabel))
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.ready("web", metav1.ConditionTrue, "1/1")

	t.Log("a cluster that does not exist: nothing ends, and the status says so")
	h.apply(strings.Replace(web, "{fleet: prod}", "{cluster: {name: c9}}", 1))
	app := h.ready("web", metav1.ConditionFalse, "0/1")
	missing := fmt.Sprintf("there is no Cluster or AttachedCluster c9 in namespace %s: create it, or change the destination", h.ns)
	h.Expect(app.Status.Members.NotReady).To(ConsistOf(fleetv1.NotReadyMember{Name: "c9", Reason: "NotFound", Message: missing}))
	h.Expect(condition(app, appsv1.PruneBlockedCondition)).To(ContainSubstring("web-app-c1 is not ended as long as"))
	h.Consistently(h.kustomizations).Should(HaveKey("web-app-c1"))

	t.Log("when it exists, it is gone to")
	h.attach("c9")
	h.Eventually(func() []string { return names(h.kustomizations()) }).Should(ConsistOf("web-app-c9", "solo-app-c3"))

	t.Log("a cluster that is gone keeps what it has, and one that is being deleted loses it")
	h.Expect(h.Delete(t.Context(), &clusterv1.AttachedCluster{ObjectMeta: metav1.ObjectMeta{Name: "c9", Namespace: h.ns}})).To(Succeed())
	h.ready("web", metav1.ConditionFalse, "0/1")
	h.Consistently(h.kustomizations).Should(HaveKey("web-app-c9"))
	c3 := &clusterv1.AttachedCluster{ObjectMeta: metav1.ObjectMeta{Name: "c3", Namespace: h.ns}}
	patch(h, c3, `{"metadata":{"finalizers":["test/member"]}}`)
	h.Expect(h.Delete(t.Context(), c3)).To(Succeed())
	h.Eventually(func() []string { return names(h.kustomizations()) }).Should(ConsistOf("web-app-c9"))
	patch(h, c3, `{"metadata":{"finalizers":null}}`)

	t.Log("who depends on an Application is looked at when that one's cluster changes")
	c1 := &clusterv1.AttachedCluster{ObjectMeta: metav1.ObjectMeta{Name: "c1", Namespace: h.ns}}
	h.apply(toC3.Replace(strings.Replace(web, "  syncPolicies:", "  dependsOn: [{name: last}]\n  syncPolicies:", 1)))
	h.apply(strings.NewReplacer("name: web", "name: last", "{fleet: prod}", "{cluster: {name: c1}}").Replace(web))
	h.Eventually(func() (apps []string) {
		for _, request := range reconciler.applicationsFor(t.Context(), c1) {
			apps = append(apps, request.Name)
		}
		return apps
	}).Should(ContainElements("last", "solo"))
}

func TestSuspendedFleetStandsStill(t *testing.T) {
	h := newHub(t)
	h.attach("c1", "c2")
	h.fleet("prod", "c1", "c2")
	h.apply(web)
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(2))
	versions := h.versions()
	h.apply("apiVersion: fleet.kurator.dev/v1alpha1\nkind: Fleet\nmetadata: {name: prod}\nspec: {suspend: true, clusters: [{name: c1}]}")
	h.Eventually(func() string { return condition(h.app("web"), meta.ReadyCondition) }).Should(Equal("False Suspended: Fleet prod is suspended"))
	h.Consistently(h.versions).Should(Equal(versions))
}

func TestNothingIsTakenOver(t *testing.T) {
	h := newHub(t)
	h.attach("c1", "c2")
	h.fleet("prod", "c1", "c2")
	foreign := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Name: "web-app-c1", Namespace: h.ns}, Spec: kustomizev1.KustomizationSpec{
		Path: "./theirs", SourceRef: kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "theirs"}}}
	h.Expect(h.Create(t.Context(), foreign)).To(Succeed())
	h.apply(web)
	h.start()
	h.Eventually(h.kustomizations).Should(HaveKey("web-app-c2"))
	app := h.ready("web", metav1.ConditionFalse, "0/2")
	h.Expect(app.Status.Members.NotReady[0]).To(Equal(fleetv1.NotReadyMember{Name: "c1", Kind: "AttachedCluster", Reason: "NotOurs",
		Message: "Kustomization/web-app-c1 exists and is not this Application's: rename the policy, or delete it"}))
	h.Expect(h.kustomizations()["web-app-c1"].ResourceVersion).To(Equal(foreign.ResourceVersion))

	t.Log("W14: a source of that name is not hijacked, either")
	git := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: h.ns}, Spec: sourcev1.GitRepositorySpec{URL: "https://example.org/theirs", Interval: metav1.Duration{Duration: 60e9}}}
	h.Expect(h.Create(t.Context(), git)).To(Succeed())
	h.apply(strings.Replace(web, "name: web", "name: shop", 1))
	h.Eventually(func() string { return condition(h.app("shop"), meta.ReadyCondition) }).
		Should(Equal("False SourceNotReady: GitRepository/shop exists and is not this Application's: rename one of them"))
	h.Expect(h.kustomizations()).NotTo(HaveKey("shop-app-c1"))
	version := git.ResourceVersion
	h.get(git, "shop")
	h.Expect(git.ResourceVersion).To(Equal(version))

	t.Log("what is free again is taken, without anybody asking")
	h.Expect(h.Delete(t.Context(), git)).To(Succeed())
	h.Eventually(h.kustomizations).Should(HaveKey("shop-app-c1"))
	git = &sourcev1.GitRepository{}
	h.get(git, "shop")
	h.Expect(git.Spec.URL).To(Equal("https://example.org/app"))

	t.Log("deleting the Applications leaves what was not theirs")
	h.Expect(h.Delete(t.Context(), h.app("web"))).To(Succeed())
	h.Expect(h.Delete(t.Context(), h.app("shop"))).To(Succeed())
	h.Eventually(func() []string { return names(h.versions()) }).Should(ConsistOf("Kustomization/web-app-c1"))
}

// Must hold 5.
func TestFluxSuspendIsRespected(t *testing.T) {
	h := newHub(t)
	h.attach("c1", "c2")
	h.fleet("prod", "c1", "c2")
	h.apply(web)
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(2))
	h.fluxDoes(metav1.ConditionTrue, "Applied")

	// As flux suspend does it.
	h.Expect(h.Patch(t.Context(), &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Name: "web-app-c1", Namespace: h.ns}},
		client.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":true}}`)), client.FieldOwner("flux"))).To(Succeed())
	version := h.kustomizations()["web-app-c1"].ResourceVersion
	app := h.ready("web", metav1.ConditionTrue, "1/2")
	h.Expect(app.Status.Members.NotReady[0].Message).To(Equal("Kustomization/web-app-c1 is suspended: flux resume kustomization web-app-c1 -n " + h.ns))

	patch(h, app, `{"spec":{"syncPolicies":[{"name":"app","kustomization":{"path":"./new","interval":"5m"}}]}}`)
	h.Eventually(func() string { return h.kustomizations()["web-app-c2"].Spec.Path }).Should(Equal("./new"))
	h.stop()
	reconciler := h.start()
	h.ready("web", metav1.ConditionUnknown, "0/2")
	for range 24 { // a day of resyncs
		_, err := reconciler.Reconcile(context.Background(), requestFor(app))
		h.Expect(err).NotTo(HaveOccurred())
	}
	h.Expect(h.kustomizations()["web-app-c1"].ResourceVersion).To(Equal(version), "untouched")

	t.Log("it is not ended while it is suspended, as Flux would leave everything behind")
	h.fleet("prod", "c2")
	h.Eventually(func() string { return condition(h.app("web"), appsv1.PruneBlockedCondition) }).Should(ContainSubstring("web-app-c1 is suspended"))
	h.Expect(h.kustomizations()["web-app-c1"].ResourceVersion).To(Equal(version), "untouched")
	h.fleet("prod", "c1", "c2")

	t.Log("resumed, it gets what it missed")
	h.Expect(h.Patch(t.Context(), &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Name: "web-app-c1", Namespace: h.ns}},
		client.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":false}}`)), client.FieldOwner("flux"))).To(Succeed())
	h.Eventually(func() string { return h.kustomizations()["web-app-c1"].Spec.Path }).Should(Equal("./new"))
}

func requestFor(o client.Object) (r struct{ types.NamespacedName }) {
	r.NamespacedName = client.ObjectKeyFromObject(o)
	return r
}

func TestReconcileRequests(t *testing.T) {
	h := newHub(t)
	h.attach("c1")
	h.fleet("prod", "c1")
	h.apply(web)
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(1))

	t.Log("H15: on a suspended Application a request waits, and is said to")
	patch(h, h.app("web"), `{"metadata":{"annotations":{"reconcile.fluxcd.io/requestedAt":"t1","kurator.dev/reconcile":"force"}},"spec":{"suspend":true}}`)
	h.Eventually(func() string { return condition(h.app("web"), suspendedCondition) }).Should(ContainSubstring("the reconcile request t1 waits"))
	h.Expect(h.app("web").Status.LastHandledReconcileAt).To(BeEmpty())
	h.Expect(h.kustomizations()["web-app-c1"].Annotations).NotTo(HaveKey(meta.ReconcileRequestAnnotation))

	t.Log("resuming handles it, once, and passes it on")
	patch(h, h.app("web"), `{"spec":{"suspend":false}}`)
	h.Eventually(func() string { return h.app("web").Status.LastHandledReconcileAt }).Should(Equal("t1"))
	h.Expect(h.kustomizations()["web-app-c1"].Annotations).To(HaveKeyWithValue(meta.ReconcileRequestAnnotation, "t1"))
	h.Expect(condition(h.app("web"), suspendedCondition)).To(BeEmpty())
	h.Expect(h.app("web").Status.ForceHandled).To(BeTrue())
	versions := h.versions()
	h.Consistently(h.versions).Should(Equal(versions))

	t.Log("kurator.dev/reconcile=force is handled each time that it is set")
	patch(h, h.app("web"), `{"metadata":{"annotations":{"kurator.dev/reconcile":null}}}`)
	h.Eventually(func() bool { return h.app("web").Status.ForceHandled }).Should(BeFalse())
	patch(h, h.app("web"), `{"metadata":{"annotations":{"kurator.dev/reconcile":"force"}}}`)
	h.Eventually(func() map[string]string { return h.kustomizations()["web-app-c1"].Annotations }).Should(HaveKeyWithValue(meta.ReconcileRequestAnnotation, Not(Equal("t1"))))

	t.Log("kurator.dev/pause=true suspends")
	patch(h, h.app("web"), `{"metadata":{"annotations":{"kurator.dev/pause":"true"}},"spec":{"syncPolicies":[{"name":"app","kustomization":{"path":"./new"}}]}}`)
	h.Eventually(func() string { return condition(h.app("web"), suspendedCondition) }).Should(HavePrefix("True Suspended"))
	h.Expect(h.kustomizations()["web-app-c1"].Spec.Path).To(Equal("./app"))
}

func TestDriftIsCorrected(t *testing.T) {
	h := newHub(t)
	h.attach("c1")
	h.fleet("prod", "c1")
	h.apply(web)
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(1))

	t.Log("a declared field that was edited is set again; an undeclared one is the user's")
	patch(h, h.kustomizations()["web-app-c1"], `{"metadata":{"labels":{"mine":"too"}},"spec":{"path":"./edited","retryInterval":"1m"}}`)
	h.Eventually(func() string { return h.kustomizations()["web-app-c1"].Spec.Path }).Should(Equal("./app"))
	k := h.kustomizations()["web-app-c1"]
	h.Expect(k.Labels).To(HaveKeyWithValue("mine", "too"))
	h.Expect(k.Spec.RetryInterval.Duration.String()).To(Equal("1m0s"))

	t.Log("so are labels, which move no generation, and the owner")
	for _, tamper := range []string{
		`{"metadata":{"labels":{"fleet.kurator.dev/member":"c2"}}}`,
		`{"metadata":{"labels":{"fleet.kurator.dev/member":null,"fleet.kurator.dev/name":null}}}`,
		`{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}}}`,
		`{"metadata":{"ownerReferences":null}}`,
	} {
		patch(h, k.DeepCopy(), tamper)
		h.Eventually(func(g Gomega) {
			now := h.kustomizations()["web-app-c1"]
			g.Expect(now.UID).To(Equal(k.UID), "it is the same object, and was not ended")
			g.Expect(now.Labels).To(Equal(k.Labels))
			g.Expect(now.OwnerReferences).To(HaveLen(1))
		}).Should(Succeed(), tamper)
	}

	t.Log("a child that was deleted comes back")
	h.Expect(h.Delete(t.Context(), k)).To(Succeed())
	h.Eventually(func() types.UID {
		if k := h.kustomizations()["web-app-c1"]; k != nil {
			return k.UID
		}
		return k.UID
	}).ShouldNot(Equal(k.UID))
}

const shop = `
apiVersion: apps.kurator.dev/v1alpha1
kind: Application
metadata: {name: %s}
spec:
  source: {helmRepository: {url: https://example.org/charts, interval: 1h}}
  destination: {fleet: prod}
  syncPolicies:
  - name: chart
    helm: {chart: {spec: {chart: nginx, version: "1.2.3"}}, releaseName: ingress, targetNamespace: ingress}
`

// A null in values has to reach Helm, where it takes the chart's default away; types stay what they are (H1).
func TestValuesArriveAsTheyAre(t *testing.T) {
	h := newHub(t)
	h.attach("c1 tenant=004 legacy=no replicas=3")
	h.fleet("prod", "c1")
	h.apply(strings.Replace(fmt.Sprintf(shop, "a"), "releaseName: ingress,", `releaseName: ingress, values: {gone: null, list: [1, "2", 1.5],
      tenant: "<< .cluster.labels.tenant >>", legacy: "<< .cluster.labels.legacy >>", replicas: "<< .cluster.labels.replicas | number >>"},`, 1))
	h.start()
	h.Eventually(h.releases).Should(HaveLen(1))
	h.Expect(string(h.releases()["a-chart-c1"].Spec.Values.Raw)).To(MatchJSON(`{"gone":null,"list":[1,"2",1.5],"tenant":"004","legacy":"no","replicas":3}`))
	version := h.releases()["a-chart-c1"].ResourceVersion
	h.stop()
	h.start()
	h.Consistently(func() string { return h.releases()["a-chart-c1"].ResourceVersion }).Should(Equal(version))
}

// H7: one HelmRelease for one Helm release.
func TestReleaseConflict(t *testing.T) {
	h := newHub(t)
	h.attach("c1", "c2")
	h.fleet("prod", "c1", "c2")
	h.apply(fmt.Sprintf(shop, "a"))
	h.start()
	h.Eventually(h.releases).Should(HaveLen(2))
	h.apply(fmt.Sprintf(shop, "b"))
	app := h.ready("b", metav1.ConditionFalse, "0/2")
	h.Expect(app.Status.Members.NotReady[0].Reason).To(Equal("ReleaseConflict"))
	h.Expect(app.Status.Members.NotReady[0].Message).To(ContainSubstring("/a-chart-c1 of Application a"))
	h.Expect(h.releases()).To(HaveLen(2))

	h.Expect(h.Delete(t.Context(), h.app("a"))).To(Succeed())
	h.Eventually(func() []string { return names(h.releases()) }).Should(ConsistOf("b-chart-c1", "b-chart-c2"))
	h.fluxDoes(metav1.ConditionTrue, "Installed")
	h.ready("b", metav1.ConditionTrue, "2/2")

	t.Log("two at the same moment: one of them has it")
	h.apply(strings.ReplaceAll(fmt.Sprintf(shop, "d"), "ingress", "other"))
	h.apply(strings.ReplaceAll(fmt.Sprintf(shop, "e"), "ingress", "other"))
	h.Eventually(h.releases).Should(HaveLen(4))
	h.Consistently(h.releases).Should(HaveLen(4))
}

func TestOrder(t *testing.T) {
	h := newHub(t)
	h.attach("c1", "c2")
	h.fleet("prod", "c1", "c2")
	h.apply(`
apiVersion: apps.kurator.dev/v1alpha1
kind: Application
metadata: {name: web}
spec:
  source: {gitRepository: {url: https://example.org/app, interval: 1m}}
  destination: {fleet: prod}
  syncPolicies:
  - name: base
    kustomization: {path: ./base}
  - name: app
    dependsOn: [{name: base}]
    kustomization: {path: ./app}
  - name: chart
    dependsOn: [{name: app}]
    helm: {chart: {spec: {chart: ./chart}}}
`)
	h.start()
	h.Eventually(func() []string { return names(h.kustomizations()) }).Should(ConsistOf("web-base-c1", "web-base-c2", "web-app-c1", "web-app-c2"))
	h.Expect(h.kustomizations()["web-app-c1"].Spec.DependsOn).To(Equal([]kustomizev1.DependencyReference{{Name: "web-base-c1"}}))
	h.Expect(h.ready("web", metav1.ConditionUnknown, "0/2").Status.Members.NotReady[0].Message).To(Equal("HelmRelease/web-chart-c1 waits for Kustomization/web-app-c1"))
	h.Expect(h.releases()).To(BeEmpty())

	t.Log("each member goes on when its own is ready")
	h.fluxDoesOne(h.kustomizations()["web-app-c2"], metav1.Condition{Type: "Ready", Status: "True", Reason: "Test"})
	h.Eventually(h.releases).Should(HaveKey("web-chart-c2"))
	h.Expect(h.releases()).To(HaveLen(1))
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.Eventually(h.releases).Should(HaveLen(2))

	t.Log("what is there stays when what it came after fails")
	h.fluxDoes(metav1.ConditionFalse, "broken")
	h.ready("web", metav1.ConditionFalse, "0/2")
	h.Expect(h.releases()).To(HaveLen(2))

	t.Log("the end is in reverse order, one after the other")
	for _, r := range h.releases() {
		patch(h, r, `{"metadata":{"finalizers":["test/flux"]}}`)
	}
	for _, k := range h.kustomizations() {
		patch(h, k, `{"metadata":{"finalizers":["test/flux"]}}`)
	}
	h.Expect(h.Delete(t.Context(), h.app("web"))).To(Succeed())
	deletingNames := func() []string {
		var out []string
		for name, k := range h.kustomizations() {
			if deleting(k) {
				out = append(out, name)
			}
		}
		for name, r := range h.releases() {
			if deleting(r) {
				out = append(out, name)
			}
		}
		return out
	}
	h.Eventually(deletingNames).Should(ConsistOf("web-chart-c1", "web-chart-c2"))
	h.Consistently(deletingNames).Should(ConsistOf("web-chart-c1", "web-chart-c2"))
	for _, r := range h.releases() {
		patch(h, r, `{"metadata":{"finalizers":null}}`)
	}
	h.Eventually(deletingNames).Should(ConsistOf("web-app-c1", "web-app-c2"))
	for _, name := range []string{"web-app-c1", "web-app-c2"} {
		patch(h, h.kustomizations()[name], `{"metadata":{"finalizers":null}}`)
	}
	h.Eventually(deletingNames).Should(ConsistOf("web-base-c1", "web-base-c2"))
	for _, k := range h.kustomizations() {
		patch(h, k, `{"metadata":{"finalizers":null}}`)
	}
	h.Eventually(h.versions).Should(BeEmpty())
}

func TestApplicationsDependOnEachOther(t *testing.T) {
	h := newHub(t)
	h.attach("c1", "c2")
	h.fleet("prod", "c1", "c2")
	h.start()
	h.apply(strings.Replace(web, "spec:", "spec:\n  dependsOn: [{name: base}]", 1))
	h.Eventually(func() string { return condition(h.app("web"), meta.ReadyCondition) }).Should(ContainSubstring("c1 (Waiting)"))
	h.Expect(h.kustomizations()).To(BeEmpty())

	h.apply(strings.ReplaceAll(web, "name: web", "name: base"))
	h.Eventually(h.kustomizations).Should(HaveLen(4))
	h.Expect(h.kustomizations()["web-app-c2"].Spec.DependsOn).To(Equal([]kustomizev1.DependencyReference{{Name: "base-app-c2"}}))

	t.Log("deleted together, they end one after the other")
	patch(h, h.kustomizations()["web-app-c1"], `{"metadata":{"finalizers":["test/flux"]}}`)
	h.Expect(h.Delete(t.Context(), h.app("web"))).To(Succeed())
	h.Expect(h.Delete(t.Context(), h.app("base"))).To(Succeed())
	h.Eventually(func() string { return condition(h.app("base"), meta.ReadyCondition) }).Should(ContainSubstring("waits for Application web"))
	h.Expect(h.kustomizations()).To(HaveKey("base-app-c1"))
	patch(h, h.kustomizations()["web-app-c1"], `{"metadata":{"finalizers":null}}`)
	h.Eventually(h.versions).Should(BeEmpty())
	h.apply(strings.Replace(web, "spec:", "spec:\n  dependsOn: [{name: base}]", 1))
	h.apply(strings.ReplaceAll(web, "name: web", "name: base"))
	h.Eventually(h.kustomizations).Should(HaveLen(4))

	t.Log("waiting for each other is refused, with the way round")
	h.apply(strings.Replace(strings.ReplaceAll(web, "name: web", "name: base"), "spec:", "spec:\n  dependsOn: [{name: web}]", 1))
	h.Eventually(func() string { return condition(h.app("base"), meta.StalledCondition) }).Should(ContainSubstring("base → web → base"))
	h.Expect(h.kustomizations()).To(HaveLen(4))
}

func TestMemberOfAnotherKindIsAnotherMember(t *testing.T) {
	h := newHub(t)
	h.attach("c1", "c2")
	h.fleet("prod", "c1", "c2")
	h.apply(web)
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(2))
	uid := h.kustomizations()["web-app-c1"].UID
	patch(h, h.kustomizations()["web-app-c1"], `{"metadata":{"finalizers":["test/flux"]}}`)

	h.apply("apiVersion: cluster.kurator.dev/v1alpha1\nkind: Cluster\nmetadata: {name: c1}\nspec: {kind: AttachedCluster, kubeconfigRef: {name: other}}")
	c := &clusterv1.Cluster{}
	h.get(c, "c1")
	before := c.DeepCopy()
	c.Status.ObservedGeneration = c.Generation
	c.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Reached", LastTransitionTime: metav1.Now()}}
	h.Expect(h.Status().Patch(t.Context(), c, client.MergeFrom(before))).To(Succeed())
	h.apply("apiVersion: fleet.kurator.dev/v1alpha1\nkind: Fleet\nmetadata: {name: prod}\nspec: {clusters: [{name: c1, kind: Cluster}, {name: c2}]}")

	t.Log("the old one's child ends first; it is never pointed at the new one")
	h.Eventually(func() bool { return deleting(h.kustomizations()["web-app-c1"]) }).Should(BeTrue())
	h.Expect(h.kustomizations()["web-app-c1"].Spec.KubeConfig.SecretRef.Name).To(Equal("c1-kubeconfig"))
	patch(h, h.kustomizations()["web-app-c1"], `{"metadata":{"finalizers":null}}`)
	h.Eventually(func(g Gomega) {
		k := h.kustomizations()["web-app-c1"]
		g.Expect(k).NotTo(BeNil())
		g.Expect(k.UID).NotTo(Equal(uid))
		g.Expect(k.Spec.KubeConfig.SecretRef.Name).To(Equal("other"))
	}).Should(Succeed())
}

func TestOrphan(t *testing.T) {
	h := newHub(t)
	h.attach("c1", "c2")
	h.fleet("prod", "c1", "c2")
	h.apply(strings.Replace(fmt.Sprintf(shop, "a"), "spec:", "spec:\n  deletionPolicy: Orphan", 1))
	h.apply(web)
	h.start()
	h.Eventually(h.releases).Should(HaveLen(2))
	h.Eventually(h.kustomizations).Should(HaveLen(2))
	h.Expect(h.kustomizations()["web-app-c1"].Spec.DeletionPolicy).To(BeEmpty())
	patch(h, h.releases()["a-chart-c2"], `{"metadata":{"finalizers":["test/flux"]}}`)
	patch(h, h.kustomizations()["web-app-c2"], `{"metadata":{"finalizers":["test/flux"]}}`)

	t.Log("the policy is changed and the member leaves at the same time")
	patch(h, h.app("web"), `{"spec":{"deletionPolicy":"Orphan"}}`)
	h.fleet("prod", "c1")
	h.Eventually(func(g Gomega) {
		r, k := h.releases()["a-chart-c2"], h.kustomizations()["web-app-c2"]
		g.Expect(deleting(r)).To(BeTrue())
		g.Expect(r.Spec.Suspend).To(BeTrue(), "helm-controller leaves the release of a suspended HelmRelease")
		g.Expect(deleting(k)).To(BeTrue())
		g.Expect(k.Spec.DeletionPolicy).To(Equal(kustomizev1.DeletionPolicyOrphan))
	}).Should(Succeed())
	patch(h, h.releases()["a-chart-c2"], `{"metadata":{"finalizers":null}}`)
	patch(h, h.kustomizations()["web-app-c2"], `{"metadata":{"finalizers":null}}`)
}

// W12: a policy that is taken out ends, when it may.
func TestPolicyTakenOut(t *testing.T) {
	h := newHub(t)
	h.attach("c1", "c2")
	h.fleet("prod", "c1", "c2")
	h.apply(web + "  - name: extra\n    kustomization: {path: ./extra}\n")
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(4))
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.apply(web)
	h.Eventually(func() *appsv1.PruneStatus { return h.app("web").Status.Prune }).Should(Equal(&appsv1.PruneStatus{Members: 2, Of: 2, Objects: 2, Allow: "2"}))
	h.Expect(h.kustomizations()).To(HaveLen(4))
	patch(h, h.app("web"), `{"metadata":{"annotations":{"fleet.kurator.dev/allow-prune":"2"}}}`)
	h.Eventually(func() []string { return names(h.kustomizations()) }).Should(ConsistOf("web-app-c1", "web-app-c2"))
}

// What gets another name is a new child, which takes over what the old one applied: until it has, the old one stays.
func TestPolicyRenamed(t *testing.T) {
	h := newHub(t)
	h.attach("c1")
	h.fleet("prod", "c1")
	h.apply(web)
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(1))
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.apply(strings.Replace(web, "name: app", "name: new", 1))
	h.Eventually(h.kustomizations).Should(HaveLen(2))
	h.Consistently(h.kustomizations).Should(HaveKey("web-app-c1"))
	h.Expect(condition(h.app("web"), meta.ReconcilingCondition)).NotTo(BeEmpty())

	h.fluxDoesOne(h.kustomizations()["web-new-c1"], metav1.Condition{Type: "Ready", Status: "False", Reason: "BuildFailed", Message: "broken"})
	h.Eventually(func() string { return condition(h.app("web"), appsv1.PruneBlockedCondition) }).
		Should(Equal("True PruneHeld: Kustomization/web-app-c1 stays until Kustomization/web-new-c1 is applied"))
	h.Expect(h.kustomizations()).To(HaveKey("web-app-c1"))

	h.fluxDoesOne(h.kustomizations()["web-new-c1"], metav1.Condition{Type: "Ready", Status: "True", Reason: "Test", Message: "Applied"})
	h.Eventually(func() []string { return names(h.kustomizations()) }).Should(ConsistOf("web-new-c1"))
	h.Expect(condition(h.ready("web", metav1.ConditionTrue, "1/1"), appsv1.PruneBlockedCondition)).To(BeEmpty())
}

// Without names, taking out the first policy moves the second into its place. What the second applied is taken over.
func TestPolicyWithoutName(t *testing.T) {
	h := newHub(t)
	h.attach("c1")
	h.fleet("prod", "c1")
	h.apply(strings.Replace(web, "  - name: app\n    kustomization: {path: ./app, interval: 5m}", "  - kustomization: {path: ./first}\n  - kustomization: {path: ./second}", 1))
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(2))
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.ready("web", metav1.ConditionTrue, "1/1")
	h.apply(strings.Replace(web, "  - name: app\n    kustomization: {path: ./app, interval: 5m}", "  - kustomization: {path: ./second}", 1))
	h.Eventually(func() string { return h.kustomizations()["web-0-c1"].Spec.Path }).Should(Equal("./second"))
	h.Consistently(h.kustomizations).Should(HaveKey("web-1-c1"))
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.Eventually(h.kustomizations).ShouldNot(HaveKey("web-1-c1"))
}

// The Helm release of a policy that got another name is handed over: uninstalling and installing it anew would take its
// data with it.
func TestHelmPolicyRenamed(t *testing.T) {
	h := newHub(t)
	h.attach("c1")
	h.fleet("prod", "c1")
	h.apply(fmt.Sprintf(shop, "a"))
	h.start()
	h.Eventually(h.releases).Should(HaveLen(1))
	h.fluxDoes(metav1.ConditionTrue, "Installed")
	h.ready("a", metav1.ConditionTrue, "1/1")
	patch(h, h.releases()["a-chart-c1"], `{"metadata":{"finalizers":["test/flux"]}}`)

	h.apply(strings.Replace(fmt.Sprintf(shop, "a"), "name: chart", "name: new", 1))
	h.Eventually(func(g Gomega) {
		old := h.releases()["a-chart-c1"]
		g.Expect(deleting(old)).To(BeTrue())
		g.Expect(old.Spec.Suspend).To(BeTrue(), "helm-controller leaves the release of a suspended HelmRelease")
	}).Should(Succeed())
	h.Expect(h.releases()).To(HaveLen(1))
	patch(h, h.releases()["a-chart-c1"], `{"metadata":{"finalizers":null}}`)
	h.Eventually(func() []string { return names(h.releases()) }).Should(ConsistOf("a-new-c1"))
	h.Expect(h.releases()["a-new-c1"].Spec.Suspend).To(BeFalse())
}

// W27: people hear of what happened, once.
func TestEvents(t *testing.T) {
	h := newHub(t)
	h.attach("c1")
	h.fleet("prod", "c1")
	h.apply(web)
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(1))
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.ready("web", metav1.ConditionTrue, "1/1")
	h.fluxDoes(metav1.ConditionFalse, "broken")
	h.ready("web", metav1.ConditionFalse, "0/1")
	h.stop()
	close(h.events.Events)
	var events []string
	for e := range h.events.Events {
		events = append(events, e)
	}
	h.Expect(events).To(ConsistOf(
		"Normal ReconciliationSucceeded 1/1 members ready", // the fleet
		"Normal Applied applied 2 objects",
		"Normal ReconciliationSucceeded 1/1 members ready",
		"Warning MembersNotReady 0/1 members ready; c1 (NotReady)",
	))
}

func TestSourceChange(t *testing.T) {
	h := newHub(t)
	h.attach("c1")
	h.fleet("prod", "c1")
	h.apply(web)
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(1))

	t.Log("W12: another kind of source, and the old one ends when nothing uses it any more")
	patch(h, h.app("web"), `{"spec":{"source":{"gitRepository":null,"ociRepository":{"url":"oci://example.org/app","interval":"1m"}}}}`)
	h.Eventually(func() string { return h.kustomizations()["web-app-c1"].Spec.SourceRef.Kind }).Should(Equal("OCIRepository"))
	h.Eventually(h.versions).ShouldNot(HaveKey("GitRepository/web"))
	h.get(&sourcev1.OCIRepository{}, "web")
	h.Expect(h.kustomizations()).To(HaveLen(1))
}

// H5, W27: what Flux says of a child is said of its member, with what to do.
func TestStatusExplains(t *testing.T) {
	h := newHub(t)
	h.attach("c1", "c2")
	h.fleet("prod", "c1", "c2")
	h.apply(strings.Replace(web, "interval: 5m}", "interval: 0s}\n    rollout: {trafficRoutingProvider: istio, workload: {name: w, namespace: web}, serviceName: s, port: 80, rolloutPolicy: {}}\n    overrides:\n    - {clusters: [c9], kustomization: {path: ./x}}\n    - {selector: {matchLabels: {evn: prod}}, kustomization: {path: ./y}}", 1))
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(2))
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.fluxDoesOne(h.kustomizations()["web-app-c2"], metav1.Condition{Type: "Ready", Status: "False", Reason: "Test",
		Message: "HelmRepository/x dry-run failed:\n no matches for kind \"HelmRepository\" in version \"source.toolkit.fluxcd.io/v1\""})
	h.fluxDoesOne(h.kustomizations()["web-app-c1"], metav1.Condition{Type: "Ready", Status: "False", Reason: meta.ArtifactFailedReason,
		Message: "Source artifact not found, retrying in 30s"})
	h.Expect(h.ready("web", metav1.ConditionFalse, "0/2").Status.Members.NotReady).To(ContainElement(
		And(HaveField("Name", "c1"), HaveField("Reason", "Waiting"))), "what ends by itself is no failure")
	h.fluxDoesOne(h.kustomizations()["web-app-c1"], metav1.Condition{Type: "Ready", Status: "True", Reason: "Test", Message: "Applied"})
	app := h.ready("web", metav1.ConditionFalse, "1/2")
	h.Expect(app.Status.Members.NotReady).To(HaveLen(1), "W15: each member has its own state")
	h.Expect(app.Status.Members.NotReady[0]).To(And(HaveField("Name", "c2"), HaveField("Message", ContainSubstring("belongs on the hub: use a helm policy"))))
	h.Expect(condition(app, fleetv1.NotInEffectCondition)).To(And(ContainSubstring("spec.syncPolicies[0].rollout"), ContainSubstring("kustomization.interval: 0s (it is 10m0s)")))
	h.Expect(condition(app, appsv1.OverrideUnmatchedCondition)).To(ContainSubstring("override 1 of app matches no member, override 2 of app matches no member"))
}

// Must hold 6, in small; e2e/bench counts it at the API server.
func TestStandingStillIsFree(t *testing.T) {
	h := newHub(t)
	var members []string
	for i := range 50 {
		name := fmt.Sprintf("c%02d", i)
		h.attach(name)
		members = append(members, name)
	}
	h.fleet("prod", members...)
	h.apply(web)
	h.apply(fmt.Sprintf(shop, "shop"))
	reconciler := h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(50))
	h.Eventually(h.releases).Should(HaveLen(50))
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.ready("web", metav1.ConditionTrue, "50/50")
	h.ready("shop", metav1.ConditionTrue, "50/50")
	h.requests.reset()
	for range 10 {
		for _, name := range []string{"web", "shop"} {
			_, err := reconciler.Reconcile(context.Background(), requestFor(h.app(name)))
			h.Expect(err).NotTo(HaveOccurred())
		}
	}
	h.Expect(h.requests.counted()).To(BeEmpty())

	h.stop()
	h.requests.reset()
	version := h.app("web").ResourceVersion
	reconciler = h.start()
	h.Eventually(func() bool {
		reconciler.mu.Lock()
		defer reconciler.mu.Unlock()
		return len(reconciler.states) == 2
	}).Should(BeTrue())
	h.Consistently(func(g Gomega) {
		for request := range h.requests.counted() {
			g.Expect(request).To(HavePrefix("GET "))
			g.Expect(request).NotTo(HavePrefix("GET one"))
		}
	}).Should(Succeed())
	h.Expect(h.app("web").ResourceVersion).To(Equal(version))
}

// What is decided on a cache that is behind is not done.
func TestEndIsConfirmed(t *testing.T) {
	h := newHub(t)
	h.attach("c1", "c2")
	h.fleet("prod", "c1", "c2")
	h.apply(web)
	reconciler := h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(2))
	ctx := t.Context()
	app := h.app("web")
	h.stop() // the cache stays where it is

	fleet := &fleetv1.Fleet{}
	h.get(fleet, "prod")
	obs := &observed{app: app, fleets: map[string]*fleetv1.Fleet{"prod": fleet}}
	c1 := []client.Object{h.kustomizations()["web-app-c1"]}
	h.Expect(reconciler.confirm(ctx, obs, c1)).To(Succeed())

	patch(h, &clusterv1.AttachedCluster{ObjectMeta: metav1.ObjectMeta{Name: "c1"}}, `{"metadata":{"labels":{"env":"prod"}}}`)
	h.Expect(reconciler.confirm(ctx, obs, c1)).To(MatchError(ContainSubstring("AttachedCluster c1: the cache is behind")))
	h.fleet("prod", "c1")
	h.Expect(reconciler.confirm(ctx, obs, nil)).To(MatchError(ContainSubstring("Fleet prod: the cache is behind")))
	patch(h, h.app("web"), `{"spec":{"suspend":true}}`)
	h.Expect(reconciler.confirm(ctx, obs, nil)).To(MatchError(ContainSubstring("Application web: the cache is behind")))
}

// W13, W14, W18: what is refused at admission says what to write instead.
func TestAdmission(t *testing.T) {
	h := newHub(t)
	create := func(doc string) error {
		o := h.decode(doc)
		return h.Patch(t.Context(), o, client.RawPatch(types.ApplyPatchType, h.json(doc)), client.FieldOwner("test"), client.FieldValidation("Strict"), client.DryRunAll)
	}
	app := func(source, policies string) string {
		return "apiVersion: apps.kurator.dev/v1alpha1\nkind: Application\nmetadata: {name: web}\nspec:\n  source: " + source + "\n  syncPolicies: " + policies
	}
	helmRepository := `{helmRepository: {url: https://example.org, interval: 1m}}`
	oci := `{ociRepository: {url: oci://example.org/x, interval: 1m}}`
	git := `{gitRepository: {url: https://example.org/x, interval: 1m}}`
	for _, tt := range []struct{ name, doc, want string }{
		{"HelmRepository with kustomization", app(helmRepository, `[{kustomization: {path: x}}]`), "use helm in its syncPolicies"},
		{"OCIRepository with chart", app(oci, `[{helm: {chart: {spec: {chart: x}}}}]`), "leave out helm.chart"},
		{"no chart", app(git, `[{helm: {releaseName: x}}]`), "helm.chart is missing"},
		{"sourceRef to charts", app(`{sourceRef: {kind: HelmChart, name: x}}`, `[{kustomization: {path: x}}]`), "holds charts, not manifests"},
		{"two sources", app(`{gitRepository: {url: https://example.org/x, interval: 1m}, bucket: {endpoint: x, bucketName: b, interval: 1m}}`, `[{kustomization: {}}]`), "exactly one of"},
		{"no policies", app(git, `[]`), "at least 1 items"},
		{"neither", app(git, `[{name: x}]`), "exactly one of kustomization and helm"},
		{"same name", app(git, `[{name: x, kustomization: {}}, {name: x, kustomization: {}}]`), "same name"},
		{"override for nobody", app(git, `[{kustomization: {}, overrides: [{kustomization: {path: x}}]}]`), "needs clusters (names) or a selector"},
		{"override of the other kind", app(git, `[{kustomization: {}, overrides: [{clusters: [x], helm: {values: {}}}]}]`), "an override with helm is for a policy with helm"},
		{"long name", strings.Replace(app(git, `[{kustomization: {}}]`), "name: web", "name: "+strings.Repeat("x", 64), 1), "at most 63 characters"},
		{"unknown field", app(git, `[{kustomization: {paths: x}}]`), "paths"},
		{"destination of nothing", strings.Replace(web, "{fleet: prod}", "{}", 1), "exactly one of fleet and cluster"},
		{"fleet and cluster", strings.Replace(web, "{fleet: prod}", "{fleet: prod, cluster: {name: c1}}", 1), "exactly one of fleet and cluster"},
		{"selector without a fleet", strings.Replace(web, "{fleet: prod}", "{cluster: {name: c1}, clusterSelector: {}}", 1), "clusterSelector chooses members of a fleet: set fleet"},
		{"cluster of no kind of ours", strings.Replace(web, "{fleet: prod}", "{cluster: {name: c1, kind: Machine}}", 1), "Unsupported value"},
		{"H2: a label that is no string", "apiVersion: fleet.kurator.dev/v1alpha1\nkind: Fleet\nmetadata: {name: prod}\nspec: {clusters: [{name: c1, labels: {env: prod, gpu: true}}]}", "spec.clusters[0].labels.gpu"},
		{"no kubeconfig", "apiVersion: cluster.kurator.dev/v1alpha1\nkind: AttachedCluster\nmetadata: {name: c}\nspec: {}", "exactly one of kubeconfig"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			NewWithT(t).Expect(create(tt.doc)).To(MatchError(ContainSubstring(tt.want)))
		})
	}
	h.Expect(create(app(oci, `[{helm: {values: {a: 1}}}]`))).To(Succeed())
	h.Expect(create(strings.Replace(web, "{fleet: prod}", "{cluster: {name: c1, kind: Cluster}}", 1))).To(Succeed())
}

func TestRestoredApplicationHasItsObjectsBack(t *testing.T) {
	h := newHub(t)
	k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{fleetv1.ManagedByLabel: fleetv1.ManagedByValue, appsv1.ApplicationLabel: "web"}}}
	h.Expect(ownerName(k)).To(Equal("web"))
	k.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps.kurator.dev/v1alpha1", Kind: "Application", Name: "web", UID: "another", Controller: new(true)}}
	h.Expect(ownerName(k)).To(Equal("web"))
	k.OwnerReferences[0].Kind = "ResourceSet"
	h.Expect(ownerName(k)).To(BeEmpty())
	k.Labels = nil
	h.Expect(ownerName(k)).To(BeEmpty())
	_ = corev1.Namespace{}
	_ = helmv2.HelmRelease{}
}
