package controllers

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fluxcd/pkg/runtime/jitter"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/plugin"
)

const (
	// missingFactInterval is how often a fact is looked for that is not there yet, and factInterval one that is.
	missingFactInterval = 15 * time.Second
	factInterval        = 5 * time.Minute
)

// Facts are what plugins know of members. Who renders a plugin says what it wants, and the MemberReader reads it: each
// member at its own time, and nothing of the hub.
type Facts struct {
	// retry is how soon a fact is looked for again that is not there.
	retry  time.Duration
	mu     sync.Mutex
	wanted map[memberRef]map[factKey]wantedFact
	got    map[memberRef]map[factKey]gotFact
	// due is when the facts of a member are to be read again; of one that is not in it, at once.
	due map[memberRef]time.Time
	// members wakes the reader for a member, and fleets the fleets that want what was read.
	members chan event.TypedGenericEvent[memberRef]
	fleets  chan event.GenericEvent
}

// NewFacts returns facts that know nothing.
func NewFacts() *Facts {
	return &Facts{
		retry:   missingFactInterval,
		wanted:  map[memberRef]map[factKey]wantedFact{},
		got:     map[memberRef]map[factKey]gotFact{},
		due:     map[memberRef]time.Time{},
		members: make(chan event.TypedGenericEvent[memberRef], 1024),
		fleets:  make(chan event.GenericEvent, 1024),
	}
}

// memberRef names a member.
type memberRef struct {
	types.NamespacedName
	Kind string
}

// factKey is a fact of a plugin that a fleet of the member's namespace uses.
type factKey struct{ fleet, plugin, name string }

type wantedFact struct {
	plugin.Read
	of *plugin.Plugin
}

// gotFact is what was read last.
type gotFact struct {
	value any // nil if it is not there
	err   string
}

// want says what a plugin of a fleet reads from members, in place of what it said before.
func (f *Facts) want(fleet *fleetv1.Fleet, name string, of *plugin.Plugin, reads []plugin.Read, members []member.Member) {
	wanted := map[memberRef]map[factKey]wantedFact{}
	for _, read := range reads {
		for i := range members {
			m := &members[i]
			if m.Kind == "" || m.Leaving || m.Reason == member.DuplicateReason || read.Member != "" && read.Member != m.Name {
				continue
			}
			ref := memberRef{types.NamespacedName{Namespace: fleet.Namespace, Name: m.Name}, m.Kind}
			if wanted[ref] == nil {
				wanted[ref] = map[factKey]wantedFact{}
			}
			wanted[ref][factKey{fleet.Name, name, read.Name}] = wantedFact{read, of}
		}
	}
	f.mu.Lock()
	var wake []memberRef
	for ref, facts := range f.wanted {
		if ref.Namespace != fleet.Namespace {
			continue
		}
		for key := range facts {
			if _, still := wanted[ref][key]; key.fleet == fleet.Name && key.plugin == name && !still {
				delete(facts, key)
				delete(f.got[ref], key)
			}
		}
		if len(facts) == 0 {
			delete(f.wanted, ref)
			delete(f.got, ref)
			delete(f.due, ref)
		}
	}
	for ref, facts := range wanted {
		if f.wanted[ref] == nil {
			f.wanted[ref] = map[factKey]wantedFact{}
		}
		for key, w := range facts {
			if was, ok := f.wanted[ref][key]; !ok || was.of != w.of || !sameRead(was.Read, w.Read) {
				f.wanted[ref][key] = w
				delete(f.got[ref], key)
				delete(f.due, ref)
				wake = append(wake, ref)
			}
		}
	}
	f.mu.Unlock()
	for _, ref := range slices.CompactFunc(wake, func(a, b memberRef) bool { return a == b }) {
		f.members <- event.TypedGenericEvent[memberRef]{Object: ref}
	}
}

func sameRead(a, b plugin.Read) bool {
	if a.Fact != b.Fact || a.Member != b.Member || (a.Resource == nil) != (b.Resource == nil) {
		return false
	}
	return a.Resource == nil || *a.Resource == *b.Resource
}

