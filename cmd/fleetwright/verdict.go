package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/plan"
	"github.com/fleetwright/fleetwright/renderers/repository"
)

// verdict says whether a hub runs what was reviewed.
type verdict struct {
	Verified bool `json:"verified"`
	// Owners and Objects are how many were looked at.
	Owners   int       `json:"owners"`
	Objects  int       `json:"objects"`
	Findings []finding `json:"findings,omitempty"`
}

// finding is an object that is not as it was reviewed.
type finding struct {
	State     deviation `json:"state"`
	Namespace string    `json:"namespace"`
	Kind      string    `json:"kind"`
	Name      string    `json:"name"`
	Member    string    `json:"member,omitempty"`
	Owner     plan.Ref  `json:"owner"`
	// Fields that somebody has changed, and who.
	Fields []string `json:"fields,omitempty"`
	Why    string   `json:"why,omitempty"`
}

// deviation is how an object differs.
type deviation string

const (
	missing   deviation = "Missing"
	extra     deviation = "Extra"
	different deviation = "Different" // rendered from something else
	changed   deviation = "Changed"   // by hand
	heldBack  deviation = "Held"      // could not be rendered for the plan, so that what is there stays
	suspended deviation = "Suspended" // flux suspend
	unplanned deviation = "NotInPlan" // and neither is its owner
)

// deviations, the worst first.
var deviations = []deviation{missing, extra, different, changed, heldBack, suspended, unplanned}

// verification is the state of one verify.
type verification struct {
	verdict
	plan *plan.Plan
	live map[repository.Name]*unstructured.Unstructured
	// owners are those of the plan, by their names and by those of their Applications.
	owners map[repository.Name]*plan.Owner
	// wanted is what the plan has.
	wanted map[repository.Name]bool
}

