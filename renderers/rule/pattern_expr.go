package rule

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// expr is an expression of CEL, and its negation, where that reads better than with a "!".
type expr struct {
	text    string
	binds   binding
	negated string
	// unless is how what is negated binds.
	unless binding
}

// binding is how strong what is outermost in an expression binds.
type binding int

const (
	bindsIf binding = iota
	bindsOr
	bindsAnd
	bindsRelation
	bindsAll
)

var yes, no = expr{text: "true", binds: bindsAll}, expr{text: "false", binds: bindsAll}

func call(format string, args ...any) expr {
	return expr{text: fmt.Sprintf(format, args...), binds: bindsAll}
}

func relation(format string, args ...any) expr {
	return expr{text: fmt.Sprintf(format, args...), binds: bindsRelation}
}

func equal(a, b string) expr {
	return expr{text: a + " == " + b, binds: bindsRelation, negated: a + " != " + b, unless: bindsRelation}
}

// oneOf is true of a value that is one of some literals. CEL wants all items of a list to be of one type.
func oneOf(value string, literals []string) expr {
	if len(literals) == 1 {
		return equal(value, literals[0])
	}
	if slices.ContainsFunc(literals, func(l string) bool { return kindOf(l) != kindOf(literals[0]) }) {
		literals = slices.Clone(literals)
		for i, l := range literals {
			literals[i] = "dyn(" + l + ")"
		}
	}
	return relation("%s in [%s]", value, strings.Join(literals, ", "))
}

// kindOf tells the literals of one type from those of another.
func kindOf(literal string) string {
	switch {
	case literal[0] == '"':
		return "string"
	case literal == "true", literal == "false":
		return "bool"
	case literal == "null":
		return "null"
	case strings.ContainsAny(literal, ".e"):
		return "double"
	}
	return "int"
}

func either(condition, then, otherwise expr) expr {
	return expr{text: condition.within(bindsOr) + " ? " + then.within(bindsOr) + " : " + otherwise.within(bindsOr)}
}

func and(all ...expr) expr {
	if slices.Contains(all, no) {
		return no
	}
	return join(all, yes, bindsAnd, " && ")
}

func or(all ...expr) expr {
	if slices.Contains(all, yes) {
		return yes
	}
	return join(all, no, bindsOr, " || ")
}

// join leaves out what says nothing.
func join(all []expr, neutral expr, binds binding, operator string) expr {
	var texts []string
	last := neutral
	for _, e := range all {
		if e != neutral {
			texts, last = append(texts, e.within(binds)), e
		}
	}
	if len(texts) < 2 {
		return last
	}
	return expr{text: strings.Join(texts, operator), binds: binds}
}

func not(e expr) expr {
	switch {
	case e == yes:
		return no
	case e == no:
		return yes
	case e.negated != "":
		return expr{text: e.negated, binds: e.unless, negated: e.text, unless: e.binds}
	}
	return expr{text: "!" + e.within(bindsAll), binds: bindsAll, negated: e.text, unless: e.binds}
}

// within puts an expression in parentheses if what is around it binds stronger.
func (e expr) within(around binding) string {
	if e.binds < around {
		return "(" + e.text + ")"
	}
	return e.text
}

func (e expr) bounded() (string, error) {
	if len(e.text) > maxPatternText {
		return "", patternError("", errTooLarge)
	}
	return e.text, nil
}

// operand is a value in the object: what is known to be there, and the keys from there, which may be absent.
type operand struct {
	known string
	keys  []string
	// name is the key of the value.
	name string
	// root is the value of the whole pattern, which is a map.
	root bool
	// list says that the value may be a list of scalars.
	list bool
	// context is where the value stands: "metadata", "labels" for labels and annotations, "texts" for other maps of texts, and
	// "label" for what is in one of the last two.
	context string
}

var (
	simpleKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	// reserved words of CEL are no names of fields. https://github.com/google/cel-spec/blob/master/doc/langdef.md#syntax
	reserved = strings.Fields("as break const continue else false for function if import in let loop namespace null package return true var void while")
)

func (o operand) field(key string) operand {
	f := operand{known: o.known, keys: append(slices.Clip(o.keys), key), name: key, list: mayBeList(key)}
	switch {
	case o.context == "labels", o.context == "texts":
		f.context, f.list = "label", false
	case key == "metadata":
		f.context = "metadata"
	case o.context == "metadata" && (key == "labels" || key == "annotations"):
		f.context = "labels"
	case key == "matchLabels", key == "nodeSelector":
		f.context = "texts"
	}
	return f
}

// isText says that what is there is a text, for so the API has it.
func (o operand) isText() bool { return o.context == "label" }

// found returns the operand of a value that is there.
func (o operand) found() operand {
	for _, key := range o.keys {
		if simpleKey.MatchString(key) && !slices.Contains(reserved, key) {
			o.known += "." + key
		} else {
			o.known += "[" + quote(key) + "]"
		}
	}
	o.keys = nil
	return o
}

// optional returns an expression for the value, if it is there. It is none, and no error, if what is on the way is no map;
// but an error if that is a list.
func (o operand) optional() string {
	text := o.known
	for _, key := range o.keys {
		if simpleKey.MatchString(key) && !slices.Contains(reserved, key) {
			text += ".?" + key
		} else {
			text += "[?" + quote(key) + "]"
		}
	}
	return text
}

// or returns an expression for the value, or another one.
func (o operand) or(other string) string {
	if len(o.keys) == 0 {
		return o.known
	}
	text := o.optional()
	if strings.HasSuffix(text, "]") { // of which CEL would take the type to be that of the other
		other = "dyn(" + other + ")"
	}
	return text + ".orValue(" + other + ")"
}

func (o operand) orNull() string { return o.or("null") }

func (o operand) has() expr {
	if len(o.keys) == 0 {
		return yes
	}
	return call("%s.hasValue()", o.optional())
}

func (o operand) isList() expr { return relation("type(%s) == list", o.orNull()) }

func (o operand) isScalarOrNull() expr {
	return not(relation("type(%s) in [dyn(map), dyn(list)]", o.orNull()))
}

// isScalar is true of what has a text, which null has not.
func (o operand) isScalar() expr {
	return relation("type(%s) in [dyn(string), dyn(int), dyn(double), dyn(bool)]", o.orNull())
}

// isAsText is isScalar, of what may be no text.
func (o operand) isAsText() expr {
	if o.isText() {
		return o.isString()
	}
	return o.isScalar()
}

func (o operand) isString() expr { return relation("type(%s) == string", o.orNull()) }

// text is an expression for how the value is written, whatever it is.
func (o operand) text() string { return fmt.Sprintf(`"%%s".format([%s])`, o.orNull()) }

// mayBeList says whether a field may have a list of scalars, by the conventions of the API. What is none by its name is not
// asked for, so that expressions stay readable: TestMayBeList looks at all that Kubernetes has.
func mayBeList(key string) bool {
	switch key {
	case "add", "command", "drop", "except":
		return true
	case "completions", "enableServiceLinks", "hostUsers", "status":
		return false
	}
	if !simpleKey.MatchString(key) || strings.HasSuffix(key, "ss") || strings.HasSuffix(key, "Seconds") {
		return false
	}
	return strings.HasSuffix(key, "s") && !strings.HasSuffix(strings.ToLower(key), "replicas")
}

// quote writes a text as a literal of CEL, which has the escapes of Go for what is UTF-8.
func quote(s string) string { return strconv.Quote(strings.ToValidUTF8(s, "\uFFFD")) }
