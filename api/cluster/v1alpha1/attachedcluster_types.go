package v1alpha1

import (
	"github.com/fluxcd/pkg/apis/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AttachedClusterKind and ClusterKind are the kinds of members.
const (
	AttachedClusterKind = "AttachedCluster"
	ClusterKind         = "Cluster"
)

// DefaultKubeconfigKey is the key of a kubeconfig Secret where none is given, as in Cluster API and Flux.
const DefaultKubeconfigKey = "value"

// AttachedClusterSpec says how a cluster that exists is reached.
// +kubebuilder:validation:XValidation:rule="has(self.kubeconfig) != has(self.configMapRef)",message="an AttachedCluster needs exactly one of kubeconfig (a Secret) and configMapRef (a ConfigMap for access without a secret)"
type AttachedClusterSpec struct {
	// Kubeconfig names the Secret with the kubeconfig of the cluster.
	// +optional
	Kubeconfig *KubeconfigReference `json:"kubeconfig,omitempty"`

	// ConfigMapRef names a ConfigMap for access without a secret, with the keys of Flux's kubeConfig.configMapRef
	// (provider, cluster, address, ca.crt, audiences, serviceAccountName).
	// +optional
	ConfigMapRef *meta.LocalObjectReference `json:"configMapRef,omitempty"`

	// HealthCheck says how often the cluster is looked at.
	// +optional
	HealthCheck *HealthCheck `json:"healthCheck,omitempty"`
}

// KubeconfigReference names a Secret in the same namespace.
type KubeconfigReference struct {
	// Name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`

	// Key in the Secret. Defaults to value.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern="^[-._a-zA-Z0-9]+$"
	// +kubebuilder:default=value
	// +optional
	Key string `json:"key,omitempty"`
}

// HealthCheck says how a member is looked at.
type HealthCheck struct {
	// Interval between two looks, give or take the controller's jitter. Defaults to 5m; at least 5s.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	Interval *metav1.Duration `json:"interval,omitempty"`

	// Timeout of one look. Defaults to 10s.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
}

// MemberHealth is what was seen of a member; part of the status of AttachedCluster and Cluster.
type MemberHealth struct {
	meta.ReconcileRequestStatus `json:",inline"`

	// ObservedGeneration is the generation of the spec that the rest of the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions: Ready says whether Flux can reach the member, Reconciling and Stalled are as in Flux.
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Ready says whether the member was reached, as in Kurator.
	// +optional
	Ready bool `json:"ready,omitempty"`

	// KubernetesVersion of the member's API server, v1.36.3 say.
	// +optional
	KubernetesVersion string `json:"kubernetesVersion,omitempty"`

	// Nodes is the number of the member's nodes, where the credentials may list them.
	// +optional
	Nodes *int64 `json:"nodes,omitempty"`

	// ClusterID is the UID of the member's kube-system namespace, where the credentials may read it. A member that
	// answers with another one is another cluster: it is not ready until the AttachedCluster or Cluster is made anew.
	// +optional
	ClusterID string `json:"clusterID,omitempty"`

	// CredentialsExpireAt is when the client certificate of the kubeconfig expires; absent where it has none.
	// +optional
	CredentialsExpireAt *metav1.Time `json:"credentialsExpireAt,omitempty"`
}

// AttachedClusterStatus is what was seen of an AttachedCluster.
type AttachedClusterStatus struct {
	MemberHealth `json:",inline"`
}

// AttachedCluster is a cluster that exists and is reached through a kubeconfig.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories={fluxcd,kurator-dev}
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/substitute=disabled"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status"
// +kubebuilder:printcolumn:name="Version",type="string",JSONPath=".status.kubernetesVersion"
// +kubebuilder:printcolumn:name="Nodes",type="integer",JSONPath=".status.nodes"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Status",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].message"
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name of an AttachedCluster becomes a label value and must have at most 63 characters"
type AttachedCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec AttachedClusterSpec `json:"spec,omitempty"`
	// +kubebuilder:default={"observedGeneration":-1}
	Status AttachedClusterStatus `json:"status,omitempty"`
}

// GetConditions returns the conditions of the status.
func (c *AttachedCluster) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions replaces the conditions of the status.
func (c *AttachedCluster) SetConditions(v []metav1.Condition) { c.Status.Conditions = v }

// AttachedClusterList is a list of AttachedClusters.
// +kubebuilder:object:root=true
type AttachedClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AttachedCluster `json:"items"`
}
