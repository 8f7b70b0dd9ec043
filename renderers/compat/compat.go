// Package compat finds what members cannot take of what is delivered to them: charts that do not support their version of
// Kubernetes, API versions that it does not serve, and CRDs that two deliver.
package compat

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/fleetwright/fleetwright/renderers/member"
)

// Delivery is what a policy puts on members, on all of them the same.
type Delivery struct {
	Namespace, Application, Policy string
	// Owner names for people what they have written, Fleet prod say.
	Owner   string
	Members []Member
	// Chart is the name of the chart, and Kubernetes its kubeVersion, the range of versions that it supports; empty if
	// they are not known.
	Chart, Kubernetes string
	// Objects end up on each of the members; of a chart, with those of its folder crds. Nil if they are not known.
	Objects []*unstructured.Unstructured
}

// Member is one that gets a Delivery. One without a name is the hub.
type Member struct {
	member.Key
	// Kubernetes is the version of its API server, v1.36.3 say; empty if it is not known.
	Kubernetes string
}

// Reasons of findings.
const (
	UnsupportedReason = "UnsupportedKubernetes"
	NotServedReason   = "APINotServed"
	LastServedReason  = "APIRemovedNext"
	OwnedTwiceReason  = "CRDOwnedTwice"
)

// Finding is the same for some members.
type Finding struct {
	Namespace, Application, Policy string
	Members                        []string
	Reason                         string
	// Message says it to people, without the members.
	Message string
	// Warning says that nothing fails yet.
	Warning bool
}

// Check returns what is found, sorted. What is not known, a member's version or a custom resource, is not found wrong.
func Check(deliveries []Delivery) []Finding {
	found := findings{}
	for i := range deliveries {
		d := &deliveries[i]
		found.supported(d)
		found.served(d)
	}
	found.owned(deliveries)
	return found.sorted()
}

// findings are the members by what was found. The message has a place for the versions that they run.
type findings map[finding]map[Member]bool

type finding struct {
	namespace, application, policy string
	reason, message                string
}

func (f findings) add(d *Delivery, reason, message string, members []Member) {
	key := finding{d.Namespace, d.Application, d.Policy, reason, message}
	if f[key] == nil {
		f[key] = map[Member]bool{}
	}
	for _, m := range members {
		f[key][m] = true
	}
}

// versions is where a message has the versions of the members.
const versions = "\x00"

func (f findings) sorted() []Finding {
	var out []Finding
	for key, members := range f {
		names, run := map[string]bool{}, map[string]bool{}
		for m := range members {
			names[m.Name], run[m.Kubernetes] = true, true
		}
		out = append(out, Finding{
			Namespace: key.namespace, Application: key.application, Policy: key.policy, Reason: key.reason,
			Members: slices.Sorted(maps.Keys(names)), Warning: key.reason == LastServedReason,
			Message: strings.ReplaceAll(key.message, versions, list(slices.SortedFunc(maps.Keys(run), compareVersions))),
		})
	}
	slices.SortFunc(out, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Application, b.Application), cmp.Compare(a.Policy, b.Policy),
			cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message), slices.Compare(a.Members, b.Members))
	})
	return out
}

func compareVersions(a, b string) int {
	v, err := version.ParseGeneric(a)
	if err != nil {
		return cmp.Compare(a, b)
	}
	n, _ := v.Compare(b) // of one that is not known, 0
	return cmp.Or(n, cmp.Compare(a, b))
}

// byMinor returns the members whose version is known, by its minor.
func byMinor(members []Member) map[int][]Member {
	out := map[int][]Member{}
	for _, m := range members {
		if v, err := version.ParseGeneric(m.Kubernetes); err == nil && v.Major() == 1 {
			out[int(v.Minor())] = append(out[int(v.Minor())], m)
		}
	}
	return out
}

