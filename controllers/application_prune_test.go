package controllers

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

const selecting = `
apiVersion: fleet.kurator.dev/v1alpha1
kind: Fleet
metadata: {name: prod}
spec: {clusterSelector: {matchLabels: {env: lab}}}
`

func (h *hub) blocked() string { return condition(h.app("web"), appsv1.PruneBlockedCondition) }

// A prune that is over budget is not within it because some of its members stop answering.
func TestBlockedPruneStaysBlocked(t *testing.T) {
	h := newHub(t)
	h.attach("c1 env=lab", "c2 env=lab", "c3 env=lab", "c4 env=lab")
	h.apply(selecting)
	h.apply(web + "  - name: more\n    kustomization: {path: ./more, interval: 5m}\n")
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(8))
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.ready("web", metav1.ConditionTrue, "4/4")

	h.apply(web)
	h.Eventually(h.blocked).Should(ContainSubstring("4 objects on 4 of 4 members would end"))
	for _, c := range []string{"c1", "c2", "c3"} {
		h.health(c, metav1.ConditionFalse, "Unreachable", "does not answer")
	}
	h.Eventually(func() int { return len(h.app("web").Status.Members.NotReady) }).Should(Equal(3))
	h.Consistently(h.kustomizations).Should(HaveLen(8))
	h.Expect(h.blocked()).To(ContainSubstring("4 objects on 4 of 4 members would end"))

	t.Log("what is left of the labels of a child does not matter while its member does not answer")
	for name, labels := range map[string]string{"web-app-c1": `{"fleet.kurator.dev/member-kind":null}`, "web-app-c2": `{"fleet.kurator.dev/member":"zzz"}`} {
		patch(h, &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Name: name}}, `{"metadata":{"labels":`+labels+`}}`)
	}
	h.Consistently(h.kustomizations).Should(HaveLen(8))
	for _, c := range []string{"c1", "c2", "c3"} {
		h.health(c, metav1.ConditionTrue, "Reached", "")
	}
	h.Eventually(func() string { return h.kustomizations()["web-app-c2"].Labels[fleetv1.MemberLabel] }).Should(Equal("c2"), "repaired")
	h.Consistently(h.kustomizations).Should(HaveLen(8))
}

// A permission that nobody was asked for is none.
func TestPermissionInAdvance(t *testing.T) {
	h := newHub(t)
	h.attach("c1 env=lab", "c2 env=lab", "c3 env=lab")
	h.apply(selecting)
	h.apply(strings.Replace(web, "{name: web}", `{name: web, annotations: {fleet.kurator.dev/allow-prune: "1"}}`, 1))
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(3))
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.ready("web", metav1.ConditionTrue, "3/3")
	nowhere := strings.Replace(selecting, "env: lab", "env: none", 1)

	h.apply(nowhere)
	h.Eventually(h.blocked).Should(HaveSuffix("allow-prune=1-2"))
	h.Consistently(h.kustomizations).Should(HaveLen(3))

	t.Log("one that comes when there is nothing to end any more")
	h.apply(selecting)
	h.Eventually(h.blocked).Should(BeEmpty())
	patch(h, h.app("web"), `{"metadata":{"annotations":{"fleet.kurator.dev/allow-prune":"1-2"}}}`)
	h.Eventually(func() string { return h.app("web").Status.LastHandledPrune }).Should(Equal("1-2"))
	h.apply(nowhere)
	h.Eventually(h.blocked).Should(HaveSuffix("allow-prune=1-3"))
	h.Consistently(h.kustomizations).Should(HaveLen(3))

	patch(h, h.app("web"), `{"metadata":{"annotations":{"fleet.kurator.dev/allow-prune":"1-3"}}}`)
	h.Eventually(h.kustomizations).Should(BeEmpty())
	h.Eventually(func() *appsv1.PruneStatus { return h.app("web").Status.Prune }).Should(BeNil())
	h.Expect(h.app("web").Status.LastHandledPrune).To(Equal("1-3"))
}

