package scenarios

import (
	"testing"

	. "github.com/onsi/gomega"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
)

// Where a policy goes nowhere, it goes to the hub itself, with nobody's kubeconfig.
func TestHub(t *testing.T) {
	s := begin(t)
	s.push("tools", files{"tools/config.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: tools, namespace: $NAMESPACE}\ndata: {for: hub}\n"})
	s.apply(`
apiVersion: apps.kurator.dev/v1alpha1
kind: Application
metadata: {name: tools}
spec:
  source: {gitRepository: {url: $GIT/tools, interval: 1h, ref: {branch: main}}}
  syncPolicies:
  - {name: app, kustomization: {path: ./tools, interval: 1h}}
`)
	s.Eventually(s.data(env.Hub, s.ns, "tools")).Should(Equal(map[string]string{"for": "hub"}))
	s.ready("tools", "1/1")
	s.Expect(s.kustomization("tools-app-hub").Spec.KubeConfig).To(BeNil())
	for _, member := range env.Members {
		s.Expect(s.applied(member)()).To(BeEmpty(), member.Name)
	}

	s.delete(s.app("tools"))
	s.Eventually(s.gone(&appsv1.Application{ObjectMeta: s.named("tools")})).Should(BeTrue())
	s.Expect(s.data(env.Hub, s.ns, "tools")()).To(BeNil())
	s.Expect(s.left()).To(BeEmpty())
}
