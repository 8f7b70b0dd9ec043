package baseline

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// isolationPriority is low, so that what people declare themselves has the place.
const isolationPriority = -1000

// maxNamespaces is how many the API takes in one network policy.
const maxNamespaces = 256

// IsolationName returns the name of the ClusterConfig of a fleet's spec.policy.networkIsolation.
func IsolationName(fleet string) string {
	return object.Name(application.MaxNameLength, fleet, "isolation")
}

// Isolation returns the ClusterConfig of a fleet's spec.policy.networkIsolation; nil if it has none. Isolated are the
// namespace default, and those that ClusterConfigs of the fleet declare: what else members have is not known here.
// Configs are those of the fleet's namespace.
func Isolation(fleet *fleetv1.Fleet, configs []*clusterv1.ClusterConfig) *clusterv1.ClusterConfig {
	if fleet.Spec.Policy == nil || !fleet.Spec.Policy.NetworkIsolation {
		return nil
	}
	isolation := &clusterv1.ClusterConfig{}
	isolation.APIVersion, isolation.Kind = clusterv1.GroupVersion.String(), clusterv1.ClusterConfigKind
	isolation.Name, isolation.Namespace = IsolationName(fleet.Name), fleet.Namespace
	namespaces := []clusterv1.NamespaceName{"default"}
	for _, c := range configs {
		// Of one that is for some members only, the others have not got the namespace.
		whole := c.Spec.Target.Fleet == fleet.Name && c.Spec.Target.ClusterSelector == nil
		if !whole || c.Name == isolation.Name || !c.DeletionTimestamp.IsZero() {
			continue
		}
		for _, n := range c.Spec.Namespaces {
			namespaces = append(namespaces, n.Name)
		}
	}
	slices.Sort(namespaces)
	namespaces = slices.Compact(namespaces)
	spec := &networkingv1.NetworkPolicySpec{}
	readTemplate("networkpolicies/isolation.yaml", spec)
	isolation.Spec = clusterv1.ClusterConfigSpec{Target: clusterv1.ClusterConfigTarget{Fleet: fleet.Name}, Priority: isolationPriority,
		DeletionPolicy: appsv1.DeletionPolicyDelete} // the default, which the API server fills in
	for some := range slices.Chunk(namespaces, maxNamespaces) {
		isolation.Spec.NetworkPolicies = append(isolation.Spec.NetworkPolicies,
			clusterv1.BaselineNetworkPolicy{Name: "isolation", Namespaces: some, Spec: spec})
	}
	return isolation
}
