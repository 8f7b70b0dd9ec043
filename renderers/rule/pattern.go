package rule

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Bounds of a pattern, so that what it becomes is bounded, too.
const (
	maxPatternDepth = 32
	maxPatternNodes = 2000
)

// patternCEL returns a CEL expression that is true when what the CEL expression value stands for is as a pattern says, by the
// rules of Kyverno's patterns: https://kyverno.io/docs/policy-types/cluster-policy/validate/#patterns. Where Kyverno skips an
// object, because of an anchor that does not match, it is true, too. The error begins with the path in the pattern.
func patternCEL(pattern any, value string) (string, error) {
	p := &patternCompiler{}
	n, err := p.node(pattern, operand{expr: value, there: true}, "", 0)
	if err != nil {
		return "", err
	}
	return n.passes(), nil
}

type patternCompiler struct{ nodes, lists int }

// operand is a value in the object: an expression for it, and whether it is known to be there. One that is not known to be is
// reached by optional selection from one that is.
type operand struct {
	expr  string
	there bool
}

// field returns a field of an operand. Optional selection gives nothing, and no error, where there is no such field.
func (o operand) field(key string) operand {
	if simpleKey.MatchString(key) && !slices.Contains(reserved, key) {
		return operand{expr: o.expr + ".?" + key}
	}
	return operand{expr: o.expr + "[?" + strconv.Quote(key) + "]"}
}

// or returns the value, or another one where it is not there.
func (o operand) or(other string) string {
	if o.there {
		return o.expr
	}
	return o.expr + ".orValue(" + other + ")"
}

// value returns the value, which has to be there.
func (o operand) value() string {
	if o.there {
		return o.expr
	}
	return o.expr + ".value()"
}

// is returns an expression that says whether the value is there, and is one of some literals.
func (o operand) is(literals ...string) string {
	var either []string
	for _, l := range literals {
		if !o.there {
			l = "optional.of(" + l + ")"
		}
		either = append(either, o.expr+" == "+l)
	}
	return strings.Join(either, " || ")
}

// has returns an expression that says whether the value is there.
func (o operand) has() string {
	if o.there {
		return "true"
	}
	return o.expr + ".hasValue()"
}

var (
	simpleKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	// reserved words of CEL cannot be selected. https://github.com/google/cel-spec/blob/master/doc/langdef.md#syntax
	reserved = strings.Fields("as break const continue else false for function if import in let loop namespace null package return true var void while")
	anchor   = regexp.MustCompile(`^([+<=X^])?\((.+)\)$`)
)

// compiled is what a part of a pattern becomes: ok says that the value is as the pattern says, and skip that the pattern is
// not for the value, which is true of what an anchor leaves out; empty where there is no such anchor. Strict is one that is
// never ok for a value that is not there.
type compiled struct {
	ok, skip string
	strict   bool
}

// passes returns the expression that is true where Kyverno has nothing to complain about.
func (c compiled) passes() string {
	if c.skip == "" {
		return c.ok
	}
	return c.skip + " || " + paren(c.ok)
}

func (p *patternCompiler) node(pattern any, value operand, path string, depth int) (compiled, error) {
	p.nodes++
	if depth > maxPatternDepth || p.nodes > maxPatternNodes {
		return compiled{}, fmt.Errorf("%s: the pattern is too large: write several rules", orRoot(path))
	}
	switch pattern := pattern.(type) {
	case map[string]any:
		return p.object(pattern, value, path, depth)
	case []any:
		return p.list(pattern, value, path, depth)
	}
	ok, err := scalar(pattern, value)
	if err != nil {
		return compiled{}, fmt.Errorf("%s: %w", orRoot(path), err)
	}
	return compiled{ok: ok, strict: !strings.Contains(ok, value.or(zero)) && pattern != nil || value.there}, nil
}

