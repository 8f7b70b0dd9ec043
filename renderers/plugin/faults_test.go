package plugin

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/runtime/cel"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
)

const twoMembers = "kind: Observed\nmembers: {alpha: {kind: AttachedCluster, kubernetes: v1.34.1}, beta: {kind: AttachedCluster, kubernetes: v1.34.1}}\n"

// try renders one of the plugins of a fleet of the members alpha and beta.
func try(t testing.TB, plugin, config string, observed ...string) (*Rendered, error) {
	t.Helper()
	text := "kind: Fleet\nmetadata: {name: prod, namespace: default}\nspec:\n  clusters: [{name: alpha}, {name: beta}]\n  plugin: {" + config + "}\n---\n" +
		twoMembers + strings.Join(observed, "\n")
	for _, in := range parse(t, text) {
		if in.Use.Name == plugin {
			return plugins(t)[plugin].Render(in)
		}
	}
	t.Fatalf("the fleet has no plugin %s", plugin)
	return nil, nil
}

func render(t testing.TB, plugin, config string, observed ...string) *Rendered {
	t.Helper()
	r, err := try(t, plugin, config, observed...)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return r
}

// policy returns the sync policy of a component; nil if it is not there.
func policy(r *Rendered, component string) *appsv1.ApplicationSyncPolicy {
	for i := range r.Application.Spec.SyncPolicies {
		if p := &r.Application.Spec.SyncPolicies[i]; p.Name == component {
			return p
		}
	}
	return nil
}

// value returns what a component's values have at a path, for all members and for each that has values of its own.
func value(t testing.TB, r *Rendered, component, path string) []any {
	t.Helper()
	p := policy(r, component)
	NewWithT(t).Expect(p).NotTo(BeNil(), "there is no component %s", component)
	var out []any
	for _, values := range variants(t, p) {
		out = append(out, get(values, path))
	}
	return out
}

// absent is what get returns where there is nothing, which differs from null.
const absent = "absent"

func get(values any, path string) any {
	for name := range strings.SplitSeq(path, "|") {
		m, ok := values.(map[string]any)
		if !ok {
			return absent
		}
		if values, ok = m[name]; !ok {
			return absent
		}
	}
	return values
}

// chart returns which chart a component is made of.
func chart(r *Rendered, component string) string {
	p := policy(r, component)
	return fmt.Sprintf("%s %s %s", p.Source.HelmRepository.URL, p.Helm.Chart.Spec.Chart, p.Helm.Chart.Spec.Version)
}

func held(p *appsv1.ApplicationSyncPolicy) (reasons []string) {
	for _, o := range p.Overrides {
		if o.Hold != "" {
			reasons = append(reasons, o.Hold)
		}
	}
	return reasons
}

const s3 = `backup: {storage: {secretName: s3, location: {bucket: b, provider: aws, endpoint: ""}}}`

// Kurator's fault 4: one Secret object was made for all members, and a rotation reached none.
func TestVeleroCredentialsAreTakenFromTheHub(t *testing.T) {
	g := NewWithT(t)
	p := policy(render(t, "backup", s3), "credentials")
	g.Expect(p.Destination.Fleet).To(Equal("prod"), "a release for each member")
	var from []string
	for _, v := range p.Helm.ValuesFrom {
		from = append(from, fmt.Sprintf("%s %s %s %s %t", v.Kind, v.Name, v.ValuesKey, v.TargetPath, v.Literal))
	}
	g.Expect(from).To(Equal([]string{"Secret s3 access-key secrets.v0 true", "Secret s3 secret-key secrets.v1 true"}))
	g.Expect(jsonOf(t, p.Helm.Values)).To(Equal(map[string]any{"name": "velero-credentials", "data": map[string]any{"cloud": []any{
		map[string]any{"text": "[default]\naws_access_key_id="}, map[string]any{"from": "v0"},
		map[string]any{"text": "\naws_secret_access_key="}, map[string]any{"from": "v1"}, map[string]any{"text": "\n"}}}}))
}

// Kurator's fault 5 and H11: the object store's Secret is one of its own, byte for byte, and not what the chart makes.
func TestObjectStoreIsASecretOfItsOwn(t *testing.T) {
	g := NewWithT(t)
	r := render(t, "metric", `metric: {thanos: {objectStoreConfig: {secretName: store}}}`)
	p := policy(r, "objstore")
	g.Expect(p.Helm.ValuesFrom).To(HaveLen(1))
	g.Expect(p.Helm.ValuesFrom[0].Name + "/" + p.Helm.ValuesFrom[0].ValuesKey).To(Equal("store/objstore.yml"))
	g.Expect(jsonOf(t, p.Helm.Values)).To(Equal(map[string]any{"name": "thanos-objstore", "data": map[string]any{"objstore.yml": []any{map[string]any{"from": "v0"}}}}))
	for _, v := range value(t, r, "prometheus", "prometheus|prometheusSpec|thanos") {
		g.Expect(v).To(Equal(map[string]any{"objectStorageConfig": map[string]any{"existingSecret": map[string]any{"name": "thanos-objstore", "key": "objstore.yml"}}}))
	}
	g.Expect(policy(r, "prometheus").Helm.ValuesFrom).To(BeEmpty())
	g.Expect(value(t, r, "thanos", "objstoreConfig")).To(ConsistOf(map[string]any{"create": false, "name": "store", "key": "objstore.yml"}))
	// An empty map would mean no sidecar, and so would no store.
	g.Expect(value(t, render(t, "metric", `metric: {}`), "prometheus", "prometheus|prometheusSpec|thanos")).To(HaveEach(absent))
}

const cidrs = `clusterCidrs: {alpha: 10.1.0.0/16, beta: 10.2.0.0/16}, serviceCidrs: {alpha: 10.101.0.0/16, beta: 10.102.0.0/16}`

// Kurator's fault 6: it died of a broker that was not there.
func TestBrokerThatIsNoMember(t *testing.T) {
	_, err := try(t, "submariner", `submariner: {brokerCluster: gamma, `+cidrs+`}`)
	NewWithT(t).Expect(err).To(MatchError("spec.plugin.submariner.brokerCluster: gamma is no member of the fleet"))
}

