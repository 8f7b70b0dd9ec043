package application

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const (
	ourCRDs = "../../config/crd/bases"
	// fluxCRDs are Flux's, made of the modules in go.mod in the root of the repository:
	// bin/controller-gen crd:maxDescLen=0 output:crd:dir=renderers/application/testdata/flux-crds \
	//   paths=github.com/fluxcd/{source-controller/api/v1,kustomize-controller/api/v1,helm-controller/api/v2}
	fluxCRDs = "testdata/flux-crds"
)

// TestGolden renders testdata/NAME.yaml, or the files of the folder testdata/NAME, and compares with
// testdata/NAME.golden.yaml. GEN_GOLDEN=true rewrites that. What goes in has to pass our CRDs, and what comes out Flux's.
func TestGolden(t *testing.T) {
	ours, flux := loadCRDs(t, ourCRDs), loadCRDs(t, fluxCRDs)
	cases := goldenCases(t)
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			declared, err := ours.readDeclared(cases[name]...)
			g.Expect(err).NotTo(HaveOccurred())
			result := Render(declared)
			for _, o := range result.Objects {
				g.Expect(flux.admit(asUnstructured(t, o))).To(Succeed())
			}

			got, file := asYAML(t, result), "testdata/"+name+".golden.yaml"
			if os.Getenv("GEN_GOLDEN") == "true" {
				g.Expect(os.WriteFile(file, got, 0o644)).To(Succeed())
			}
			want, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(got)).To(Equal(string(want)))
		})
	}
}

// goldenCases returns the input files of each case.
func goldenCases(t testing.TB) map[string][]string {
	t.Helper()
	cases := map[string][]string{}
	entries, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		path := filepath.Join("testdata", e.Name())
		switch name, isYAML := strings.CutSuffix(e.Name(), ".yaml"); {
		case e.IsDir() && path != fluxCRDs && e.Name() != "fuzz":
			if cases[name], err = filepath.Glob(path + "/*.yaml"); err != nil {
				t.Fatal(err)
			}
		case isYAML && !strings.HasSuffix(name, ".golden"):
			cases[name] = []string{path}
		}
	}
	return cases
}

func asUnstructured(t testing.TB, o Rendered) *unstructured.Unstructured {
	t.Helper()
	b, err := json.Marshal(o.Object)
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(b); err != nil {
		t.Fatal(err)
	}
	return u
}

// asYAML prints a result as YAML, with the problems as comments.
func asYAML(t testing.TB, r Result) []byte {
	t.Helper()
	var out strings.Builder
	for i, o := range r.Objects {
		if i > 0 {
			out.WriteString("---\n")
		}
		b, err := yaml.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(b)
	}
	for _, p := range r.Problems {
		what := "problem"
		if p.Warning {
			what = "warning"
		}
		fmt.Fprintf(&out, "# %s %s: application %s/%s policy %q member %q: %s\n", what, p.Reason, p.Namespace, p.Application, p.Policy, p.Member, p.Message)
	}
	return []byte(out.String())
}
