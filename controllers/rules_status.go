package controllers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/plugin"
	"github.com/fleetwright/fleetwright/renderers/rule"
)

// maxRulesStatus bounds a status, in bytes of JSON: what of it is a list gets shorter until it fits.
const maxRulesStatus = 60 << 10

// waits says that nothing was changed, and why.
func (r *RulesReconciler[T]) waits(o T, reason string, err error) {
	conditions.Delete(o, meta.StalledCondition)
	conditions.Delete(o, meta.ReconcilingCondition)
	message := shorten(err.Error())
	if reason == pluginNotLoadedReason {
		conditions.MarkReconciling(o, reason, "%s", message)
		conditions.MarkUnknown(o, meta.ReadyCondition, reason, "%s: what was delivered stays as it is", message)
		return
	}
	conditions.MarkFalse(o, meta.ReadyCondition, reason, "%s", message)
}

// failAll says of each rule what is wrong with all of them.
func (r *RulesReconciler[T]) failAll(o T, reason string, err error) {
	status := o.GetRules()
	was := status.Rules
	status.Rules = nil
	for _, declared := range r.kind.set(o).Declared() {
		s := policyv1.RuleStatus{Name: declared.Name, Type: declared.Type, Ready: string(metav1.ConditionFalse), Reason: reason, Message: bounded(err.Error(), 250)}
		if i := ruleOf(was, s.Name); i >= 0 {
			s.Delivered, s.Enforcement, s.Results, s.FailingMembers = was[i].Delivered, was[i].Enforcement, was[i].Results, was[i].FailingMembers
		}
		status.Rules = append(status.Rules, s)
	}
	if conditions.IsTrue(o, policyv1.CompliantCondition) {
		conditions.MarkUnknown(o, policyv1.CompliantCondition, notReportedYetReason, "the rules are not as declared: %s", shorten(err.Error()))
	}
}

func ruleOf(rules []policyv1.RuleStatus, name string) int {
	return slices.IndexFunc(rules, func(s policyv1.RuleStatus) bool { return s.Name == name })
}