// Kurator's fault 6: it died of a broker that was not ready.
func TestBrokerThatIsNotReady(t *testing.T) {
	g := NewWithT(t)
	r := render(t, "submariner", `submariner: {`+cidrs+`}`, "kind: Observed")
	g.Expect(held(policy(r, "operator"))).To(ConsistOf("waits for brokerServer, from the kubeconfig of member alpha"))
	g.Expect(held(policy(r, "broker"))).To(BeEmpty(), "nothing else waits")
	r = render(t, "submariner", `submariner: {`+cidrs+`}`, `plugins: {submariner: {facts: {brokerServer: "a:6443"}}}`)
	g.Expect(held(policy(r, "operator"))).To(ConsistOf("waits for brokerToken, from Secret submariner-k8s-broker/submariner-k8s-broker-client-token of member alpha"))
	r = render(t, "submariner", `submariner: {`+cidrs+`}`, `plugins: {submariner: {facts: {brokerServer: "a:6443"}, kept: [brokerToken, brokerCA]}}`)
	g.Expect(held(policy(r, "operator"))).To(ConsistOf("waits for psk, which is generated"))
	r = render(t, "submariner", `submariner: {`+cidrs+`}`, `plugins: {submariner: {facts: {brokerServer: "a:6443"}, kept: [brokerToken, brokerCA, psk]}}`)
	g.Expect(held(policy(r, "operator"))).To(BeEmpty())
	g.Expect(value(t, r, "operator", "broker|server")).To(HaveEach("a:6443"))

	// The token of another broker is none.
	r = render(t, "submariner", `submariner: {brokerCluster: beta, `+cidrs+`}`, `plugins: {submariner: {facts: {brokerServer: "b:6443"}, kept: [brokerToken.alpha, brokerCA.alpha, psk]}}`)
	g.Expect(held(policy(r, "operator"))).To(ConsistOf("waits for brokerToken, from Secret submariner-k8s-broker/submariner-k8s-broker-client-token of member beta"))
}

// Kurator's fault 6: it died of these providers.
func TestGCPandAzure(t *testing.T) {
	for provider, image := range map[string]string{"gcp": "gcp", "azure": "microsoft-azure"} {
		g := NewWithT(t)
		r := render(t, "backup", `backup: {storage: {secretName: store, location: {bucket: b, provider: `+provider+`, endpoint: "", config: {resourceGroup: g}}}}`)
		g.Expect(policy(r, "credentials")).To(BeNil())
		p := policy(r, "credentials-file")
		g.Expect(jsonOf(t, p.Helm.Values)).To(HaveKeyWithValue("data", map[string]any{"cloud": []any{map[string]any{"from": "v0"}}}))
		g.Expect(p.Helm.ValuesFrom[0].Name + "/" + p.Helm.ValuesFrom[0].ValuesKey).To(Equal("store/cloud"))
		g.Expect(get(value(t, r, "velero", "initContainers")[0].([]any)[0], "image")).To(Equal("velero/velero-plugin-for-" + image + ":v1.14.0"))
		location := value(t, r, "velero", "configuration|backupStorageLocation")[0].([]any)[0].(map[string]any)
		g.Expect(location).To(HaveKeyWithValue("provider", provider))
		g.Expect(location).To(HaveKeyWithValue("config", map[string]any{"resourceGroup": "g"}), "nothing of S3")
	}
	_, err := try(t, "backup", `backup: {storage: {secretName: store, location: {bucket: b, provider: floppy, endpoint: ""}}}`)
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("spec.plugin.backup.storage.location.provider: floppy: has to be")))
}

