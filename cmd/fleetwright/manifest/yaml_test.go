package manifest

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     string // the documents in JSON, one a line
		err      string
	}{
		{name: "nothing", in: ""},
		{name: "comments and empty documents", in: "# a\n---\n---\n# b\n...\n---\n"},
		{name: "documents", in: "a: 1\n--- # two\nb: 2\n--- {c: 3}\n...\nd: 4\n", want: `{"a":1}` + "\n" + `{"b":2}` + "\n" + `{"c":3}` + "\n" + `{"d":4}`},
		{name: "directives", in: "%YAML 1.1\n---\na: 1\n...\n%YAML 1.1\n---\nb: 2\n", want: `{"a":1}` + "\n" + `{"b":2}`},
		{name: "a marker that is text", in: "a: |\n  ---\n  x\nb: ----\n", want: `{"a":"---\nx\n","b":"----"}`},
		{name: "JSON", in: `{"a": [1, "004", 1.50, null]}`, want: `{"a":[1,"004",1.5,null]}`},
		{name: "YAML 1.1", in: "a: no\nb: on\nc: 004\nd: '004'\ne: 0x10\nf: 1_000\ny: n\n", want: `{"a":false,"b":true,"c":4,"d":"004","e":16,"f":1000,"true":false}`},
		{name: "aliases and merges", in: "a: &a {x: 1, z: 2}\nb: *a\nc: {<<: *a, z: 3}\nd:\n  <<: [{z: 4}, *a]\n", want: `{"a":{"x":1,"z":2},"b":{"x":1,"z":2},"c":{"x":1,"z":3},"d":{"x":1,"z":4}}`},
		{name: "a quoted << is a key", in: "'<<': {a: 1}\n", want: `{"\u003c\u003c":{"a":1}}`},
		{name: "a template is no merge", in: "a: '<< .cluster.name >>'\nb: << .cluster.name >>\n", want: `{"a":"\u003c\u003c .cluster.name \u003e\u003e","b":"\u003c\u003c .cluster.name \u003e\u003e"}`},
		{name: "null", in: "a: null\nb: ~\nc:\n", want: `{"a":null,"b":null,"c":null}`},

		{name: "duplicate", in: "a:\n  b: 1\n  c: 2\n  b: 3\n", err: `f.yaml:4: the key "b" is in line 2 already`},
		{name: "duplicate in the second document", in: "a: 1\n---\nb: 1\nc:\n- {d: 1, d: 2}\n", err: `f.yaml:5: the key "d" is in line 5 already`},
		{name: "duplicate with null", in: "a: {}\na:\n", err: `f.yaml:2: the key "a" is in line 1 already`},
		{name: "duplicate after conversion", in: "yes: 1\ntrue: 2\n", err: `f.yaml:2: the key "true" is in line 1 already`},
		{name: "duplicate number", in: "\"1\": a\n1: b\n", err: `f.yaml:2: the key "1" is in line 1 already`},
		{name: "duplicate merge", in: "a: &a {x: 1}\nb:\n  <<: *a\n  <<: *a\n", err: `f.yaml:4: the key "<<" is in line 3 already`},
		{name: "key before merge", in: "a: &a {x: 1}\nb:\n  x: 2\n  <<: *a\n", err: `f.yaml:4: << brings the key "x", which is in line 3 already`},
		{name: "alias into another document", in: "a: &a {x: 1}\n---\n# *a\nb:\n  c: *a\n", err: "f.yaml:5: *a refers to another document, whose &a is in line 1"},
		{name: "unknown alias", in: "a: 1\nb: [*nowhere]\n", err: "f.yaml:2: *nowhere refers to an anchor that is not there"},
		{name: "alias of itself", in: "a: &a\n  b: *a\n", err: "f.yaml:1: anchor 'a' value contains itself"},
		{name: "tab", in: "a: 1\n---\nb:\n\tc: 1\n", err: "f.yaml:4: found character that cannot start any token"},
		{name: "unclosed", in: "a: 1\nb: [c\nd: e\n", err: "f.yaml:2: did not find expected ',' or ']'"},
		{name: "Helm template", in: "{{ if .x }}\na: b\n{{ end }}\n", err: "f.yaml:"},
		{name: "text", in: "a: 1\n---\nhello\n", err: "f.yaml:3: a document has to be an object"},
		{name: "list", in: "- a: 1\n", err: "f.yaml:1: a document has to be an object"},
		{name: "map as key", in: "a: 1\n---\n{x: y}: 1\n", err: "f.yaml:2: invalid map key"},
		{name: "infinity", in: "a: .inf\n", err: "f.yaml:1: json: unsupported value: +Inf"},
		{name: "hidden document", in: "a: 1\n\u2028---\nb: 1\n", err: "f.yaml:1: there is a second document here"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			documents, err := parse("f.yaml", []byte(tt.in))
			if tt.err != "" {
				g.Expect(err).To(MatchError(HavePrefix(tt.err)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(inJSON(documents)).To(Equal(tt.want))
		})
	}
}

func inJSON(documents []Document) string {
	var lines []string
	for _, d := range documents {
		b, err := json.Marshal(d.Object)
		if err != nil {
			panic(err)
		}
		lines = append(lines, string(b))
	}
	return strings.Join(lines, "\n")
}

func TestAt(t *testing.T) {
	g := NewWithT(t)
	documents, err := parse("f.yaml", []byte(`---
base: &base
  from: base
---
a:
- b: {c: 1}
- d.e:
    f/g: 1
    "h": 2
`))
	g.Expect(err).NotTo(HaveOccurred())
	at := func(i int, path string) string { return documents[i].At(path).String() }
	g.Expect(at(0, "base.from")).To(Equal("f.yaml:3"))
	g.Expect(at(1, "")).To(Equal("f.yaml:5"))
	g.Expect(at(1, "a")).To(Equal("f.yaml:5"))
	g.Expect(at(1, "a[0].b.c")).To(Equal("f.yaml:6"))
	g.Expect(at(1, "a[1].d.e.f/g")).To(Equal("f.yaml:8"))
	g.Expect(at(1, "a[1].d.e[h]")).To(Equal("f.yaml:9"))
	g.Expect(at(1, "a[1].d.e.x.y")).To(Equal("f.yaml:7"), "what is not there is where it would be")
	g.Expect(at(1, "a[7]")).To(Equal("f.yaml:5"))
	g.Expect(at(1, "x")).To(Equal("f.yaml:5"))
}

// What an editor or a Git setting does to line ends changes nothing.
func TestLineEnds(t *testing.T) {
	files, err := filepath.Glob("../testdata/*/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no test data", err)
	}
	for _, file := range files {
		if filepath.Base(file) == "chart.yaml" {
			continue
		}
		t.Run(file, func(t *testing.T) {
			g := NewWithT(t)
			lf, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			want, err := parse(file, lf)
			g.Expect(err).NotTo(HaveOccurred())
			for name, variant := range map[string][]byte{"CRLF": crlf(lf), "BOM": bom(lf), "both": bom(crlf(lf))} {
				got, err := parse(file, variant)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(inJSON(got)).To(Equal(inJSON(want)), name)
				for i := range got {
					g.Expect(got[i].Start).To(Equal(want[i].Start), name)
				}
			}
		})
	}
}

