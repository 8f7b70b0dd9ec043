package v1alpha1

import (
	"github.com/fluxcd/pkg/apis/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

// RuleOptions are common to FleetSecurityPolicies and ClusterCompliances.
type RuleOptions struct {
	// ExcludeNamespaces are left alone by every rule, beside those of the system, of Flux, and of the fleet's own plugins,
	// which always are.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
	// +listType=set
	// +optional
	ExcludeNamespaces []string `json:"excludeNamespaces,omitempty"`

	// WaitForKyverno waits on each member until the plugin policy of the fleet, which is Kyverno, is ready there. Set it to
	// false where Kyverno comes to the members in another way. Defaults to true.
	// +kubebuilder:default=true
	// +optional
	WaitForKyverno *bool `json:"waitForKyverno,omitempty"`

	// Interval is how often Flux corrects drift on each member. Defaults to 10m.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	Interval *metav1.Duration `json:"interval,omitempty"`

	// DeletionPolicy says what happens on a member that leaves, or when the object is deleted: Delete removes what was
	// applied there, Orphan leaves it. Defaults to Delete.
	// +kubebuilder:validation:Enum=Delete;Orphan
	// +kubebuilder:default=Delete
	// +optional
	DeletionPolicy string `json:"deletionPolicy,omitempty"`

	// PruneBudget is the number or percentage of members that may lose the rules in one step, as in an Application.
	// Defaults to 50%.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern="^(100|[1-9]?[0-9])%$"
	// +kubebuilder:validation:XValidation:rule="type(self) != int || self >= 0 && self <= 1000000",message="pruneBudget has to be a percentage or a number from 0 to 1000000"
	// +optional
	PruneBudget *intstr.IntOrString `json:"pruneBudget,omitempty"`

	// Suspend stops Fleetwright from acting on the object. What is on the members stays, and Flux goes on with it.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// CompliantCondition is True if every member has the rules as they are declared, has reported about them since, and nothing
// that breaks one; False if a member reported something that does; and Unknown, with the members' names, otherwise.
const CompliantCondition = "Compliant"

// Bounds of the lists in a RulesStatus, so that it stays below 64 KiB whatever the members report.
const (
	// MaxListedResults is the most members that status.compliance.members lists.
	MaxListedResults = 100
	// MaxListedFindings is the most findings that status.compliance.findings lists.
	MaxListedFindings = 40
	// MaxListedRules is the most rules that status.compliance.members[].rules lists.
	MaxListedRules = 10
)

// RulesStatus is what was seen of a FleetSecurityPolicy or a ClusterCompliance.
type RulesStatus struct {
	meta.ReconcileRequestStatus `json:",inline"`

	// ObservedGeneration is the generation of the spec that the rest of the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// RenderDigest identifies all that was rendered: the Applications that deliver the rules, and what is published for them.
	// fleetwright build --digest prints the same for the same state of a repository.
	// +optional
	RenderDigest string `json:"renderDigest,omitempty"`

	// Conditions: Ready, Reconciling and Stalled as in Flux, about the delivery of the rules; Compliant, about what the
	// members report; Suspended; PruneBlocked while a prune over budget waits.
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Members counts the members and names those that do not have the rules as declared.
	// +optional
	Members fleetv1.MemberSummary `json:"members,omitzero"`

	// Objects is the number of Flux objects.
	// +optional
	Objects int `json:"objects,omitempty"`

	// Prune is there while objects are to be ended.
	// +optional
	Prune *appsv1.PruneStatus `json:"prune,omitempty"`

	// Rules says how each rule is.
	// +listType=map
	// +listMapKey=name
	// +optional
	Rules []RuleStatus `json:"rules,omitempty"`

	// Compliance is what the members report.
	// +optional
	Compliance Compliance `json:"compliance,omitzero"`
}

// RuleStatus says how a rule is.
type RuleStatus struct {
	// Name of the rule.
	Name string `json:"name"`

	// Type of the rule, in a ClusterCompliance.
	// +optional
	Type string `json:"type,omitempty"`

	// Enforcement is enforce or audit.
	// +optional
	Enforcement string `json:"enforcement,omitempty"`

	// Ready is True if the rule is delivered as declared, False if it is not, and Unknown while that is under way.
	Ready string `json:"ready"`

	// Reason is one word for machines.
	// +optional
	Reason string `json:"reason,omitempty"`

	// Message says what is wrong and what to do.
	// +optional
	Message string `json:"message,omitempty"`

	// Delivered is true while members have the rule, as it is or as it was before.
	// +optional
	Delivered bool `json:"delivered,omitempty"`

	// Results counts what the members report.
	// +optional
	Results ResultCounts `json:"results,omitzero"`

	// FailingMembers is the number of members with objects that break the rule.
	// +optional
	FailingMembers int `json:"failingMembers,omitempty"`
}

// ResultCounts counts results of policy reports: an object and a policy each.
type ResultCounts struct {
	// Pass is the number of objects that a policy is content with.
	// +optional
	Pass int `json:"pass,omitempty"`
	// Fail is the number of objects that break a policy.
	// +optional
	Fail int `json:"fail,omitempty"`
	// Warn is the number of objects that a policy warns of.
	// +optional
	Warn int `json:"warn,omitempty"`
	// Error is the number of objects for which a policy could not be evaluated.
	// +optional
	Error int `json:"error,omitempty"`
	// Skip is the number of objects that a policy skipped.
	// +optional
	Skip int `json:"skip,omitempty"`
}

// Compliance is what members report.
type Compliance struct {
	// Total is the number of members that are to report.
	// +optional
	Total int `json:"total,omitempty"`

	// Compliant is the number of members that have the rules as they are declared, and have reported since, nothing of it bad.
	// +optional
	Compliant int `json:"compliant,omitempty"`

	// Unknown is the number of members of which it is not known whether they are compliant: they do not have the rules yet, were
	// not read since, or do not answer.
	// +optional
	Unknown int `json:"unknown,omitempty"`

	// Summary is compliant/total, for people.
	// +optional
	Summary string `json:"summary,omitempty"`

	// Results of all members together.
	// +optional
	Results ResultCounts `json:"results,omitzero"`

	// Members lists those that are not compliant, worst first, and those that could not be read, at most 100 of them.
	// +kubebuilder:validation:MaxItems=100
	// +optional
	Members []MemberResults `json:"members,omitempty"`

	// MembersOmitted is how many more there are than members lists.
	// +optional
	MembersOmitted int `json:"membersOmitted,omitempty"`

	// Findings lists the worst results of all members, worst first, at most 40 of them.
	// +kubebuilder:validation:MaxItems=40
	// +optional
	Findings []Finding `json:"findings,omitempty"`
}

// MemberResults is what a member reports.
type MemberResults struct {
	// Name of the member.
	Name string `json:"name"`

	// Kind of the member, Cluster or AttachedCluster.
	// +optional
	Kind string `json:"kind,omitempty"`

	// Results of the member.
	// +optional
	Results ResultCounts `json:"results,omitzero"`

	// Rules are those that objects on the member break, at most 10 of them.
	// +kubebuilder:validation:MaxItems=10
	// +optional
	Rules []string `json:"rules,omitempty"`

	// ReadAt is when the results were read; it is there only if they could not be read since.
	// +optional
	ReadAt *metav1.Time `json:"readAt,omitempty"`

	// Message says why the member could not be read last. The results are those from before.
	// +optional
	Message string `json:"message,omitempty"`
}

// Finding is an object on a member that breaks a rule.
type Finding struct {
	// Member that has the object.
	Member string `json:"member"`

	// Rule that is broken.
	Rule string `json:"rule"`

	// Result is fail, error or warn.
	Result string `json:"result"`

	// Severity of the rule.
	// +optional
	Severity string `json:"severity,omitempty"`

	// Resource is the object: Kind namespace/name.
	// +optional
	Resource string `json:"resource,omitempty"`

	// Message of the policy.
	// +optional
	Message string `json:"message,omitempty"`
}
