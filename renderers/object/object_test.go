package object

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestName(t *testing.T) {
	for _, tt := range []struct {
		name  string
		parts []string
		want  string
	}{
		{"short", []string{"web", "all", "c1"}, "web-all-c1"},
		{"one part", []string{"web"}, "web"},
		{"as long as allowed", []string{"aaaaaaaaaa", "aaaaaaaaa"}, "aaaaaaaaaa-aaaaaaaaa"},
		{"one too long", []string{"aaaaaaaaaa", "aaaaaaaaaa"}, "aaaaaaaaa-38849b2206"},
		{"cut at a dash", []string{"aaaaaaaa", "bbbbbbbbbbbb"}, "aaaaaaaa-dc068bd8dc"},
		{"cut at a dot", []string{"aaaaaaaa.bbbbbbbbbbbb"}, "aaaaaaaa-9e4e579409"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			NewWithT(t).Expect(Name(20, tt.parts...)).To(Equal(tt.want))
		})
	}
}

// TestNameOfLongParts holds that long names that differ anywhere differ, and are valid.
func TestNameOfLongParts(t *testing.T) {
	g := NewWithT(t)
	seen := map[string]string{}
	long := strings.Repeat("member.", 20)
	for i := range 10_000 {
		for _, parts := range [][]string{
			{long[:30+i%60], fmt.Sprint(i)}, {fmt.Sprint(i), long + "x"}, {"a", long + fmt.Sprint(i), "b"},
		} {
			name, whole := Name(63, parts...), strings.Join(parts, "-")
			if seen[name] != "" {
				g.Expect(seen[name]).To(Equal(whole))
			}
			seen[name] = whole
			g.Expect(len(name)).To(BeNumerically("<=", 63))
			if len(validation.IsDNS1123Subdomain(whole)) == 0 {
				g.Expect(validation.IsDNS1123Subdomain(name)).To(BeEmpty(), name)
			}
		}
	}
}

func sealed(t *testing.T, alter func(o *Object)) *Object {
	t.Helper()
	o := &Object{APIVersion: "v1", Kind: "K", Metadata: Metadata{Name: "n", Namespace: "ns", Labels: map[string]string{"a": "b", "c": "d"}},
		Spec: &kustomizev1.KustomizationSpec{Path: "./p"}}
	alter(o)
	if err := o.Seal(); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestDigest(t *testing.T) {
	g := NewWithT(t)
	same := func(*Object) {}
	digest := sealed(t, same).Digest()
	g.Expect(digest).To(HaveLen(32))
	g.Expect(sealed(t, same).Digest()).To(Equal(digest), "stable")
	g.Expect(sealed(t, func(o *Object) { o.Metadata.Labels = map[string]string{"c": "d", "a": "b"} }).Digest()).To(Equal(digest), "whatever the order of a map")
	g.Expect(sealed(t, func(o *Object) { o.Metadata.Annotations = map[string]string{} }).Digest()).To(Equal(digest), "empty is none")
	g.Expect(sealed(t, func(o *Object) { _ = o.Seal() }).Digest()).To(Equal(digest), "sealed twice")

	seen := map[string]string{digest: "nothing"}
	for what, alter := range map[string]func(o *Object){
		"apiVersion":  func(o *Object) { o.APIVersion = "v2" },
		"kind":        func(o *Object) { o.Kind = "L" },
		"name":        func(o *Object) { o.Metadata.Name = "m" },
		"namespace":   func(o *Object) { o.Metadata.Namespace = "ms" },
		"label":       func(o *Object) { o.Metadata.Labels["a"] = "x" },
		"no label":    func(o *Object) { delete(o.Metadata.Labels, "a") },
		"annotation":  func(o *Object) { o.Metadata.Annotations = map[string]string{"a": "b"} },
		"spec":        func(o *Object) { o.Spec.(*kustomizev1.KustomizationSpec).Path = "./q" },
		"spec, added": func(o *Object) { o.Spec.(*kustomizev1.KustomizationSpec).Prune = true },
	} {
		d := sealed(t, alter).Digest()
		g.Expect(seen).NotTo(HaveKey(d), "%s and %s", what, seen[d])
		seen[d] = what
	}
}

func TestSealOfWhatIsNoJSON(t *testing.T) {
	o := &Object{Kind: "K", Metadata: Metadata{Name: "n"}, Spec: json.RawMessage("{")}
	NewWithT(t).Expect(o.Seal()).To(MatchError(ContainSubstring("K/n: ")))
}

func TestDigests(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Digests{}.Sum()).To(BeEmpty(), "nothing is rendered")
	a := sealed(t, func(*Object) {})
	b := sealed(t, func(o *Object) { o.Metadata.Name = "m" })
	one, two := Digests{}, Digests{}
	one.Add(a, b)
	two.Add(b, a, a)
	g.Expect(one.Sum()).To(HavePrefix("sha256:"))
	g.Expect(two.Sum()).To(Equal(one.Sum()), "whatever the order")
	seen := map[string]bool{one.Sum(): true}
	for what, digests := range map[string]Digests{
		"less":           {a.Ref(): a.Digest()},
		"another digest": {a.Ref(): a.Digest(), b.Ref(): a.Digest()},
		"another name":   {a.Ref(): a.Digest(), {Kind: "K", Name: "o"}: b.Digest()},
		"another kind":   {a.Ref(): a.Digest(), {Kind: "L", Name: "m"}: b.Digest()},
	} {
		g.Expect(seen[digests.Sum()]).To(BeFalse(), what)
		seen[digests.Sum()] = true
	}
}

func BenchmarkDigests(b *testing.B) {
	for b.Loop() {
		d := Digests{}
		for i := range 500 {
			d[Ref{"Kustomization", fmt.Sprintf("application-policy-member-%d", i)}] = "0123456789abcdef0123456789abcdef"
		}
		d.Sum()
	}
}
