package controllers

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	authutils "github.com/fluxcd/pkg/auth/utils"
	runtimeclient "github.com/fluxcd/pkg/runtime/client"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/runtime/jitter"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
)

const (
	// memberFinalizer keeps a member, and so the knowledge of its credentials, until nothing is generated for it any more.
	memberFinalizer = "fleet.kurator.dev/member"

	defaultProbeInterval = 5 * time.Minute
	minProbeInterval     = 5 * time.Second
	lostProbeInterval    = time.Minute // of a member that was not reached
	defaultProbeTimeout  = 10 * time.Second
)

// NoProviderReason is the reason of a Cluster that nobody has made yet.
const NoProviderReason = "NoProvider"

// MemberReconciler looks after the health of members. It is what the reconcilers of the kinds of members share.
//
// A look at a member is due when its interval has passed, and at once when its spec or its kubeconfig changed or
// somebody asks. Whatever else leads here costs a few reads from the cache.
type MemberReconciler struct {
	client.Client
	// APIReader reads past the cache, which is done only before a member is let go.
	APIReader client.Reader
	record.EventRecorder
	// KubeConfigOptions are those that Flux has on this hub, so that a member is ready when Flux can reach it.
	KubeConfigOptions runtimeclient.KubeConfigOptions
	// WorkloadIdentity returns what a member with a configMapRef is reached with. Its requests go to the hub and the cloud.
	WorkloadIdentity authutils.RESTConfigFetcher
	// Shard selects the members to look after; nil selects all.
	Shard labels.Selector
	// Now is the clock; nil is time.Now.
	Now func() time.Time

	looks looks
}

// memberObject is a member of either kind.
type memberObject interface {
	client.Object
	conditions.Setter
}

// subject is a member and what its reconciler knows of it. health is part of object.
type subject struct {
	object memberObject
	kind   string
	health *clusterv1.MemberHealth
	check  *clusterv1.HealthCheck
	// How the member is reached: by a Secret, a ConfigMap, or, while nobody has made it, not at all.
	secret    *clusterv1.KubeconfigReference
	configMap *meta.LocalObjectReference
}

func (m *subject) key() types.NamespacedName { return client.ObjectKeyFromObject(m.object) }

func (m *subject) interval() time.Duration {
	if m.check == nil || m.check.Interval == nil || m.check.Interval.Duration == 0 {
		return defaultProbeInterval
	}
	return max(m.check.Interval.Duration, minProbeInterval)
}

// timeout is at most the interval: a look ends before the next is due.
func (m *subject) timeout() time.Duration {
	if m.check == nil || m.check.Timeout == nil || m.check.Timeout.Duration == 0 {
		return min(defaultProbeTimeout, m.interval())
	}
	return min(m.check.Timeout.Duration, m.interval())
}

func (r *MemberReconciler) now() time.Time {
	if r.Now == nil {
		return time.Now()
	}
	return r.Now()
}

// forget drops what is remembered of a member that is gone, or another shard's.
func (r *MemberReconciler) forget(kind string, key types.NamespacedName) {
	r.looks.forget(key)
	forgetMemberHealth(kind, key)
}

