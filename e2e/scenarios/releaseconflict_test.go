package scenarios

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"

	"github.com/fleetwright/fleetwright/e2e/harness"
)

// H7: the children of two Applications have different names, but the release that they mean is one.
func TestReleaseConflict(t *testing.T) {
	s := begin(t)
	one, two := env.Members[0], env.Members[1]
	s.push("chart", chart)
	s.attach("one", one)
	s.attach("two", two)
	s.apply(fleet("prod", "one", "two"))
	release := func(who string) string {
		return `releaseName: ingress
      targetNamespace: $NAMESPACE
      values: {who: ` + who + `}`
	}
	s.apply(greeter("a", release("a")))
	s.ready("a", "2/2")

	t.Log("b does not get what is a's, and says whose it is")
	s.apply(greeter("b", release("b")))
	b := s.reports("b", "False", "0/2")
	s.Expect(notReady(b.Status.Members)).To(Equal(map[string]string{"one": "ReleaseConflict", "two": "ReleaseConflict"}))
	s.Expect(memberMessage(b.Status.Members, "one")).To(ContainSubstring("a-app-one of Application a"))
	s.Consistently(func() []string { return names(s.releases()) }).Should(ConsistOf("a-app-one", "a-app-two"))

	t.Log("nor after a restart, which remembers nothing")
	s.restartController(nil)
	s.Consistently(func() []string { return names(s.releases()) }).Should(ConsistOf("a-app-one", "a-app-two"))
	for _, member := range []*harness.Cluster{one, two} {
		s.Expect(s.data(member, s.ns, "ingress")()).To(HaveKeyWithValue("text", "none, a"))
		s.Expect(s.releasesOn(member)()).To(ConsistOf("ingress v1"))
	}

	t.Log("when a goes, b comes in by itself")
	s.delete(s.app("a"))
	for _, member := range []*harness.Cluster{one, two} {
		s.Eventually(s.data(member, s.ns, "ingress")).Should(HaveKeyWithValue("text", "none, b"))
	}
	s.ready("b", "2/2")
	s.Expect(condition(s.app("b").Status.Conditions, meta.ReadyCondition)).NotTo(ContainSubstring("Conflict"))
	s.Expect(names(s.releases())).To(ConsistOf("b-app-one", "b-app-two"))
}
