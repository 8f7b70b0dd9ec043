package v1alpha1

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestClusterSpecCIDRs(t *testing.T) {
	// What the API server fills in wherever there is a network.
	podDefault, serviceDefault := []string{"192.168.0.0/16"}, []string{"10.96.0.0/12"}

	tests := []struct {
		name     string
		spec     ClusterSpec
		pods     []string
		services []string
	}{
		{
			name: "no network",
			spec: ClusterSpec{Kind: ClusterAttached},
		},
		{
			name:     "Kurator's form with defaults",
			spec:     ClusterSpec{InfraType: "aws", Network: &ClusterNetwork{PodCIDRs: podDefault, ServiceCIDRs: serviceDefault}},
			pods:     podDefault,
			services: serviceDefault,
		},
		{
			name: "kind with its own ranges, not the defaults",
			spec: ClusterSpec{Kind: ClusterAttached, Network: &ClusterNetwork{
				PodCIDRs: podDefault, ServiceCIDRs: serviceDefault, PodCIDR: "10.244.0.0/16", ServiceCIDR: "10.97.0.0/16"}},
			pods:     []string{"10.244.0.0/16"},
			services: []string{"10.97.0.0/16"},
		},
		{
			name: "kind for dual stack",
			spec: ClusterSpec{Kind: ClusterProvisioned, Network: &ClusterNetwork{PodCIDR: "10.244.0.0/16, fd00:10:244::/56"}},
			pods: []string{"10.244.0.0/16", "fd00:10:244::/56"},
		},
		{
			name: "kind without ranges: unknown, not the defaults",
			spec: ClusterSpec{Kind: ClusterAttached, Network: &ClusterNetwork{
				PodCIDRs: podDefault, ServiceCIDRs: serviceDefault, NetworkType: "flannel"}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(tt.spec.PodCIDRs()).To(HaveExactElements(tt.pods))
			g.Expect(tt.spec.ServiceCIDRs()).To(HaveExactElements(tt.services))
		})
	}
}
