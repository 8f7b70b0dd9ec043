package v1alpha1

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// FleetPlugins says which plugins the members of a fleet run. A plugin that is left out is not installed; one that is
// written, even as {}, is.
type FleetPlugins struct {
	// Metric collects metrics on every member with Prometheus and makes them one view with Thanos.
	// +nullable
	// +optional
	Metric *MetricPlugin `json:"metric,omitempty"`

	// Grafana shows the fleet's metrics in dashboards. It runs beside the fleet, on the hub.
	// +nullable
	// +optional
	Grafana *GrafanaPlugin `json:"grafana,omitempty"`

	// Policy checks what is created on the members.
	// +nullable
	// +optional
	Policy *PolicyPlugin `json:"policy,omitempty"`

	// Backup installs Velero on every member, for Backup, Restore and Migrate.
	// +optional
	Backup *BackupPlugin `json:"backup,omitempty"`

	// DistributedStorage runs Ceph on the disks of every member, with Rook.
	// +optional
	DistributedStorage *DistributedStoragePlugin `json:"distributedStorage,omitempty"`

	// Flagger installs what the rollouts of Applications need.
	// +optional
	Flagger *FlaggerPlugin `json:"flagger,omitempty"`

	// Submariner connects the pod and service networks of the members. It needs at least two members.
	// +optional
	Submariner *SubmarinerPlugin `json:"submariner,omitempty"`
}

// PluginChart adjusts one Helm chart of a plugin.
type PluginChart struct {
	// Chart replaces where the chart comes from, or its version. What is left out keeps the plugin's own setting.
	// +optional
	Chart *ChartOverride `json:"chart,omitempty"`

	// ExtraArgs are chart values, merged over those that the plugin sets; false, 0 and "" count as values too.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	ExtraArgs *apiextensionsv1.JSON `json:"extraArgs,omitempty"`
}

// ChartOverride replaces parts of where a chart comes from.
type ChartOverride struct {
	// Repository is the URL of the chart repository: https://..., or oci://... without the chart's name.
	// +optional
	Repository string `json:"repository,omitempty"`

	// Name of the chart in the repository.
	// +optional
	Name string `json:"name,omitempty"`

	// Version of the chart: one version, or a semver range such as 1.x.
	// +optional
	Version string `json:"version,omitempty"`
}

// What is empty comes as null out of a server-side apply that takes its last field away, and is written so by some: it is
// there all the same.

// UnmarshalJSON takes a null for an empty plugin.
func (p *FleetPlugins) UnmarshalJSON(b []byte) error {
	type plain FleetPlugins
	return unmarshalEmpty(b, (*plain)(p), "metric", "grafana", "policy")
}

// UnmarshalJSON takes a null for an empty field.
func (p *PolicyPlugin) UnmarshalJSON(b []byte) error {
	type plain PolicyPlugin
	return unmarshalEmpty(b, (*plain)(p), "kyverno")
}

// UnmarshalJSON takes a null for an empty field.
func (p *KyvernoPlugin) UnmarshalJSON(b []byte) error {
	type plain KyvernoPlugin
	return unmarshalEmpty(b, (*plain)(p), "podSecurity")
}

// UnmarshalJSON takes a null for an empty field.
func (p *MetricPlugin) UnmarshalJSON(b []byte) error {
	type plain MetricPlugin
	return unmarshalEmpty(b, (*plain)(p), "prometheus")
}

func unmarshalEmpty(b []byte, into any, keys ...string) error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	for _, key := range keys {
		if string(raw[key]) == "null" {
			raw[key] = json.RawMessage("{}")
		}
	}
	b, err := json.Marshal(raw)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

// PluginOptions are what every plugin has.
type PluginOptions struct {
	// Components adjusts the charts of the plugin by the names of its components; fleetwright plugin list has them.
	// +optional
	Components map[string]PluginChart `json:"components,omitempty"`

	// DeletionPolicy says what happens to the plugin on a member that leaves, or when the plugin is taken out: Delete
	// uninstalls it, Orphan leaves it running. Left out, it is what the plugin says: Orphan for backup and distributedStorage,
	// and else Delete.
	// +kubebuilder:validation:Enum=Delete;Orphan
	// +optional
	DeletionPolicy string `json:"deletionPolicy,omitempty"`
}

// FleetPlugin is a plugin that is registered by a PluginConfig.
type FleetPlugin struct {
	// Name of the plugin.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`

	// Config are the plugin's parameters, over those in the PluginConfig.
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Config *apiextensionsv1.JSON `json:"config,omitempty"`

	PluginOptions `json:",inline"`
}

// Volume asks for a disk.
type Volume struct {
	// Size of the disk, 50Gi say.
	// +kubebuilder:validation:Pattern=`^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?$`
	// +required
	Size string `json:"size"`

	// StorageClassName is the class of the disk. Left out, it is the default of the cluster.
	// +optional
	StorageClassName string `json:"storageClassName,omitempty"`
}