// object compiles a map. Where one of its fields has to be there, so has the map, and nothing needs to be said of that.
func (p *patternCompiler) object(pattern map[string]any, value operand, path string, depth int) (compiled, error) {
	var all, skips []string
	strict := value.there
	keys := slices.Sorted(maps.Keys(pattern))
	slices.SortStableFunc(keys, func(a, b string) int { // what decides comes first, as people read it
		return rank(a) - rank(b)
	})
	for _, raw := range keys {
		at := strings.TrimPrefix(path+"."+raw, ".")
		sub := pattern[raw]
		key, modifier := strings.TrimSpace(raw), byte(0)
		if m := anchor.FindStringSubmatch(key); m != nil {
			key, modifier = m[2], '('
			if m[1] != "" {
				modifier = m[1][0]
			}
		}
		if strings.ContainsAny(key, "*?") {
			return compiled{}, fmt.Errorf("%s: a key has no wildcards here: write cel, with all or exists over the keys", at)
		}
		field := value.field(key)
		if modifier == 'X' {
			all = append(all, "!"+field.has())
			continue
		}
		if modifier == '+' {
			return compiled{}, fmt.Errorf("%s: +() is for what changes objects, and not for validate", at)
		}
		if modifier == '^' {
			text, err := p.exists(sub, field, at, depth)
			if err != nil {
				return compiled{}, err
			}
			all = append(all, text)
			continue
		}
		n, err := p.node(sub, field, at, depth+1)
		if err != nil {
			return compiled{}, err
		}
		switch modifier {
		case '(': // for what has it, and has it so
			skips = append(skips, "!"+paren(and(field.has(), n.ok)))
		case '<': // the same, but for what has it not
			skips = append(skips, and(field.has(), "!"+paren(n.ok)))
		case '=':
			all = append(all, "!"+field.has()+" || "+paren(n.ok))
			if n.skip != "" {
				skips = append(skips, and(field.has(), n.skip))
			}
		default:
			all, strict = append(all, n.ok), strict || n.strict
			if n.skip != "" {
				skips = append(skips, n.skip)
			}
		}
	}
	switch {
	case len(pattern) == 0: // {} asks for a map
		all, strict = append(all, and(value.has(), "type("+value.value()+") == map")), true
	case !strict:
		all, strict = slices.Insert(all, 0, value.has()), true
	case len(all) == 0:
		all = append(all, "true")
	}
	for i := range all {
		all[i] = atom(all[i])
	}
	for i := range skips {
		skips[i] = atom(skips[i])
	}
	return compiled{ok: strings.Join(all, " && "), skip: strings.Join(skips, " || "), strict: strict}, nil
}

// list compiles a list: a map in it is for each item, and so is a scalar.
func (p *patternCompiler) list(pattern []any, value operand, path string, depth int) (compiled, error) {
	if len(pattern) != 1 {
		return compiled{}, fmt.Errorf("%s: a list has one pattern, which is for each of the items: write ^(%s) for those of which one has to be there", orRoot(path), lastKey(path))
	}
	item := p.item()
	defer func() { p.lists-- }()
	n, err := p.node(pattern[0], operand{expr: item, there: true}, path+"[0]", depth+1)
	if err != nil {
		return compiled{}, err
	}
	if _, ok := pattern[0].([]any); ok {
		return compiled{}, fmt.Errorf("%s: lists of lists are not known: write cel", orRoot(path))
	}
	out := compiled{strict: true, ok: and(value.has(), fmt.Sprintf("%s.all(%s, %s)", value.value(), item, n.passes()))}
	if n.skip != "" { // that is so of the list if it is of each item, and there is one
		items := value.or("[]")
		out.skip = fmt.Sprintf("%s.size() > 0 && %s.all(%s, %s)", items, items, item, n.skip)
	}
	return out, nil
}

