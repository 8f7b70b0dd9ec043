package scenarios

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	"github.com/fleetwright/fleetwright/e2e/harness"
)

// A cluster that is deleted while it is in use: what it has ends first, with the credentials that takes; then the cluster
// goes.
func TestLeaving(t *testing.T) {
	s := begin(t)
	one, two := env.Members[0], env.Members[1]
	s.push("shop", shop)
	s.push("chart", chart)
	s.attach("one", one, "region=eu")
	s.attach("two", two, "region=us")
	s.apply(fleet("prod", "one", "two"))
	s.apply(shopApplication)
	s.apply(greeter("greeter", "targetNamespace: $NAMESPACE"))
	s.ready("shop", "2/2")
	s.ready("greeter", "2/2")
	has := s.applied(two)()

	t.Log("it waits for its children, says for whose, and the other member is not touched")
	release := s.hold(s.kustomization("shop-app-one"))
	s.delete(&clusterv1.AttachedCluster{ObjectMeta: s.named("one")})
	s.Eventually(s.health("one")).Should(HavePrefix("False Terminating: waiting for 1 objects of Application shop to end"))
	s.Expect(s.releasesOn(one)()).To(BeEmpty())
	s.Eventually(s.data(one, s.ns, "shop")).Should(BeNil())
	s.Expect(s.kustomization("shop-app-one").DeletionTimestamp).NotTo(BeNil())
	s.Consistently(s.gone(&clusterv1.AttachedCluster{ObjectMeta: s.named("one")})).Should(BeFalse())
	release()
	s.Eventually(s.gone(&clusterv1.AttachedCluster{ObjectMeta: s.named("one")})).Should(BeTrue())
	s.Expect(s.gone(&kustomizev1.Kustomization{ObjectMeta: s.named("shop-app-one")})()).To(BeTrue())
	s.Eventually(s.applied(one)).Should(BeEmpty())
	s.Expect(s.applied(two)()).To(Equal(has))
	s.Expect(s.releasesOn(two)()).To(ConsistOf("greeter-app v1"))

	t.Log("the fleet still names it, and says that it is not there")
	s.Expect(notReady(s.reports("shop", "False", "1/2").Status.Members)).To(Equal(map[string]string{"one": "NotFound"}))

	t.Log("a cluster that nothing uses goes at once")
	s.attach("three", env.Members[2])
	s.Eventually(s.health("three")).Should(HavePrefix("True "))
	s.delete(&clusterv1.AttachedCluster{ObjectMeta: s.named("three")})
	s.Eventually(s.gone(&clusterv1.AttachedCluster{ObjectMeta: s.named("three")})).Should(BeTrue())
}

// With deletionPolicy Orphan, whoever leaves keeps running what was applied: Kustomizations and Helm releases alike.
func TestOrphan(t *testing.T) {
	s := begin(t)
	one, two := env.Members[0], env.Members[1]
	s.push("shop", shop)
	s.push("chart", chart)
	s.attach("one", one, "region=eu")
	s.attach("two", two, "region=us")
	s.apply(fleet("prod", "one", "two"))
	orphan := func(app string) string {
		return replace(app, "  destination: {fleet: prod}", "  destination: {fleet: prod}\n  deletionPolicy: Orphan")
	}
	s.apply(orphan(shopApplication))
	s.apply(orphan(greeter("greeter", "targetNamespace: $NAMESPACE")))
	s.ready("shop", "2/2")
	s.ready("greeter", "2/2")
	type state struct {
		uids     map[types.UID]string
		releases []string
	}
	on := func(member *harness.Cluster) state {
		uids := map[types.UID]string{}
		for name, uid := range s.applied(member)() {
			uids[uid] = name
		}
		cm := &corev1.ConfigMap{ObjectMeta: s.named("greeter-app")}
		s.Expect(s.exists(member, cm)()).To(BeTrue())
		uids[cm.UID] = cm.Name
		return state{uids, s.releasesOn(member)()}
	}
	onOne, onTwo := on(one), on(two)
	s.Expect(onOne.releases).To(ConsistOf("greeter-app v1"))

	t.Log("a member that leaves keeps everything")
	s.apply(fleet("prod", "two"))
	s.Eventually(s.kustomizations).ShouldNot(HaveKey("shop-app-one"))
	s.Eventually(s.releases).ShouldNot(HaveKey("greeter-app-one"))
	s.Expect(on(one)).To(Equal(onOne))

	t.Log("and so does everybody when the Applications go; on the hub nothing is left")
	s.delete(s.app("shop"))
	s.delete(s.app("greeter"))
	s.Eventually(s.gone(&appsv1.Application{ObjectMeta: s.named("shop")})).Should(BeTrue())
	s.Eventually(s.gone(&appsv1.Application{ObjectMeta: s.named("greeter")})).Should(BeTrue())
	s.Expect(s.left()).To(BeEmpty())
	s.Consistently(func() []state { return []state{on(one), on(two)} }).Should(Equal([]state{onOne, onTwo}))
}
