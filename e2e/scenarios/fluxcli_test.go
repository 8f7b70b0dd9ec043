package scenarios

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
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
