package template

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

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

// TestJSONText holds what a string becomes in a patch, which is a template again.
func TestJSONText(t *testing.T) {
	for _, tt := range []struct{ name, in, text, literal, err string }{
		{name: "no action", in: "a \"b\"", literal: "a \"b\""},
		{name: "escaped", in: `\<< .cluster.name >>`, literal: "<< .cluster.name >>"},
		{name: "literal text is escaped", in: "say \"<< .cluster.name >>\"\n", text: `"say \"<< .cluster.name | json >>\"\n"`},
		{name: "no action is made of literal text", in: `\<< .fleet.name >> <<EOF << .cluster.name >>`, text: `"\u003c\u003c .fleet.name \u003e\u003e \u003c\u003cEOF << .cluster.name | json >>"`},
		{name: "strings in an action", in: `<< index .cluster.labels "a/b" >>`, text: "<< index .cluster.labels `a/b` | jsonValue >>"},
		{name: "number", in: "<< .cluster.labels.n | number >>", text: "<< .cluster.labels.n | number | jsonValue >>"},
		{name: "number as a call", in: "<< number .cluster.labels.n >>", text: "<< number .cluster.labels.n | jsonValue >>"},
		{name: "bool", in: "<< .cluster.labels.b|bool ->>", text: "<< .cluster.labels.b|bool | jsonValue >>"},
		{name: "trim markers", in: "a <<- .cluster.name ->> b", text: `"a << .cluster.name | json >> b"`},
		{name: "raw strings", in: "<< .cluster.name | replace `a` `b` >>", text: "<< .cluster.name | replace `a` `b` | jsonValue >>"},
		{name: "signs in a string", in: `x<< .cluster.name | replace "<" "\u00fc>" >>`, text: "\"x<< .cluster.name | replace `<` `ü>` | json >>\""},
		{name: "the end of an action in a string", in: `<< .cluster.name | replace "\u003e>" "" >>`, err: "<< and >> cannot be in a string here"},
		{name: "a backslash in a string", in: "<< .cluster.name | replace `\\` \"\" >>", err: "quotes, backslashes and control characters"},
		{name: "a character", in: `<< .cluster.name | replace 'a' "" >>`, err: "quotes and backslashes cannot be here"},
		{name: "a variable", in: "<< $x := .cluster.name >>", err: "no variables"},
		{name: "a quote in a string", in: `<< .cluster.name | replace "\"" "" >>`, err: "quotes, backslashes and control characters"},
		{name: "a backquote in a string", in: "<< .cluster.name | replace \"`\" \"\" >>", err: "quotes, backslashes and control characters"},
		{name: "a newline in a string", in: `<< .cluster.name | replace "\n" "" >>`, err: "quotes, backslashes and control characters"},
		{name: "no function", in: "<< .cluster.name | printf >>", err: "is not known here"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			text, literal, err := JSONText(tt.in)
			if tt.err != "" {
				g.Expect(err).To(MatchError(ContainSubstring(tt.err)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(text).To(Equal(tt.text))
			g.Expect(literal).To(Equal(tt.literal))
		})
	}
}

// asJSON executes a text as a patch is: JSON, with more around it.
func asJSON(text string, facts map[string]any) (any, error) {
	v, err := Compile(`[{"op":"replace","path":"/x","value":` + text + `},{"value":"<< .cluster.name | json >>"}]`)
	if err != nil {
		return nil, err
	}
	out, err := v.Execute(facts)
	if err != nil {
		return nil, err
	}
	var patch []map[string]any
	d := json.NewDecoder(strings.NewReader(out.(string)))
	d.UseNumber()
	if err := d.Decode(&patch); err != nil {
		return nil, fmt.Errorf("%s: %w", out, err)
	}
	return patch[0]["value"], nil
}

// FuzzJSONText holds that a string which became text of a patch is what it would have been by itself, whatever stands
// around its action, and whatever the fact is.
func FuzzJSONText(f *testing.F) {
	actions := []string{
		"<< .cluster.fuzz >>", `<< index .cluster "fuzz" | upper >>`, "<<- .cluster.fuzz ->>", "<< .cluster.fuzz | number >>", "<< number .cluster.fuzz >>",
		"<< (bool .cluster.fuzz) >>", `<< .cluster.fuzz | number | replace "x" "y" >>`, "<< .cluster.fuzz >> << .cluster.fuzz | lower >>", `\<< .cluster.fuzz >><< .cluster.fuzz >>`,
		"<< .cluster >>", "<< .cluster >> << .fleet >>",
		"<< .cluster.fuzz | replace `<` \"\\u0022\" >>", `<< .cluster.fuzz | trimPrefix "a" >>`,
	}
	for i := range actions {
		for _, s := range []string{"", `"`, "\n", "<", "<<", ">>", `\`, "\u2028", "\x7f", "a<< .fleet.name", ".cluster >>", "'`"} {
			f.Add(i, s, "", "c1")
			f.Add(i, "", s, s)
		}
		f.Add(i, "", "", "3")
		f.Add(i, "", "", "true")
		f.Add(i, "n=", "", "1e400")
	}
	f.Fuzz(func(t *testing.T, i int, prefix, suffix, fact string) {
		if slices.ContainsFunc([]string{prefix, suffix, fact}, func(s string) bool { return !utf8.ValidString(s) || strings.Contains(s, typedMark) }) {
			t.Skip("nothing in Kubernetes holds it")
		}
		s := prefix + actions[uint(i)%uint(len(actions))] + suffix
		facts := map[string]any{
			"cluster": map[string]any{"name": "c1", "fuzz": fact}, "fleet": map[string]any{"name": "prod"}, "application": map[string]any{"name": "web"},
		}
		text, literal, err := JSONText(s)
		if err != nil {
			return // it is refused before it does harm
		}
		var want any
		v, err := Compile(s)
		if err == nil {
			want, err = v.Execute(facts)
		}
		if text == "" {
			if err != nil || want != literal {
				t.Errorf("%q became %q and not %v, %v", s, literal, want, err)
			}
			return
		}
		got, gotErr := asJSON(text, facts)
		if err != nil {
			if gotErr == nil {
				t.Errorf("%q became %s: %v, and not %v", s, text, got, err)
			}
			return
		}
		if gotErr != nil || got != want {
			t.Errorf("%q became %s: %#v, %v, and not %#v", s, text, got, gotErr, want)
		}
	})
}
