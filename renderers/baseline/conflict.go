package baseline

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

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
}

// Conflict is an object that two ClusterConfigs want on the same members, and which of them has it there.
type Conflict struct {
	Holder, Loser *clusterv1.ClusterConfig
	// Members are sorted.
	Members []member.Key

	held, lost *unstructured.Unstructured
	// field is the path of the first difference, and is and wanted what the two have there; empty if they want the same.
	field, is, wanted string
}

// Conflicts returns what several ClusterConfigs of a namespace want on the same members, sorted. On each member the one
// with the highest priority has it, and among equals the one whose name comes first: what is in Git decides, and not
// what was there earlier.
func Conflicts(all []Wants) []Conflict {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b Wants) int {
		return cmp.Or(cmp.Compare(b.Config.Spec.Priority, a.Config.Spec.Priority), cmp.Compare(a.Config.Name, b.Config.Name))
	})
	type want struct {
		of     int
		object *unstructured.Unstructured
	}
	wanted := map[Key][]want{}
	for i, w := range all {
		for _, o := range w.Objects {
			wanted[KeyOf(o)] = append(wanted[KeyOf(o)], want{i, o})
		}
	}
	var out []Conflict
	for _, key := range slices.SortedFunc(maps.Keys(wanted), compareKeys) {
		if len(wanted[key]) < 2 {
			continue
		}
		holder := map[member.Key]want{}
		for _, w := range wanted[key] {
			lost := map[int][]member.Key{}
			objects := map[int]*unstructured.Unstructured{}
			for _, m := range all[w.of].Members {
				if h, ok := holder[m]; ok {
					lost[h.of], objects[h.of] = append(lost[h.of], m), h.object
				} else {
					holder[m] = w
				}
			}
			for _, h := range slices.Sorted(maps.Keys(lost)) {
				c := Conflict{Holder: all[h].Config, Loser: all[w.of].Config, Members: lost[h], held: objects[h], lost: w.object}
				slices.SortFunc(c.Members, func(a, b member.Key) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind)) })
				c.field, c.is, c.wanted = difference(c.held.Object, c.lost.Object, "")
				out = append(out, c)
			}
		}
	}
	return out
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
		if c.field == "" || c.Holder.Name != config && c.Loser.Name != config {
			continue
		}
		text := fmt.Sprintf("%s on %s: %s is ", KeyOf(c.held), some(c.Members), c.field)
		if c.Holder.Name == config {
			text += fmt.Sprintf("%s, as here, and not %s, as in ClusterConfig %s (priority %d)", c.is, c.wanted, c.Loser.Name, c.Loser.Spec.Priority)
		} else {
			text += fmt.Sprintf("%s, as in ClusterConfig %s, which has it (priority %d), and not %s, as here", c.is, c.Holder.Name, c.Holder.Spec.Priority, c.wanted)
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
