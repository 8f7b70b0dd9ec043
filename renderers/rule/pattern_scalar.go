package rule

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// condition is what a scalar of a pattern becomes.
type condition struct {
	is expr
	// literals are all that it holds of, if they are few.
	literals []string
	// holdsOfNull says that it holds of null, and so of what is not there.
	holdsOfNull bool
}

// scalar compiles what a value has to be. Of a list, all items have to be so.
func scalar(pattern any, value operand) (condition, error) {
	c, err := scalarOf(pattern, value)
	if _, isBool := pattern.(bool); err != nil || !value.list || isBool { // there are no lists of booleans
		return c, err
	}
	each, err := scalarOf(pattern, operand{known: "one"})
	c.is, c.literals = either(value.isList(), call("%s.all(one, %s)", value.found().known, each.is.text), c.is), nil
	return c, err
}

func scalarOf(pattern any, value operand) (condition, error) {
	switch pattern := pattern.(type) {
	case nil:
		literals := []string{"null", `""`, "0", "false"}
		if value.isText() {
			literals = literals[:2]
		}
		c := literal(value, literals)
		c.holdsOfNull = true
		return c, nil
	case bool:
		return literal(value, []string{fmt.Sprint(pattern)}), nil
	case json.Number:
		return number(pattern.String(), value)
	case int, int64, float64:
		return number(fmt.Sprint(pattern), value)
	case string:
		return alternatives(pattern, value)
	}
	return condition{}, fmt.Errorf("%T is no value of JSON", pattern)
}

func literal(value operand, literals []string) condition {
	return condition{is: oneOf(value.orNull(), literals), literals: literals}
}

func number(text string, value operand) (condition, error) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		text = strconv.FormatInt(n, 10)
		return literal(value, []string{text, quote(text)}), nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return condition{}, fmt.Errorf("%s is too large a number: write a smaller one", text)
	}
	if f == math.Trunc(f) && math.Abs(f) < 1e15 {
		text = strconv.FormatInt(int64(f), 10)
		return literal(value, []string{text, quote(text)}), nil
	}
	written := strconv.FormatFloat(f, 'g', -1, 64)
	if !strings.ContainsAny(written, ".e") {
		written += ".0"
	}
	return literal(value, []string{written, quote(text)}), nil
}

// alternatives compiles a text: alternatives by |, in which all that stands between & has to hold.
func alternatives(pattern string, value operand) (condition, error) {
	if strings.Contains(pattern, "{{") || strings.Contains(pattern, "$(") {
		return condition{}, fmt.Errorf("%s: %w", pattern, errVariable)
	}
	out := condition{is: no}
	var guards, others []expr
	for alternative := range strings.SplitSeq(pattern, "|") {
		guard, c, err := conjunction(alternative, value)
		if err != nil {
			return condition{}, err
		}
		out.holdsOfNull = out.holdsOfNull || c.holdsOfNull
		for _, l := range c.literals {
			if !slices.Contains(out.literals, l) {
				out.literals = append(out.literals, l)
			}
		}
		if len(c.literals) > 0 {
			continue
		}
		if i := slices.Index(guards, guard); i >= 0 { // said once for several
			others[i] = or(others[i], c.is)
		} else {
			guards, others = append(guards, guard), append(others, c.is)
		}
	}
	if len(out.literals) > 0 {
		// A text is equal to itself, with the spaces around it, too.
		if whole := quote(pattern); len(others) == 0 && strings.TrimSpace(pattern) != pattern && !slices.Contains(out.literals, whole) {
			out.literals = append(out.literals, whole)
		}
		out.is = oneOf(value.orNull(), out.literals)
	}
	if len(others) > 0 {
		out.literals = nil
	}
	for i := range others {
		out.is = or(out.is, and(guards[i], others[i]))
	}
	return out, nil
}

// conjunction compiles conditions, of which all have to hold. The guard has to hold, too.
func conjunction(text string, value operand) (guard expr, out condition, err error) {
	var guards, all []expr
	out.holdsOfNull = true
	parts := strings.Split(text, "&")
	for _, part := range parts {
		guard, c, err := single(strings.Trim(part, " "), value)
		if err != nil || len(parts) == 1 {
			return guard, c, err
		}
		if !slices.Contains(guards, guard) {
			guards = append(guards, guard)
		}
		all, out.holdsOfNull = append(all, c.is), out.holdsOfNull && c.holdsOfNull
	}
	out.is = and(all...)
	return and(guards...), out, nil
}

