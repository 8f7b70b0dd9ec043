package rule

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Bounds of a pattern and of what it becomes: the parser of CEL takes 100,000 characters, and 250 levels.
const (
	maxPatternDepth = 32
	maxPatternNodes = 10_000
	maxPatternText  = 50_000
)

// patternCEL returns a CEL expression that is true when what the CEL expression value stands for is as the pattern says, by
// the rules of Kyverno's patterns: https://kyverno.io/docs/policy-types/cluster-policy/validate/#patterns. Where Kyverno
// skips an object, because an anchor does not match, it is true, too. Value is a map, or nothing; what is in it may have any
// shape, and the expression is evaluated without an error. The error begins with the path in the pattern.
func patternCEL(pattern any, value string) (string, error) {
	steps, err := newPattern(pattern, value)
	if err != nil {
		return "", err
	}
	return steps.passes().bounded()
}

// anyPatternCEL is the same for patterns of which one has to hold: one that is skipped does not make up for one that fails.
func anyPatternCEL(patterns []any, value string) (string, error) {
	var holds, skipped []expr
	for i, pattern := range patterns {
		steps, err := newPattern(pattern, value)
		if err != nil {
			return "", fmt.Errorf("[%d].%w", i, err)
		}
		holds = append(holds, steps.holds())
		skipped = append(skipped, and(steps.passes(), steps.skips(step.isSkip)))
	}
	return or(append(holds, and(skipped...))...).bounded()
}

func newPattern(pattern any, value string) (steps, error) {
	return (&patternCompiler{}).node(pattern, operand{known: value, root: true}, "", 0)
}

// steps are what Kyverno looks at, one after the other; the first that does not hold decides: the object fails, or is skipped.
type steps []step

type step struct {
	is expr
	// skip says that the object is skipped where it is so, and not that it has to be so.
	skip bool
	// direct is a skip that Kyverno hands up as it is, and does not weigh against the anchors beside it: that of <().
	direct bool
}

func (s step) isSkip() bool        { return s.skip }
func (s step) isDirectSkip() bool  { return s.skip && s.direct }
func (s step) isWeighedSkip() bool { return s.skip && !s.direct }

// passes is true where Kyverno has nothing to complain about: it holds, or is skipped.
func (all steps) passes() expr {
	out := yes
	for _, s := range slices.Backward(all) {
		switch {
		case !s.skip:
			out = and(s.is, out)
		case out != yes:
			out = or(s.is, out)
		}
	}
	return out
}

// holds is true where nothing fails, and nothing is skipped.
func (all steps) holds() expr {
	out := yes
	for _, s := range slices.Backward(all) {
		if s.skip {
			out = and(not(s.is), out)
		} else {
			out = and(s.is, out)
		}
	}
	return out
}

// skips is true where one of some skips is what decides, of what passes: so nothing before it fails.
func (all steps) skips(of func(step) bool) expr {
	out := no
	for _, s := range slices.Backward(all) {
		switch {
		case of(s):
			out = or(s.is, out)
		case s.skip:
			out = and(not(s.is), out)
		}
	}
	return out
}

func (all steps) canSkip() bool { return slices.ContainsFunc(all, step.isSkip) }

type patternCompiler struct{ nodes, lists int }

func (p *patternCompiler) node(pattern any, value operand, path string, depth int) (out steps, err error) {
	switch pattern := pattern.(type) {
	case map[string]any:
		out, err = p.object(pattern, value, path, depth, false)
	case []any:
		out, err = p.list(pattern, value, path, depth)
	default:
		var c condition
		c, err = scalar(pattern, value)
		out, err = steps{{is: c.is}}, patternError(path, err)
	}
	if err != nil {
		return nil, err
	}
	// What stands in a list with anchors is said twice, so what grows too large is noticed here, and not at the end.
	size := 0
	for _, s := range out {
		size += len(s.is.text)
	}
	if size > maxPatternText {
		return nil, patternError(path, errTooLarge)
	}
	return out, nil
}

