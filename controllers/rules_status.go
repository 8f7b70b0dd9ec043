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

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
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
	for _, t := range []string{meta.StalledCondition, appsv1.PruneBlockedCondition, appsv1.OverrideUnmatchedCondition} {
		conditions.Delete(o, t)
	}
	status.Members, status.Objects, status.Prune = fleetv1.MemberSummary{}, 0, nil
	var judged []*metav1.Condition
	for _, declared := range rendered.Applications() {
		i := slices.IndexFunc(apps, func(a appsv1.Application) bool { return a.Name == declared.Name })
		if i < 0 || apps[i].Status.ObservedGeneration != apps[i].Generation || conditions.Get(&apps[i], meta.ReadyCondition) == nil {
			judged = append(judged, conditions.UnknownCondition(meta.ReadyCondition, meta.ProgressingReason, "Application %s is at work", declared.Name))
			continue
		}
		ready := take(o, r.kind.name, &status.Members, &status.Objects, &status.Prune, &apps[i], "")
		behind, err := r.behind(ctx, o.GetNamespace(), declared.Name, rendered.Revision)
		if err != nil {
			return err
		}
		if ready.Status == metav1.ConditionTrue && behind > 0 && len(kept) == 0 {
			ready = conditions.UnknownCondition(meta.ReadyCondition, meta.ProgressingReason, "%d members do not have %s yet: Flux is at work", behind, rendered.Revision)
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
		status.Rules = append(status.Rules, ruleStatus(rendered, was, ready, len(kept) > 0))
	}
	r.reportResults(o, rendered, members)
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

func ruleStatus(rendered rule.Rule, was []policyv1.RuleStatus, delivery *metav1.Condition, kept bool) policyv1.RuleStatus {
	s := policyv1.RuleStatus{Name: rendered.Name, Type: rendered.Type, Enforcement: policyv1.Audit, Ready: string(delivery.Status)}
	if rendered.Enforce {
		s.Enforcement = policyv1.Enforce
	}
	i := ruleOf(was, rendered.Name)
	s.Delivered = i >= 0 && was[i].Delivered || rendered.Err == nil && !kept
	switch {
	case rendered.Err != nil:
		s.Ready, s.Reason, s.Message = string(metav1.ConditionFalse), ruleFailedReason, bounded(rendered.Err.Error(), 250)
		if errors.Is(rendered.Err, errPluginNotLoaded) {
			s.Ready, s.Reason = string(metav1.ConditionUnknown), pluginNotLoadedReason
		}
		if s.Delivered {
			s.Enforcement, s.Message = was[i].Enforcement, bounded(rendered.Err.Error(), 200)+": members keep what they have of it"
		}
	case delivery.Status != metav1.ConditionTrue:
		s.Reason = delivery.Reason
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
				notReady[i].Message = strings.ReplaceAll(notReady[i].Message, fmt.Sprintf("waits for Application %s, which is not there or invalid", d.Name),
					"waits for Kyverno: the fleet does not have the plugin policy: set spec.plugin.policy.kyverno in it, or waitForKyverno: false where Kyverno comes in another way")
			}
		}
	}
	if text := worst(notReady); text != "" && len(judged) > 0 {
		if c := worstOf(judged); c.Status != metav1.ConditionTrue {
			c.Message += "; " + text
		}
	}
}

// behind counts the members that are well, but with an older revision.
func (r *RulesReconciler[T]) behind(ctx context.Context, namespace, app, revision string) (int, error) {
	var list kustomizev1.KustomizationList
	if err := r.List(ctx, &list, owned(types.NamespacedName{Namespace: namespace, Name: app})...); err != nil {
		return 0, err
	}
	n := 0
	for i := range list.Items {
		if k := &list.Items[i]; isTrue(fluxReady(k)) && k.Status.LastAppliedRevision != revision && !fluxSuspended(k) {
			n++
		}
	}
	return n, nil
}

