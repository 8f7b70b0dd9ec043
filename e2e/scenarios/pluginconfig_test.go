package scenarios

import (
	"fmt"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	. "github.com/onsi/gomega"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

const outsidePlugin = `
apiVersion: kurator.dev/v1alpha1
kind: Plugin
metadata: {name: banner}
spec:
  parameters:
    type: object
    required: [text]
    properties:
      text: {type: string}
  components:
  - name: namespaces
    objects:
    - apiVersion: v1
      kind: Namespace
      metadata:
        name: $NAMESPACE
        annotations: {kustomize.toolkit.fluxcd.io/prune: disabled}
  - name: banner
    dependsOn: [namespaces]
    objects:
    - apiVersion: v1
      kind: ConfigMap
      metadata: {name: banner, namespace: $NAMESPACE}
      data: {text: "${config.text} from << .cluster.name >>"}
`

// outsideType is a type of rules: an object on the members, and what it is made of.
const outsideType = `
apiVersion: kurator.dev/v1alpha1
kind: RuleType
metadata: {name: note}
spec:
  parameters:
    type: object
    required: [text]
    properties:
      text: {type: string}
  objects:
  - object:
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: note, namespace: $NAMESPACE}
      data: {text: "${config.text} (${rule.name}, ${string(rule.enforce)})"}
`

const outsideRules = `
apiVersion: cluster.kurator.dev/v1alpha1
kind: ClusterCompliance
metadata: {name: notes}
spec:
  clusterName: one
  rules:
  - {name: first, type: note, params: {enforce: true, text: noted}}
  - {name: second, type: nosuch}
`

const outsideConfig = `
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: plugins}
spec: {url: $GIT/plugins, interval: 1m, ref: {branch: main}}
---
apiVersion: kurator.dev/v1alpha1
kind: PluginConfig
metadata: {name: ours}
spec:
  plugins:
  - name: banner
    sourceRef: {kind: GitRepository, name: plugins}
    path: banner
    config: {text: Hello}
  - name: note
    sourceRef: {kind: GitRepository, name: plugins}
    path: note
`

// A plugin from a Git folder: no Go file knows of it.
func TestPluginFromGit(t *testing.T) {
	s := begin(t)
	one, two := env.Members[0], env.Members[1]
	s.attach("one", one)
	s.attach("two", two)
	s.push("plugins", files{"banner/plugin.yaml": outsidePlugin, "note/plugin.yaml": outsideType})
	s.apply(outsideConfig)
	s.apply(outsideRules)
	uses := fleet("outside", "one", "two") + "  plugins: [{name: banner}]\n"
	s.apply(uses)
	for i, member := range env.Members[:2] {
		s.Eventually(s.data(member, s.ns, "banner")).Should(HaveKeyWithValue("text", fmt.Sprintf("Hello from %s", []string{"one", "two"}[i])))
	}
	status := func() fleetv1.PluginStatus {
		f := get(s, &fleetv1.Fleet{}, "outside")
		if len(f.Status.Plugins) != 1 {
			return fleetv1.PluginStatus{}
		}
		return f.Status.Plugins[0]
	}
	s.Eventually(func() string { return status().Ready + " " + status().Members }).Should(Equal("True 2/2"))

	// So does a type of rules. One that nobody knows is that rule's failure.
	s.Eventually(s.data(one, s.ns, "note")).Should(HaveKeyWithValue("text", "noted (first, true)"))
	rules := func() string {
		return fmt.Sprint(get(s, &clusterv1.ClusterCompliance{}, "notes").Status.Rules)
	}
	s.Eventually(rules).Should(And(ContainSubstring("{first note enforce True"), ContainSubstring(`unknown type "nosuch"`)))
	s.Expect(s.data(two, s.ns, "note")()).To(BeNil())

	// What the fleet says has the last word; a new revision reaches the members.
	s.apply(fleet("outside", "one", "two") + "  plugins: [{name: banner, config: {text: Bye}}]\n")
	s.Eventually(s.data(one, s.ns, "banner")).Should(HaveKeyWithValue("text", "Bye from one"))
	s.push("plugins", files{"banner/plugin.yaml": replace(outsidePlugin, "from <<", "to <<")})
	s.pushed("plugins")
	s.Eventually(s.data(two, s.ns, "banner")).Should(HaveKeyWithValue("text", "Bye to two"))

	// One that is broken changes nothing, and neither does a restart, which has the last good one no more.
	s.push("plugins", files{"banner/plugin.yaml": replace(outsidePlugin, "config.text} from", "config.txet.nosuch(} from"),
		"note/plugin.yaml": replace(outsideType, "objects:", "nothing:")})
	s.pushed("plugins")
	s.Eventually(func() (string, error) {
		return s.run("kubectl", "get", "pluginconfig", "ours", "-o", "jsonpath={.status.plugins[0].message}")
	}).Should(ContainSubstring("plugin.yaml"))
	s.restartController(func() {})
	s.Eventually(func() string { return status().Reason }).Should(Equal("NotLoaded"))
	s.Consistently(s.data(two, s.ns, "banner")).Should(HaveKeyWithValue("text", "Bye to two"))

	s.Eventually(func() string {
		return condition(get(s, &clusterv1.ClusterCompliance{}, "notes").Status.Conditions, meta.ReadyCondition)
	}).Should(And(HavePrefix("Unknown NotLoaded: "), ContainSubstring("which namespaces plugin banner of Fleet outside has, and are to be left alone, is not known")))
	s.Consistently(s.data(one, s.ns, "note")).Should(HaveKeyWithValue("text", "noted (first, true)"))

	// They end with who uses them, whether they are known or not.
	s.delete(&clusterv1.ClusterCompliance{ObjectMeta: s.named("notes")})
	s.Eventually(s.data(one, s.ns, "note")).Should(BeNil())
	s.delete(&fleetv1.Fleet{ObjectMeta: s.named("outside")})
	s.Eventually(s.gone(&fleetv1.Fleet{ObjectMeta: s.named("outside")})).Should(BeTrue())
	s.Eventually(s.data(one, s.ns, "banner")).Should(BeNil())
	s.Eventually(s.data(two, s.ns, "banner")).Should(BeNil())
	s.Expect(s.left()).To(BeEmpty())
}
