package scenarios

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

// Both ways to ask for a reconcile work on all our kinds: Flux's annotation and Kurator's.
func TestRequests(t *testing.T) {
	s := begin(t)
	member := env.Members[0]
	s.push("shop", shop)
	s.attach("one", member, "region=eu")
	s.apply(fleet("prod", "one"))
	s.apply(shopApplication)
	s.ready("shop", "1/1")
	s.Expect(member.Client.Delete(s.ctx, &corev1.ConfigMap{ObjectMeta: s.named("shop")})).To(Succeed())

	t.Log("a request to the Application is passed on to its source and its children")
	request := `{"metadata":{"annotations":{"reconcile.fluxcd.io/requestedAt":"t1"}}}`
	s.merge(s.app("shop"), request)
	s.Eventually(func() string { return s.app("shop").Status.LastHandledReconcileAt }).Should(Equal("t1"))
	s.Eventually(s.data(member, s.ns, "shop")).Should(HaveKeyWithValue("cluster", "one in eu"))
	handled := func() string { return s.kustomization("shop-app-one").Status.LastHandledReconcileAt }
	s.Eventually(handled).Should(Equal("t1"))
	s.Eventually(func() string { return get(s, &sourcev1.GitRepository{}, "shop").Status.LastHandledReconcileAt }).Should(Equal("t1"))

	t.Log("and to a Fleet and an AttachedCluster it makes them look again")
	s.merge(&fleetv1.Fleet{ObjectMeta: s.named("prod")}, request)
	s.merge(&clusterv1.AttachedCluster{ObjectMeta: s.named("one")}, request)
	s.Eventually(func() string { return get(s, &fleetv1.Fleet{}, "prod").Status.LastHandledReconcileAt }).Should(Equal("t1"))
	s.Eventually(func() string { return get(s, &clusterv1.AttachedCluster{}, "one").Status.LastHandledReconcileAt }).Should(Equal("t1"))

	t.Log("kurator.dev/reconcile=force does the same, once for each time it is set")
	s.Expect(member.Client.Delete(s.ctx, &corev1.ConfigMap{ObjectMeta: s.named("shop")})).To(Succeed())
	force := `{"metadata":{"annotations":{"kurator.dev/reconcile":"force"}}}`
	s.merge(s.app("shop"), force)
	s.Eventually(s.data(member, s.ns, "shop")).Should(HaveKeyWithValue("cluster", "one in eu"))
	s.Eventually(handled).ShouldNot(Equal("t1"))
	s.ready("shop", "1/1")
	first := handled()
	s.Consistently(handled).Should(Equal(first))
	s.restartController(nil)
	s.merge(s.app("shop"), `{"metadata":{"annotations":{"something":"else"}}}`)
	s.Consistently(handled).Should(Equal(first), "it was handled, and stays so over a restart")
	s.merge(s.app("shop"), `{"metadata":{"annotations":{"kurator.dev/reconcile":null}}}`)
	s.Eventually(func() bool { return s.app("shop").Status.ForceHandled }).Should(BeFalse())
	s.merge(s.app("shop"), force)
	s.Eventually(handled).ShouldNot(Equal(first))
}

// H15: a request to what is suspended is not lost, and does not pretend to have been handled.
func TestSuspended(t *testing.T) {
	s := begin(t)
	one, two := env.Members[0], env.Members[1]
	s.push("shop", shop)
	s.attach("one", one, "region=eu")
	s.attach("two", two, "region=us")
	s.apply(fleet("prod", "one", "two"))
	s.apply(replace(shopApplication, "metadata: {name: shop}",
		`metadata: {name: shop, annotations: {reconcile.fluxcd.io/requestedAt: t1, kurator.dev/reconcile: force}}`,
		"destination: {fleet: prod}", "destination: {fleet: prod}\n  suspend: true"))

	s.Eventually(func() string { return condition(s.app("shop").Status.Conditions, "Suspended") }).
		Should(SatisfyAll(HavePrefix("True Suspended: "), ContainSubstring("the reconcile request t1 waits")))
	s.Consistently(s.left).Should(BeEmpty())
	s.Expect(s.app("shop").Status.LastHandledReconcileAt).To(BeEmpty())

	t.Log("resumed, it handles the request, once")
	s.merge(s.app("shop"), `{"spec":{"suspend":false}}`)
	s.Eventually(s.data(one, s.ns, "shop")).Should(HaveKeyWithValue("cluster", "one in eu"))
	s.ready("shop", "2/2")
	s.Expect(s.app("shop").Status.LastHandledReconcileAt).To(Equal("t1"))
	s.Expect(condition(s.app("shop").Status.Conditions, "Suspended")).To(BeEmpty())

	t.Log("kurator.dev/pause stops it as well: children stay, changes wait, and Flux goes on")
	s.merge(s.app("shop"), `{"metadata":{"annotations":{"kurator.dev/pause":"true"}}}`)
	s.Eventually(func() string { return condition(s.app("shop").Status.Conditions, "Suspended") }).ShouldNot(BeEmpty())
	generations := s.generations()
	s.merge(s.app("shop"), `{"spec":{"destination":{"fleet":"none"}}}`)
	s.push("shop", files{"base/config.yaml": shopConfig("two")})
	s.pushed("shop")
	s.Eventually(s.data(one, s.ns, "shop")).Should(HaveKeyWithValue("version", "two"))
	s.Consistently(s.generations).Should(Equal(generations))
	s.merge(s.app("shop"), `{"metadata":{"annotations":{"kurator.dev/pause":null}},"spec":{"destination":{"fleet":"prod"}}}`)
	s.ready("shop", "2/2")

	t.Log("a request passes by a child that the user has suspended, and says so")
	s.flux("suspend", "kustomization", "shop-app-one")
	s.merge(s.app("shop"), `{"metadata":{"annotations":{"reconcile.fluxcd.io/requestedAt":"t2"}}}`)
	s.Eventually(func() string { return s.kustomization("shop-app-two").Status.LastHandledReconcileAt }).Should(Equal("t2"))
	s.Eventually(func() string { return s.app("shop").Status.LastHandledReconcileAt }).Should(Equal("t2"))
	s.Expect(s.kustomization("shop-app-one").Annotations).NotTo(HaveKeyWithValue(meta.ReconcileRequestAnnotation, "t2"))
	s.Eventually(func() map[string]string { return notReady(s.app("shop").Status.Members) }).Should(Equal(map[string]string{"one": "Suspended"}))
}

// generations returns the generations of the Kustomizations, which tell of changes to their specs.
func (s *scenario) generations() map[string]int64 {
	out := map[string]int64{}
	for name, k := range s.kustomizations() {
		out[name] = k.Generation
	}
	return out
}
