package controllers

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/baseline"
)

const quotas = `
apiVersion: cluster.kurator.dev/v1alpha1
kind: ClusterConfig
metadata: {name: quotas}
spec:
  target: {fleet: prod}
  namespaces: [{name: shop}]
  resourceQuotas:
  - {name: default, namespace: shop, hard: {pods: "10"}}
`

func (h *hub) config(name string) *clusterv1.ClusterConfig {
	h.t.Helper()
	c := &clusterv1.ClusterConfig{}
	h.get(c, name)
	return c
}

// said returns a condition of a ClusterConfig as text.
func (h *hub) said(config, t string) func() string {
	return func() string {
		c := apimeta.FindStatusCondition(h.config(config).Status.Conditions, t)
		if c == nil {
			return ""
		}
		return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
	}
}

func (h *hub) artifact(config string) *meta.Artifact {
	h.t.Helper()
	ea := &sourcev1.ExternalArtifact{}
	h.get(ea, "baseline-"+config)
	return ea.Status.Artifact
}

// fluxApplies says that Flux has applied what is published now to every child.
func (h *hub) fluxApplies() {
	h.t.Helper()
	for _, k := range h.kustomizations() {
		h.fluxAppliesOne(k)
	}
}

// inventory returns what is published: the names of what the ClusterConfig declares, if it is valid.
func (h *hub) inventory(ea *sourcev1.ExternalArtifact) *kustomizev1.ResourceInventory {
	if ea.Spec.SourceRef.Kind != clusterv1.ClusterConfigKind {
		return nil
	}
	rendered, err := baseline.Render(h.config(ea.Spec.SourceRef.Name))
	if err != nil || rendered.Revision != ea.Status.Artifact.Revision {
		return nil
	}
	out := &kustomizev1.ResourceInventory{Entries: []kustomizev1.ResourceRef{}}
	for _, o := range rendered.Objects {
		gvk := o.GroupVersionKind()
		out.Entries = append(out.Entries, kustomizev1.ResourceRef{
			ID: fmt.Sprintf("%s_%s_%s_%s", o.GetNamespace(), strings.ReplaceAll(o.GetName(), ":", "__"), gvk.Group, gvk.Kind), Version: gvk.Version})
	}
	return out
}

func (h *hub) fluxAppliesOne(k *kustomizev1.Kustomization) {
	h.t.Helper()
	ea := &sourcev1.ExternalArtifact{}
	h.get(ea, k.Spec.SourceRef.Name)
	before := k.DeepCopy()
	revision := ea.Status.Artifact.Revision
	k.Status.ObservedGeneration, k.Status.LastAppliedRevision, k.Status.LastAttemptedRevision = k.Generation, revision, revision
	if inventory := h.inventory(ea); inventory != nil { // else it is an older one, which it has
		k.Status.Inventory = inventory
	}
	apimeta.SetStatusCondition(&k.Status.Conditions, metav1.Condition{Type: meta.ReadyCondition, Status: metav1.ConditionTrue,
		Reason: "ReconciliationSucceeded", Message: "Applied revision: " + ea.Status.Artifact.Revision, ObservedGeneration: k.Generation})
	h.Expect(h.Status().Patch(h.t.Context(), k, client.MergeFrom(before))).To(Succeed())
}

