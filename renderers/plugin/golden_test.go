package plugin

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	catalog "github.com/fleetwright/fleetwright/plugins-catalog"
	"github.com/fleetwright/fleetwright/renderers/member"
)

var update = flag.Bool("update", false, "write the golden files")

// seen is the document of a case that says what was observed.
type seen struct {
	Members map[string]struct {
		Kind       string            `json:"kind"`
		Kubernetes string            `json:"kubernetes"`
		Labels     map[string]string `json:"labels"`
		Leaving    bool              `json:"leaving"`
		Reason     string            `json:"reason"`
	} `json:"members"`
	Plugins map[string]struct {
		Facts     map[string]any            `json:"facts"`
		OfMembers map[string]map[string]any `json:"ofMembers"`
		Kept      []string                  `json:"kept"`
	} `json:"plugins"`
}

// parse returns what a text declares: a Fleet each for which plugins are rendered, with its uses.
func parse(t testing.TB, text string) (inputs []Input) {
	t.Helper()
	g := NewWithT(t)
	var fleets []*fleetv1.Fleet
	var s seen
	for doc := range strings.SplitSeq(text, "\n---\n") {
		var header struct {
			Kind string `json:"kind"`
		}
		g.Expect(yaml.Unmarshal([]byte(doc), &header)).To(Succeed())
		switch header.Kind {
		case "Fleet":
			fleet := &fleetv1.Fleet{}
			g.Expect(yaml.UnmarshalStrict([]byte(doc), fleet)).To(Succeed())
			fleets = append(fleets, fleet)
		case "Observed":
			g.Expect(yaml.Unmarshal([]byte(doc), &s)).To(Succeed())
		}
	}
	g.Expect(fleets).NotTo(BeEmpty())
	for _, fleet := range fleets {
		var members []member.Member
		for _, c := range fleet.Spec.Clusters {
			m := s.Members[c.Name]
			members = append(members, member.Member{Name: c.Name, Kind: m.Kind, Kubernetes: m.Kubernetes, Labels: m.Labels, Leaving: m.Leaving, Reason: m.Reason, Ready: m.Reason == ""})
		}
		for _, u := range Uses(fleet) {
			of := s.Plugins[u.Name]
			in := Input{Fleet: fleet, Use: u, Members: members, Observed: Observed{Facts: of.Facts, OfMembers: map[member.Key]map[string]any{}, Kept: map[string]bool{}}}
			for name, facts := range of.OfMembers {
				in.Observed.OfMembers[member.Key{Kind: s.Members[name].Kind, Name: name}] = facts
			}
			for _, name := range of.Kept {
				in.Observed.Kept[name] = true
				reads, _ := plugins(t)[u.Name].Reads(in) // an error is that of Render, too
				for _, read := range reads {
					if read.Secret && read.Name == name {
						in.Observed.Kept[read.Key()] = true
					}
				}
			}
			inputs = append(inputs, in)
		}
	}
	return inputs
}

var loadCatalog = sync.OnceValues(func() (map[string]*Plugin, error) { return LoadAll(catalog.FS) })

// plugins returns the catalog.
func plugins(t testing.TB) map[string]*Plugin {
	t.Helper()
	all, err := loadCatalog()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return all
}

// cases returns those of testdata by name.
func cases(t testing.TB) map[string][]Input {
	t.Helper()
	g := NewWithT(t)
	files, err := filepath.Glob("testdata/*.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	all := map[string][]Input{}
	for _, file := range files {
		if strings.HasSuffix(file, ".golden.yaml") {
			continue
		}
		text, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		all[strings.TrimSuffix(filepath.Base(file), ".yaml")] = parse(t, string(text))
	}
	return all
}

// write puts what is rendered into words.
func write(t testing.TB, out *bytes.Buffer, r *Rendered, err error) {
	t.Helper()
	g := NewWithT(t)
	if err != nil {
		fmt.Fprintf(out, "# invalid: %v\n", err)
		return
	}
	for _, w := range r.Warnings {
		fmt.Fprintf(out, "# warning: %s\n", w)
	}
	for _, read := range r.Reads {
		fmt.Fprintf(out, "# read: %s from %s", read.Name, cmp.Or(read.Member, "every member"))
		if ref := read.Resource; ref != nil {
			fmt.Fprintf(out, ": %s %s/%s", ref.Kind, ref.Namespace, ref.Name)
		}
		out.WriteString("\n")
	}
	b, err := yaml.Marshal(r.Application)
	g.Expect(err).NotTo(HaveOccurred())
	out.Write(b)
	for _, name := range slices.Sorted(maps.Keys(r.Files)) {
		fmt.Fprintf(out, "--- # file %s\n%s", name, r.Files[name])
	}
	fmt.Fprintf(out, "# chart for Secrets: %t\n", len(r.Chart) > 0)
}

// TestGolden holds what every case becomes, and that rendering it again gives the same.
func TestGolden(t *testing.T) {
	catalog := plugins(t)
	used := map[string]bool{}
	for name, inputs := range cases(t) {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var out, again bytes.Buffer
			for _, in := range inputs {
				used[in.Use.Name] = true
				for _, to := range []*bytes.Buffer{&out, &again} {
					fmt.Fprintf(to, "# %s of Fleet %s/%s\n---\n", in.Use.Path, in.Fleet.Namespace, in.Fleet.Name)
					r, err := catalog[in.Use.Name].Render(in)
					write(t, to, r, err)
				}
			}
			g.Expect(again.String()).To(Equal(out.String()))
			golden := filepath.Join("testdata", name+".golden.yaml")
			if *update {
				g.Expect(os.WriteFile(golden, out.Bytes(), 0o644)).To(Succeed())
			}
			want, err := os.ReadFile(golden)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(out.String()).To(Equal(string(want)), "go test ./renderers/plugin -update writes it anew")
		})
	}
	for name := range catalog {
		NewWithT(t).Expect(used).To(HaveKey(name), "a plugin without a case")
	}
}