var (
	inRange    = regexp.MustCompile(`^([-+]?\d+(?:\.\d+)?[A-Za-z]*)-([-+]?\d+(?:\.\d+)?[A-Za-z]*)$`)
	notInRange = regexp.MustCompile(`^([-+]?\d+(?:\.\d+)?[A-Za-z]*)!-([-+]?\d+(?:\.\d+)?[A-Za-z]*)$`)
)

// single compiles an operator and what the value is compared with. The guard has to hold, too.
func single(text string, value operand) (guard expr, c condition, err error) {
	if len(text) > 1 {
		for _, op := range []string{">=", "<=", ">", "<", "!"} {
			if rest, ok := strings.CutPrefix(text, op); ok {
				rest = strings.TrimSpace(rest)
				if op == "!" {
					guard, c = differs(rest, value)
					return guard, c, nil
				}
				than := newMeasure(rest)
				if !than.isQuantity && !than.isDuration {
					return guard, c, fmt.Errorf("%s compares with %q: write a number, a quantity or a duration", op, rest)
				}
				guard, c = compare(value, bindsAnd, bound{op, than})
				return guard, c, nil
			}
		}
		for _, r := range []struct {
			is     *regexp.Regexp
			lo, hi string
			joined binding
		}{{notInRange, "<", ">", bindsOr}, {inRange, ">=", "<=", bindsAnd}} {
			m := r.is.FindStringSubmatch(text)
			if m == nil {
				continue
			}
			lo, hi := newMeasure(m[1]), newMeasure(m[2])
			if !lo.isQuantity && !lo.isDuration || !hi.isQuantity && !hi.isDuration {
				break // a text that looks like a range
			}
			guard, c = compare(value, r.joined, bound{r.lo, lo}, bound{r.hi, hi})
			if value.isText() {
				guard, c.is = yes, or(equal(value.orNull(), quote(text)), and(guard, c.is))
			}
			return guard, c, nil
		}
	}
	guard, c = equals(strings.TrimSpace(text), value)
	return guard, c, nil
}

// measure is what a value is compared with, and how it reads as a quantity or a duration.
type measure struct {
	text                   string
	isQuantity, isDuration bool
	// sign says whether it is less than, as much as or more than nothing.
	sign int
}

func newMeasure(text string) measure {
	m := measure{text: text}
	if d, err := time.ParseDuration(text); err == nil {
		m.isDuration, m.sign = true, cmp.Compare(d, 0)
	}
	if q, err := resource.ParseQuantity(text); err == nil {
		m.isQuantity, m.sign = true, q.Sign()
	}
	return m
}

type bound struct {
	op   string
	than measure
}

// ofNull says whether null, which counts as 0, is within a bound.
func (b bound) ofNull() bool {
	switch b.op {
	case ">":
		return b.than.sign < 0
	case ">=":
		return b.than.sign <= 0
	case "<":
		return b.than.sign > 0
	case "<=":
		return b.than.sign >= 0
	}
	return b.than.sign == 0
}

// durations are the texts that are compared as such: all are within what a duration can be, so that none is an error.
const durations = `^(0|([0-9]{1,5}h|[0-9]{1,7}([.][0-9]+)?(m|s|ms|us|ns)){1,4})$`

// compare compiles bounds, of which all or one have to hold. What is no quantity and no duration is in none.
func compare(value operand, joined binding, bounds ...bound) (guard expr, c condition) {
	join, ofNull := and, !slices.ContainsFunc(bounds, func(b bound) bool { return !b.ofNull() })
	if joined == bindsOr {
		join, ofNull = or, slices.ContainsFunc(bounds, bound.ofNull)
	}
	var quantities, times, each []expr
	for _, b := range bounds {
		if b.than.isQuantity {
			quantities = append(quantities, relation("quantity(string(%s)).compareTo(quantity(%s)) %s 0", value.found().known, quote(b.than.text), b.op))
		}
		// 10m is both; of processors and of 0 it is clear what is meant.
		if b.than.isDuration && (!b.than.isQuantity || b.than.sign != 0 && value.name != "cpu") {
			times = append(times, relation("duration(string(%s)) %s duration(%s)", value.found().known, b.op, quote(b.than.text)))
		}
	}
	isQuantity, isDuration := call("isQuantity(%s)", value.text()), call("%s.matches(%s)", value.text(), quote(durations))
	switch guard = yes; {
	case len(times) == 0:
		guard, c.is = isQuantity, join(quantities...)
	case len(quantities) == 0:
		guard, c.is = isDuration, join(times...)
	case len(quantities) == len(bounds) && len(times) == len(bounds):
		c.is = or(and(isQuantity, join(quantities...)), and(isDuration, join(times...)))
	default: // from 1m to 1h
		for _, b := range bounds {
			with, one := compare(value, bindsAnd, b)
			each = append(each, and(with, one.is))
		}
		return yes, condition{is: join(each...), holdsOfNull: ofNull}
	}
	if c.holdsOfNull = ofNull; ofNull {
		guard, c.is = yes, or(equal(value.orNull(), "null"), and(guard, c.is))
	}
	return guard, c
}

