package controllers

import (
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/baseline"
)

// pay returns a ClusterConfig with a namespace that would go with it, and more of its spec.
func pay(name, more string) string {
	return `
apiVersion: cluster.kurator.dev/v1alpha1
kind: ClusterConfig
metadata: {name: ` + name + `}
spec:
  target: {fleet: prod}
  namespaces:
  - {name: pay, deletionPolicy: Delete}
` + more
}

var payKey = baseline.Key{Kind: "Namespace", Name: "pay"}

func (h *hub) child(config string) *kustomizev1.Kustomization {
	h.t.Helper()
	k := &kustomizev1.Kustomization{}
	h.get(k, "baseline-"+config+"-objects-c1")
	return k
}

// mark returns how the namespace is marked in the Kustomization of a ClusterConfig.
func (h *hub) mark(config string) func() baseline.Mark {
	return func() baseline.Mark { return baseline.Marks(h.child(config).Spec.Patches)[payKey] }
}

func (h *hub) isGone(config string) func() bool {
	return func() bool {
		err := h.Get(h.t.Context(), types.NamespacedName{Namespace: h.ns, Name: "baseline-" + config + "-objects-c1"}, &kustomizev1.Kustomization{})
		return apierrors.IsNotFound(err)
	}
}

// settledHub has a fleet of one member, and ClusterConfigs that Flux has applied.
func settledHub(t *testing.T, configs ...string) *hub {
	h := newHub(t)
	h.attach("c1")
	h.fleet("prod", "c1")
	for _, c := range configs {
		h.apply(c)
	}
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(len(configs)))
	h.fluxApplies()
	for _, c := range configs {
		h.Eventually(h.said(h.decode(c).GetName(), meta.ReadyCondition)).Should(HavePrefix("True "))
	}
	return h
}

func TestClusterConfigEndsWhenFluxLeavesWhatOthersWant(t *testing.T) {
	h := settledHub(t, pay("hh", "  priority: 5\n"))
	patch(h, h.config("hh"), `{"spec":{"suspend":true}}`)
	h.Eventually(h.said("hh", suspendedCondition)).ShouldNot(BeEmpty())
	h.apply(pay("ll", ""))
	h.Eventually(h.kustomizations).Should(HaveLen(2))
	h.Eventually(h.mark("ll")).Should(Equal(baseline.Mark{Kept: true, Yields: true}), "who is suspended has it still")
	h.fluxAppliesOne(h.child("ll"))
	h.Expect(h.mark("hh")()).To(Equal(baseline.Mark{}))

	t.Log("Flux is told to leave it, and has not applied that: the Kustomization stays")
	h.Expect(h.Delete(t.Context(), h.config("hh"))).To(Succeed())
	h.Eventually(h.mark("hh")).Should(Equal(baseline.Mark{Kept: true}))
	h.Eventually(h.said("hh", meta.ReadyCondition)).Should(And(HavePrefix("False Ending: "), ContainSubstring("baseline-hh-objects-c1 is to leave Namespace pay on c1 first, which ClusterConfig ll wants")))
	generation := h.child("hh").Generation
	h.Consistently(h.isGone("hh")).Should(BeFalse())
	h.Expect(h.child("hh").DeletionTimestamp.IsZero()).To(BeTrue())
	h.Expect(h.child("hh").Generation).To(Equal(generation), "what is appended stays, and is appended once")

	t.Log("nor if it tries, and cannot; then it is said what to do, also after a restart")
	h.fluxDoesOne(h.child("hh"), metav1.Condition{Type: meta.ReadyCondition, Status: metav1.ConditionFalse, Reason: meta.ReconciliationFailedReason, Message: "dry-run failed"})
	h.Eventually(h.said("hh", meta.ReadyCondition)).Should(ContainSubstring("mend what Flux says of it, or take the object out of ClusterConfig ll: dry-run failed"))
	h.stop()
	h.start()
	h.Consistently(h.isGone("hh")).Should(BeFalse())

	t.Log("applied and not healthy is applied")
	h.fluxDoesOne(h.child("hh"), metav1.Condition{Type: meta.ReadyCondition, Status: metav1.ConditionFalse, Reason: meta.HealthCheckFailedReason, Message: "timeout"})
	h.Eventually(h.isGone("hh")).Should(BeTrue())
	h.Eventually(h.mark("ll")).Should(Equal(baseline.Mark{}), "the other one has it alone")
}

