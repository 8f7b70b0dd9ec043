package baseline

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/fluxcd/pkg/apis/kustomize"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/member"
)

// Key identifies an object on a member.
type Key struct{ Group, Kind, Namespace, Name string }

// KeyOf returns the key of an object. The version does not count: two versions of a kind are one object.
func KeyOf(o *unstructured.Unstructured) Key {
	return Key{o.GroupVersionKind().Group, o.GetKind(), o.GetNamespace(), o.GetName()}
}

// String names the object for people.
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Kind + " " + k.Name
	}
	return k.Kind + " " + k.Namespace + "/" + k.Name
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Group, b.Group))
}

// Wants is what a ClusterConfig wants on which members.
type Wants struct {
	Config  *clusterv1.ClusterConfig
	Objects []*unstructured.Unstructured
	Members []member.Key
	// Frozen are the members on which what it applies does not change for now. In Git there are none.
	Frozen map[member.Key]*Frozen
}

// Frozen is what a ClusterConfig applies on a member where it cannot be told to apply it in another way.
type Frozen struct {
	// Why says why, and what to do.
	Why string
	// Has are the objects that are applied there, and Marks say how.
	Has   map[Key]*unstructured.Unstructured
	Marks map[Key]Mark
}

// has says whether an object is applied over what is there.
func (f *Frozen) has(key Key) bool {
	return f != nil && f.Has[key] != nil && !f.Marks[key].Yields
}

// Conflict is an object that two ClusterConfigs want on the same members, and which of them has it there.
type Conflict struct {
	Holder, Loser *clusterv1.ClusterConfig
	// Members are sorted.
	Members []member.Key

	held, lost *unstructured.Unstructured
	// field is the path of the first difference, and is and wanted what the two have there; empty if they want the same.
	field, is, wanted string
	// frozen says why the holder has it whatever the priorities are, and what to do; empty if it has it by them.
	frozen string
	// patched says that overrides change the object as well, so that what is applied may differ.
	patched bool
}

// want is what one of several ClusterConfigs wants.
type want struct {
	of      int
	object  *unstructured.Unstructured
	members []member.Key
	// known says that the contents of the object are.
	known bool
}

// Conflicts returns what several ClusterConfigs of a namespace want on the same members, sorted. On each member the one
// with the highest priority has it, and among equals the one whose name comes first: what is in Git decides, and not
// what was there earlier. But who applies it and cannot be told not to goes on, and who cannot be told to does not begin.
func Conflicts(all []Wants) []Conflict {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b Wants) int {
		return cmp.Or(cmp.Compare(b.Config.Spec.Priority, a.Config.Spec.Priority), cmp.Compare(a.Config.Name, b.Config.Name))
	})
	wanted := map[Key][]want{}
	for i := range all {
		for _, w := range all[i].list(i) {
			wanted[KeyOf(w.object)] = append(wanted[KeyOf(w.object)], w)
		}
	}
	var out []Conflict
	for _, key := range slices.SortedFunc(maps.Keys(wanted), compareKeys) {
		if len(wanted[key]) < 2 {
			continue
		}
		holders := holders(all, wanted[key], key)
		for _, w := range wanted[key] {
			type lostTo struct {
				of     int
				frozen string
			}
			lost := map[lostTo][]member.Key{}
			objects := map[int]*want{}
			for _, m := range w.members {
				h := holders[m]
				if h.of == w.of {
					continue
				}
				to := lostTo{of: h.of}
				if all[h.of].Frozen[m].has(key) {
					to.frozen = all[h.of].Frozen[m].Why
				}
				lost[to], objects[h.of] = append(lost[to], m), h
			}
			order := func(a, b lostTo) int { return cmp.Or(cmp.Compare(a.of, b.of), cmp.Compare(a.frozen, b.frozen)) }
			for _, to := range slices.SortedFunc(maps.Keys(lost), order) {
				h := objects[to.of]
				c := Conflict{Holder: all[to.of].Config, Loser: all[w.of].Config, Members: lost[to], held: h.object, lost: w.object, frozen: to.frozen}
				slices.SortFunc(c.Members, func(a, b member.Key) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind)) })
				if h.known && w.known {
					c.field, c.is, c.wanted = difference(c.held.Object, c.lost.Object, "")
				} else {
					c.field, c.is, c.wanted = "the content", "not known", "known"
				}
				c.patched = patched(c.Holder, key, c.Members) || patched(c.Loser, key, c.Members)
				out = append(out, c)
			}
		}
	}
	return out
}

// list returns what the i-th ClusterConfig wants: what is declared, and what it applies where that does not change.
func (w *Wants) list(i int) []want {
	var out []want
	at := map[Key]int{}
	for _, o := range w.Objects {
		at[KeyOf(o)] = len(out)
		out = append(out, want{i, o, w.Members, true})
	}
	if len(w.Frozen) == 0 {
		return out
	}
	declared := len(out)
	members := make(map[member.Key]bool, len(w.Members))
	for _, m := range w.Members {
		members[m] = true
	}
	for m, f := range w.Frozen {
		for key, o := range f.Has {
			n, ok := at[key]
			switch {
			case !ok:
				at[key] = len(out)
				out = append(out, want{i, o, []member.Key{m}, false})
			case n >= declared || !members[m]:
				out[n].members = append(slices.Clip(out[n].members), m)
			}
		}
	}
	return out
}

