package baseline

import (
	"strings"
	"testing"

	"github.com/fluxcd/pkg/apis/kustomize"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fleetwright/fleetwright/renderers/member"
)

// TestMarks holds that what is written into patches is read from them again.
func TestMarks(t *testing.T) {
	g := NewWithT(t)
	r, err := Render(parse(t, `
metadata: {name: a}
spec:
  target: {fleet: prod}
  manifests:
    objects:
    - {apiVersion: v1, kind: ConfigMap, metadata: {name: a.b, namespace: shop}}
    - {apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: "a:'*\\"}}
  overrides: [{clusters: [m1], patches: [{target: {kind: ConfigMap}, patch: "- {op: remove, path: /data}"}]}]
`))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(Marks(r.Application.Spec.SyncPolicies[0].Overrides[0].Kustomization.Patches)).To(BeEmpty(), "what people write is no mark")
	yields := annotate(r.Objects, nil, ssaAnnotation+": IfNotPresent").Kustomization.Patches
	keeps := annotate(r.Objects, nil, pruneAnnotation+": disabled").Kustomization.Patches
	of := func(patches ...[]kustomize.Patch) []Mark {
		var all []kustomize.Patch
		for _, p := range patches {
			all = append(all, p...)
		}
		var out []Mark
		for _, o := range r.Objects {
			out = append(out, Marks(all)[KeyOf(o)])
		}
		return out
	}
	g.Expect(of(yields, keeps)).To(Equal([]Mark{{true, true}, {true, true}}))
	g.Expect(of(yields, keeps, Leave(r.Objects))).To(Equal([]Mark{{Kept: true}, {Kept: true}}))

	t.Log("kustomize applies them in this order, too")
	built, err := Expand(r.Files, append(yields, Leave(r.Objects)...), "./")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(strings.Count(string(built), ssaAnnotation+": Merge")).To(Equal(2))
	g.Expect(strings.Count(string(built), pruneAnnotation+": disabled")).To(Equal(2))

	t.Log("what an Application has Flux leave is read from it, and taken out again")
	left := Left{"m1": r.Objects, "m2": r.Objects, "m3": r.Objects[:1]}
	app := left.With(r.Application)
	g.Expect(app.Spec.SyncPolicies[0].Overrides).To(HaveLen(3))
	g.Expect(LeftBy(app).With(app)).To(Equal(app))
	g.Expect(Left{}.With(app)).To(Equal(r.Application))
}

// TestFrozen holds who has an object where somebody cannot be told.
func TestFrozen(t *testing.T) {
	m1, m2 := member.Key{Kind: "AttachedCluster", Name: "m1"}, member.Key{Kind: "AttachedCluster", Name: "m2"}
	config := func(name, more string) Wants {
		c := parse(t, "{metadata: {name: "+name+"}, spec: {target: {fleet: prod}, resourceQuotas: [{name: q, namespace: shop, hard: {pods: "+name[1:]+"}}], "+more+"}}")
		r, err := Render(c)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		return Wants{Config: c, Objects: r.Objects, Members: []member.Key{m1, m2}}
	}
	key := Key{Kind: "ResourceQuota", Namespace: "shop", Name: "q"}
	frozen := func(has, yields bool) *Frozen {
		f := &Frozen{Why: "it is stuck: free it", Marks: map[Key]Mark{key: {Yields: yields}}}
		if has {
			f.Has = map[Key]*unstructured.Unstructured{key: config("x0", "").Objects[0]}
		}
		return f
	}
	for name, tt := range map[string]struct {
		a, b  *Frozen
		holds string
	}{
		"nobody":                     {holds: "a1"},
		"who comes first and has it": {a: frozen(true, false), holds: "a1"},
		"who has it":                 {b: frozen(true, false), holds: "b2"},
		"who yields":                 {a: frozen(true, true), holds: "b2"},
		"who has not got it":         {a: frozen(false, false), holds: "b2"},
		"both, and one has it":       {a: frozen(true, true), b: frozen(true, false), holds: "b2"},
		"both, and none has it":      {a: frozen(true, true), b: frozen(false, false), holds: "a1"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			a, b := config("a1", ""), config("b2", "")
			a.Frozen, b.Frozen = map[member.Key]*Frozen{}, map[member.Key]*Frozen{}
			if tt.a != nil {
				a.Frozen[m1] = tt.a
			}
			if tt.b != nil {
				b.Frozen[m1] = tt.b
			}
			holder := map[member.Key]string{}
			for _, c := range Conflicts([]Wants{b, a}) {
				for _, m := range c.Members {
					holder[m] = c.Holder.Name
				}
			}
			g.Expect(holder).To(Equal(map[member.Key]string{m1: tt.holds, m2: "a1"}))
		})
	}
	g := NewWithT(t)
	a, b := config("a1", ""), config("b2", "")
	b.Frozen = map[member.Key]*Frozen{m1: frozen(true, false)}
	b.Objects = nil // invalid, and what it was before is not known
	b.Members = []member.Key{m1}
	g.Expect(Texts(Conflicts([]Wants{a, b}), "a1")).To(ConsistOf("ResourceQuota shop/q on m1: ClusterConfig b2 has applied it, and keeps it whatever the priorities are, as it is stuck: free it"))

	t.Log("overrides may make a difference of what is alike")
	same := config("b2", "overrides: [{clusters: [m1], patches: [{target: {kind: ResourceQuota, name: q}, patch: '- {op: remove, path: /spec}'}]}]")
	same.Objects = a.Objects
	g.Expect(Texts(Conflicts([]Wants{a, same}), "b2")).To(ConsistOf(ContainSubstring("it is as in ClusterConfig a1, which has it (priority 0), with its overrides, and not with those of here")))
}
