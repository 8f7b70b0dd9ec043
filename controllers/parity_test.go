package controllers

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
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
	"ChangeBudget":    "it says how much may change at once",
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
	build := repository.Render(set.Declared, func(_, name string) (*plugin.Plugin, map[string]any) { return known[name], nil }, nil)
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

	h.stop() // it would mend what is done now
	h.verify(folder)
}

// verify holds what fleetwright verify says of a hub that has what is in a folder, and of one that somebody has changed.
func (h *hub) verify(folder string) {
	t, dir := h.t, h.t.TempDir()
	fleetwright := filepath.Join(dir, "fleetwright")
	out, err := exec.Command("go", "build", "-o", fleetwright, "../cmd/fleetwright").CombinedOutput()
	h.Expect(err).NotTo(HaveOccurred(), string(out))
	kubeconfig, plan := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "plan.json")
	h.Expect(os.WriteFile(kubeconfig, h.kubeconfig(), 0o600)).To(Succeed())
	h.Expect(os.Mkdir(filepath.Join(dir, "empty"), 0o700)).To(Succeed())
	run := func(args ...string) (string, int) {
		out, err := exec.Command(fleetwright, args...).CombinedOutput()
		exit := (*exec.ExitError)(nil)
		if err != nil {
			h.Expect(errors.As(err, &exit)).To(BeTrue(), "%v", err)
			return string(out), exit.ExitCode()
		}
		return string(out), 0
	}
	verify := func() (string, int) { return run("verify", "--plan", plan, "--kubeconfig", kubeconfig) }
	text, code := run("diff", filepath.Join(dir, "empty"), folder, "-n", h.ns, "-o", "json="+plan)
	h.Expect(code).To(Equal(3), text) // of the Application that has no fleet

	text, code = verify()
	h.Expect(text).To(HavePrefix("the hub runs exactly what was reviewed: 12 owners, "))
	h.Expect(code).To(BeZero())

	change := func(o client.Object, name, manager, patch string) {
		h.get(o, name)
		h.Expect(h.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch)), client.FieldOwner(manager))).To(Succeed())
	}
	change(&kustomizev1.Kustomization{}, "git-manifests-a", "kubectl-edit", `{"spec":{"path":"./other"}}`)
	change(&kustomizev1.Kustomization{}, "git-manifests-b", "kubectl-edit", `{"spec":{"patches":[]}}`)
	change(&helmv2.HelmRelease{}, "git-chart-a", "kubectl-edit", `{"spec":{"values":{"more":1}}}`)
	change(&helmv2.HelmRelease{}, "git-chart-b", "flux", `{"spec":{"suspend":true}}`)
	change(&kustomizev1.Kustomization{}, "oci-manifests-a", "kubectl-label", `{"metadata":{"labels":{"fleet.kurator.dev/member":null}}}`)
	change(&appsv1.Application{}, "oci", "kubectl-annotate", `{"metadata":{"annotations":{"kurator.dev/pause":"true"}}}`)
	change(&kustomizev1.Kustomization{}, "bucket-manifests-b", "fleetwright", `{"metadata":{"annotations":{"fleet.kurator.dev/digest":"another"}}}`)
	change(&helmv2.HelmRelease{}, "charts-one-b", "fleetwright", `{"metadata":{"annotations":{"fleet.kurator.dev/digest":"another"}},"spec":{"interval":"1m"}}`)
	change(&appsv1.Application{}, "charts", "kubectl-edit", `{"spec":{"source":{"helmRepository":{"interval":"1m"}}}}`)
	h.Expect(h.Delete(t.Context(), &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Name: "oci-manifests-made", Namespace: h.ns}})).To(Succeed())
	left := &kustomizev1.Kustomization{}
	h.get(left, "hub-manifests-hub")
	left = &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Name: "hub-old", Namespace: h.ns, OwnerReferences: left.OwnerReferences}, Spec: left.Spec}
	h.Expect(h.Create(t.Context(), left)).To(Succeed())
	h.apply("apiVersion: apps.kurator.dev/v1alpha1\nkind: Application\nmetadata: {name: sneaked}\nspec:\n  source: {sourceRef: {kind: GitRepository, name: x}}\n  syncPolicies: [{kustomization: {path: ./}}]")
	text, code = verify()
	h.Expect(code).To(Equal(1))
	text = strings.ReplaceAll(text, h.ns, "hub")
	var findings []string
	for line := range strings.Lines(text) {
		findings = append(findings, strings.Join(strings.Fields(line), " "))
	}
	h.Expect(findings).To(HaveExactElements(
		"STATE NAMESPACE OBJECT MEMBER OWNER WHY",
		"Missing hub Kustomization/oci-manifests-made made Application/oci is rendered as reviewed, and not applied yet; Application oci is suspended",
		"Extra hub Kustomization/hub-old Application/hub the plan does not have it",
		"Different hub HelmRelease/charts-one-b b Application/charts is rendered as reviewed, and not applied yet; Application charts has generation 2, and the controller has looked at 1",
		"Changed hub Kustomization/bucket-manifests-b b Application/bucket metadata.annotations.fleet.kurator.dev/digest: it is as reviewed",
		"Changed hub HelmRelease/git-chart-a a Application/git spec.values.more (kubectl-edit)",
		"Changed hub Kustomization/git-manifests-a a Application/git spec.path (kubectl-edit)",
		"Changed hub Kustomization/git-manifests-b b Application/git spec.patches (kubectl-edit)",
		"Changed hub Kustomization/oci-manifests-a a Application/oci something that was applied is not there any more",
		"Suspended hub HelmRelease/git-chart-b b Application/git spec.suspend (flux)",
		"NotInPlan hub Application/sneaked Application/sneaked the plan does not have it",
		"the hub does not run what was reviewed: 10 differences in 134 objects of 12 owners",
	))
	text, code = run("verify", "--plan", plan, "--kubeconfig", kubeconfig, "-o", "json")
	h.Expect(code).To(Equal(1))
	h.Expect(text).To(ContainSubstring(`"fields": [
        "spec.suspend (flux)"
      ]`))
	text, code = run("verify", "--plan", plan, "-n", "nowhere")
	h.Expect(code).To(Equal(2), text)
}
