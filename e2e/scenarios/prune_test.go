package scenarios

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fleetwright/fleetwright/e2e/harness"
)

// What an unset prune means: as in Kurator's examples, Flux takes away what is no longer in Git. Only prune: false keeps
// it, on a member that leaves, too.
func TestPrune(t *testing.T) {
	s := begin(t)
	one, two := env.Members[0], env.Members[1]
	config := func(name string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: " + s.ns + "}\ndata: {a: b}\n"
	}
	for _, member := range []*harness.Cluster{one, two} {
		s.Expect(member.CreateNamespace(s.ctx, s.ns)).To(Succeed())
	}
	s.push("things", files{
		"pruned/a.yaml": config("pruned-a"), "pruned/b.yaml": config("pruned-b"),
		"kept/a.yaml": config("kept-a"), "kept/b.yaml": config("kept-b"),
	})
	s.attach("one", one)
	s.attach("two", two)
	s.apply(fleet("prod", "one", "two"))
	s.apply(`
apiVersion: apps.kurator.dev/v1alpha1
kind: Application
metadata: {name: things}
spec:
  source: {gitRepository: {url: $GIT/things, interval: 1h, ref: {branch: main}}}
  destination: {fleet: prod}
  syncPolicies:
  - kustomization: {path: ./pruned, interval: 0s}
  - kustomization: {path: ./kept, interval: 0s, prune: false}
`)
	s.ready("things", "2/2")
	s.Expect(s.kustomization("things-0-one").Spec.Interval.Duration.String()).To(Equal("10m0s"), "Kurator's 0s means the default")
	on := func(member *harness.Cluster) func() []string {
		return func() []string { return names(s.applied(member)()) }
	}
	all := []string{"ConfigMap " + s.ns + "/kept-a", "ConfigMap " + s.ns + "/kept-b", "ConfigMap " + s.ns + "/pruned-a", "ConfigMap " + s.ns + "/pruned-b"}
	s.Expect(on(one)()).To(Equal(all))

	s.push("things", files{"pruned/a.yaml": "", "kept/a.yaml": ""})
	s.pushed("things")
	s.Eventually(on(one)).Should(ConsistOf(all[0], all[1], all[3]))
	s.Eventually(on(two)).Should(ConsistOf(all[0], all[1], all[3]))

	s.apply(fleet("prod", "one"))
	s.Eventually(func() []string { return names(s.kustomizations()) }).Should(ConsistOf("things-0-one", "things-1-one"))
	s.Eventually(on(two)).Should(ConsistOf(all[0], all[1]))
	s.Expect(on(one)()).To(ConsistOf(all[0], all[1], all[3]))
}
