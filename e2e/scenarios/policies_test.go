package scenarios

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	k8sappsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/e2e/harness"
)

// seed reads a manifest of the cases.
func (s *scenario) seed(name string) string {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(harness.Root(), "cmd/fleetwright/testdata/accepted", name+".yaml"))
	s.Expect(err).NotTo(HaveOccurred())
	return string(b)
}

// policies returns the names of the ValidatingPolicies on a member, those of the plugin's charts aside.
func (s *scenario) policies(member *harness.Cluster) func() ([]string, error) {
	return func() ([]string, error) {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(schema.GroupVersionKind{Group: "policies.kyverno.io", Version: "v1", Kind: "ValidatingPolicyList"})
		if err := member.Client.List(s.ctx, list); err != nil {
			return nil, err
		}
		var names []string
		for _, p := range list.Items {
			names = append(names, p.GetName())
		}
		return names, nil
	}
}

const scopedPolicy = `
apiVersion: policy.kurator.dev/v1alpha1
kind: FleetSecurityPolicy
metadata: {name: scoped}
spec:
  fleet: financial-fleet
  excludeNamespaces: [mine]
  rules:
  - name: namespaces
    enforcement: enforce
    match: {resources: {kinds: [Namespace]}}
    validate: {message: say whose it is, pattern: {metadata: {labels: {team: "?*"}}}}
  - name: roles
    enforcement: enforce
    match: {resources: {kinds: [ClusterRole]}}
    exclude: {resources: {names: ["system:*", "cluster-admin", "admin", "edit"]}}
    validate: {message: name what it may do, cel: {expressions: [{expression: "object.?rules.orValue([]).all(r, r.verbs.all(v, v != '*'))"}]}}
`

// pods returns what creates Pods, each with these as their spec, in a namespace.
func podsOf(namespace, name string, spec corev1.PodSpec) []client.Object {
	at := metav1.ObjectMeta{Namespace: namespace, Name: name}
	labels := map[string]string{"app": name}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	job := *template.DeepCopy()
	job.Spec.RestartPolicy = corev1.RestartPolicyNever
	return []client.Object{
		&k8sappsv1.Deployment{ObjectMeta: at, Spec: k8sappsv1.DeploymentSpec{Selector: selector, Template: template}},
		&k8sappsv1.StatefulSet{ObjectMeta: at, Spec: k8sappsv1.StatefulSetSpec{Selector: selector, Template: template, ServiceName: name}},
		&batchv1.Job{ObjectMeta: at, Spec: batchv1.JobSpec{Template: job}},
		&batchv1.CronJob{ObjectMeta: at, Spec: batchv1.CronJobSpec{Schedule: "@yearly", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: job}}}},
		&corev1.Pod{ObjectMeta: at, Spec: spec},
	}
}

