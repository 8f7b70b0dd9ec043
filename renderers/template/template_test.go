package template

import (
	"encoding/json"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

var facts = map[string]any{
	"cluster": map[string]any{
		"name": "c1", "kind": "AttachedCluster",
		"labels": map[string]string{
			"region": "eu", "topology.kubernetes.io/region": "eu-west", "tenant": "004", "legacy": "no",
			"replicas": "3", "gpu": "true", "empty": "", "evil": "<< .cluster.name >>",
		},
	},
	"fleet":       map[string]any{"name": "prod"},
	"application": map[string]any{"name": "web", "namespace": "default"},
}

func TestExecute(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     any
		err      string
	}{
		{name: "name", in: "<< .cluster.name >>", want: "c1"},
		{name: "no spaces", in: "<<.cluster.name>>.example.org", want: "c1.example.org"},
		{name: "fleet", in: "x-<< .fleet.name >>-y-<< .application.name >>", want: "x-prod-y-web"},
		{name: "dotted label", in: `<< index .cluster.labels "topology.kubernetes.io/region" >>.example.org`, want: "eu-west.example.org"},
		{name: "leading zeros stay a string", in: "<< .cluster.labels.tenant >>", want: "004"},
		{name: "no stays a string", in: "<< .cluster.labels.legacy >>", want: "no"},
		{name: "empty", in: "<< .cluster.labels.empty >>", want: ""},
		{name: "number", in: "<< .cluster.labels.replicas | number >>", want: json.Number("3")},
		{name: "bool", in: "<< .cluster.labels.gpu | bool >>", want: true},
		{name: "a fact is not a template", in: "<< .cluster.labels.evil >>", want: "<< .cluster.name >>"},
		{name: "functions", in: `<< .cluster.name | upper | replace "C" "k" >>`, want: "k1"},
		{name: "here-document", in: "cat <<EOF > f\nx\nEOF", want: "cat <<EOF > f\nx\nEOF"},
		{name: "here-document appending", in: "cat << EOF >> f\nx\nEOF", want: "cat << EOF >> f\nx\nEOF"},
		{name: "here-document with a fact", in: "cat <<EOF > f\n<< .cluster.name >>\nEOF", want: "cat <<EOF > f\nc1\nEOF"},
		{name: "shift", in: "x << 2 >> 1", want: "x << 2 >> 1"},
		{name: "here-string", in: "cat <<< .cluster >>f", want: "cat <<< .cluster >>f"},
		{name: "escaped", in: `\<< .cluster.name >>`, want: "<< .cluster.name >>"},
		{name: "unclosed", in: "<< .cluster.name", want: "<< .cluster.name"},

		{name: "missing label", in: "<< .cluster.labels.site >>", err: `v: << .cluster.labels.site >>: the cluster has no label "site"`},
		{name: "missing indexed label", in: `<< index .cluster.labels "site" >>`, err: `the cluster has no label "site"`},
		{name: "dotted label as fields", in: "<< .cluster.labels.topology.kubernetes.io/region >>", err: `for a label with dots, dashes or slashes write index .cluster.labels "its/key"`},
		{name: "label with a dash as field", in: "<< .cluster.labels.my-label >>", err: `bad character U+002D '-': for a label with dots, dashes or slashes write index .cluster.labels "its/key"`},
		{name: "fields of a label", in: "<< .cluster.labels.region.eu >>", err: `for a label with dots`},
		{name: "too large a number", in: `<< "1e400" | number | replace .cluster.name "" >>`, err: `"1e400" is too large a number`},
		{name: "missing fact", in: "<< .cluster.zone >>", err: `there is no "zone"`},
		{name: "not a number", in: "<< .cluster.name | number >>", err: `"c1" is not a number`},
		{name: "number in text", in: "n=<< .cluster.labels.replicas | number >>", err: "alone"},
		{name: "replace that fills the memory", in: `<< .cluster.name | replace "" "` + strings.Repeat("x", 1000) + `" | replace "x" "` + strings.Repeat("y", 1000) + `" >>`, err: "more than 65536 characters"},
		{name: "unknown function", in: "<< .cluster.name | shell >>", err: `"shell"`},
		{name: "printf", in: `<< printf "%1000000000d" .cluster.name >>`, err: `"printf" is not known here`},
		{name: "range", in: "<< range .cluster.labels >>", err: "unexpected EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			var got any
			v, err := Compile(map[string]any{"v": tt.in})
			if err == nil {
				got, err = v.Execute(facts)
			}
			if tt.err != "" {
				g.Expect(err).To(MatchError(ContainSubstring(tt.err)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(Equal(map[string]any{"v": tt.want}))
		})
	}
}

func TestExecuteShares(t *testing.T) {
	g := NewWithT(t)
	in := map[string]any{"a": []any{"<< .cluster.name >>", map[string]any{"k": json.Number("1")}}, "<<": "kept", "n": nil}
	v, err := Compile(in)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(v.Static()).To(BeFalse())
	out, err := v.Execute(facts)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).To(Equal(map[string]any{"a": []any{"c1", map[string]any{"k": json.Number("1")}}, "<<": "kept", "n": nil}))
	g.Expect(in["a"].([]any)[0]).To(Equal("<< .cluster.name >>"), "the input is not changed")
}

// FuzzCompile holds that no string makes the engine panic, that a string without a fact comes out as it went in, and
// that what a fact holds is never executed.
func FuzzCompile(f *testing.F) {
	for _, s := range []string{"<< .cluster.name >>", "<<<< .cluster.name >>>>", `\<<.fleet>>`, "<<EOF", "<< .cluster.labels | number >>", "<<- .fleet.name ->>", "<</* .fleet */>>"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := Compile(s)
		if err != nil {
			return
		}
		out, err := v.Execute(facts)
		if err != nil {
			return
		}
		if !strings.Contains(s, ".cluster") && !strings.Contains(s, ".fleet") && !strings.Contains(s, ".application") && out != s {
			t.Errorf("%q became %q", s, out)
		}
	})
}
