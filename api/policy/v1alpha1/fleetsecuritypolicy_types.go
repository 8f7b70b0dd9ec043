package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FleetSecurityPolicyKind is the kind of a FleetSecurityPolicy.
const FleetSecurityPolicyKind = "FleetSecurityPolicy"

// FleetSecurityPolicySpec says which rules hold on the members of a fleet. Each rule becomes a ValidatingPolicy of Kyverno
// on every member.
type FleetSecurityPolicySpec struct {
	// Fleet names a Fleet in the same namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Fleet string `json:"fleet"`

	// ClusterSelector takes only the fleet's members whose labels match.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`

	// Rules that hold.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +required
	Rules []SecurityRule `json:"rules"`

	RuleOptions `json:",inline"`
}

// RuleName is the name of a rule, part of the names of what it becomes on members.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
type RuleName string

// The values of SecurityRule.Enforcement.
const (
	Enforce = "enforce"
	Audit   = "audit"
)

// SecurityRule is what has to hold for objects.
type SecurityRule struct {
	// Name of the rule.
	// +required
	Name RuleName `json:"name"`

	// Enforcement says what happens to an object that breaks the rule: enforce refuses it, audit lets it pass and reports it.
	// What exists already is reported in either case. Defaults to audit.
	// +kubebuilder:validation:Enum=enforce;audit
	// +kubebuilder:default=audit
	// +optional
	Enforcement string `json:"enforcement,omitempty"`

	// Severity of breaking the rule, for reports. Defaults to medium.
	// +kubebuilder:validation:Enum=critical;high;medium;low;info
	// +optional
	Severity string `json:"severity,omitempty"`

	// Match says which objects the rule is for.
	// +required
	Match RuleMatch `json:"match"`

	// Exclude leaves out objects that match: those that all the fields of resources are true of.
	// +optional
	Exclude *RuleMatch `json:"exclude,omitempty"`

	// Validate says what has to hold.
	// +required
	Validate RuleValidation `json:"validate"`
}

// RuleMatch chooses objects.
type RuleMatch struct {
	// Resources that match: all the fields that are set have to.
	// +required
	Resources ResourceFilter `json:"resources"`
}

// ResourceFilter chooses objects. Names and namespaces may hold * and ?.
type ResourceFilter struct {
	// Kinds of the objects, as in Kyverno: Pod, Deployment, apps/v1/Deployment, or, for one that Kubernetes does not come
	// with, group/version/Kind. In match, kinds are needed.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +optional
	Kinds []string `json:"kinds,omitempty"`

	// Names of the objects.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +optional
	Names []string `json:"names,omitempty"`

	// Namespaces of the objects.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`

	// Selector matches labels of the objects.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// NamespaceSelector matches labels of the objects' namespaces. It is for match alone.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// Operations that the rule looks at; it is for match alone. Defaults to CREATE and UPDATE.
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:Enum=CREATE;UPDATE;DELETE;CONNECT
	// +listType=set
	// +optional
	Operations []string `json:"operations,omitempty"`
}

// RuleValidation says what has to hold: exactly one of pattern, anyPattern and cel.
// +kubebuilder:validation:XValidation:rule="[has(self.pattern), has(self.anyPattern), has(self.cel)].filter(x, x).size() == 1",message="validate needs exactly one of pattern, anyPattern and cel (deny, foreach and podSecurity of Kyverno's ClusterPolicy are not known: write cel, or use a ClusterCompliance of type pod-security-baseline or pod-security-restricted)"
type RuleValidation struct {
	// Message is what people are told whose object is refused or reported.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`

	// Pattern that an object has to have, as in Kyverno's ClusterPolicy:
	// https://kyverno.io/docs/policy-types/cluster-policy/validate/#patterns. Where the kinds have Pod among them, it is a
	// pattern for Pods, written for a Pod or for what creates Pods (spec.template), and holds for all that creates Pods.
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Pattern *apiextensionsv1.JSON `json:"pattern,omitempty"`

	// AnyPattern are patterns of which an object has to have one.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:Type=object
	// +kubebuilder:validation:items:XPreserveUnknownFields
	// +optional
	AnyPattern []apiextensionsv1.JSON `json:"anyPattern,omitempty"`

	// CEL are expressions that have to be true.
	// +optional
	CEL *RuleExpressions `json:"cel,omitempty"`
}

// RuleExpressions are CEL expressions, as in a ValidatingAdmissionPolicy: the functions that Kubernetes has there are known,
// those that Kyverno adds are not. They are compiled before the rule is published.
type RuleExpressions struct {
	// Expressions that have to be true. They know object, oldObject, request, namespaceObject, and, where the kinds have Pod
	// among them, variables.pod: the Pod, or the template of the Pods that the object creates. A rule that uses it holds for
	// all that creates Pods.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +required
	Expressions []RuleExpression `json:"expressions"`
}

// RuleExpression is a CEL expression that has to be true.
type RuleExpression struct {
	// Expression in CEL.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	// +required
	Expression string `json:"expression"`

	// Message in place of that of the rule.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
}

// FleetSecurityPolicy says which rules hold on the members of a fleet.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=fsp,categories={fluxcd,kurator-dev}
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/substitute=disabled"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status"
// +kubebuilder:printcolumn:name="Members",type="string",JSONPath=".status.members.summary"
// +kubebuilder:printcolumn:name="Compliant",type="string",JSONPath=".status.compliance.summary"
// +kubebuilder:printcolumn:name="Failing",type="integer",JSONPath=".status.compliance.results.fail"
// +kubebuilder:printcolumn:name="Suspended",type="string",JSONPath=".status.conditions[?(@.type==\"Suspended\")].status"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Status",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].message"
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63 && !self.metadata.name.contains('.')",message="the name of a FleetSecurityPolicy is part of the names of policies on members: at most 63 characters, and no dot"
type FleetSecurityPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec FleetSecurityPolicySpec `json:"spec,omitempty"`
	// +kubebuilder:default={"observedGeneration":-1}
	Status RulesStatus `json:"status,omitempty"`
}

// GetConditions returns the conditions of the status.
func (p *FleetSecurityPolicy) GetConditions() []metav1.Condition { return p.Status.Conditions }

// SetConditions replaces the conditions of the status.
func (p *FleetSecurityPolicy) SetConditions(c []metav1.Condition) { p.Status.Conditions = c }

// GetRules returns the status, which is that of a ClusterCompliance, too.
func (p *FleetSecurityPolicy) GetRules() *RulesStatus { return &p.Status }

// GetOptions returns what a FleetSecurityPolicy and a ClusterCompliance have in common.
func (p *FleetSecurityPolicy) GetOptions() *RuleOptions { return &p.Spec.RuleOptions }

// FleetSecurityPolicyList is a list of FleetSecurityPolicies.
// +kubebuilder:object:root=true
type FleetSecurityPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []FleetSecurityPolicy `json:"items"`
}
