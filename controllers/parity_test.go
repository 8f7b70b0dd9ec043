package controllers

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	"github.com/fleetwright/fleetwright/cmd/fleetwright/manifest"
	templates "github.com/fleetwright/fleetwright/fleet-templates"
	catalog "github.com/fleetwright/fleetwright/plugins-catalog"
	"github.com/fleetwright/fleetwright/renderers/object"
	"github.com/fleetwright/fleetwright/renderers/plugin"
	"github.com/fleetwright/fleetwright/renderers/repository"
)

// rendersNothing are the kinds that nothing is rendered of, and why.
var rendersNothing = map[string]string{
	"AttachedCluster": "what is rendered for a member is its fleets' and Applications'",
	"Cluster":         "what is rendered for a member is its fleets' and Applications'",
	"PluginConfig":    "it gives plugins to fleets; how the hub fetches them is nothing that members see",
}

// TestBuildIsWhatIsApplied holds that build prints, byte for byte, what the controllers apply, and the digests that they
// publish, for every kind that there is.
func TestBuildIsWhatIsApplied(t *testing.T) {
	h := newHub(t)
	const folder = "testdata/every-kind"
	set, err := manifest.Source{Paths: []string{folder}, Namespace: h.ns}.Read()
	h.Expect(err).NotTo(HaveOccurred())
	known, err := plugin.LoadAll(catalog.FS, templates.Rules())
	h.Expect(err).NotTo(HaveOccurred())
	build := repository.Render(set.Declared, func(_, name string) (*plugin.Plugin, map[string]any) { return known[name], nil })
	digests := build.Digests()

	kinds := map[string]schema.GroupVersionKind{} // those of our CRDs
	crds, err := filepath.Glob("../config/crd/bases/*.yaml")
	h.Expect(err).NotTo(HaveOccurred())
	for _, file := range crds {
		var crd apiextensionsv1.CustomResourceDefinition
		b, err := os.ReadFile(file)
		h.Expect(err).NotTo(HaveOccurred())
		h.Expect(yaml.Unmarshal(b, &crd)).To(Succeed())
		kinds[crd.Spec.Names.Kind] = schema.GroupVersionKind{Group: crd.Spec.Group, Version: crd.Spec.Versions[0].Name, Kind: crd.Spec.Names.Kind}
	}
	rendered := map[string]bool{}
	for name := range digests.Owners {
		rendered[name.Kind] = true
	}
	for kind := range kinds {
		h.Expect(rendered[kind]).To(Equal(rendersNothing[kind] == ""),
			"%s: add one to %s, or say why nothing is rendered of it", kind, folder)
	}
	for kind := range repository.Kinds {
		h.Expect(build.Objects).To(ContainElement(HaveField("Object.Kind", kind)), "add what renders to a %s to %s", kind, folder)
	}

	files, err := filepath.Glob(folder + "/*.yaml")
	h.Expect(err).NotTo(HaveOccurred())
	h.reachable("a", "b", "made")
	for _, file := range files {
		b, err := os.ReadFile(file)
		h.Expect(err).NotTo(HaveOccurred())
		h.apply(strings.TrimSpace(string(b)))
	}
	for _, name := range []string{"a", "b", "identity"} {
		h.health(name, metav1.ConditionTrue, "Reached", "")
	}
	made := &clusterv1.Cluster{}
	h.get(made, "made")
	before := made.DeepCopy()
	made.Status.ObservedGeneration = made.Generation
	apimeta.SetStatusCondition(&made.Status.Conditions, metav1.Condition{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: "Reached"})
	h.Expect(h.Status().Patch(t.Context(), made, client.MergeFrom(before))).To(Succeed())
	h.start()

	want := map[string]string{}
	for _, x := range build.Objects {
		b, err := json.MarshalIndent(x.Object, "", " ")
		h.Expect(err).NotTo(HaveOccurred())
		want[x.Ref().String()] = string(b)
	}
	live := func() map[string]string {
		out := map[string]string{}
		for kind, k := range repository.Kinds {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(k.GroupVersion().WithKind(kind + "List"))
			h.Expect(h.List(t.Context(), list, client.InNamespace(h.ns))).To(Succeed())
			for i := range list.Items {
				declared, err := repository.Live(&list.Items[i])
				h.Expect(err).NotTo(HaveOccurred())
				b, err := json.MarshalIndent(declared, "", " ")
				h.Expect(err).NotTo(HaveOccurred())
				out[object.Ref{Kind: kind, Name: list.Items[i].GetName()}.String()] = string(b)
			}
		}
		return out
	}
	h.Eventually(func() []string {
		h.fluxDoes(metav1.ConditionTrue, "") // what waits for it comes then
		return names(live())
	}, time.Minute, time.Second).Should(ConsistOf(names(want)))
	got := live()
	for name := range want {
		h.Expect(got[name]).To(Equal(want[name]), name)
	}

	lines := func(digests map[repository.Name]string) []string {
		var out []string
		for name, digest := range digests {
			out = append(out, name.Kind+" "+name.Name+" "+digest)
		}
		return out
	}
	published := func() []string {
		out := map[repository.Name]string{}
		for kind, gvk := range kinds {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(gvk.GroupVersion().WithKind(kind + "List"))
			h.Expect(h.List(t.Context(), list, client.InNamespace(h.ns))).To(Succeed())
			for _, o := range list.Items {
				if digest, ok, _ := unstructured.NestedString(o.Object, "status", "renderDigest"); ok {
					out[repository.Name{Namespace: h.ns, Kind: kind, Name: o.GetName()}] = digest
				}
			}
		}
		return lines(out)
	}
	h.Eventually(published).Should(ConsistOf(lines(digests.Owners)))
	// A member that does not answer has what it had, and what is declared for it is the same.
	h.health("b", metav1.ConditionFalse, "Unreachable", "does not answer")
	h.Eventually(func() string { return condition(h.app("git"), meta.ReadyCondition) }).Should(ContainSubstring("b (Unreachable)"))
	h.Consistently(published).Should(ConsistOf(lines(digests.Owners)))
}
