package plugin

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/member"
)

// missing says what a component waits for; empty if it has all it needs.
func (r *rendering) missing(k *Component) string {
	for _, name := range k.Needs {
		f := r.fact(name)
		switch {
		case f == nil || f.Secret:
			if r.in.Observed.Kept[r.kept(name)] {
				continue
			}
		case r.in.Observed.Facts[name] != nil:
			continue
		}
		if f == nil {
			return fmt.Sprintf("waits for %s, which is generated", name)
		}
		on, _ := r.env.text(f.From, varConfig, r.values) // it was evaluated before
		for _, read := range r.out.Reads {
			if read.Fact == f && read.Resource != nil {
				return strings.TrimSpace(fmt.Sprintf("waits for %s, from %s %s/%s of member %s", name, read.Resource.Kind, read.Resource.Namespace, read.Resource.Name, on))
			}
		}
		return fmt.Sprintf("waits for %s, from the kubeconfig of member %s", name, on)
	}
	return ""
}

// kept returns where a secret fact, or what is generated, is in the plugin's Secret.
func (r *rendering) kept(name string) string {
	for i := range r.out.Reads {
		if read := &r.out.Reads[i]; read.Name == name && read.Secret {
			return read.Key()
		}
	}
	return name
}

// differences adds an override for every way in which members differ, and one that holds those that cannot have the component.
func (r *rendering) differences(policy *appsv1.ApplicationSyncPolicy, k *Component, members []*member.Member) error {
	supported, err := parseRange(k.Kubernetes)
	if err != nil {
		return err
	}
	if k.Chart != nil && slices.ContainsFunc(r.options(k), func(o fleetv1.PluginChart) bool { return o.Chart != nil && o.Chart.Version != "" }) {
		supported = nil // of that version, only who chose it knows
	}
	user, err := r.extraArgs(k)
	if err != nil {
		return err
	}
	if supported == nil && len(r.Spec.MemberRules)+len(k.MemberValues)+len(r.in.Taken) == 0 {
		return nil
	}
	holds, values := map[string][]string{}, map[string][]string{}
	for _, m := range members {
		r.values["cluster"] = r.clusters[m.Key()]
		text, over, err := r.difference(k, m, supported)
		delete(r.values, "cluster")
		if err != nil {
			text = err.Error()
		}
		if text != "" {
			text = shorten(text)
			holds[text] = append(holds[text], m.Name)
			continue
		}
		if len(over) == 0 {
			continue
		}
		over = application.MergeValues(over, user) // what the fleet says has the last word
		b, err := json.Marshal(over)
		if err != nil {
			return err
		}
		values[string(b)] = append(values[string(b)], m.Name)
	}
	for _, text := range slices.Sorted(maps.Keys(holds)) {
		policy.Overrides = append(policy.Overrides, appsv1.Override{Clusters: holds[text], Hold: text})
	}
	var overrides []appsv1.Override
	for raw, names := range values {
		overrides = append(overrides, appsv1.Override{Clusters: names, Helm: &appsv1.HelmOverride{Values: &apiextensionsv1.JSON{Raw: []byte(raw)}}})
	}
	slices.SortFunc(overrides, func(a, b appsv1.Override) int { return cmp.Compare(a.Clusters[0], b.Clusters[0]) })
	policy.Overrides = append(policy.Overrides, overrides...)
	return nil
}

// difference says why a member cannot have a component, or what values are its own.
func (r *rendering) difference(k *Component, m *member.Member, supported *semver.Constraints) (hold string, values map[string]any, err error) {
	if fleet := r.in.Taken[m.Name]; fleet != "" {
		return fmt.Sprintf("Fleet %s has plugin %s there: take it out of one of the two", fleet, r.Metadata.Name), nil, nil
	}
	if v, err := semver.NewVersion(m.Kubernetes); err == nil && supported != nil {
		// What a distribution appends, -gke.100 say, is no pre-release.
		if released := semver.New(v.Major(), v.Minor(), v.Patch(), "", ""); !supported.Check(released) {
			return fmt.Sprintf("runs Kubernetes %s, and %s supports %s: upgrade the member, or choose a chart version that supports it", m.Kubernetes, k.Name, k.Kubernetes), nil, nil
		}
	}
	for _, rule := range r.Spec.MemberRules {
		if text, err := r.broken(rule, varMember, r.values); err != nil || text != "" {
			return text, nil, err
		}
	}
	for _, mv := range k.MemberValues {
		if ok, err := r.env.holds(mv.When, varMember, r.values); err != nil {
			return "", nil, err
		} else if !ok {
			continue
		}
		got, _, err := r.env.expand(mv.Values, varMember, r.values, "memberValues")
		if err != nil {
			return "", nil, err
		}
		values = application.MergeValues(values, got.(map[string]any))
	}
	return "", values, nil
}

// parseRange reads a range of versions; nil if it is empty.
func parseRange(s string) (*semver.Constraints, error) {
	if s == "" {
		return nil, nil
	}
	return semver.NewConstraint(s)
}

// shorten makes a text what an override takes.
func shorten(s string) string {
	const most = 500
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most-len("…")], "") + "…"
	}
	return s
}
