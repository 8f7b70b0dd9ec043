package controllers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
)

const baselinePolicy = `apiVersion: policy.kurator.dev/v1alpha1
kind: FleetSecurityPolicy
metadata: {name: baseline}
spec:
  fleet: prod
  rules:
  - name: non-root
    enforcement: audit
    match: {resources: {kinds: [Pod]}}
    validate: {pattern: {spec: {securityContext: {runAsNonRoot: true}}}}
  - name: labelled
    match: {resources: {kinds: [Namespace]}}
    validate: {pattern: {metadata: {labels: {team: "?*"}}}}
`

var baselineWithoutWaiting = strings.Replace(baselinePolicy, "  fleet: prod\n", "  fleet: prod\n  waitForKyverno: false\n", 1)

const complianceOfA = `apiVersion: cluster.kurator.dev/v1alpha1
kind: ClusterCompliance
metadata: {name: cis}
spec:
  clusterName: a
  rules:
  - {name: root, type: disable-root-user, params: {enforce: true}}
`

func (h *hub) policy(name string) *policyv1.FleetSecurityPolicy {
	h.t.Helper()
	p := &policyv1.FleetSecurityPolicy{}
	h.get(p, name)
	return p
}

func (h *hub) compliance(name string) *clusterv1.ClusterCompliance {
	h.t.Helper()
	c := &clusterv1.ClusterCompliance{}
	h.get(c, name)
	return c
}

// rulesSay returns a condition of what has rules as text.
func rulesSay(o interface{ GetConditions() []metav1.Condition }, t string) string {
	c := apimeta.FindStatusCondition(o.GetConditions(), t)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
}

func (h *hub) policySays(name, t string) func() string {
	return func() string { return rulesSay(h.policy(name), t) }
}

func (h *hub) revision(artifact string) string {
	ea := &sourcev1.ExternalArtifact{}
	if err := h.Get(h.t.Context(), client.ObjectKey{Namespace: h.ns, Name: artifact}, ea); err != nil || ea.Status.Artifact == nil {
		return ""
	}
	return ea.Status.Artifact.Revision
}

// ruleStates returns the readiness of rules, by name.
func ruleStates(status policyv1.RulesStatus) map[string]string {
	out := map[string]string{}
	for _, r := range status.Rules {
		out[r.Name] = strings.TrimSpace(r.Ready + " " + r.Reason)
	}
	return out
}

// delivered has Flux apply to so many members what is published.
func (h *hub) delivered(members int) {
	h.t.Helper()
	h.Eventually(h.kustomizations).Should(HaveLen(members))
	h.fluxApplies()
}

// kyvernoIsReady has everything of the plugins be ready, as often as something comes after it.
func (h *hub) kyvernoIsReady() {
	h.t.Helper()
	h.Eventually(func(g Gomega) {
		h.fluxDoes(metav1.ConditionTrue, "Applied")
		g.Expect(h.plugin("policy").Ready).To(Equal("True"), h.plugin("policy").Message)
	}).Should(Succeed())
}

