package application

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/fleetwright/fleetwright/renderers/member"
)

func (o override) matches(m *member.Member) bool {
	return o.names[m.Name] || o.selector != nil && o.selector.Matches(labels.Set(m.Labels))
}

// Unmatched says which overrides match none of the members that the policy goes to, and which names in them are no
// member's: most likely a mistake in a label or a name.
func (p *Policy) Unmatched(targets []*member.Member) []string {
	if len(p.overrides) == 0 {
		return nil
	}
	names := make(map[string]bool, len(targets))
	for _, m := range targets {
		names[m.Name] = true
	}
	var out []string
	for i, o := range p.overrides {
		if !slices.ContainsFunc(targets, o.matches) {
			out = append(out, fmt.Sprintf("override %d of %s matches no member", i+1, p.title()))
			continue
		}
		for _, name := range o.Clusters {
			if !names[name] {
				out = append(out, fmt.Sprintf("override %d of %s names %s, which is no member that it goes to", i+1, p.title(), name))
			}
		}
	}
	return out
}
