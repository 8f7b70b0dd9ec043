// Package budget says whether a step changes more of an Application than the ChangeBudgets of its namespace allow. The controller
// asks it before a step, and the command line before it is merged.
package budget

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"

	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/member"
)

// Step is what is about to change of one Application.
type Step struct {
	// Members is how many have something of the Application, or are to have it.
	Members int
	// Changed are the members that something changes on, with their labels.
	Changed map[member.Key]map[string]string
	// Deleted are the members that something is taken away from; they are among the changed ones.
	Deleted map[member.Key]bool
	// Kinds are what is deleted on members, and stays nowhere: Kind, or Kind.group.
	Kinds map[string]bool
	// Unknown says that of something that ends it is not known what it has applied.
	Unknown bool
}

// Change notes that something changes on a member.
func (s *Step) Change(m member.Key, labels map[string]string) {
	if s.Changed == nil {
		s.Changed = map[member.Key]map[string]string{}
	}
	s.Changed[m] = labels
}

// Delete notes that something is taken away from a member.
func (s *Step) Delete(m member.Key, labels map[string]string) {
	s.Change(m, labels)
	if s.Deleted == nil {
		s.Deleted = map[member.Key]bool{}
	}
	s.Deleted[m] = true
}

// Check returns what a step is over, sorted; nothing if it is within all budgets.
func Check(step *Step, budgets []*policyv1.ChangeBudget) (over []string) {
	for _, b := range budgets {
		say := func(format string, args ...any) {
			over = append(over, fmt.Sprintf(format, args...)+" (ChangeBudget "+b.Name+")")
		}
		if n := len(step.Changed); b.Spec.Members != nil && n > limit(b.Spec.Members, step.Members) {
			say("changes %d of %d members, and %s may be", n, step.Members, allowed(b.Spec.Members, step.Members))
		}
		if n := len(step.Deleted); b.Spec.Deletions != nil && n > limit(b.Spec.Deletions, step.Members) {
			say("takes something away from %d of %d members, and %s may be", n, step.Members, allowed(b.Spec.Deletions, step.Members))
		}
		if b.Spec.Regions != nil {
			regions := map[string]bool{}
			for _, labels := range step.Changed {
				regions[labels[cmp.Or(b.Spec.RegionLabel, policyv1.DefaultRegionLabel)]] = true
			}
			if len(regions) > int(*b.Spec.Regions) {
				say("changes something in %d regions, and %d may be", len(regions), *b.Spec.Regions)
			}
		}
		var kinds []string
		for kind := range step.Kinds {
			name, _, _ := strings.Cut(kind, ".")
			if slices.Contains(b.Spec.ProtectedKinds, kind) || slices.Contains(b.Spec.ProtectedKinds, name) {
				kinds = append(kinds, kind)
			}
		}
		slices.Sort(kinds)
		switch {
		case len(kinds) > 0:
			say("deletes objects of protected kinds: %s", strings.Join(kinds, ", "))
		case step.Unknown && len(b.Spec.ProtectedKinds) > 0:
			say("ends something of which it is not known whether it has objects of protected kinds")
		}
	}
	slices.Sort(over)
	return over
}

// limit returns how many of a number of members a step may change. A percentage that is not nothing is one at least.
func limit(of *intstr.IntOrString, members int) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(of, members, false)
	if err != nil { // admission does not let it through
		return 0
	}
	if of.Type == intstr.String && n == 0 && of.StrVal != "0%" {
		return 1
	}
	return n
}

func allowed(of *intstr.IntOrString, members int) string {
	if of.Type == intstr.String {
		return fmt.Sprintf("%d (%s)", limit(of, members), of.StrVal)
	}
	return of.String()
}

// Allows says whether the value of the annotation fleet.kurator.dev/allow-change allows the step to a digest.
func Allows(annotation, digest string) bool {
	return digest != "" && slices.ContainsFunc(strings.Split(annotation, ","), func(s string) bool { return strings.TrimSpace(s) == digest })
}

// DigestOf returns what allows the step to a revision of published files: the digest in it.
func DigestOf(revision string) string {
	_, digest, _ := strings.Cut(revision, "@")
	return digest
}
