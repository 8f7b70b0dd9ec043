package scenarios

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

// Must hold 5: what is generated are Flux objects, for the flux CLI too, and the user's hand wins.
func TestFluxCLI(t *testing.T) {
	s := begin(t)
	one, two := env.Members[0], env.Members[1]
	s.push("shop", shop)
	s.push("fleet", files{
		"one.yaml": attachedCluster("one", "region=eu"), "two.yaml": attachedCluster("two", "region=us"),
		"prod.yaml": fleet("prod", "one", "two"), "shop.yaml": shopApplication,
	})
	s.kubeconfig("one", one.Kubeconfig)
	s.kubeconfig("two", two.Kubeconfig)
	s.apply(fluxOnHub)
	s.Eventually(s.gone(&appsv1.Application{ObjectMeta: s.named("shop")})).Should(BeFalse())
	s.ready("shop", "2/2")

	t.Log("flux get lists the children, and flux tree and flux events tell of one what is on the member")
	s.Expect(s.flux("get", "kustomizations")).To(SatisfyAll(
		MatchRegexp(`shop-app-one\s+main@sha1:\S+\s+False\s+True`), MatchRegexp(`shop-app-two\s+main@sha1:\S+\s+False\s+True`)))
	s.Expect(s.flux("get", "sources", "git")).To(MatchRegexp(`shop\s+main@sha1:\S+\s+False\s+True`))
	s.Expect(s.flux("tree", "kustomization", "shop-app-one")).To(ContainSubstring("Deployment/" + s.ns + "/shop"))
	s.Eventually(func() string { return s.flux("events", "--for", "Kustomization/shop-app-one") }).Should(ContainSubstring("ReconciliationSucceeded"))

	t.Log("flux trace goes from a child over its Application to what is in Git")
	s.Expect(s.flux("trace", "kustomization", "shop-app-one")).To(SatisfyAll(
		ContainSubstring("Kustomization/shop-app-one"),
		MatchRegexp(`Kustomization:\s+fleet\n`), MatchRegexp(`GitRepository:\s+fleet\n`), ContainSubstring(env.Git.URL(s.ns+"-fleet"))))
	for kind, name := range map[string]string{"application": "shop", "fleet": "prod", "attachedcluster": "one"} {
		s.Expect(s.flux("trace", kind, name)).To(MatchRegexp(`Kustomization:\s+fleet\n`), kind)
	}

	t.Log("flux suspend holds: through a change of the Application, a new commit and a restart")
	s.flux("suspend", "kustomization", "shop-app-one")
	suspended := s.kustomization("shop-app-one")
	s.push("shop", files{"base/config.yaml": shopConfig("two")})
	s.push("fleet", files{"shop.yaml": replace(shopApplication, "<< .cluster.name >> in", "<< .cluster.name >> at")})
	s.pushed("shop")
	s.pushed("fleet")
	s.Eventually(s.data(two, s.ns, "shop")).Should(SatisfyAll(HaveKeyWithValue("cluster", "two at us"), HaveKeyWithValue("version", "two")))
	s.restartController(nil)
	app := s.reports("shop", metav1.ConditionTrue, "1/2")
	s.Expect(notReady(app.Status.Members)).To(Equal(map[string]string{"one": "Suspended"}))
	s.Expect(memberMessage(app.Status.Members, "one")).To(ContainSubstring("flux resume kustomization shop-app-one -n " + s.ns))
	s.Consistently(func() *kustomizev1.Kustomization { return s.kustomization("shop-app-one") }).
		Should(SatisfyAll(HaveField("Spec", suspended.Spec), HaveField("Generation", suspended.Generation)))
	s.Expect(s.data(one, s.ns, "shop")()).To(SatisfyAll(HaveKeyWithValue("cluster", "one in eu"), HaveKeyWithValue("version", "one")))

	t.Log("flux resume gives it what it missed")
	s.flux("resume", "kustomization", "shop-app-one")
	s.Eventually(s.data(one, s.ns, "shop")).Should(SatisfyAll(HaveKeyWithValue("cluster", "one at eu"), HaveKeyWithValue("version", "two")))
	s.ready("shop", "2/2")
	s.Expect(s.kustomization("shop-app-one").Spec.Suspend).To(BeFalse())

	t.Log("flux reconcile mends a member at once, and nothing else is written")
	shopOnOne := &corev1.ConfigMap{ObjectMeta: s.named("shop")}
	s.Expect(one.Client.Delete(s.ctx, shopOnOne)).To(Succeed())
	generation, other := s.kustomization("shop-app-one").Generation, s.kustomization("shop-app-two").ResourceVersion
	s.flux("reconcile", "kustomization", "shop-app-one")
	s.Expect(s.data(one, s.ns, "shop")()).To(HaveKeyWithValue("cluster", "one at eu"))
	requested := s.kustomization("shop-app-one").Annotations[meta.ReconcileRequestAnnotation]
	s.Expect(requested).NotTo(BeEmpty())
	s.Consistently(func() string { return s.kustomization("shop-app-two").ResourceVersion }).Should(Equal(other))
	s.Expect(s.kustomization("shop-app-one").Generation).To(Equal(generation))
	s.Expect(s.kustomization("shop-app-one").Annotations).To(HaveKeyWithValue(meta.ReconcileRequestAnnotation, requested), "the request stays as it was made")

	t.Log("and with its source, it brings what was pushed")
	s.push("shop", files{"base/config.yaml": shopConfig("three")})
	s.flux("reconcile", "kustomization", "shop-app-one", "--with-source")
	s.Expect(s.data(one, s.ns, "shop")()).To(HaveKeyWithValue("version", "three"))
}

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
