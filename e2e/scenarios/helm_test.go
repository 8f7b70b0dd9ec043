package scenarios

import (
	"fmt"
	"os"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	"github.com/fleetwright/fleetwright/e2e/harness"
)

// chart is a chart that says which values it got.
var chart = files{
	"chart/Chart.yaml":            "apiVersion: v2\nname: greeter\nversion: 1.0.0\n",
	"chart/values.yaml":           "greeting: none\nwho: nobody\n",
	"chart/templates/config.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}}\ndata: {text: \"{{ .Values.greeting }}, {{ .Values.who }}\"}\n",
}

func greeter(name, helm string) string {
	return fmt.Sprintf(`
apiVersion: apps.kurator.dev/v1alpha1
kind: Application
metadata: {name: %s}
spec:
  source: {gitRepository: {url: $GIT/chart, interval: 1h, ref: {branch: main}}}
  destination: {fleet: prod}
  syncPolicies:
  - name: app
    helm:
      chart: {spec: {chart: ./chart}}
      interval: 1h
      %s
`, name, helm)
}

// releasesOn returns the revisions that Helm keeps on a member in the scenario's namespace.
func (s *scenario) releasesOn(member *harness.Cluster) func() []string {
	return func() []string {
		var secrets corev1.SecretList
		s.Expect(member.Client.List(s.ctx, &secrets, client.InNamespace(s.ns), client.MatchingLabels{"owner": "helm"})).To(Succeed())
		var out []string
		for _, secret := range secrets.Items {
			out = append(out, secret.Labels["name"]+" v"+secret.Labels["version"])
		}
		return out
	}
}

// A chart in Git, installed, upgraded and uninstalled on each member with the values that are its own.
func TestHelm(t *testing.T) {
	s := begin(t)
	if path := os.Getenv("HELM_CONTROLLER"); path != "" {
		t.Logf("with helm-controller: %s", path)
	} else {
		t.Log("with helm-standin in place of helm-controller, as HELM_CONTROLLER is not set")
	}
	one, two := env.Members[0], env.Members[1]
	s.push("chart", chart)
	s.attach("one", one, "tone=kind")
	s.attach("two", two, "tone=rude")
	s.apply(fleet("prod", "one", "two"))
	app := greeter("greeter", `targetNamespace: $NAMESPACE
      values: {greeting: hello, who: << .cluster.name >>}`) + `    overrides:
    - {clusters: [two], helm: {values: {greeting: "what do you want"}}}
`
	s.apply(app)

	t.Log("installed on both, with one chart for all")
	s.Eventually(s.data(one, s.ns, "greeter-app")).Should(HaveKeyWithValue("text", "hello, one"))
	s.Eventually(s.data(two, s.ns, "greeter-app")).Should(HaveKeyWithValue("text", "what do you want, two"))
	s.ready("greeter", "2/2")
	s.Expect(s.releasesOn(one)()).To(ConsistOf("greeter-app v1"))
	s.Expect(s.releasesOn(two)()).To(ConsistOf("greeter-app v1"))
	var charts sourcev1.HelmChartList
	s.Expect(env.Hub.Client.List(s.ctx, &charts, client.InNamespace(s.ns))).To(Succeed())
	s.Expect(charts.Items).To(HaveLen(1))

	t.Log("other values for one member upgrade that one alone")
	versions := s.resourceVersions()
	s.apply(replace(app, "what do you want", "go away"))
	s.Eventually(s.data(two, s.ns, "greeter-app")).Should(HaveKeyWithValue("text", "go away, two"))
	s.ready("greeter", "2/2")
	s.Expect(s.releasesOn(two)()).To(ConsistOf("greeter-app v1", "greeter-app v2"))
	s.Expect(s.releasesOn(one)()).To(ConsistOf("greeter-app v1"))
	s.Expect(s.resourceVersions()).To(HaveKeyWithValue("greeter-app-one", versions["greeter-app-one"]))

	t.Log("other values for all upgrade all")
	s.apply(replace(app, "what do you want", "go away", "who: <<", "who: dear <<"))
	s.Eventually(s.data(one, s.ns, "greeter-app")).Should(HaveKeyWithValue("text", "hello, dear one"))
	s.Eventually(s.data(two, s.ns, "greeter-app")).Should(HaveKeyWithValue("text", "go away, dear two"))

	t.Log("a member that leaves has the release uninstalled; the other keeps it")
	s.apply(fleet("prod", "one"))
	s.Eventually(s.releasesOn(two)).Should(BeEmpty())
	s.Expect(s.data(two, s.ns, "greeter-app")()).To(BeNil())
	s.ready("greeter", "1/1")
	s.Expect(s.releasesOn(one)()).To(ConsistOf("greeter-app v1", "greeter-app v2"))

	t.Log("the Application goes, and the release and the chart with it")
	s.delete(s.app("greeter"))
	s.Eventually(s.gone(&appsv1.Application{ObjectMeta: s.named("greeter")})).Should(BeTrue())
	s.Expect(s.releasesOn(one)()).To(BeEmpty())
	s.Expect(s.left()).To(BeEmpty())
}

// H1: facts of a member arrive in a chart as what they are, keys with dots and lists included.
func TestValuesOfFacts(t *testing.T) {
	s := begin(t)
	s.push("chart", chart)
	s.push("chart", files{"chart/templates/config.yaml": `
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}}
data:
  host: {{ index .Values.hosts 0 }}
  tenant: "{{ kindOf .Values.tenant }} {{ .Values.tenant }}"
  legacy: "{{ kindOf .Values.legacy }} {{ .Values.legacy }}"
  replicas: "{{ kindOf .Values.replicas }} {{ .Values.replicas }}"
`})
	s.attach("one", env.Members[0], "topology.kubernetes.io/region=eu", `tenant="004"`, `legacy="no"`, `replicas="3"`)
	s.apply(fleet("prod", "one"))
	s.apply(greeter("greeter", `targetNamespace: $NAMESPACE
      values:
        hosts: ['<< index .cluster.labels "topology.kubernetes.io/region" >>.example.org']
        tenant: << .cluster.labels.tenant >>
        legacy: << .cluster.labels.legacy >>
        replicas: << .cluster.labels.replicas | number >>`))
	s.Eventually(s.data(env.Members[0], s.ns, "greeter-app")).Should(Equal(map[string]string{
		"host": "eu.example.org", "tenant": "string 004", "legacy": "string no", "replicas": "float64 3",
	}))
	s.ready("greeter", "1/1")
}