// verify compares a plan with what a hub has.
func verify(p *plan.Plan, live map[repository.Name]*unstructured.Unstructured) *verdict {
	v := &verification{plan: p, live: live, owners: map[repository.Name]*plan.Owner{}, wanted: map[repository.Name]bool{}}
	v.Owners = len(p.Owners)
	for i := range p.Owners {
		owner := &p.Owners[i]
		v.owners[repository.Name(owner.Ref)] = owner
		for _, app := range owner.Applications {
			v.owners[repository.Name{Namespace: owner.Namespace, Kind: appsv1.ApplicationKind, Name: app.Name}] = owner
		}
	}
	for i := range p.Owners {
		v.owner(&p.Owners[i])
	}
	for name, o := range live {
		if !v.wanted[name] {
			v.unwanted(name, o)
		}
	}
	slices.SortFunc(v.Findings, func(a, b finding) int {
		return cmp.Or(slices.Index(deviations, a.State)-slices.Index(deviations, b.State), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Owner.Kind, b.Owner.Kind), cmp.Compare(a.Owner.Name, b.Owner.Name), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	v.Findings = slices.CompactFunc(v.Findings, func(a, b finding) bool { return a.State == unplanned && b.State == unplanned && a.Owner == b.Owner })
	v.Verified = len(v.Findings) == 0
	return &v.verdict
}

// owner compares all that an owner renders to.
func (v *verification) owner(owner *plan.Owner) {
	name := repository.Name(owner.Ref)
	v.wanted[name] = true
	ref := func(kind, object string) finding {
		return finding{Namespace: owner.Namespace, Kind: kind, Name: object, Owner: owner.Ref}
	}
	if v.live[name] == nil {
		f := ref(owner.Kind, owner.Name)
		f.State, f.Why = missing, "was not applied, or was deleted"
		v.Findings = append(v.Findings, f)
	}
	before := len(v.Findings)
	for i := range owner.Applications {
		app := &owner.Applications[i]
		appName := repository.Name{Namespace: owner.Namespace, Kind: appsv1.ApplicationKind, Name: app.Name}
		why := func(member string) string { return v.why(owner, app, member) }
		if appName != name {
			v.object(ref(appName.Kind, app.Name), "", why)
		}
		found := len(v.Findings)
		for _, child := range app.Children {
			f := ref(child.Kind, child.Name)
			f.Member = child.Member
			v.object(f, child.Digest, why)
		}
		// What is not applied yet is in the digest already, and what is not looked at here is in it as well.
		if o := v.live[appName]; o != nil && len(v.Findings) == found && statusOf(o).RenderDigest != app.Digest {
			f := ref(appName.Kind, app.Name)
			f.State, f.Why = different, why("")
			v.Findings = append(v.Findings, f)
		}
	}
	if o := v.live[name]; o != nil && len(v.Findings) == before && owner.Kind != appsv1.ApplicationKind && statusOf(o).RenderDigest != owner.Digest {
		f := ref(owner.Kind, owner.Name)
		f.State, f.Why = different, v.why(owner, &plan.Application{Digest: owner.Digest}, "")
		v.Findings = append(v.Findings, f)
	}
}

// object compares one object; digest is that of the plan, if it has one.
func (v *verification) object(f finding, digest string, why func(member string) string) {
	v.Objects++
	name := repository.Name{Namespace: f.Namespace, Kind: f.Kind, Name: f.Name}
	v.wanted[name] = true
	o := v.live[name]
	add := func(s deviation, text string, fields ...string) {
		f.State, f.Why, f.Fields = s, text, fields
		v.Findings = append(v.Findings, f)
	}
	switch {
	case o == nil:
		add(missing, why(f.Member))
		return
	case o.GetDeletionTimestamp() != nil:
		add(missing, "is being deleted")
		return
	}
	carried := o.GetAnnotations()[fleetv1.DigestAnnotation]
	rendered := carried
	if f.Kind == sourcev1.ExternalArtifactKind { // what is published is in it by its revision
		rendered, _, _ = unstructured.NestedString(o.Object, "status", "artifact", "revision")
	}
	declared, declaredErr := repository.Live(o)
	if digest != "" && rendered != digest {
		if declaredErr == nil && declared.Digest() == digest {
			add(changed, "it is as reviewed", "metadata.annotations."+fleetv1.DigestAnnotation)
		} else {
			add(different, why(f.Member))
		}
		return
	}
	fields, err := repository.Changed(o)
	if err != nil {
		add(changed, err.Error())
		return
	}
	others := slices.DeleteFunc(slices.Clone(fields), func(field string) bool { return strings.HasPrefix(field, "spec.suspend ") })
	if len(others) > 0 {
		add(changed, "", others...)
		return
	}
	if _, ok := repository.Kinds[f.Kind]; ok { // the defaults of an Application's lists cannot be told from what was applied
		if declaredErr != nil || declared.Digest() != carried {
			text := "something that was applied is not there any more"
			if declaredErr != nil {
				text = declaredErr.Error()
			}
			add(changed, text, fields...)
			return
		}
	}
	if is, _, _ := unstructured.NestedBool(o.Object, "spec", "suspend"); is && len(fields) > 0 {
		add(suspended, "", fields...)
	}
}

// unwanted judges an object that the plan does not have.
func (v *verification) unwanted(name repository.Name, o *unstructured.Unstructured) {
	ref := metav1.GetControllerOf(o)
	made := ref != nil && ownerKinds[ref.Kind].Resource != ""
	if !made && name.Kind != appsv1.ApplicationKind {
		return // what people have written and renders to nothing, or what is somebody else's
	}
	top := name // who has written it
	if made {
		top = repository.Name{Namespace: name.Namespace, Kind: ref.Kind, Name: ref.Name}
		if parent := v.live[top]; parent != nil && v.owners[top] == nil {
			if ref := metav1.GetControllerOf(parent); ref != nil && ownerKinds[ref.Kind].Resource != "" {
				top = repository.Name{Namespace: name.Namespace, Kind: ref.Kind, Name: ref.Name}
			}
		}
	}
	f := finding{Namespace: name.Namespace, Kind: name.Kind, Name: name.Name, Member: o.GetLabels()[fleetv1.MemberLabel], Owner: plan.Ref(top)}
	owner := v.owners[top]
	if owner == nil {
		f.State, f.Kind, f.Name, f.Member, f.Why = unplanned, top.Kind, top.Name, "", "the plan does not have it"
		v.Findings = append(v.Findings, f)
		return
	}
	f.Owner = owner.Ref
	if text := v.held(owner.Ref, o.GetLabels()[appsv1.PolicyLabel], f.Member); text != "" {
		f.State, f.Why = heldBack, text
	} else if f.State = extra; o.GetDeletionTimestamp() != nil {
		f.Why = "is being deleted"
	} else {
		f.Why = cmp.Or(v.why(owner, &plan.Application{Name: cmp.Or(o.GetLabels()[appsv1.ApplicationLabel], owner.Name)}, f.Member), "the plan does not have it")
	}
	v.Findings = append(v.Findings, f)
}

// held returns why something could not be rendered for the plan; empty if it could.
func (v *verification) held(owner plan.Ref, policy, member string) string {
	for _, p := range v.plan.Problems {
		if p.Owner == owner && (p.Policy == policy || p.Policy == "") && (slices.Contains(p.Members, member) || len(p.Members) == 0 && !p.Warning) {
			return p.Message
		}
	}
	return ""
}

// why says why an object of an Application is not as reviewed, as far as the owner knows.
func (v *verification) why(owner *plan.Owner, app *plan.Application, member string) string {
	var texts []string
	live := v.live[repository.Name{Namespace: owner.Namespace, Kind: appsv1.ApplicationKind, Name: app.Name}]
	if app.Name == "" { // it is about the owner itself
		live = v.live[repository.Name(owner.Ref)]
	}
	if live != nil && app.Digest != "" {
		switch statusOf(live).RenderDigest {
		case app.Digest:
			texts = append(texts, "is rendered as reviewed, and not applied yet")
		case "":
			texts = append(texts, "is not rendered yet")
		case app.Was:
			texts = append(texts, "is still what it was before the change")
		default:
			text := "is rendered from something else than what was reviewed"
			if i := slices.IndexFunc(v.plan.Problems, func(p plan.Problem) bool { return p.Owner == owner.Ref && p.Reason == application.HeldReason }); i >= 0 {
				text += ", where something was held: " + v.plan.Problems[i].Message
			}
			texts = append(texts, text)
		}
	}
	for _, o := range []*unstructured.Unstructured{v.live[repository.Name(owner.Ref)], live} {
		if o == nil {
			continue
		}
		if text := explain(o, member); text != "" && !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	if len(texts) == 0 && live == nil {
		texts = append(texts, "there is no Application "+app.Name)
	}
	return strings.Join(texts, "; ")
}

// explain says what of an object's status may be why something of it is not as reviewed.
func explain(o *unstructured.Unstructured, member string) string {
	s, title := statusOf(o), o.GetKind()+" "+o.GetName()
	is, _, _ := unstructured.NestedBool(o.Object, "spec", "suspend")
	if is || o.GetAnnotations()[fleetv1.PauseAnnotation] == fleetv1.PauseTrue {
		return title + " is suspended"
	}
	if s.ObservedGeneration != o.GetGeneration() {
		return fmt.Sprintf("%s has generation %d, and the controller has looked at %d", title, o.GetGeneration(), s.ObservedGeneration)
	}
	if c := apimeta.FindStatusCondition(s.Conditions, appsv1.ChangeBlockedCondition); c != nil && c.Status == metav1.ConditionTrue {
		return title + ": " + c.Message
	}
	for _, m := range s.Members.NotReady {
		if m.Name == member && member != "" {
			return fmt.Sprintf("%s: %s", m.Reason, m.Message)
		}
	}
	for _, r := range s.Rules {
		if r.Reason == "HeldBack" {
			return fmt.Sprintf("%s: rule %s is held back: %s", title, r.Name, r.Message)
		}
	}
	for _, t := range []string{appsv1.PruneBlockedCondition, meta.StalledCondition} {
		if apimeta.IsStatusConditionTrue(s.Conditions, t) {
			return fmt.Sprintf("%s: %s", title, apimeta.FindStatusCondition(s.Conditions, t).Message)
		}
	}
	if ready := apimeta.FindStatusCondition(s.Conditions, meta.ReadyCondition); ready != nil && ready.Status != metav1.ConditionTrue {
		return fmt.Sprintf("%s: %s", title, ready.Message)
	}
	return ""
}

// statusOf returns the status of an object; what of it is not as it should be is left out.
func statusOf(o *unstructured.Unstructured) *status {
	s := &status{}
	if fields, ok := o.Object["status"].(map[string]any); ok {
		_ = runtime.DefaultUnstructuredConverter.FromUnstructured(fields, s)
	}
	return s
}
