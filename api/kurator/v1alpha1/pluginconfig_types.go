package v1alpha1

import (
	"slices"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PluginConfigKind is the kind of a PluginConfig.
const PluginConfigKind = "PluginConfig"

// PluginConfigSpec lists plugins from outside, which Fleets of the namespace may use.
type PluginConfigSpec struct {
	// Plugins are made known to the Fleets of the namespace, which use them by name in spec.plugins.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	Plugins []PluginSource `json:"plugins,omitempty"`

	// Interval is how often images are looked for anew, where they say no interval of their own. Defaults to 10m.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	Interval *metav1.Duration `json:"interval,omitempty"`

	// Suspend stops Fleetwright from acting on the PluginConfig: what the Fleets use stays as it is, and no other revision is
	// taken.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// Has says whether a plugin of a name is listed.
func (s *PluginConfigSpec) Has(name string) bool {
	return slices.ContainsFunc(s.Plugins, func(p PluginSource) bool { return p.Name == name })
}

// PluginSource says where a plugin comes from.
// +kubebuilder:validation:XValidation:rule="has(self.image) != has(self.sourceRef)",message="a plugin needs exactly one of image (an OCI artifact) and sourceRef (a Flux source)"
// +kubebuilder:validation:XValidation:rule="has(self.image) || !(has(self.verify) || has(self.secretRef) || has(self.interval) || has(self.insecure))",message="verify, secretRef, interval and insecure are for an image: set them in the source that sourceRef names"
type PluginSource struct {
	// Name of the plugin, by which Fleets use it. It has to be the metadata.name in the plugin.yaml.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$"
	// +required
	Name string `json:"name"`

	// Type is free text, as in Kurator. It is shown, and has no effect.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Type string `json:"type,omitempty"`

	// Image is an OCI artifact with the files of the plugin, which Flux fetches: registry/repository:tag, or
	// registry/repository@sha256:... It is data, made with flux push artifact say; nothing in it is ever run.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^(oci://)?[a-zA-Z0-9][-a-zA-Z0-9.]*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+(:[a-zA-Z0-9_][-a-zA-Z0-9_.]{0,127})?(@sha256:[a-f0-9]{64})?$')",message="an image is registry/repository:tag or registry/repository@sha256:..."
	// +optional
	Image string `json:"image,omitempty"`

	// Verify says how Flux verifies the signature of the image. What is not verified is not used.
	// +optional
	Verify *sourcev1.OCIRepositoryVerification `json:"verify,omitempty"`

	// SecretRef names a Secret of type kubernetes.io/dockerconfigjson, of the same namespace, with the login for the registry.
	// +optional
	SecretRef *meta.LocalObjectReference `json:"secretRef,omitempty"`

	// Interval is how often the image is looked for anew. Defaults to spec.interval.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	Interval *metav1.Duration `json:"interval,omitempty"`

	// Insecure allows a registry without TLS.
	// +optional
	Insecure bool `json:"insecure,omitempty"`

	// SourceRef names a Flux source of the same namespace with the files of the plugin.
	// +optional
	SourceRef *PluginSourceReference `json:"sourceRef,omitempty"`

	// Path of the folder with the plugin.yaml. Defaults to the root of what was fetched.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && self.split('/').all(p, p != '..')",message="path is relative, and has no .. in it"
	// +optional
	Path string `json:"path,omitempty"`

	// Config are parameters of the plugin, under those that a Fleet says.
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Config *apiextensionsv1.JSON `json:"config,omitempty"`
}

// PluginSourceReference names a Flux source.
type PluginSourceReference struct {
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

// PluginConfigStatus is what was seen of a PluginConfig.
type PluginConfigStatus struct {
	meta.ReconcileRequestStatus `json:",inline"`

	// ObservedGeneration is the generation of the spec that the rest of the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions: Ready, Reconciling and Stalled as in Flux, and Suspended.
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Plugins says how each plugin is.
	// +listType=map
	// +listMapKey=name
	// +optional
	Plugins []PluginSourceStatus `json:"plugins,omitempty"`

	// Summary is ready/total, for people.
	// +optional
	Summary string `json:"summary,omitempty"`
}

// PluginSourceStatus says how a plugin is.
type PluginSourceStatus struct {
	// Name of the plugin.
	Name string `json:"name"`

	// Type as declared.
	// +optional
	Type string `json:"type,omitempty"`

	// Ready is True, False or Unknown.
	Ready string `json:"ready"`

	// Revision that Fleets use; empty while they cannot use any.
	// +optional
	Revision string `json:"revision,omitempty"`

	// Message says what is wrong and what to do, or what is waited for.
	// +optional
	Message string `json:"message,omitempty"`
}

// PluginConfig makes plugins from outside known to the Fleets of its namespace. A plugin is data: it says what Flux is to
// install, and nothing in it is run on the hub.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories={fluxcd,kurator-dev}
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/substitute=disabled"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status"
// +kubebuilder:printcolumn:name="Plugins",type="string",JSONPath=".status.summary"
// +kubebuilder:printcolumn:name="Suspended",type="string",JSONPath=".status.conditions[?(@.type==\"Suspended\")].status"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Status",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].message"
type PluginConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PluginConfigSpec `json:"spec,omitempty"`
	// +kubebuilder:default={"observedGeneration":-1}
	Status PluginConfigStatus `json:"status,omitempty"`
}

// GetConditions returns the conditions of the status.
func (c *PluginConfig) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions replaces the conditions of the status.
func (c *PluginConfig) SetConditions(conditions []metav1.Condition) {
	c.Status.Conditions = conditions
}

// PluginConfigList is a list of PluginConfigs.
// +kubebuilder:object:root=true
type PluginConfigList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PluginConfig `json:"items"`
}