func TestClusterConfigEndsWhenOthersDoNotWantIt(t *testing.T) {
	h := settledHub(t, pay("hh", ""))
	patch(h, h.config("hh"), `{"spec":{"suspend":true}}`)
	h.Eventually(h.said("hh", suspendedCondition)).ShouldNot(BeEmpty())
	h.apply(pay("ll", "  - {name: other}\n"))
	h.Eventually(h.kustomizations).Should(HaveLen(2))
	h.fluxAppliesOne(h.child("ll"))
	h.Expect(h.Delete(t.Context(), h.config("hh"))).To(Succeed())
	h.Eventually(h.mark("hh")).Should(Equal(baseline.Mark{Kept: true}))
	h.Consistently(h.isGone("hh")).Should(BeFalse())

	t.Log("one that has become invalid has what its Kustomization applies, also after a restart")
	h.apply(pay("ll", "  resourceQuotas: [{name: q, namespace: pay, hard: {pods: banana}}]\n"))
	h.Eventually(h.said("ll", meta.StalledCondition)).ShouldNot(BeEmpty())
	h.stop()
	h.start()
	h.Consistently(h.isGone("hh")).Should(BeFalse())

	t.Log("who ends wants nothing")
	h.Expect(h.Delete(t.Context(), h.config("ll"))).To(Succeed())
	h.Eventually(h.isGone("hh")).Should(BeTrue())
	h.Eventually(h.isGone("ll")).Should(BeTrue())
}

func TestClusterConfigEndsWhenOthersHaveTakenIt(t *testing.T) {
	h := settledHub(t, pay("hh", ""))
	t.Log("its artifact is not there any more, so Flux cannot be told")
	h.fluxDoesOne(h.child("hh"), metav1.Condition{Type: meta.ReadyCondition, Status: metav1.ConditionFalse, Reason: meta.ArtifactFailedReason, Message: "404"})
	h.apply(pay("ll", "  - {name: other}\n  priority: 5\n"))
	h.Eventually(h.kustomizations).Should(HaveLen(2))
	h.Expect(h.Delete(t.Context(), h.config("hh"))).To(Succeed())
	h.Eventually(h.mark("hh")).Should(Equal(baseline.Mark{Kept: true}))
	h.fluxDoesOne(h.child("hh"), metav1.Condition{Type: meta.ReadyCondition, Status: metav1.ConditionFalse, Reason: meta.ArtifactFailedReason, Message: "404"})
	h.Consistently(h.isGone("hh")).Should(BeFalse())
	h.Eventually(h.mark("ll")).Should(Equal(baseline.Mark{}))
	h.fluxAppliesOne(h.child("ll"))
	h.Eventually(h.isGone("hh")).Should(BeTrue())
}

// What is appended for a member that leaves stays, as nothing is rendered for it, and goes when the member comes back.
func TestClusterConfigMemberLeavesAndComesBack(t *testing.T) {
	h := settledHub(t, pay("hh", "  pruneBudget: 100%\n"))
	h.apply(strings.Replace(pay("ll", "  priority: 5\n"), "{fleet: prod}", "{cluster: {name: c1}}", 1))
	rendered := baseline.Mark{Kept: true, Yields: true}
	h.Eventually(h.mark("hh")).Should(Equal(rendered))
	h.attach("c2")
	h.fleet("prod", "c2")
	h.Eventually(h.kustomizations).Should(HaveKey("baseline-hh-objects-c2"))
	h.fluxAppliesOne(h.kustomizations()["baseline-hh-objects-c2"])
	h.Eventually(h.mark("hh")).Should(Equal(baseline.Mark{Kept: true}))
	h.Eventually(func() string { return condition(h.app("baseline-hh"), appsv1.PruneBlockedCondition) }).Should(ContainSubstring("is to leave Namespace pay on c1 first"))
	h.Eventually(h.said("hh", meta.ReadyCondition)).Should(ContainSubstring("is to leave Namespace pay on c1 first"))
	h.Consistently(h.mark("hh")).Should(Equal(baseline.Mark{Kept: true}))
	h.fleet("prod", "c1", "c2")
	h.Eventually(h.mark("hh")).Should(Equal(rendered))
	h.Expect(h.child("hh").Spec.Patches).To(HaveLen(2))
}

