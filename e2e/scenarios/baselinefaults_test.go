package scenarios

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	"github.com/fleetwright/fleetwright/e2e/harness"
)

// namespaceOn makes the scenario's namespace on members, and removes it in the end.
func (s *scenario) namespaceOn(members ...*harness.Cluster) {
	s.t.Helper()
	for _, m := range members {
		s.Expect(m.CreateNamespace(s.ctx, s.ns)).To(Succeed())
		s.t.Cleanup(func() {
			_ = m.Client.Delete(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.ns}})
		})
	}
}

// said returns a condition of a ClusterConfig.
func (s *scenario) said(config, conditionType string) func() string {
	return func() string {
		return condition(get(s, &clusterv1.ClusterConfig{}, config).Status.Conditions, conditionType)
	}
}

// end deletes ClusterConfigs, and waits until nothing is left of them.
func (s *scenario) end(configs ...string) {
	s.t.Helper()
	for _, name := range configs {
		s.delete(&clusterv1.ClusterConfig{ObjectMeta: s.named(name)})
	}
	s.Eventually(s.left).Should(BeEmpty())
}

// still waits until nothing of baselines is written any more, and sees that it stays so while members are probed.
func (s *scenario) still() {
	s.t.Helper()
	written := func() map[string]string {
		out := s.resourceVersions()
		for _, list := range []client.ObjectList{&clusterv1.ClusterConfigList{}, &appsv1.ApplicationList{}, &sourcev1.ExternalArtifactList{}} {
			s.Expect(env.Hub.Client.List(s.ctx, list, client.InNamespace(s.ns))).To(Succeed())
			switch list := list.(type) {
			case *clusterv1.ClusterConfigList:
				for _, o := range list.Items {
					out["ClusterConfig "+o.Name] = o.ResourceVersion
				}
			case *appsv1.ApplicationList:
				for _, o := range list.Items {
					out["Application "+o.Name] = o.ResourceVersion
				}
			case *sourcev1.ExternalArtifactList:
				for _, o := range list.Items {
					out["ExternalArtifact "+o.Name] = o.ResourceVersion
				}
			}
		}
		return out
	}
	var last map[string]string
	s.Eventually(func() bool {
		before := last
		last = written()
		return maps.Equal(before, last)
	}, timeout, quiet).Should(BeTrue())
	s.Consistently(written, 12*time.Second, time.Second).Should(Equal(last))
}

