// Package template fills member facts into the strings of a JSON value: << .cluster.name >>.
package template

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"
)

// Value is a compiled JSON value, made of the types that encoding/json decodes to. It is read only, and may be
// executed any number of times.
type Value struct{ root node }

// Compile parses every template in the strings of a value; the keys of maps are left as they are. The value is not
// copied, and must not be changed afterwards. The error names the path of the string.
func Compile(value any) (*Value, error) {
	root, err := compile(value, "")
	if err != nil {
		return nil, err
	}
	return &Value{root}, nil
}

// Static says that the value holds no template: Execute returns it as it is.
func (v *Value) Static() bool { _, ok := v.root.(static); return ok }

// Execute returns the value with the facts filled in. What has no template is shared with the compiled value. A fact
// that is missing is an error that names the path of the string.
func (v *Value) Execute(facts map[string]any) (any, error) { return v.root.execute(facts) }

type node interface {
	execute(facts map[string]any) (any, error)
}

type static struct{ value any }

func (s static) execute(map[string]any) (any, error) { return s.value, nil }

type object struct {
	keys   []string
	values []node
}

func (o object) execute(facts map[string]any) (any, error) {
	out := make(map[string]any, len(o.keys))
	for i, k := range o.keys {
		v, err := o.values[i].execute(facts)
		if err != nil {
			return nil, err
		}
		out[k] = v
	}
	return out, nil
}

type list []node