// MetricPlugin collects and joins the members' metrics.
type MetricPlugin struct {
	PluginOptions `json:",inline"`

	// Thanos runs on the hub and answers queries over all members.
	// +optional
	Thanos *ThanosPlugin `json:"thanos,omitempty"`

	// Prometheus runs on every member, with a Thanos sidecar.
	// +nullable
	// +optional
	Prometheus *PrometheusPlugin `json:"prometheus,omitempty"`
}

// ThanosPlugin configures Thanos.
type ThanosPlugin struct {
	PluginChart `json:",inline"`

	// ObjectStoreConfig names the object store that keeps the metrics of all members.
	// +required
	ObjectStoreConfig ObjectStoreConfig `json:"objectStoreConfig"`

	// Endpoints are further sources of metrics that Thanos asks, host:port each, beside the members' Prometheus.
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Endpoints []string `json:"endpoints,omitempty"`

	// Retention is how long metrics are kept in the object store, 90d say. Left out, they are kept for ever.
	// +kubebuilder:validation:Pattern=`^[0-9]+(d|w|y)$`
	// +optional
	Retention string `json:"retention,omitempty"`

	// Storage is a disk each for what reads the object store and what compacts it. Left out, they use the node's disk,
	// and start anew with each pod.
	// +optional
	Storage *Volume `json:"storage,omitempty"`
}

// ObjectStoreConfig names the object store for metrics.
type ObjectStoreConfig struct {
	// SecretName is a Secret in the fleet's namespace whose key objstore.yml holds the store in Thanos' own format,
	// see https://thanos.io/tip/thanos/storage.md/.
	// +required
	SecretName string `json:"secretName"`
}

// PrometheusPlugin configures the Prometheus of every member.
type PrometheusPlugin struct {
	PluginChart `json:",inline"`

	// NodeExporter reports the metrics of the nodes.
	// +optional
	NodeExporter *Exporter `json:"nodeExporter,omitempty"`

	// KubeStateMetrics reports the state of Kubernetes objects.
	// +optional
	KubeStateMetrics *Exporter `json:"kubeStateMetrics,omitempty"`

	// External lets Thanos, on the hub, ask the Prometheus of each member for the metrics that are not in the object store
	// yet: the last two hours. Left out, nothing of a member is served outside of it, and Thanos knows what is in the store.
	// +optional
	External *ExternalService `json:"external,omitempty"`

	// Retention is how long a member's Prometheus keeps metrics itself, 24h say. Defaults to 24h.
	// +kubebuilder:validation:Pattern=`^[0-9]+(m|h|d|w|y)$`
	// +optional
	Retention string `json:"retention,omitempty"`

	// Replicas of Prometheus on each member. Defaults to 1.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9
	// +optional
	Replicas int `json:"replicas,omitempty"`

	// Storage is a disk for each Prometheus. Left out, it uses the node's disk, and what is not in the object store yet is
	// lost with the pod.
	// +optional
	Storage *Volume `json:"storage,omitempty"`
}

