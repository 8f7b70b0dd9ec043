package plugin

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
)

// subcharts are the charts whose values are in those of another one, by the key that they are under.
var subcharts = map[string]map[string]string{
	"kube-prometheus-stack": {"grafana": "grafana", "kube-state-metrics": "kube-state-metrics", "prometheus-node-exporter": "prometheus-node-exporter"},
	"rook-ceph":             {"ceph-csi-operator": "ceph-csi-operator"},
}

// unlisted are keys that a chart has and its values.yaml has not, each with the reason.
var unlisted = map[string]map[string]string{
	"ceph-csi-drivers":  {"operatorConfig.driverSpecDefaults.controllerPlugin.priorityClassName": "is what Rook recommends"},
	"grafana":           {"persistence.storageClassName": "is commented out there", "fullnameOverride": "is what its helpers take"},
	"kyverno":           {"kyverno-api": "a subchart whose values are not at hand; upstream documents annotations"},
	"rook-ceph-cluster": {"cephClusterSpec": "is the spec of a CephCluster, and checked against its CRD"},
}

// chartFile returns a file of a chart in testdata; nil if there is none.
func chartFile(t testing.TB, chart, name string) []byte {
	t.Helper()
	path := filepath.Join("testdata", "charts", chart, name)
	b, err := os.ReadFile(path)
	if err == nil {
		return b
	}
	compressed, err := os.ReadFile(path + ".gz")
	if err != nil {
		return nil
	}
	g := NewWithT(t)
	r, err := gzip.NewReader(bytes.NewReader(compressed))
	g.Expect(err).NotTo(HaveOccurred())
	b, err = io.ReadAll(r)
	g.Expect(err).NotTo(HaveOccurred())
	return b
}

// chartValues returns the values.yaml of a chart, with those of its subcharts.
func chartValues(t testing.TB, chart string) map[string]any {
	t.Helper()
	g := NewWithT(t)
	b := chartFile(t, chart, "values.yaml")
	g.Expect(b).NotTo(BeNil(), "testdata/charts has no values of chart %s", chart)
	var values map[string]any
	g.Expect(yaml.Unmarshal(b, &values)).To(Succeed())
	for key, sub := range subcharts[chart] {
		own, _ := values[key].(map[string]any)
		values[key] = application.MergeValues(chartValues(t, sub), own)
	}
	return values
}

// foreign returns the values that a chart does not know: by key, or by their kind.
func foreign(chart, path string, value, known any) (problems []string) {
	switch k := known.(type) {
	case nil:
		return nil // it may be anything
	case map[string]any:
		v, ok := value.(map[string]any)
		if !ok && value != nil {
			return []string{path + ": is a map in the chart"}
		}
		if len(k) == 0 {
			return nil // free
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			at := strings.TrimPrefix(path+"."+name, ".")
			if unlisted[chart][at] != "" {
				continue
			}
			next, ok := k[name]
			if !ok {
				problems = append(problems, at+": the chart has no such value")
				continue
			}
			problems = append(problems, foreign(chart, at, v[name], next)...)
		}
	case []any:
		v, ok := value.([]any)
		if !ok && value != nil {
			return []string{path + ": is a list in the chart"}
		}
		if len(k) == 0 {
			return nil // free
		}
		// Each item has what some item of the chart has.
		item := map[string]any{}
		for _, i := range k {
			m, ok := i.(map[string]any)
			if !ok {
				return nil
			}
			item = application.MergeValues(item, m)
		}
		for i := range v {
			problems = append(problems, foreign(chart, fmt.Sprintf("%s[%d]", path, i), v[i], item)...)
		}
	default:
		if value != nil && fmt.Sprintf("%T", value) != fmt.Sprintf("%T", known) {
			return []string{fmt.Sprintf("%s: is a %T, and in the chart a %T", path, value, known)}
		}
	}
	return problems
}