func TestClusterConfigIsOneArtifactForAllMembers(t *testing.T) {
	h := newHub(t)
	h.attach("c1", "c2 size=large")
	h.fleet("prod", "c1", "c2")
	h.apply(quotas)
	h.start()
	h.Eventually(func() []string { return names(h.kustomizations()) }).Should(ConsistOf("baseline-quotas-objects-c1", "baseline-quotas-objects-c2"))
	h.Eventually(h.said("quotas", meta.ReadyCondition)).Should(HavePrefix("Unknown Progressing: "))
	k := h.kustomizations()["baseline-quotas-objects-c1"]
	h.Expect(k.Spec.SourceRef).To(Equal(kustomizev1.CrossNamespaceSourceReference{Kind: "ExternalArtifact", Name: "baseline-quotas"}))
	h.Expect(k.Spec.Prune).To(BeTrue())
	h.fluxApplies()
	h.Eventually(h.said("quotas", meta.ReadyCondition)).Should(HavePrefix("True ReconciliationSucceeded: 2/2 members ready"))
	h.Expect(h.config("quotas").Status.Revision).To(Equal(h.artifact("quotas").Revision))

	t.Log("another value is another artifact, and no Kustomization is written; it is not ready before the members have it")
	before, first := h.versions(), h.artifact("quotas")
	h.apply(strings.Replace(quotas, `pods: "10"`, `pods: "20"`, 1))
	h.Eventually(func() string { return h.artifact("quotas").Revision }).ShouldNot(Equal(first.Revision))
	h.Eventually(h.said("quotas", meta.ReadyCondition)).Should(HavePrefix("Unknown Progressing: 2 members do not have "))
	h.Expect(h.versions()).To(Equal(before))
	h.fluxApplies()
	h.Eventually(h.said("quotas", meta.ReadyCondition)).Should(HavePrefix("True "))

	t.Log("an override touches its member alone, and no artifact")
	before, second := h.versions(), h.artifact("quotas")
	override := strings.Replace(quotas, `pods: "10"`, `pods: "20"`, 1) + `
  overrides:
  - selector: {matchLabels: {size: large}}
    patches:
    - target: {kind: ResourceQuota, name: default}
      patch: |
        - {op: replace, path: /spec/hard/pods, value: "99"}
`
	h.apply(override)
	h.Eventually(func() string { return h.versions()["Kustomization/baseline-quotas-objects-c2"] }).ShouldNot(Equal(before["Kustomization/baseline-quotas-objects-c2"]))
	h.Expect(h.versions()["Kustomization/baseline-quotas-objects-c1"]).To(Equal(before["Kustomization/baseline-quotas-objects-c1"]))
	h.Expect(h.artifact("quotas")).To(Equal(second))

	t.Log("a restart on an empty disk publishes the same and writes nothing")
	h.fluxApplies()
	h.Eventually(h.said("quotas", meta.ReadyCondition)).Should(HavePrefix("True "))
	before = h.versions()
	h.stop()
	h.requests.reset()
	h.start()
	h.Eventually(func() error { return h.stager.Ready(httptest.NewRequest(http.MethodGet, "/readyz", nil)) }).Should(Succeed())
	h.Consistently(h.requests.counted).ShouldNot(Or(HaveKey(HavePrefix("PATCH")), HaveKey(HavePrefix("POST"))))
	h.Expect(h.artifact("quotas")).To(Equal(second))
	h.Expect(h.versions()).To(Equal(before))

	t.Log("it goes, and everything with it")
	h.Expect(h.Delete(t.Context(), h.config("quotas"))).To(Succeed())
	h.Eventually(func() bool {
		return apierrors.IsNotFound(h.Get(t.Context(), types.NamespacedName{Namespace: h.ns, Name: "quotas"}, &clusterv1.ClusterConfig{}))
	}).Should(BeTrue())
	h.Expect(h.kustomizations()).To(BeEmpty())
}