// Baselines, must hold 6: two ClusterConfigs that want the same object. One has it, nothing flips, and it is never gone.
func TestBaselineConflict(t *testing.T) {
	s := begin(t)
	one, two := env.Members[0], env.Members[1]
	s.namespaceOn(one, two)
	s.attach("one", one, "shop-pods='15'")
	s.attach("two", two, "shop-pods='16'")
	s.apply(fleet("prod", "one", "two"))
	low := baselineOf("low", "prod", "20") + "  - {name: low-alone, namespace: $NAMESPACE, hard: {pods: \"21\"}}\n"
	high := baselineOf("high", "prod", "10") + "  priority: 10\n"
	s.apply(low)
	s.config("low", metav1.ConditionTrue, "2/2")
	q := quota(one, s.ns, "default")
	s.Expect(s.pods(one, q)()).To(Equal("20"))
	uid := q.UID

	t.Log("the higher priority takes it over, and both say so")
	s.apply(high)
	s.Eventually(s.pods(one, q)).Should(Equal("10"))
	for _, name := range []string{"low", "high"} {
		s.Eventually(s.said(name, clusterv1.ConflictCondition)).Should(And(HavePrefix("True "), ContainSubstring("ResourceQuota "+s.ns+"/default"), ContainSubstring("spec.hard.pods")), name)
		s.config(name, metav1.ConditionTrue, "2/2")
	}
	s.still()
	version := func() (string, error) {
		err := one.Client.Get(s.ctx, client.ObjectKeyFromObject(q), q)
		return q.ResourceVersion, err
	}
	settled, err := version()
	s.Expect(err).NotTo(HaveOccurred())
	for name := range s.kustomizations() { // as Flux would do at its interval
		s.Expect(harness.RequestReconcile(s.ctx, env.Hub.Client, s.kustomization(name))).To(Succeed())
	}
	s.handled()
	s.Consistently(version).Should(Equal(settled))
	s.Expect(s.pods(two, quota(two, s.ns, "default"))()).To(Equal("10"))
	s.Expect(s.pods(one, quota(one, s.ns, "low-alone"))()).To(Equal("21"))
	s.Expect(q.UID).To(Equal(uid))

	t.Log("another value of the loser changes nothing")
	s.apply(strings.Replace(low, "'20'", "'30'", 1))
	s.config("low", metav1.ConditionTrue, "2/2")
	s.Consistently(version).Should(Equal(settled))

	t.Log("the priorities change places, and change back")
	s.apply(strings.Replace(low, "'20'", "'30'", 1) + "  priority: 20\n")
	s.Eventually(s.pods(one, q)).Should(Equal("30"))
	s.config("low", metav1.ConditionTrue, "2/2")
	s.config("high", metav1.ConditionTrue, "2/2")
	s.still()
	s.apply(strings.Replace(low, "'20'", "'30'", 1) + "  priority: 0\n")
	s.Eventually(s.pods(one, q)).Should(Equal("10"))
	s.config("low", metav1.ConditionTrue, "2/2")
	s.Expect(q.UID).To(Equal(uid))

	t.Log("a third one, of which nothing is left on the members, is ready, too")
	s.apply(baselineOf("middle", "prod", "<< index .cluster.labels \"shop-pods\" >>") + "  priority: 5\n")
	s.config("middle", metav1.ConditionTrue, "2/2")
	s.Eventually(s.said("middle", clusterv1.ConflictCondition)).Should(ContainSubstring("spec.hard.pods"))
	s.Expect(s.pods(one, q)()).To(Equal("10"))
	s.still()
	s.delete(&clusterv1.ClusterConfig{ObjectMeta: s.named("high")})
	s.Eventually(s.gone(&clusterv1.ClusterConfig{ObjectMeta: s.named("high")})).Should(BeTrue())
	s.Eventually(s.pods(one, q)).Should(Equal("15"))
	s.Expect(q.UID).To(Equal(uid))
	s.config("low", metav1.ConditionTrue, "2/2")
	s.config("middle", metav1.ConditionTrue, "2/2")

	t.Log("the winner goes: the other one's value is there, and the object was never gone")
	s.delete(&clusterv1.ClusterConfig{ObjectMeta: s.named("middle")})
	s.Eventually(s.gone(&clusterv1.ClusterConfig{ObjectMeta: s.named("middle")})).Should(BeTrue())
	s.Eventually(s.pods(one, q)).Should(Equal("30"))
	s.Expect(q.UID).To(Equal(uid))
	s.config("low", metav1.ConditionTrue, "2/2")
	s.Eventually(s.said("low", clusterv1.ConflictCondition)).Should(BeEmpty())
	s.Expect(s.pods(one, q)()).To(Equal("30"))
	s.Expect(q.UID).To(Equal(uid))
	s.still()

	s.end("low")
	s.Eventually(s.applied(one)).Should(BeEmpty())
	s.Eventually(s.applied(two)).Should(BeEmpty())
}

// handled waits until Flux has done what it was asked for.
func (s *scenario) handled() {
	s.t.Helper()
	s.Eventually(func(g Gomega) {
		for name, k := range s.kustomizations() {
			g.Expect(k.Status.LastHandledReconcileAt).To(Equal(k.Annotations[meta.ReconcileRequestAnnotation]), name)
			g.Expect(condition(k.Status.Conditions, meta.ReadyCondition)).NotTo(HavePrefix("Unknown"), name)
		}
	}).Should(Succeed())
}