// exists compiles ^(): one item has to be as each of the patterns says.
func (p *patternCompiler) exists(pattern any, value operand, path string, depth int) (string, error) {
	items, ok := pattern.([]any)
	if !ok || len(items) == 0 {
		return "", fmt.Errorf("%s: ^() is for a list of maps", path)
	}
	item := p.item()
	defer func() { p.lists-- }()
	var all []string
	for i, sub := range items {
		if _, ok := sub.(map[string]any); !ok {
			return "", fmt.Errorf("%s[%d]: ^() is for a list of maps", path, i)
		}
		n, err := p.node(sub, operand{expr: item, there: true}, fmt.Sprintf("%s[%d]", path, i), depth+1)
		if err != nil {
			return "", err
		}
		one := n.ok
		if n.skip != "" {
			one = "!" + paren(n.skip) + " && " + atom(n.ok)
		}
		all = append(all, fmt.Sprintf("%s.exists(%s, %s)", value.or("[]"), item, one))
	}
	return "!" + value.has() + " || " + paren(strings.Join(all, " && ")), nil
}

// item names the variable of a comprehension: another one for each that is in another.
func (p *patternCompiler) item() string {
	p.lists++
	if p.lists == 1 {
		return "item"
	}
	return fmt.Sprintf("item%d", p.lists)
}

// zero is what Kyverno takes where nothing is there to be compared with a quantity.
const zero = "dyn(0)"

// scalar compiles what a value has to be.
func scalar(pattern any, value operand) (string, error) {
	switch pattern := pattern.(type) {
	case nil:
		nothing := value.is("null", `""`, "0", "false")
		if !value.there {
			nothing = "!" + value.has() + " || " + nothing
		}
		return nothing, nil
	case bool:
		return value.is(fmt.Sprint(pattern)), nil
	case json.Number, int64, float64, int:
		number := fmt.Sprint(pattern)
		return value.is(number, strconv.Quote(number)), nil
	case string:
		return texts(pattern, value)
	}
	return "", fmt.Errorf("%T is no JSON value", pattern)
}

// texts compiles a text: alternatives by |, of what all has to hold by &.
func texts(pattern string, value operand) (string, error) {
	if strings.Contains(pattern, "{{") || strings.Contains(pattern, "$(") {
		return "", fmt.Errorf("%s: variables and references are not known: write cel", pattern)
	}
	var either []string
	for alternative := range strings.SplitSeq(pattern, "|") {
		var all []string
		for part := range strings.SplitSeq(alternative, "&") {
			text, err := condition(strings.TrimSpace(part), value)
			if err != nil {
				return "", err
			}
			all = append(all, text)
		}
		either = append(either, joined(all, " && "))
	}
	return joined(either, " || "), nil
}

var (
	inRange    = regexp.MustCompile(`^([-|\+]?\d+(?:\.\d+)?[A-Za-z]*)-([-|\+]?\d+(?:\.\d+)?[A-Za-z]*)$`)
	notInRange = regexp.MustCompile(`^([-|\+]?\d+(?:\.\d+)?[A-Za-z]*)!-([-|\+]?\d+(?:\.\d+)?[A-Za-z]*)$`)
)

// condition compiles one condition: an operator and what the value is compared with.
func condition(text string, value operand) (string, error) {
	if m := notInRange.FindStringSubmatch(text); m != nil {
		return either(value, " || ", "<", m[1], ">", m[2])
	}
	if m := inRange.FindStringSubmatch(text); m != nil {
		return either(value, " && ", ">=", m[1], "<=", m[2])
	}
	for _, op := range []string{">=", "<=", ">", "<", "!"} {
		if rest, ok := strings.CutPrefix(text, op); ok && len(text) > 1 {
			return compare(op, strings.TrimSpace(rest), value)
		}
	}
	return compare("==", text, value)
}

func either(value operand, join, op1, text1, op2, text2 string) (string, error) {
	a, err := compare(op1, text1, value)
	if err != nil {
		return "", err
	}
	b, err := compare(op2, text2, value)
	return paren(a) + join + paren(b), err
}

