package scenarios

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fleetwright/fleetwright/e2e/harness"
)

// Must hold 2, the half that is admission: what people have written for Kurator, the API server accepts as it is.
func TestAdmission(t *testing.T) {
	s := begin(t)
	accepted := filepath.Join(harness.Root(), "cmd/fleetwright/testdata/accepted")
	manifests, err := harness.ReadFiles(accepted, "")
	s.Expect(err).NotTo(HaveOccurred())
	kinds := map[string]int{}
	for path, manifest := range manifests {
		for _, o := range s.decode(manifest) {
			if !strings.HasSuffix("."+o.GroupVersionKind().Group, ".kurator.dev") {
				continue
			}
			s.Expect(env.Hub.CreateNamespace(s.ctx, o.GetNamespace())).To(Succeed())
			err := env.Hub.Client.Create(s.ctx, o, client.DryRunAll, client.FieldValidation("Strict"))
			s.Expect(err).NotTo(HaveOccurred(), "%s: %s %s", path, o.GetKind(), o.GetName())
			kinds[o.GetKind()]++
		}
	}
	s.Expect(names(kinds)).To(Equal([]string{"Application", "AttachedCluster", "ChangeBudget", "Cluster", "ClusterCompliance", "ClusterConfig", "Fleet", "FleetSecurityPolicy", "PluginConfig"}))

	t.Log("what would only fail on the members later is refused, with what to do")
	for says, change := range map[string][]string{
		"unknown field \"spec.destinations\"":        {"destination: {fleet: prod}", "destinations: {fleet: prod}"},
		"source needs exactly one of":                {"source: {", "source: {ociRepository: {url: oci://example.org/a, interval: 1h}, "},
		"a destination needs exactly one of":         {"destination: {fleet: prod}", "destination: {fleet: prod, cluster: {name: c1}}"},
		"clusterSelector chooses members":            {"destination: {fleet: prod}", "destination: {cluster: {name: c1}, clusterSelector: {}}"},
		"a sync policy needs exactly one of":         {"- name: app\n", "- name: app\n    helm: {}\n"},
		"two syncPolicies have the same name":        {"syncPolicies:\n", "syncPolicies:\n  - {name: app, kustomization: {}}\n"},
		"an override needs clusters":                 {"- selector: {matchLabels: {size: large}}\n      ", "- "},
		"spec.source.gitRepository.url":              {"url: $GIT/shop, ", ""},
		"in body should match '^([0-9]+(\\.[0-9]+)?": {"      interval: 1h", "      interval: soon"},
	} {
		refused := s.decode(replace(shopApplication, change...))[0]
		err := env.Hub.Client.Create(s.ctx, refused, client.DryRunAll, client.FieldValidation("Strict"))
		s.Expect(err).To(HaveOccurred(), says)
		s.Expect(apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)).To(BeTrue(), "%v", err)
		s.Expect(fmt.Sprint(err)).To(ContainSubstring(says))
	}

	t.Log("H2: a label that is no string is refused by name; it does not take the others with it")
	unquoted := s.decode(fleet("prod", "c1, labels: {env: prod, gpu: true}"))[0]
	s.Expect(env.Hub.Client.Create(s.ctx, unquoted, client.DryRunAll, client.FieldValidation("Strict"))).
		To(MatchError(ContainSubstring("spec.clusters[0].labels.gpu")))
}
