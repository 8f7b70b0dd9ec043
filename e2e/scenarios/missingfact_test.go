package scenarios

import (
	"testing"

	. "github.com/onsi/gomega"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
)

// H8: what a member lacks is that member's trouble, and ends when it is there.
func TestMissingFact(t *testing.T) {
	s := begin(t)
	s.push("shop", shop)
	s.attach("c1", env.Members[0], "site=east")
	s.attach("c2", env.Members[1], "site=west")
	s.attach("c3", env.Members[2])
	s.apply(fleet("prod", "c1", "c2", "c3"))
	s.apply(replace(shopApplication, ".cluster.labels.region", ".cluster.labels.site"))
	s.Eventually(s.data(env.Members[1], s.ns, "shop")).Should(HaveKeyWithValue("cluster", "c2 in west"))
	app := s.reports("shop", "False", "2/3")
	s.Expect(notReady(app.Status.Members)).To(Equal(map[string]string{"c3": "RenderFailed"}))
	s.Expect(memberMessage(app.Status.Members, "c3")).To(ContainSubstring("site"))
	s.Expect(s.applied(env.Members[2])()).To(BeEmpty(), "not even without what the fact is for")

	versions := s.resourceVersions()
	s.merge(&clusterv1.AttachedCluster{ObjectMeta: s.named("c3")}, `{"metadata":{"labels":{"site":"north"}}}`)
	s.Eventually(s.data(env.Members[2], s.ns, "shop")).Should(HaveKeyWithValue("cluster", "c3 in north"))
	s.ready("shop", "3/3")
	s.Expect(without(s.resourceVersions(), "shop-app-c3")).To(Equal(versions), "only the member that was mended is written to")
	s.Expect(s.app("shop").Generation).To(Equal(app.Generation))
}
