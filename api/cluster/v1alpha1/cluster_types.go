package v1alpha1

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// What spec.kind of a Cluster may be.
const (
	// ClusterAttached is a cluster that exists and is reached through kubeconfigRef.
	ClusterAttached = "AttachedCluster"
	// ClusterProvisioned is a cluster that spec.provider makes.
	ClusterProvisioned = "Provisioned"
)

// ClusterSpec describes a cluster in one of three ways: kind AttachedCluster for a cluster that exists, kind Provisioned
// for one that a provider makes, or infraType for Kurator's own form. Fleetwright reaches the cluster and watches its
// health; what describes machines and networks is for the provider that makes the cluster.
// +kubebuilder:validation:XValidation:rule="has(self.kind) != has(self.infraType)",message="a Cluster needs either kind (AttachedCluster for a cluster that exists, Provisioned for one that a provider makes) or infraType (Kurator's own form), and not both"
// +kubebuilder:validation:XValidation:rule="!has(self.kind) || self.kind != 'AttachedCluster' || has(self.kubeconfigRef)",message="kind AttachedCluster needs kubeconfigRef: write kubeconfigRef.name, the Secret with the kubeconfig"
// +kubebuilder:validation:XValidation:rule="!has(self.kubeconfigRef) || (has(self.kind) && self.kind == 'AttachedCluster')",message="kubeconfigRef goes with kind AttachedCluster only: write kind: AttachedCluster, or leave kubeconfigRef out"
// +kubebuilder:validation:XValidation:rule="!has(self.kind) || self.kind != 'Provisioned' || has(self.provider)",message="kind Provisioned needs provider: write who makes the cluster, vmware or aliyun say"
// +kubebuilder:validation:XValidation:rule="!has(self.infraType) || (has(self.region) && has(self.version) && has(self.credential) && has(self.network) && has(self.master) && has(self.workers))",message="infraType needs region, version, credential, network, master and workers as well: write all of them, or use kind instead of infraType"
// +kubebuilder:validation:XValidation:rule="!has(self.infraType) || !has(self.network) || (has(self.network.vpc) && has(self.network.cni))",message="infraType needs network.vpc and network.cni as well: write vpc: {} for a VPC with defaults, and cni.type, calico say"
// +kubebuilder:validation:XValidation:rule="!has(self.kind) || !has(self.network) || ((!has(self.network.podCIDRs) || self.network.podCIDRs == ['192.168.0.0/16']) && (!has(self.network.serviceCIDRs) || self.network.serviceCIDRs == ['10.96.0.0/12']))",message="podCIDRs and serviceCIDRs go with infraType: with kind, write network.podCIDR and network.serviceCIDR"
// +kubebuilder:validation:XValidation:rule="has(self.infraType) == has(oldSelf.infraType) && (!has(self.infraType) || self.infraType == oldSelf.infraType)",message="infraType cannot be changed, added or taken away: make a new Cluster instead"
type ClusterSpec struct {
	// Kind says where the cluster comes from: AttachedCluster exists and is reached through kubeconfigRef, Provisioned
	// is made by provider. Left out in Kurator's own form, which has infraType instead.
	// +kubebuilder:validation:Enum=AttachedCluster;Provisioned
	// +optional
	Kind string `json:"kind,omitempty"`

	// InfraType is the infrastructure of a cluster in Kurator's own form, aws say. It cannot be changed.
	// +optional
	InfraType string `json:"infraType,omitempty"`

	// Provider makes a cluster of kind Provisioned, vmware or aliyun say.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Provider string `json:"provider,omitempty"`

	// KubeconfigRef names the Secret with the kubeconfig of a cluster of kind AttachedCluster.
	// +optional
	KubeconfigRef *KubeconfigReference `json:"kubeconfigRef,omitempty"`

	// HealthCheck says how often the cluster is looked at.
	// +optional
	HealthCheck *HealthCheck `json:"healthCheck,omitempty"`

	// Credential opens the provider's own API, to make the cluster. It is not what opens the cluster.
	// +optional
	Credential *ClusterCredential `json:"credential,omitempty"`

	// Version of Kubernetes that the cluster is made with, v1.36.3 say.
	// +optional
	Version string `json:"version,omitempty"`

	// Region of the provider that the cluster is in.
	// +optional
	Region string `json:"region,omitempty"`

	// Network of the cluster.
	// +optional
	Network *ClusterNetwork `json:"network,omitempty"`

	// Master describes the control plane's machines, in Kurator's own form.
	// +optional
	Master *MasterConfig `json:"master,omitempty"`

	// Workers describes groups of worker machines, in Kurator's own form.
	// +optional
	Workers []WorkerConfig `json:"workers,omitempty"`

	// NodePools describes groups of machines, with kind Provisioned.
	// +optional
	NodePools []NodePool `json:"nodePools,omitempty"`

	// PodIdentity lets pods have identities of the provider.
	// +optional
	PodIdentity *PodIdentity `json:"podIdentity,omitempty"`

	// AdditionalResources are objects beside this one that are copied into the cluster, once, when it is ready.
	// +optional
	AdditionalResources []AdditionalResource `json:"additionalResources,omitempty"`

	// JoinMethod says how the cluster joins, for a provider that has more than one way.
	// +optional
	JoinMethod *JoinMethod `json:"joinMethod,omitempty"`

	// VMwareConfig is for the provider vmware: datacenter, cluster, datastore, network and what else it knows.
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	VMwareConfig *apiextensionsv1.JSON `json:"vmwareConfig,omitempty"`

	// Plugins are for the provider, which may set up things in a cluster that it makes. The plugins of Fleetwright are
	// those of the Fleet, in its spec.plugin.
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Plugins *apiextensionsv1.JSON `json:"plugins,omitempty"`
}

