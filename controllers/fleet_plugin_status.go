package controllers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/plugin"
)

// judgePlugin says how a plugin is: by its Application, and by the endpoints that it waits for.
func judgePlugin(status *fleetv1.PluginStatus, apps []appsv1.Application, waits string, notes []string) {
	status.Ready, status.Reason, status.Message = string(metav1.ConditionUnknown), meta.ProgressingReason, "its Application is at work"
	if len(apps) > 0 && apps[0].Status.ObservedGeneration == apps[0].Generation {
		app := &apps[0]
		status.Members = app.Status.Members.Summary
		if ready := conditions.Get(app, meta.ReadyCondition); ready != nil {
			status.Ready, status.Reason, status.Message = string(ready.Status), ready.Reason, ready.Message
			if strings.Contains(status.Message, "ExternalArtifact feature gate is disabled") {
				status.Message += ": start Flux's controllers with --feature-gates=ExternalArtifact=true"
			}
		}
		if text := worst(app.Status.Members.NotReady); text != "" && status.Ready != string(metav1.ConditionTrue) {
			status.Message += "; " + text
		}
	}
	if waits != "" {
		if status.Ready == string(metav1.ConditionTrue) {
			status.Ready, status.Reason = string(metav1.ConditionUnknown), meta.ProgressingReason
		}
		notes = append([]string{waits}, notes...)
	}
	status.Message = bounded(strings.Join(append([]string{status.Message}, notes...), "; "), 1000)
}

// worst says what is wrong with a member, or else what one waits for; empty if all are well.
func worst(members []fleetv1.NotReadyMember) string {
	i := slices.IndexFunc(members, func(m fleetv1.NotReadyMember) bool { return m.Reason != progressingReason && m.Reason != waitingReason })
	switch {
	case len(members) == 0:
		return ""
	case members[max(i, 0)].Name == "":
		return "the hub: " + members[max(i, 0)].Message
	}
	return "member " + members[max(i, 0)].Name + ": " + members[max(i, 0)].Message
}

// endpointsOf returns the facts that are endpoints, and says which members that are ready have none yet.
func endpointsOf(name string, reads []plugin.Read, members []member.Member, o plugin.Observed) (out []fleetv1.PluginEndpoint, waits string) {
	for _, read := range reads {
		var without []string
		for i := range members {
			m := &members[i]
			if !read.Endpoint || m.Leaving || read.Member != "" && read.Member != m.Name {
				continue
			}
			value := o.OfMembers[m.Key()][read.Name]
			if read.Member != "" {
				value = o.Facts[read.Name]
			}
			switch {
			case value != nil:
				out = append(out, fleetv1.PluginEndpoint{Plugin: name, Name: read.Name, Cluster: m.Name, Kind: m.Kind, Address: fmt.Sprint(value)})
			case m.Ready:
				without = append(without, m.Name)
			}
		}
		if len(without) > 0 && read.Resource != nil {
			waits = fmt.Sprintf("waits for %s of %s, from %s %s/%s", read.Name, listed(without), read.Resource.Kind, read.Resource.Namespace, read.Resource.Name)
		}
	}
	return out, waits
}

// ending says how the end of an Application goes.
func ending(app *appsv1.Application) string {
	if !deleting(app) {
		return "was taken out of the fleet, and ends"
	}
	return conditions.GetMessage(app, meta.ReadyCondition)
}

// announcePlugins sends an event for each plugin that is otherwise than it was.
func (r *FleetReconciler) announcePlugins(fleet *fleetv1.Fleet, was []fleetv1.PluginStatus) {
	for _, now := range fleet.Status.Plugins {
		i := slices.IndexFunc(was, func(p fleetv1.PluginStatus) bool { return p.Name == now.Name })
		if i >= 0 && was[i].Ready == now.Ready && was[i].Reason == now.Reason {
			continue
		}
		kind := "Normal"
		if now.Ready == string(metav1.ConditionFalse) && now.Reason != endingReason {
			kind = "Warning"
		}
		r.Eventf(fleet, kind, now.Reason, "plugin %s: %s", now.Name, now.Message)
	}
}

// reportPlugins adds to the conditions of a fleet how its plugins are.
func reportPlugins(fleet *fleetv1.Fleet) {
	var failed, waiting []string
	for _, p := range fleet.Status.Plugins {
		text := fmt.Sprintf("plugin %s: %s", p.Name, p.Message)
		switch {
		case p.Ready == string(metav1.ConditionTrue):
		case p.Ready == string(metav1.ConditionFalse) && p.Reason != endingReason:
			failed = append(failed, text)
		default:
			waiting = append(waiting, text)
		}
	}
	ready := conditions.Get(fleet, meta.ReadyCondition)
	if len(failed)+len(waiting) == 0 || ready == nil || conditions.IsStalled(fleet) {
		return
	}
	message := bounded(ready.Message+"; "+strings.Join(append(failed, waiting...), "; "), 2000)
	switch {
	case ready.Status == metav1.ConditionFalse || len(failed) > 0:
		reason := ready.Reason
		if ready.Status != metav1.ConditionFalse {
			reason = "PluginNotReady"
		}
		conditions.Delete(fleet, meta.ReconcilingCondition)
		conditions.MarkFalse(fleet, meta.ReadyCondition, reason, "%s", message)
	default:
		conditions.MarkReconciling(fleet, meta.ProgressingReason, "%s", message)
		conditions.MarkUnknown(fleet, meta.ReadyCondition, meta.ProgressingReason, "%s", message)
	}
}