// Baselines, must hold 6: a target that is not there is said, and is delivered to when it is.
func TestBaselineTarget(t *testing.T) {
	s := begin(t)
	one := env.Members[0]
	s.namespaceOn(one)
	s.apply(baselineOf("for-fleet", "prod", "10"))
	s.apply(strings.NewReplacer("{fleet: one}", "{cluster: {name: one, kind: AttachedCluster}}", "default", "for-cluster").Replace(baselineOf("for-cluster", "one", "20")))
	s.Eventually(s.said("for-fleet", meta.ReadyCondition)).Should(And(HavePrefix("False FleetNotFound: "), ContainSubstring("prod")))
	config := s.config("for-cluster", metav1.ConditionFalse, "0/1")
	s.Expect(notReady(config.Status.Members)).To(Equal(map[string]string{"one": "NotFound"}))
	s.Expect(s.kustomizations()).To(BeEmpty())
	s.still()

	s.attach("one", one)
	s.config("for-cluster", metav1.ConditionTrue, "1/1")
	s.Expect(s.pods(one, quota(one, s.ns, "for-cluster"))()).To(Equal("20"))
	s.apply(fleet("prod", "one"))
	s.config("for-fleet", metav1.ConditionTrue, "1/1")
	s.Expect(s.pods(one, quota(one, s.ns, "default"))()).To(Equal("10"))
	s.Expect(s.said("for-fleet", clusterv1.ConflictCondition)()).To(BeEmpty())

	s.end("for-fleet", "for-cluster")
	s.Eventually(s.applied(one)).Should(BeEmpty())
}

// Baselines, must hold 6: an overlay that does not build is said, and keeps nothing back.
func TestBaselineOverlay(t *testing.T) {
	s := begin(t)
	one, two := env.Members[0], env.Members[1]
	s.namespaceOn(one, two)
	s.push("overlay", files{
		"overlay/kustomization.yaml": "resources: [config.yaml, missing.yaml]\n",
		"overlay/config.yaml":        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: overlay, namespace: $NAMESPACE}\ndata: {from: overlay}\n",
	})
	s.attach("one", one)
	s.attach("two", two)
	s.apply(fleet("prod", "one", "two"))
	s.apply(`
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: overlay}
spec: {url: $GIT/overlay, interval: 1h, ref: {branch: main}}
`)
	s.apply(baselineOf("base", "prod", "10") + "  manifests: {sourceRef: {kind: GitRepository, name: overlay}, path: ./overlay}\n")
	config := s.config("base", metav1.ConditionFalse, "0/2")
	for _, member := range []string{"one", "two"} {
		s.Expect(memberMessage(config.Status.Members, member)).To(And(HavePrefix("overlay: "), ContainSubstring("missing.yaml")))
	}
	s.Expect(s.said("base", meta.ReadyCondition)()).To(HavePrefix("False MembersNotReady: "))
	for _, member := range []*harness.Cluster{one, two} {
		s.Expect(s.pods(member, quota(member, s.ns, "default"))()).To(Equal("10"))
		s.Expect(s.data(member, s.ns, "overlay")()).To(BeNil())
	}
	s.Expect(s.app("baseline-base").Status.Members.Summary).To(Equal("2/2"))

	t.Log("mended by a push")
	s.push("overlay", files{"overlay/missing.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: missing, namespace: $NAMESPACE}\ndata: {is: there}\n"})
	s.pushed("overlay")
	s.config("base", metav1.ConditionTrue, "2/2")
	for _, member := range []*harness.Cluster{one, two} {
		s.Expect(s.data(member, s.ns, "missing")()).To(HaveKeyWithValue("is", "there"))
	}
	s.still()

	t.Log("an overlay that is taken out is pruned, and nothing else")
	s.apply(baselineOf("base", "prod", "10"))
	s.Eventually(s.data(one, s.ns, "overlay")).Should(BeNil())
	s.Eventually(s.data(two, s.ns, "overlay")).Should(BeNil())
	s.config("base", metav1.ConditionTrue, "2/2")
	s.Expect(s.pods(one, quota(one, s.ns, "default"))()).To(Equal("10"))
	s.end("base")
}

