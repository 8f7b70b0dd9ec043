package controllers

import (
	"slices"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	reviewed "github.com/fleetwright/fleetwright/renderers/plan"
	"github.com/fleetwright/fleetwright/renderers/repository"
)

const careful = `
apiVersion: policy.kurator.dev/v1alpha1
kind: ChangeBudget
metadata: {name: careful}
spec: {members: 50%, deletions: 1, regions: 1, regionLabel: region, protectedKinds: [PersistentVolumeClaim]}
`

func (h *hub) changeBlocked() string { return condition(h.app("web"), appsv1.ChangeBlockedCondition) }

// declared returns what the namespace has, as a repository does.
func (h *hub) declared() reviewed.Side {
	var d application.Declared
	var apps appsv1.ApplicationList
	var fleets fleetv1.FleetList
	var clusters clusterv1.AttachedClusterList
	var configs clusterv1.ClusterConfigList
	var budgets policyv1.ChangeBudgetList
	for _, list := range []client.ObjectList{&apps, &fleets, &clusters, &configs, &budgets} {
		h.Expect(h.List(h.t.Context(), list, client.InNamespace(h.ns))).To(Succeed())
	}
	d.ClusterConfigs = pointers(configs.Items)
	apps.Items = slices.DeleteFunc(apps.Items, func(a appsv1.Application) bool { return metav1.GetControllerOf(&a) != nil })
	d.Applications, d.Fleets, d.AttachedClusters, d.ChangeBudgets = pointers(apps.Items), pointers(fleets.Items), pointers(clusters.Items), pointers(budgets.Items)
	return reviewed.Side{Rendered: repository.Render(d, nil, nil)}
}

// A step that is over budget is not begun: the controller says the same as diff did before the merge, writes nothing, and goes on
// when just this step is allowed.
func TestChangeBudget(t *testing.T) {
	h := newHub(t)
	h.attach("c1 region=eu", "c2 region=eu", "c3 region=us", "c4 region=us")
	h.fleet("prod", "c1", "c2", "c3", "c4")
	h.apply(web)
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(4))
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.ready("web", metav1.ConditionTrue, "4/4")
	h.apply(careful)
	h.Eventually(func() string { return h.app("web").Status.AcceptedDigest }).Should(Equal(h.app("web").Status.RenderDigest), "what is there is accepted")

	t.Log("all members at once are too many")
	before, from := h.versions(), h.declared()
	h.apply(strings.Replace(web, "interval: 5m", "interval: 7m", 1))
	h.Eventually(h.changeBlocked).Should(HavePrefix("True OverBudget"))
	p := reviewed.Compare(from, h.declared())
	h.Expect(p.OverBudget).To(HaveLen(1))
	over := p.OverBudget[0]
	h.Expect(over.Over).To(Equal([]string{"changes 4 of 4 members, and 2 (50%) may be (ChangeBudget careful)", "changes something in 2 regions, and 1 may be (ChangeBudget careful)"}))
	h.Expect(h.changeBlocked()).To(Equal("True OverBudget: over budget: " + strings.Join(over.Over, "; ") + ": to allow just this, annotate the Application with fleet.kurator.dev/allow-change=" + over.Allow))
	h.Expect(condition(h.app("web"), meta.ReadyCondition)).To(HavePrefix("False OverBudget"))
	h.Consistently(h.versions).Should(Equal(before), "nothing is written")
	h.Eventually(h.events.Events).Should(Receive(ContainSubstring("OverBudget")))

	t.Log("nor after a restart, nor with another permission")
	h.stop()
	h.start()
	patch(h, &appsv1.Application{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, `{"metadata":{"annotations":{"fleet.kurator.dev/allow-change":"sha256:0"}}}`)
	h.Consistently(h.versions).Should(Equal(before))

	t.Log("just this is allowed")
	patch(h, &appsv1.Application{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, `{"metadata":{"annotations":{"fleet.kurator.dev/allow-change":"`+over.Allow+`"}}}`)
	h.Eventually(h.versions).ShouldNot(Equal(before))
	h.Eventually(func() int {
		n := 0
		for _, k := range h.kustomizations() {
			if k.Spec.Interval.Duration.String() == "7m0s" {
				n++
			}
		}
		return n
	}).Should(Equal(4))
	h.Eventually(h.changeBlocked).Should(BeEmpty())
	h.Expect(reviewed.Compare(from, h.declared()).OverBudget[0].Allowed).To(BeTrue(), "as diff says")
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.ready("web", metav1.ConditionTrue, "4/4")

	t.Log("and nothing else")
	before = h.versions()
	h.apply(strings.Replace(web, "interval: 5m", "interval: 9m", 1))
	h.Eventually(h.changeBlocked).Should(HavePrefix("True OverBudget"))
	h.Consistently(h.versions).Should(Equal(before))
	h.apply(strings.Replace(web, "interval: 5m", "interval: 7m", 1))
	h.Eventually(h.changeBlocked).Should(BeEmpty())

	t.Log("what is protected does not end, although one may; what somebody has changed is put right all the same")
	for name := range h.kustomizations() {
		k := &kustomizev1.Kustomization{}
		h.get(k, name)
		was := k.DeepCopy()
		k.Status.Inventory = &kustomizev1.ResourceInventory{Entries: []kustomizev1.ResourceRef{{ID: "shop_data__PersistentVolumeClaim", Version: "v1"}, {ID: "shop_web_apps_Deployment", Version: "v1"}}}
		h.Expect(h.Status().Patch(t.Context(), k, client.MergeFrom(was))).To(Succeed())
	}
	h.fleet("prod", "c1", "c2", "c3")
	h.Eventually(h.changeBlocked).Should(ContainSubstring("deletes objects of protected kinds: PersistentVolumeClaim (ChangeBudget careful)"))
	h.Consistently(h.kustomizations).Should(HaveLen(4))
	h.fleet("prod", "c1", "c2", "c3", "c4")
	h.Eventually(h.changeBlocked).Should(BeEmpty())
	patch(h, &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Name: "web-app-c1"}}, `{"spec":{"path":"./elsewhere"}}`)
	h.Eventually(func() string { return h.kustomizations()["web-app-c1"].Spec.Path }).Should(Equal("./app"))

	t.Log("without a budget, nothing waits")
	h.apply(strings.Replace(web, "interval: 5m", "interval: 9m", 1))
	h.Eventually(h.changeBlocked).Should(HavePrefix("True OverBudget"))
	h.Expect(h.Delete(t.Context(), &policyv1.ChangeBudget{ObjectMeta: metav1.ObjectMeta{Namespace: h.ns, Name: "careful"}})).To(Succeed())
	h.Eventually(h.changeBlocked).Should(BeEmpty())
	h.Eventually(func() string { return h.kustomizations()["web-app-c4"].Spec.Interval.Duration.String() }).Should(Equal("9m0s"))
}