// openAPI makes the JSON schema of a chart one of OpenAPI, which has one type for a value, and null beside it.
func openAPI(s map[string]any) map[string]any {
	out := map[string]any{}
	for key, v := range s {
		switch key {
		case "$schema", "$id", "title", "description", "default":
		case "const":
			out["enum"] = []any{v}
		case "type":
			types, ok := v.([]any)
			if !ok {
				out[key] = v
				continue
			}
			var anyOf []any
			for _, of := range types {
				if of == "null" {
					out["nullable"] = true
				} else {
					anyOf = append(anyOf, map[string]any{"type": of})
				}
			}
			if len(anyOf) == 1 {
				out["type"] = anyOf[0].(map[string]any)["type"]
			} else {
				out["x-kubernetes-preserve-unknown-fields"] = true
				out["anyOf"] = anyOf
			}
		case "properties", "dependencies":
			schemas := map[string]any{}
			for name, p := range v.(map[string]any) {
				schemas[name] = p
				if m, ok := p.(map[string]any); ok {
					schemas[name] = openAPI(m)
				}
			}
			out[key] = schemas
		case "items", "additionalProperties", "not":
			if m, ok := v.(map[string]any); ok {
				v = openAPI(m)
			}
			out[key] = v
		case "oneOf", "anyOf", "allOf":
			var all []any
			for _, of := range v.([]any) {
				all = append(all, openAPI(of.(map[string]any)))
			}
			out[key] = all
		default:
			out[key] = v
		}
	}
	return out
}

// chartSchema returns what checks the values of a chart; nil if it has no schema.
func chartSchema(t testing.TB, chart string) schemavalidation.SchemaValidator {
	t.Helper()
	g := NewWithT(t)
	b := chartFile(t, chart, "values.schema.json")
	if b == nil {
		return nil
	}
	var s map[string]any
	g.Expect(json.Unmarshal(b, &s)).To(Succeed())
	b, err := json.Marshal(openAPI(s))
	g.Expect(err).NotTo(HaveOccurred())
	var props apiextensionsv1.JSONSchemaProps
	g.Expect(json.Unmarshal(b, &props)).To(Succeed())
	var internal apiextensions.JSONSchemaProps
	g.Expect(apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&props, &internal, nil)).To(Succeed())
	v, _, err := schemavalidation.NewSchemaValidator(&internal)
	g.Expect(err).NotTo(HaveOccurred())
	return v
}

// coalesced returns what Helm gives the templates: null takes a default away.
func coalesced(values map[string]any) map[string]any {
	out := map[string]any{}
	for k, v := range values {
		switch v := v.(type) {
		case nil:
		case map[string]any:
			out[k] = coalesced(v)
		default:
			out[k] = v
		}
	}
	return out
}

// crds are the CRDs of the charts in testdata, by kind.
var crds = sync.OnceValues(func() (map[schema.GroupVersionKind]*apiextensions.JSONSchemaProps, error) {
	all := map[schema.GroupVersionKind]*apiextensions.JSONSchemaProps{}
	files, err := filepath.Glob("testdata/charts/*/*.yaml*")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(file, ".gz") {
			r, err := gzip.NewReader(bytes.NewReader(b))
			if err != nil {
				return nil, err
			}
			if b, err = io.ReadAll(r); err != nil {
				return nil, err
			}
		}
		for doc := range bytes.SplitSeq(b, []byte("\n---\n")) {
			if !bytes.Contains(doc, []byte("kind: CustomResourceDefinition")) {
				continue
			}
			var d apiextensionsv1.CustomResourceDefinition
			if err := yaml.Unmarshal(doc, &d); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			for _, v := range d.Spec.Versions {
				var internal apiextensions.JSONSchemaProps
				if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v.Schema.OpenAPIV3Schema, &internal, nil); err != nil {
					return nil, err
				}
				all[schema.GroupVersionKind{Group: d.Spec.Group, Version: v.Name, Kind: d.Spec.Names.Kind}] = &internal
			}
		}
	}
	return all, nil
})