// Baselines, must hold 6: a member that lacks a fact keeps exactly what it has, whatever is published meanwhile.
func TestBaselineFact(t *testing.T) {
	s := begin(t)
	one, two := env.Members[0], env.Members[1]
	s.namespaceOn(one, two)
	s.attach("one", one, "shop-pods='11'")
	s.attach("two", two)
	s.apply(fleet("prod", "one", "two"))
	const more = "  - {name: plain, namespace: $NAMESPACE, hard: {pods: \"1\"}}\n  manifests:\n    objects:\n" +
		"    - {apiVersion: v1, kind: ConfigMap, metadata: {name: site, namespace: $NAMESPACE}, data: {site: none}}\n"
	plain := baselineOf("base", "prod", "10") + more
	s.apply(plain)
	s.config("base", metav1.ConditionTrue, "2/2")
	s.still()
	objects := func(member *harness.Cluster) func() map[string]string {
		return func() map[string]string {
			out := map[string]string{}
			for _, o := range s.labelled(member, client.MatchingLabels{kustomizev1.GroupVersion.Group + "/namespace": s.ns}) {
				out[o.Kind+" "+o.Name] = o.ResourceVersion
			}
			return out
		}
	}
	had := objects(two)()
	s.Expect(had).To(HaveLen(3))

	t.Log("a value that had been the same for all becomes a fact, which one of them lacks; another value changes")
	facts := strings.NewReplacer(`pods: '10'`, `pods: << index .cluster.labels "shop-pods" >>`, `pods: "1"`, `pods: "2"`, "site: none", `site: at << index .cluster.labels "shop-pods" >>`).Replace(plain)
	s.apply(facts)
	s.Eventually(s.pods(one, quota(one, s.ns, "default"))).Should(Equal("11"))
	s.Eventually(s.data(one, s.ns, "site")).Should(HaveKeyWithValue("site", "at 11"))
	s.Expect(s.pods(one, quota(one, s.ns, "plain"))()).To(Equal("2"))
	config := s.config("base", metav1.ConditionFalse, "1/2")
	s.Expect(notReady(config.Status.Members)).To(Equal(map[string]string{"two": "RenderFailed"}))
	s.Expect(memberMessage(config.Status.Members, "two")).To(ContainSubstring("shop-pods"))
	s.Expect(harness.RequestReconcile(s.ctx, env.Hub.Client, s.kustomization("baseline-base-objects-two"))).To(Succeed())
	s.handled()
	s.Consistently(objects(two)).Should(Equal(had))

	t.Log("an object is taken out: not from this member")
	s.apply(strings.Replace(facts, "  - {name: plain, namespace: $NAMESPACE, hard: {pods: \"2\"}}\n", "", 1))
	s.Eventually(s.exists(one, quota(one, s.ns, "plain"))).Should(BeFalse())
	s.config("base", metav1.ConditionFalse, "1/2")
	s.Consistently(objects(two)).Should(Equal(had))

	t.Log("a member that lacks it from the start gets nothing, and the others are not touched")
	generations := objects(one)()
	three := env.Members[2]
	s.namespaceOn(three)
	s.attach("three", three)
	s.apply(fleet("prod", "one", "two", "three"))
	s.config("base", metav1.ConditionFalse, "1/3")
	s.Consistently(objects(three)).Should(BeEmpty())
	s.Expect(objects(one)()).To(Equal(generations))
	s.Expect(objects(two)()).To(Equal(had))

	t.Log("mended, each gets all of it")
	for name, pods := range map[string]string{"two": "12", "three": "13"} {
		s.merge(&clusterv1.AttachedCluster{ObjectMeta: s.named(name)}, `{"metadata":{"labels":{"shop-pods":"`+pods+`"}}}`)
	}
	s.config("base", metav1.ConditionTrue, "3/3")
	s.Expect(s.pods(two, quota(two, s.ns, "default"))()).To(Equal("12"))
	s.Expect(s.pods(three, quota(three, s.ns, "default"))()).To(Equal("13"))
	s.Expect(s.data(two, s.ns, "site")()).To(HaveKeyWithValue("site", "at 12"))
	s.Expect(s.exists(two, quota(two, s.ns, "plain"))()).To(BeFalse())
	s.Expect(objects(one)()).To(Equal(generations))
	s.still()

	t.Log("the label is lost: its Kustomization keeps the values that it had, so the rest goes on; without facts again, it gets all")
	s.merge(&clusterv1.AttachedCluster{ObjectMeta: s.named("two")}, `{"metadata":{"labels":{"shop-pods":null}}}`)
	s.config("base", metav1.ConditionFalse, "2/3")
	had = objects(two)()
	s.apply(strings.Replace(facts, `pods: "2"`, `pods: "3"`, 1))
	s.Eventually(s.pods(one, quota(one, s.ns, "plain"))).Should(Equal("3"))
	s.config("base", metav1.ConditionFalse, "2/3")
	s.Eventually(s.exists(two, quota(two, s.ns, "plain"))).Should(BeTrue())
	s.Consistently(func() map[string]string { return without(objects(two)(), "ResourceQuota plain") }).Should(Equal(had))
	s.apply(plain)
	s.config("base", metav1.ConditionTrue, "3/3")
	s.Expect(s.pods(two, quota(two, s.ns, "default"))()).To(Equal("10"))
	s.Expect(s.data(two, s.ns, "site")()).To(HaveKeyWithValue("site", "none"))

	s.end("base")
	for _, member := range env.Members {
		s.Eventually(s.applied(member)).Should(BeEmpty(), member.Name)
	}
}