// observed returns what is known of the facts of a plugin. What is secret comes apart. Of a member that was not read since
// the process began, the endpoints in the status of the fleet are known; unread is one that has to be read first: because it
// is ready, and will be, or because the plugin was delivered with what was known of it before.
func (f *Facts) observed(fleet *fleetv1.Fleet, name string, reads []plugin.Read, members []member.Member, delivered bool) (o plugin.Observed, secrets map[string]string, unread string) {
	o = plugin.Observed{Facts: map[string]any{}, OfMembers: map[member.Key]map[string]any{}}
	secrets = map[string]string{}
	last := map[member.Key]map[string]string{}
	for _, e := range fleet.Status.PluginEndpoints {
		if e.Plugin != name {
			continue
		}
		key := member.Key{Kind: e.Kind, Name: e.Cluster}
		if last[key] == nil {
			last[key] = map[string]string{}
		}
		last[key][e.Name] = e.Address
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, read := range reads {
		for i := range members {
			m := &members[i]
			if m.Kind == "" || m.Leaving || m.Reason == member.DuplicateReason || read.Member != "" && read.Member != m.Name {
				continue
			}
			ref := memberRef{types.NamespacedName{Namespace: fleet.Namespace, Name: m.Name}, m.Kind}
			got, ok := f.got[ref][factKey{fleet.Name, name, read.Name}]
			value := got.value
			// Of one that cannot be read, what the others need of it would be taken for not there.
			if _, lasting := last[m.Key()][read.Name]; !ok && !lasting && (m.Ready || read.Member != "" && delivered) && unread == "" {
				unread = m.Name
			}
			if address := last[m.Key()][read.Name]; value == nil && address != "" && (!ok || got.err != "") {
				value = address
			}
			switch {
			case value == nil:
			case read.Secret:
				secrets[read.Key()] = fmt.Sprint(value)
			case read.Member != "":
				o.Facts[read.Name] = value
			default:
				if o.OfMembers[m.Key()] == nil {
					o.OfMembers[m.Key()] = map[string]any{}
				}
				o.OfMembers[m.Key()][read.Name] = value
			}
		}
	}
	return o, secrets, unread
}

// forgetFleet drops what the plugins of a fleet want, but for those named.
func (f *Facts) forgetFleet(fleet types.NamespacedName, but map[string]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ref, facts := range f.wanted {
		for key := range facts {
			if ref.Namespace == fleet.Namespace && key.fleet == fleet.Name && !but[key.plugin] {
				delete(facts, key)
				delete(f.got[ref], key)
			}
		}
		if len(facts) == 0 {
			delete(f.wanted, ref)
			delete(f.got, ref)
		}
	}
}

// of returns what is wanted of a member, and when it is to be read; what is due already, now.
func (f *Facts) of(ref memberRef) (wanted map[factKey]wantedFact, in time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.wanted[ref]), max(0, time.Until(f.due[ref]))
}

// store keeps what was read of a member, and wakes the fleets for which something is new.
func (f *Facts) store(ref memberRef, read map[factKey]gotFact) (next time.Duration) {
	next = jitter.JitteredIntervalDuration(factInterval)
	wake := map[string]bool{}
	f.mu.Lock()
	for key, got := range read {
		if _, wanted := f.wanted[ref][key]; !wanted {
			continue
		}
		if got.value == nil {
			next = f.retry
		}
		if got.err != "" {
			got.value = f.got[ref][key].value
		}
		if was, ok := f.got[ref][key]; !ok || fmt.Sprint(was.value) != fmt.Sprint(got.value) || was.err != got.err {
			wake[key.fleet] = true
		}
		if f.got[ref] == nil {
			f.got[ref] = map[factKey]gotFact{}
		}
		f.got[ref][key] = got
	}
	f.due[ref] = time.Now().Add(next)
	f.mu.Unlock()
	for name := range wake {
		fleet := &fleetv1.Fleet{}
		fleet.Name, fleet.Namespace = name, ref.Namespace
		f.fleets <- event.GenericEvent{Object: fleet}
	}
	return next
}

// problems returns what went wrong in reading the facts of a plugin, a line for each member, sorted.
func (f *Facts) problems(fleet *fleetv1.Fleet, name string) (texts []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ref, facts := range f.got {
		for key, got := range facts {
			if ref.Namespace == fleet.Namespace && key.fleet == fleet.Name && key.plugin == name && got.err != "" {
				texts = append(texts, fmt.Sprintf("member %s: fact %s: %s", ref.Name, key.name, got.err))
			}
		}
	}
	slices.Sort(texts)
	return texts
}