// plainNumber is one that is written as it is printed.
var plainNumber = regexp.MustCompile(`^(0|-?[1-9][0-9]{0,14}|-?(0|[1-9][0-9]{0,7})[.][0-9]{0,6}[1-9])$`)

// equals compiles what a value is equal to.
func equals(text string, value operand) (guard expr, c condition) {
	m := newMeasure(text)
	c.holdsOfNull = (m.isQuantity || m.isDuration) && m.sign == 0
	if c.holdsOfNull {
		c.literals = []string{"null"}
	}
	switch {
	case value.isText() && !strings.ContainsAny(text, "*?"):
		c.literals = append(c.literals, quote(text))
	case plainNumber.MatchString(text), text == "true", text == "false":
		c.literals = append(c.literals, text, quote(text))
	case m.isQuantity || m.isDuration:
		return compare(value, bindsAnd, bound{"==", m})
	case strings.Trim(text, "*") == "" && text != "":
		return value.isAsText(), condition{is: yes}
	case isAny.MatchString(text):
		return value.isAsText(), condition{is: not(equal(value.found().known, `""`))}
	case !strings.ContainsAny(text, "*?"):
		c.literals = append(c.literals, quote(text))
	case value.isText() || noNumber.MatchString(text):
		return value.isString(), condition{is: matches(text, value.found().known)}
	default:
		return value.isScalar(), condition{is: matches(text, "string("+value.found().known+")")}
	}
	c.is = oneOf(value.orNull(), c.literals)
	return yes, c
}

// differs compiles what a value is not equal to. No map and no list is, nor what is not there, if it does not count as 0.
func differs(text string, value operand) (guard expr, c condition) {
	m := newMeasure(text)
	c.holdsOfNull = (m.isQuantity || m.isDuration) && m.sign != 0
	switch {
	case text != "" && strings.Trim(text, "*") == "":
		return yes, condition{is: no}
	case isAny.MatchString(text):
		return yes, literal(value, []string{`""`})
	case c.holdsOfNull:
		guard = value.isScalarOrNull()
	case value.isText(), onlyText.MatchString(text):
		guard, value = value.isString(), value.found()
		value.context = "label"
	default:
		guard, value = value.isScalar(), value.found()
	}
	if strings.ContainsAny(text, "*?") {
		on := value.known
		if !value.isText() {
			on = "string(" + on + ")"
		}
		c.is = not(matches(text, on))
		return guard, c
	}
	with, other := equals(text, value)
	if len(other.literals) > 1 && other.literals[0] == "null" { // which the guard leaves out
		other.is = oneOf(value.orNull(), other.literals[1:])
	}
	c.is = not(and(with, other.is))
	return guard, c
}

var (
	// isAny is what matches all but the empty text.
	isAny = regexp.MustCompile(`^(\*+\?\**|\?\*+)$`)
	// noNumber is what matches no number and no boolean, as they are written.
	noNumber = regexp.MustCompile(`[^0-9+.eEtrufals*?-]`)
	// onlyText is what is not compared with numbers, or percentages and names of ports, which may be numbers: images, paths,
	// and what Kubernetes enumerates.
	onlyText = regexp.MustCompile(`^[*?]*[A-Z]|[:/@]`)
	stars    = regexp.MustCompile(`\*+`)
)

// matches compiles a text with * and ? for an expression of a string.
func matches(text, on string) expr {
	text = stars.ReplaceAllString(text, "*")
	inner := strings.Trim(text, "*")
	switch {
	case text == "*":
		return yes
	case isAny.MatchString(text):
		return not(equal(on, `""`))
	case strings.ContainsAny(inner, "*?"):
		inner = strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(text))
		return call("%s.matches(%s)", on, quote("(?s)^"+inner+"$"))
	case text == inner:
		return equal(on, quote(text))
	case text == inner+"*":
		return call("%s.startsWith(%s)", on, quote(inner))
	case text == "*"+inner:
		return call("%s.endsWith(%s)", on, quote(inner))
	}
	return call("%s.contains(%s)", on, quote(inner))
}
