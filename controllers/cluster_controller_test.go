package controllers

import (
	"testing"

	"github.com/fluxcd/pkg/runtime/conditions"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
)

func (h *hub) cluster(name string) func() string {
	return func() string {
		c := &clusterv1.Cluster{}
		h.get(c, name)
		return readyOf(c)
	}
}

func TestClusterAttached(t *testing.T) {
	h := newHub(t)
	m := newFakeMember(t)
	h.secret("production-cluster-kubeconfig", m.kubeconfig("s3cret"))
	h.apply(`
apiVersion: cluster.kurator.dev/v1alpha1
kind: Cluster
metadata: {name: production-cluster, labels: {env: production}}
spec:
  kind: AttachedCluster
  kubeconfigRef: {name: production-cluster-kubeconfig}
  healthCheck: {interval: 30s, timeout: 10s}`)
	h.startMembers(1)
	h.Eventually(h.cluster("production-cluster")).Should(Equal("True Reached: reached: Kubernetes v1.36.3"))
	h.Expect(healthMetric(h, "Cluster", "production-cluster")).To(Equal(1.0))
}

func TestClusterOfProvider(t *testing.T) {
	h := newHub(t)
	m := newFakeMember(t)
	h.apply(`
apiVersion: cluster.kurator.dev/v1alpha1
kind: Cluster
metadata: {name: made}
spec: {kind: Provisioned, provider: vmware}`)
	h.startMembers(1)
	h.Eventually(h.cluster("made")).Should(Equal("False NoProvider: no provider provisions clusters yet: " +
		"write the name of a kubeconfig Secret into status.kubeconfigSecretRef, or use kind AttachedCluster"))
	c := &clusterv1.Cluster{}
	h.get(c, "made")
	h.Expect(conditions.IsStalled(c)).To(BeFalse())

	// A provider comes.
	h.secret("made-kubeconfig", m.kubeconfig("s3cret"))
	before := c.DeepCopy()
	c.Status.Phase, c.Status.KubeconfigSecretRef, c.Status.APIEndpoint = "Ready", "made-kubeconfig", m.URL
	conditions.MarkTrue(c, "InfrastructureReady", "Made", "it is made")
	h.Expect(h.Status().Patch(t.Context(), c, client.MergeFrom(before))).To(Succeed())
	h.Eventually(h.cluster("made")).Should(HavePrefix("True Reached: "))
	h.get(c, "made")
	h.Expect(c.Status.Phase).To(Equal("Ready"))
	h.Expect(c.Status.KubeconfigSecretRef).To(Equal("made-kubeconfig"))
	h.Expect(c.Status.APIEndpoint).To(Equal(m.URL))
	h.Expect(conditions.Has(c, "InfrastructureReady")).To(BeTrue())
}