// A fleet that is isolated: the policy is in the namespaces that are known, and goes when it is not wanted any more.
func TestFleetIsolation(t *testing.T) {
	s := begin(t)
	one, two := env.Members[0], env.Members[1]
	s.attach("one", one)
	s.attach("two", two)
	isolated := fleet("prod", "one", "two") + "  policy: {networkIsolation: true}\n"
	s.apply(strings.Replace(isolated, "true", "false", 1))
	s.apply(strings.Replace(baselineOf("base", "prod", "10"), "  resourceQuotas", "  namespaces: [{name: $NAMESPACE, deletionPolicy: Delete}]\n  resourceQuotas", 1))
	s.config("base", metav1.ConditionTrue, "2/2")
	s.apply(isolated)
	s.Eventually(func() error {
		return env.Hub.Client.Get(s.ctx, types.NamespacedName{Namespace: s.ns, Name: "prod-isolation"}, &clusterv1.ClusterConfig{})
	}).Should(Succeed())
	s.config("prod-isolation", metav1.ConditionTrue, "2/2")
	var policies []func() (bool, error)
	for _, member := range []*harness.Cluster{one, two} {
		for _, ns := range []string{"default", s.ns} {
			p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "isolation"}}
			s.Expect(s.exists(member, p)()).To(BeTrue(), member.Name+" "+ns)
			s.Expect(p.Spec.PolicyTypes).To(ConsistOf(networkingv1.PolicyTypeIngress))
			policies = append(policies, s.exists(member, p))
		}
	}
	s.still()

	s.apply(strings.Replace(isolated, "true", "false", 1))
	for _, there := range policies {
		s.Eventually(there).Should(BeFalse())
	}
	s.Eventually(s.gone(&clusterv1.ClusterConfig{ObjectMeta: s.named("prod-isolation")})).Should(BeTrue())
	s.config("base", metav1.ConditionTrue, "2/2")
	s.Expect(s.pods(one, quota(one, s.ns, "default"))()).To(Equal("10"))

	t.Log("while it is isolated, a namespace that ends on the members takes its policy along")
	s.apply(isolated)
	for _, there := range policies {
		s.Eventually(there).Should(BeTrue())
	}
	s.delete(&clusterv1.ClusterConfig{ObjectMeta: s.named("base")})
	s.Eventually(s.gone(&clusterv1.ClusterConfig{ObjectMeta: s.named("base")})).Should(BeTrue())
	s.Eventually(s.exists(one, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.ns}})).Should(BeFalse())
	s.config("prod-isolation", metav1.ConditionTrue, "2/2")

	s.apply(strings.Replace(isolated, "true", "false", 1))
	s.Eventually(s.left).Should(BeEmpty())
	for _, there := range policies {
		s.Expect(there()).To(BeFalse())
	}
}

// namespaced returns a ClusterConfig that has these namespaces, which end with it.
func namespaced(name, more string, namespaces ...string) string {
	doc := "apiVersion: cluster.kurator.dev/v1alpha1\nkind: ClusterConfig\nmetadata: {name: " + name + "}\nspec:\n" +
		"  target: {fleet: prod}\n  interval: 10s\n" + more + "  namespaces:\n"
	for _, ns := range namespaces {
		doc += "  - {name: $NAMESPACE" + ns + ", deletionPolicy: Delete}\n"
	}
	return doc
}

