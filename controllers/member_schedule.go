package controllers

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"k8s.io/apimachinery/pkg/types"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

// look is what is remembered of the last look at a member. It is not kept over a restart: firstLook does without.
type look struct {
	// due is when the member is to be looked at next; zero where that is at the next change.
	due time.Time
	// digest is that of the kubeconfig that was used, as it is in the cache.
	digest uint64
	// forced says that the annotation kurator.dev/reconcile=force was there: it counts once for each time it is set.
	forced bool
}

// looks remembers the last look at each member.
type looks struct {
	mu sync.Mutex
	m  map[types.NamespacedName]look
}

func (l *looks) last(key types.NamespacedName) (look, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, ok := l.m[key]
	return last, ok
}

func (l *looks) remember(key types.NamespacedName, next look) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.m == nil {
		l.m = map[types.NamespacedName]look{}
	}
	l.m[key] = next
}

func (l *looks) forget(key types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.m, key)
}

// firstLook returns when a member is due that this process has not looked at yet. One whose status is from before a
// restart is due at a random point of its interval, so that a restart does not probe all members at once.
func (r *MemberReconciler) firstLook(m *subject, digest uint64) look {
	if !conditions.Has(m.object, meta.ReadyCondition) || conditions.IsStalled(m.object) {
		return look{} // what was refused is accepted now
	}
	return look{due: r.now().Add(rand.N(m.interval())), digest: digest, forced: m.forced()}
}

// due says whether a member is to be looked at now.
func (m *subject) due(last look, digest uint64, now time.Time) bool {
	requested, _ := meta.ReconcileAnnotationValue(m.object.GetAnnotations())
	switch {
	case m.health.ObservedGeneration != m.object.GetGeneration():
		return true
	case requested != m.health.GetLastHandledReconcileRequest() && requested != "":
		return true
	case m.forced() && !last.forced:
		return true
	case digest != last.digest:
		return true
	}
	return !now.Before(last.due)
}

func (m *subject) forced() bool {
	return m.object.GetAnnotations()[fleetv1.ReconcileAnnotation] == fleetv1.ReconcileForce
}
