package v1alpha1

import (
	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/apis/meta"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kustomization is the spec of a Flux Kustomization, without what Fleetwright sets: sourceRef and kubeConfig.
// The fields mean what they mean in Flux: https://fluxcd.io/flux/components/kustomize/kustomizations/
type Kustomization struct {
	// CommonMetadata are labels and annotations for every applied object.
	// +optional
	CommonMetadata *kustomizev1.CommonMetadata `json:"commonMetadata,omitempty"`

	// DependsOn lists Kustomizations that must be ready first. A name that is one of the Application's policies means
	// that policy's Kustomization for the same member; any other name is taken as it is.
	// +optional
	DependsOn []meta.DependencyReference `json:"dependsOn,omitempty"`

	// Decryption of SOPS-encrypted Secrets. What it refers to is on the hub, in the Application's namespace.
	// +optional
	Decryption *kustomizev1.Decryption `json:"decryption,omitempty"`

	// Interval at which Flux compares and corrects. Defaults to 10m; 0s means the default.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	Interval *metav1.Duration `json:"interval,omitempty"`

	// RetryInterval after a failure. Defaults to interval.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	RetryInterval *metav1.Duration `json:"retryInterval,omitempty"`

	// Path in the source of the kustomization.yaml or the plain manifests. Defaults to the root.
	// +optional
	Path string `json:"path,omitempty"`

	// PostBuild substitutes variables in what was built. Since Flux 2.9 an undefined variable is an error.
	// +optional
	PostBuild *kustomizev1.PostBuild `json:"postBuild,omitempty"`

	// Prune removes from the member what is no longer in the source, and everything when the member leaves.
	// Defaults to true.
	// +kubebuilder:default=true
	// +optional
	Prune *bool `json:"prune,omitempty"`

	// DeletionPolicy of the Kustomization. Defaults to MirrorPrune, or to Orphan where the Application's is Orphan.
	// +kubebuilder:validation:Enum=MirrorPrune;Delete;WaitForTermination;Orphan
	// +optional
	DeletionPolicy string `json:"deletionPolicy,omitempty"`

	// HealthChecks lists objects on the member whose health counts.
	// +optional
	HealthChecks []meta.NamespacedObjectKindReference `json:"healthChecks,omitempty"`

	// NamePrefix for the names of all objects.
	// +kubebuilder:validation:MaxLength=200
	// +optional
	NamePrefix string `json:"namePrefix,omitempty"`

	// NameSuffix for the names of all objects.
	// +kubebuilder:validation:MaxLength=200
	// +optional
	NameSuffix string `json:"nameSuffix,omitempty"`

	// Patches to what is built, strategic merge or JSON 6902.
	// +optional
	Patches []kustomize.Patch `json:"patches,omitempty"`

	// Images replaces names, tags and digests of images.
	// +optional
	Images []kustomize.Image `json:"images,omitempty"`

	// ServiceAccountName to impersonate on the member, in the namespace there that is named like the Application's.
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// Suspend creates the Kustomization suspended, and keeps it so while it is set here. Left out or false it is never
	// written, so that flux suspend and flux resume have the say.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// TargetNamespace for all namespaced objects. It has to exist on the member.
	// +optional
	TargetNamespace string `json:"targetNamespace,omitempty"`

	// Timeout of validation, apply and health checks. Defaults to interval.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// Force recreates objects whose immutable fields change.
	// +optional
	Force bool `json:"force,omitempty"`

	// Wait for the health of everything that was applied.
	// +optional
	Wait bool `json:"wait,omitempty"`

	// BuildMetadata adds kustomize's build metadata.
	// +optional
	BuildMetadata []kustomizev1.BuildMetadataOption `json:"buildMetadata,omitempty"`

	// Components are paths of kustomize Components, relative to path.
	// +optional
	Components []string `json:"components,omitempty"`

	// IgnoreMissingComponents leaves out components whose path does not exist.
	// +optional
	IgnoreMissingComponents bool `json:"ignoreMissingComponents,omitempty"`

	// HealthCheckExprs are CEL expressions for the health of custom resources.
	// +optional
	HealthCheckExprs []kustomize.CustomHealthCheck `json:"healthCheckExprs,omitempty"`

	// Ignore lists JSON pointers that drift detection and apply leave alone.
	// +optional
	Ignore []kustomizev1.IgnoreRule `json:"ignore,omitempty"`
}

// KustomizationOverride changes a kustomization for some members.
type KustomizationOverride struct {
	// Path replaces the path.
	// +optional
	Path string `json:"path,omitempty"`

	// Components are added after the policy's.
	// +optional
	Components []string `json:"components,omitempty"`

	// Patches are added after the policy's.
	// +optional
	Patches []kustomize.Patch `json:"patches,omitempty"`

	// Images replace the policy's images of the same name, and add the others.
	// +optional
	Images []kustomize.Image `json:"images,omitempty"`

	// TargetNamespace replaces the target namespace.
	// +optional
	TargetNamespace string `json:"targetNamespace,omitempty"`

	// PostBuild adds substitutions: a variable of the same name is replaced, substituteFrom is added after the policy's,
	// and a substituteStrategy replaces the policy's.
	// +optional
	PostBuild *kustomizev1.PostBuild `json:"postBuild,omitempty"`
}

// HelmRelease is the spec of a Flux HelmRelease, without what Fleetwright sets: chartRef and kubeConfig.
// The fields mean what they mean in Flux: https://fluxcd.io/flux/components/helm/helmreleases/
type HelmRelease struct {
	// Chart is the chart to take from the source. Left out where the source is the chart itself (ociRepository, or a
	// sourceRef to an OCIRepository, HelmChart or ExternalArtifact).
	// +optional
	Chart *HelmChartTemplate `json:"chart,omitempty"`

	// ChartKind is how a chart of a helmRepository of type oci is fetched. OCIRepository is Flux's present way, and the
	// default; helm-controller then adds the artifact's digest to the chart version, so that labels with the chart
	// version (helm.sh/chart) change and pods may restart. HelmChart keeps the version as it is.
	// +kubebuilder:validation:Enum=OCIRepository;HelmChart
	// +optional
	ChartKind string `json:"chartKind,omitempty"`

	// Interval at which Flux looks at the release. Defaults to 10m; 0s means the default.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	Interval *metav1.Duration `json:"interval,omitempty"`

	// Suspend creates the HelmRelease suspended, and keeps it so while it is set here. Left out or false it is never
	// written, so that flux suspend and flux resume have the say.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// ReleaseName of the Helm release on the member, at most 53 characters. Defaults to <application>-<policy>.
	// +optional
	ReleaseName string `json:"releaseName,omitempty"`

	// TargetNamespace of the release on the member, created if it does not exist. Defaults to the Application's namespace.
	// +optional
	TargetNamespace string `json:"targetNamespace,omitempty"`

	// StorageNamespace on the member, where Helm keeps its release Secrets. Defaults to targetNamespace.
	// +optional
	StorageNamespace string `json:"storageNamespace,omitempty"`

	// DependsOn lists HelmReleases that must be ready first. A name that is one of the Application's policies means
	// that policy's HelmRelease for the same member; any other name is taken as it is.
	// +optional
	DependsOn []meta.DependencyReference `json:"dependsOn,omitempty"`

	// Timeout of one Kubernetes operation of a Helm action. Defaults to 5m.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// MaxHistory is the number of revisions that Helm keeps; 0 for all. Defaults to 5.
	// +optional
	MaxHistory *int `json:"maxHistory,omitempty"`

	// ServiceAccountName to impersonate on the member, in the namespace there that is named like the Application's.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// PersistentClient uses one client for the whole of a reconciliation. Defaults to true.
	// +optional
	PersistentClient *bool `json:"persistentClient,omitempty"`

	// DriftDetection finds and corrects changes made on the member. Its mode defaults to enabled.
	// +optional
	DriftDetection *helmv2.DriftDetection `json:"driftDetection,omitempty"`

	// Install says how Helm installs. Without a strategy or remediation here, a failed install is retried.
	// +optional
	Install *helmv2.Install `json:"install,omitempty"`

	// Upgrade says how Helm upgrades. Without a strategy or remediation here, a failed upgrade is retried.
	// +optional
	Upgrade *helmv2.Upgrade `json:"upgrade,omitempty"`

	// Test says whether and how Helm tests run.
	// +optional
	Test *helmv2.Test `json:"test,omitempty"`

	// Rollback says how Helm rolls back.
	// +optional
	Rollback *helmv2.Rollback `json:"rollback,omitempty"`

	// Uninstall says how Helm uninstalls.
	// +optional
	Uninstall *helmv2.Uninstall `json:"uninstall,omitempty"`

	// ValuesFrom lists Secrets and ConfigMaps with values, on the hub in the Application's namespace.
	// +optional
	ValuesFrom []meta.ValuesReference `json:"valuesFrom,omitempty"`

	// Values for the chart.
	// +optional
	Values *apiextensionsv1.JSON `json:"values,omitempty"`

	// CommonMetadata are labels and annotations for every applied object.
	// +optional
	CommonMetadata *helmv2.CommonMetadata `json:"commonMetadata,omitempty"`

	// PostRenderers change what the chart rendered.
	// +optional
	PostRenderers []helmv2.PostRenderer `json:"postRenderers,omitempty"`

	// PostRenderStrategy says whether hooks are sent to post-renderers.
	// +kubebuilder:validation:Enum=nohooks;combined;separate
	// +optional
	PostRenderStrategy helmv2.PostRenderStrategy `json:"postRenderStrategy,omitempty"`

	// WaitStrategy says how Helm waits for readiness.
	// +optional
	WaitStrategy *helmv2.WaitStrategy `json:"waitStrategy,omitempty"`

	// HealthCheckExprs are CEL expressions for the health of custom resources.
	// +optional
	HealthCheckExprs []kustomize.CustomHealthCheck `json:"healthCheckExprs,omitempty"`
}

// HelmOverride changes a release for some members.
type HelmOverride struct {
	// Values are merged over the policy's: maps key by key, everything else replaced. A null takes the chart's default
	// away, as with Helm.
	// +required
	Values *apiextensionsv1.JSON `json:"values,omitempty"`
}

// HelmChartTemplate names a chart of the source. It becomes one HelmChart, or one OCIRepository, for all members.
type HelmChartTemplate struct {
	// Metadata of the HelmChart or OCIRepository.
	// +optional
	Metadata *helmv2.HelmChartTemplateObjectMeta `json:"metadata,omitempty"`

	// Spec of the chart.
	// +required
	Spec HelmChartTemplateSpec `json:"spec"`
}

// HelmChartTemplateSpec is the spec of a Flux HelmChart, without the sourceRef, which is the Application's source.
type HelmChartTemplateSpec struct {
	// Chart is the chart's name in a Helm repository, or its path in a Git repository or bucket.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +required
	Chart string `json:"chart"`

	// Version is a version or a range of versions; without effect for a chart from a Git repository or bucket.
	// +kubebuilder:default="*"
	// +optional
	Version string `json:"version,omitempty"`

	// Interval at which the source is looked at. Defaults to the release's interval.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	Interval *metav1.Duration `json:"interval,omitempty"`

	// ReconcileStrategy says what makes a new chart: another ChartVersion, or another Revision of the source.
	// +kubebuilder:validation:Enum=ChartVersion;Revision
	// +kubebuilder:default=ChartVersion
	// +optional
	ReconcileStrategy string `json:"reconcileStrategy,omitempty"`

	// ValuesFiles are paths in the source of values files, used instead of the chart's values.yaml.
	// +optional
	ValuesFiles []string `json:"valuesFiles,omitempty"`

	// IgnoreMissingValuesFiles leaves out values files that do not exist.
	// +optional
	IgnoreMissingValuesFiles bool `json:"ignoreMissingValuesFiles,omitempty"`

	// Verify says how the chart's signature is checked; for OCI only.
	// +optional
	Verify *helmv2.HelmChartTemplateVerification `json:"verify,omitempty"`
}