// precious puts a ConfigMap into a namespace of members, and returns what fails if it, or the namespace, is not the same.
func (s *scenario) precious(namespace string, members ...*harness.Cluster) (same func(Gomega)) {
	s.t.Helper()
	uids := map[*harness.Cluster]types.UID{}
	for _, m := range members {
		ns := &corev1.Namespace{}
		s.Expect(m.Client.Get(s.ctx, types.NamespacedName{Name: s.ns + namespace}, ns)).To(Succeed())
		uids[m] = ns.UID
		s.Expect(m.Client.Create(s.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns + namespace, Name: "precious"}})).To(Succeed())
		s.t.Cleanup(func() {
			_ = m.Client.Delete(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.ns + namespace}})
		})
	}
	return func(g Gomega) {
		for m, uid := range uids {
			ns := &corev1.Namespace{}
			g.Expect(m.Client.Get(s.ctx, types.NamespacedName{Name: s.ns + namespace}, ns)).To(Succeed(), m.Name)
			g.Expect(ns.UID).To(Equal(uid), m.Name)
			g.Expect(ns.DeletionTimestamp.IsZero()).To(BeTrue(), m.Name)
			g.Expect(m.Client.Get(s.ctx, types.NamespacedName{Namespace: s.ns + namespace, Name: "precious"}, &corev1.ConfigMap{})).To(Succeed(), m.Name)
		}
	}
}

// labelOf returns by which Kustomization the namespace was applied last.
func (s *scenario) labelOf(member *harness.Cluster, namespace string) func() (string, error) {
	return func() (string, error) {
		ns := &corev1.Namespace{}
		err := member.Client.Get(s.ctx, types.NamespacedName{Name: s.ns + namespace}, ns)
		return ns.Labels[kustomizev1.GroupVersion.Group+"/name"], err
	}
}

// What several ClusterConfigs want stays when one of them goes, even one that was suspended when the others came.
func TestBaselineOfSuspendedEnds(t *testing.T) {
	s := begin(t)
	one, two := env.Members[0], env.Members[1]
	s.attach("one", one)
	s.attach("two", two)
	s.apply(fleet("prod", "one", "two"))
	s.apply(namespaced("hh", "  priority: 5\n", "-pay"))
	s.config("hh", metav1.ConditionTrue, "2/2")
	same := s.precious("-pay", one, two)
	s.merge(&clusterv1.ClusterConfig{ObjectMeta: s.named("hh")}, `{"spec":{"suspend":true}}`)
	s.apply(namespaced("ll", "", "-pay"))
	s.config("ll", metav1.ConditionTrue, "2/2")
	s.delete(&clusterv1.ClusterConfig{ObjectMeta: s.named("hh")})
	s.Eventually(s.gone(&clusterv1.ClusterConfig{ObjectMeta: s.named("hh")})).Should(BeTrue())
	same(s.WithT)
	s.Eventually(s.labelOf(one, "-pay")).Should(Equal("baseline-ll-objects-one"))
	s.config("ll", metav1.ConditionTrue, "2/2")
	s.Consistently(same, 12*time.Second, time.Second).Should(Succeed(), "after Flux's interval")
	s.end("ll")
	s.Eventually(s.exists(one, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.ns + "-pay"}})).Should(BeFalse(), "nobody wants it any more")
}