func TestClusterConfigPublishesWhenFluxLeavesWhatOthersWant(t *testing.T) {
	rest := "  - {name: rest}\n"
	without := func(c string) string { return strings.Replace(c, "  - {name: pay, deletionPolicy: Delete}\n", "", 1) }
	h := settledHub(t, pay("x1", rest), without(pay("x2", rest)))
	first, before := h.artifact("x1").Revision, h.artifact("x2").Revision

	t.Log("a line moves: nothing is published before Flux leaves it")
	h.apply(without(pay("x1", rest+"  priority: -1\n")) + "\n---\n" + pay("x2", rest))
	h.Eventually(func() string { return h.artifact("x2").Revision }).ShouldNot(Equal(before))
	h.Eventually(h.mark("x1")).Should(Equal(baseline.Mark{Kept: true}))
	h.Eventually(h.said("x1", meta.ReadyCondition)).Should(And(HavePrefix("Unknown Progressing: "),
		ContainSubstring("baseline-x1-objects-c1 is to leave Namespace pay on c1 first, which ClusterConfig x2 wants")))
	h.Consistently(func() string { return h.artifact("x1").Revision }).Should(Equal(first))
	h.stop()
	h.start()
	h.Consistently(func() string { return h.artifact("x1").Revision }).Should(Equal(first), "nor after a restart")
	h.Expect(h.mark("x1")()).To(Equal(baseline.Mark{Kept: true}))

	t.Log("then it is, and Flux leaves it until the new revision is there")
	h.fluxAppliesOne(h.child("x1"))
	h.Eventually(func() string { return h.artifact("x1").Revision }).ShouldNot(Equal(first))
	h.Consistently(h.mark("x1")).Should(Equal(baseline.Mark{Kept: true}))
	h.stop()
	h.start()
	h.Consistently(h.mark("x1")).Should(Equal(baseline.Mark{Kept: true}))
	h.fluxApplies()
	h.Eventually(h.mark("x1")).Should(Equal(baseline.Mark{}))
	h.fluxApplies()
	h.Eventually(h.said("x1", meta.ReadyCondition)).Should(HavePrefix("True "))
	h.Eventually(h.said("x2", meta.ReadyCondition)).Should(HavePrefix("True "))
}

func TestClusterConfigPublishesWhenOthersHaveTakenIt(t *testing.T) {
	h := settledHub(t, pay("x1", "  - {name: rest}\n"), strings.Replace(pay("x2", ""), "{name: pay", "{name: own", 1))
	first := h.artifact("x1").Revision
	h.apply(strings.Replace(pay("x1", "  - {name: rest}\n"), "{name: pay", "{name: own-1", 1) + "\n---\n" + pay("x2", "  - {name: own}\n"))
	h.Eventually(h.mark("x1")).Should(Equal(baseline.Mark{Kept: true}))
	h.fluxDoesOne(h.child("x1"), metav1.Condition{Type: meta.ReadyCondition, Status: metav1.ConditionFalse, Reason: meta.ArtifactFailedReason, Message: "404"})
	h.Consistently(func() string { return h.artifact("x1").Revision }).Should(Equal(first))
	h.fluxAppliesOne(h.child("x2"))
	h.Eventually(func() string { return h.artifact("x1").Revision }).ShouldNot(Equal(first))
}

