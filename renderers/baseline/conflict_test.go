package baseline

import (
	"fmt"
	"math/rand/v2"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fleetwright/fleetwright/renderers/member"
)

// manyWants returns ClusterConfigs with 20 namespaces each, of which the first few are the same in all of them, and with
// objects of one name in several API groups.
func manyWants(t testing.TB, configs, members, shared int) []Wants {
	t.Helper()
	var keys []member.Key
	for i := range members {
		keys = append(keys, member.Key{Kind: "AttachedCluster", Name: fmt.Sprintf("m%04d", i)})
	}
	var all []Wants
	for i := range configs {
		list, objects := "", ""
		for j := range 20 {
			of := fmt.Sprintf("c%d", i)
			if j < shared {
				of = "all"
			}
			list += fmt.Sprintf("{name: n%d-%s, labels: {of: c%d}}, ", j, of, i)
		}
		for _, group := range []string{"a", "b", "c"} {
			if shared > 0 {
				objects += fmt.Sprintf("{apiVersion: %s.example.org/v1, kind: Thing, metadata: {name: x, namespace: y}, spec: {of: c%d}}, ", group, i)
			}
		}
		c := parse(t, fmt.Sprintf("{metadata: {name: c%d}, spec: {target: {fleet: prod}, priority: %d, namespaces: [%s], manifests: {objects: [%s]}}}", i, i%3, list, objects))
		r, err := Render(c)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		all = append(all, Wants{Config: c, Objects: r.Objects, Members: keys})
	}
	return all
}

// TestConflictsOrder holds that what comes first in a list decides nothing.
func TestConflictsOrder(t *testing.T) {
	g := NewWithT(t)
	all := manyWants(t, 6, 5, 3)
	for i := range all {
		all[i].Members = all[i].Members[i%3:]
	}
	want := Conflicts(all)
	g.Expect(want).NotTo(BeEmpty())
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for i := range all {
			o := all[i].Objects
			all[i].Members = append([]member.Key(nil), all[i].Members...)
			r.Shuffle(len(o), func(i, j int) { o[i], o[j] = o[j], o[i] })
			r.Shuffle(len(all[i].Members), func(j, k int) {
				all[i].Members[j], all[i].Members[k] = all[i].Members[k], all[i].Members[j]
			})
		}
		g.Expect(Conflicts(all)).To(Equal(want))
	}
}

func BenchmarkConflicts(b *testing.B) {
	for _, shared := range []int{0, 2, 20} {
		b.Run(fmt.Sprintf("%d of 20 objects shared", shared), func(b *testing.B) {
			all := manyWants(b, 10, 1000, shared)
			for b.Loop() {
				if n := len(Conflicts(all)); (n > 0) != (shared > 0) {
					b.Fatal(n)
				}
			}
		})
	}
}