// Renaming a ClusterConfig, and moving a line from one to another in one commit, loses nothing.
func TestBaselineMoves(t *testing.T) {
	s := begin(t)
	one, two := env.Members[0], env.Members[1]
	s.attach("one", one)
	s.attach("two", two)
	s.apply(fleet("prod", "one", "two"))
	s.apply(namespaced("x1", "", "-rest", "-pay") + "\n---\n" + namespaced("x2", "", "-other"))
	s.config("x1", metav1.ConditionTrue, "2/2")
	s.config("x2", metav1.ConditionTrue, "2/2")
	same := s.precious("-pay", one, two)

	t.Log("a line moves")
	s.apply(namespaced("x1", "", "-rest") + "\n---\n" + namespaced("x2", "", "-other", "-pay"))
	s.Eventually(s.labelOf(one, "-pay")).Should(Equal("baseline-x2-objects-one"))
	s.config("x1", metav1.ConditionTrue, "2/2")
	s.config("x2", metav1.ConditionTrue, "2/2")
	s.Consistently(same, 12*time.Second, time.Second).Should(Succeed(), "after Flux's interval")

	t.Log("a ClusterConfig gets another name")
	s.apply(namespaced("x3", "", "-other", "-pay"))
	s.delete(&clusterv1.ClusterConfig{ObjectMeta: s.named("x2")})
	s.Eventually(s.gone(&clusterv1.ClusterConfig{ObjectMeta: s.named("x2")})).Should(BeTrue())
	s.config("x3", metav1.ConditionTrue, "2/2")
	s.Eventually(s.labelOf(two, "-pay")).Should(Equal("baseline-x3-objects-two"))
	s.Consistently(same, 12*time.Second, time.Second).Should(Succeed(), "after Flux's interval")

	t.Log("and another one while the controller is down, which comes back with an empty disk")
	s.restartController(func() {
		s.apply(namespaced("x4", "", "-other", "-pay"))
		s.delete(&clusterv1.ClusterConfig{ObjectMeta: s.named("x3")})
	})
	s.Eventually(s.gone(&clusterv1.ClusterConfig{ObjectMeta: s.named("x3")})).Should(BeTrue())
	s.config("x4", metav1.ConditionTrue, "2/2")
	s.Eventually(s.labelOf(one, "-pay")).Should(Equal("baseline-x4-objects-one"))
	same(s.WithT)

	t.Log("a line moves back while the controller is down")
	s.restartController(func() {
		s.apply(namespaced("x1", "", "-rest", "-pay") + "\n---\n" + namespaced("x4", "", "-other"))
	})
	s.Eventually(s.labelOf(one, "-pay")).Should(Equal("baseline-x1-objects-one"))
	s.config("x1", metav1.ConditionTrue, "2/2")
	s.config("x4", metav1.ConditionTrue, "2/2")
	s.Consistently(same, 12*time.Second, time.Second).Should(Succeed(), "after Flux's interval")
	s.end("x1", "x4")
}

// Whoever cannot be told to give an object up keeps it, whatever the priorities are, and nothing flips.
func TestBaselineSuspendedHasIt(t *testing.T) {
	s := begin(t)
	one := env.Members[0]
	s.namespaceOn(one)
	s.attach("one", one)
	s.apply(fleet("prod", "one"))
	shared := func(name, more string) string {
		return "apiVersion: cluster.kurator.dev/v1alpha1\nkind: ClusterConfig\nmetadata: {name: " + name + "}\nspec:\n  target: {fleet: prod}\n  interval: 10s\n" + more +
			"  manifests: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: shared, namespace: $NAMESPACE}, data: {of: " + name + "}}]}\n"
	}
	s.apply(shared("aa", ""))
	s.config("aa", metav1.ConditionTrue, "1/1")
	s.apply(shared("bb", ""))
	s.config("bb", metav1.ConditionTrue, "1/1")
	s.merge(&clusterv1.ClusterConfig{ObjectMeta: s.named("aa")}, `{"spec":{"suspend":true}}`)
	s.apply(shared("bb", "  priority: 10\n"))
	s.Eventually(s.said("bb", clusterv1.ConflictCondition)).Should(ContainSubstring("as it is suspended: resume it"))
	s.config("bb", metav1.ConditionTrue, "1/1")
	s.Consistently(s.data(one, s.ns, "shared"), 25*time.Second, 500*time.Millisecond).Should(HaveKeyWithValue("of", "aa"))
	s.merge(&clusterv1.ClusterConfig{ObjectMeta: s.named("aa")}, `{"spec":{"suspend":null}}`)
	s.Eventually(s.data(one, s.ns, "shared")).Should(HaveKeyWithValue("of", "bb"))
	s.Consistently(s.data(one, s.ns, "shared"), 15*time.Second, 500*time.Millisecond).Should(HaveKeyWithValue("of", "bb"))
	s.end("aa", "bb")
}
