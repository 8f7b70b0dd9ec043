package rule

import "maps"

// podPattern returns the pattern for a Pod of one that is for Pods, or for what creates them: what it says of spec.template,
// or spec.jobTemplate.spec.template. It is false if the pattern says something that a Pod does not have.
func podPattern(pattern map[string]any) (pod map[string]any, ok bool) {
	for _, path := range [][]string{{"spec", "jobTemplate", "spec", "template"}, {"spec", "template"}} {
		template, depth := pattern, 0
		for _, key := range path {
			next, found := inner(template, key)
			if !found {
				break
			}
			if len(template) > 1 && (depth > 0 || !onlyHeader(template, key)) {
				return nil, false // beside the template there is what a Pod has not
			}
			template, depth = next, depth+1
		}
		if depth == len(path) {
			return template, true
		}
	}
	return pattern, true
}

// inner returns the map at a key, whatever anchor the key has.
func inner(pattern map[string]any, key string) (map[string]any, bool) {
	for raw, value := range pattern {
		name := raw
		if m := anchor.FindStringSubmatch(raw); m != nil {
			name = m[2]
		}
		if name == key {
			m, ok := value.(map[string]any)
			return m, ok
		}
	}
	return nil, false
}

// onlyHeader says whether beside a key there is nothing but what says which object it is.
func onlyHeader(pattern map[string]any, key string) bool {
	rest := maps.Clone(pattern)
	maps.DeleteFunc(rest, func(raw string, _ any) bool { return raw == "kind" || raw == "apiVersion" || raw == key })
	return len(rest) == 0
}