func (r *MemberReconciler) reconcile(ctx context.Context, m *subject) (ctrl.Result, error) {
	if r.Shard != nil && !r.Shard.Matches(labels.Set(m.object.GetLabels())) {
		r.forget(m.kind, m.key())
		return ctrl.Result{}, nil
	}
	if deleting(m.object) {
		return r.finalize(ctx, m)
	}
	if !controllerutil.ContainsFinalizer(m.object, memberFinalizer) {
		if err := r.patchFinalizers(ctx, m, controllerutil.AddFinalizer); err != nil {
			return retryOnConflict(err)
		}
	}

	before := m.object.DeepCopyObject().(memberObject)
	next, err := r.look(ctx, m)
	if err != nil {
		return ctrl.Result{}, err
	}
	if err := r.patchStatus(ctx, m, before); err != nil {
		return retryOnConflict(err)
	}
	// Only now, so that what could not be written is looked at again.
	r.looks.remember(m.key(), next)
	if next.due.IsZero() {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{RequeueAfter: max(next.due.Sub(r.now()), time.Millisecond)}, nil
}

// look brings the status of a member up to date, and returns what to remember for the next time.
func (r *MemberReconciler) look(ctx context.Context, m *subject) (look, error) {
	if suspended(m.object, false) {
		setPaused(m)
		return look{}, nil
	}
	resumed := conditions.Has(m.object, suspendedCondition)
	conditions.Delete(m.object, suspendedCondition)
	credentials, wrong, err := r.observeCredentials(ctx, m)
	if err != nil {
		return look{}, err
	}
	digest := m.digest(credentials)
	if wrong == nil {
		last, ok := r.looks.last(m.key())
		if !ok {
			last = r.firstLook(m, digest)
		}
		if !resumed && !m.due(last, digest, r.now()) {
			return look{due: last.due, digest: digest, forced: m.forced()}, nil
		}
	}
	k := &kubeconfig{}
	if wrong == nil {
		k, wrong = r.readCredentials(ctx, m, credentials)
	}
	if wrong != nil {
		setHandled(m)
		setProblem(m, wrong)
		return look{forced: m.forced()}, nil // what is wrong is mended by a change, which leads here
	}
	seen, wrong := r.see(ctx, m, k)
	if err := ctx.Err(); err != nil {
		return look{}, err // the controller stops, which says nothing about the member
	}
	setHandled(m)
	setExpiry(m, k)
	interval := m.interval()
	if wrong != nil {
		setProblem(m, wrong)
		// What it is to run waits for it; and one that was out of reach for a moment should not be out for an interval.
		interval = min(interval, lostProbeInterval)
	} else {
		setReached(m, k, seen, r.now())
	}
	return look{due: r.now().Add(jitter.JitteredIntervalDuration(interval)), digest: digest, forced: m.forced()}, nil
}

// observeCredentials reads the Secret that a member is reached with; nil if it is not by one. An error is one of reading,
// about which nothing is to be said in the status.
func (r *MemberReconciler) observeCredentials(ctx context.Context, m *subject) (map[string][]byte, *problem, error) {
	switch {
	case m.secret != nil:
		secret := &corev1.Secret{}
		err := r.Get(ctx, types.NamespacedName{Namespace: m.object.GetNamespace(), Name: m.secret.Name}, secret, client.UnsafeDisableDeepCopyOption(true))
		if apierrors.IsNotFound(err) {
			return nil, &problem{reason: KubeconfigNotFoundReason, stalled: true,
				message: fmt.Sprintf("there is no Secret %s in namespace %s: create it with the kubeconfig", m.secret.Name, m.object.GetNamespace())}, nil
		}
		if err != nil {
			return nil, nil, fmt.Errorf("reading Secret %s: %w", m.secret.Name, err)
		}
		return secret.Data, nil, nil
	case m.configMap != nil:
		return nil, nil, nil
	}
	return nil, &problem{reason: NoProviderReason,
		message: "no provider provisions clusters yet: write the name of a kubeconfig Secret into status.kubeconfigSecretRef, or use kind AttachedCluster"}, nil
}

// readCredentials makes a kubeconfig of what was read. It takes milliseconds, so it is done only when a look is due.
func (r *MemberReconciler) readCredentials(ctx context.Context, m *subject, data map[string][]byte) (*kubeconfig, *problem) {
	if m.secret == nil {
		// It is resolved when it is used, as that takes requests.
		return &kubeconfig{from: "ConfigMap " + m.configMap.Name}, nil
	}
	return readKubeconfig(ctx, m.secret, data, r.KubeConfigOptions)
}

// digest tells one kubeconfig from the next; zero where the credentials are not ours to read.
func (m *subject) digest(data map[string][]byte) uint64 {
	if m.secret == nil {
		return 0
	}
	return maphash.Bytes(seed, data[cmp.Or(m.secret.Key, clusterv1.DefaultKubeconfigKey)])
}

// see probes a member.
func (r *MemberReconciler) see(ctx context.Context, m *subject, k *kubeconfig) (*sighting, *problem) {
	if k.certificateOnly && k.expiresAt.Before(r.now()) {
		return nil, &problem{reason: CredentialsExpiredReason, message: k.from + ": the client certificate has expired (see status.credentialsExpireAt): write a new kubeconfig"}
	}
	if m.configMap != nil {
		config, wrong := r.workloadIdentity(ctx, m, k)
		if wrong != nil {
			return nil, wrong
		}
		k.config = config
	}
	seen, wrong := probeMember(ctx, k, m.timeout())
	if wrong != nil {
		return nil, wrong
	}
	if known := m.health.ClusterID; known != "" && seen.clusterID != "" && known != seen.clusterID {
		return nil, &problem{reason: ClusterChangedReason, stalled: true,
			message: fmt.Sprintf("another cluster answers than the one this %s was made for: correct %s, or, if this is meant, delete and re-create the %s", m.kind, k.from, m.kind)}
	}
	return seen, nil
}

// patchFinalizers writes the finalizers. The lock keeps a finalizer that somebody else adds in between.
func (r *MemberReconciler) patchFinalizers(ctx context.Context, m *subject, change func(client.Object, string) bool) error {
	before := m.object.DeepCopyObject().(memberObject)
	change(m.object, memberFinalizer)
	return r.Patch(ctx, m.object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(FieldOwner))
}

// patchStatus writes the status if it changed, and reports what changed. It is one write: the SerialPatcher of Flux
// writes conditions apart from the rest, which with thousands of members is twice the work and two events for every
// watcher. The lock keeps the conditions that a provider writes in between.
func (r *MemberReconciler) patchStatus(ctx context.Context, m *subject, before memberObject) error {
	ready := conditions.Get(m.object, meta.ReadyCondition)
	m.health.Ready = ready != nil && ready.Status == metav1.ConditionTrue
	if ready != nil && ready.Status != metav1.ConditionUnknown {
		recordMemberHealth(m.kind, m.key(), m.health.Ready)
	}
	if equality.Semantic.DeepEqual(before, m.object) {
		return nil
	}
	was := conditions.Get(before, meta.ReadyCondition)
	// The answer to a patch replaces what is in the object.
	if err := r.Status().Patch(ctx, m.object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(FieldOwner)); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.announce(m.object, was, ready)
	return nil
}

// retryOnConflict comes back when the cache has caught up; nothing is wrong.
func retryOnConflict(err error) (ctrl.Result, error) {
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: 100 * time.Millisecond}, nil
	}
	return ctrl.Result{}, err
}