// ClusterCredential opens the provider's own API.
type ClusterCredential struct {
	// SecretRef names the Secret with the provider's credentials: its name, or {name: ...}.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	// +required
	SecretRef SecretRef `json:"secretRef"`
}

// ClusterNetwork describes the network of a cluster. With infraType it has vpc, cni, podCIDRs and serviceCIDRs; with
// kind it has networkType, vpcId, podCIDR and serviceCIDR.
type ClusterNetwork struct {
	// VPC that the cluster is in.
	// +optional
	VPC *VPC `json:"vpc,omitempty"`

	// CNI is what connects the pods.
	// +optional
	CNI *CNI `json:"cni,omitempty"`

	// PodCIDRs are the address ranges of pods, with infraType. Defaults to 192.168.0.0/16. With kind the default has no
	// meaning: podCIDR counts.
	// +kubebuilder:default={"192.168.0.0/16"}
	// +optional
	PodCIDRs []string `json:"podCIDRs,omitempty"`

	// ServiceCIDRs are the address ranges of Services, with infraType. Defaults to 10.96.0.0/12. With kind the default
	// has no meaning: serviceCIDR counts.
	// +kubebuilder:default={"10.96.0.0/12"}
	// +optional
	ServiceCIDRs []string `json:"serviceCIDRs,omitempty"`

	// NetworkType is what connects the pods, with kind: calico or flannel say.
	// +optional
	NetworkType string `json:"networkType,omitempty"`

	// VPCID is the provider's name for the VPC that the cluster is in, with kind.
	// +optional
	VPCID string `json:"vpcId,omitempty"`

	// PodCIDR is the address range of pods, with kind: 10.244.0.0/16 say; for dual stack two, with a comma.
	// +optional
	PodCIDR string `json:"podCIDR,omitempty"`

	// ServiceCIDR is the address range of Services, with kind: 10.96.0.0/12 say; for dual stack two, with a comma.
	// +optional
	ServiceCIDR string `json:"serviceCIDR,omitempty"`
}

// VPC is a provider's private network.
type VPC struct {
	// ID of a VPC that exists. Left out, one is made.
	// +optional
	ID string `json:"id,omitempty"`

	// Name of the VPC. Defaults to one made from the cluster's name.
	// +optional
	Name string `json:"name,omitempty"`

	// CIDRBlock is the address range of a VPC that is made. Defaults to 10.0.0.0/16.
	// +kubebuilder:default="10.0.0.0/16"
	// +optional
	CIDRBlock string `json:"cidrBlock,omitempty"`
}