// What comes after a suspended child ends after it, and so not before it is resumed.
func TestSuspendedHoldsWhatItNeeds(t *testing.T) {
	h := newHub(t)
	h.attach("c1")
	h.fleet("prod", "c1")
	h.apply(web + "  - name: more\n    dependsOn: [{name: app}]\n    kustomization: {path: ./more, interval: 5m}\n")
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(2))
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.ready("web", metav1.ConditionTrue, "1/1")
	suspend := func(on bool) {
		patch(h, &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Name: "web-more-c1"}}, fmt.Sprintf(`{"spec":{"suspend":%v}}`, on))
	}
	suspend(true)
	h.Expect(h.Delete(t.Context(), h.app("web"))).To(Succeed())
	h.Consistently(h.kustomizations).Should(HaveLen(2))
	suspend(false)
	h.Eventually(h.kustomizations).Should(BeEmpty())
}

// An object whose owner and labels name different Applications is ended by neither.
func TestDisputedOwner(t *testing.T) {
	h := newHub(t)
	h.attach("c1", "c2")
	h.fleet("prod", "c1", "c2")
	h.apply(web)
	h.apply(strings.ReplaceAll(strings.ReplaceAll(web, "name: web", "name: other"), "org/app", "org/other"))
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(4))
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.ready("web", metav1.ConditionTrue, "2/2")
	h.ready("other", metav1.ConditionTrue, "2/2")
	child, source := h.kustomizations()["web-app-c1"], &sourcev1.GitRepository{}
	h.get(source, "web")
	owned := func(o client.Object, app string) {
		owner, err := json.Marshal(ownerReference(h.app(app)))
		h.Expect(err).NotTo(HaveOccurred())
		patch(h, o, `{"metadata":{"ownerReferences":[`+string(owner)+`]}}`)
	}
	otherSays := func(t string) func() string { return func() string { return condition(h.app("other"), t) } }
	there := func() {
		h.t.Helper()
		h.Consistently(func(g Gomega) {
			g.Expect(h.versions()).To(And(HaveLen(6), HaveKey("Kustomization/web-app-c1"), HaveKey("GitRepository/web")))
			g.Expect(h.kustomizations()["web-app-c1"].UID).To(Equal(child.UID))
		}).Should(Succeed())
	}

	const text = " has the label apps.kurator.dev/name=web and the owner Application other: put back which of them was changed"
	owned(source, "other")
	h.Eventually(otherSays(appsv1.PruneBlockedCondition)).Should(Equal("True PruneHeld: GitRepository/web" + text))
	h.Eventually(func() string { return condition(h.app("web"), meta.ReadyCondition) }).Should(Equal("False SourceNotReady: GitRepository/web" + text))
	there()
	owned(source, "web")
	owned(child, "other")
	h.Eventually(otherSays(appsv1.PruneBlockedCondition)).Should(Equal("True PruneHeld: Kustomization/web-app-c1" + text))
	h.Eventually(func() string { return h.ready("web", metav1.ConditionFalse, "1/2").Status.Members.NotReady[0].Message }).Should(Equal("Kustomization/web-app-c1" + text))
	there()

	owned(source, "other")
	t.Log("nor when the other Application is deleted")
	h.Expect(h.Delete(t.Context(), h.app("other"))).To(Succeed())
	h.Eventually(otherSays(meta.ReadyCondition)).Should(Equal("False Ending: Kustomization/web-app-c1" + text))
	h.Eventually(h.kustomizations).Should(HaveLen(2))
	h.Consistently(h.kustomizations).Should(HaveKey("web-app-c1"))
	owned(child, "web")
	h.Eventually(otherSays(meta.ReadyCondition)).Should(Equal("False Ending: GitRepository/web" + text))
	h.Consistently(h.versions).Should(HaveKey("GitRepository/web"))

	t.Log("put back, all is as before")
	owned(source, "web")
	h.ready("web", metav1.ConditionTrue, "2/2")
	h.Eventually(func() error {
		return h.Get(t.Context(), client.ObjectKey{Namespace: h.ns, Name: "other"}, &appsv1.Application{})
	}).Should(MatchError(ContainSubstring("not found")))
	h.Expect(h.kustomizations()["web-app-c1"].UID).To(Equal(child.UID))
}
