package controllers

import (
	"fmt"
	"strings"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
)

var (
	base    = strings.ReplaceAll(web, "name: web", "name: base")
	webLast = strings.Replace(web, "spec:", "spec:\n  dependsOn: [{name: base}]", 1)
)

// ordered starts base, and web that depends on it, on these members. What ends stays until Flux lets it go.
func ordered(t *testing.T, members ...string) *hub {
	h := newHub(t)
	h.attach(members...)
	h.fleet("prod", members...)
	h.fleet("rest", members[1:]...)
	h.apply(base)
	h.apply(webLast)
	h.start()
	h.Eventually(h.kustomizations).Should(HaveLen(2 * len(members)))
	for _, k := range h.kustomizations() {
		patch(h, k, `{"metadata":{"finalizers":["test/flux"]}}`)
	}
	h.fluxDoes(metav1.ConditionTrue, "Applied")
	h.ready("web", metav1.ConditionTrue, fmt.Sprintf("%d/%d", len(members), len(members)))
	h.ready("base", metav1.ConditionTrue, fmt.Sprintf("%d/%d", len(members), len(members)))
	return h
}

func (h *hub) letGo(name string) {
	patch(h, &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Name: name}}, `{"metadata":{"finalizers":null}}`)
}

// ending returns the names of the Kustomizations that are being deleted.
func (h *hub) ending() (out []string) {
	for name, k := range h.kustomizations() {
		if deleting(k) {
			out = append(out, name)
		}
	}
	return out
}

func (h *hub) saysOf(app, t string) func() string {
	return func() string { return condition(h.app(app), t) }
}

const webFirst = "Kustomization/base-app-c1 ends after Kustomization/web-app-c1 of Application web"

// What others come after ends after them where a member leaves them all, and nothing ends elsewhere.
func TestOrderOfApplicationsWhenAMemberLeaves(t *testing.T) {
	for name, leave := range map[string]func(*hub){
		"the fleet": func(h *hub) { h.fleet("prod", "c2", "c3") },
		"by its end": func(h *hub) {
			c1 := &clusterv1.AttachedCluster{ObjectMeta: metav1.ObjectMeta{Name: "c1"}}
			patch(h, c1, `{"metadata":{"finalizers":["test/member"]}}`)
			h.Expect(h.Delete(h.t.Context(), c1)).To(Succeed())
		},
		"the destinations, one after the other": func(h *hub) {
			h.apply(strings.Replace(base, "fleet: prod", "fleet: rest", 1))
			h.Eventually(func() any { return h.kustomizations()["web-app-c1"].Spec.DependsOn }).Should(BeEmpty(), "web may still stay there")
			h.apply(strings.Replace(webLast, "fleet: prod", "fleet: rest", 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := ordered(t, "c1", "c2", "c3")
			leave(h)
			h.Eventually(h.ending).Should(ConsistOf("web-app-c1"))
			h.Eventually(h.saysOf("base", meta.ReadyCondition)).Should(And(HavePrefix("Unknown Progressing: "), HaveSuffix("; "+webFirst)))
			h.Consistently(h.ending, together+time.Second).Should(ConsistOf("web-app-c1"))
			h.letGo("web-app-c1")
			h.Eventually(h.ending).Should(ConsistOf("base-app-c1"))
			h.letGo("base-app-c1")
			h.Eventually(func() []string { return names(h.kustomizations()) }).Should(ConsistOf("web-app-c2", "web-app-c3", "base-app-c2", "base-app-c3"))
			h.Expect(h.ending()).To(BeEmpty())
			h.fluxDoes(metav1.ConditionTrue, "Applied")
			h.ready("base", metav1.ConditionTrue, "2/2")
		})
	}
}

// An Application that stays where what it depends on leaves does not hold it up.
func TestDependentStays(t *testing.T) {
	h := ordered(t, "c1", "c2", "c3")
	uid := h.kustomizations()["web-app-c1"].UID
	h.apply(strings.Replace(base, "fleet: prod", "fleet: rest", 1))
	h.Eventually(h.ending).Should(ConsistOf("base-app-c1"))
	h.letGo("base-app-c1")
	h.Eventually(h.kustomizations).ShouldNot(HaveKey("base-app-c1"))
	h.Expect(h.kustomizations()["web-app-c1"].UID).To(Equal(uid))
	h.Expect(h.kustomizations()["web-app-c1"].Spec.DependsOn).To(BeEmpty())
	h.Expect(h.ending()).To(BeEmpty())
}

// What a suspended dependent has holds what it comes after, as within an Application.
func TestSuspendedDependentHolds(t *testing.T) {
	for name, suspend := range map[string]func(h *hub, on bool){
		"the Application": func(h *hub, on bool) {
			patch(h, h.app("web"), fmt.Sprintf(`{"spec":{"suspend":%v}}`, on))
			if on {
				h.Eventually(h.saysOf("web", suspendedCondition)).Should(HavePrefix("True Suspended"))
			}
		},
		"its child": func(h *hub, on bool) {
			patch(h, h.kustomizations()["web-app-c1"], fmt.Sprintf(`{"spec":{"suspend":%v}}`, on))
			if on {
				h.Eventually(h.saysOf("web", meta.ReadyCondition)).Should(ContainSubstring("c1 (Suspended)"))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := ordered(t, "c1", "c2", "c3")
			suspend(h, true)
			h.fleet("prod", "c2", "c3")
			h.Eventually(h.saysOf("base", meta.ReadyCondition)).Should(HaveSuffix("; " + webFirst))
			h.Consistently(h.ending, together+time.Second).Should(BeEmpty())
			suspend(h, false)
			h.Eventually(h.ending).Should(ConsistOf("web-app-c1"))
			h.letGo("web-app-c1")
			h.Eventually(h.ending).Should(ConsistOf("base-app-c1"))
		})
	}
}