// object compiles a map. An absent one is as good as an empty one, if that is said; it must not be able to skip then.
func (p *patternCompiler) object(pattern map[string]any, value operand, path string, depth int, absent bool) (steps, error) {
	var out steps
	if p.nodes += len(pattern); depth > maxPatternDepth || p.nodes > maxPatternNodes {
		return nil, patternError(path, errTooLarge)
	}
	switch {
	case absent:
		out = append(out, step{is: relation("type(%s) == map", value.or("{}"))})
	case !value.root:
		out, value = append(out, step{is: relation("type(%s) == map", value.orNull())}), value.found()
	}
	var anchors, fields []patternField
	for _, raw := range slices.Sorted(maps.Keys(pattern)) {
		f := newPatternField(raw, pattern[raw], path)
		if err := f.check(value); err != nil {
			return nil, patternError(f.path, err)
		}
		if f.anchor == "" || f.anchor == "<" {
			fields = append(fields, f)
		} else {
			anchors = append(anchors, f)
		}
	}
	// Anchors come first. Those that are skipped count only if all are, or if what skips is a condition.
	allSkipped := yes
	for _, f := range anchors {
		s, weighed, err := p.anchored(f, value, depth)
		if err != nil {
			return nil, err
		}
		out, allSkipped = append(out, s...), and(allSkipped, weighed)
	}
	if len(anchors) > 0 && allSkipped != no {
		out = append(out, step{is: allSkipped, skip: true})
	}
	// Then the fields, in the order of Kyverno, if it matters: what has anchors somewhere, from the last to the first.
	compiled := make([]steps, len(fields))
	inOrder := true
	for i, f := range fields {
		var err error
		if compiled[i], err = p.field(f, value, depth); err != nil {
			return nil, err
		}
		inOrder = inOrder && !compiled[i].canSkip()
	}
	var early, late steps
	for i, f := range fields {
		if !inOrder && (f.anchor == "<" || hasAnchors(f.pattern)) {
			early = append(slices.Clip(compiled[i]), early...)
		} else {
			late = append(late, compiled[i]...)
		}
	}
	return append(append(out, early...), late...), nil
}

// patternField is a field of a pattern that is a map.
type patternField struct {
	key, anchor, path string
	pattern           any
}

var anchor = regexp.MustCompile(`^([+<=X^])?\((.+)\)$`)

func newPatternField(raw string, pattern any, path string) patternField {
	f := patternField{key: raw, path: strings.TrimPrefix(path+"."+raw, "."), pattern: pattern}
	if m := anchor.FindStringSubmatch(strings.TrimSpace(raw)); m != nil {
		f.anchor, f.key = cmp.Or(m[1], "("), m[2]
	}
	return f
}

// check refuses what is not known here.
func (f *patternField) check(parent operand) error {
	switch {
	case f.anchor == "+":
		return errors.New("+() is for what changes objects, and says nothing here: leave it out")
	case strings.Contains(f.key, "{{"), strings.Contains(f.key, "$("):
		return errVariable
	case strings.ContainsAny(f.key, "()"):
		return errors.New("is no anchor: those are (), =(), X(), ^() and <() around a key")
	case !strings.ContainsAny(f.key, "*?"):
		return nil
	case parent.context != "labels":
		return errors.New("a key has * and ? only in metadata.labels and metadata.annotations: write cel, with exists or all over the keys")
	case f.anchor == "<", f.anchor == "^":
		return fmt.Errorf("a key with * or ? has no %s(): write cel, with exists or all over the keys", f.anchor)
	}
	switch f.pattern.(type) {
	case map[string]any, []any:
		return errors.New("what has * or ? in its key is a text: write one")
	}
	return nil
}

