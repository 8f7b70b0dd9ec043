package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fleetwright/fleetwright/renderers/plugin"
)

var (
	// errUnknownPlugin says that a fleet uses a plugin which nobody has brought.
	errUnknownPlugin = errors.New("unknown plugin")
	errUnknownType   = errors.New("unknown type")
	// errPluginNotLoaded says that a plugin is registered, but is not there to be used: who uses it keeps what it has.
	errPluginNotLoaded = errors.New("plugin not loaded")
	// errPluginNameTaken says that a PluginConfig brings a plugin whose name another one has.
	errPluginNameTaken = errors.New("the name is taken")
)

// Plugins are those of the catalog, and those that PluginConfigs have brought.
type Plugins struct {
	catalog map[string]*plugin.Plugin

	mu sync.RWMutex
	// brought are the plugins that PluginConfigs bring.
	brought map[types.NamespacedName]broughtPlugins
	// loading is true until it is known which PluginConfigs there are.
	loading bool
	changed []func(namespace string)
}

// Registered is a plugin as a fleet may use it.
type Registered struct {
	*plugin.Plugin
	// Config is what its PluginConfig gives it, under the fleet's own. Numbers are json.Number. It is only read.
	Config map[string]any
	// Revision of what was fetched; empty for one of the catalog.
	Revision string
}

// broughtPlugins are the plugins that one PluginConfig brings.
type broughtPlugins struct {
	uid     types.UID
	created metav1.Time
	// generation that was looked at; 0 for none yet.
	generation int64
	plugins    []broughtPlugin
}

// broughtPlugin is one of them, and how it is.
type broughtPlugin struct {
	name string
	// config gives it parameters.
	config map[string]any
	// Plugin is the last good one, of revision; nil while there is none.
	*plugin.Plugin
	revision string
	// tried says what was loaded last, and broken what is wrong with that; empty if it is the last good one.
	tried, broken string
	// state says how it is, and problem why.
	state   pluginState
	problem string
}

// pluginState says how a plugin that a PluginConfig brings is.
type pluginState int

const (
	pluginLoaded  pluginState = iota // it is what was fetched last
	pluginWaiting                    // it is being fetched
	pluginFailing                    // it cannot be fetched, which is tried again
	pluginStalled                    // only a change of what is declared or published mends it
)

// NewPlugins returns those of a catalog.
func NewPlugins(catalog map[string]*plugin.Plugin) *Plugins {
	return &Plugins{catalog: catalog, brought: map[types.NamespacedName]broughtPlugins{}}
}

