package rule

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Trial tries rules on objects without a cluster: by the CEL of Kubernetes, in which Kyverno evaluates them, too.
type Trial struct {
	rules      []Rule
	evaluators []*evaluator
	ruleOf     []int
}

// Verdict is what a rule says of an object that it looks at.
type Verdict struct {
	Rule Rule
	// Broken are the messages of what does not hold; empty if all does.
	Broken []string
	// Err is of an expression that could not be evaluated.
	Err error
}

// Try compiles the rules. The error names the rule and the expression that Kyverno would not take.
func (r *Rendered) Try() (*Trial, error) {
	t := &Trial{rules: r.Rules}
	for _, o := range r.Manifests {
		i, ok := r.RuleOf(o.GetName())
		if !ok || o.GetKind() != "ValidatingPolicy" || o.GroupVersionKind().Group != policiesGroup {
			continue // what makes objects refuses none
		}
		e, err := newEvaluator(o)
		if err != nil {
			return nil, fmt.Errorf("rule %s: %w", r.Rules[i].Name, err)
		}
		t.evaluators, t.ruleOf = append(t.evaluators, e), append(t.ruleOf, i)
	}
	return t, nil
}

// Object tries the rules on an object as if it were created, and returns what those say that look at it, by rule.
func (t *Trial) Object(o *unstructured.Unstructured) []Verdict {
	said := map[int]*Verdict{}
	for i, e := range t.evaluators {
		v, err := e.evaluate(created(o.Object))
		if !v.Applies && err == nil {
			continue
		}
		to := said[t.ruleOf[i]]
		if to == nil {
			to = &Verdict{Rule: t.rules[t.ruleOf[i]]}
			said[t.ruleOf[i]] = to
		}
		to.Broken = append(to.Broken, v.Broken...)
		if to.Err == nil {
			to.Err = err
		}
	}
	var out []Verdict
	for i := range t.rules {
		if v := said[i]; v != nil {
			out = append(out, *v)
		}
	}
	return out
}
