package application

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/template"
)

// variant is a policy with one set of its overrides merged in. Members with the same overrides share it.
type variant struct {
	matched []int // indexes of the overrides
	// spec is the spec if it holds no template: every member shares it, and gets a shallow copy.
	spec any
	// value is the spec with its templates otherwise, and decode makes a spec of what they become.
	value  *template.Value
	decode func([]byte) (any, error)
}

// newVariant compiles a spec; T is its type.
func newVariant[T any](spec *T) (*variant, error) {
	tree, err := toTree(spec)
	if err != nil {
		return nil, err
	}
	value, err := template.Compile(tree)
	if err != nil {
		return nil, err
	}
	decode := func(b []byte) (any, error) {
		out := new(T)
		err := json.Unmarshal(b, out)
		if typed := (*json.UnmarshalTypeError)(nil); errors.As(err, &typed) { // by number or bool
			err = fmt.Errorf("%s: cannot be a %s", strings.TrimPrefix(typed.Field, "HelmReleaseSpec."), typed.Value)
		}
		return out, err
	}
	if !value.Static() {
		return &variant{value: value, decode: decode}, nil
	}
	// Through JSON, so that escaped templates and the order of keys come out alike in both cases.
	tree, _ = value.Execute(nil)
	shared, err := fromTree(tree, decode)
	return &variant{spec: shared}, err
}

// render returns the spec for one member: shared, or the member's own. The caller copies it before a change.
func (v *variant) render(facts func() map[string]any) (any, error) {
	if v.value == nil {
		return v.spec, nil
	}
	tree, err := v.value.Execute(facts())
	if err != nil {
		return nil, err
	}
	return fromTree(tree, v.decode)
}

func fromTree(tree any, decode func([]byte) (any, error)) (any, error) {
	b, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	return decode(b)
}

// toTree returns what v is in JSON. Numbers stay as they are written.
func toTree(v any) (any, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var tree any
	return tree, d.Decode(&tree)
}

// convert makes a To of what from is in JSON: the fields of the same name.
func convert[To any](from any) (*To, error) {
	b, err := json.Marshal(from)
	if err != nil {
		return nil, err
	}
	to := new(To)
	return to, json.Unmarshal(b, to)
}

// variant returns the policy as the overrides at these indexes make it.
func (p *Policy) variant(matched []int) (*variant, error) {
	key := fmt.Sprint(matched)
	if v, ok := p.variants[key]; ok {
		return v, nil
	}
	var overrides []override
	for _, i := range matched {
		overrides = append(overrides, p.overrides[i])
	}
	v, err := p.prepare(overrides)
	if err != nil {
		return nil, err
	}
	v.matched = matched
	p.variants[key] = v
	return v, nil
}

// Matching returns the indexes of the overrides that match a member.
func (p *Policy) Matching(m *member.Member) []int {
	var matched []int
	for i, o := range p.overrides {
		if o.matches(m) {
			matched = append(matched, i)
		}
	}
	return matched
}