// CNI is what connects the pods of a cluster.
type CNI struct {
	// Type of the CNI, calico say.
	// +required
	Type string `json:"type"`

	// ExtraArgs are settings of the CNI.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	ExtraArgs *apiextensionsv1.JSON `json:"extraArgs,omitempty"`
}

// MasterConfig describes the control plane's machines.
type MasterConfig struct {
	MachineConfig `json:",inline"`
}

// WorkerConfig describes a group of worker machines.
type WorkerConfig struct {
	MachineConfig `json:",inline"`

	// Strategy says how machines are replaced when their description changes.
	// +optional
	Strategy *MachineStrategy `json:"strategy,omitempty"`
}

// MachineConfig describes machines that are alike.
type MachineConfig struct {
	// Replicas is the number of machines.
	// +required
	Replicas int `json:"replicas"`

	// InstanceType is the provider's name for the size of the machines, t3.large say.
	// +required
	InstanceType string `json:"instanceType"`

	// SSHKeyName is the provider's name for the key that opens the machines over SSH.
	// +optional
	SSHKeyName string `json:"sshKeyName,omitempty"`

	// ImageOS is the operating system of the machines. Defaults to ubuntu-20.04.
	// +kubebuilder:default="ubuntu-20.04"
	// +optional
	ImageOS string `json:"imageOS,omitempty"`

	// RootVolume is the disk with the operating system.
	// +optional
	RootVolume *Volume `json:"rootVolumeSize,omitempty"`

	// NonRootVolumes are further disks.
	// +optional
	NonRootVolumes []Volume `json:"nonRootVolumes,omitempty"`

	// Labels are put on the nodes.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// Taints are put on the nodes.
	// +optional
	Taints []corev1.Taint `json:"taints,omitempty"`

	// ExtraArgs are further settings that the provider knows.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	ExtraArgs *apiextensionsv1.JSON `json:"extraArgs,omitempty"`
}

// Volume is a disk of a machine.
type Volume struct {
	// Size in GiB; at least 8, and as much as the image needs.
	// +kubebuilder:validation:Minimum=8
	// +required
	Size int64 `json:"size"`

	// Type is the provider's name for the kind of disk, gp3 say.
	// +optional
	Type string `json:"type,omitempty"`
}

// MachineStrategy says how machines are replaced.
type MachineStrategy struct {
	// Type of the replacement. Defaults to RollingUpdate.
	// +optional
	Type string `json:"type,omitempty"`

	// RollingUpdate bounds how many machines are replaced at a time.
	// +optional
	RollingUpdate *MachineRollingUpdate `json:"rollingUpdate,omitempty"`
}

// MachineRollingUpdate bounds how many machines are replaced at a time.
type MachineRollingUpdate struct {
	// MaxUnavailable is how many machines may be missing meanwhile: a number, or a percentage of replicas.
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`

	// MaxSurge is how many machines there may be beyond replicas meanwhile: a number, or a percentage of replicas.
	// +optional
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`

	// DeletePolicy chooses the machines that go first: Random, Newest or Oldest. Defaults to Newest.
	// +kubebuilder:validation:Enum=Random;Newest;Oldest
	// +optional
	DeletePolicy *string `json:"deletePolicy,omitempty"`
}