// compare compiles a comparison: of durations or quantities where both sides are such, else of texts. What is not there
// counts as 0 where it is compared with a quantity.
func compare(op, text string, value operand) (string, error) {
	celOp := map[string]string{"!": "!="}[op]
	if celOp == "" {
		celOp = op
	}
	_, notDuration := time.ParseDuration(text)
	quantity, notQuantity := resource.ParseQuantity(text)
	v := value.or(zero)
	switch {
	case notDuration == nil && text != "0": // 10s; and 10m, which is a quantity, too
		as := fmt.Sprintf(`duration(string(%s)) %s duration(%q)`, v, celOp, text)
		is := fmt.Sprintf(`string(%s).matches("^[-+]?([0-9]+([.][0-9]*)?(ns|us|µs|ms|s|m|h))+$|^[-+]?0$")`, v)
		other := "false"
		if notQuantity == nil {
			other = quantities(v, celOp, text)
		} else if op == "!" || op == "==" {
			other = fmt.Sprintf("string(%s) %s %s", v, celOp, strconv.Quote(text))
		}
		if other == "false" {
			return is + " && " + as, nil
		}
		return is + " ? " + as + " : " + other, nil
	case notQuantity == nil && (op == "==" || op == "!") && wholeNumber.MatchString(text):
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return "", err
		}
		in := value.is(fmt.Sprint(number), strconv.Quote(text))
		if op == "!" {
			in = "!(" + in + ")"
		}
		return in, nil
	case notQuantity == nil && !quantity.IsZero() || notQuantity == nil && op != "==" && op != "!":
		return quantities(v, celOp, text), nil
	case op != "==" && op != "!":
		return "", fmt.Errorf("%s%s: is compared with a number, a quantity or a duration", op, text)
	}
	return matches(op, text, value), nil
}

var wholeNumber = regexp.MustCompile(`^[-+]?[0-9]{1,15}$`)

func quantities(v, op, text string) string {
	return fmt.Sprintf(`isQuantity(string(%s)) && quantity(string(%s)).compareTo(quantity(%q)) %s 0`, v, v, text, op)
}

// matches compiles a text with * and ?.
func matches(op, text string, value operand) string {
	not := op == "!"
	there := func(expr string) string { return and(value.has(), expr) }
	switch {
	case text == "*" && !not && value.there:
		return value.expr + " != null"
	case text == "*" && !not:
		return value.has()
	case text == "?*" && !not:
		return there("!(" + value.is(`""`) + ")")
	case (text == "true" || text == "false") && !not:
		return value.is(text, strconv.Quote(text))
	case !strings.ContainsAny(text, "*?") && !not:
		return value.is(strconv.Quote(text))
	case !strings.ContainsAny(text, "*?"):
		return there("!(" + value.is(strconv.Quote(text)) + ")")
	}
	expr := strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(text))
	match := fmt.Sprintf("string(%s).matches(%s)", value.value(), strconv.Quote("(?s)^"+expr+"$"))
	if not {
		match = "!" + match
	}
	return there(match)
}

// rank puts conditions before what they are for.
func rank(key string) int {
	if m := anchor.FindStringSubmatch(strings.TrimSpace(key)); m != nil && (m[1] == "" || m[1] == "<") {
		return 0
	}
	return 1
}

func orRoot(path string) string {
	if path == "" {
		return "the pattern"
	}
	return path
}

func lastKey(path string) string { return path[strings.LastIndex(path, ".")+1:] }

func and(a, b string) string {
	if a == "true" {
		return b
	}
	return a + " && " + atom(b)
}

func joined(parts []string, with string) string {
	if len(parts) == 1 {
		return parts[0]
	}
	for i := range parts {
		parts[i] = paren(parts[i])
	}
	return strings.Join(parts, with)
}

// atom puts what has an operator that binds weaker than && in parentheses.
func atom(s string) string {
	if outer(s, " || ") || outer(s, " ? ") {
		return "(" + s + ")"
	}
	return s
}

// paren puts what is more than a single term in parentheses.
func paren(s string) string {
	if outer(s, " ") {
		return "(" + s + ")"
	}
	return s
}

// outer says whether a text is in an expression outside of parentheses and quotes.
func outer(s, text string) bool {
	depth, quoted := 0, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '(' || c == '[' || c == '{':
			depth++
		case c == ')' || c == ']' || c == '}':
			depth--
		default:
			if depth == 0 && strings.HasPrefix(s[i:], text) {
				return true
			}
		}
	}
	return false
}