func crlf(data []byte) []byte { return bytes.ReplaceAll(data, []byte("\n"), []byte("\r\n")) }

func bom(data []byte) []byte { return append([]byte("\uFEFF"), data...) }

// FuzzRead holds that no input makes the reader or the validation panic, that line ends change nothing, and that one
// document is what kubectl's library makes of it.
func FuzzRead(f *testing.F) {
	files, _ := filepath.Glob("../testdata/*/*.yaml")
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil && len(data) < 3000 {
			f.Add(data)
		}
	}
	for _, s := range []string{"a: &a [*a]", "<<: {a: 1}", "? {a: 1}\n: b", "--- |\n ---\n---\n", "a: *b\n---\nb: &b 1", "kind: List\nitems: [1]", "%TAG ! x\n---\n!y z: 1", "!!binary x: 1",
		"kind: FleetList\napiVersion: fleet.kurator.dev/v1alpha1\nitems:\n- metadata: {name: [x], namespace: 1}\n"} {
		f.Add([]byte(s))
	}
	admissions := admissions{}
	f.Fuzz(func(t *testing.T, data []byte) {
		documents, err := parse("f.yaml", data)
		if err != nil {
			return
		}
		for _, d := range documents {
			d.At("spec.clusters[0].labels.gpu")
		}
		text := inJSON(documents)
		if !bytes.Contains(data, []byte("\r")) {
			again, err := parse("f.yaml", crlf(data))
			if err != nil {
				t.Fatalf("with CRLF: %v", err)
			}
			if inJSON(again) != text {
				t.Fatalf("with CRLF %s became %s", text, inJSON(again))
			}
			if len(documents) == 1 && len(split(data)) == 1 {
				want, err := yaml.YAMLToJSON(data)
				if err != nil {
					t.Fatal(err)
				}
				var value map[string]any
				if err := json.Unmarshal(want, &value); err != nil {
					t.Fatal(err)
				}
				if want, _ := json.Marshal(value); !bytes.Contains(want, []byte("e+")) && string(want) != text {
					t.Fatalf("%s is not %s", text, want)
				}
			}
		}
		set := &Set{admissions: admissions, positions: map[id]Position{}}
		for _, d := range documents {
			_ = set.add(d, "default", false)
		}
	})
}