// supported looks at the range of the chart as Helm does when it installs: a suffix, -gke.100 say, makes a pre-release of a
// version, which only a range with one, >=1.25.0-0, includes.
func (f findings) supported(d *Delivery) {
	if d.Kubernetes == "" {
		return
	}
	supported, err := semver.NewConstraint(d.Kubernetes)
	if err != nil {
		f.add(d, UnsupportedReason, fmt.Sprintf("chart %s: its kubeVersion, %q, is no range of versions, and Helm refuses it: choose another version of the chart", d.Chart, d.Kubernetes), d.Members)
		return
	}
	for _, m := range d.Members {
		v, err := semver.NewVersion(m.Kubernetes)
		if err != nil || supported.Check(v) {
			continue
		}
		text := fmt.Sprintf("chart %s supports Kubernetes %s (here %s): upgrade, or choose another version of the chart", d.Chart, d.Kubernetes, versions)
		if supported.Check(semver.New(v.Major(), v.Minor(), v.Patch(), "", "")) {
			text = fmt.Sprintf("chart %s supports Kubernetes %s, which Helm takes to be without versions that have a suffix (here %s): choose a version of the chart whose range has one, >=1.25.0-0 say", d.Chart, d.Kubernetes, versions)
		}
		f.add(d, UnsupportedReason, text, []Member{m})
	}
}

// served looks for API versions of Kubernetes that members do not serve, or not for long.
func (f findings) served(d *Delivery) {
	names := map[schema.GroupVersionKind][]string{}
	for _, o := range d.Objects {
		if _, ok := lifecycles()[o.GroupVersionKind()]; ok {
			names[o.GroupVersionKind()] = append(names[o.GroupVersionKind()], strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/"))
		}
	}
	for minor, members := range byMinor(d.Members) {
		for gvk, of := range names {
			slices.Sort(of)
			l, what := lifecycles()[gvk], gvk.Kind+" "+list(of)
			switch {
			case minor < l.introduced:
				f.add(d, NotServedReason, fmt.Sprintf("%s: %s is served from Kubernetes 1.%d on (here %s): %s", what, gvk.GroupVersion(), l.introduced, versions, instead(gvk, minor, "upgrade, or write %s for these members", "upgrade, or leave it out there")), members)
			case l.removed > 0 && minor >= l.removed:
				f.add(d, NotServedReason, fmt.Sprintf("%s: %s is not served since Kubernetes 1.%d (here %s): %s", what, gvk.GroupVersion(), l.removed, versions, instead(gvk, minor, "write %s", "leave it out")), members)
			case minor+1 == l.removed:
				f.add(d, LastServedReason, fmt.Sprintf("%s: %s is not served from Kubernetes 1.%d on, the next version (here %s): before the upgrade, %s", what, gvk.GroupVersion(), l.removed, versions, instead(gvk, minor, "write %s", "leave it out")), members)
			}
		}
	}
}

// ssaAnnotation says how Flux applies an object; but for Merge and Override, it leaves what is there to others.
const ssaAnnotation = "kustomize.toolkit.fluxcd.io/ssa"

// owned looks for CRDs that two policies put on one member.
func (f findings) owned(deliveries []Delivery) {
	type place struct {
		namespace string
		member.Key
	}
	owners := map[string][]int{} // of CRDs, whose names are those of their plural and group
	for i := range deliveries {
		for _, o := range deliveries[i].Objects {
			if gk := o.GroupVersionKind().GroupKind(); gk.Group == "apiextensions.k8s.io" && gk.Kind == "CustomResourceDefinition" &&
				!slices.Contains([]string{"IfNotPresent", "Ignore"}, o.GetAnnotations()[ssaAnnotation]) {
				owners[o.GetName()] = append(owners[o.GetName()], i)
			}
		}
	}
	for name, of := range owners {
		if len(of) < 2 {
			continue
		}
		first := map[place]int{}
		for _, i := range of {
			d := &deliveries[i]
			for _, m := range d.Members {
				at := place{d.Namespace, m.Key}
				j, ok := first[at]
				if !ok {
					first[at] = i
					continue
				}
				other := &deliveries[j]
				if other.Application == d.Application && other.Policy == d.Policy {
					continue
				}
				f.add(d, OwnedTwiceReason, fmt.Sprintf("CustomResourceDefinition %s comes from %s, policy %s, too: they overwrite each other's, and when one leaves it is deleted with all that was made of it: leave it out of one, for a chart with crds: Skip",
					name, other.Owner, other.Policy), []Member{m})
			}
		}
	}
}

// list names some of many.
func list(names []string) string {
	const most = 3
	names = slices.Compact(names)
	if len(names) > most+1 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