func TestClusterConfigThatCannotBeToldHasIt(t *testing.T) {
	cm := func(name, value, more string) string {
		return pay(name, more+"  manifests: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: shared, namespace: pay}, data: {of: "+value+"}}]}\n")
	}
	h := settledHub(t, cm("aa", "A", ""), cm("bb", "B", ""))
	yields, keeps := baseline.Mark{Kept: true, Yields: true}, baseline.Mark{Kept: true}
	marked := func(aa, bb baseline.Mark) {
		t.Helper()
		h.Eventually(h.mark("aa")).Should(Equal(aa))
		h.Eventually(h.mark("bb")).Should(Equal(bb))
		h.fluxApplies()
	}
	marked(keeps, yields)

	t.Log("suspended, it has it whatever the priority of others is, and they say so")
	patch(h, h.config("aa"), `{"spec":{"suspend":true}}`)
	h.apply(cm("bb", "B", "  priority: 10\n"))
	h.Eventually(h.said("bb", clusterv1.ConflictCondition)).Should(ContainSubstring("ConfigMap pay/shared on c1: ClusterConfig aa has applied it, and keeps it whatever the priorities are, as it is suspended: resume it"))
	h.Consistently(h.mark("bb")).Should(Equal(yields))
	patch(h, h.config("aa"), `{"spec":{"suspend":false}}`)
	marked(yields, keeps)

	t.Log("invalid and with a higher priority, it does not get what it has not got, also after a restart")
	invalid := "  resourceQuotas: [{name: q, namespace: pay, hard: {pods: banana}}]\n"
	h.apply(cm("aa", "A", "  priority: 20\n"+invalid))
	h.Eventually(h.said("aa", meta.StalledCondition)).ShouldNot(BeEmpty())
	h.Consistently(h.mark("bb")).Should(Equal(keeps))
	h.stop()
	h.start()
	h.Consistently(h.mark("bb")).Should(Equal(keeps))
	h.Expect(h.mark("aa")()).To(Equal(yields))
	h.apply(cm("aa", "A", "  priority: 20\n"))
	marked(keeps, yields)

	t.Log("nor does it lose what it has")
	h.apply(cm("aa", "A", invalid))
	h.Eventually(h.said("aa", meta.StalledCondition)).ShouldNot(BeEmpty())
	h.stop()
	h.start()
	h.Eventually(h.said("bb", clusterv1.ConflictCondition)).Should(ContainSubstring("as it is invalid: mend it"))
	h.Consistently(h.mark("bb")).Should(Equal(yields))
	h.apply(cm("aa", "A", ""))
	marked(yields, keeps)

	t.Log("its fleet, and its Kustomization, can be suspended as well")
	patch(h, h.child("bb"), `{"spec":{"suspend":true}}`)
	h.apply(cm("bb", "B", "  priority: -10\n"))
	h.Eventually(h.said("aa", clusterv1.ConflictCondition)).Should(ContainSubstring("flux resume kustomization baseline-bb-objects-c1 -n " + h.ns))
	h.Consistently(h.mark("aa")).Should(Equal(yields))
	patch(h, h.child("bb"), `{"spec":{"suspend":false}}`)
	marked(keeps, yields)
}

func TestClusterConfigThatIsNotRenderedHasIt(t *testing.T) {
	cm := func(name, value, more string) string {
		return pay(name, more+"  manifests: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: shared, namespace: pay}, data: {of: '"+value+"'}}]}\n")
	}
	h := newHub(t)
	h.attach("c1 site=eu")
	h.fleet("prod", "c1")
	h.apply(cm("aa", `<< index .cluster.labels "site" >>`, "") + "\n---\n" + cm("bb", "B", ""))
	h.start()
	yields := baseline.Mark{Kept: true, Yields: true}
	h.Eventually(h.kustomizations).Should(HaveLen(2))
	h.Eventually(h.mark("bb")).Should(Equal(yields))
	h.Eventually(h.mark("aa")).Should(Equal(baseline.Mark{Kept: true}))
	h.fluxApplies()
	patch(h, &clusterv1.AttachedCluster{ObjectMeta: metav1.ObjectMeta{Name: "c1", Namespace: h.ns}}, `{"metadata":{"labels":{"site":null}}}`)
	h.Eventually(h.said("aa", meta.ReadyCondition)).Should(ContainSubstring("RenderFailed"))
	h.apply(cm("bb", "B", "  priority: 10\n"))
	h.Eventually(h.said("bb", clusterv1.ConflictCondition)).Should(ContainSubstring("ClusterConfig aa has applied it, and keeps it whatever the priorities are, as it cannot be rendered for this member"))
	h.Consistently(h.mark("bb")).Should(Equal(yields))

	t.Log("what it drops Flux has been told to leave already, and goes on leaving there")
	first := h.artifact("aa").Revision
	h.apply(strings.Replace(pay("aa", "  - {name: rest, labels: {a: '<< index .cluster.labels \"site\" >>'}}\n"), "  - {name: pay, deletionPolicy: Delete}\n", "", 1))
	h.Eventually(func() string { return h.artifact("aa").Revision }).ShouldNot(Equal(first))
	h.Consistently(h.mark("aa")).Should(Equal(baseline.Mark{Kept: true}))
	patch(h, &clusterv1.AttachedCluster{ObjectMeta: metav1.ObjectMeta{Name: "c1", Namespace: h.ns}}, `{"metadata":{"labels":{"site":"us"}}}`)
	h.Eventually(func() string { return h.child("aa").Spec.Patches[0].Patch }).Should(ContainSubstring("us"))
	h.Expect(h.mark("aa")()).To(Equal(baseline.Mark{Kept: true}))
	h.fluxAppliesOne(h.child("aa"))
	h.Eventually(h.mark("aa")).Should(Equal(baseline.Mark{}))
}

