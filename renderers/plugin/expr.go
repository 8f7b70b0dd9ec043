package plugin

import (
	"errors"
	"fmt"
	"maps"
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
	"k8s.io/apiserver/pkg/cel/library"
)

// variables are the names that an expression may use.
type variables string

// Where an expression stands decides what it may know: what is rendered to files knows nothing of members, so that every
// replica renders the same.
const (
	varConfig variables = "config fleet vars"
	varFleet  variables = "config fleet vars members facts"
	varMember variables = "config fleet vars members facts cluster"
	varObject variables = "object"
)

// maxCost bounds what one expression may do: the rules about a few hundred members that look at each pair of them do.
const maxCost = 50_000_000

// environment compiles expressions, and remembers them.
type environment struct {
	mu       sync.Mutex
	envs     map[variables]*cel.Env
	programs map[[2]string]cel.Program
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
	for _, v := range []variables{varConfig, varFleet, varMember, varObject} {
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
		first := issues.Errors()[0]
		return nil, fmt.Errorf("%s: %s", text, first.Message)
	}
	p, err := e.envs[vars].Program(compiled, cel.CostLimit(maxCost))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", text, err)
	}
	e.programs[key] = p
	return p, nil
}

// eval evaluates an expression to a JSON value. It is false if that is an empty optional.
func (e *environment) eval(text string, vars variables, values map[string]any) (any, bool, error) {
	p, err := e.program(text, vars)
	if err != nil {
		return nil, false, err
	}
	out, _, err := p.Eval(values)
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
func (e *environment) holds(text string, vars variables, values map[string]any) (bool, error) {
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
func (e *environment) text(template string, vars variables, values map[string]any) (string, error) {
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
func (e *environment) expand(value any, vars variables, values map[string]any, path string) (any, bool, error) {
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
