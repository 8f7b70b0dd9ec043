package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
)

// RolloutConfig brings a new version of a workload to its users step by step, with Flagger: as a canary, an A/B test or
// blue/green. The fleet's flagger plugin has to be on.
type RolloutConfig struct {
	// TestLoader installs a load tester for this workload alone. Left out or false, the fleet's public one is used.
	// +optional
	TestLoader bool `json:"testLoader,omitempty"`

	// TrafficRoutingProvider shifts the traffic: istio, kuma or nginx. It has to be the one of the fleet's flagger
	// plugin.
	// +required
	TrafficRoutingProvider string `json:"trafficRoutingProvider"`

	// Workload is what is rolled out, a Deployment or a DaemonSet.
	// +required
	Workload WorkloadReference `json:"workload"`

	// ServiceName is the Service through which the workload is reached.
	// +required
	ServiceName string `json:"serviceName"`

	// Port of the Service.
	// +required
	Port int32 `json:"port"`

	// Primary is put on the Service of the stable version, <serviceName>-primary.
	// +optional
	Primary *ServiceMetadata `json:"primary,omitempty"`

	// Preview is put on the Service of the new version, <serviceName>-canary.
	// +optional
	Preview *ServiceMetadata `json:"preview,omitempty"`

	// RolloutPolicy says how a new version is brought in and what it has to pass.
	// +required
	RolloutPolicy RolloutPolicy `json:"rolloutPolicy"`
}

