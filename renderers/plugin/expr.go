package plugin

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/ext"
	"github.com/google/cel-go/interpreter"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiserver/pkg/cel/library"
)

// variables are the names that an expression may use.
type variables string

// Where an expression stands decides what it may know: what is rendered to files knows nothing of members, so that every
// replica renders the same.
const (
	// Vars do not know each other.
	varVars   variables = "config fleet"
	varConfig variables = "config fleet vars"
	varFleet  variables = "config fleet vars members facts"
	varMember variables = "config fleet vars members facts cluster"
	varObject variables = "object"
	// What rules become is the same for all members, too. Item is the one of a forEach.
	varRule variables = "config fleet vars rule excluded"
	varItem variables = "config fleet vars rule excluded item"
)

const (
	// maxCost bounds what one expression may do, in the units of Kubernetes, and maxSpent what all of a rendering may do: rules
	// that look at each pair of a few hundred members are well below.
	maxCost  = 5_000_000
	maxSpent = 20_000_000
	// maxText and maxList bound, in bytes and items, what the functions make whose cost CEL does not know.
	maxText = 1 << 20
	maxList = 10_000
)

// environment compiles expressions, and remembers them.
type environment struct {
	mu       sync.Mutex
	envs     map[variables]*cel.Env
	programs map[[2]string]cel.Program
	// known are schemas of variables, by name: what is read of one has to be in its schema.
	known map[string]apiextensionsv1.JSONSchemaProps
}

func newEnvironment() (*environment, error) {
	e := &environment{envs: map[variables]*cel.Env{}, programs: map[[2]string]cel.Program{}}
	// when(condition, value) is the value, or else an empty optional; the value is looked at only if the condition holds.
	when := cel.GlobalMacro("when", 2, func(f cel.MacroExprFactory, _ ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
		return f.NewCall(operators.Conditional, args[0], f.NewCall("optional.of", args[1]), f.NewCall("optional.none")), nil
	})
	base, err := cel.NewEnv(cel.OptionalTypes(), cel.Macros(when), ext.Strings(), ext.Encoders(), ext.Lists(), ext.Sets(), ext.TwoVarComprehensions(),
		cel.CrossTypeNumericComparisons(true), library.CIDR(), library.IP(), library.URLs(), library.SemverLib(library.SemverVersion(1)))
	if err != nil {
		return nil, err
	}
	for _, v := range []variables{varVars, varConfig, varFleet, varMember, varObject, varRule, varItem} {
		var opts []cel.EnvOption
		for _, name := range strings.Fields(string(v)) {
			opts = append(opts, cel.Variable(name, cel.DynType))
		}
		if e.envs[v], err = base.Extend(opts...); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// evaluation evaluates expressions for one rendering.
type evaluation struct {
	*environment
	spent uint64
}

// program compiles an expression.
func (e *environment) program(text string, vars variables) (cel.Program, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := [2]string{string(vars), text}
	if p, ok := e.programs[key]; ok {
		return p, nil
	}
	compiled, issues := e.envs[vars].Compile(text)
	if issues.Err() != nil {
		message := issues.Errors()[0].Message
		if vars == varVars && strings.Contains(message, "'vars'") {
			message = "vars do not know each other"
		}
		return nil, fmt.Errorf("%s: %s", text, message)
	}
	if path := e.missing(compiled); path != "" {
		return nil, fmt.Errorf("%s: there is no %s", text, path)
	}
	p, err := e.envs[vars].Program(compiled, cel.CostLimit(maxCost), cel.CustomDecorator(bounded))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", text, err)
	}
	e.programs[key] = p
	return p, nil
}

// missing returns what an expression reads of a variable that cannot have it, config.x say; empty if there is none.
func (e *environment) missing(compiled *cel.Ast) string {
	var missing []string
	shadowed := map[string]bool{}
	ast.PostOrderVisit(compiled.NativeRep().Expr(), ast.NewExprVisitor(func(x ast.Expr) {
		if x.Kind() == ast.ComprehensionKind {
			c := x.AsComprehension()
			shadowed[c.IterVar()], shadowed[c.IterVar2()] = true, true
		}
		if of, name := readBy(x); name != "" {
			if schema, path := e.schemaOf(of); isClosed(schema) {
				if _, ok := schema.Properties[name]; !ok {
					missing = append(missing, path+"."+name)
				}
			}
		}
	}))
	for _, path := range missing {
		if name, _, _ := strings.Cut(path, "."); !shadowed[name] {
			return path
		}
	}
	return ""
}

// schemaOf returns the schema of what an expression is, and its path; nil if that is not known.
func (e *environment) schemaOf(x ast.Expr) (*apiextensionsv1.JSONSchemaProps, string) {
	if x.Kind() == ast.IdentKind {
		if schema, ok := e.known[x.AsIdent()]; ok {
			return &schema, x.AsIdent()
		}
		return nil, ""
	}
	of, name := readBy(x)
	if name == "" {
		return nil, ""
	}
	schema, path := e.schemaOf(of)
	if schema == nil {
		return nil, ""
	}
	field, ok := schema.Properties[name]
	if !ok {
		return nil, ""
	}
	return &field, path + "." + name
}

// isClosed says whether there are no fields but those of a schema.
func isClosed(schema *apiextensionsv1.JSONSchemaProps) bool {
	return schema != nil && schema.Type == "object" && schema.AdditionalProperties == nil && schema.XPreserveUnknownFields == nil && !schema.XEmbeddedResource
}

// readBy returns which field of what an expression reads: x.name, x.?name, x["name"], x[?"name"]. The name is empty if it is
// another one.
func readBy(x ast.Expr) (of ast.Expr, name string) {
	switch x.Kind() {
	case ast.SelectKind:
		return x.AsSelect().Operand(), x.AsSelect().FieldName()
	case ast.CallKind:
		call := x.AsCall()
		if slices.Contains([]string{operators.Index, operators.OptIndex, operators.OptSelect}, call.FunctionName()) && call.Args()[1].Kind() == ast.LiteralKind {
			key, _ := call.Args()[1].AsLiteral().(types.String)
			return call.Args()[0], string(key)
		}
	}
	return nil, ""
}

// eval evaluates an expression to a JSON value. It is false if that is an empty optional.
func (e *evaluation) eval(text string, vars variables, values map[string]any) (any, bool, error) {
	p, err := e.program(text, vars)
	if err != nil {
		return nil, false, err
	}
	if e.spent > maxSpent {
		return nil, false, errors.New("the expressions of the plugin do too much: say it simpler")
	}
	out, details, err := p.Eval(values)
	if details != nil && details.ActualCost() != nil {
		e.spent += *details.ActualCost()
	}
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", strings.Join(strings.Fields(text), " "), err)
	}
	v, ok, err := toJSON(out)
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", text, err)
	}
	return v, ok, nil
}