// report says how the delivery is, how each rule is, and what the members report.
func (r *RulesReconciler[T]) report(ctx context.Context, o T, rendered *rule.Rendered, kept []string, members []member.Key) error {
	status := o.GetRules()
	was := status.Rules
	apps, err := r.applications(ctx, o)
	if err != nil {
		return err
	}
	for _, t := range []string{meta.StalledCondition, appsv1.ChangeBlockedCondition, appsv1.PruneBlockedCondition, appsv1.OverrideUnmatchedCondition} {
		conditions.Delete(o, t)
	}
	status.Members, status.Objects, status.Prune = fleetv1.MemberSummary{}, 0, nil
	delivering, revision := rendered.Applications(), rendered.Revision
	if len(kept) > 0 { // what was published before goes on
		delivering = pointers(apps)
		if revision, err = r.published(ctx, o); err != nil {
			return err
		}
	}
	var judged []*metav1.Condition
	revisions := map[member.Key]string{}
	for _, declared := range delivering {
		i := slices.IndexFunc(apps, func(a appsv1.Application) bool { return a.Name == declared.Name })
		if i < 0 || apps[i].Status.ObservedGeneration != apps[i].Generation || conditions.Get(&apps[i], meta.ReadyCondition) == nil {
			judged = append(judged, conditions.UnknownCondition(meta.ReadyCondition, meta.ProgressingReason, "Application %s is at work", declared.Name))
			continue
		}
		ready := take(o, r.kind.name, &status.Members, &status.Objects, &status.Prune, &apps[i], "")
		var children kustomizev1.KustomizationList
		if err := r.List(ctx, &children, owned(types.NamespacedName{Namespace: o.GetNamespace(), Name: declared.Name})...); err != nil {
			return err
		}
		behind := 0
		for _, child := range pointers(children.Items) {
			if declared.Name == r.kind.set(o).PoliciesName() {
				revisions[memberOf(child)] = appliedRevision(child)
			}
			if isTrue(fluxReady(child)) && appliedRevision(child) != revision && !fluxSuspended(child) {
				behind++
			}
		}
		if ready.Status == metav1.ConditionTrue && behind > 0 {
			ready = conditions.UnknownCondition(meta.ReadyCondition, meta.ProgressingReason, "%d of %d members do not have %s yet: Flux is at work", behind, len(children.Items), revision)
		}
		judged = append(judged, ready)
	}
	explainRules(status, rendered, judged)
	if len(judged) == 0 {
		judged = append(judged, conditions.TrueCondition(meta.ReadyCondition, succeededReason, "no rule is enabled"))
	}
	if failed := rendered.Failed(); len(failed) > 0 {
		var texts []string
		status := metav1.ConditionUnknown
		for _, f := range failed {
			texts = append(texts, fmt.Sprintf("rule %s: %v", f.Name, f.Err))
			if !errors.Is(f.Err, errPluginNotLoaded) {
				status = metav1.ConditionFalse
			}
		}
		text := capped(texts, 5)
		if len(kept) > 0 {
			text += fmt.Sprintf(": nothing is changed on the members until %s can be rendered again, or is taken out", strings.Join(kept, ", "))
		}
		judged = append(judged, &metav1.Condition{Type: meta.ReadyCondition, Status: status, Reason: ruleFailedReason, Message: bounded(text, 1500)})
	}
	if rendered.Removed != "" {
		judged = append(judged, conditions.FalseCondition(meta.ReadyCondition, engineRemovedReason,
			"Kyverno is removed from Fleet %s by the annotation %s: no rule that needs it holds any more", rendered.Removed, fleetv1.RemovePluginAnnotation))
	}
	ready := worstOf(judged)
	setDelivered(o, judged, "")
	status.Rules = nil
	for _, rendered := range rendered.Rules {
		status.Rules = append(status.Rules, ruleStatus(rendered, was, ready, kept))
	}
	r.count(o, rendered, members, revisions)
	r.reportResults(o, rendered, was, members, func(m member.Key, revisionOfReport string) bool {
		return revision != "" && revisions[m] == revision && revisionOfReport == revision
	})
	if token, ok := meta.ReconcileAnnotationValue(o.GetAnnotations()); ok {
		status.LastHandledReconcileAt = token
	}
	return nil
}

// worstOf returns the worst of the conditions of what delivers rules, but for rules that failed themselves.
func worstOf(judged []*metav1.Condition) *metav1.Condition {
	worst := judged[0]
	for _, c := range judged {
		if c.Reason != ruleFailedReason && (c.Status == metav1.ConditionFalse || c.Status == metav1.ConditionUnknown && worst.Status == metav1.ConditionTrue) {
			worst = c
		}
	}
	return worst
}

// ruleStatus says how a rule is. While rules that members have cannot be rendered, kept, members have of the others what was
// published before.
func ruleStatus(rendered rule.Rule, was []policyv1.RuleStatus, delivery *metav1.Condition, kept []string) policyv1.RuleStatus {
	s := policyv1.RuleStatus{Name: rendered.Name, Type: rendered.Type, Enforcement: policyv1.Audit, Ready: string(delivery.Status)}
	if rendered.Enforce {
		s.Enforcement = policyv1.Enforce
	}
	i := ruleOf(was, rendered.Name)
	s.Delivered = i >= 0 && was[i].Delivered
	if s.Delivered && len(kept) > 0 {
		s.Enforcement = was[i].Enforcement
	}
	switch {
	case rendered.Err != nil:
		s.Ready, s.Reason, s.Message = string(metav1.ConditionFalse), ruleFailedReason, bounded(rendered.Err.Error(), 250)
		if errors.Is(rendered.Err, errPluginNotLoaded) {
			s.Ready, s.Reason = string(metav1.ConditionUnknown), pluginNotLoadedReason
		}
		if s.Delivered {
			s.Message = bounded(rendered.Err.Error(), 200) + ": members keep what they have of it"
		}
	case len(kept) > 0:
		s.Ready, s.Reason = string(metav1.ConditionUnknown), heldBackReason
		s.Message = bounded(fmt.Sprintf("nothing of it is changed on the members until %s can be rendered again, or is taken out", strings.Join(kept, ", ")), 250)
	default:
		s.Delivered = true
		if delivery.Status != metav1.ConditionTrue {
			s.Reason = delivery.Reason
		}
	}
	return s
}

