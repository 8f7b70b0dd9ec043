package scenarios

import (
	"testing"

	. "github.com/onsi/gomega"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
)

// A policy that gets another name moves: its new child takes over what the old one applied before the old one ends, so
// that nothing is deleted on the way.
func TestRenamedPolicy(t *testing.T) {
	s := begin(t)
	one, two := env.Members[0], env.Members[1]
	s.push("shop", shop)
	s.attach("one", one, "region=eu")
	s.attach("two", two, "region=us")
	s.apply(fleet("prod", "one"))
	s.apply(shopApplication)
	s.ready("shop", "1/1")
	had := s.applied(one)()
	s.apply(replace(shopApplication, "name: app\n", "name: second\n"))
	s.Eventually(func() []string { return names(s.kustomizations()) }).Should(ConsistOf("shop-second-one"))
	s.ready("shop", "1/1")
	s.Expect(s.applied(one)()).To(Equal(had))

	t.Log("with two members, the old ones are all there are, which is over budget: they end when that is allowed")
	s.apply(fleet("prod", "one", "two"))
	s.ready("shop", "2/2")
	twoHad := s.applied(two)()
	s.apply(replace(shopApplication, "name: app\n", "name: third\n"))
	s.Eventually(func() string { return condition(s.app("shop").Status.Conditions, appsv1.PruneBlockedCondition) }).
		Should(HavePrefix("True PruneOverBudget: 2 objects on 2 of 2 members would end"))
	s.Consistently(func() []string { return names(s.kustomizations()) }).
		Should(ConsistOf("shop-second-one", "shop-second-two", "shop-third-one", "shop-third-two"))
	s.merge(s.app("shop"), `{"metadata":{"annotations":{"fleet.kurator.dev/allow-prune":"`+s.app("shop").Status.Prune.Allow+`"}}}`)
	s.Eventually(func() []string { return names(s.kustomizations()) }).Should(ConsistOf("shop-third-one", "shop-third-two"))
	s.ready("shop", "2/2")
	s.Expect(s.applied(one)()).To(Equal(had))
	s.Expect(s.applied(two)()).To(Equal(twoHad))
}