func TestClusterConfigSaysWhatIsWrong(t *testing.T) {
	h := newHub(t)
	h.attach("c1 pods=5", "c2")
	h.apply(quotas)
	h.start()
	h.Eventually(h.said("quotas", meta.ReadyCondition)).Should(And(HavePrefix("False FleetNotFound: "), ContainSubstring("there is no Fleet prod")))

	t.Log("a value that is missing for one member is that member's")
	h.apply(strings.Replace(quotas, `pods: "10"`, `pods: '<< index .cluster.labels "pods" >>'`, 1))
	h.Eventually(func() any { return h.app("baseline-quotas").Spec.SyncPolicies[0].Kustomization.Patches }).ShouldNot(BeEmpty())
	h.fleet("prod", "c1", "c2")
	h.Eventually(func() []string { return names(h.kustomizations()) }).Should(ConsistOf("baseline-quotas-objects-c1"))
	h.Expect(h.kustomizations()["baseline-quotas-objects-c1"].Spec.Patches[0].Patch).To(ContainSubstring(`"value":"5"`))
	h.fluxApplies()
	h.Eventually(h.said("quotas", meta.ReadyCondition)).Should(And(HavePrefix("False MembersNotReady: 1/2 members ready"), ContainSubstring("c2 (RenderFailed)")))
	h.Expect(h.config("quotas").Status.Members.NotReady[0].Message).To(ContainSubstring(`the cluster has no label "pods"`))

	t.Log("Flux without the feature gate")
	k := h.kustomizations()["baseline-quotas-objects-c1"]
	h.fluxDoesOne(k, metav1.Condition{Type: meta.ReadyCondition, Status: metav1.ConditionFalse, Reason: "AccessDenied",
		Message: "can't access 'ExternalArtifact/x', ExternalArtifact feature gate is disabled"})
	h.Eventually(func() string {
		for _, m := range h.config("quotas").Status.Members.NotReady {
			if m.Name == "c1" {
				return m.Message
			}
		}
		return ""
	}).Should(ContainSubstring("start Flux's kustomize-controller with --feature-gates=ExternalArtifact=true"))

	t.Log("what cannot be rendered changes nothing that is there")
	before := h.versions()
	h.apply(strings.Replace(quotas, "- {name: default, namespace: shop", "- {name: default, namespace: shop, hard: {pods: 1}}\n  - {name: default, namespace: shop", 1))
	h.Eventually(h.said("quotas", meta.StalledCondition)).Should(HavePrefix("True InvalidSpec: "))
	h.Consistently(h.versions).Should(Equal(before))

	t.Log("an Application that is somebody else's is not taken over")
	h.apply(strings.Replace(web, "name: web", "name: baseline-other", 1))
	h.apply(strings.Replace(quotas, "name: quotas", "name: other", 1))
	h.Eventually(h.said("other", meta.StalledCondition)).Should(HavePrefix("True NotOurs: "))
	h.Expect(metav1.GetControllerOf(h.app("baseline-other"))).To(BeNil())
}

func TestClusterConfigsInConflict(t *testing.T) {
	h := newHub(t)
	h.attach("c1", "c2", "c3")
	h.fleet("prod", "c1", "c2")
	h.apply(quotas)
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(2))
	h.fluxApplies()
	h.Eventually(h.said("quotas", meta.ReadyCondition)).Should(HavePrefix("True "))

	// with returns the Kustomizations of a ClusterConfig in which the quota has an annotation.
	with := func(config, annotation string) func() []string {
		return func() []string {
			var out []string
			for name, k := range h.kustomizations() {
				for _, p := range k.Spec.Patches {
					if strings.HasPrefix(name, "baseline-"+config+"-") && p.Target.Kind == "ResourceQuota" && strings.Contains(p.Patch, annotation) {
						out = append(out, name)
					}
				}
			}
			return out
		}
	}
	const yields, keeps = "ssa: IfNotPresent", "prune: disabled"

	t.Log("the one with the priority has it; the other applies it only where it is not there, and neither prunes it")
	strict := strings.NewReplacer("name: quotas", "name: strict", "{fleet: prod}", "{cluster: {name: c1}}", `pods: "10"`, `pods: "1"`).Replace(quotas) + "  priority: 10\n"
	h.apply(strict)
	h.Eventually(h.kustomizations).Should(HaveKey("baseline-strict-objects-c1"))
	h.Eventually(h.said("quotas", clusterv1.ConflictCondition)).Should(And(ContainSubstring("spec.hard.pods"), ContainSubstring("strict")))
	h.Eventually(h.said("strict", clusterv1.ConflictCondition)).Should(And(ContainSubstring("spec.hard.pods"), ContainSubstring("quotas")))
	settled := func(holder, loser string) {
		t.Helper()
		h.Eventually(with(loser, yields)).Should(ConsistOf("baseline-" + loser + "-objects-c1"))
		h.Eventually(with(holder, keeps)).Should(ConsistOf("baseline-" + holder + "-objects-c1"))
		h.Eventually(with(holder, yields)).Should(BeEmpty())
		h.Eventually(with(loser, keeps)).Should(ConsistOf("baseline-" + loser + "-objects-c1"))
		h.fluxApplies()
	}
	settled("strict", "quotas")
	h.Eventually(h.said("quotas", meta.ReadyCondition)).Should(HavePrefix("True "))

	t.Log("standing still is free")
	h.Eventually(h.said("strict", meta.ReadyCondition)).Should(HavePrefix("True "))
	h.requests.reset()
	h.Consistently(h.requests.counted).ShouldNot(Or(HaveKey(HavePrefix("PATCH")), HaveKey(HavePrefix("POST"))))

	t.Log("places changed by another priority alone")
	h.apply(quotas + "  priority: 20\n")
	settled("quotas", "strict")
	h.apply(quotas + "  priority: 0\n")
	settled("strict", "quotas")

	t.Log("one that cannot be rendered any more has what it had, as it is on the members still")
	h.apply(strings.Replace(strict, "- {name: default", "- {name: default, namespace: shop, hard: {pods: 1}}\n  - {name: default", 1))
	h.Eventually(h.said("strict", meta.StalledCondition)).Should(HavePrefix("True InvalidSpec"))
	h.Consistently(with("quotas", yields)).Should(ConsistOf("baseline-quotas-objects-c1"))

	t.Log("when it goes, the other has it")
	h.Expect(h.Delete(t.Context(), h.config("strict"))).To(Succeed())
	h.Eventually(h.kustomizations).ShouldNot(HaveKey("baseline-strict-objects-c1"))
	h.Eventually(with("quotas", yields)).Should(BeEmpty())
	h.Expect(with("quotas", keeps)()).To(BeEmpty(), "and prunes it again, as nobody else wants it")
	h.Eventually(h.said("quotas", clusterv1.ConflictCondition)).Should(BeEmpty())
}