// OnChange has f called, from now on, after the plugins of a namespace have changed; with no namespace, those of any may
// have. It must not wait.
func (p *Plugins) OnChange(f func(namespace string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed = append(p.changed, f)
}

// Changes is a source of a controller that is to look again when the plugins of a namespace have changed: at what leadsTo
// returns for it.
func (p *Plugins) Changes(leadsTo func(ctx context.Context, namespace string) []reconcile.Request) source.Source {
	return source.Func(func(ctx context.Context, q queue) error {
		p.OnChange(func(namespace string) {
			for _, request := range leadsTo(ctx, namespace) {
				q.Add(request)
			}
		})
		return nil
	})
}

// Get returns a plugin that a fleet of the namespace may use, and the config that its PluginConfig gives it. An error is an
// errUnknownPlugin or an errPluginNotLoaded.
func (p *Plugins) Get(namespace, name string) (Registered, error) {
	return p.find(namespace, name, false)
}

// RuleType returns a type of rules that a ClusterCompliance of the namespace may use, as Get does.
func (p *Plugins) RuleType(namespace, name string) (Registered, error) {
	return p.find(namespace, name, true)
}

func (p *Plugins) find(namespace, name string, ruleType bool) (Registered, error) {
	if known, ok := p.catalog[name]; ok {
		return Registered{Plugin: known}, nil
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	owner, found := p.owner(namespace, name)
	switch {
	case p.inCatalog(name) == "" && found == nil && p.loading:
		return Registered{}, fmt.Errorf("%w: PluginConfigs are being read", errPluginNotLoaded)
	case p.inCatalog(name) != "" || found == nil:
		if ruleType { // there are too many to list
			return Registered{}, fmt.Errorf("%w %q: Fleetwright does not come with it, and no PluginConfig in namespace %s registers it", errUnknownType, name, namespace)
		}
		return Registered{}, fmt.Errorf("%w %q: there are %s; others are registered by a PluginConfig in namespace %s", errUnknownPlugin, name,
			strings.Join(p.names(namespace, false), ", "), namespace)
	case found.Plugin == nil:
		return Registered{}, fmt.Errorf("%w: PluginConfig %s: %s", errPluginNotLoaded, owner.Name, cmp.Or(found.problem, "it is being fetched"))
	}
	return Registered{Plugin: found.Plugin, Config: found.config, Revision: found.revision}, nil
}

// inCatalog returns the plugin of the catalog that has a name, or the same but for capitals: what is made for the two would
// have one name. It is empty if there is none.
func (p *Plugins) inCatalog(name string) string {
	for known := range p.catalog {
		if strings.EqualFold(known, name) {
			return known
		}
	}
	return ""
}

// RuleTypes returns the names of the types of rules that a ClusterCompliance of the namespace may use.
func (p *Plugins) RuleTypes(namespace string) []string {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.names(namespace, true)
}

// names returns the plugins that a fleet of the namespace may use, or the types of rules.
func (p *Plugins) names(namespace string, ruleTypes bool) (names []string) {
	for name, known := range p.catalog {
		if known.IsRuleType() == ruleTypes {
			names = append(names, name)
		}
	}
	for key, b := range p.brought {
		for i := range b.plugins {
			if key.Namespace == namespace && (b.plugins[i].Plugin == nil || b.plugins[i].IsRuleType() == ruleTypes) {
				names = append(names, b.plugins[i].name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// owner returns the PluginConfig that has the name of a plugin in a namespace: the oldest one, and of those the first.
func (p *Plugins) owner(namespace, name string) (types.NamespacedName, *broughtPlugin) {
	var owner types.NamespacedName
	var oldest metav1.Time
	var found *broughtPlugin
	for key, b := range p.brought {
		if key.Namespace != namespace {
			continue
		}
		i := slices.IndexFunc(b.plugins, func(q broughtPlugin) bool { return q.name == name })
		if i < 0 {
			continue
		}
		if found == nil || b.created.Before(&oldest) || b.created.Equal(&oldest) && key.Name < owner.Name {
			owner, oldest, found = key, b.created, &b.plugins[i]
		}
	}
	return owner, found
}

// taken says who else has the name of a plugin that a PluginConfig brings; nil if nobody has.
func (p *Plugins) taken(key types.NamespacedName, name string) error {
	if known := p.inCatalog(name); known != "" {
		return fmt.Errorf("%w: %s comes with Fleetwright, and cannot be replaced: give the plugin another name", errPluginNameTaken, known)
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	if owner, found := p.owner(key.Namespace, name); found != nil && owner != key {
		return fmt.Errorf("%w: PluginConfig %s brings a plugin %s already: give this one another name, or take it out of one of the two", errPluginNameTaken, owner.Name, found.name)
	}
	return nil
}

// get returns what a PluginConfig brings.
func (p *Plugins) get(key types.NamespacedName) (broughtPlugins, bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	b, ok := p.brought[key]
	return b, ok
}

// set replaces what a PluginConfig brings.
func (p *Plugins) set(key types.NamespacedName, b broughtPlugins) {
	p.mu.Lock()
	before, ok := p.brought[key]
	p.brought[key] = b
	p.mu.Unlock()
	if !ok || !before.equal(b) {
		p.notify(key.Namespace)
	}
}

// remove forgets a PluginConfig.
func (p *Plugins) remove(key types.NamespacedName) {
	p.mu.Lock()
	_, ok := p.brought[key]
	delete(p.brought, key)
	p.mu.Unlock()
	if ok {
		p.notify(key.Namespace)
	}
}

// isLoading says whether PluginConfigs are yet to be read: what is not known may be in a moment, which OnChange tells.
func (p *Plugins) isLoading() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.loading
}

// load says whether PluginConfigs are yet to be read.
func (p *Plugins) load(loading bool) {
	p.mu.Lock()
	changed := p.loading != loading
	p.loading = loading
	p.mu.Unlock()
	if changed {
		p.notify("")
	}
}

func (p *Plugins) notify(namespace string) {
	p.mu.RLock()
	changed := slices.Clone(p.changed)
	p.mu.RUnlock()
	for _, f := range changed {
		f(namespace)
	}
}

func (b broughtPlugins) equal(o broughtPlugins) bool {
	return b.uid == o.uid && b.generation == o.generation && slices.EqualFunc(b.plugins, o.plugins, func(x, y broughtPlugin) bool {
		return x.name == y.name && x.Plugin == y.Plugin && x.revision == y.revision && x.state == y.state && x.problem == y.problem &&
			reflect.DeepEqual(x.config, y.config)
	})
}
