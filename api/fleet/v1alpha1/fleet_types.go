package v1alpha1

import (
	"github.com/fluxcd/pkg/apis/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FleetKind is the kind of a Fleet.
const FleetKind = "Fleet"

// FleetSpec says which clusters belong together.
type FleetSpec struct {
	// Clusters lists members by name, in the fleet's own namespace.
	// +kubebuilder:validation:MaxItems=5000
	// +optional
	Clusters []FleetCluster `json:"clusters,omitempty"`

	// ClusterSelector adds every Cluster and AttachedCluster of the fleet's namespace whose own labels match.
	// A member that is also in clusters is one member. An empty selector matches every cluster of the namespace.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`

	// Policy says what holds for all members.
	// +optional
	Policy *FleetPolicy `json:"policy,omitempty"`

	// Plugin says which plugins the members run.
	// +optional
	Plugin *FleetPlugins `json:"plugin,omitempty"`

	// Plugins lists plugins from outside, which a PluginConfig registers.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	Plugins []FleetPlugin `json:"plugins,omitempty"`

	// Suspend stops Fleetwright from acting on this fleet: its status stands still, and so do the Applications on
	// their present members. What Flux already does goes on.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// Interval is how often the fleet is looked at when nothing happens. What happens (a cluster that joins, a label, a
	// health probe) is acted on at once. Defaults to 10m.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	Interval *metav1.Duration `json:"interval,omitempty"`
}

// FleetCluster names one member of a fleet. The fields of Kurator's object reference that are not listed as used are
// accepted and have no effect: a member is always in the fleet's namespace.
type FleetCluster struct {
	// Name of the Cluster or AttachedCluster.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`

	// Kind of the member. Left out, a Cluster of that name is taken, and if there is none an AttachedCluster.
	// +kubebuilder:validation:Enum=Cluster;AttachedCluster
	// +optional
	Kind string `json:"kind,omitempty"`

	// Labels add to the labels of the cluster object, and win over them, wherever this fleet's members are selected.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// APIVersion has no effect.
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`

	// Namespace has no effect: members are in the fleet's namespace.
	// +optional
	Namespace string `json:"namespace,omitempty"`

	// UID has no effect.
	// +optional
	UID string `json:"uid,omitempty"`

	// ResourceVersion has no effect.
	// +optional
	ResourceVersion string `json:"resourceVersion,omitempty"`

	// FieldPath has no effect.
	// +optional
	FieldPath string `json:"fieldPath,omitempty"`
}

// FleetPolicy says what holds for all members of a fleet.
type FleetPolicy struct {
	// Placement limits how many members are chosen.
	// +optional
	Placement *Placement `json:"placement,omitempty"`

	// NetworkIsolation asks for network policies that isolate the namespaces of every member.
	// +optional
	NetworkIsolation bool `json:"networkIsolation,omitempty"`

	// Encryption asks for encryption at rest of what the members' API servers store.
	// +optional
	Encryption *Encryption `json:"encryption,omitempty"`
}

// Placement limits how many members are chosen.
type Placement struct {
	// SpreadConstraints all have to hold.
	// +kubebuilder:validation:MaxItems=16
	// +optional
	SpreadConstraints []SpreadConstraint `json:"spreadConstraints,omitempty"`
}

// SpreadConstraint bounds the number of members.
// +kubebuilder:validation:XValidation:rule="!has(self.minClusters) || !has(self.maxClusters) || self.minClusters <= self.maxClusters",message="minClusters must not be greater than maxClusters"
type SpreadConstraint struct {
	// MaxClusters is the most members that are chosen.
	// +kubebuilder:validation:Minimum=1
	// +optional
	MaxClusters *int32 `json:"maxClusters,omitempty"`

	// MinClusters is the fewest members that must be there.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MinClusters *int32 `json:"minClusters,omitempty"`
}

// Encryption asks for encryption at rest.
type Encryption struct {
	// Enabled turns encryption at rest on.
	// +optional
	Enabled bool `json:"enabled,omitempty"`

	// Algorithm of the encryption, AES-256-GCM say.
	// +optional
	Algorithm string `json:"algorithm,omitempty"`
}

// MaxListedMembers is how many members that are not well a status lists by name; the rest are counted.
const MaxListedMembers = 50

// MemberSummary counts members and names those that are not well. It is part of the status of whatever acts on members.
type MemberSummary struct {
	// Total is the number of members.
	// +optional
	Total int `json:"total"`

	// Ready is the number of members that are well.
	// +optional
	Ready int `json:"ready"`

	// Summary is ready/total, for people.
	// +optional
	Summary string `json:"summary,omitempty"`

	// NotReady lists the members that are not well, sorted by name, at most 50 of them.
	// +kubebuilder:validation:MaxItems=50
	// +optional
	NotReady []NotReadyMember `json:"notReady,omitempty"`

	// NotReadyOmitted is how many more members are not well than notReady lists.
	// +optional
	NotReadyOmitted int `json:"notReadyOmitted,omitempty"`
}

// NotReadyMember is a member that is not well, and why.
type NotReadyMember struct {
	// Name of the member; empty for the hub itself.
	// +optional
	Name string `json:"name,omitempty"`

	// Kind of the member, Cluster or AttachedCluster; empty where no such object exists.
	// +optional
	Kind string `json:"kind,omitempty"`

	// Reason is one word for machines, NotFound or Unreachable say.
	Reason string `json:"reason"`

	// Message says what is wrong and what to do, in one line.
	// +optional
	Message string `json:"message,omitempty"`
}

// FleetStatus is what was seen of a fleet.
type FleetStatus struct {
	meta.ReconcileRequestStatus `json:",inline"`

	// ObservedGeneration is the generation of the spec that the rest of the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// RenderDigest identifies all that was rendered for the plugins: their Applications, and what is published for them. It is
	// empty if there is no plugin. fleetwright build --digest prints the same for the same state of a repository, unless plugins
	// need what is read from members.
	// +optional
	RenderDigest string `json:"renderDigest,omitempty"`

	// Conditions: Ready, Reconciling and Stalled as in Flux, and NotInEffect for what is accepted without effect.
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Members counts the members and names those that are not well.
	// +optional
	Members MemberSummary `json:"members,omitzero"`

	// Plugins says how each plugin is.
	// +listType=map
	// +listMapKey=name
	// +optional
	Plugins []PluginStatus `json:"plugins,omitempty"`

	// PluginEndpoints are addresses that plugins have on members, sorted by plugin and member, at most 500 of them.
	// +kubebuilder:validation:MaxItems=500
	// +optional
	PluginEndpoints []PluginEndpoint `json:"pluginEndpoints,omitempty"`
}

// PluginStatus says how a plugin of a fleet is.
type PluginStatus struct {
	// Name of the plugin.
	Name string `json:"name"`

	// Application that delivers it; its status says more.
	// +optional
	Application string `json:"application,omitempty"`

	// Ready is True, False or Unknown.
	Ready string `json:"ready"`

	// Members is ready/total.
	// +optional
	Members string `json:"members,omitempty"`

	// Reason is one word for machines.
	// +optional
	Reason string `json:"reason,omitempty"`

	// Message says what it waits for, on which member, or what is wrong and what to do.
	// +optional
	Message string `json:"message,omitempty"`
}

// MaxPluginEndpoints is how many endpoints a status lists.
const MaxPluginEndpoints = 500

// PluginEndpoint is an address that a plugin has on a member.
type PluginEndpoint struct {
	// Plugin it belongs to.
	Plugin string `json:"plugin"`

	// Name of the endpoint.
	Name string `json:"name"`

	// Cluster is the name of the member, and Kind its kind.
	Cluster string `json:"cluster"`

	// Kind of the member.
	// +optional
	Kind string `json:"kind,omitempty"`

	// Address, as those who use it need it: host:port say.
	Address string `json:"address"`
}

// Fleet is a set of clusters that run what Applications and policies say for the fleet.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories={fluxcd,kurator-dev}
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/substitute=disabled"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status"
// +kubebuilder:printcolumn:name="Members",type="string",JSONPath=".status.members.summary"
// +kubebuilder:printcolumn:name="Suspended",type="string",JSONPath=".status.conditions[?(@.type==\"Suspended\")].status"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Status",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].message"
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name of a Fleet becomes a label value and must have at most 63 characters"
type Fleet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec FleetSpec `json:"spec,omitempty"`
	// +kubebuilder:default={"observedGeneration":-1}
	Status FleetStatus `json:"status,omitempty"`
}

// GetConditions returns the conditions of the status.
func (f *Fleet) GetConditions() []metav1.Condition { return f.Status.Conditions }

// SetConditions replaces the conditions of the status.
func (f *Fleet) SetConditions(c []metav1.Condition) { f.Status.Conditions = c }

// FleetList is a list of Fleets.
// +kubebuilder:object:root=true
type FleetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Fleet `json:"items"`
}