// field compiles a field that has no anchor, or a global one.
func (p *patternCompiler) field(f patternField, parent operand, depth int) (steps, error) {
	if strings.ContainsAny(f.key, "*?") {
		one, err := p.keys(f, parent)
		return steps{{is: one}}, err
	}
	value := parent.field(f.key)
	if f.anchor == "<" {
		sub, err := p.node(f.pattern, value.found(), f.path, depth+1)
		return steps{{is: and(value.has(), not(sub.holds())), skip: true, direct: true}}, err
	}
	if f.pattern == "*" { // whatever it is
		return steps{{is: not(equal(value.orNull(), "null"))}}, nil
	}
	return p.node(f.pattern, value, f.path, depth+1)
}

// anchored compiles a field with another anchor. It returns what is skipped without weighing in the steps, and else apart.
func (p *patternCompiler) anchored(f patternField, parent operand, depth int) (steps, expr, error) {
	value := parent.field(f.key)
	wild := strings.ContainsAny(f.key, "*?")
	switch f.anchor {
	case "X":
		if wild {
			one, err := p.keys(f, parent)
			return steps{{is: not(one)}}, no, err
		}
		return steps{{is: not(value.has())}}, no, nil
	case "^":
		all, err := p.exists(f, value.found(), depth)
		return steps{{is: or(not(value.has()), all)}}, no, err
	case "(":
		if wild {
			one, err := p.keys(f, parent)
			return steps{{is: not(one), skip: true}}, no, err
		}
		sub, err := p.node(f.pattern, value, f.path, depth+1)
		holds := sub.holds()
		if err == nil && holdsOfNull(f.pattern, value) {
			holds = and(value.has(), holds)
		}
		return steps{{is: not(holds), skip: true}}, no, err
	}
	// What is left is =(): if it is there.
	switch pattern := f.pattern.(type) {
	case map[string]any:
		if holdsOfEmpty(pattern) {
			out, err := p.object(pattern, value, f.path, depth+1, true)
			return out, no, err
		}
	case []any:
	default:
		if wild {
			all, err := p.keys(f, parent)
			return steps{{is: all}}, no, err
		}
		c, err := scalar(pattern, value)
		switch {
		case c.holdsOfNull: // and so of what is not there
		case len(c.literals) > 0 && !value.list:
			c.is = oneOf(value.or(c.literals[0]), c.literals)
		case err == nil:
			c, err = scalar(pattern, value.found())
			c.is = or(not(value.has()), c.is)
		}
		return steps{{is: c.is}}, no, patternError(f.path, err)
	}
	sub, err := p.node(f.pattern, value.found(), f.path, depth+1)
	if err != nil {
		return nil, no, err
	}
	out := steps{{is: or(not(value.has()), sub.passes())}}
	if direct := sub.skips(step.isDirectSkip); direct != no {
		out = append(out, step{is: and(value.has(), direct), skip: true})
	}
	return out, and(value.has(), sub.skips(step.isWeighedSkip)), nil
}

// keys compiles a field with * or ? in its key: of those that match, one has to be as the pattern says; or all, if there may be
// none. Kyverno looks at any one of them.
func (p *patternCompiler) keys(f patternField, labels operand) (expr, error) {
	const key = "key"
	match := matches(f.key, key)
	if f.anchor == "X" {
		return call("%s.exists(%s, %s)", labels.or("{}"), key, match.text), nil
	}
	value := operand{known: labels.or("{}") + "[" + key + "]", context: "label"}
	c, err := scalar(f.pattern, value)
	if f.pattern == "*" && f.anchor == "" {
		c.is = not(equal(value.known, "null"))
	}
	if f.anchor == "=" || f.anchor == "" && c.holdsOfNull {
		return call("%s.all(%s, %s)", labels.or("{}"), key, or(not(match), c.is).text), patternError(f.path, err)
	}
	return call("%s.exists(%s, %s)", labels.or("{}"), key, and(match, c.is).text), patternError(f.path, err)
}