// TestRules follows rules from their declaration to their end.
func TestRules(t *testing.T) {
	h := newHub(t)
	h.reachable("a", "b")
	h.attach("a", "b", "elsewhere")
	h.start()
	h.apply(baselinePolicy)
	t.Log("no fleet: each rule says so, and nothing is written")
	h.Eventually(h.policySays("baseline", meta.ReadyCondition)).Should(And(HavePrefix("False FleetNotFound: "), ContainSubstring("there is no Fleet prod")))
	h.Expect(ruleStates(h.policy("baseline").Status)).To(Equal(map[string]string{"non-root": "False FleetNotFound", "labelled": "False FleetNotFound"}))
	h.Expect(h.kustomizations()).To(BeEmpty())

	t.Log("a fleet without Kyverno: they wait for it, and say what to do")
	h.plugins("")
	h.Eventually(h.policySays("baseline", meta.ReadyCondition)).Should(ContainSubstring("set spec.plugin.policy.kyverno"))
	h.Expect(h.kustomizations()).To(BeEmpty())
	h.plugins("  plugin: {policy: {kyverno: {}}}\n")
	h.Eventually(func() []string { return names(h.kustomizations()) }).Should(ContainElements("plugin-prod-policy-namespaces-a"))
	h.apply(complianceOfA)
	h.Consistently(func() []string { return names(h.kustomizations()) }).ShouldNot(ContainElement(ContainSubstring("policies")), "Kyverno is not ready yet")

	t.Log("they come when it is there, on the members that they are for")
	h.kyvernoIsReady()
	h.Eventually(func() []string { return names(h.kustomizations()) }).Should(ConsistOf("plugin-prod-policy-namespaces-a", "plugin-prod-policy-namespaces-b",
		"policy-baseline-policies-a", "policy-baseline-policies-b", "compliance-cis-policies-a"))
	h.fluxApplies()
	h.Eventually(h.policySays("baseline", meta.ReadyCondition)).Should(HavePrefix("True "))
	h.Eventually(func() string { return rulesSay(h.compliance("cis"), meta.ReadyCondition) }).Should(HavePrefix("True "))
	h.Expect(ruleStates(h.policy("baseline").Status)).To(Equal(map[string]string{"non-root": "True", "labelled": "True"}))
	h.Expect(ruleStates(h.compliance("cis").Status)).To(Equal(map[string]string{"root": "True"}))
	h.Expect(h.compliance("cis").Status.Rules[0].Enforcement).To(Equal("enforce"))

	t.Log("from audit to enforce is one field, and one revision; no Flux object is written for it")
	before, audited := h.versions(), h.revision("policy-baseline")
	h.apply(strings.Replace(baselinePolicy, "enforcement: audit", "enforcement: enforce", 1))
	h.Eventually(func() string { return h.revision("policy-baseline") }).ShouldNot(Equal(audited))
	h.Eventually(h.policySays("baseline", meta.ReadyCondition)).Should(ContainSubstring("2 of 2 members do not have"))
	h.Expect(h.versions()).To(Equal(before))
	h.apply(baselinePolicy)
	h.Eventually(func() string { return h.revision("policy-baseline") }).Should(Equal(audited))
	h.fluxApplies()
	h.Eventually(h.policySays("baseline", meta.ReadyCondition)).Should(HavePrefix("True "))

	t.Log("a rule that cannot be rendered is named; where it is new the others go on, where members have it nothing changes")
	h.apply(baselinePolicy + `  - name: broken
    match: {resources: {kinds: [Nosuch]}}
    validate: {pattern: {spec: {}}}
`)
	h.Eventually(h.policySays("baseline", meta.ReadyCondition)).Should(And(HavePrefix("False RuleFailed: "), ContainSubstring("rule broken: match.resources.kinds[0]: Nosuch")))
	h.Expect(ruleStates(h.policy("baseline").Status)).To(Equal(map[string]string{"non-root": "True", "labelled": "True", "broken": "False RuleFailed"}))
	h.Expect(h.revision("policy-baseline")).To(Equal(audited))
	h.apply(strings.NewReplacer("[Namespace]", "[Nosuch]", "enforcement: audit", "enforcement: enforce").Replace(baselinePolicy))
	h.Eventually(h.policySays("baseline", meta.ReadyCondition)).Should(And(HavePrefix("False RuleFailed: "), ContainSubstring("rule labelled: "), ContainSubstring("nothing is changed on the members until labelled")))
	h.Consistently(func() string { return h.revision("policy-baseline") }).Should(Equal(audited))
	h.Expect(ruleStates(h.policy("baseline").Status)).To(Equal(map[string]string{"non-root": "Unknown HeldBack", "labelled": "False RuleFailed"}))
	h.Expect(h.policy("baseline").Status.Rules[0].Enforcement).To(Equal("audit"), "as it still is on the members")
	h.Expect(h.policy("baseline").Status.Members.Summary).To(Equal("2/2"))
	h.apply(baselinePolicy)
	h.Eventually(h.policySays("baseline", meta.ReadyCondition)).Should(HavePrefix("True "))

	t.Log("rules of ClusterCompliances: an unknown type, a bad parameter")
	h.apply(complianceOfA + "  - {name: nosuch, type: disable-rot-user}\n  - {name: bad, type: disable-root-user, params: {enforce: maybe}}\n")
	h.Eventually(func() map[string]string { return ruleStates(h.compliance("cis").Status) }).Should(Equal(map[string]string{
		"root": "True", "nosuch": "False RuleFailed", "bad": "False RuleFailed"}))
	h.Expect(h.compliance("cis").Status.Rules[1].Message).To(And(HavePrefix(`unknown type "disable-rot-user": `), HaveSuffix("; did you mean disable-root-user?"), Not(ContainSubstring("cis-workloads"))))
	h.Expect(h.compliance("cis").Status.Rules[2].Message).To(ContainSubstring("params.enforce"))
	h.Expect(names(h.kustomizations())).To(ContainElement("compliance-cis-policies-a"))

	t.Log("Kyverno is not removed while they are there")
	h.plugins("")
	h.Eventually(func() string { return h.plugin("policy").Message }).Should(And(ContainSubstring("is not removed, as ClusterCompliance cis, FleetSecurityPolicy baseline need it"),
		ContainSubstring("fleet.kurator.dev/remove-plugin=policy")))
	h.Consistently(func() bool { return deleting(h.app("plugin-prod-policy")) }).Should(BeFalse())
	h.Expect(names(h.kustomizations())).To(ContainElements("policy-baseline-policies-a", "compliance-cis-policies-a"))

	t.Log("by force, they end before it does")
	fleet := &fleetv1.Fleet{}
	h.get(fleet, "prod")
	for _, k := range h.kustomizations() {
		patch(h, k, `{"metadata":{"finalizers":["test/flux"]}}`)
	}
	patch(h, fleet, `{"metadata":{"annotations":{"fleet.kurator.dev/remove-plugin":"policy"}}}`)
	h.Eventually(h.ending).Should(ConsistOf("policy-baseline-policies-a", "policy-baseline-policies-b", "compliance-cis-policies-a"))
	h.Consistently(h.ending).Should(HaveLen(3))
	h.Eventually(h.policySays("baseline", meta.ReadyCondition)).Should(And(HavePrefix("False KyvernoRemoved: "), ContainSubstring("Fleet prod")))
	for _, name := range h.ending() {
		h.letGo(name)
	}
	h.Eventually(func(g Gomega) {
		h.endChildren()
		for _, name := range h.ending() {
			h.letGo(name)
		}
		g.Expect(h.Get(t.Context(), client.ObjectKey{Namespace: h.ns, Name: "plugin-prod-policy"}, &appsv1.Application{})).To(Satisfy(apierrors.IsNotFound))
	}).Should(Succeed())

	t.Log("and what is deleted ends on the members first")
	h.Expect(h.Delete(t.Context(), h.policy("baseline"))).To(Succeed())
	h.Expect(h.Delete(t.Context(), h.compliance("cis"))).To(Succeed())
	h.Eventually(func() error {
		return h.Get(t.Context(), client.ObjectKey{Namespace: h.ns, Name: "baseline"}, &policyv1.FleetSecurityPolicy{})
	}).Should(Satisfy(apierrors.IsNotFound))
}