func (l list) execute(facts map[string]any) (any, error) {
	out := make([]any, len(l))
	for i, n := range l {
		v, err := n.execute(facts)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

// textNode is a string with templates: literal text where action is nil.
type textNode struct {
	path     string
	segments []segment
}

type segment struct {
	literal string
	action  *template.Template
}

// typedMark starts what number and bool print, so that a string that is nothing else becomes the JSON value behind the
// mark. No label, name or YAML scalar holds the character.
const typedMark = "\x00"

var errNotAlone = errors.New("number and bool have to be alone in their string")

func (t textNode) execute(facts map[string]any) (any, error) {
	var out bytes.Buffer
	for _, s := range t.segments {
		if s.action == nil {
			out.WriteString(s.literal)
			continue
		}
		if err := s.action.Execute(&out, facts); err != nil {
			var exec template.ExecError
			if errors.As(err, &exec) {
				err = exec.Err
			}
			what := "there is no"
			if strings.Contains(s.literal, ".cluster.labels") {
				what = "the cluster has no label"
			}
			return nil, fmt.Errorf("%s: %s: %s%s", t.path, s.literal, strings.Replace(reason(err), missingKey, what, 1), hint(s.literal))
		}
	}
	s := out.String()
	if !strings.Contains(s, typedMark) {
		return s, nil
	}
	if len(t.segments) > 1 {
		return nil, fmt.Errorf("%s: %w", t.path, errNotAlone)
	}
	if s == typedMark+"true" || s == typedMark+"false" {
		return s == typedMark+"true", nil
	}
	return json.Number(s[1:]), nil
}

var labelWithSeparators = regexp.MustCompile(`\.cluster\.labels\.\w+[-./]`)

// hint says what to do about an action that reaches for a label whose key is no identifier.
func hint(action string) string {
	if labelWithSeparators.MatchString(action) {
		return `: for a label with dots, dashes or slashes write index .cluster.labels "its/key"`
	}
	return ""
}

// reason takes the position in the template off a text/template error, which is about the one action shown before it.
func reason(err error) string {
	msg := err.Error()
	if i := strings.Index(msg, ">: "); i >= 0 && strings.HasPrefix(msg, "template:") {
		msg = msg[i+3:]
	}
	if strings.HasPrefix(msg, "error calling ") { // a function
		_, msg, _ = strings.Cut(msg, ": ")
	}
	return msg
}

func compile(value any, path string) (node, error) {
	switch v := value.(type) {
	case string:
		return compileText(v, path)
	case map[string]any:
		o, dynamic := object{}, false
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys) // so that of two errors the same one is reported each time
		for _, k := range keys {
			n, err := compile(v[k], join(path, k))
			if err != nil {
				return nil, err
			}
			if _, ok := n.(static); !ok {
				dynamic = true
			}
			o.keys, o.values = append(o.keys, k), append(o.values, n)
		}
		if dynamic {
			return o, nil
		}
	case []any:
		l, dynamic := make(list, len(v)), false
		for i := range v {
			n, err := compile(v[i], path+"["+strconv.Itoa(i)+"]")
			if err != nil {
				return nil, err
			}
			if _, ok := n.(static); !ok {
				dynamic = true
			}
			l[i] = n
		}
		if dynamic {
			return l, nil
		}
	}
	return static{value}, nil
}

func join(path, key string) string {
	if strings.ContainsAny(key, ".[]/") {
		return path + "[" + strconv.Quote(key) + "]"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// compileText cuts a string into literal text and actions. Only what stands between << and >> and mentions a fact is
// an action: shell here-documents and shifts, which Kurator's users have in their values, stay what they are.
// A backslash before << makes an action literal.
func compileText(s, path string) (node, error) {
	t := textNode{path: path}
	var literal strings.Builder
	dynamic, escaped := false, false
	for {
		start := strings.Index(s, "<<")
		if start < 0 {
			break
		}
		end := strings.Index(s[start:], ">>")
		if end < 0 {
			break
		}
		end += start + 2
		// The innermost << belongs to the >>: of "cat <<EOF … << .cluster.name >>" only the second starts an action.
		start = strings.LastIndex(s[:end], "<<")
		if start > 0 && s[start-1] == '<' && strings.HasPrefix(s[start-1:], "<<<") {
			start-- // keep a run of < together as literal text, below
		}
		action := s[start:end]
		switch {
		case !mentionsFact(action) || strings.HasPrefix(action, "<<<"):
			literal.WriteString(s[:end])
		case start > 0 && s[start-1] == '\\':
			literal.WriteString(s[:start-1] + action)
			escaped = true
		default:
			tmpl, err := parseAction(action)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w%s", path, action, err, hint(action))
			}
			literal.WriteString(s[:start])
			if literal.Len() > 0 {
				t.segments = append(t.segments, segment{literal: literal.String()})
				literal.Reset()
			}
			t.segments = append(t.segments, segment{literal: action, action: tmpl})
			dynamic = true
		}
		s = s[end:]
	}
	literal.WriteString(s)
	if !dynamic && !escaped {
		return static{literal.String()}, nil
	}
	if literal.Len() > 0 {
		t.segments = append(t.segments, segment{literal: literal.String()})
	}
	return t, nil
}

func mentionsFact(action string) bool {
	return strings.Contains(action, ".cluster") || strings.Contains(action, ".fleet") || strings.Contains(action, ".application")
}

var functions = template.FuncMap{
	"index":      index,
	"number":     number,
	"bool":       boolean,
	"json":       forJSON,
	"jsonValue":  jsonValue,
	"lower":      strings.ToLower,
	"upper":      strings.ToUpper,
	"replace":    replace,
	"trimPrefix": func(prefix, s string) string { return strings.TrimPrefix(s, prefix) },
	"trimSuffix": func(suffix, s string) string { return strings.TrimSuffix(s, suffix) },
}

// parseAction parses one action. It may use the functions above and no others: printf could fill the memory, and range
// could run for ever.
func parseAction(action string) (*template.Template, error) {
	tmpl, err := template.New("").Delims("<<", ">>").Option("missingkey=error").Funcs(functions).Parse(action)
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(reason(err), "template: :1: "))
	}
	if tmpl.Tree == nil || len(tmpl.Root.Nodes) != 1 {
		return nil, errors.New("is not one action")
	}
	node, ok := tmpl.Root.Nodes[0].(*parse.ActionNode)
	if !ok {
		return nil, errors.New("only facts and functions may stand here, no control structures")
	}
	if len(node.Pipe.Decl) > 0 {
		return nil, errors.New("only facts and functions may stand here, no variables")
	}
	return tmpl, checkFunctions(node.Pipe)
}

func checkFunctions(n parse.Node) error {
	switch n := n.(type) {
	case *parse.PipeNode:
		for _, cmd := range n.Cmds {
			for _, arg := range cmd.Args {
				if err := checkFunctions(arg); err != nil {
					return err
				}
			}
		}
	case *parse.ChainNode:
		return checkFunctions(n.Node)
	case *parse.IdentifierNode:
		if _, ok := functions[n.Ident]; !ok {
			return fmt.Errorf("function %q is not known here", n.Ident)
		}
	}
	return nil
}

// missingKey starts text/template's own error about a key that a map does not have.
const missingKey = "map has no entry for key"

// maxReplaced bounds what replace returns, so that a chain of it cannot fill the memory.
const maxReplaced = 1 << 16

