package publisher

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestCheck(t *testing.T) {
	const secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: token}\n"
	const namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: apps}\n"
	for _, tt := range []struct{ name, file, content, problem string }{
		{name: "manifest", file: "apps/namespace.yaml", content: namespace},
		{name: "text that speaks of a Secret", file: "config.yaml", content: "kind: ConfigMap\ndata:\n  manifest: |\n    apiVersion: v1\n    kind: Secret\n"},
		{name: "Secret of another group", file: "vault.yaml", content: "apiVersion: vault.example.com/v1\nkind: Secret\n"},
		{name: "a reference to a Secret", file: "ref.yaml", content: "kind: HelmRelease\nspec:\n  valuesFrom:\n  - {kind: Secret, name: values}\n"},
		{name: "values", file: "values.yaml", content: "kind: {a: b}\nitems: {kind: Secret}\n"},
		{name: "no manifest", file: "README.md", content: "# Read: me: first\n\t- and: {"},
		{name: "empty", file: "empty.yaml"},

		{name: "Secret", file: "secret.yaml", content: secret, problem: "file secret.yaml: it holds a Secret"},
		{name: "later document", file: "all.yml", content: namespace + "--- # next\n" + secret, problem: "file all.yml: it holds a Secret"},
		{name: "another spelling", file: "s.yaml", content: "{\"kind\": &k 'Secret', \"apiVersion\": \"v1\"}", problem: "holds a Secret"},
		{name: "patch without a version", file: "patch.yaml", content: "kind: Secret\nstringData: {a: b}\n", problem: "holds a Secret"},
		{name: "merged", file: "m.yaml", content: "a: &a {kind: Secret}\n<<: *a\napiVersion: v1\n", problem: "holds a Secret"},
		{name: "item of a list", file: "list.yaml", content: "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret}\n", problem: "holds a Secret"},
		{name: "list of Secrets", file: "list.yaml", content: "apiVersion: v1\nkind: SecretList\nitems: []\n", problem: "holds a Secret"},
		{name: "JSON", file: "secret.json", content: `[{"apiVersion": "v1", "kind": "Secret"}]`, problem: "holds a Secret"},
		{name: "generator", file: "kustomization.yaml", content: "secretGenerator:\n- {name: token, literals: [a=b]}\n", problem: "holds a Secret"},
		{name: "generator without an extension", file: "Kustomization", content: "secretGenerator: []\n", problem: "holds a Secret"},
		{name: "Secret without an extension", file: "secret", content: secret, problem: "holds a Secret"},
		{name: "YAML that cannot be read", file: "bad.yaml", content: "a: b: c\n", problem: "file bad.yaml: it cannot be checked"},

		{name: "no name", file: "", content: namespace, problem: `file ""`},
		{name: "folder", file: ".", content: namespace, problem: "not a relative path"},
		{name: "absolute", file: "/etc/passwd", content: namespace, problem: "not a relative path"},
		{name: "climbs", file: "../other/a.yaml", content: namespace, problem: "not a relative path"},
		{name: "climbs inside", file: "a/../../b.yaml", content: namespace, problem: "not a relative path"},
		{name: "two names of one file", file: "a/../b.yaml", content: namespace, problem: "not a relative path"},
		{name: "ends in a slash", file: "a/", content: namespace, problem: "not a relative path"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			err := check(map[string][]byte{tt.file: []byte(tt.content), "z.yaml": []byte(namespace)})
			if tt.problem == "" {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(ContainSubstring(tt.problem)))
			}
		})
	}
	g := NewWithT(t)
	g.Expect(check(nil)).To(MatchError(ContainSubstring("no files")))
}