// NodePool describes a group of machines of a cluster of kind Provisioned.
type NodePool struct {
	// Name of the pool.
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`

	// Type of the machines: Master for the control plane, Worker for everything else.
	// +kubebuilder:validation:Enum=Master;Worker
	// +optional
	Type string `json:"type,omitempty"`

	// Replicas is the number of machines.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Replicas *int `json:"replicas,omitempty"`

	// InstanceType is the provider's name for the size of the machines, ecs.g6.xlarge say.
	// +optional
	InstanceType string `json:"instanceType,omitempty"`

	// DiskSize of the system disk: a number of GiB, or a quantity such as 200Gi.
	// +optional
	DiskSize *intstr.IntOrString `json:"diskSize,omitempty"`

	// DataDisks are further disks, with size, type and what else the provider knows.
	// +optional
	DataDisks []apiextensionsv1.JSON `json:"dataDisks,omitempty"`

	// VMSpec describes virtual machines, for a provider that has no instance types: template, cpu, memory, diskSize and
	// what else it knows.
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	VMSpec *apiextensionsv1.JSON `json:"vmSpec,omitempty"`
}

// PodIdentity lets pods have identities of the provider.
type PodIdentity struct {
	// Enabled turns it on.
	// +required
	Enabled bool `json:"enabled"`
}

// AdditionalResource is an object that is copied into a cluster.
type AdditionalResource struct {
	// Kind of the object: ConfigMap or Secret.
	// +kubebuilder:validation:Enum=ConfigMap;Secret
	// +required
	Kind string `json:"kind"`

	// Name of the object.
	// +required
	Name string `json:"name"`
}

// JoinMethod says how a cluster joins.
type JoinMethod struct {
	// Type of the method, Token say.
	// +kubebuilder:validation:MinLength=1
	// +required
	Type string `json:"type"`

	// Token is used by the method Token.
	// +optional
	Token *JoinToken `json:"token,omitempty"`
}

// JoinToken is a token with which a cluster joins.
type JoinToken struct {
	// SecretRef names the Secret with the token: its name, or {name: ...}.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	// +required
	SecretRef SecretRef `json:"secretRef"`
}

// ClusterStatus is what was seen of a Cluster.
type ClusterStatus struct {
	MemberHealth `json:",inline"`

	// Phase of the cluster's life, written by the provider.
	// +optional
	Phase string `json:"phase,omitempty"`

	// APIEndpoint is the URL of the cluster's API server, https://host:port, written by the provider.
	// +optional
	APIEndpoint string `json:"apiEndpoint,omitempty"`

	// KubeconfigSecretRef is the name of the Secret whose key value holds the cluster's kubeconfig, written by the
	// provider. Until it is there, a cluster that is not of kind AttachedCluster cannot be reached.
	// +optional
	KubeconfigSecretRef string `json:"kubeconfigSecretRef,omitempty"`

	// ServiceAccountIssuer is the URL that signs the tokens of the cluster's service accounts, written by the provider.
	// +optional
	ServiceAccountIssuer string `json:"serviceAccountIssuer,omitempty"`
}

// Cluster is a cluster that exists, or that a provider makes.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories={fluxcd,kurator-dev}
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/substitute=disabled"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status"
// +kubebuilder:printcolumn:name="Kind",type="string",JSONPath=".spec.kind"
// +kubebuilder:printcolumn:name="Version",type="string",JSONPath=".status.kubernetesVersion"
// +kubebuilder:printcolumn:name="Nodes",type="integer",JSONPath=".status.nodes"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Status",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].message"
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name of a Cluster becomes a label value and must have at most 63 characters"
type Cluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec ClusterSpec `json:"spec,omitzero"`
	// +kubebuilder:default={"observedGeneration":-1}
	Status ClusterStatus `json:"status,omitempty"`
}

// GetConditions returns the conditions of the status.
func (c *Cluster) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions replaces the conditions of the status.
func (c *Cluster) SetConditions(v []metav1.Condition) { c.Status.Conditions = v }

// PodCIDRs returns the address ranges of the cluster's pods, in whichever form they were written; none if they were not.
func (s *ClusterSpec) PodCIDRs() []string {
	if s.Network == nil {
		return nil
	}
	return s.cidrs(s.Network.PodCIDRs, s.Network.PodCIDR)
}

// ServiceCIDRs returns the address ranges of the cluster's Services, in whichever form they were written; none if they
// were not.
func (s *ClusterSpec) ServiceCIDRs() []string {
	if s.Network == nil {
		return nil
	}
	return s.cidrs(s.Network.ServiceCIDRs, s.Network.ServiceCIDR)
}

// cidrs chooses between Kurator's list and the single field. The API server fills the list with its default in a Cluster
// with kind too, where it says nothing about the cluster.
func (s *ClusterSpec) cidrs(list []string, single string) []string {
	if s.Kind == "" {
		return list
	}
	return strings.FieldsFunc(single, func(r rune) bool { return r == ',' || r == ' ' })
}

// ClusterList is a list of Clusters.
// +kubebuilder:object:root=true
type ClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Cluster `json:"items"`
}