// ExternalService is a Service of type LoadBalancer on every member. It speaks unencrypted, and asks nobody who they are.
type ExternalService struct {
	// SourceRanges are the addresses that may connect, CIDRs: those of the hub.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +required
	SourceRanges []string `json:"sourceRanges"`

	// Annotations for the Service, which cloud providers take for settings: one for an internal load balancer, say.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Exporter turns a source of metrics on or off.
type Exporter struct {
	// Enabled installs the exporter. Left out, the chart's default holds, which is to install it.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
}

// GrafanaPlugin configures Grafana.
type GrafanaPlugin struct {
	PluginChart   `json:",inline"`
	PluginOptions `json:",inline"`

	// AdminSecretName is a Secret in the fleet's namespace with the keys admin-user and admin-password. Left out, a random
	// password is made, and kept in the Secret <fleet>-grafana.
	// +optional
	AdminSecretName string `json:"adminSecretName,omitempty"`

	// Storage is a disk for what is made in Grafana itself. Left out, dashboards made there are lost with the pod.
	// +optional
	Storage *Volume `json:"storage,omitempty"`
}

// PolicyPlugin chooses the policy engine.
type PolicyPlugin struct {
	PluginOptions `json:",inline"`

	// Kyverno installs Kyverno on every member.
	// +nullable
	// +optional
	Kyverno *KyvernoPlugin `json:"kyverno,omitempty"`
}

// KyvernoPlugin configures Kyverno.
type KyvernoPlugin struct {
	PluginChart `json:",inline"`

	// PodSecurity installs policies for the Pod Security Standards. Left out, there are none, only the engine.
	// +nullable
	// +optional
	PodSecurity *PodSecurityPolicy `json:"podSecurity,omitempty"`
}

// PodSecurityPolicy says how pods are checked.
type PodSecurityPolicy struct {
	// Standard is the Pod Security Standard that pods are held to. Defaults to baseline.
	// +kubebuilder:validation:Enum=privileged;baseline;restricted
	// +kubebuilder:default=baseline
	// +optional
	Standard string `json:"standard,omitempty"`

	// Severity is how serious a violation is called in policy reports. Defaults to medium.
	// +kubebuilder:validation:Enum=low;medium;high
	// +kubebuilder:default=medium
	// +optional
	Severity string `json:"severity,omitempty"`

	// ValidationFailureAction is what happens to a pod that violates the standard: Audit lets it in and reports it,
	// Enforce refuses it. Defaults to Audit.
	// +kubebuilder:validation:Enum=Enforce;Audit
	// +kubebuilder:default=Audit
	// +optional
	ValidationFailureAction string `json:"validationFailureAction,omitempty"`

	// PolicyType is the kind of policies: ValidatingPolicy, which is based on CEL, or ClusterPolicy, which Kyverno has
	// deprecated. Defaults to ValidatingPolicy.
	// +kubebuilder:validation:Enum=ClusterPolicy;ValidatingPolicy
	// +optional
	PolicyType string `json:"policyType,omitempty"`

	// ExcludeNamespaces lists namespaces that the policies leave alone, beside those of the system, of Flux, and of the
	// fleet's plugins.
	// +kubebuilder:validation:MaxItems=256
	// +optional
	ExcludeNamespaces []string `json:"excludeNamespaces,omitempty"`
}

// BackupPlugin configures Velero.
type BackupPlugin struct {
	PluginChart   `json:",inline"`
	PluginOptions `json:",inline"`

	// Storage is where the backups are kept.
	// +required
	Storage BackupStorage `json:"storage"`
}

// BackupStorage is an object store for backups.
type BackupStorage struct {
	// Location of the object store.
	// +required
	Location BackupStorageLocation `json:"location"`

	// SecretName is a Secret in the fleet's namespace that opens the store. For S3 and what speaks S3 (MinIO, Huawei
	// Cloud OBS) it has the keys access-key and secret-key; for other providers what their Velero plugin asks for.
	// +required
	SecretName string `json:"secretName"`
}

// BackupStorageLocation says where an object store is.
type BackupStorageLocation struct {
	// Bucket is the name of the bucket.
	// +required
	Bucket string `json:"bucket"`

	// Prefix of the paths in the bucket. Members that write to one bucket and prefix overwrite each other's backups, so it
	// has to differ between them: << .cluster.name >> stands for the member. Defaults to
	// << .application.namespace >>/<< .cluster.name >>.
	// +optional
	Prefix string `json:"prefix,omitempty"`

	// Provider of the store: aws (and what speaks S3), huaweicloud, gcp or azure.
	// +required
	Provider string `json:"provider"`

	// Endpoint is the URL of the store.
	// +required
	Endpoint string `json:"endpoint"`

	// Region the bucket is in.
	// +optional
	Region string `json:"region,omitempty"`

	// Config is passed to the backup storage location of Velero; which keys there are depends on the provider,
	// s3ForcePathStyle or insecureSkipTLSVerify say.
	// +optional
	Config map[string]string `json:"config,omitempty"`
}

// DistributedStoragePlugin configures Rook and the Ceph cluster of every member.
type DistributedStoragePlugin struct {
	PluginChart   `json:",inline"`
	PluginOptions `json:",inline"`

	// Storage describes the Ceph cluster.
	// +required
	Storage CephStorage `json:"storage"`
}

// CephStorage describes the Ceph cluster of every member.
type CephStorage struct {
	// DataDirHostPath is the folder on the nodes that holds configuration and state, /var/lib/rook say. Empty it by
	// hand before a new cluster is made on nodes that had one.
	// +kubebuilder:validation:Pattern=`^/(\S+)`
	// +optional
	DataDirHostPath string `json:"dataDirHostPath,omitempty"`

	// Monitor describes the daemons that keep the cluster's map and its quorum.
	// +nullable
	// +optional
	Monitor *CephMonitor `json:"monitor,omitempty"`

	// Manager describes the daemons that serve metrics and other interfaces.
	// +nullable
	// +optional
	Manager *CephManager `json:"manager,omitempty"`

	// Storage says which nodes and disks hold the data.
	// +nullable
	// +optional
	Storage *CephDisks `json:"storage,omitempty"`
}

// CephMonitor describes Ceph's monitors.
type CephMonitor struct {
	// Count of monitors, best an odd number. Defaults to 3.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9
	// +optional
	Count int `json:"count,omitempty"`

	CephDaemon `json:",inline"`
}

// CephManager describes Ceph's managers.
type CephManager struct {
	// Count of managers: one that works, and one in reserve. Defaults to 2.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2
	// +optional
	Count int `json:"count,omitempty"`

	CephDaemon `json:",inline"`
}

// CephDaemon says how the pods of a kind of daemon are made.
type CephDaemon struct {
	// Annotations are added to the pods and Deployments.
	// +nullable
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`

	// Labels are added to the pods and Deployments.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +nullable
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// Placement says on which nodes the pods may run.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +nullable
	// +optional
	Placement *CephPlacement `json:"placement,omitempty"`
}

// CephPlacement says on which nodes pods may run.
type CephPlacement struct {
	// NodeAffinity chooses nodes by their labels.
	// +optional
	NodeAffinity *corev1.NodeAffinity `json:"nodeAffinity,omitempty"`

	// PodAffinity puts the pods near others.
	// +optional
	PodAffinity *corev1.PodAffinity `json:"podAffinity,omitempty"`

	// PodAntiAffinity keeps the pods away from others.
	// +optional
	PodAntiAffinity *corev1.PodAntiAffinity `json:"podAntiAffinity,omitempty"`

	// Tolerations are the node taints that the pods put up with.
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// TopologySpreadConstraints spread the pods over zones or nodes.
	// +optional
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`
}

// CephDisks says which nodes and disks hold data.
type CephDisks struct {
	// UseAllNodes uses every node of the member. Leave it out, or false, where nodes are listed. Defaults to false.
	// +optional
	UseAllNodes bool `json:"useAllNodes,omitempty"`

	// Nodes lists the nodes to use.
	// +nullable
	// +optional
	Nodes []CephNode `json:"nodes,omitempty"`

	// Devices lists the disks to use on every node that lists none itself.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +nullable
	// +optional
	Devices []CephDevice `json:"devices,omitempty"`
}

// CephNode is a node that holds data.
// +kubebuilder:pruning:PreserveUnknownFields
type CephNode struct {
	// Name of the node, as in its label kubernetes.io/hostname.
	// +optional
	Name string `json:"name,omitempty"`

	// Devices lists the disks of this node to use.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +nullable
	// +optional
	Devices []CephDevice `json:"devices,omitempty"`
}

// CephDevice is a disk.
type CephDevice struct {
	// Name of the disk: sda, or /dev/disk/by-id/... which survives a reboot.
	// +optional
	Name string `json:"name,omitempty"`

	// Config is passed to Rook for this disk, deviceClass or osdsPerDevice say.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +nullable
	// +optional
	Config map[string]string `json:"config,omitempty"`
}

// FlaggerPlugin configures Flagger and what shifts the traffic for it.
type FlaggerPlugin struct {
	PluginChart   `json:",inline"`
	PluginOptions `json:",inline"`

	// TrafficRoutingProvider shifts the traffic in a rollout: gatewayapi, traefik, istio, kuma or nginx. Traefik, Kuma and
	// nginx are installed; Istio, or what implements the Gateway API, has to be there already. Nginx is ingress-nginx,
	// which is retired since March 2026: choose another one for what is new.
	// +kubebuilder:validation:MaxLength=32
	// +required
	TrafficRoutingProvider string `json:"trafficRoutingProvider"`

	// ProviderConfig adjusts the chart of the traffic routing provider, where Fleetwright installs it.
	// +optional
	ProviderConfig *PluginChart `json:"config,omitempty"`

	// PublicTestloader installs one load tester for each member that all rollouts can use. Defaults to false.
	// +optional
	PublicTestloader bool `json:"publicTestloader,omitempty"`
}

// SubmarinerPlugin configures the network between members. The keys of its maps are names of members.
type SubmarinerPlugin struct {
	PluginChart   `json:",inline"`
	PluginOptions `json:",inline"`

	// ClusterCIDRs is the pod CIDR of each member.
	// +required
	ClusterCIDRs map[string]string `json:"clusterCidrs"`

	// ServiceCIDRs is the service CIDR of each member.
	// +required
	ServiceCIDRs map[string]string `json:"serviceCidrs"`

	// GlobalCIDRs gives each member a range of its own, so that pod and service CIDRs may overlap (Globalnet). The
	// ranges must not overlap. Left out, there is no Globalnet.
	// +optional
	GlobalCIDRs map[string]string `json:"globalcidrs,omitempty"`

	// BrokerCluster is the member that runs the broker, through which the members find each other. Defaults to the
	// first member of the fleet.
	// +optional
	BrokerCluster string `json:"brokerCluster,omitempty"`

	// BrokerServer is the address of the broker's API server that the members reach, host:port without a scheme. Left
	// out, it is the one in the broker's kubeconfig.
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9.\-\[\]:]+:[0-9]+$`
	// +optional
	BrokerServer string `json:"brokerServer,omitempty"`
}