// refused returns why an API server with the charts' CRDs refuses an object.
func refused(t testing.TB, o map[string]any) (problems []string) {
	t.Helper()
	g := NewWithT(t)
	known, err := crds()
	g.Expect(err).NotTo(HaveOccurred())
	kind := fmt.Sprint(o["kind"])
	props := known[schema.FromAPIVersionAndKind(fmt.Sprint(o["apiVersion"]), kind)]
	if props == nil {
		return []string{fmt.Sprintf("testdata/charts has no CRD of %v %s", o["apiVersion"], kind)}
	}
	b, err := json.Marshal(o)
	g.Expect(err).NotTo(HaveOccurred())
	object, err := decode(b)
	g.Expect(err).NotTo(HaveOccurred())
	object = native(object).(map[string]any)
	structural, err := structuralschema.NewStructural(props)
	g.Expect(err).NotTo(HaveOccurred())
	for _, path := range pruning.PruneWithOptions(object, structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}) {
		problems = append(problems, kind+": "+path+": unknown field")
	}
	v, _, err := schemavalidation.NewSchemaValidator(props)
	g.Expect(err).NotTo(HaveOccurred())
	errs := schemavalidation.ValidateCustomResource(nil, object, v)
	if len(errs) == 0 {
		errs, _ = cel.NewValidator(structural, true, celconfig.PerCallLimit).Validate(context.Background(), nil, structural, object, nil, celconfig.RuntimeCELCostBudget)
	}
	for _, err := range errs {
		problems = append(problems, kind+": "+err.Error())
	}
	return problems
}