// holds evaluates an expression that has to be true or false. An empty one holds.
func (e *evaluation) holds(text string, vars variables, values map[string]any) (bool, error) {
	if text == "" {
		return true, nil
	}
	v, _, err := e.eval(text, vars, values)
	if err != nil {
		return false, err
	}
	b, ok := v.(bool)
	if !ok {
		return false, fmt.Errorf("%s: is neither true nor false", text)
	}
	return b, nil
}

// text evaluates a template that has to be a string. An empty optional is an empty one.
func (e *evaluation) text(template string, vars variables, values map[string]any) (string, error) {
	v, _, err := e.expand(template, vars, values, "")
	if err != nil || v == nil {
		return "", err
	}
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("%s: is no text", template)
	}
	return s, nil
}

// expand evaluates the templates in the strings of a JSON value. It is false if the value itself is to be left out.
func (e *evaluation) expand(value any, vars variables, values map[string]any, path string) (any, bool, error) {
	switch v := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) { // so that of two errors the same one is reported each time
			got, ok, err := e.expand(v[k], vars, values, path+"."+k)
			if err != nil {
				return nil, false, err
			}
			if ok {
				out[k] = got
			}
		}
		return out, true, nil
	case []any:
		out := make([]any, 0, len(v))
		for i := range v {
			got, ok, err := e.expand(v[i], vars, values, fmt.Sprintf("%s[%d]", path, i))
			if err != nil {
				return nil, false, err
			}
			if ok {
				out = append(out, got)
			}
		}
		return out, true, nil
	case string:
		segments, err := split(v)
		if err != nil {
			return nil, false, located(path, err)
		}
		if len(segments) == 1 && segments[0].expr {
			got, ok, err := e.eval(segments[0].text, vars, values)
			return got, ok, located(path, err)
		}
		var text strings.Builder
		for _, s := range segments {
			if !s.expr {
				text.WriteString(s.text)
				continue
			}
			got, ok, err := e.eval(s.text, vars, values)
			if err != nil {
				return nil, false, located(path, err)
			}
			switch got.(type) {
			case map[string]any, []any, nil:
				if ok {
					return nil, false, located(path, fmt.Errorf("%s: cannot stand in a text", s.text))
				}
			default:
				fmt.Fprint(&text, got)
			}
		}
		return text.String(), true, nil
	}
	return value, true, nil
}

// check compiles the templates in the strings of a JSON value.
func (e *environment) check(value any, vars variables) error {
	switch v := value.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if err := e.check(v[k], vars); err != nil {
				return fmt.Errorf(".%s%w", k, err)
			}
		}
	case []any:
		for i := range v {
			if err := e.check(v[i], vars); err != nil {
				return fmt.Errorf("[%d]%w", i, err)
			}
		}
	case string:
		segments, err := split(v)
		if err != nil {
			return fmt.Errorf(": %w", err)
		}
		for _, s := range segments {
			if s.expr {
				if _, err := e.program(s.text, vars); err != nil {
					return fmt.Errorf(": %w", err)
				}
			}
		}
	}
	return nil
}