// reportResults says what the members report: counts, and the worst of it.
func (r *RulesReconciler[T]) reportResults(o T, rendered *rule.Rendered, members []member.Key) {
	status := o.GetRules()
	was := status.Compliance
	ruleOfPolicy := rendered.Names()
	if len(ruleOfPolicy) == 0 && len(rendered.Failed()) == 0 {
		status.Compliance = policyv1.Compliance{}
		conditions.Delete(o, policyv1.CompliantCondition)
		return
	}
	c := policyv1.Compliance{Total: len(members)}
	perRule := make([]policyv1.ResultCounts, len(rendered.Rules))
	failing := make([]int, len(rendered.Rules))
	var listed []policyv1.MemberResults
	var findings []policyv1.Finding
	for _, m := range members {
		ref := memberRef{types.NamespacedName{Namespace: o.GetNamespace(), Name: m.Name}, m.Kind}
		report, known := r.Reports.of(reportOwner{client.ObjectKeyFromObject(o), r.kind.name}, ref)
		results := policyv1.MemberResults{Name: m.Name, Kind: m.Kind}
		if report.problem != "" {
			results.Message = bounded(report.problem, 200)
		} else if report.truncated {
			results.Message = "there is more than is read of a member"
		}
		if !known || report.readAt.IsZero() {
			// What was said before the process began is still the last that is known.
			i := slices.IndexFunc(was.Members, func(w policyv1.MemberResults) bool { return w.Name == m.Name && w.Kind == m.Kind })
			if i < 0 || was.Members[i].Results == (policyv1.ResultCounts{}) && was.Members[i].ReadAt == nil {
				c.Unknown++
				if results.Message != "" {
					listed = append(listed, results)
				}
				continue
			}
			results.Results, results.Rules, results.ReadAt = was.Members[i].Results, was.Members[i].Rules, was.Members[i].ReadAt
			results.Message = cmp.Or(results.Message, was.Members[i].Message)
			for _, f := range was.Findings {
				if f.Member == m.Name {
					findings = append(findings, f)
				}
			}
		} else {
			broken := map[int]bool{}
			for policy, counts := range report.counts {
				i, ok := ruleOfPolicy[policy]
				if !ok {
					continue
				}
				sum(&results.Results, counts)
				sum(&perRule[i], counts)
				if counts.Fail+counts.Error > 0 {
					broken[i] = true
				}
			}
			for _, i := range slices.Sorted(maps.Keys(broken)) {
				failing[i]++
				if len(results.Rules) < policyv1.MaxListedRules {
					results.Rules = append(results.Rules, rendered.Rules[i].Name)
				}
			}
			for _, f := range report.findings {
				i, ok := ruleOfPolicy[f.policy]
				if !ok {
					continue
				}
				findings = append(findings, policyv1.Finding{Member: m.Name, Rule: rendered.Rules[i].Name, Result: f.result, Severity: f.severity,
					Resource: bounded(f.resource, 200), Message: bounded(f.message, 200)})
			}
			if report.problem != "" {
				at := metav1.NewTime(report.readAt.Truncate(1e9))
				results.ReadAt = &at
			}
		}
		sum(&c.Results, results.Results)
		bad := results.Results.Fail+results.Results.Error > 0
		if !bad {
			c.Compliant++
		}
		if bad || results.Message != "" {
			listed = append(listed, results)
		}
	}
	c.Summary = fmt.Sprintf("%d/%d", c.Compliant, c.Total)
	slices.SortStableFunc(listed, func(a, b policyv1.MemberResults) int {
		return cmp.Or(b.Results.Fail+b.Results.Error-a.Results.Fail-a.Results.Error, cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	})
	slices.SortStableFunc(findings, compareFindings)
	for i := range status.Rules {
		status.Rules[i].Results, status.Rules[i].FailingMembers = perRule[i], failing[i]
	}
	for _, most := range [][2]int{{policyv1.MaxListedResults, policyv1.MaxListedFindings}, {50, 20}, {20, 10}, {10, 5}, {0, 0}} {
		status.Compliance = c
		status.Compliance.Members = first(listed, most[0])
		status.Compliance.MembersOmitted = len(listed) - len(status.Compliance.Members)
		status.Compliance.Findings = first(findings, most[1])
		if b, err := json.Marshal(status); err == nil && len(b) <= maxRulesStatus {
			break
		}
	}
	setCompliant(o, &c, listed)
}

func setCompliant(o conditions.Setter, c *policyv1.Compliance, listed []policyv1.MemberResults) {
	var worst []string
	for _, m := range listed {
		if n := m.Results.Fail + m.Results.Error; n > 0 {
			worst = append(worst, fmt.Sprintf("%s (%d)", m.Name, n))
		}
	}
	switch {
	case len(worst) > 0:
		conditions.MarkFalse(o, policyv1.CompliantCondition, nonCompliantReason, "%s members are compliant; objects that break rules: %s", c.Summary, capped(worst, 10))
	case c.Unknown > 0 || c.Total == 0:
		conditions.MarkUnknown(o, policyv1.CompliantCondition, notReportedYetReason, "%d of %d members have not reported yet", c.Unknown, c.Total)
	default:
		conditions.MarkTrue(o, policyv1.CompliantCondition, compliantReason, "%s members are compliant", c.Summary)
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
