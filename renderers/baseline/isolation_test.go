package baseline

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

func TestIsolation(t *testing.T) {
	g := NewWithT(t)
	fleet := &fleetv1.Fleet{ObjectMeta: metav1.ObjectMeta{Name: "prod", Namespace: "fleet"}}
	g.Expect(Isolation(fleet, nil)).To(BeNil())
	fleet.Spec.Policy = &fleetv1.FleetPolicy{NetworkIsolation: true}
	configs := []*clusterv1.ClusterConfig{
		parse(t, "{metadata: {name: a}, spec: {target: {fleet: prod}, namespaces: [{name: shop}, {name: back}]}}"),
		parse(t, "{metadata: {name: b}, spec: {target: {fleet: prod}, namespaces: [{name: shop}]}}"),
		parse(t, "{metadata: {name: c}, spec: {target: {fleet: lab}, namespaces: [{name: of-another-fleet}]}}"),
		parse(t, "{metadata: {name: d}, spec: {target: {fleet: prod, clusterSelector: {matchLabels: {a: b}}}, namespaces: [{name: on-some-members}]}}"),
		parse(t, "{metadata: {name: prod-isolation}, spec: {target: {fleet: prod}, namespaces: [{name: of-itself}]}}"),
	}
	isolation := Isolation(fleet, configs)
	g.Expect(isolation.Name).To(Equal("prod-isolation"))
	g.Expect(isolation.Namespace).To(Equal("fleet"))
	g.Expect(isolation.Kind).To(Equal(clusterv1.ClusterConfigKind))
	g.Expect(isolation.Spec.Priority).To(Equal(int32(-1000)))
	g.Expect(isolation.Spec.NetworkPolicies).To(HaveLen(1))
	g.Expect(isolation.Spec.NetworkPolicies[0].Namespaces).To(Equal([]clusterv1.NamespaceName{"back", "default", "shop"}))
	_, err := Render(isolation)
	g.Expect(err).NotTo(HaveOccurred())

	t.Log("more namespaces than the API takes in one network policy")
	for i := range 300 {
		configs[0].Spec.Namespaces = append(configs[0].Spec.Namespaces, clusterv1.BaselineNamespace{Name: clusterv1.NamespaceName(fmt.Sprintf("n%d", i))})
	}
	isolation = Isolation(fleet, configs)
	n := 0
	for _, p := range isolation.Spec.NetworkPolicies {
		g.Expect(len(p.Namespaces)).To(BeNumerically("<=", 256))
		n += len(p.Namespaces)
	}
	g.Expect(n).To(Equal(303))
	_, err = Render(isolation)
	g.Expect(err).NotTo(HaveOccurred())
}
