package scenarios

import (
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"

	"github.com/fleetwright/fleetwright/e2e/harness"
)

// With the component config/notification in the kustomization that installs Flux, Alerts and Receivers can select our
// kinds; without it the API server refuses them.
func TestNotification(t *testing.T) {
	s := begin(t)
	crds := map[string]string{}
	for _, api := range []string{notificationv1beta3.GroupVersion.Version, notificationv1.GroupVersion.Version} {
		dir := t.TempDir()
		generate := exec.Command(filepath.Join(harness.Root(), "bin/controller-gen"), "crd",
			"paths=github.com/fluxcd/notification-controller/api/"+api, "output:crd:dir="+dir)
		generate.Dir = filepath.Join(harness.Root(), "e2e")
		out, err := generate.CombinedOutput()
		s.Expect(err).NotTo(HaveOccurred(), string(out))
		generated, err := harness.ReadFiles(dir, api)
		s.Expect(err).NotTo(HaveOccurred())
		for path, crd := range generated {
			crds[path] = crd
		}
	}
	component, err := harness.ReadFiles(filepath.Join(harness.Root(), "config/notification"), "notification")
	s.Expect(err).NotTo(HaveOccurred())

	events := func(kind string) string {
		return `
apiVersion: notification.toolkit.fluxcd.io/v1beta3
kind: Alert
metadata: {name: fleet}
spec:
  providerRef: {name: chat}
  eventSources: [{kind: ` + kind + `, name: "*"}]
---
apiVersion: notification.toolkit.fluxcd.io/v1
kind: Receiver
metadata: {name: fleet}
spec:
  type: generic
  secretRef: {name: token}
  resources: [{kind: ` + kind + `, name: "*"}]`
	}
	accepted := func(kind string) (n int) {
		for _, o := range s.decode(events(kind)) {
			switch err := env.Hub.Client.Create(s.ctx, o, client.DryRunAll, client.FieldValidation("Strict")); {
			case err == nil:
				n++
			case !apierrors.IsInvalid(err):
				n = -10 // not there yet
			}
		}
		return n
	}
	ours := []string{"Fleet", "Application", "AttachedCluster", "Cluster"}

	t.Log("Flux as it is")
	s.install(crds, nil)
	s.Eventually(func() int { return accepted("Kustomization") }).Should(Equal(2))
	for _, kind := range ours {
		s.Expect(accepted(kind)).To(BeZero(), kind)
	}

	t.Log("Flux with the component")
	s.install(crds, component)
	for _, kind := range ours {
		s.Eventually(func() int { return accepted(kind) }).Should(Equal(2), kind)
	}
	s.Expect(accepted("Kustomization")).To(Equal(2))
	s.Expect(accepted("Deployment")).To(BeZero())
}

// install builds what installs Flux, with a component if there is one, and applies it to the hub.
func (s *scenario) install(resources, component map[string]string) {
	s.t.Helper()
	fs := filesys.MakeFsInMemory()
	kustomization := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n"
	for path, content := range resources {
		s.Expect(fs.WriteFile(filepath.Join("flux", path), []byte(content))).To(Succeed())
		kustomization += "- " + path + "\n"
	}
	for path, content := range component {
		s.Expect(fs.WriteFile(path, []byte(content))).To(Succeed())
	}
	if component != nil {
		kustomization += "components: [../notification]\n"
	}
	s.Expect(fs.WriteFile("flux/kustomization.yaml", []byte(kustomization))).To(Succeed())
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(fs, "flux")
	s.Expect(err).NotTo(HaveOccurred())
	for _, r := range built.Resources() {
		content, err := r.Map()
		s.Expect(err).NotTo(HaveOccurred())
		o := &unstructured.Unstructured{Object: content}
		s.Expect(env.Hub.Client.Apply(s.ctx, client.ApplyConfigurationFromUnstructured(o), client.ForceOwnership, client.FieldOwner("kubectl"))).
			To(Succeed(), "%s %s", o.GetKind(), o.GetName())
	}
}
