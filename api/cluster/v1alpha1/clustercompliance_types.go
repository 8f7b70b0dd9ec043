package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
)

// ClusterComplianceKind is the kind of a ClusterCompliance.
const ClusterComplianceKind = "ClusterCompliance"

// ClusterComplianceSpec says which rules hold on a cluster, or on the members of a fleet. The rules are of types that
// Fleetwright comes with, or that a PluginConfig brings.
// +kubebuilder:validation:XValidation:rule="has(self.clusterName) != has(self.fleet)",message="exactly one of clusterName and fleet is needed"
// +kubebuilder:validation:XValidation:rule="!has(self.clusterSelector) || has(self.fleet)",message="clusterSelector chooses members of a fleet: set fleet"
type ClusterComplianceSpec struct {
	// ClusterName names one Cluster or AttachedCluster in the same namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	ClusterName string `json:"clusterName,omitempty"`

	// Fleet names a Fleet in the same namespace, in place of a cluster.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Fleet string `json:"fleet,omitempty"`

	// ClusterSelector takes only the fleet's members whose labels match.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`

	// Rules that hold.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +required
	Rules []ComplianceRule `json:"rules"`

	policyv1.RuleOptions `json:",inline"`
}

// ComplianceRule is a rule of a type.
type ComplianceRule struct {
	// Name of the rule.
	// +required
	Name policyv1.RuleName `json:"name"`

	// Type of the rule: one that Fleetwright comes with (fleetwright plugin list), or one that a PluginConfig of the
	// namespace brings.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Type string `json:"type"`

	// Enabled is false for a rule that is to be taken out without losing its parameters. Defaults to true.
	// +kubebuilder:default=true
	// +optional
	Enabled *bool `json:"enabled,omitempty"`

	// Params of the type. Every type has enforce: with true, what breaks the rule is refused; else it is reported.
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Params *apiextensionsv1.JSON `json:"params,omitempty"`
}

// ClusterCompliance says which rules hold on a cluster, or on the members of a fleet.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories={fluxcd,kurator-dev}
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/substitute=disabled"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status"
// +kubebuilder:printcolumn:name="Members",type="string",JSONPath=".status.members.summary"
// +kubebuilder:printcolumn:name="Compliant",type="string",JSONPath=".status.compliance.summary"
// +kubebuilder:printcolumn:name="Failing",type="integer",JSONPath=".status.compliance.results.fail"
// +kubebuilder:printcolumn:name="Suspended",type="string",JSONPath=".status.conditions[?(@.type==\"Suspended\")].status"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Status",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].message"
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63 && !self.metadata.name.contains('.')",message="the name of a ClusterCompliance is part of the names of policies on members: at most 63 characters, and no dot"
type ClusterCompliance struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ClusterComplianceSpec `json:"spec,omitempty"`
	// +kubebuilder:default={"observedGeneration":-1}
	Status policyv1.RulesStatus `json:"status,omitempty"`
}

// GetConditions returns the conditions of the status.
func (c *ClusterCompliance) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions replaces the conditions of the status.
func (c *ClusterCompliance) SetConditions(conditions []metav1.Condition) {
	c.Status.Conditions = conditions
}

// GetRules returns the status, which is that of a FleetSecurityPolicy, too.
func (c *ClusterCompliance) GetRules() *policyv1.RulesStatus { return &c.Status }

// GetOptions returns what a ClusterCompliance and a FleetSecurityPolicy have in common.
func (c *ClusterCompliance) GetOptions() *policyv1.RuleOptions { return &c.Spec.RuleOptions }

// ClusterComplianceList is a list of ClusterCompliances.
// +kubebuilder:object:root=true
type ClusterComplianceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterCompliance `json:"items"`
}