// holders returns who has an object on which member. The wanted are in the order of their priorities.
func holders(all []Wants, wanted []want, key Key) map[member.Key]*want {
	out := map[member.Key]*want{}
	for _, rank := range []func(f *Frozen) bool{
		func(f *Frozen) bool { return f.has(key) },
		func(f *Frozen) bool { return f == nil },
		func(*Frozen) bool { return true },
	} {
		for i := range wanted {
			for _, m := range wanted[i].members {
				if out[m] == nil && rank(all[wanted[i].of].Frozen[m]) {
					out[m] = &wanted[i]
				}
			}
		}
	}
	return out
}

// patched says whether overrides of a ClusterConfig may change an object on some of the members. Whom a selector selects
// is not known here.
func patched(config *clusterv1.ClusterConfig, key Key, members []member.Key) bool {
	return slices.ContainsFunc(config.Spec.Overrides, func(o clusterv1.BaselineOverride) bool {
		on := len(o.Clusters) == 0 || slices.ContainsFunc(members, func(m member.Key) bool { return slices.Contains(o.Clusters, m.Name) })
		return on && slices.ContainsFunc(o.Patches, func(p kustomize.Patch) bool {
			t := p.Target
			return t == nil || matches(t.Kind, key.Kind) && matches(t.Name, key.Name) && matches(t.Namespace, key.Namespace) && matches(t.Group, key.Group)
		})
	})
}

// matches says whether a field of a patch's target selects a value, as kustomize does.
func matches(pattern, value string) bool {
	re, err := regexp.Compile("^(?:" + pattern + ")$")
	return pattern == "" || err == nil && re.MatchString(value)
}

// shared is an object that others want as well, and on which members, by name and sorted.
type shared struct {
	object  *unstructured.Unstructured
	members []string
}

// sharedObjects returns the objects that a side of the conflicts has, each once.
func sharedObjects(conflicts []Conflict, side func(*Conflict) (*unstructured.Unstructured, bool)) []shared {
	var out []shared
	at := map[Key]int{}
	for i := range conflicts {
		object, ok := side(&conflicts[i])
		if !ok {
			continue
		}
		key := KeyOf(object)
		if _, ok := at[key]; !ok {
			at[key] = len(out)
			out = append(out, shared{object: object})
		}
		for _, m := range conflicts[i].Members {
			out[at[key]].members = append(out[at[key]].members, m.Name)
		}
	}
	for i := range out {
		slices.Sort(out[i].members)
		out[i].members = slices.Compact(out[i].members)
	}
	return out
}

// Texts says, to those who look at one ClusterConfig, what it and others do not agree on.
func Texts(conflicts []Conflict, config string) []string {
	var out []string
	for _, c := range conflicts {
		if c.field == "" && !c.patched || c.Holder.Name != config && c.Loser.Name != config {
			continue
		}
		text := fmt.Sprintf("%s on %s: ", KeyOf(c.held), some(c.Members))
		switch {
		case c.field == "" && c.Holder.Name == config:
			text += fmt.Sprintf("it is as here, with the overrides of here, and not with those of ClusterConfig %s (priority %d)", c.Loser.Name, c.Loser.Spec.Priority)
		case c.field == "":
			text += fmt.Sprintf("it is as in ClusterConfig %s, which has it (priority %d), with its overrides, and not with those of here", c.Holder.Name, c.Holder.Spec.Priority)
		case c.Holder.Name == config:
			text += fmt.Sprintf("%s is %s, as here, and not %s, as in ClusterConfig %s (priority %d)", c.field, c.is, c.wanted, c.Loser.Name, c.Loser.Spec.Priority)
		case c.frozen == "":
			text += fmt.Sprintf("%s is %s, as in ClusterConfig %s, which has it (priority %d), and not %s, as here", c.field, c.is, c.Holder.Name, c.Holder.Spec.Priority, c.wanted)
		default:
			text += fmt.Sprintf("ClusterConfig %s has applied it, and keeps it whatever the priorities are, as %s", c.Holder.Name, c.frozen)
		}
		out = append(out, text)
	}
	return out
}

func some(members []member.Key) string {
	const most = 3
	var names []string
	for _, m := range members[:min(most, len(members))] {
		names = append(names, m.Name)
	}
	text := strings.Join(names, ", ")
	if n := len(members) - most; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// difference returns the path of the first difference between two values, and what is there.
func difference(a, b any, path string) (field, is, other string) {
	if x, ok := a.(map[string]any); ok {
		if y, ok := b.(map[string]any); ok {
			keys := map[string]bool{}
			for k := range x {
				keys[k] = true
			}
			for k := range y {
				keys[k] = true
			}
			for _, k := range slices.Sorted(maps.Keys(keys)) {
				if f, v, w := difference(x[k], y[k], join(path, k)); f != "" {
					return f, v, w
				}
			}
			return "", "", ""
		}
	}
	if x, ok := a.([]any); ok {
		if y, ok := b.([]any); ok && len(x) == len(y) {
			for i := range x {
				if f, v, w := difference(x[i], y[i], path+"["+strconv.Itoa(i)+"]"); f != "" {
					return f, v, w
				}
			}
			return "", "", ""
		}
	}
	if reflect.DeepEqual(a, b) {
		return "", "", ""
	}
	return path, short(a), short(b)
}

func join(path, key string) string {
	if strings.ContainsAny(key, "./[]") {
		return path + "[" + strconv.Quote(key) + "]"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

func short(v any) string {
	if v == nil {
		return "unset"
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Sprint(v)
	}
	const most = 100
	text := strings.TrimSpace(b.String())
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}
