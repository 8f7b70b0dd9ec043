package plan

import (
	"crypto/sha256"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// secret stands for a value that is not shown. Two are equal if their values are.
type secret [sha256.Size]byte

// sensitive are the names of values that are most likely somebody's secret, where people have not put them into one.
var sensitive = regexp.MustCompile(`(?i)(password|passwd|passphrase|token|secret|(secret|access|private|api|encryption)[-_.]?key|credentials?)$`)

// inPatch finds a Secret in the text of a patch.
var inPatch = regexp.MustCompile(`(?m)"?kind"?\s*:\s*"?Secret\b`)

// hidden replaces the values of an object that are not shown: all of a Secret, what SOPS has encrypted, and what has a name like
// password. The object is not changed.
func hidden(object map[string]any) map[string]any {
	out, _ := hide(object).(map[string]any)
	if object["kind"] == "Secret" {
		for _, field := range []string{"data", "stringData", "binaryData"} {
			if values, ok := out[field].(map[string]any); ok {
				for key, value := range values {
					values[key] = secretOf(value)
				}
			} else if out[field] != nil {
				out[field] = secretOf(out[field])
			}
		}
	}
	if _, encrypted := object["sops"].(map[string]any); encrypted {
		delete(out, "sops") // changes whenever it is encrypted anew
	}
	return out
}

func hide(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, value := range v {
			_, text := value.(string)
			switch {
			case text && sensitive.MatchString(key), key == "kubectl.kubernetes.io/last-applied-configuration":
				out[key] = secretOf(value)
			case key == "patch" && text && inPatch.MatchString(value.(string)):
				out[key] = secretOf(value)
			default:
				out[key] = hide(value)
			}
		}
		if name, ok := v["name"].(string); ok && sensitive.MatchString(name) {
			if value, ok := v["value"].(string); ok {
				out["value"] = secretOf(value)
			}
		}
		if target, ok := v["target"].(map[string]any); ok && target["kind"] == "Secret" && v["patch"] != nil {
			out["patch"] = secretOf(v["patch"])
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = hide(v[i])
		}
		return out
	case string:
		if strings.HasPrefix(v, "ENC[") {
			return secretOf(v)
		}
	}
	return v
}

func secretOf(v any) any {
	if s, ok := v.(secret); ok {
		return s
	}
	return secret(sha256.Sum256([]byte(jsonText(v))))
}

// Paths returns the paths of the values in which two objects differ.
func Paths(from, to map[string]any) (paths []string) {
	for _, f := range compareFields(from, to) {
		paths = append(paths, f.Path)
	}
	return paths
}

// compareFields says which values of two objects differ, by path.
func compareFields(from, to map[string]any) []Field {
	var out []Field
	walk(&out, "", from, to)
	return out
}

func walk(out *[]Field, path string, from, to any) {
	if reflect.DeepEqual(from, to) {
		return
	}
	if a, ok := from.(map[string]any); ok {
		if b, ok := to.(map[string]any); ok {
			keys := maps.Clone(a)
			maps.Copy(keys, b)
			for _, key := range slices.Sorted(maps.Keys(keys)) {
				walk(out, join(path, key), a[key], b[key])
			}
			return
		}
	}
	if a, ok := from.([]any); ok {
		if b, ok := to.([]any); ok && walkList(out, path, a, b) {
			return
		}
	}
	f := Field{Path: path}
	f.From, f.Hidden = shown(from)
	var hides bool
	f.To, hides = shown(to)
	f.Hidden = f.Hidden || hides
	*out = append(*out, f)
}

// walkList compares lists item by item: by name where all have one, by place where there are as many maps. Other lists are
// one value.
func walkList(out *[]Field, path string, from, to []any) bool {
	a, okA := named(from)
	b, okB := named(to)
	if okA && okB {
		var names []string
		for _, list := range [][]any{from, to} {
			for _, item := range list {
				if name := item.(map[string]any)["name"].(string); !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
		before := len(*out)
		for _, name := range names {
			walk(out, path+"["+name+"]", a[name], b[name])
		}
		return len(*out) > before // else the order alone differs
	}
	isMap := func(v any) bool { _, ok := v.(map[string]any); return ok }
	if len(from) != len(to) || !slices.ContainsFunc(from, isMap) {
		return false
	}
	for i := range from {
		walk(out, path+"["+strconv.Itoa(i)+"]", from[i], to[i])
	}
	return true
}

// named returns the items of a list by their names, if all have one and no two the same.
func named(list []any) (map[string]any, bool) {
	out := map[string]any{}
	for _, item := range list {
		m, _ := item.(map[string]any)
		name, ok := m["name"].(string)
		if _, twice := out[name]; !ok || twice {
			return nil, false
		}
		out[name] = item
	}
	return out, true
}

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func join(path, key string) string {
	switch {
	case !plainKey.MatchString(key):
		return path + "[" + strconv.Quote(key) + "]"
	case path == "":
		return key
	default:
		return path + "." + key
	}
}

// shown returns a value as it may be seen, and whether something of it may not.
func shown(v any) (out any, hides bool) {
	switch v := v.(type) {
	case secret:
		return nil, true
	case map[string]any:
		m := make(map[string]any, len(v))
		for key, value := range v {
			if _, ok := value.(secret); ok {
				m[key], hides = "(hidden)", true
				continue
			}
			var inner bool
			m[key], inner = shown(value)
			hides = hides || inner
		}
		return m, hides
	case []any:
		l := make([]any, len(v))
		for i := range v {
			if _, ok := v[i].(secret); ok {
				l[i], hides = "(hidden)", true
				continue
			}
			var inner bool
			l[i], inner = shown(v[i])
			hides = hides || inner
		}
		return l, hides
	}
	return v, false
}
