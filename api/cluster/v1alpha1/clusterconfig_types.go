package v1alpha1

import (
	"bytes"
	"encoding/json"

	"github.com/fluxcd/pkg/apis/kustomize"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
)

// ClusterConfigKind is the kind of a ClusterConfig.
const ClusterConfigKind = "ClusterConfig"

// ClusterConfigSpec says what every member of the target has. It is rendered to manifests that all members share; Flux
// applies them, corrects what is changed by hand, and prunes what is taken out.
//
// Any string below but names, namespaces and the quantities of limitRanges may hold member facts between << and >>, as in an
// Application: << .cluster.name >>, << index .cluster.labels "region" >>, << .fleet.name >>. A fact that a member lacks is an
// error for that member alone.
type ClusterConfigSpec struct {
	// Target is where the baseline holds.
	// +required
	Target ClusterConfigTarget `json:"target"`

	// Priority decides between ClusterConfigs that want the same object on the same member: the highest has it. Among
	// equals it is the one whose name comes first. Defaults to 0.
	// +optional
	Priority int32 `json:"priority,omitempty"`

	// Namespaces that every member has. One that is taken out of this list stays on the members, with all that is in it,
	// unless its deletionPolicy says Delete.
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=name
	// +optional
	Namespaces []BaselineNamespace `json:"namespaces,omitempty"`

	// ResourceQuotas of namespaces.
	// +kubebuilder:validation:MaxItems=512
	// +optional
	ResourceQuotas []BaselineResourceQuota `json:"resourceQuotas,omitempty"`

	// LimitRanges of namespaces.
	// +kubebuilder:validation:MaxItems=512
	// +optional
	LimitRanges []BaselineLimitRange `json:"limitRanges,omitempty"`

	// NetworkPolicies of namespaces, by preset or in full.
	// +kubebuilder:validation:MaxItems=256
	// +optional
	NetworkPolicies []BaselineNetworkPolicy `json:"networkPolicies,omitempty"`

	// RBAC is who may do what.
	// +optional
	RBAC *BaselineRBAC `json:"rbac,omitempty"`

	// ServiceAccounts of namespaces.
	// +kubebuilder:validation:MaxItems=512
	// +optional
	ServiceAccounts []BaselineServiceAccount `json:"serviceAccounts,omitempty"`

	// PriorityClasses of the cluster.
	// +kubebuilder:validation:MaxItems=64
	// +optional
	PriorityClasses []BaselinePriorityClass `json:"priorityClasses,omitempty"`

	// StorageClasses of the cluster.
	// +kubebuilder:validation:MaxItems=64
	// +optional
	StorageClasses []BaselineStorageClass `json:"storageClasses,omitempty"`

	// Manifests are any other objects.
	// +optional
	Manifests *BaselineManifests `json:"manifests,omitempty"`

	// KernelParams are set on every Linux node, by a DaemonSet. A node change can break the node: see the documentation.
	// +kubebuilder:validation:MaxItems=128
	// +listType=map
	// +listMapKey=key
	// +optional
	KernelParams []KernelParam `json:"kernelParams,omitempty"`

	// ContainerRuntime is set on every Linux node, by the same DaemonSet, as far as that can be done without a restart.
	// +optional
	ContainerRuntime *ContainerRuntime `json:"containerRuntime,omitempty"`

	// NodeImage is the image of the DaemonSet, with a POSIX shell. Defaults to docker.io/library/busybox:1.37.0.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	NodeImage string `json:"nodeImage,omitempty"`

	// Overrides change what is rendered for some members. All that match a member apply, in this order.
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Overrides []BaselineOverride `json:"overrides,omitempty"`

	// Interval is how often Flux corrects drift on each member. Defaults to 10m.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	Interval *metav1.Duration `json:"interval,omitempty"`

	// DeletionPolicy says what happens on a member that leaves, or when the ClusterConfig is deleted: Delete removes what
	// was applied there (but for namespaces that are not to be deleted), Orphan leaves all of it. Defaults to Delete.
	// +kubebuilder:validation:Enum=Delete;Orphan
	// +kubebuilder:default=Delete
	// +optional
	DeletionPolicy string `json:"deletionPolicy,omitempty"`

	// PruneBudget is the number or percentage of members that may lose the baseline in one step, as in an Application.
	// Defaults to 50%.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern="^(100|[1-9]?[0-9])%$"
	// +kubebuilder:validation:XValidation:rule="type(self) != int || self >= 0 && self <= 1000000",message="pruneBudget has to be a percentage or a number from 0 to 1000000"
	// +optional
	PruneBudget *intstr.IntOrString `json:"pruneBudget,omitempty"`

	// Suspend stops Fleetwright from acting on this ClusterConfig. What is on the members stays, and Flux goes on with it.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// ClusterConfigTarget is a choice of members: all of a fleet, those of a fleet that a selector matches, or one cluster.
// +kubebuilder:validation:XValidation:rule="has(self.fleet) != has(self.cluster)",message="target needs exactly one of fleet and cluster"
// +kubebuilder:validation:XValidation:rule="!has(self.clusterSelector) || has(self.fleet)",message="target.clusterSelector chooses members of a fleet: set target.fleet"
type ClusterConfigTarget struct {
	// Fleet names a Fleet in the same namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Fleet string `json:"fleet,omitempty"`

	// ClusterSelector takes only the fleet's members whose labels match.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`

	// Cluster names one Cluster or AttachedCluster in the same namespace.
	// +optional
	Cluster *appsv1.ClusterReference `json:"cluster,omitempty"`
}

// DNSName is the name of an object or namespace that a baseline renders; facts may not be in it.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=253
// +kubebuilder:validation:Pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
type DNSName string

// NamespaceName is the name of a namespace.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
type NamespaceName string

// BaselineNamespace is a namespace that every member has.
type BaselineNamespace struct {
	// Name of the namespace.
	// +required
	Name NamespaceName `json:"name"`

	// Labels of the namespace.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// Annotations of the namespace.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`

	// PodSecurity sets the Pod Security level that the namespace enforces, and warns and audits about.
	// https://kubernetes.io/docs/concepts/security/pod-security-standards/
	// +kubebuilder:validation:Enum=privileged;baseline;restricted
	// +optional
	PodSecurity string `json:"podSecurity,omitempty"`

	// DeletionPolicy says what happens to the namespace when it is taken out of the list, when the member leaves, or when
	// the ClusterConfig is deleted: Orphan leaves it with all that is in it, Delete removes it WITH ALL THAT IS IN IT. It
	// has to have been Delete before the namespace is taken out. Defaults to Orphan.
	// +kubebuilder:validation:Enum=Delete;Orphan
	// +kubebuilder:default=Orphan
	// +optional
	DeletionPolicy string `json:"deletionPolicy,omitempty"`
}

// Quantity is a quantity of Kubernetes, or a text with member facts that becomes one.
// +kubebuilder:validation:Type=""
// +kubebuilder:validation:XIntOrString
type Quantity string

// UnmarshalJSON reads a text, or a whole number of any size: IntOrString, which has 32 bits, would not read bytes.
func (q *Quantity) UnmarshalJSON(b []byte) error {
	if bytes.HasPrefix(b, []byte(`"`)) {
		return json.Unmarshal(b, (*string)(q))
	}
	*q = Quantity(b)
	return nil
}

// BaselineResourceQuota is a ResourceQuota.
type BaselineResourceQuota struct {
	// Name of the ResourceQuota.
	// +required
	Name DNSName `json:"name"`
	// Namespace that it limits. It has to be there, by namespaces above or otherwise.
	// +required
	Namespace NamespaceName `json:"namespace"`

	// Hard are the limits by resource, as quantities; a string may hold member facts.
	// +required
	Hard map[string]Quantity `json:"hard"`

	// Scopes of what is counted.
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Scopes []corev1.ResourceQuotaScope `json:"scopes,omitempty"`

	// ScopeSelector chooses what is counted.
	// +optional
	ScopeSelector *corev1.ScopeSelector `json:"scopeSelector,omitempty"`
}

// BaselineLimitRange is a LimitRange.
type BaselineLimitRange struct {
	// Name of the LimitRange.
	// +required
	Name DNSName `json:"name"`
	// Namespace that it is in.
	// +required
	Namespace NamespaceName `json:"namespace"`

	corev1.LimitRangeSpec `json:",inline"`
}

// Presets of network policies.
const (
	// DefaultDeny lets nothing in or out that no other policy allows.
	DefaultDeny = "DefaultDeny"
	// DefaultDenyIngress lets nothing in that no other policy allows.
	DefaultDenyIngress = "DefaultDenyIngress"
	// DefaultDenyEgress lets nothing out that no other policy allows.
	DefaultDenyEgress = "DefaultDenyEgress"
	// AllowDNS lets Pods ask kube-system's DNS, on port 53.
	AllowDNS = "AllowDNS"
	// AllowSameNamespace lets Pods of one namespace talk to each other.
	AllowSameNamespace = "AllowSameNamespace"
)

// BaselineNetworkPolicy is a NetworkPolicy in one or more namespaces.
// +kubebuilder:validation:XValidation:rule="has(self.preset) != has(self.spec)",message="a network policy needs exactly one of preset and spec"
// +kubebuilder:validation:XValidation:rule="has(self.preset) || has(self.name)",message="a network policy with a spec needs a name"
type BaselineNetworkPolicy struct {
	// Name of the NetworkPolicy. Defaults to that of the preset: default-deny, default-deny-ingress, default-deny-egress,
	// allow-dns, allow-same-namespace.
	// +optional
	Name DNSName `json:"name,omitempty"`

	// Namespaces that it holds in.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +listType=set
	// +required
	Namespaces []NamespaceName `json:"namespaces"`

	// Preset is one of the usual policies, for all Pods.
	// +kubebuilder:validation:Enum=DefaultDeny;DefaultDenyIngress;DefaultDenyEgress;AllowDNS;AllowSameNamespace
	// +optional
	Preset string `json:"preset,omitempty"`

	// Spec is a NetworkPolicy's.
	// +optional
	Spec *networkingv1.NetworkPolicySpec `json:"spec,omitempty"`
}

// BaselineRBAC is who may do what, the same on every member.
type BaselineRBAC struct {
	// ClusterRoles of the cluster.
	// +kubebuilder:validation:MaxItems=128
	// +optional
	ClusterRoles []BaselineRole `json:"clusterRoles,omitempty"`

	// Roles of namespaces.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:XValidation:rule="self.all(r, has(r.namespace))",message="a role needs a namespace: a clusterRole has none"
	// +optional
	Roles []BaselineRole `json:"roles,omitempty"`

	// Bindings give roles to groups, users or service accounts.
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Bindings []BaselineBinding `json:"bindings,omitempty"`
}

// BaselineRole is a Role or a ClusterRole.
type BaselineRole struct {
	// Name of the role.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// Namespace of a role; a clusterRole has none.
	// +optional
	Namespace NamespaceName `json:"namespace,omitempty"`
	// Labels of the role, for aggregation say.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Rules of the role.
	// +required
	Rules []rbacv1.PolicyRule `json:"rules"`
}

// BaselineBinding gives a role to subjects: in one namespace a RoleBinding, else a ClusterRoleBinding. Give access to
// groups of your identity provider, which mean the same on every member.
// +kubebuilder:validation:XValidation:rule="has(self.clusterRole) != has(self.role)",message="a binding needs exactly one of clusterRole and role"
// +kubebuilder:validation:XValidation:rule="!has(self.role) || has(self.namespace)",message="a binding to a role needs the role's namespace"
// +kubebuilder:validation:XValidation:rule="(has(self.groups) && self.groups.size() > 0) || (has(self.users) && self.users.size() > 0) || (has(self.serviceAccounts) && self.serviceAccounts.size() > 0)",message="a binding needs groups, users or serviceAccounts"
type BaselineBinding struct {
	// Name of the binding.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// Namespace of a RoleBinding. Left out, it is a ClusterRoleBinding.
	// +optional
	Namespace NamespaceName `json:"namespace,omitempty"`
	// ClusterRole that is given.
	// +optional
	ClusterRole string `json:"clusterRole,omitempty"`
	// Role that is given, of the same namespace.
	// +optional
	Role string `json:"role,omitempty"`
	// Groups that it is given to.
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Groups []string `json:"groups,omitempty"`
	// Users that it is given to.
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Users []string `json:"users,omitempty"`
	// ServiceAccounts that it is given to.
	// +kubebuilder:validation:MaxItems=64
	// +optional
	ServiceAccounts []BaselineServiceAccountRef `json:"serviceAccounts,omitempty"`
}

// BaselineServiceAccountRef names a ServiceAccount.
type BaselineServiceAccountRef struct {
	// Name of the ServiceAccount.
	// +required
	Name DNSName `json:"name"`
	// Namespace of the ServiceAccount.
	// +required
	Namespace NamespaceName `json:"namespace"`
}

// BaselineServiceAccount is a ServiceAccount.
type BaselineServiceAccount struct {
	// Name of the ServiceAccount.
	// +required
	Name DNSName `json:"name"`
	// Namespace of the ServiceAccount.
	// +required
	Namespace NamespaceName `json:"namespace"`
	// Labels of the ServiceAccount.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations of the ServiceAccount, for a cloud's workload identity say.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// AutomountServiceAccountToken says whether Pods get a token without asking. Defaults to false, unlike Kubernetes.
	// +optional
	AutomountServiceAccountToken bool `json:"automountServiceAccountToken,omitempty"`
	// ImagePullSecrets names Secrets of the namespace.
	// +kubebuilder:validation:MaxItems=16
	// +optional
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
}

// BaselinePriorityClass is a PriorityClass.
type BaselinePriorityClass struct {
	// Name of the PriorityClass.
	// +required
	Name DNSName `json:"name"`
	// Value of the priority; Flux makes the object anew when it changes, as it cannot be changed.
	// +kubebuilder:validation:Maximum=1000000000
	// +required
	Value int32 `json:"value"`
	// GlobalDefault makes it that of Pods without one.
	// +optional
	GlobalDefault bool `json:"globalDefault,omitempty"`
	// Description for people.
	// +optional
	Description string `json:"description,omitempty"`
	// PreemptionPolicy is PreemptLowerPriority or Never.
	// +kubebuilder:validation:Enum=PreemptLowerPriority;Never
	// +optional
	PreemptionPolicy *corev1.PreemptionPolicy `json:"preemptionPolicy,omitempty"`
}

// BaselineStorageClass is a StorageClass.
type BaselineStorageClass struct {
	// Name of the StorageClass.
	// +required
	Name DNSName `json:"name"`
	// Default makes it the one of claims that name none.
	// +optional
	Default bool `json:"default,omitempty"`
	// Provisioner of the volumes.
	// +kubebuilder:validation:MinLength=1
	// +required
	Provisioner string `json:"provisioner"`
	// Parameters of the provisioner; Flux makes the object anew when they change, as they cannot be changed.
	// +optional
	Parameters map[string]string `json:"parameters,omitempty"`
	// ReclaimPolicy of the volumes, Delete or Retain.
	// +kubebuilder:validation:Enum=Delete;Retain
	// +optional
	ReclaimPolicy *corev1.PersistentVolumeReclaimPolicy `json:"reclaimPolicy,omitempty"`
	// MountOptions of the volumes.
	// +kubebuilder:validation:MaxItems=32
	// +optional
	MountOptions []string `json:"mountOptions,omitempty"`
	// AllowVolumeExpansion lets claims grow.
	// +optional
	AllowVolumeExpansion *bool `json:"allowVolumeExpansion,omitempty"`
	// VolumeBindingMode is Immediate or WaitForFirstConsumer.
	// +kubebuilder:validation:Enum=Immediate;WaitForFirstConsumer
	// +optional
	VolumeBindingMode string `json:"volumeBindingMode,omitempty"`
}

// BaselineManifests are objects of any kind.
// +kubebuilder:validation:XValidation:rule="has(self.sourceRef) || !(has(self.path) || has(self.components))",message="path and components are in a Flux source: set sourceRef"
type BaselineManifests struct {
	// Objects in full. A Secret is refused: what is published can be read by everyone who reaches the controller.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:XEmbeddedResource
	// +optional
	Objects []EmbeddedObject `json:"objects,omitempty"`

	// SourceRef names a Flux source with manifests or a kustomize overlay, in the same namespace. They are applied after
	// everything else, by a Kustomization of their own.
	// +optional
	SourceRef *BaselineSourceReference `json:"sourceRef,omitempty"`

	// Path of the manifests or the overlay in the source. Defaults to its root.
	// +optional
	Path string `json:"path,omitempty"`

	// Components are kustomize components, by their paths relative to path.
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Components []string `json:"components,omitempty"`
}

// EmbeddedObject is a Kubernetes object.
// +kubebuilder:pruning:PreserveUnknownFields
// +kubebuilder:validation:XValidation:rule="self.kind != 'Secret' || self.apiVersion != 'v1'",message="a Secret must not be published: keep it in Git with SOPS and deliver it by an Application"
// +kubebuilder:validation:XValidation:rule="has(self.metadata.name)",message="an object needs metadata.name"
type EmbeddedObject struct {
	runtime.RawExtension `json:",inline"`
}

// BaselineSourceReference names a Flux source that holds manifests.
type BaselineSourceReference struct {
	// Kind of the source.
	// +kubebuilder:validation:Enum=GitRepository;OCIRepository;Bucket;ExternalArtifact
	// +required
	Kind string `json:"kind"`
	// Name of the source.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
}

// KernelParam is a sysctl.
type KernelParam struct {
	// Key of the parameter, vm.swappiness say.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern="^[a-z0-9][-_a-zA-Z0-9]*([./][-_a-zA-Z0-9]+)+$"
	// +required
	Key string `json:"key"`
	// Value of the parameter.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Value string `json:"value"`
}

// ContainerRuntime is the nodes' container runtime.
type ContainerRuntime struct {
	// Type of the runtime, which is checked on every node.
	// +kubebuilder:validation:Enum=containerd
	// +required
	Type string `json:"type"`

	// Config of the runtime.
	// +optional
	Config *ContainerRuntimeConfig `json:"config,omitempty"`
}

// ContainerRuntimeConfig is what is set of a container runtime.
type ContainerRuntimeConfig struct {
	// MaxContainerCount is the kubelet's maxPods, which only a cluster that is provisioned here can get. It is accepted and
	// has no effect on clusters that exist; the status says so.
	// +kubebuilder:validation:Minimum=1
	// +optional
	MaxContainerCount *int32 `json:"maxContainerCount,omitempty"`

	// RegistryMirrors are asked before the registries themselves. containerd reads them without a restart, from
	// /etc/containerd/certs.d, if its config_path says so.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=registry
	// +optional
	RegistryMirrors []RegistryMirror `json:"registryMirrors,omitempty"`
}

// RegistryMirror is where images of a registry are pulled from.
type RegistryMirror struct {
	// Registry whose images are mirrored, docker.io say.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern="^[a-zA-Z0-9][-a-zA-Z0-9.]*(:[0-9]+)?$"
	// +required
	Registry string `json:"registry"`
	// Endpoints are the mirrors' URLs, in the order in which they are tried.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=1024
	// +kubebuilder:validation:items:Pattern="^https?://[-a-zA-Z0-9._~:/]+$"
	// +required
	Endpoints []string `json:"endpoints"`
}

// BaselineOverride changes what is rendered for the members that it names or selects.
// +kubebuilder:validation:XValidation:rule="has(self.clusters) || has(self.selector)",message="an override needs clusters (names) or a selector (labels)"
type BaselineOverride struct {
	// Clusters names members. Members named here or matched by the selector are overridden.
	// +kubebuilder:validation:MaxItems=5000
	// +kubebuilder:validation:items:MaxLength=63
	// +optional
	Clusters []string `json:"clusters,omitempty"`

	// Selector matches members by label.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// Patches are kustomize patches of the rendered objects, strategic merge or JSON 6902.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +required
	Patches []kustomize.Patch `json:"patches"`
}

// ClusterConfigStatus is what was seen of a ClusterConfig.
type ClusterConfigStatus struct {
	appsv1.ApplicationStatus `json:",inline"`

	// Revision is that of the artifact which holds the rendered manifests.
	// +optional
	Revision string `json:"revision,omitempty"`
}

// ConflictCondition is True while another ClusterConfig wants the same object on the same member.
const ConflictCondition = "Conflict"

// ClusterConfig is what every member of a fleet has: namespaces, quotas, limits, access, network policies, node settings.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories={fluxcd,kurator-dev}
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/substitute=disabled"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status"
// +kubebuilder:printcolumn:name="Members",type="string",JSONPath=".status.members.summary"
// +kubebuilder:printcolumn:name="Conflict",type="string",JSONPath=".status.conditions[?(@.type==\"Conflict\")].status"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Status",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].message"
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name of a ClusterConfig becomes a label value and must have at most 63 characters"
type ClusterConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ClusterConfigSpec `json:"spec,omitempty"`
	// +kubebuilder:default={"observedGeneration":-1}
	Status ClusterConfigStatus `json:"status,omitempty"`
}

// GetConditions returns the conditions of the status.
func (c *ClusterConfig) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions replaces the conditions of the status.
func (c *ClusterConfig) SetConditions(conditions []metav1.Condition) {
	c.Status.Conditions = conditions
}

// ClusterConfigList is a list of ClusterConfigs.
// +kubebuilder:object:root=true
type ClusterConfigList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterConfig `json:"items"`
}