// explainRules says what to do where what rules wait for is not there, and in the worst of the conditions what is wrong with a
// member: the Applications name the members alone.
func explainRules(status *policyv1.RulesStatus, rendered *rule.Rendered, judged []*metav1.Condition) {
	notReady := status.Members.NotReady
	if rendered.Policies != nil {
		for _, d := range rendered.Policies.Spec.DependsOn {
			for i := range notReady {
				notReady[i].Message = strings.ReplaceAll(notReady[i].Message, fmt.Sprintf("waits for Application %s, which is not there or invalid", d.Name), rule.WithoutEngine)
			}
		}
	}
	if text := worst(notReady); text != "" && len(judged) > 0 {
		if c := worstOf(judged); c.Status != metav1.ConditionTrue {
			c.Message += "; " + text
		}
	}
}

// published returns the revision that is published; empty if none is.
func (r *RulesReconciler[T]) published(ctx context.Context, o T) (string, error) {
	ea := &sourcev1.ExternalArtifact{}
	err := r.Get(ctx, types.NamespacedName{Namespace: o.GetNamespace(), Name: r.kind.set(o).PoliciesName()}, ea, client.UnsafeDisableDeepCopyOption(true))
	if err != nil || ea.Status.Artifact == nil {
		return "", client.IgnoreNotFound(err)
	}
	return ea.Status.Artifact.Revision, nil
}

// results are what members report of the rules of an object.
type results struct {
	policyv1.Compliance
	rendered *rule.Rendered
	// rules are the indexes of policies' rules, as far as they were looked up; -1 is none.
	rules map[string]int
	// perRule and failing are the counts of each rule, and the members on which it is broken.
	perRule  []policyv1.ResultCounts
	failing  []int
	listed   []policyv1.MemberResults
	findings []policyv1.Finding
	// unknown are members of which it is not known whether they are compliant, and why.
	unknown []string
}