// Kurator's fault 8: values went through a template for HTML.
func TestValuesWithQuotes(t *testing.T) {
	g := NewWithT(t)
	odd := []string{`"<&>+'`, "", "true", "0123", "null", "a: b\n# {{ c }}", "ä€😀", "$", `\`}
	args, err := json.Marshal(map[string]any{"annotations": map[string]any{"odd": odd}})
	g.Expect(err).NotTo(HaveOccurred())
	r := render(t, "backup", `backup: {storage: {secretName: s3, location: {bucket: '"b" <c> & d', provider: aws, endpoint: "", config: {kmsKeyId: "true"}}}, extraArgs: `+string(args)+`}`)
	location := value(t, r, "velero", "configuration|backupStorageLocation")[0].([]any)[0]
	g.Expect(get(location, "bucket")).To(Equal(`"b" <c> & d`))
	g.Expect(get(location, "config|kmsKeyId")).To(Equal("true"))
	var want []any
	for _, s := range odd {
		want = append(want, s)
	}
	g.Expect(value(t, r, "velero", "annotations|odd")).To(ConsistOf(Equal(want)))
}

// Kurator's fault 8: it could not render Velero without a region, nor Submariner without global CIDRs.
func TestWhatIsLeftOut(t *testing.T) {
	g := NewWithT(t)
	r := render(t, "backup", s3)
	g.Expect(get(value(t, r, "velero", "configuration|backupStorageLocation")[0].([]any)[0], "config")).To(Equal(map[string]any{}), "neither region nor endpoint")
	r = render(t, "submariner", `submariner: {`+cidrs+`}`)
	g.Expect(value(t, r, "operator", "submariner|globalCidr")).To(HaveEach(absent))
	g.Expect(value(t, r, "operator", "broker|globalnet")).To(HaveEach(false), "no Globalnet")
	g.Expect(value(t, r, "operator", "serviceAccounts|globalnet|create")).To(HaveEach(false))
	g.Expect(value(t, r, "operator", "submariner|serviceDiscovery")).To(HaveEach(true), "which Kurator turned on where Globalnet was off")
}

// Kurator's fault 9: its merge took false, 0 and "" for nothing.
func TestUserTurnsDefaultOff(t *testing.T) {
	g := NewWithT(t)
	r := render(t, "metric", `metric: {prometheus: {extraArgs: {cleanPrometheusOperatorObjectNames: false, fullnameOverride: "", crds: null,
		prometheus: {prometheusSpec: {replicas: 0, retention: null}}, prometheusOperator: {kubeletEndpointSliceEnabled: false}}}}`)
	g.Expect(policy(r, "prometheus").Overrides).NotTo(BeEmpty(), "members that have values of their own")
	for path, want := range map[string]any{"cleanPrometheusOperatorObjectNames": false, "fullnameOverride": "", "crds": nil, "prometheus|prometheusSpec|replicas": 0.0,
		"prometheus|prometheusSpec|retention": nil, "prometheusOperator|kubeletEndpointSliceEnabled": false} {
		for _, got := range value(t, r, "prometheus", path) {
			if want == nil {
				g.Expect(got).To(BeNil(), path)
			} else {
				g.Expect(got).To(Equal(want), path)
			}
		}
	}
	r = render(t, "metric", `metric: {prometheus: {nodeExporter: {enabled: false}}}`)
	g.Expect(value(t, r, "prometheus", "nodeExporter|enabled")).To(HaveEach(false))
	r = render(t, "submariner", `submariner: {globalcidrs: {alpha: 242.0.0.0/20, beta: 242.0.16.0/20}, `+cidrs+`, extraArgs: {broker: {globalnet: false}, submariner: {globalCidr: ""}}}`)
	g.Expect(value(t, r, "operator", "broker|globalnet")).To(HaveEach(false))
	g.Expect(value(t, r, "operator", "submariner|globalCidr")).To(HaveEach(""), "of members that have one each")
}

// Kurator's fault 10: an override of the version alone took the repository and the name away.
func TestChartOverrideKeepsTheRest(t *testing.T) {
	g := NewWithT(t)
	r := render(t, "metric", `metric: {prometheus: {chart: {version: 88.6.0}}}`)
	g.Expect(chart(r, "prometheus")).To(Equal("oci://ghcr.io/prometheus-community/charts kube-prometheus-stack 88.6.0"))
	g.Expect(value(t, r, "prometheus", "fullnameOverride")).To(HaveEach("prometheus"))
	r = render(t, "backup", strings.Replace(s3, "backup: {", "backup: {chart: {repository: https://velero-io.github.io/charts}, ", 1))
	g.Expect(chart(r, "velero")).To(Equal("https://velero-io.github.io/charts velero 12.1.0"))
}

// Kurator's fault 10: an override of Kyverno's or Rook's chart replaced the other charts as well.
func TestChartOverrideHitsOneComponent(t *testing.T) {
	g := NewWithT(t)
	r := render(t, "policy", `policy: {kyverno: {podSecurity: {}, chart: {version: 3.9.9}, extraArgs: {admissionController: {replicas: 1}}}}`)
	g.Expect(chart(r, "kyverno")).To(Equal("https://kyverno.github.io/kyverno kyverno 3.9.9"))
	g.Expect(chart(r, "policies")).To(Equal("https://kyverno.github.io/kyverno kyverno-policies 3.9.0"))
	g.Expect(value(t, r, "policies", "admissionController")).To(HaveEach(absent))
	r = render(t, "distributedStorage", `distributedStorage: {storage: {}, chart: {version: v1.20.9}, extraArgs: {logLevel: DEBUG}}`)
	g.Expect(chart(r, "operator")).To(Equal("https://charts.rook.io/release rook-ceph v1.20.9"))
	g.Expect(chart(r, "drivers")).To(HaveSuffix(" ceph-csi-drivers 1.0.4"))
	g.Expect(chart(r, "cluster")).To(HaveSuffix(" rook-ceph-cluster v1.20.6"))
	g.Expect(value(t, r, "cluster", "logLevel")).To(HaveEach(absent))
	// Each has a name by which it is meant.
	r = render(t, "policy", `policy: {kyverno: {podSecurity: {}}, components: {policies: {chart: {version: 3.9.1}, extraArgs: {failurePolicy: Fail}}}}`)
	g.Expect(chart(r, "policies")).To(HaveSuffix(" kyverno-policies 3.9.1"))
	g.Expect(value(t, r, "policies", "failurePolicy")).To(HaveEach("Fail"))
	g.Expect(chart(r, "kyverno")).To(HaveSuffix(" kyverno 3.9.0"))
}

// Kurator's fault 11: the token of the broker was a value of the release.
func TestNoSecretInValues(t *testing.T) {
	g := NewWithT(t)
	r := render(t, "submariner", `submariner: {`+cidrs+`}`)
	for _, path := range []string{"broker|token", "broker|ca", "ipsec|psk"} {
		g.Expect(value(t, r, "operator", path)).To(HaveEach(absent), path)
	}
	var from []string
	for _, v := range policy(r, "operator").Helm.ValuesFrom {
		g.Expect(v.Name).To(Equal(Name("prod", "submariner")))
		g.Expect(v.Literal).To(BeTrue())
		from = append(from, v.ValuesKey+" "+v.TargetPath)
	}
	g.Expect(from).To(ConsistOf("brokerToken.alpha broker.token", "brokerCA.alpha broker.ca", "psk ipsec.psk"))
	for _, f := range plugins(t)["submariner"].Spec.Facts {
		g.Expect(f.Secret).To(Equal(f.Name != "brokerServer"), f.Name)
	}
}

// Kurator's fault 11: admin/admin, for the world to see.
func TestGrafanaHasNoDefaultPassword(t *testing.T) {
	g := NewWithT(t)
	r := render(t, "grafana", `metric: {}, grafana: {}`)
	for _, path := range []string{"adminPassword", "admin", "service", "ingress"} {
		g.Expect(value(t, r, "grafana", path)).To(HaveEach(absent), path)
	}
	r = render(t, "grafana", `metric: {}, grafana: {adminSecretName: mine}`)
	g.Expect(value(t, r, "grafana", "admin")).To(ConsistOf(map[string]any{"existingSecret": "mine", "userKey": "admin-user", "passwordKey": "admin-password"}))
}

// Nothing of any plugin is served to the world unless somebody asked for it.
func TestNothingServedToTheWorld(t *testing.T) {
	g := NewWithT(t)
	asked := []string{"metric-full", "two-fleets", "names", "flagger-traefik-full", "flagger-nginx-full"}
	for name, inputs := range cases(t) {
		for _, in := range inputs {
			r, err := plugins(t)[in.Use.Name].Render(in)
			g.Expect(err).NotTo(HaveOccurred())
			b, err := yaml.Marshal(r.Application)
			g.Expect(err).NotTo(HaveOccurred())
			if served := strings.Contains(string(b), "LoadBalancer") || strings.Contains(string(b), "NodePort"); served {
				g.Expect(asked).To(ContainElement(name))
			}
		}
	}
	// Where the chart itself would.
	g.Expect(value(t, render(t, "flagger", `flagger: {trafficRoutingProvider: traefik}`), "traefik", "service|spec|type")).To(HaveEach("ClusterIP"))
	g.Expect(value(t, render(t, "flagger", `flagger: {trafficRoutingProvider: nginx}`), "nginx", "controller|service|type")).To(HaveEach("ClusterIP"))
	// And then to those who may.
	r := render(t, "metric", `metric: {thanos: {objectStoreConfig: {secretName: s}}, prometheus: {external: {sourceRanges: [10.0.0.0/8]}}}`)
	g.Expect(value(t, r, "prometheus", "prometheus|thanosServiceExternal|loadBalancerSourceRanges")).To(HaveEach([]any{"10.0.0.0/8"}))
}

// H12: a space breaks a CIDR, overlaps join unnoticed, and a name that is none is not missed.
func TestCIDRs(t *testing.T) {
	for _, c := range []struct{ config, message string }{
		{`clusterCidrs: {alpha: " 10.1.0.0/16", beta: 10.1.128.0/17}, serviceCidrs: {alpha: 10.8.0.0/16, beta: 10.9.0.0/16}`, "10.1.0.0/16 of alpha and 10.1.128.0/17 of beta: overlap, and only Globalnet"},
		{`clusterCidrs: {alpha: 10.1.0.0/16, beta: 10.2.0.0/16}, serviceCidrs: {alpha: 10.2.3.0/24, beta: 10.9.0.0/16}`, "10.2.3.0/24 of alpha and 10.2.0.0/16 of beta: overlap"},
		{`clusterCidrs: {alpha: 10.1.7.9/8, beta: 10.2.0.0/16}, serviceCidrs: {alpha: 10.101.0.0/16, beta: 11.9.0.0/16}`, "10.1.7.9/8 of alpha and 10.2.0.0/16 of beta"},
		{`clusterCidrs: {alpha: 10.1.0.0, beta: 10.2.0.0/16}, serviceCidrs: {alpha: 10.8.0.0/16, beta: 10.9.0.0/16}`, "spec.plugin.submariner.clusterCidrs.alpha: 10.1.0.0: has to be a CIDR"},
		{`clusterCidrs: {alpha: 10.1. 0.0/16, beta: 10.2.0.0/16}, serviceCidrs: {alpha: 10.8.0.0/16, beta: 10.9.0.0/16}`, "spec.plugin.submariner.clusterCidrs.alpha: 10.1. 0.0/16: has to be a CIDR"},
		{cidrs + `, globalcidrs: {alpha: 242.0.0.0/16, beta: 242.0.4.0/22}`, "242.0.0.0/16 of alpha and 242.0.4.0/22 of beta: overlap: each needs a range of its own in globalcidrs"},
		{`clusterCidrs: {alpha: 10.1.0.0/16, beta: 10.2.0.0/16, gama: 10.3.0.0/16}, serviceCidrs: {alpha: 10.8.0.0/16, beta: 10.9.0.0/16, Beta: 10.10.0.0/16}`,
			"spec.plugin.submariner.clusterCidrs.gama, spec.plugin.submariner.serviceCidrs.Beta: there is no such member"},
	} {
		_, err := try(t, "submariner", "submariner: {"+c.config+"}, metric: {}")
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(c.message)), c.config)
		render(t, "metric", "submariner: {"+c.config+"}, metric: {}") // other plugins proceed
	}
	g := NewWithT(t)
	r := render(t, "submariner", `submariner: {clusterCidrs: {alpha: " 10.1.0.0/16", beta: "10.2.0.0/16\n"}, serviceCidrs: {alpha: 10.8.0.0/16, beta: 10.9.0.0/16}}`)
	g.Expect(value(t, r, "operator", "submariner|clusterCidr")).To(ConsistOf(absent, "10.1.0.0/16", "10.2.0.0/16"))
	// With Globalnet pods and services may have the same addresses.
	r = render(t, "submariner", `submariner: {clusterCidrs: {alpha: 10.1.0.0/16, beta: 10.1.0.0/16}, serviceCidrs: {alpha: 10.8.0.0/16, beta: 10.8.0.0/16}, globalcidrs: {alpha: 242.0.0.0/20, beta: 242.0.16.0/20}}`)
	g.Expect(value(t, r, "operator", "submariner|globalCidr")).To(ConsistOf(absent, "242.0.0.0/20", "242.0.16.0/20"))
}

// Each pair of members is looked at: that is not to cost more than an expression may.
func TestCIDRsOfManyMembers(t *testing.T) {
	g := NewWithT(t)
	var clusters, pods, services []string
	for i := range 250 {
		clusters = append(clusters, fmt.Sprintf("{name: m%d}", i))
		pods = append(pods, fmt.Sprintf("m%d: 10.%d.0.0/16", i, i))
		services = append(services, fmt.Sprintf("m%d: 172.16.%d.0/24", i, i))
	}
	text := "kind: Fleet\nmetadata: {name: f, namespace: n}\nspec: {clusters: [" + strings.Join(clusters, ", ") + "], plugin: {submariner: {clusterCidrs: {" + strings.Join(pods, ", ") + "}, serviceCidrs: {" + strings.Join(services, ", ") + "}}}}\n"
	_, err := plugins(t)["submariner"].Render(parse(t, text)[0])
	g.Expect(err).NotTo(HaveOccurred())
	_, err = plugins(t)["submariner"].Render(parse(t, strings.Replace(text, "m249: 172.16.249.0/24", "m249: 10.3.4.0/24", 1))[0])
	g.Expect(err).To(MatchError(ContainSubstring("10.3.4.0/24 of m249 and 10.3.0.0/16 of m3: overlap")))
}

// One member that says too little holds up nobody else.
func TestMemberWithoutCIDR(t *testing.T) {
	g := NewWithT(t)
	r := render(t, "submariner", `submariner: {clusterCidrs: {alpha: 10.1.0.0/16}, serviceCidrs: {alpha: 10.8.0.0/16, beta: 10.9.0.0/16}}`, `plugins: {submariner: {facts: {brokerServer: "a:6443"}, kept: [brokerToken, brokerCA, psk]}}`)
	p := policy(r, "operator")
	g.Expect(held(p)).To(ConsistOf("spec.plugin.submariner.clusterCidrs.beta is missing: the CIDR of its pods"))
	g.Expect(p.Overrides[0].Clusters).To(ConsistOf("beta"))
	_, err := try(t, "submariner", `submariner: {clusterCidrs: {}, serviceCidrs: {}, brokerServer: "a:1"}`)
	g.Expect(err).NotTo(HaveOccurred())
}

// The chart writes these names without quotes: 0123 would be the number 83.
func TestNamesThatYAMLTakesForSomethingElse(t *testing.T) {
	for _, name := range []string{"0123", "1e3", "true", "no", "y", "null"} {
		g := NewWithT(t)
		text := fmt.Sprintf("kind: Fleet\nmetadata: {name: f, namespace: n}\nspec: {clusters: [{name: alpha}, {name: %q}], plugin: {submariner: {clusterCidrs: {alpha: 10.1.0.0/16, %q: 10.2.0.0/16}, serviceCidrs: {alpha: 10.8.0.0/16, %q: 10.9.0.0/16}}}}\n", name, name, name)
		r, err := plugins(t)["submariner"].Render(parse(t, text)[0])
		g.Expect(err).NotTo(HaveOccurred())
		p := policy(r, "operator")
		g.Expect(held(p)).To(ContainElement(HavePrefix(name+" cannot be the name")), name)
	}
}

// Submariner's own Endpoints are private, and Kurator's URL ended in a newline.
func TestBrokerServer(t *testing.T) {
	g := NewWithT(t)
	known := `plugins: {submariner: {facts: {brokerServer: "127.0.0.1:6443"}, kept: [brokerToken, brokerCA, psk]}}`
	r := render(t, "submariner", `submariner: {`+cidrs+`}`, known)
	g.Expect(r.Warnings).To(ConsistOf(ContainSubstring("the kubeconfig of alpha names 127.0.0.1:6443, which no other member reaches")))
	r = render(t, "submariner", `submariner: {brokerServer: "api.example.org:443", `+cidrs+`}`, known)
	g.Expect(r.Warnings).To(BeEmpty())
	g.Expect(value(t, r, "operator", "broker|server")).To(HaveEach("api.example.org:443"))
}

// What is read of the broker's Secret is what the chart wants: the token as text, the CA in base64.
func TestBrokerSecret(t *testing.T) {
	g := NewWithT(t)
	p := plugins(t)["submariner"]
	secret := map[string]any{"data": map[string]any{"token": base64.StdEncoding.EncodeToString([]byte("eyJ.x.y")), "ca.crt": "Q0E="}}
	for name, want := range map[string]string{"brokerToken": "eyJ.x.y", "brokerCA": "Q0E="} {
		g.Expect(p.Value(p.fact(name), secret)).To(Equal(want), name)
		for _, empty := range []map[string]any{{}, {"data": map[string]any{}}, {"data": map[string]any{"token": "", "ca.crt": ""}}} {
			v, err := p.Value(p.fact(name), empty)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(v).To(BeNil(), "%s is not there yet", name)
		}
	}
}

// Kurator's fault 27: a name of more than 21 letters missed the token's Secret.
func TestBrokerWithALongName(t *testing.T) {
	g := NewWithT(t)
	long := strings.Repeat("x", 63)
	text := strings.ReplaceAll("kind: Fleet\nmetadata: {name: f, namespace: n}\nspec: {clusters: [{name: LONG}, {name: b}], plugin: {submariner: {clusterCidrs: {LONG: 10.1.0.0/16, b: 10.2.0.0/16}, serviceCidrs: {LONG: 10.8.0.0/16, b: 10.9.0.0/16}}}}\n", "LONG", long)
	r, err := plugins(t)["submariner"].Render(parse(t, text)[0])
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(get(jsonOf(t, policy(r, "broker").Helm.Values), "serviceAccounts|client|name")).To(Equal("submariner-k8s-broker-client"))
	for _, read := range r.Reads {
		g.Expect(read.Member).To(Equal(long))
		if read.Resource != nil {
			g.Expect(read.Resource.Name).To(Equal("submariner-k8s-broker-client-token"))
		}
	}
	g.Expect(r.Reads).To(HaveLen(3))
}

// The operator has to be there when its object goes.
func TestSubmarinerEndsBeforeItsOperator(t *testing.T) {
	g := NewWithT(t)
	r := render(t, "submariner", `submariner: {`+cidrs+`}`)
	p := policy(r, "connection")
	g.Expect(p.DependsOn).To(ConsistOf(appsv1.NameReference{Name: "operator"}))
	g.Expect(*p.Kustomization.Prune).To(BeTrue())
	var o unstructured.Unstructured
	g.Expect(yaml.Unmarshal(r.Files["connection/submariner.yaml"], &o.Object)).To(Succeed())
	g.Expect(o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()).To(Equal("Submariner submariner-operator/submariner"))
	// It makes none itself, if there is none, and says nothing else than the chart.
	g.Expect(refused(t, o.Object)).To(ContainElement(ContainSubstring("spec.clusterID: Required value")))
	operator := value(t, r, "operator", "submariner")[1]
	spec := submariner(application.MergeValues(chartValues(t, "submariner-operator"), map[string]any{"submariner": operator})).(map[string]any)
	for name, v := range o.Object["spec"].(map[string]any) {
		g.Expect(spec).To(HaveKeyWithValue(name, v))
	}
	g.Expect(held(p)).To(Equal(held(policy(r, "operator"))), "neither is there without the other")
}

// Kurator's fault 27: load balancers that have a name were passed over.
func TestEndpointByHostname(t *testing.T) {
	p := plugins(t)["metric"]
	for ingress, want := range map[string]any{
		`[{ip: 192.0.2.7}]`:                        "192.0.2.7:10901",
		`[{hostname: lb.example.org}]`:             "dns+lb.example.org:10901",
		`[{ip: "", hostname: lb.example.org}]`:     "dns+lb.example.org:10901",
		`[{ports: []}, {hostname: b.example.org}]`: "dns+b.example.org:10901",
		`[]`: nil, `[{}]`: nil,
	} {
		g := NewWithT(t)
		var service map[string]any
		g.Expect(yaml.Unmarshal([]byte(`{status: {loadBalancer: {ingress: `+ingress+`}}}`), &service)).To(Succeed())
		got, err := p.Value(p.fact("endpoint"), service)
		g.Expect(err).NotTo(HaveOccurred())
		if want == nil {
			g.Expect(got).To(BeNil(), ingress)
		} else {
			g.Expect(got).To(Equal(want), ingress)
		}
	}
}

// Members whose metrics have the same labels are one to Thanos, and its compactor stops.
func TestLabelsOfMetrics(t *testing.T) {
	g := NewWithT(t)
	r := render(t, "metric", `metric: {}`)
	g.Expect(value(t, r, "prometheus", "prometheus|prometheusSpec|externalLabels")).To(HaveEach(map[string]any{"cluster": "<< .cluster.name >>", "fleet": "default/prod"}))
	g.Expect(value(t, r, "prometheus", "prometheus|prometheusSpec|replicaExternalLabelName")).To(HaveEach("prometheus_replica"))
}

// Kurator's policies refused the pods of its own plugins.
func TestPolicyExclusions(t *testing.T) {
	g := NewWithT(t)
	path := "vpolExclude|excludeNamespaces"
	system := []any{"kube-system", "kube-public", "kube-node-lease", "flux-system", "kyverno"}
	r := render(t, "policy", `policy: {kyverno: {podSecurity: {}}}`)
	g.Expect(value(t, r, "policies", path)).To(ConsistOf(Equal(system)))
	g.Expect(value(t, r, "policies", "validationFailureAction")).To(HaveEach("Audit"))
	g.Expect(value(t, r, "policies", "failurePolicy")).To(HaveEach("Ignore"))
	g.Expect(value(t, r, "policies", "policyType")).To(HaveEach("ValidatingPolicy"), "always said")
	r = render(t, "policy", s3+`, metric: {}, distributedStorage: {storage: {}}, submariner: {`+cidrs+`}, flagger: {trafficRoutingProvider: istio}, policy: {kyverno: {podSecurity: {excludeNamespaces: [mine, velero]}}}`)
	got := value(t, r, "policies", path)[0].([]any)
	g.Expect(got).To(ContainElements("velero", "monitoring", "rook-ceph", "submariner-operator", "submariner-k8s-broker", "flagger-system", "mine"))
	once := map[any]bool{}
	for _, n := range got {
		g.Expect(once).NotTo(HaveKey(n), "twice")
		once[n] = true
	}
	// And every namespace that a plugin makes for itself is among them.
	for name, inputs := range cases(t) {
		for _, in := range inputs {
			rendered, err := plugins(t)[in.Use.Name].Render(in)
			g.Expect(err).NotTo(HaveOccurred())
			for file, content := range rendered.Files {
				var o unstructured.Unstructured
				g.Expect(yaml.Unmarshal(content, &o.Object)).To(Succeed())
				if o.GetKind() == "Namespace" {
					g.Expect(once).To(HaveKey(o.GetName()), "%s: %s", name, file)
				}
			}
		}
	}
	r = render(t, "policy", `metric: {}, policy: {kyverno: {podSecurity: {policyType: ClusterPolicy}}}`)
	g.Expect(value(t, r, "policies", path)).To(HaveEach(absent))
	g.Expect(get(value(t, r, "policies", "policyExclude")[0], "disallow-host-path|any").([]any)[0]).To(Equal(map[string]any{"resources": map[string]any{"namespaces": append(system, "monitoring")}}))
}

// Without the annotation an uninstall of Kyverno deletes every policy of the users.
func TestKyvernoKeepsItsCRDs(t *testing.T) {
	r := render(t, "policy", `policy: {kyverno: {}}`)
	for _, path := range []string{"crds|annotations", "kyverno-api|annotations"} {
		NewWithT(t).Expect(value(t, r, "kyverno", path)).To(HaveEach(map[string]any{"helm.sh/resource-policy": "keep"}), path)
	}
	NewWithT(t).Expect(policy(r, "policies")).To(BeNil(), "nobody asked for policies")
}

// Namespaces, and what others have in them, outlive the plugin.
func TestNamespacesStay(t *testing.T) {
	g := NewWithT(t)
	seen := 0
	for name, inputs := range cases(t) {
		for _, in := range inputs {
			r, err := plugins(t)[in.Use.Name].Render(in)
			g.Expect(err).NotTo(HaveOccurred())
			for _, content := range r.Files {
				var o unstructured.Unstructured
				g.Expect(yaml.Unmarshal(content, &o.Object)).To(Succeed())
				if o.GetKind() == "Namespace" {
					seen++
					g.Expect(o.GetAnnotations()).To(HaveKeyWithValue("kustomize.toolkit.fluxcd.io/prune", "disabled"), name+": "+o.GetName())
				}
			}
		}
	}
	g.Expect(seen).To(BeNumerically(">", 20))
}

// Kurator's Flagger asked a Prometheus that was not there, in the namespace of the provider.
func TestFlagger(t *testing.T) {
	for provider, mesh := range map[string]string{"gatewayapi": "gatewayapi:v1", "traefik": "traefik", "istio": "istio", "kuma": "kuma", "nginx": "nginx"} {
		g := NewWithT(t)
		r := render(t, "flagger", `metric: {}, flagger: {publicTestloader: true, trafficRoutingProvider: `+provider+`}`)
		g.Expect(value(t, r, "flagger", "meshProvider")).To(HaveEach(mesh))
		g.Expect(value(t, r, "flagger", "metricsServer")).To(HaveEach("http://prometheus-operated.monitoring:9090"))
		g.Expect(value(t, r, "flagger", "podMonitor")).To(HaveEach(map[string]any{"enabled": true, "namespace": "monitoring"}))
		g.Expect(policy(r, "flagger").Helm.TargetNamespace).To(Equal("flagger-system"))
		g.Expect(policy(r, "loadtester").Helm.ReleaseName).To(Equal("flagger-loadtester"))
		g.Expect(r.Application.Spec.DependsOn).To(ConsistOf(appsv1.NameReference{Name: Name("prod", "metric")}))
		injected := map[string]any{"istio": map[string]any{"sidecar.istio.io/inject": "true"}, "kuma": map[string]any{"kuma.io/sidecar-injection": "enabled"}}[provider]
		if injected == nil {
			injected = absent
		}
		g.Expect(value(t, r, "loadtester", "podLabels")).To(HaveEach(injected), "a label, which Kuma wants: Kurator set an annotation")
		// Without Prometheus there are no PodMonitors, and it is said.
		r = render(t, "flagger", `flagger: {trafficRoutingProvider: `+provider+`}`)
		g.Expect(value(t, r, "flagger", "podMonitor|enabled")).To(HaveEach(false))
		g.Expect(r.Warnings).To(ContainElement(ContainSubstring("nothing says where they are")))
		g.Expect(policy(r, "loadtester")).To(BeNil())
		g.Expect(policy(r, "monitors")).To(BeNil())
	}
	_, err := try(t, "flagger", `flagger: {trafficRoutingProvider: linkerd}`)
	NewWithT(t).Expect(err).To(MatchError("spec.plugin.flagger.trafficRoutingProvider: linkerd: has to be gatewayapi, traefik, istio, kuma or nginx"))
}

// Several writers to one place overwrite and delete each other's backups: Kurator had one place for all members.
func TestBackupsOfEachMemberHaveAPlace(t *testing.T) {
	g := NewWithT(t)
	prefix := func(r *Rendered) any {
		return get(value(t, r, "velero", "configuration|backupStorageLocation")[0].([]any)[0], "prefix")
	}
	g.Expect(prefix(render(t, "backup", s3))).To(Equal("<< .application.namespace >>/<< .cluster.name >>"))
	g.Expect(prefix(render(t, "backup", strings.Replace(s3, "bucket: b", `bucket: b, prefix: "x/<<.cluster.name>>"`, 1)))).To(Equal("x/<<.cluster.name>>"))
	_, err := try(t, "backup", strings.Replace(s3, "bucket: b", `bucket: b, prefix: velero`, 1))
	g.Expect(err).To(MatchError(ContainSubstring("spec.plugin.backup.storage.location.prefix: velero: is one for all members")))
	r := render(t, "backup", s3)
	g.Expect(value(t, r, "velero", "configuration|defaultVolumesToFsBackup")).To(HaveEach(true), "not at the top, where nothing reads it")
	g.Expect(r.Application.Spec.DeletionPolicy).To(Equal("Orphan"))
}

// What the fleet says of the store comes before what we think of it.
func TestBackupConfig(t *testing.T) {
	g := NewWithT(t)
	config := func(location string) any {
		r := render(t, "backup", `backup: {storage: {secretName: s, location: {bucket: b, `+location+`}}}`)
		return get(value(t, r, "velero", "configuration|backupStorageLocation")[0].([]any)[0], "config")
	}
	g.Expect(config(`provider: aws, endpoint: "https://s3.eu-west-1.amazonaws.com", region: eu-west-1`)).To(Equal(map[string]any{"s3Url": "https://s3.eu-west-1.amazonaws.com", "region": "eu-west-1"}))
	g.Expect(config(`provider: aws, endpoint: "https://minio:9000"`)).To(Equal(map[string]any{"s3Url": "https://minio:9000", "s3ForcePathStyle": "true", "checksumAlgorithm": ""}))
	g.Expect(config(`provider: huaweicloud, endpoint: "https://obs", config: {s3ForcePathStyle: "false", region: there}, region: here`)).To(Equal(map[string]any{"s3Url": "https://obs", "s3ForcePathStyle": "false", "checksumAlgorithm": "", "region": "there"}))
}

// Rook's own defaults take every empty disk, and the place of the default StorageClass.
func TestNoDiskThatWasNotNamed(t *testing.T) {
	g := NewWithT(t)
	for _, storage := range []string{``, `storage: {useAllNodes: true}`, `storage: {nodes: [{name: node}]}`, `storage: {devices: [{name: sdb}]}`} {
		r := render(t, "distributedStorage", `distributedStorage: {storage: {`+storage+`}}`)
		g.Expect(value(t, r, "cluster", "cephClusterSpec|storage|useAllDevices")).To(HaveEach(false))
		g.Expect(r.Warnings).To(ContainElement(ContainSubstring("no disk is named")), storage)
		g.Expect(value(t, r, "cluster", "cephClusterSpec|cleanupPolicy|confirmation")).To(HaveEach(""))
		g.Expect(get(value(t, r, "cluster", "cephBlockPools")[0].([]any)[0], "storageClass|isDefault")).To(BeFalse())
		g.Expect(value(t, r, "cluster", "cephFileSystems")).To(HaveEach(BeEmpty()))
		g.Expect(r.Application.Spec.DeletionPolicy).To(Equal("Orphan"))
	}
	for _, storage := range []string{`useAllNodes: true, devices: [{name: sdb}]`, `nodes: [{name: node, devices: [{name: sdb}]}]`, `nodes: [{name: node}], devices: [{name: sdb}]`} {
		g.Expect(render(t, "distributedStorage", `distributedStorage: {storage: {storage: {`+storage+`}}}`).Warnings).NotTo(ContainElement(ContainSubstring("no disk is named")), storage)
	}
	for storage, message := range map[string]string{
		`useAllNodes: true, nodes: [{name: node}]`:           "say one of them",
		`nodes: [{devices: [{name: sdb}]}]`:                  "a node has no name",
		`nodes: [{name: node, devices: [{config: {a: b}}]}]`: "a disk has no name",
	} {
		_, err := try(t, "distributedStorage", `distributedStorage: {storage: {storage: {`+storage+`}}}`)
		g.Expect(err).To(MatchError(ContainSubstring(message)))
	}
}

// Rook 1.20 without the CSI drivers' chart serves no volume, while everything is green. Kurator had two charts, in no order.
func TestRookHasThreeChartsInOrder(t *testing.T) {
	g := NewWithT(t)
	r := render(t, "distributedStorage", `distributedStorage: {storage: {}}`)
	var names []string
	for _, p := range r.Application.Spec.SyncPolicies {
		names = append(names, p.Name)
	}
	g.Expect(names).To(Equal([]string{"namespaces", "operator", "drivers", "cluster"}))
	g.Expect(policy(r, "drivers").DependsOn).To(ConsistOf(appsv1.NameReference{Name: "operator"}))
	g.Expect(policy(r, "cluster").DependsOn).To(ConsistOf(appsv1.NameReference{Name: "drivers"}))
	var subchart struct {
		Dependencies []struct{ Alias, Version string }
	}
	g.Expect(yaml.Unmarshal(chartFile(t, "rook-ceph", "Chart.yaml"), &subchart)).To(Succeed())
	g.Expect(subchart.Dependencies).To(ContainElement(struct{ Alias, Version string }{"ceph-csi-operator", policy(r, "drivers").Helm.Chart.Spec.Version}))
}

// The chart has a class of its own as default, where the cluster's is meant.
func TestDisksOfTheDefaultClass(t *testing.T) {
	g := NewWithT(t)
	for _, path := range []string{"storeGateway|persistence", "compact|persistence"} {
		r := render(t, "metric", `metric: {thanos: {objectStoreConfig: {secretName: s}, storage: {size: 1Gi}}}`)
		g.Expect(value(t, r, "thanos", path)).To(ConsistOf(map[string]any{"enabled": true, "size": "1Gi", "storageClass": nil}))
		r = render(t, "metric", `metric: {thanos: {objectStoreConfig: {secretName: s}, storage: {size: 1Gi, storageClassName: fast}}}`)
		g.Expect(value(t, r, "thanos", path)).To(ConsistOf(map[string]any{"enabled": true, "size": "1Gi", "storageClass": "fast"}))
		r = render(t, "metric", `metric: {thanos: {objectStoreConfig: {secretName: s}}}`)
		g.Expect(value(t, r, "thanos", path)).To(ConsistOf(map[string]any{"enabled": false}))
	}
}

// Two fleets have a member of one name, in two namespaces: nothing of one is in the other.
func TestTwoFleetsWithOneMemberName(t *testing.T) {
	g := NewWithT(t)
	for _, in := range cases(t)["two-fleets"] {
		r, err := plugins(t)[in.Use.Name].Render(in)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(r.Application.Namespace).To(Equal(in.Fleet.Namespace))
		b, err := yaml.Marshal(r.Application)
		g.Expect(err).NotTo(HaveOccurred())
		other := map[string]string{"team-a": "team-b", "team-b": "team-a"}[in.Fleet.Namespace]
		g.Expect(string(b)).NotTo(ContainSubstring(other))
		for file, content := range r.Files {
			g.Expect(string(content)).NotTo(ContainSubstring(other), file)
		}
	}
}

// TestHealth holds that Flux takes the expressions, and what they say.
func TestHealth(t *testing.T) {
	all := map[string]string{}
	for name, p := range plugins(t) {
		for _, k := range p.Spec.Components {
			for _, h := range k.HealthCheckExprs {
				all[h.Kind] = name
				_, err := cel.NewStatusEvaluator(&h.HealthCheckExpressions)
				NewWithT(t).Expect(err).NotTo(HaveOccurred(), "%s of plugin %s", k.Name, name)
			}
		}
	}
	for kind, states := range map[string]map[string]status.Status{
		"Prometheus": {
			`{conditions: [{type: Available, status: "True"}, {type: Reconciled, status: "True"}]}`:  status.CurrentStatus,
			`{conditions: [{type: Available, status: "False"}, {type: Reconciled, status: "True"}]}`: status.InProgressStatus,
			`{conditions: [{type: Reconciled, status: "False"}]}`:                                    status.FailedStatus,
		},
		"ValidatingPolicy": {
			`{conditionStatus: {ready: true}}`: status.CurrentStatus, `{conditionStatus: {ready: false}}`: status.InProgressStatus, `{autogen: {}}`: status.InProgressStatus,
		},
		"BackupStorageLocation": {
			`{phase: Available}`: status.CurrentStatus, `{phase: Unavailable}`: status.FailedStatus, `{lastSyncedTime: x}`: status.InProgressStatus,
		},
		"CephCluster": {
			`{phase: Ready, ceph: {health: HEALTH_WARN}}`: status.CurrentStatus, `{phase: Ready, ceph: {health: HEALTH_ERR}}`: status.FailedStatus,
			`{phase: Progressing, ceph: {health: HEALTH_OK}}`: status.InProgressStatus, `{phase: Ready}`: status.InProgressStatus,
		},
		"Submariner": {
			`{gateways: [{haStatus: active, connections: [{status: connected}]}]}`:                       status.CurrentStatus,
			`{gateways: [{haStatus: active, connections: []}]}`:                                          status.CurrentStatus,
			`{gateways: [{haStatus: active, connections: [{status: connected}, {status: connecting}]}]}`: status.InProgressStatus,
			`{gateways: [{haStatus: passive, connections: []}]}`:                                         status.InProgressStatus,
			`{clusterID: a}`: status.InProgressStatus,
		},
	} {
		for text, want := range states {
			g := NewWithT(t)
			o := &unstructured.Unstructured{}
			g.Expect(yaml.Unmarshal([]byte(`{status: `+text+`}`), &o.Object)).To(Succeed())
			p := plugins(t)[all[kind]]
			g.Expect(p).NotTo(BeNil(), kind)
			for _, k := range p.Spec.Components {
				for _, h := range k.HealthCheckExprs {
					if h.Kind != kind {
						continue
					}
					e, err := cel.NewStatusEvaluator(&h.HealthCheckExpressions)
					g.Expect(err).NotTo(HaveOccurred())
					got, err := e.Evaluate(t.Context(), o)
					g.Expect(err).NotTo(HaveOccurred(), "%s %s", kind, text)
					g.Expect(got.Status).To(Equal(want), "%s %s", kind, text)
				}
			}
		}
		delete(all, kind)
	}
	NewWithT(t).Expect(all).To(BeEmpty(), "kinds without a test")
}