// What is published for all members at once is bounded as well: that of a ClusterConfig, and it passes on what is allowed.
func TestChangeBudgetOfWhatIsPublished(t *testing.T) {
	h := newHub(t)
	h.attach("c1 region=eu", "c2 region=us")
	h.fleet("prod", "c1", "c2")
	h.apply(quotas)
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(2))
	h.apply(careful)
	before, from := h.artifact("quotas").Revision, h.declared()
	h.apply(strings.Replace(quotas, `pods: "10"`, `pods: "20"`, 1))
	h.Eventually(h.said("quotas", appsv1.ChangeBlockedCondition)).Should(HavePrefix("True OverBudget"))
	p := reviewed.Compare(from, h.declared())
	h.Expect(p.OverBudget).To(HaveLen(1))
	over := p.OverBudget[0]
	h.Expect(over.Owner.Kind).To(Equal("ClusterConfig"))
	h.Expect(over.Over).To(Equal([]string{"changes 2 of 2 members, and 1 (50%) may be (ChangeBudget careful)", "changes something in 2 regions, and 1 may be (ChangeBudget careful)"}))
	h.Expect(h.said("quotas", appsv1.ChangeBlockedCondition)()).To(Equal("True OverBudget: not published: over budget: " + strings.Join(over.Over, "; ") + ": to allow just this, annotate the ClusterConfig with fleet.kurator.dev/allow-change=" + over.Allow))
	h.Consistently(func() string { return h.artifact("quotas").Revision }).Should(Equal(before))

	patch(h, &clusterv1.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: "quotas"}}, `{"metadata":{"annotations":{"fleet.kurator.dev/allow-change":"`+over.Allow+`"}}}`)
	h.Eventually(func() string { return h.artifact("quotas").Revision }).Should(HaveSuffix(over.Allow))
	h.Eventually(h.said("quotas", appsv1.ChangeBlockedCondition)).Should(BeEmpty())

	t.Log("and nothing else, until there is no budget")
	h.apply(strings.Replace(quotas, `pods: "10"`, `pods: "30"`, 1))
	h.Eventually(h.said("quotas", appsv1.ChangeBlockedCondition)).Should(HavePrefix("True OverBudget"))
	h.Expect(h.Delete(t.Context(), &policyv1.ChangeBudget{ObjectMeta: metav1.ObjectMeta{Namespace: h.ns, Name: "careful"}})).To(Succeed())
	h.Eventually(h.said("quotas", appsv1.ChangeBlockedCondition)).Should(BeEmpty())
	h.Eventually(func() string { return h.artifact("quotas").Revision }).ShouldNot(HaveSuffix(over.Allow))
}
