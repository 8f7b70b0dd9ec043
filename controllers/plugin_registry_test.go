package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fleetwright/fleetwright/renderers/plugin"
)

func TestPluginRegistry(t *testing.T) {
	g := NewWithT(t)
	known, err := plugin.Parse([]byte(goodPlugin))
	g.Expect(err).NotTo(HaveOccurred())
	p := NewPlugins(map[string]*plugin.Plugin{"distributedStorage": known})
	var woken []string
	p.OnChange(func(namespace string) { woken = append(woken, namespace) })
	says := func(namespace, name string) string {
		r, err := p.Get(namespace, name)
		if err != nil {
			return err.Error()
		}
		return r.Revision
	}
	key := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "a", Name: name} }
	brings := func(created int64, generation int64, plugins ...broughtPlugin) broughtPlugins {
		return broughtPlugins{uid: "1", created: metav1.NewTime(time.Unix(created, 0)), generation: generation, plugins: plugins}
	}
	loaded := func(revision string) broughtPlugin {
		return broughtPlugin{name: "x", Plugin: known, revision: revision}
	}

	g.Expect(p.names("", false)).To(Equal([]string{"distributedStorage"}))
	g.Expect(says("a", "distributedStorage")).To(BeEmpty())
	g.Expect(says("a", "x")).To(Equal(`unknown plugin "x": there are distributedStorage; others are registered by a PluginConfig in namespace a`))

	t.Log("until it is known which PluginConfigs there are, nothing is unknown")
	p.load(true)
	g.Expect(says("a", "x")).To(Equal("plugin not loaded: PluginConfigs are being read"))
	p.load(false)
	g.Expect(woken).To(Equal([]string{"", ""}))

	t.Log("one that is not loaded says why; the last good one is used")
	p.set(key("late"), brings(2, 1, broughtPlugin{name: "x", state: pluginFailing, problem: "no such host"}))
	g.Expect(says("a", "x")).To(Equal("plugin not loaded: PluginConfig late: no such host"))
	g.Expect(says("b", "x")).To(HavePrefix("unknown plugin"))
	p.set(key("late"), brings(2, 1, loaded("1")))
	g.Expect(says("a", "x")).To(Equal("1"))
	broken := loaded("1")
	broken.is(pluginStalled, "bad")
	p.set(key("late"), brings(2, 1, broken))
	g.Expect(says("a", "x")).To(Equal("1"))

	t.Log("who is woken only when something has changed")
	woken = nil
	p.set(key("late"), brings(2, 1, broken))
	g.Expect(woken).To(BeEmpty())
	p.set(key("late"), brings(2, 2, broken))
	g.Expect(woken).To(Equal([]string{"a"}))

	t.Log("the older one has the name, and then the first")
	p.set(key("z"), brings(1, 1, loaded("z")))
	g.Expect(says("a", "x")).To(Equal("z"))
	p.set(key("y"), brings(1, 1, loaded("y")))
	g.Expect(says("a", "x")).To(Equal("y"))
	g.Expect(p.taken(key("y"), "x")).To(Succeed())
	g.Expect(p.taken(key("z"), "x")).To(And(MatchError(errPluginNameTaken), MatchError(ContainSubstring("PluginConfig y brings"))))
	g.Expect(p.taken(key("y"), "distributedstorage")).To(MatchError(ContainSubstring("distributedStorage comes with Fleetwright")))
	p.remove(key("y"))
	p.remove(key("z"))
	g.Expect(says("a", "x")).To(Equal("1"))
	p.remove(key("late"))
	g.Expect(says("a", "x")).To(HavePrefix("unknown plugin"))
}