func TestFleetIsolation(t *testing.T) {
	h := newHub(t)
	h.attach("c1")
	isolated := `
apiVersion: fleet.kurator.dev/v1alpha1
kind: Fleet
metadata: {name: prod}
spec:
  clusters: [{name: c1}]
  policy: {networkIsolation: true, encryption: {enabled: true, algorithm: AES-256-GCM}}
`
	h.apply(isolated)
	h.apply(quotas)
	h.start()
	h.Eventually(h.kustomizations).Should(HaveKey("baseline-prod-isolation-objects-c1"))
	namespaces := func() (out []string) {
		c := &clusterv1.ClusterConfig{}
		if err := h.Get(t.Context(), types.NamespacedName{Namespace: h.ns, Name: "prod-isolation"}, c); err != nil {
			return nil
		}
		for _, n := range c.Spec.NetworkPolicies[0].Namespaces {
			out = append(out, string(n))
		}
		return out
	}
	h.Eventually(namespaces).Should(ConsistOf("default", "shop"))
	fleet := &fleetv1.Fleet{}
	h.get(fleet, "prod")
	h.Expect(metav1.IsControlledBy(h.config("prod-isolation"), fleet)).To(BeTrue())
	c := apimeta.FindStatusCondition(fleet.Status.Conditions, fleetv1.NotInEffectCondition)
	h.Expect(c).NotTo(BeNil())
	h.Expect(c.Message).To(ContainSubstring("not ours to configure"))

	t.Log("taken back, it ends")
	h.apply(strings.Replace(isolated, "networkIsolation: true, ", "", 1))
	h.Eventually(h.kustomizations).ShouldNot(HaveKey("baseline-prod-isolation-objects-c1"))
	h.Eventually(namespaces).Should(BeEmpty())
	h.Expect(h.kustomizations()).To(HaveKey("baseline-quotas-objects-c1"))
}

func TestClusterConfigPassesOn(t *testing.T) {
	h := newHub(t)
	h.attach("c1")
	h.fleet("prod", "c1")
	h.apply(quotas)
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(1))
	app := func() map[string]string { return h.app("baseline-quotas").Annotations }
	patch(h, h.config("quotas"), `{"spec":{"suspend":true},"metadata":{"annotations":{"fleet.kurator.dev/allow-prune":"7","reconcile.fluxcd.io/requestedAt":"now"}}}`)
	h.Eventually(app).Should(HaveKeyWithValue(fleetv1.PauseAnnotation, fleetv1.PauseTrue))
	h.Expect(app()).To(HaveKeyWithValue(fleetv1.AllowPruneAnnotation, "7"))
	patch(h, h.config("quotas"), `{"spec":{"suspend":null},"metadata":{"annotations":{"fleet.kurator.dev/allow-prune":null}}}`)
	h.Eventually(app).ShouldNot(Or(HaveKey(fleetv1.PauseAnnotation), HaveKey(fleetv1.AllowPruneAnnotation)))
	h.Expect(h.app("baseline-quotas").Spec.SyncPolicies).To(HaveLen(1))
	h.Eventually(func() string { return h.config("quotas").Status.LastHandledReconcileAt }).Should(Equal("now"))
}