// fromValues returns the custom resources that a chart makes of values which are their specs, as its templates do.
func fromValues(chart string, values map[string]any) (objects []map[string]any) {
	object := func(apiVersion, kind string, spec any) {
		objects = append(objects, map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": "x"}, "spec": spec})
	}
	switch chart {
	case "rook-ceph-cluster":
		object("ceph.rook.io/v1", "CephCluster", values["cephClusterSpec"])
		for _, p := range values["cephBlockPools"].([]any) {
			object("ceph.rook.io/v1", "CephBlockPool", p.(map[string]any)["spec"])
		}
	case "velero":
		for _, l := range values["configuration"].(map[string]any)["backupStorageLocation"].([]any) {
			l := l.(map[string]any)
			object("velero.io/v1", "BackupStorageLocation", map[string]any{"provider": l["provider"], "default": l["default"], "config": l["config"],
				"credential": l["credential"], "objectStorage": map[string]any{"bucket": l["bucket"], "prefix": l["prefix"]}})
		}
	case "submariner-operator":
		object("submariner.io/v1alpha1", "Submariner", submariner(values))
	}
	return objects
}

// submariner returns the spec of what the chart of Submariner makes. It does not quote, so text may become something else.
func submariner(values map[string]any) any {
	of := func(section string) map[string]any { return values[section].(map[string]any) }
	text := fmt.Sprintf(`
broker: k8s
brokerK8sApiServer: %v
brokerK8sApiServerToken: token
brokerK8sCA: Y2E=
brokerK8sRemoteNamespace: %v
brokerK8sInsecure: %v
ceIPSecDebug: false
ceIPSecPSK: psk
clusterCIDR: "%v"
clusterID: %v
debug: false
namespace: submariner-operator
natEnabled: %v
serviceCIDR: "%v"
globalCIDR: "%v"
serviceDiscoveryEnabled: %v
cableDriver: %v
`, of("broker")["server"], of("broker")["namespace"], of("broker")["insecure"], of("submariner")["clusterCidr"],
		strings.ReplaceAll(fmt.Sprint(of("submariner")["clusterId"]), "<< .cluster.name >>", "alpha"), of("submariner")["natEnabled"],
		of("submariner")["serviceCidr"], of("submariner")["globalCidr"], of("submariner")["serviceDiscovery"], of("submariner")["cableDriver"])
	var spec map[string]any
	if err := yaml.Unmarshal([]byte(text), &spec); err != nil {
		return err.Error()
	}
	return spec
}

func jsonOf(t testing.TB, raw *apiextensionsv1.JSON) map[string]any {
	t.Helper()
	if raw == nil {
		return map[string]any{}
	}
	var out map[string]any
	NewWithT(t).Expect(json.Unmarshal(raw.Raw, &out)).To(Succeed())
	return out
}

// variants returns the values that members get: those of a policy, and of each of its overrides.
func variants(t testing.TB, policy *appsv1.ApplicationSyncPolicy) []map[string]any {
	t.Helper()
	base := jsonOf(t, policy.Helm.Values)
	all := []map[string]any{base}
	for _, o := range policy.Overrides {
		if o.Helm != nil {
			all = append(all, application.MergeValues(base, jsonOf(t, o.Helm.Values)))
		}
	}
	return all
}

// TestCatalogAgainstCharts is must-hold 1: the values that every component of every plugin is given are those that its
// chart has, satisfy its schema where it has one, and every custom resource satisfies its CRD.
func TestCatalogAgainstCharts(t *testing.T) {
	catalog := plugins(t)
	schemas, known, seen, objects := map[string]schemavalidation.SchemaValidator{}, map[string]map[string]any{}, map[string]bool{}, 0
	for name, inputs := range cases(t) {
		for _, in := range inputs {
			g := NewWithT(t)
			p := catalog[in.Use.Name]
			r, err := p.Render(in)
			g.Expect(err).NotTo(HaveOccurred(), name)
			for file, content := range r.Files {
				var o map[string]any
				g.Expect(yaml.Unmarshal(content, &o)).To(Succeed())
				switch o["kind"] {
				case "Kustomization", "Namespace":
					continue
				case "Submariner": // it takes part in the one that the chart makes
					o["spec"] = submariner(application.MergeValues(chartValues(t, "submariner-operator"), map[string]any{"submariner": map[string]any{"clusterId": "alpha"}}))
				}
				seen[in.Use.Name+"/"+strings.Split(file, "/")[0]] = true
				objects++
				g.Expect(refused(t, o)).To(BeEmpty(), "%s: %s of plugin %s", name, file, p.Metadata.Name)
			}
			for i := range r.Application.Spec.SyncPolicies {
				policy := &r.Application.Spec.SyncPolicies[i]
				k := component(p, policy.Name)
				if k.Chart == nil {
					continue
				}
				seen[in.Use.Name+"/"+k.Name] = true
				chart := k.Chart.Name
				if known[chart] == nil {
					known[chart], schemas[chart] = chartValues(t, chart), chartSchema(t, chart)
				}
				for _, values := range variants(t, policy) {
					about := fmt.Sprintf("%s: component %s of plugin %s", name, k.Name, p.Metadata.Name)
					g.Expect(foreign(chart, "", values, known[chart])).To(BeEmpty(), about)
					all := coalesced(application.MergeValues(known[chart], values))
					if s := schemas[chart]; s != nil {
						g.Expect(schemavalidation.ValidateCustomResource(nil, all, s)).To(BeEmpty(), about)
					}
					for _, o := range fromValues(chart, all) {
						objects++
						g.Expect(refused(t, o)).To(BeEmpty(), about)
					}
				}
			}
		}
	}
	g := NewWithT(t)
	g.Expect(objects).To(BeNumerically(">", 20))
	for name, p := range catalog {
		for _, k := range p.Spec.Components {
			if k.Chart != nil {
				g.Expect(seen).To(HaveKey(name+"/"+k.Name), "no case has the component")
			}
		}
	}
	for _, chart := range []string{"velero", "traefik"} {
		g.Expect(schemas[chart]).NotTo(BeNil(), "the schema of "+chart)
	}
}

func component(p *Plugin, policy string) *Component {
	for i := range p.Spec.Components {
		if lower(p.Spec.Components[i].Name) == policy {
			return &p.Spec.Components[i]
		}
	}
	return nil
}

// TestChartChecks holds that what TestCatalogAgainstCharts uses finds faults.
func TestChartChecks(t *testing.T) {
	g := NewWithT(t)
	values := func(text string) (out map[string]any) {
		g.Expect(yaml.Unmarshal([]byte(text), &out)).To(Succeed())
		return out
	}
	velero := chartValues(t, "velero")
	g.Expect(foreign("velero", "", values(`{defaultVolumesToFsBackup: true}`), velero)).To(ConsistOf(ContainSubstring("defaultVolumesToFsBackup")))
	g.Expect(foreign("velero", "", values(`{configuration: {backupStorageLocation: [{bukket: b}]}}`), velero)).To(ConsistOf(ContainSubstring("[0].bukket")))
	g.Expect(foreign("velero", "", values(`{configuration: {backupStorageLocation: {bucket: b}}}`), velero)).To(ConsistOf(ContainSubstring("is a list")))
	g.Expect(foreign("velero", "", values(`{upgradeCRDs: "false", nodeSelector: {free: x}, annotations: {a: b}}`), velero)).To(ConsistOf(ContainSubstring("upgradeCRDs: is a string")))
	g.Expect(foreign("velero", "", values(`{metrics: off}`), velero)).To(ConsistOf(ContainSubstring("metrics: is a map")))
	kps := chartValues(t, "kube-prometheus-stack")
	g.Expect(foreign("kube-prometheus-stack", "", values(`{grafana: {nothing: 1, replicas: 2}, kube-state-metrics: {replicas: 2}}`), kps)).To(ConsistOf(ContainSubstring("grafana.nothing")))

	s := chartSchema(t, "traefik")
	traefik := chartValues(t, "traefik")
	check := func(text string) any {
		return schemavalidation.ValidateCustomResource(nil, coalesced(application.MergeValues(traefik, values(text))), s)
	}
	g.Expect(check(`{}`)).To(BeEmpty())
	g.Expect(check(`{deployment: {replicas: 3}, podDisruptionBudget: {minAvailable: 50%}}`)).To(BeEmpty())
	g.Expect(check(`{deployment: {replicas: many}}`)).NotTo(BeEmpty())
	g.Expect(check(`{podDisruptionBudget: {minAvailable: true}}`)).NotTo(BeEmpty())
	g.Expect(check(`{log: {level: CHATTY}}`)).NotTo(BeEmpty())
	v := chartSchema(t, "velero")
	g.Expect(schemavalidation.ValidateCustomResource(nil, coalesced(velero), v)).To(BeEmpty())
	g.Expect(schemavalidation.ValidateCustomResource(nil, coalesced(application.MergeValues(velero, values(`{configuration: {backupStorageLocation: {bucket: b}}}`))), v)).NotTo(BeEmpty())

	g.Expect(refused(t, values(`{apiVersion: flagger.app/v1beta1, kind: MetricTemplate, metadata: {name: x}, spec: {provider: {type: nothing}, query: "1"}}`))).To(ConsistOf(ContainSubstring("nothing")))
	g.Expect(refused(t, values(`{apiVersion: flagger.app/v1beta1, kind: MetricTemplate, metadata: {name: x}, spec: {provider: {type: prometheus}, quest: "1"}}`))).To(ContainElement(ContainSubstring("spec.quest")))
	g.Expect(refused(t, values(`{apiVersion: ceph.rook.io/v1, kind: CephCluster, metadata: {name: x}, spec: {mon: {count: 11}}}`))).To(ConsistOf(ContainSubstring("mon.count")))
	g.Expect(refused(t, values(`{apiVersion: example.org/v1, kind: Thing}`))).To(ConsistOf(ContainSubstring("no CRD")))
	// An unquoted cluster name of digits: why such members are held.
	operator := application.MergeValues(chartValues(t, "submariner-operator"), values(`{submariner: {clusterId: "0123"}}`))
	g.Expect(refused(t, fromValues("submariner-operator", operator)[0])).To(ConsistOf(ContainSubstring("clusterID")))
}