// reportResults says what the members report: counts, and the worst of it. Was are the rules as they were said to be, and
// delivered says whether a member has what is published, and had it when it reported.
func (r *RulesReconciler[T]) reportResults(o T, rendered *rule.Rendered, was []policyv1.RuleStatus, members []member.Key, delivered func(m member.Key, revisionOfReport string) bool) {
	status := o.GetRules()
	if len(rendered.Counted()) == 0 {
		status.Compliance = policyv1.Compliance{}
		conditions.Delete(o, policyv1.CompliantCondition)
		return
	}
	all := &results{Compliance: policyv1.Compliance{Total: len(members)}, rendered: rendered, rules: map[string]int{},
		perRule: make([]policyv1.ResultCounts, len(rendered.Rules)), failing: make([]int, len(rendered.Rules))}
	pending := 0
	for _, m := range members {
		report, known := r.Reports.of(reportOwner{client.ObjectKeyFromObject(o), r.kind.name}, refOf(o, m))
		if m.Kind != "" && !known && report.problem == "" {
			pending++
		}
		if known {
			all.add(m, &report, delivered(m, report.revision))
		} else {
			all.keep(m, &report, &status.Compliance)
		}
	}
	if pending > 0 && status.Compliance.Total > 0 {
		// The process has just begun, or a member has just come: what was said before is right until all have had their turn.
		for i := range status.Rules {
			if j := ruleOf(was, status.Rules[i].Name); j >= 0 {
				status.Rules[i].Results, status.Rules[i].FailingMembers = was[j].Results, was[j].FailingMembers
			}
		}
		return
	}
	for i := range status.Rules {
		status.Rules[i].Results, status.Rules[i].FailingMembers = all.perRule[i], all.failing[i]
	}
	all.Summary = fmt.Sprintf("%d/%d", all.Compliant, all.Total)
	slices.SortStableFunc(all.listed, func(a, b policyv1.MemberResults) int {
		return cmp.Or(b.Results.Fail+b.Results.Error-a.Results.Fail-a.Results.Error, cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	})
	slices.SortStableFunc(all.findings, compareFindings)
	for _, most := range [][2]int{{policyv1.MaxListedResults, policyv1.MaxListedFindings}, {50, 20}, {20, 10}, {10, 5}, {0, 0}} {
		status.Compliance = all.Compliance
		status.Compliance.Members = first(all.listed, most[0])
		status.Compliance.MembersOmitted = len(all.listed) - len(status.Compliance.Members)
		status.Compliance.Findings = first(all.findings, most[1])
		if b, err := json.Marshal(status); err == nil && len(b) <= maxRulesStatus {
			break
		}
	}
	setCompliant(o, all, rendered.Failed())
}

// add adds what a member reported.
func (c *results) add(m member.Key, report *memberReport, delivered bool) {
	out := policyv1.MemberResults{Name: m.Name, Kind: m.Kind}
	broken := map[int]bool{}
	for policy, counts := range report.counts {
		i := c.ruleOf(policy)
		if i < 0 {
			continue
		}
		sum(&out.Results, counts)
		sum(&c.perRule[i], counts)
		if counts.Fail+counts.Error > 0 {
			broken[i] = true
		}
	}
	for _, i := range slices.Sorted(maps.Keys(broken)) {
		c.failing[i]++
		if len(out.Rules) < policyv1.MaxListedRules {
			out.Rules = append(out.Rules, c.rendered.Rules[i].Name)
		}
	}
	for _, f := range report.findings {
		if i := c.ruleOf(f.policy); i >= 0 {
			c.findings = append(c.findings, policyv1.Finding{Member: m.Name, Rule: c.rendered.Rules[i].Name, Result: f.result, Severity: f.severity, Resource: f.resource, Message: f.message})
		}
	}
	switch {
	case report.problem != "":
		at := metav1.NewTime(report.readAt.Truncate(time.Second))
		out.Message, out.ReadAt = bounded(report.problem, 200), &at
	case !delivered:
		c.judge(out, "does not have the rules yet")
		return
	case report.truncated:
		out.Message = "there is more than is read of a member"
	case out.Results == (policyv1.ResultCounts{}):
		out.Message = "has reported nothing about these rules"
	}
	c.judge(out, out.Message)
}

// ruleOf returns the index of the rule that a policy is of; -1 if it is of none.
func (c *results) ruleOf(policy string) int {
	i, ok := c.rules[policy]
	if !ok {
		if i, ok = c.rendered.RuleOf(policy); !ok {
			i = -1
		}
		c.rules[policy] = i
	}
	return i
}

// keep adds what was said of a member before: it is still the last that is known.
func (c *results) keep(m member.Key, report *memberReport, was *policyv1.Compliance) {
	out := policyv1.MemberResults{Name: m.Name, Kind: m.Kind, Message: bounded(report.problem, 200)}
	if i := slices.IndexFunc(was.Members, func(w policyv1.MemberResults) bool { return w.Name == m.Name && w.Kind == m.Kind }); i >= 0 {
		w := &was.Members[i]
		out.Results, out.Rules, out.ReadAt, out.Message = w.Results, w.Rules, w.ReadAt, cmp.Or(out.Message, w.Message)
		for i := range c.rendered.Rules {
			if slices.Contains(w.Rules, c.rendered.Rules[i].Name) {
				c.failing[i]++
			}
		}
		for _, f := range was.Findings {
			if f.Member == m.Name {
				c.findings = append(c.findings, f)
			}
		}
	}
	c.judge(out, cmp.Or(out.Message, "was not read yet"))
}

// judge counts a member. Unknown says why it is not known whether it is compliant, if it does not break a rule; empty if it is.
func (c *results) judge(m policyv1.MemberResults, unknown string) {
	sum(&c.Results, m.Results)
	bad := m.Results.Fail+m.Results.Error > 0
	switch {
	case bad:
	case unknown != "":
		c.Unknown++
		c.unknown = append(c.unknown, fmt.Sprintf("%s (%s)", m.Name, unknown))
	default:
		c.Compliant++
	}
	if bad || m.Message != "" {
		c.listed = append(c.listed, m)
	}
}

func setCompliant(o conditions.Setter, c *results, failed []rule.Rule) {
	var worst []string
	for _, m := range c.listed {
		if n := m.Results.Fail + m.Results.Error; n > 0 {
			worst = append(worst, fmt.Sprintf("%s (%d)", m.Name, n))
		}
	}
	message := c.Summary + " members are compliant"
	if len(worst) > 0 {
		message += "; results that are bad: " + capped(worst, 10)
	}
	if len(c.unknown) > 0 {
		message += "; not known of " + capped(c.unknown, 5)
	}
	if len(failed) > 0 {
		var names []string
		for _, f := range failed {
			names = append(names, f.Name)
		}
		message += "; rules that are not as declared: " + capped(names, 5)
	}
	switch message = bounded(message, 2000); {
	case len(worst) > 0:
		conditions.MarkFalse(o, policyv1.CompliantCondition, nonCompliantReason, "%s", message)
	case c.Unknown > 0 || c.Total == 0 || len(failed) > 0:
		conditions.MarkUnknown(o, policyv1.CompliantCondition, notReportedYetReason, "%s", message)
	default:
		conditions.MarkTrue(o, policyv1.CompliantCondition, compliantReason, "%s", message)
	}
}

func sum(to *policyv1.ResultCounts, c policyv1.ResultCounts) {
	to.Pass += c.Pass
	to.Fail += c.Fail
	to.Warn += c.Warn
	to.Error += c.Error
	to.Skip += c.Skip
}

// compareFindings puts the worst first: by result, severity, and then by name.
func compareFindings(a, b policyv1.Finding) int {
	return cmp.Or(rankOf(badResults, a.Result)-rankOf(badResults, b.Result), rankOf(severities, a.Severity)-rankOf(severities, b.Severity),
		cmp.Compare(a.Member, b.Member), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Resource, b.Resource))
}

