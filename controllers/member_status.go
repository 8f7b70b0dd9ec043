package controllers

import (
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/object"
)

const (
	expiresSoon   = "; the client certificate expires soon (see status.credentialsExpireAt): write a new kubeconfig"
	expiresReason = "CredentialsExpireSoon"
)

// setHandled notes that the present spec, and a request to reconcile, were seen to.
func setHandled(m *subject) {
	m.health.ObservedGeneration = m.object.GetGeneration()
	if requested, ok := meta.ReconcileAnnotationValue(m.object.GetAnnotations()); ok {
		m.health.SetLastHandledReconcileRequest(requested)
	}
}

// setExpiry notes when the credentials expire.
func setExpiry(m *subject, k *kubeconfig) {
	if k.expiresAt.IsZero() {
		m.health.CredentialsExpireAt = nil
		return
	}
	m.health.CredentialsExpireAt = &metav1.Time{Time: k.expiresAt}
}

// setReached notes what was seen of a member that answered.
func setReached(m *subject, k *kubeconfig, seen *sighting, now time.Time) {
	m.health.KubernetesVersion = seen.version
	m.health.Nodes = seen.nodes
	if seen.clusterID != "" { // credentials that may not read it any more are no reason to forget which cluster it was
		m.health.ClusterID = seen.clusterID
	}
	message := "reached: Kubernetes " + object.OneLine(seen.version)
	if !k.renewAt.IsZero() && now.After(k.renewAt) {
		message += expiresSoon
	}
	conditions.Delete(m.object, meta.StalledCondition)
	conditions.Delete(m.object, meta.ReconcilingCondition)
	conditions.MarkTrue(m.object, meta.ReadyCondition, ReachedReason, "%s", message)
}

// setProblem notes why a member is not ready. What was seen of it before stays: not to be reached is not to be gone.
func setProblem(m *subject, p *problem) {
	if p.stalled {
		conditions.MarkStalled(m.object, p.reason, "%s", p.message)
	} else {
		conditions.MarkReconciling(m.object, meta.ProgressingWithRetryReason, "%s", p.message)
	}
	conditions.MarkFalse(m.object, meta.ReadyCondition, p.reason, "%s", p.message)
}

// setPaused notes that a member is not looked at. It stays as ready as it was last seen.
func setPaused(m *subject) {
	conditions.MarkTrue(m.object, suspendedCondition, suspendedReason,
		"paused: not looked at until the annotation %s is taken back", fleetv1.PauseAnnotation)
}

// announce tells of a change that people want to hear of: a member is reached, or not any more, or soon will not be.
func (r *MemberReconciler) announce(o memberObject, was, is *metav1.Condition) {
	if is == nil || is.Status == metav1.ConditionUnknown {
		return
	}
	ready := is.Status == metav1.ConditionTrue
	switch {
	case was == nil || was.Status != is.Status:
		if ready {
			r.Event(o, corev1.EventTypeNormal, is.Reason, is.Message)
		} else {
			r.Event(o, corev1.EventTypeWarning, is.Reason, is.Message)
		}
	case ready && strings.HasSuffix(is.Message, expiresSoon) && !strings.HasSuffix(was.Message, expiresSoon):
		r.Event(o, corev1.EventTypeWarning, expiresReason, is.Message)
	}
}