func TestClusterConfigOfSuspendedKustomizationIsNotPublished(t *testing.T) {
	h := settledHub(t, pay("x1", "  - {name: rest}\n"))
	first := h.artifact("x1").Revision
	patch(h, h.child("x1"), `{"spec":{"suspend":true}}`)
	h.apply(strings.Replace(pay("x1", ""), "{name: pay", "{name: rest", 1) + "\n---\n" + pay("x2", ""))
	h.Eventually(h.said("x1", meta.ReadyCondition)).Should(And(HavePrefix("Unknown Progressing: nothing of the change is published yet"),
		ContainSubstring("ClusterConfig x2"), ContainSubstring("flux resume kustomization baseline-x1-objects-c1")))
	h.Consistently(func() string { return h.artifact("x1").Revision }).Should(Equal(first))
	patch(h, h.child("x1"), `{"spec":{"suspend":false}}`)
	h.Eventually(h.mark("x1")).Should(Equal(baseline.Mark{Kept: true}))
	h.Expect(h.artifact("x1").Revision).To(Equal(first))
	h.fluxAppliesOne(h.child("x1"))
	h.Eventually(func() string { return h.artifact("x1").Revision }).ShouldNot(Equal(first))
}

func TestClusterConfigThatBecomesAnOverlay(t *testing.T) {
	h := settledHub(t, pay("base", ""))
	overlay := `
apiVersion: cluster.kurator.dev/v1alpha1
kind: ClusterConfig
metadata: {name: base}
spec:
  target: {fleet: prod}
  manifests: {sourceRef: {kind: GitRepository, name: own}}
`
	h.apply(overlay)
	const name = "baseline-base-overlay-overlay-c1"
	h.Eventually(h.kustomizations).Should(HaveKey(name))
	t.Log("what it was stays until the overlay is there, which may have the same objects")
	h.Consistently(func() bool { return h.app("baseline-base").DeletionTimestamp.IsZero() }).Should(BeTrue())
	k := h.kustomizations()[name]
	before := k.DeepCopy()
	k.Status.Inventory = &kustomizev1.ResourceInventory{Entries: []kustomizev1.ResourceRef{{ID: "_pay__Namespace", Version: "v1"}}}
	h.Expect(h.Status().Patch(t.Context(), k, client.MergeFrom(before))).To(Succeed())
	h.fluxDoesOne(k, metav1.Condition{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: "Test"})
	h.Eventually(h.mark("base")).Should(Equal(baseline.Mark{Kept: true}))
	h.Expect(h.isGone("base")()).To(BeFalse())
	h.Eventually(func() string { return condition(h.app("baseline-base"), meta.ReadyCondition) }).Should(ContainSubstring("which the other Application of ClusterConfig base wants"))
	h.fluxAppliesOne(h.child("base"))
	h.Eventually(h.isGone("base")).Should(BeTrue())
}

func TestMessagesNameNoTemporaryFolders(t *testing.T) {
	g := NewWithT(t)
	g.Expect(shorten("kustomization path not found: stat '/tmp/kustomization-1025466163/nothere': no such file")).To(Equal("kustomization path not found: stat 'nothere': no such file"))
	g.Expect(shorten("accumulating /tmp/kustomization-7/a.yaml and kustomization-controller")).To(Equal("accumulating a.yaml and kustomization-controller"))
}