// Policies, must hold 1, 2, 3 and 6: the seed's FleetSecurityPolicy and ClusterCompliance, with Kyverno itself.
func TestPolicies(t *testing.T) {
	s := begin(t)
	member, err := env.AddMember(t.Context(), "policies")
	s.Expect(err).NotTo(HaveOccurred())
	charts, err := env.StartCharts()
	s.Expect(err).NotTo(HaveOccurred())
	started := time.Now()
	s.Expect(member.StartNodes(t.Context(), 1)).To(Succeed())
	s.Expect(member.StartKyverno(t.Context())).To(Succeed())
	t.Logf("Kyverno is up after %s", time.Since(started).Round(time.Second/10))
	s.attach("prod-cluster", member)
	s.attach("elsewhere", env.Members[2])
	policy, compliance := s.seed("fleet-security-policy"), strings.Replace(s.seed("cluster-compliance"), "namespace: kurator-system", "namespace: "+s.ns, 1)
	withKyverno := fleet("financial-fleet", "prod-cluster") + "  plugin: {policy: {kyverno: {}, components: " + charts.Components("policy", "policies") + "}}\n"
	ready := func(o conditioned, name string) func() string {
		return func() string { return condition(get(s, o, name).GetConditions(), meta.ReadyCondition) }
	}
	policyReady := ready(&policyv1.FleetSecurityPolicy{}, "financial-security-baseline")
	complianceReady := ready(&clusterv1.ClusterCompliance{}, "prod-cluster-compliance")

	t.Log("they wait for Kyverno")
	s.apply(fleet("financial-fleet", "prod-cluster"))
	s.apply(policy)
	s.apply(compliance)
	s.Eventually(policyReady).Should(ContainSubstring("set spec.plugin.policy.kyverno"))
	s.Eventually(complianceReady).Should(ContainSubstring("waits for Kyverno"))

	t.Log("and come when it is there: on the members that they are for, and nowhere else")
	s.apply(withKyverno)
	s.Eventually(func() string {
		return condition(get(s, &fleetv1.Fleet{}, "financial-fleet").Status.Conditions, meta.ReadyCondition)
	}).Should(HavePrefix("True "))
	s.Eventually(policyReady).Should(HavePrefix("True "))
	s.Eventually(complianceReady).Should(HavePrefix("True "))
	s.Expect(s.policies(member)()).To(ContainElements(s.ns+".financial-security-baseline.require-pod-security", HavePrefix("compliance."+s.ns+".prod-cluster-compliance.")))
	s.Expect(names(s.kustomizations())).NotTo(ContainElement(ContainSubstring("elsewhere")))
	agent := &k8sappsv1.DaemonSet{}
	s.Expect(member.Client.Get(s.ctx, client.ObjectKey{Namespace: "security-infra", Name: "security-agent"}, agent)).To(Succeed())
	s.Expect(agent.Spec.Template.Spec.Containers[0].Image).To(Equal("your-registry/security-agent:v2.0.0"))

	t.Log("a pattern for Pods holds for all that creates them; what is as it has to be passes")
	for _, ns := range []string{"shop", "shop2"} {
		s.Expect(member.CreateNamespace(s.ctx, ns)).To(Succeed())
		s.Eventually(s.exists(member, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "default"}})).Should(BeTrue())
	}
	bad := corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.test/c:1"}}}
	good := *bad.DeepCopy()
	good.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
	for _, o := range podsOf("shop", "bad", bad) {
		s.Eventually(func() error { return member.Client.Create(s.ctx, o.DeepCopyObject().(client.Object), client.DryRunAll) }).
			Should(MatchError(ContainSubstring("必须配置Pod安全标准")), "%T", o)
	}
	for _, o := range podsOf("shop", "good", good) {
		s.Expect(member.Client.Create(s.ctx, o)).To(Succeed(), "%T", o)
	}
	t.Log("but in no namespace of the system, of Flux or of a plugin")
	s.Expect(member.CreateNamespace(s.ctx, "flux-system")).To(Succeed())
	for _, ns := range []string{"kube-system", "flux-system", "kyverno"} {
		for _, o := range podsOf(ns, "bad", bad)[:4] {
			s.Expect(member.Client.Create(s.ctx, o, client.DryRunAll)).To(Succeed(), "%T in %s", o, ns)
		}
	}

	t.Log("rules for what is in no namespace hold, too, at admission and, below, for what is there")
	s.apply(scopedPolicy)
	s.Eventually(ready(&policyv1.FleetSecurityPolicy{}, "scoped")).Should(HavePrefix("True "))
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "everything"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}}}
	s.Eventually(func() error { return member.Client.Create(s.ctx, role.DeepCopy(), client.DryRunAll) }).Should(MatchError(ContainSubstring("name what it may do")))
	namespace := func(name string) error {
		return member.Client.Create(s.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, client.DryRunAll)
	}
	s.Expect(namespace("unlabelled")).To(MatchError(ContainSubstring("say whose it is")))
	s.Expect(namespace("mine")).To(Succeed())

	t.Log("from enforce to audit is one field: it passes, is reported, and counted on the hub")
	audit := strings.Replace(policy, "enforcement: enforce", "enforcement: audit", 1)
	s.apply(audit)
	s.apply(strings.Replace(compliance, "enforce: true", "enforce: false", 1))
	deployment := podsOf("shop", "bad", bad)[0]
	s.Eventually(func() error {
		return client.IgnoreAlreadyExists(member.Client.Create(s.ctx, deployment.DeepCopyObject().(client.Object)))
	}).Should(Succeed())
	s.Eventually(func(g Gomega) {
		p := get(s, &policyv1.FleetSecurityPolicy{}, "financial-security-baseline")
		g.Expect(condition(p.Status.Conditions, policyv1.CompliantCondition)).To(And(HavePrefix("False "), ContainSubstring("prod-cluster (")))
		g.Expect(p.Status.Compliance.Findings).To(ContainElement(HaveField("Resource", "Deployment shop/bad")))
		g.Expect(p.Status.Rules[0].Results.Pass).To(BeNumerically(">=", 5))
		g.Expect(p.Status.Rules[0].FailingMembers).To(Equal(1))
	}).Should(Succeed())
	s.Eventually(func() []policyv1.Finding {
		return get(s, &policyv1.FleetSecurityPolicy{}, "scoped").Status.Compliance.Findings
	}).
		Should(ContainElement(And(HaveField("Resource", "Namespace shop"), HaveField("Result", "fail"))))
	s.Expect(get(s, &policyv1.FleetSecurityPolicy{}, "scoped").Status.Compliance.Results.Error).To(BeZero())
	s.delete(&policyv1.FleetSecurityPolicy{ObjectMeta: s.named("scoped")})
	out, err := s.run("fleetwright", "get", "policies", "--member", "prod-cluster")
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(out).To(And(ContainSubstring("Deployment shop/bad"), ContainSubstring("require-pod-security")))

	t.Log("enforced again, what is there goes on: it scales, and is not changed")
	s.apply(policy)
	live := &k8sappsv1.Deployment{}
	s.Expect(member.Client.Get(s.ctx, client.ObjectKeyFromObject(deployment), live)).To(Succeed())
	image := func() error {
		return member.Client.Patch(s.ctx, live.DeepCopy(), client.RawPatch("application/strategic-merge-patch+json",
			[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"example.test/c:2"}]}}}}`)), client.DryRunAll)
	}
	s.Eventually(image).Should(MatchError(ContainSubstring("必须配置Pod安全标准")))
	s.Expect(member.Client.Patch(s.ctx, live.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":2}}`)))).To(Succeed())

	t.Log("Kyverno is not removed while they are there; what is removed is removed on the member")
	s.apply(fleet("financial-fleet", "prod-cluster"))
	s.Eventually(func() string { return fmt.Sprint(get(s, &fleetv1.Fleet{}, "financial-fleet").Status.Plugins) }).
		Should(ContainSubstring("ClusterCompliance prod-cluster-compliance, FleetSecurityPolicy financial-security-baseline need it"))
	s.delete(&policyv1.FleetSecurityPolicy{ObjectMeta: s.named("financial-security-baseline")})
	s.Eventually(s.policies(member)).ShouldNot(ContainElement(ContainSubstring("financial-security-baseline")))
	s.Eventually(image).Should(Succeed())
	s.delete(&clusterv1.ClusterCompliance{ObjectMeta: s.named("prod-cluster-compliance")})
	s.Eventually(s.policies(member)).Should(BeEmpty())
	s.Eventually(s.left).Should(BeEmpty())
	s.Expect(s.exists(member, deployment)()).To(BeTrue(), "what people have is not touched")
}

// conditioned is an object with conditions.
type conditioned interface {
	client.Object
	GetConditions() []metav1.Condition
}
