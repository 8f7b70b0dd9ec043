package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// ChangeBudgetKind is the kind of a ChangeBudget.
const ChangeBudgetKind = "ChangeBudget"

// DefaultRegionLabel is the label of members that says in which region they are.
const DefaultRegionLabel = "topology.kubernetes.io/region"

// ChangeBudgetSpec bounds what one step changes of each Application in the namespace, those included that plugins,
// ClusterConfigs, FleetSecurityPolicies and ClusterCompliances become. What is left out is not bounded. A step over budget is not
// begun, until it is allowed.
// +kubebuilder:validation:XValidation:rule="has(self.members) || has(self.deletions) || has(self.regions) || has(self.protectedKinds)",message="a budget has to bound something: set members, deletions, regions or protectedKinds"
type ChangeBudgetSpec struct {
	// Members is the number or percentage of an Application's members that one step may change something on. Something that is
	// new for a member is a change. A percentage is rounded down, and is one at least.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern="^(100|[1-9]?[0-9])%$"
	// +kubebuilder:validation:XValidation:rule="type(self) != int || self >= 0 && self <= 1000000",message="members has to be a percentage or a number from 0 to 1000000"
	// +optional
	Members *intstr.IntOrString `json:"members,omitempty"`

	// Deletions is the number or percentage of an Application's members that one step may take something away from, whether or not
	// that stays there. A percentage is rounded down, and is one at least. It bounds changes beside the Application's pruneBudget.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern="^(100|[1-9]?[0-9])%$"
	// +kubebuilder:validation:XValidation:rule="type(self) != int || self >= 0 && self <= 1000000",message="deletions has to be a percentage or a number from 0 to 1000000"
	// +optional
	Deletions *intstr.IntOrString `json:"deletions,omitempty"`

	// Regions is the number of regions that one step may change something in. Members without a region are one region together.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Regions *int32 `json:"regions,omitempty"`

	// RegionLabel is the label of members that says in which region they are. Defaults to topology.kubernetes.io/region.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +optional
	RegionLabel string `json:"regionLabel,omitempty"`

	// ProtectedKinds are kinds of objects that no step may delete on members: Kind, or Kind.group. They are looked for in what a
	// Kustomization or HelmRelease that ends has applied.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=317
	// +listType=set
	// +optional
	ProtectedKinds []string `json:"protectedKinds,omitempty"`
}

// ChangeBudget bounds what one step changes.
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories={kurator-dev}
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/substitute=disabled"
// +kubebuilder:printcolumn:name="Members",type="string",JSONPath=".spec.members"
// +kubebuilder:printcolumn:name="Deletions",type="string",JSONPath=".spec.deletions"
// +kubebuilder:printcolumn:name="Regions",type="integer",JSONPath=".spec.regions"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type ChangeBudget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec ChangeBudgetSpec `json:"spec"`
}

// ChangeBudgetList is a list of ChangeBudgets.
// +kubebuilder:object:root=true
type ChangeBudgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ChangeBudget `json:"items"`
}
