package v1alpha1

import (
	"github.com/fluxcd/pkg/apis/acl"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

// ApplicationKind is the kind of an Application.
const ApplicationKind = "Application"

// Labels of the objects generated for an Application, beside those of the fleet API.
const (
	// ApplicationLabel names the Application that a generated object belongs to.
	ApplicationLabel = "apps.kurator.dev/name"
	// PolicyLabel names the sync policy that a generated object belongs to.
	PolicyLabel = "apps.kurator.dev/policy"
)

// ApplicationSpec says what runs, from which source, on which members.
//
// The refusals below name combinations that Flux would reject later, on every member.
// +kubebuilder:validation:XValidation:rule="!has(self.source.helmRepository) || self.syncPolicies.all(p, has(p.source) || !has(p.kustomization))",message="a helmRepository holds charts, not manifests: use helm in its syncPolicies, or a gitRepository, ociRepository or bucket for a kustomization"
// +kubebuilder:validation:XValidation:rule="!has(self.source.sourceRef) || !(self.source.sourceRef.kind in ['HelmRepository', 'HelmChart']) || self.syncPolicies.all(p, has(p.source) || !has(p.kustomization))",message="a HelmRepository or HelmChart holds charts, not manifests: use helm in its syncPolicies, or refer to a GitRepository, OCIRepository, Bucket or ExternalArtifact for a kustomization"
// +kubebuilder:validation:XValidation:rule="!(has(self.source.ociRepository) || (has(self.source.sourceRef) && self.source.sourceRef.kind in ['OCIRepository', 'HelmChart', 'ExternalArtifact'])) || self.syncPolicies.all(p, has(p.source) || !has(p.helm) || !has(p.helm.chart))",message="an OCIRepository, HelmChart or ExternalArtifact is the chart itself: leave out helm.chart, and pin the version in the source (ociRepository.ref)"
// +kubebuilder:validation:XValidation:rule="!(has(self.source.gitRepository) || has(self.source.bucket) || has(self.source.helmRepository) || (has(self.source.sourceRef) && self.source.sourceRef.kind in ['GitRepository', 'Bucket', 'HelmRepository'])) || self.syncPolicies.all(p, has(p.source) || !has(p.helm) || has(p.helm.chart))",message="helm.chart is missing: say which chart of the source to install, helm.chart.spec.chart"
// +kubebuilder:validation:XValidation:rule="self.syncPolicies.all(p, has(p.source) || !has(p.helm) || !has(p.helm.chartKind) || p.helm.chartKind != 'OCIRepository' || (has(self.source.helmRepository) && has(self.source.helmRepository.type) && self.source.helmRepository.type == 'oci'))",message="helm.chartKind: OCIRepository is for a helmRepository of type oci: leave helm.chartKind out"
// +kubebuilder:validation:XValidation:rule="self.syncPolicies.all(p, !has(p.name) || self.syncPolicies.filter(q, has(q.name) && q.name == p.name).size() == 1)",message="two syncPolicies have the same name: each name must be there once"
type ApplicationSpec struct {
	// Source is where the manifests or charts come from, for the policies that have no source of their own.
	// +required
	Source ApplicationSource `json:"source"`

	// SyncPolicies say what of the source goes where, and how.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +required
	SyncPolicies []ApplicationSyncPolicy `json:"syncPolicies"`

	// Destination is where policies go that have none of their own. Without any destination a policy goes to the hub itself.
	// +optional
	Destination *ApplicationDestination `json:"destination,omitempty"`

	// DependsOn lists Applications of the same namespace that come first: on every member, nothing of this Application
	// is created there before all that they have on that member is ready.
	// +kubebuilder:validation:MaxItems=64
	// +optional
	DependsOn []NameReference `json:"dependsOn,omitempty"`

	// DeletionPolicy says what happens on a member that leaves, or when the Application is deleted: Delete removes what
	// was applied there, Orphan leaves it running. Defaults to Delete.
	// +kubebuilder:validation:Enum=Delete;Orphan
	// +kubebuilder:default=Delete
	// +optional
	DeletionPolicy string `json:"deletionPolicy,omitempty"`

	// PruneBudget is the number or percentage of members whose objects may be ended in one step. A step that ends more
	// than this, and more than one member, stops until it is allowed by the annotation fleet.kurator.dev/allow-prune.
	// A percentage is of the members that have objects. Defaults to 50%.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern="^(100|[1-9]?[0-9])%$"
	// +kubebuilder:validation:XValidation:rule="type(self) != int || self >= 0 && self <= 1000000",message="pruneBudget has to be a percentage or a number from 0 to 1000000"
	// +optional
	PruneBudget *intstr.IntOrString `json:"pruneBudget,omitempty"`

	// Suspend stops Fleetwright from acting on this Application. The objects that exist stay as they are, and Flux goes
	// on with them; `flux suspend` stops one of those.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// DeletionPolicyDelete and DeletionPolicyOrphan are the values of ApplicationSpec.DeletionPolicy.
const (
	DeletionPolicyDelete = "Delete"
	DeletionPolicyOrphan = "Orphan"
)

// ApplicationSource is where manifests or charts come from: exactly one of its fields. It becomes one Flux source
// object for all members, named like the Application, except sourceRef, which refers to one that exists.
// +kubebuilder:validation:XValidation:rule="[has(self.gitRepository), has(self.helmRepository), has(self.ociRepository), has(self.bucket), has(self.sourceRef)].filter(x, x).size() == 1",message="source needs exactly one of gitRepository, helmRepository, ociRepository, bucket and sourceRef"
type ApplicationSource struct {
	// GitRepository is the spec of a Flux GitRepository.
	// +optional
	GitRepository *GitRepositorySource `json:"gitRepository,omitempty"`

	// HelmRepository is the spec of a Flux HelmRepository.
	// +optional
	HelmRepository *sourcev1.HelmRepositorySpec `json:"helmRepository,omitempty"`

	// OCIRepository is the spec of a Flux OCIRepository: manifests for a kustomization, or one chart for helm.
	// +optional
	OCIRepository *sourcev1.OCIRepositorySpec `json:"ociRepository,omitempty"`

	// Bucket is the spec of a Flux Bucket.
	// +optional
	Bucket *sourcev1.BucketSpec `json:"bucket,omitempty"`

	// SourceRef refers to a Flux source that exists in the Application's namespace.
	// +optional
	SourceRef *SourceReference `json:"sourceRef,omitempty"`
}

// GitRepositorySource is the spec of a Flux GitRepository, and the fields that Flux has dropped since Kurator.
type GitRepositorySource struct {
	sourcev1.GitRepositorySpec `json:",inline"`

	// GitImplementation has no effect: Flux has one implementation.
	// +optional
	GitImplementation string `json:"gitImplementation,omitempty"`

	// AccessFrom has no effect: a source is used from its own namespace.
	// +optional
	AccessFrom *acl.AccessFrom `json:"accessFrom,omitempty"`
}

// SourceReference names a Flux source in the Application's namespace.
type SourceReference struct {
	// Kind of the source.
	// +kubebuilder:validation:Enum=GitRepository;OCIRepository;Bucket;ExternalArtifact;HelmRepository;HelmChart
	// +required
	Kind string `json:"kind"`

	// Name of the source.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
}

// NameReference names an object of the same kind and namespace, or a policy of the same Application.
type NameReference struct {
	// Name of what comes first.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`
}

// ApplicationDestination is a choice of members: those of a fleet, or one cluster.
// +kubebuilder:validation:XValidation:rule="has(self.fleet) != has(self.cluster)",message="a destination needs exactly one of fleet and cluster"
// +kubebuilder:validation:XValidation:rule="!has(self.clusterSelector) || has(self.fleet)",message="clusterSelector chooses members of a fleet: set fleet"
type ApplicationDestination struct {
	// Fleet names a Fleet in the Application's namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Fleet string `json:"fleet,omitempty"`

	// ClusterSelector takes only the fleet's members whose labels match. Without it all members are taken.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`

	// Cluster names one cluster in the Application's namespace, whether or not it is in a fleet.
	// +optional
	Cluster *ClusterReference `json:"cluster,omitempty"`
}

// ClusterReference names a cluster of the same namespace.
type ClusterReference struct {
	// Name of the Cluster or AttachedCluster.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`

	// Kind of the cluster. Left out, a Cluster of that name is taken, and if there is none an AttachedCluster.
	// +kubebuilder:validation:Enum=Cluster;AttachedCluster
	// +optional
	Kind string `json:"kind,omitempty"`
}

// ApplicationSyncPolicy says what of the source goes to which members, and how.
//
// Any string in kustomization and helm may hold member facts between << and >>, as a Go template:
// << .cluster.name >>, << .cluster.kind >>, << index .cluster.labels "region" >>, << .fleet.name >>,
// << .application.name >>, << .application.namespace >>. A fact that a member lacks is an error for that member alone.
// A string that is nothing but << … | number >> or << … | bool >> becomes a number or a boolean where the field takes
// any value, as in helm.values.
// +kubebuilder:validation:XValidation:rule="has(self.kustomization) != has(self.helm)",message="a sync policy needs exactly one of kustomization and helm"
// +kubebuilder:validation:XValidation:rule="!has(self.overrides) || self.overrides.all(o, !has(o.helm) || has(self.helm))",message="an override with helm is for a policy with helm"
// +kubebuilder:validation:XValidation:rule="!has(self.overrides) || self.overrides.all(o, !has(o.kustomization) || has(self.kustomization))",message="an override with kustomization is for a policy with kustomization"
// +kubebuilder:validation:XValidation:rule="!has(self.source) || !has(self.kustomization) || !has(self.source.helmRepository) && !(has(self.source.sourceRef) && self.source.sourceRef.kind in ['HelmRepository', 'HelmChart'])",message="a HelmRepository or HelmChart holds charts, not manifests: use helm, or another source for a kustomization"
// +kubebuilder:validation:XValidation:rule="!has(self.source) || !has(self.helm) || has(self.helm.chart) != (has(self.source.ociRepository) || has(self.source.sourceRef) && self.source.sourceRef.kind in ['OCIRepository', 'HelmChart', 'ExternalArtifact'])",message="an OCIRepository, HelmChart or ExternalArtifact is the chart itself: leave out helm.chart; for every other source say which chart to install, helm.chart.spec.chart"
// +kubebuilder:validation:XValidation:rule="!has(self.source) || !has(self.helm) || !has(self.helm.chartKind) || self.helm.chartKind != 'OCIRepository' || has(self.source.helmRepository) && has(self.source.helmRepository.type) && self.source.helmRepository.type == 'oci'",message="helm.chartKind: OCIRepository is for a helmRepository of type oci: leave helm.chartKind out"
type ApplicationSyncPolicy struct {
	// Name of the policy, part of the names of its objects. Defaults to the policy's place in the list, counted from 0:
	// give a name before you reorder the list or take one out of its middle.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
	// +optional
	Name string `json:"name,omitempty"`

	// Source of this policy, instead of the Application's. It becomes one Flux source object for all members, named
	// <application>-<policy>.
	// +optional
	Source *ApplicationSource `json:"source,omitempty"`

	// Destination of this policy, instead of the Application's.
	// +optional
	Destination *ApplicationDestination `json:"destination,omitempty"`

	// DependsOn lists policies of this Application that come first on every member that has both.
	// +kubebuilder:validation:MaxItems=64
	// +optional
	DependsOn []NameReference `json:"dependsOn,omitempty"`

	// Kustomization becomes one Flux Kustomization for each member.
	// +optional
	Kustomization *Kustomization `json:"kustomization,omitempty"`

	// Helm becomes one Flux HelmRelease for each member.
	// +optional
	Helm *HelmRelease `json:"helm,omitempty"`

	// Overrides change the policy for some members. All that match a member apply, in this order.
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Overrides []Override `json:"overrides,omitempty"`

	// Rollout is accepted and has no effect yet.
	// +optional
	Rollout *RolloutConfig `json:"rollout,omitempty"`
}

// Override changes a policy for the members that it names or selects.
// +kubebuilder:validation:XValidation:rule="has(self.clusters) || has(self.selector)",message="an override needs clusters (names) or a selector (labels)"
// +kubebuilder:validation:XValidation:rule="[has(self.kustomization), has(self.helm), has(self.hold)].filter(x, x).size() == 1",message="an override needs exactly one of kustomization, helm and hold"
type Override struct {
	// Clusters names members. Members named here or matched by the selector are overridden.
	// +kubebuilder:validation:MaxItems=5000
	// +kubebuilder:validation:items:MaxLength=63
	// +optional
	Clusters []string `json:"clusters,omitempty"`

	// Selector matches members by label.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// Kustomization changes the policy's kustomization.
	// +optional
	Kustomization *KustomizationOverride `json:"kustomization,omitempty"`

	// Helm changes the policy's helm.
	// +optional
	Helm *HelmOverride `json:"helm,omitempty"`

	// Hold leaves what these members have of the policy as it is: nothing is created, changed or ended there. It says
	// why, for the status.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=500
	// +optional
	Hold string `json:"hold,omitempty"`
}

// ApplicationStatus is what was seen of an Application.
type ApplicationStatus struct {
	meta.ReconcileRequestStatus `json:",inline"`

	// ObservedGeneration is the generation of the spec that the rest of the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// RenderDigest identifies all that was rendered: of an Application its sources and the children of all its members; of an
	// object that is delivered by Applications, these, and what is published for them. fleetwright build --digest prints the same
	// for the same state of a repository. Members and fleets that nothing can be rendered for are not in it.
	// +optional
	RenderDigest string `json:"renderDigest,omitempty"`

	// AcceptedDigest is the renderDigest of the last step that was begun, where there are ChangeBudgets: within them, or allowed.
	// +optional
	AcceptedDigest string `json:"acceptedDigest,omitempty"`

	// Conditions: Ready, Reconciling and Stalled as in Flux; NotInEffect for what is accepted without effect;
	// PruneBlocked while a prune over budget waits; OverrideUnmatched for overrides that match no member.
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Members counts the members and names those that are not well. A member is well when all its objects are ready.
	// +optional
	Members fleetv1.MemberSummary `json:"members,omitzero"`

	// Objects is the number of Flux objects that the Application has, sources included.
	// +optional
	Objects int `json:"objects,omitempty"`

	// Prune is there while objects are to be ended.
	// +optional
	Prune *PruneStatus `json:"prune,omitempty"`

	// LastHandledPrune is the value of the annotation fleet.kurator.dev/allow-prune that was used up last.
	// +optional
	LastHandledPrune string `json:"lastHandledPrune,omitempty"`

	// ForceHandled is true while kurator.dev/reconcile=force is set and was handled.
	// +optional
	ForceHandled bool `json:"forceHandled,omitempty"`
}

// Condition types of an Application beside Flux's.
const (
	// ChangeBlockedCondition is True while a step over a ChangeBudget waits to be allowed: nothing is written until then.
	ChangeBlockedCondition = "ChangeBlocked"
	// PruneBlockedCondition is True while a prune over budget waits to be allowed.
	PruneBlockedCondition = "PruneBlocked"
	// OverrideUnmatchedCondition is True while an override matches no member.
	OverrideUnmatchedCondition = "OverrideUnmatched"
)

// PruneStatus says what is to be ended.
type PruneStatus struct {
	// Members is the number of members that have objects to be ended.
	Members int `json:"members"`
	// Of is the number of members that have objects.
	Of int `json:"of"`
	// Objects is the number of objects to be ended.
	Objects int `json:"objects"`
	// Allow is the value of the annotation fleet.kurator.dev/allow-prune that allows it; empty if it is within budget.
	// +optional
	Allow string `json:"allow,omitempty"`
	// AllowedBy is the value of the annotation that allowed it.
	// +optional
	AllowedBy string `json:"allowedBy,omitempty"`
	// Digest stands for the objects that are left of those that were allowed to end.
	// +optional
	Digest string `json:"digest,omitempty"`
}

// Application delivers manifests or charts from one source to the members of fleets.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories={fluxcd,kurator-dev}
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/substitute=disabled"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status"
// +kubebuilder:printcolumn:name="Members",type="string",JSONPath=".status.members.summary"
// +kubebuilder:printcolumn:name="Suspended",type="string",JSONPath=".status.conditions[?(@.type==\"Suspended\")].status"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Status",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].message"
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name of an Application becomes a label value and must have at most 63 characters"
type Application struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ApplicationSpec `json:"spec,omitempty"`
	// +kubebuilder:default={"observedGeneration":-1}
	Status ApplicationStatus `json:"status,omitempty"`
}

// GetConditions returns the conditions of the status.
func (a *Application) GetConditions() []metav1.Condition { return a.Status.Conditions }

// SetConditions replaces the conditions of the status.
func (a *Application) SetConditions(c []metav1.Condition) { a.Status.Conditions = c }

// ApplicationList is a list of Applications.
// +kubebuilder:object:root=true
type ApplicationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Application `json:"items"`
}