func replace(old, new, s string) (string, error) {
	if len(s)+strings.Count(s, old)*(len(new)-len(old)) > maxReplaced {
		return "", fmt.Errorf("replace makes more than %d characters", maxReplaced)
	}
	return strings.ReplaceAll(s, old, new), nil
}

// index is text/template's, but that a missing key is an error.
func index(m any, key string) (any, error) {
	switch m := m.(type) {
	case map[string]string:
		if v, ok := m[key]; ok {
			return v, nil
		}
	case map[string]any:
		if v, ok := m[key]; ok {
			return v, nil
		}
	default:
		return nil, fmt.Errorf("index of something that is no map")
	}
	return nil, fmt.Errorf(missingKey+" %q", key)
}

func number(s string) (string, error) {
	var n json.Number
	if err := json.Unmarshal([]byte(s), &n); err != nil || s == "null" || strings.HasPrefix(s, `"`) {
		return "", fmt.Errorf("%q is not a number", s)
	}
	if _, err := n.Float64(); err != nil {
		return "", fmt.Errorf("%q is too large a number", s)
	}
	return typedMark + n.String(), nil
}

func boolean(s string) (string, error) {
	if s != "true" && s != "false" {
		return "", fmt.Errorf("%q is neither true nor false", s)
	}
	return typedMark + s, nil
}

// JSONText returns a string as text of a JSON value that is a template again: to be put into a patch, say, which is
// executed later as a whole. What is literal is escaped, and what an action prints will be. The text is empty if the
// string has no action; then literal is what the string stands for.
func JSONText(s string) (text, literal string, err error) {
	n, err := compileText(s, "")
	if err != nil {
		return "", "", errors.New(strings.TrimPrefix(err.Error(), ": "))
	}
	t, ok := n.(textNode)
	if !ok {
		return "", n.(static).value.(string), nil
	}
	var out strings.Builder
	dynamic := false
	for _, segment := range t.segments {
		if segment.action == nil {
			out.WriteString(quoted(segment.literal))
			literal += segment.literal
			continue
		}
		dynamic = true
		function := "json"
		if len(t.segments) == 1 {
			function = "jsonValue" // only then can it be a number
		}
		action, err := piped(segment.literal, function)
		if err != nil {
			return "", "", fmt.Errorf("%s: %w", segment.literal, err)
		}
		if len(t.segments) == 1 {
			return action, "", nil
		}
		out.WriteString(action)
	}
	if !dynamic {
		return "", literal, nil
	}
	return `"` + out.String() + `"`, "", nil
}

// piped has an action print for JSON by one of the functions below, and writes its strings so that they can stand in one.
func piped(action, function string) (string, error) {
	inner := strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(action, "<<"), ">>"))
	inner = strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(inner, "- "), " -"))
	var out strings.Builder
	for inner != "" {
		if inner[0] != '"' && inner[0] != '`' {
			out.WriteByte(inner[0])
			inner = inner[1:]
			continue
		}
		prefix, err := strconv.QuotedPrefix(inner)
		if err != nil {
			return "", err
		}
		value, err := strconv.Unquote(prefix)
		if err != nil {
			return "", err
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r == '"' || r == '\\' || r == '`' || r < ' ' }) {
			return "", fmt.Errorf("%s: quotes, backslashes and control characters cannot be in a string here", prefix)
		}
		if strings.Contains(value, "<<") || strings.Contains(value, ">>") {
			return "", fmt.Errorf("%s: << and >> cannot be in a string here", prefix) // they would end the action
		}
		out.WriteString("`" + value + "`")
		inner = inner[len(prefix):]
	}
	if strings.ContainsAny(out.String(), `"\'`) {
		return "", errors.New("quotes and backslashes cannot be here")
	}
	return "<< " + out.String() + " | " + function + " >>", nil
}

// forJSON escapes what an action prints for the inside of a JSON string.
func forJSON(v any) (string, error) {
	s := fmt.Sprint(v) // as text/template prints it
	if strings.Contains(s, typedMark) {
		return "", errNotAlone
	}
	return quoted(s), nil
}

// jsonValue makes a JSON string of what an action prints, and leaves the values that number and bool print.
func jsonValue(v any) string {
	s := fmt.Sprint(v)
	if value, ok := strings.CutPrefix(s, typedMark); ok {
		return value
	}
	return `"` + quoted(s) + `"`
}

func quoted(s string) string {
	b, _ := json.Marshal(s) // of a string it cannot fail
	return string(b[1 : len(b)-1])
}