// WorkloadReference names the workload of a rollout.
type WorkloadReference struct {
	// APIVersion of the workload, apps/v1 say.
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`

	// Kind of the workload: Deployment or DaemonSet.
	// +optional
	Kind string `json:"kind,omitempty"`

	// Name of the workload.
	// +required
	Name string `json:"name"`

	// Namespace of the workload on the member.
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// ServiceMetadata is added to a Service that a rollout makes.
type ServiceMetadata struct {
	// Labels to add.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// Annotations to add.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// RolloutPolicy says how a new version is brought in and what it has to pass.
type RolloutPolicy struct {
	// TrafficRouting says how the traffic moves to the new version.
	// +optional
	TrafficRouting *TrafficRouting `json:"trafficRouting,omitempty"`

	// TrafficAnalysis says what is measured and when the rollout is given up.
	// +optional
	TrafficAnalysis *TrafficAnalysis `json:"trafficAnalysis,omitempty"`

	// RolloutTimeoutSeconds is how long, in seconds, the new version may take to make progress. Defaults to 600.
	// +optional
	RolloutTimeoutSeconds *int32 `json:"rolloutTimeoutSeconds,omitempty"`

	// SkipTrafficAnalysis promotes a new version without measuring it. Defaults to false.
	// +optional
	SkipTrafficAnalysis bool `json:"skipTrafficAnalysis,omitempty"`

	// RevertOnDeletion gives the workload back its replicas and its Service when the rollout is removed. Without it the
	// workload is left with zero replicas.
	// +optional
	RevertOnDeletion *bool `json:"revertOnDeletion,omitempty"`

	// Suspend starts no rollout, whatever changes, and pauses one that runs. Defaults to false.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// TrafficRouting says how traffic reaches the workload and how it moves to a new version. With canaryStrategy the
// rollout is a canary; with analysisTimes and match an A/B test; with analysisTimes alone blue/green.
type TrafficRouting struct {
	// TimeoutSeconds is how long, in seconds, an HTTP or gRPC request may take.
	// +optional
	TimeoutSeconds int `json:"timeoutSeconds,omitempty"`

	// Gateways are the Istio gateways that lead to the workload, namespace/name. Defaults to the mesh's own.
	// +optional
	Gateways []string `json:"gateways,omitempty"`

	// Hosts are the names by which the workload is called. Defaults to serviceName.
	// +optional
	Hosts []string `json:"hosts,omitempty"`

	// Host is the domain name of the Ingress. Needed with nginx, and used only there.
	// +optional
	Host string `json:"host,omitempty"`

	// Protocol of the Service. Used only with kuma. Defaults to http.
	// +optional
	Protocol string `json:"protocol,omitempty"`

	// Retries says how a failed HTTP request is tried again.
	// +optional
	Retries *HTTPRetry `json:"retries,omitempty"`

	// Headers are changed on the way to the workload and back.
	// +optional
	Headers *HTTPHeaders `json:"headers,omitempty"`

	// CORSPolicy says which web pages of other origins may call the workload.
	// +optional
	CORSPolicy *CORSPolicy `json:"corsPolicy,omitempty"`

	// CanaryStrategy moves the traffic in steps. Not together with analysisTimes.
	// +optional
	CanaryStrategy *CanaryStrategy `json:"canaryStrategy,omitempty"`

	// AnalysisTimes is how many checks an A/B test or a blue/green rollout has to pass.
	// +kubebuilder:validation:Minimum=0
	// +optional
	AnalysisTimes int `json:"analysisTimes,omitempty"`

	// Match chooses the requests that go to the new version. With canaryStrategy, all others are split by weight.
	// +optional
	Match []HTTPMatch `json:"match,omitempty"`
}

// CanaryStrategy moves the traffic to the new version in steps. Weights are percentages.
type CanaryStrategy struct {
	// MaxWeight is the share of the new version at which it is promoted. Defaults to 100.
	// +optional
	MaxWeight int `json:"maxWeight,omitempty"`

	// StepWeight is what each step adds: 10 means 10, 20, 30 and so on up to maxWeight.
	// +optional
	StepWeight int `json:"stepWeight,omitempty"`

	// StepWeights lists the share at each step, 1, 10, 20, 80 say. It takes the place of stepWeight and maxWeight.
	// +optional
	StepWeights []int `json:"stepWeights,omitempty"`

	// StepWeightPromotion is what each step gives back to the stable version once it is the new one. Left out, all of
	// the traffic goes back at once.
	// +optional
	StepWeightPromotion int `json:"stepWeightPromotion,omitempty"`
}

// TrafficAnalysis says what is measured and when a rollout is given up.
type TrafficAnalysis struct {
	// CheckIntervalSeconds is the time between two checks, in seconds; the traffic moves one step after each. 60 is
	// usual.
	// +required
	CheckIntervalSeconds int `json:"checkIntervalSeconds"`

	// CheckFailedTimes is how many checks may fail before the rollout is rolled back.
	// +kubebuilder:validation:Minimum=0
	// +required
	CheckFailedTimes int `json:"checkFailedTimes"`

	// Metrics are what each check looks at.
	// +optional
	Metrics []RolloutMetric `json:"metrics,omitempty"`

	// Webhooks make requests to the new version, so that there is something to measure.
	// +optional
	Webhooks RolloutWebhooks `json:"webhooks,omitzero"`

	// SessionAffinity keeps a user, once sent to the new version, there for the whole rollout.
	// +optional
	SessionAffinity *SessionAffinity `json:"sessionAffinity,omitempty"`
}

// RolloutMetric is a metric that a check looks at.
type RolloutMetric struct {
	// Name of the metric: request-success-rate (in percent) and request-duration (in milliseconds) are built in; any
	// other name needs customMetric.
	// +required
	Name string `json:"name"`

	// IntervalSeconds is the time that the metric is taken over, in seconds. Defaults to 60.
	// +optional
	IntervalSeconds *int `json:"intervalSeconds,omitempty"`

	// ThresholdRange is what the metric has to lie in. Left out, every value passes.
	// +optional
	ThresholdRange *ThresholdRange `json:"thresholdRange,omitempty"`

	// CustomMetric says how a metric that is not built in is asked for.
	// +optional
	CustomMetric *CustomMetric `json:"customMetric,omitempty"`
}

// ThresholdRange bounds a metric. A bound that is left out does not hold.
type ThresholdRange struct {
	// Min is the least value that passes.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=number
	// +optional
	Min *float64 `json:"min,omitempty"`

	// Max is the greatest value that passes.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=number
	// +optional
	Max *float64 `json:"max,omitempty"`
}

// CustomMetric asks a metrics provider for a number.
type CustomMetric struct {
	// Provider is who is asked.
	// +optional
	Provider MetricProvider `json:"provider,omitzero"`

	// Query in the provider's language. {{ interval }}, {{ target }} and {{ namespace }} and Flagger's other variables
	// are filled in.
	// +optional
	Query string `json:"query,omitempty"`
}

// MetricProvider is a source of metrics.
type MetricProvider struct {
	// Type of the provider: prometheus, datadog, cloudwatch or another that Flagger knows.
	// +optional
	Type string `json:"type,omitempty"`

	// Address is the provider's URL, as reached from the member.
	// +optional
	Address string `json:"address,omitempty"`

	// SecretRef names a Secret on the member with what the provider asks callers for.
	// +optional
	SecretRef *corev1.LocalObjectReference `json:"secretRef,omitempty"`

	// Region of a provider that has regions.
	// +optional
	Region string `json:"region,omitempty"`

	// InsecureSkipVerify accepts any certificate of the provider. Defaults to false.
	// +optional
	InsecureSkipVerify bool `json:"insecureSkipVerify,omitempty"`
}

// RolloutWebhooks make requests to the new version.
type RolloutWebhooks struct {
	// TimeoutSeconds is how long a command may take, in seconds. Defaults to 60.
	// +optional
	TimeoutSeconds *int `json:"timeoutSeconds,omitempty"`

	// Commands that the load tester runs during the analysis, "hey -z 1m -q 10 -c 2 http://web-canary.shop/" say.
	// +optional
	Commands []string `json:"command,omitempty"`
}

// SessionAffinity keeps a user on the version that answered first, with a cookie.
type SessionAffinity struct {
	// CookieName is the name of the cookie.
	// +optional
	CookieName string `json:"cookieName,omitempty"`

	// MaxAge is how long the cookie holds, in seconds. Defaults to 86400, a day.
	// +optional
	MaxAge int `json:"maxAge,omitempty"`
}

// HTTPRetry says how a failed HTTP request is tried again.
type HTTPRetry struct {
	// Attempts is how often a request is tried again.
	// +optional
	Attempts int `json:"attempts,omitempty"`

	// PerTryTimeout is how long one attempt may take: 2s, or 500ms. At least 1ms.
	// +optional
	PerTryTimeout string `json:"perTryTimeout,omitempty"`

	// RetryOn lists, with commas, what is tried again, in Envoy's words: gateway-error,connect-failure say.
	// +optional
	RetryOn string `json:"retryOn,omitempty"`
}

// HTTPHeaders changes the headers of requests and responses.
type HTTPHeaders struct {
	// Request headers are changed before the workload sees them.
	// +optional
	Request *HeaderOperations `json:"request,omitempty"`

	// Response headers are changed before the caller sees them.
	// +optional
	Response *HeaderOperations `json:"response,omitempty"`
}

// HeaderOperations changes headers.
type HeaderOperations struct {
	// Set replaces the values of headers.
	// +optional
	Set map[string]string `json:"set,omitempty"`

	// Add appends values to headers, with a comma.
	// +optional
	Add map[string]string `json:"add,omitempty"`

	// Remove takes headers away.
	// +optional
	Remove []string `json:"remove,omitempty"`
}

// CORSPolicy says which web pages of other origins may call the workload.
type CORSPolicy struct {
	// AllowOrigin lists the origins that may call, as they are written; * is any.
	// +optional
	AllowOrigin []string `json:"allowOrigin,omitempty"`

	// AllowOrigins lists patterns of origins that may call; one that matches is enough.
	// +optional
	AllowOrigins []StringMatch `json:"allowOrigins,omitempty"`

	// AllowMethods lists the HTTP methods that may be used.
	// +optional
	AllowMethods []string `json:"allowMethods,omitempty"`

	// AllowHeaders lists the request headers that may be sent.
	// +optional
	AllowHeaders []string `json:"allowHeaders,omitempty"`

	// ExposeHeaders lists the response headers that the page may read.
	// +optional
	ExposeHeaders []string `json:"exposeHeaders,omitempty"`

	// MaxAge is how long a browser may remember the answer to a preflight request: 24h say.
	// +optional
	MaxAge string `json:"maxAge,omitempty"`

	// AllowCredentials lets calls carry cookies and other credentials.
	// +optional
	AllowCredentials bool `json:"allowCredentials,omitempty"`
}

// HTTPMatch chooses requests. All of what is written has to hold.
type HTTPMatch struct {
	// Name of this match, for the access log.
	// +optional
	Name string `json:"name,omitempty"`

	// URI of the request.
	// +optional
	URI *StringMatch `json:"uri,omitempty"`

	// IgnoreURICase compares the URI without regard to upper and lower case, for exact and prefix.
	// +optional
	IgnoreURICase bool `json:"ignoreUriCase,omitempty"`

	// Scheme of the request: http or https.
	// +optional
	Scheme *StringMatch `json:"scheme,omitempty"`

	// Method of the request: GET, POST and so on.
	// +optional
	Method *StringMatch `json:"method,omitempty"`

	// Authority of the request, which is its Host.
	// +optional
	Authority *StringMatch `json:"authority,omitempty"`

	// Headers of the request; their names in lower case, with hyphens.
	// +optional
	Headers map[string]StringMatch `json:"headers,omitempty"`

	// WithoutHeaders are headers that a request must not have.
	// +optional
	WithoutHeaders map[string]StringMatch `json:"withoutHeaders,omitempty"`

	// QueryParams of the request; exact or regex.
	// +optional
	QueryParams map[string]StringMatch `json:"queryParams,omitempty"`

	// Port that the request was made to.
	// +optional
	Port int32 `json:"port,omitempty"`

	// SourceLabels are labels of the workload that makes the request.
	// +optional
	SourceLabels map[string]string `json:"sourceLabels,omitempty"`

	// SourceNamespace is the namespace of the workload that makes the request.
	// +optional
	SourceNamespace string `json:"sourceNamespace,omitempty"`

	// Gateways that this match holds for, instead of all.
	// +optional
	Gateways []string `json:"gateways,omitempty"`
}

// StringMatch compares a text, minding upper and lower case. Write one of its fields.
type StringMatch struct {
	// Exact is the whole text.
	// +optional
	Exact string `json:"exact,omitempty"`

	// Prefix is how the text begins.
	// +optional
	Prefix string `json:"prefix,omitempty"`

	// Suffix is how the text ends.
	// +optional
	Suffix string `json:"suffix,omitempty"`

	// Regex matches the whole text, in ECMAScript's style.
	// +optional
	Regex string `json:"regex,omitempty"`
}