func located(path string, err error) error {
	if err == nil || path == "" {
		return err
	}
	return fmt.Errorf("%s: %w", strings.TrimPrefix(path, "."), err)
}

type segment struct {
	text string
	expr bool
}

// split cuts a string into literal text and the expressions between ${ and }. Braces and quotes inside of an expression
// are CEL's.
func split(s string) ([]segment, error) {
	var out []segment
	var literal strings.Builder
	for {
		start := strings.Index(s, "${")
		if start < 0 {
			break
		}
		if start > 0 && s[start-1] == '$' {
			literal.WriteString(s[:start-1] + "${")
			s = s[start+2:]
			continue
		}
		literal.WriteString(s[:start])
		end := closing(s[start+2:])
		if end < 0 {
			return nil, fmt.Errorf("%s: there is no } for ${: write $${ where none is meant", s[start:])
		}
		if literal.Len() > 0 {
			out = append(out, segment{text: literal.String()})
			literal.Reset()
		}
		out = append(out, segment{text: strings.TrimSpace(s[start+2 : start+2+end]), expr: true})
		s = s[start+2+end+1:]
	}
	literal.WriteString(s)
	if literal.Len() > 0 || len(out) == 0 {
		out = append(out, segment{text: literal.String()})
	}
	return out, nil
}

// closing returns where the } is that closes an expression; -1 if there is none.
func closing(s string) int {
	depth, quote := 0, byte(0)
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quote != 0 && c == '\\':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '{':
			depth++
		case c == '}' && depth == 0:
			return i
		case c == '}':
			depth--
		}
	}
	return -1
}

// bounded guards the functions that can make much of little, before they do: CEL counts what they cost afterwards.
func bounded(i interpreter.Interpretable) (interpreter.Interpretable, error) {
	call, ok := i.(interpreter.InterpretableCall)
	if !ok {
		return i, nil
	}
	switch call.Function() {
	case "lists.range", "replace", "join", "format":
		return guard{call}, nil
	}
	return i, nil
}

type guard struct{ interpreter.InterpretableCall }

func (g guard) Eval(vars interpreter.Activation) ref.Val {
	args := make([]ref.Val, len(g.Args()))
	for i, a := range g.Args() {
		args[i] = a.Eval(vars)
	}
	if tooMuch(g.Function(), args) {
		return types.NewErr("%s makes too much: %d bytes or %d items at most", g.Function(), maxText, maxList)
	}
	return g.InterpretableCall.Eval(vars)
}

var wide = regexp.MustCompile(`[0-9]{3,}`)

// tooMuch says whether a function would make too much of its arguments. What is of another type fails by itself.
func tooMuch(function string, args []ref.Val) bool {
	text := func(i int) string {
		if i < len(args) {
			if s, ok := args[i].(types.String); ok {
				return string(s)
			}
		}
		return ""
	}
	switch function {
	case "lists.range":
		n, ok := args[0].(types.Int)
		return ok && n > maxList
	case "replace":
		return len(text(0))+strings.Count(text(0), text(1))*len(text(2)) > maxText
	case "format":
		return len(text(0)) > maxText || wide.MatchString(text(0)) // a precision
	}
	total := 0
	if list, ok := args[0].(traits.Lister); ok {
		for it := list.Iterator(); it.HasNext() == types.True && total <= maxText; {
			if s, ok := it.Next().(types.String); ok {
				total += len(s) + len(text(1))
			}
		}
	}
	return total > maxText
}

// toJSON makes a JSON value of what an expression is. It is false for an empty optional.
func toJSON(v ref.Val) (any, bool, error) {
	switch v := v.(type) {
	case *types.Optional:
		if !v.HasValue() {
			return nil, false, nil
		}
		return toJSON(v.GetValue())
	case types.Null:
		return nil, true, nil
	case types.Bool:
		return bool(v), true, nil
	case types.Int:
		return int64(v), true, nil
	case types.Uint:
		return uint64(v), true, nil
	case types.Double:
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, false, errors.New("is no number that JSON has: something was divided by zero")
		}
		return float64(v), true, nil
	case types.String:
		return string(v), true, nil
	case traits.Mapper:
		out := map[string]any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			name, ok := key.(types.String)
			if !ok {
				return nil, false, errors.New("the keys of a map have to be text")
			}
			item, ok, err := toJSON(v.Get(key))
			if err != nil {
				return nil, false, err
			}
			if ok {
				out[string(name)] = item
			}
		}
		return out, true, nil
	case traits.Lister:
		out := []any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			item, ok, err := toJSON(it.Next())
			if err != nil {
				return nil, false, err
			}
			if ok {
				out = append(out, item)
			}
		}
		return out, true, nil
	}
	return nil, false, fmt.Errorf("is a %s, which is no JSON value", v.Type().TypeName())
}
