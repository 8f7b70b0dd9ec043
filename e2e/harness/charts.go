package harness

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"

	registryserver "github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/registry"
	repo "helm.sh/helm/v4/pkg/repo/v1"
	"sigs.k8s.io/yaml"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	catalog "github.com/fleetwright/fleetwright/plugins-catalog"
	"github.com/fleetwright/fleetwright/renderers/plugin"
)

// Charts serves a small chart in place of each one that the plugins name: of the same name and version, from an OCI
// registry and an index on loopback, over TLS, which Flux's source-controller trusts.
type Charts struct {
	// OCI and HTTPS are what a plugin's chart.repository becomes: that of an oci:// one, and that of an https:// one.
	OCI, HTTPS string
	plugins    map[string]*plugin.Plugin
}

// web is an HTTPS server whose certificate is in a file.
type web struct {
	*httptest.Server
	mux    *http.ServeMux
	caFile string
}

func startWeb(dir string) (*web, error) {
	w := &web{mux: http.NewServeMux(), caFile: filepath.Join(dir, "web-ca.crt")}
	w.Server = httptest.NewUnstartedServer(w.mux)
	w.Config.ErrorLog = log.New(io.Discard, "", 0)
	w.StartTLS()
	return w, os.WriteFile(w.caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.Certificate().Raw}), 0o600)
}

// StartCharts makes the charts of all plugins of the catalog, and serves them, or returns those that are served already.
func (e *Env) StartCharts() (*Charts, error) { return e.charts() }

func (e *Env) startCharts() (*Charts, error) {
	plugins, err := plugin.LoadAll(catalog.FS)
	if err != nil {
		return nil, err
	}
	host := e.web.Listener.Addr().String()
	c := &Charts{OCI: "oci://" + host + "/charts", HTTPS: "https://" + host + "/helm", plugins: plugins}
	e.web.mux.Handle("/v2/", registryserver.New(registryserver.Logger(log.New(io.Discard, "", 0))))
	dir := filepath.Join(e.Dir, "charts")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	client, err := registry.NewClient(registry.ClientOptHTTPClient(e.web.Client()), registry.ClientOptWriter(io.Discard),
		registry.ClientOptCredentialsFile(filepath.Join(dir, "credentials.json")))
	if err != nil {
		return nil, err
	}
	index, done := repo.NewIndexFile(), map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(plugins)) {
		for _, k := range plugins[name].Spec.Components {
			if k.Chart == nil || done[k.Chart.Name+" "+k.Chart.Version] {
				continue
			}
			done[k.Chart.Name+" "+k.Chart.Version] = true
			small := smallChart(k.Chart.Name, k.Chart.Version)
			path, err := chartutil.Save(small, dir)
			if err != nil {
				return nil, fmt.Errorf("chart %s: %w", k.Chart.Name, err)
			}
			archive, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			if err := index.MustAdd(small.Metadata, filepath.Base(path), c.HTTPS, digest.FromBytes(archive).Encoded()); err != nil {
				return nil, err
			}
			ref := strings.TrimPrefix(c.OCI, "oci://") + "/" + k.Chart.Name + ":" + k.Chart.Version
			if _, err := client.Push(archive, ref); err != nil {
				return nil, fmt.Errorf("chart %s: %w", k.Chart.Name, err)
			}
		}
	}
	if err := index.WriteFile(filepath.Join(dir, "index.yaml"), 0o600); err != nil {
		return nil, err
	}
	e.web.mux.Handle("/helm/", http.StripPrefix("/helm/", http.FileServer(http.Dir(dir))))
	return c, nil
}

// Components returns, as JSON, what a fleet says under components of a plugin to have it take the charts from here, but for
// some of the components.
func (c *Charts) Components(name string, but ...string) string {
	out := map[string]fleetv1.PluginChart{}
	for _, k := range c.plugins[name].Spec.Components {
		if k.Chart == nil || slices.Contains(but, k.Name) {
			continue
		}
		repository := c.HTTPS
		if strings.HasPrefix(k.Chart.Repository, "oci://") {
			repository = c.OCI
		}
		out[k.Name] = fleetv1.PluginChart{Chart: &fleetv1.ChartOverride{Repository: repository}}
	}
	b, err := json.Marshal(out)
	if err != nil {
		panic(err) // it is made of text
	}
	return string(b)
}

// smallChart is what every chart installs here: something that becomes ready, and something that tells whether the values
// have changed, and keeps them to itself.
func smallChart(name, version string) *chart.Chart {
	c := &chart.Chart{
		Metadata:  &chart.Metadata{APIVersion: chart.APIVersionV2, Name: name, Version: version, AppVersion: version, Type: "application"},
		Values:    map[string]any{},
		Templates: []*common.File{{Name: "templates/small.yaml", Data: []byte(smallTemplate)}},
	}
	if template := templatesOf[name]; template != "" {
		c.Templates = append(c.Templates, &common.File{Name: "templates/own.yaml", Data: []byte(template)})
	}
	for _, crd := range crdsOf[name] {
		file, _, _ := strings.Cut(crd, "/")
		c.Files = append(c.Files, &common.File{Name: "crds/" + file + ".yaml", Data: []byte(openCRD(crd, "{}"))})
	}
	c.Raw = []*common.File{{Name: chartutil.ValuesfileName, Data: []byte("{}\n")}}
	return c
}

const smallTemplate = `
{{- $name := .Values.fullnameOverride | default .Release.Name }}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $name }}-values
data:
  chart: {{ .Chart.Name }}
  sha256: {{ .Values | toJson | sha256sum }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  labels: {app.kubernetes.io/instance: {{ .Release.Name }}}
spec:
  selector: {matchLabels: {app.kubernetes.io/instance: {{ .Release.Name }}}}
  template:
    metadata: {labels: {app.kubernetes.io/instance: {{ .Release.Name }}}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: small, image: "example.test/{{ .Chart.Name }}:{{ .Chart.Version }}"}]
`

