package scenarios

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	"github.com/fleetwright/fleetwright/e2e/harness"
)

// config waits for the Ready condition of a ClusterConfig and a count of members.
func (s *scenario) config(name string, status metav1.ConditionStatus, members string) *clusterv1.ClusterConfig {
	s.t.Helper()
	config := &clusterv1.ClusterConfig{}
	s.Eventually(func(g Gomega) {
		config = get(s, &clusterv1.ClusterConfig{}, name)
		c := apimeta.FindStatusCondition(config.Status.Conditions, meta.ReadyCondition)
		g.Expect(c).NotTo(BeNil(), "there is no condition Ready yet")
		g.Expect(string(c.Status)+" "+config.Status.Members.Summary).To(Equal(string(status)+" "+members), c.Message)
		g.Expect(config.Status.ObservedGeneration).To(Equal(config.Generation), "observed generation")
	}).Should(Succeed())
	return config
}

func quota(member *harness.Cluster, namespace, name string) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func (s *scenario) pods(member *harness.Cluster, q *corev1.ResourceQuota) func() (string, error) {
	return func() (string, error) {
		err := member.Client.Get(s.ctx, client.ObjectKeyFromObject(q), q)
		hard := q.Spec.Hard[corev1.ResourcePods]
		return hard.String(), err
	}
}

// Baselines, must hold 1: the seed's ClusterConfig on two members.
func TestBaseline(t *testing.T) {
	s := begin(t)
	seed, err := os.ReadFile(filepath.Join(harness.Root(), "cmd/fleetwright/testdata/accepted/cluster-config.yaml"))
	s.Expect(err).NotTo(HaveOccurred())
	s.ns = "kurator-system" // where the seed's manifest is
	s.Expect(env.Hub.CreateNamespace(s.ctx, s.ns)).To(Succeed())
	one, two := env.Members[0], env.Members[1]
	s.attach("baseline-one", one)
	s.attach("baseline-two", two)
	s.apply(fleet("prod-fleet", "baseline-one", "baseline-two"))
	s.apply(string(seed))
	s.config("global-cluster-config", metav1.ConditionTrue, "2/2")

	for _, member := range []*harness.Cluster{one, two} {
		s.Expect(s.pods(member, quota(member, "app-prod", "default-quota"))()).To(Equal("200"))
		for _, ns := range []string{"app-prod", "infra-prod"} {
			s.Expect(s.exists(member, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})()).To(BeTrue(), ns)
		}
	}

	t.Log("an edit by hand on a member is corrected")
	q := quota(one, "app-prod", "default-quota")
	s.Expect(one.Client.Patch(s.ctx, q, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"hard":{"pods":"1"}}}`)))).To(Succeed())
	child := &kustomizev1.Kustomization{ObjectMeta: s.named(names(s.kustomizations())[0])}
	s.Expect(harness.RequestReconcile(s.ctx, env.Hub.Client, child)).To(Succeed())
	s.Eventually(s.pods(one, q)).Should(Equal("200"))

	t.Log("another value changes the artifact and no Kustomization")
	generations := func() map[string]int64 {
		out := map[string]int64{}
		for name, k := range s.kustomizations() {
			out[name] = k.Generation
		}
		return out
	}
	before := generations()
	s.apply(strings.ReplaceAll(string(seed), `pods: "200"`, `pods: "300"`))
	s.Eventually(s.pods(one, q)).Should(Equal("300"))
	s.Eventually(s.pods(two, quota(two, "app-prod", "default-quota"))).Should(Equal("300"))
	s.Expect(generations()).To(Equal(before))
	s.config("global-cluster-config", metav1.ConditionTrue, "2/2")

	t.Log("a restart publishes the same")
	revision := func() string {
		return get(s, &sourcev1.ExternalArtifact{}, "baseline-global-cluster-config").Status.Artifact.Digest
	}
	published := revision()
	s.restartController(nil)
	s.Consistently(revision).Should(Equal(published))
	s.Expect(generations()).To(Equal(before))

	t.Log("a quota taken out is pruned; a namespace taken out stays with all that is in it")
	kept := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "infra-prod", Name: "kept"}}
	s.Expect(one.Client.Create(s.ctx, kept)).To(Succeed())
	i := strings.Index(string(seed), "  # 统一资源配额配置")
	s.Expect(i).To(BeNumerically(">", 0))
	without := strings.Replace(string(seed)[:i], "  - name: infra-prod\n", "", 1)
	s.apply(without)
	s.Eventually(s.exists(one, quota(one, "app-prod", "default-quota"))).Should(BeFalse())
	s.Eventually(s.exists(two, quota(two, "app-prod", "default-quota"))).Should(BeFalse())
	s.config("global-cluster-config", metav1.ConditionTrue, "2/2")
	s.Expect(s.exists(one, kept)()).To(BeTrue())

	t.Log("unless it was said that it is to be removed")
	s.apply(strings.Replace(without, "- name: app-prod", "- {name: app-prod, deletionPolicy: Delete}", 1))
	s.config("global-cluster-config", metav1.ConditionTrue, "2/2")
	s.apply(strings.Replace(without, "  - name: app-prod\n", "  - name: other-prod\n", 1))
	appProd := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "app-prod"}}
	s.Eventually(s.exists(one, appProd)).Should(BeFalse())
	s.Eventually(s.exists(two, appProd)).Should(BeFalse())
	s.Expect(s.exists(one, kept)()).To(BeTrue())

	t.Log("when it goes, so does what it has applied, but for the namespaces")
	config := &clusterv1.ClusterConfig{ObjectMeta: s.named("global-cluster-config")}
	s.delete(config)
	s.Eventually(s.gone(config)).Should(BeTrue())
	s.Expect(s.exists(one, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other-prod"}})()).To(BeTrue())
	s.Eventually(s.left).Should(BeEmpty())
}