// list compiles a list: what is in it, a map or a scalar, is for each item. If none but what is skipped is there, the list is.
func (p *patternCompiler) list(pattern []any, value operand, path string, depth int) (steps, error) {
	if p.nodes++; depth > maxPatternDepth || p.nodes > maxPatternNodes {
		return nil, patternError(path, errTooLarge)
	}
	if len(pattern) != 1 {
		return nil, patternError(path, errors.New("a list has one pattern, which is for each of the items: for such of which one has to be there, write ^(...)"))
	}
	if _, ok := pattern[0].([]any); ok {
		return nil, patternError(path, errors.New("lists of lists are not known: write cel"))
	}
	items := value.found().known
	item, done := p.item()
	defer done()
	sub, err := p.node(pattern[0], operand{known: item}, path+"[0]", depth+1)
	if err != nil {
		return nil, err
	}
	out := steps{{is: relation("type(%s) == list", value.orNull())}, {is: call("%s.all(%s, %s)", items, item, sub.passes().text)}}
	if sub.canSkip() {
		skipped := call("%s.all(%s, %s)", items, item, sub.skips(step.isSkip).text)
		out = append(out, step{is: and(relation("%s.size() > 0", items), skipped), skip: true})
	}
	return out, nil
}

// exists compiles ^(): for each of the patterns, there is an item that is as it says.
func (p *patternCompiler) exists(f patternField, value operand, depth int) (expr, error) {
	patterns, ok := f.pattern.([]any)
	if !ok || len(patterns) == 0 {
		return no, patternError(f.path, errExistence)
	}
	item, done := p.item()
	defer done()
	out := relation("type(%s) == list", value.known)
	p.nodes += len(patterns)
	for i, pattern := range patterns {
		if _, ok := pattern.(map[string]any); !ok {
			return no, patternError(f.path, errExistence)
		}
		sub, err := p.node(pattern, operand{known: item}, fmt.Sprintf("%s[%d]", f.path, i), depth+1)
		if err != nil {
			return no, err
		}
		out = and(out, call("%s.exists(%s, %s)", value.known, item, sub.holds().text))
	}
	return out, nil
}

// item names the variable of a comprehension: another one for each that is in another.
func (p *patternCompiler) item() (string, func()) {
	p.lists++
	name := "item"
	if p.lists > 1 {
		name = fmt.Sprintf("item%d", p.lists)
	}
	return name, func() { p.lists-- }
}

var (
	errTooLarge  = errors.New("the pattern is too large: write several rules")
	errExistence = errors.New("^() is for a list of maps: write [{...}]")
	errVariable  = errors.New("variables and references are not known: write cel")
)

func patternError(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", cmp.Or(path, "the pattern"), err)
}

// hasAnchors says whether there are anchors in a pattern.
func hasAnchors(pattern any) bool {
	switch pattern := pattern.(type) {
	case map[string]any:
		for raw, sub := range pattern {
			if newPatternField(raw, sub, "").anchor != "" || hasAnchors(sub) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(pattern, hasAnchors)
	}
	return false
}

// holdsOfEmpty says whether a pattern holds of an empty map, and cannot skip.
func holdsOfEmpty(pattern map[string]any) bool {
	for raw, sub := range pattern {
		switch newPatternField(raw, sub, "").anchor {
		case "X", "^":
		case "=":
			if canSkip(sub) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// holdsOfNull says whether a pattern holds of what is null, or not there.
func holdsOfNull(pattern any, value operand) bool {
	switch pattern.(type) {
	case map[string]any, []any:
		return false
	}
	c, err := scalar(pattern, value)
	return err == nil && c.holdsOfNull
}

// canSkip says whether a pattern has anchors that skip.
func canSkip(pattern any) bool {
	switch pattern := pattern.(type) {
	case map[string]any:
		for raw, sub := range pattern {
			switch newPatternField(raw, sub, "").anchor {
			case "(", "<":
				return true
			case "", "=":
				if canSkip(sub) {
					return true
				}
			}
		}
	case []any:
		return slices.ContainsFunc(pattern, canSkip)
	}
	return false
}