// inUse returns why Applications of plugins that a fleet does not have any more are not ended yet, by their names: rules
// need them.
func (r *FleetReconciler) inUse(ctx context.Context, fleet *fleetv1.Fleet, apps []appsv1.Application, wanted map[string]bool) (map[string]string, error) {
	out := map[string]string{}
	for i := range apps {
		app := &apps[i]
		if app.Name != plugin.Name(fleet.Name, rule.EnginePlugin) || wanted[app.Name] || deleting(app) {
			continue
		}
		var dependents appsv1.ApplicationList
		if err := r.List(ctx, &dependents, client.InNamespace(fleet.Namespace), client.MatchingFields{dependsOnIndex: app.Name}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, err
		}
		var users []string
		for j := range dependents.Items {
			owner := metav1.GetControllerOfNoCopy(&dependents.Items[j])
			if owner != nil && (owner.Kind == securityPolicies.name || owner.Kind == clusterCompliances.name) && !deleting(&dependents.Items[j]) {
				users = append(users, owner.Kind+" "+owner.Name)
			}
		}
		slices.Sort(users)
		switch {
		case len(users) == 0:
		case rule.Removed(fleet):
			out[app.Name] = "is removed when the policies of these are gone from the members: " + capped(users, 10)
		default:
			out[app.Name] = fmt.Sprintf("is not removed, as %s need it: delete them first, or annotate the Fleet with %s=%s to have their policies removed from the members, and then it",
				capped(users, 10), fleetv1.RemovePluginAnnotation, rule.EnginePlugin)
		}
	}
	return out, nil
}