// templatesOf are what some charts install beside that, as the real ones do, because somebody reads or keeps it.
var templatesOf = map[string]string{
	"kube-prometheus-stack": `
apiVersion: monitoring.coreos.com/v1
kind: Prometheus
metadata:
  name: {{ .Values.fullnameOverride }}
spec: {{ .Values.prometheus.prometheusSpec | toJson }}
---
{{- with .Values.prometheus }}{{ with .thanosServiceExternal }}{{ if .enabled }}
apiVersion: v1
kind: Service
metadata:
  name: {{ $.Values.fullnameOverride }}-thanos-external
spec:
  type: {{ .type }}
  loadBalancerSourceRanges: {{ .loadBalancerSourceRanges | toJson }}
  ports: [{name: grpc, port: 10901}]
  selector: {app: prometheus}
{{- end }}{{ end }}{{ end }}
`,
	"submariner-k8s-broker": `
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .Values.serviceAccounts.client.name }}
---
apiVersion: v1
kind: Secret
metadata:
  name: {{ .Values.serviceAccounts.client.name }}-token
  annotations: {kubernetes.io/service-account.name: {{ .Values.serviceAccounts.client.name }}}
type: kubernetes.io/service-account-token
`,
	// The real chart writes these into the Submariner, in clear.
	"submariner-operator": `
apiVersion: submariner.io/v1alpha1
kind: Submariner
metadata:
  name: submariner
spec:
  broker: k8s
  brokerK8sApiServer: {{ .Values.broker.server | quote }}
  brokerK8sApiServerToken: {{ .Values.broker.token | quote }}
  brokerK8sCA: {{ .Values.broker.ca | quote }}
  ceIPSecPSK: {{ .Values.ipsec.psk | quote }}
  clusterID: {{ .Values.submariner.clusterId | quote }}
  clusterCIDR: {{ .Values.submariner.clusterCidr | quote }}
  serviceCIDR: {{ .Values.submariner.serviceCidr | quote }}
`,
	"velero": `
{{- range .Values.configuration.backupStorageLocation }}
apiVersion: velero.io/v1
kind: BackupStorageLocation
metadata:
  name: {{ .name }}
spec:
  provider: {{ .provider }}
  objectStorage: {bucket: {{ .bucket }}, prefix: {{ .prefix | quote }}}
  credential: {{ .credential | toJson }}
  config: {{ .config | toJson }}
{{- end }}
`,
	"kyverno-policies": `
apiVersion: policies.kyverno.io/v1
kind: {{ .Values.policyType }}
metadata:
  name: disallow-privileged-containers
spec: {exclude: {{ dig "excludeNamespaces" list .Values.vpolExclude | toJson }}}
`,
	"rook-ceph-cluster": `
apiVersion: ceph.rook.io/v1
kind: CephCluster
metadata:
  name: rook-ceph
spec: {{ .Values.cephClusterSpec | toJson }}
`,
	// CRDs that are templates end with the release unless they are annotated. Where Kyverno itself is, so are its own.
	"kyverno": `{{- if not (lookup "v1" "ConfigMap" "kyverno" "kyverno-metrics") }}` + "\n" +
		openCRD("clusterpolicies.kyverno.io/v1/ClusterPolicy/Cluster", `{{ .Values.crds.annotations | toJson }}`) + "\n---\n" +
		openCRD("validatingpolicies.policies.kyverno.io/v1/ValidatingPolicy/Cluster", `{{ index .Values "kyverno-api" "annotations" | toJson }}`) +
		"\n{{- end }}\n",
	"rook-ceph": openCRD("cephclusters.ceph.rook.io/v1/CephCluster/Namespaced", `{"helm.sh/resource-policy":"keep"}`),
}

// crdsOf are the CRDs in the folder crds of charts, as plural.group/version/kind/scope.
var crdsOf = map[string][]string{
	"kube-prometheus-stack": {
		"prometheuses.monitoring.coreos.com/v1/Prometheus/Namespaced",
		"servicemonitors.monitoring.coreos.com/v1/ServiceMonitor/Namespaced",
		"podmonitors.monitoring.coreos.com/v1/PodMonitor/Namespaced",
	},
	"flagger": {
		"canaries.flagger.app/v1beta1/Canary/Namespaced",
		"metrictemplates.flagger.app/v1beta1/MetricTemplate/Namespaced",
	},
	"velero": {
		"backups.velero.io/v1/Backup/Namespaced",
		"backupstoragelocations.velero.io/v1/BackupStorageLocation/Namespaced",
	},
	"submariner-operator": {"submariners.submariner.io/v1alpha1/Submariner/Namespaced"},
}

// openCRD returns a CRD that takes anything.
func openCRD(crd, annotations string) string {
	parts := strings.Split(crd, "/")
	name, version, kind, scope := parts[0], parts[1], parts[2], parts[3]
	plural, group, _ := strings.Cut(name, ".")
	b, err := yaml.Marshal(map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": name, "annotations": "ANNOTATIONS"},
		"spec": map[string]any{
			"group": group, "scope": scope,
			"names": map[string]any{"kind": kind, "plural": plural, "singular": strings.ToLower(kind), "listKind": kind + "List"},
			"versions": []any{map[string]any{"name": version, "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
		},
	})
	if err != nil {
		panic(err) // it is made of text
	}
	return strings.Replace(string(b), "ANNOTATIONS", annotations, 1)
}
