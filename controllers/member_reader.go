package controllers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/plugin"
)

// maxFactSize bounds the object that a fact is read from, in bytes.
const maxFactSize = 1 << 20

// MemberReader reads what is wanted of members: the facts of plugins, and what policy reports say. Each member has its turns
// in one queue, and in a turn no more than its facts and a page of its reports are read, so that none waits for a flood of
// another one. It writes nothing anywhere.
type MemberReader struct {
	// MemberReconciler knows how members are reached.
	MemberReconciler
	Facts   *Facts
	Reports *Reports
}

// SetupWithManager starts the controller with the manager.
func (r *MemberReader) SetupWithManager(mgr ctrl.Manager, concurrent int) error {
	wake := handler.TypedFuncs[memberRef, memberRef]{
		GenericFunc: func(_ context.Context, e event.TypedGenericEvent[memberRef], q workqueue.TypedRateLimitingInterface[memberRef]) {
			q.Add(e.Object)
		},
	}
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { // ends the watches with the manager
		<-ctx.Done()
		r.Reports.stop()
		return nil
	})); err != nil {
		return err
	}
	return builder.TypedControllerManagedBy[memberRef](mgr).
		Named("members").
		WatchesRawSource(source.TypedChannel(r.Facts.members, wake)).
		WatchesRawSource(source.TypedChannel(r.Reports.wake, wake)).
		// One that does not answer any more is not asked, and one that does again is, at once.
		WatchesRawSource(memberSource(mgr, clusterv1.AttachedClusterKind, &clusterv1.AttachedCluster{})).
		WatchesRawSource(memberSource(mgr, clusterv1.ClusterKind, &clusterv1.Cluster{})).
		WithOptions(controller.TypedOptions[memberRef]{MaxConcurrentReconciles: concurrent}).
		Complete(r)
}

func memberSource[T client.Object](mgr ctrl.Manager, kind string, o T) source.TypedSource[memberRef] {
	return source.TypedKind(mgr.GetCache(), o, handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, o T) []memberRef {
		return []memberRef{{client.ObjectKeyFromObject(o), kind}}
	}), predicate.TypedFuncs[T]{UpdateFunc: func(e event.TypedUpdateEvent[T]) bool {
		return memberChanged{}.Update(event.UpdateEvent{ObjectOld: e.ObjectOld, ObjectNew: e.ObjectNew})
	}})
}

// Reconcile gives one member a turn.
func (r *MemberReader) Reconcile(ctx context.Context, ref memberRef) (reconcile.Result, error) {
	facts, factsIn := r.Facts.of(ref)
	reports, reportsIn := r.Reports.next(ref)
	if len(facts) == 0 && !reports {
		return reconcile.Result{}, nil
	}
	m, err := r.subject(ctx, ref)
	switch {
	case err != nil:
		return reconcile.Result{}, err // unknown is not gone
	case m == nil:
		r.Reports.away(ref, "is gone")
		return reconcile.Result{}, nil
	case deleting(m.object):
		r.Reports.away(ref, "is being deleted")
	case !conditions.IsReady(m.object):
		r.Reports.away(ref, cmp.Or(conditions.GetMessage(m.object, meta.ReadyCondition), "was not reached yet"))
	}
	if !conditions.IsReady(m.object) || deleting(m.object) {
		if len(facts) == 0 {
			return reconcile.Result{}, nil // that it is ready again leads here
		}
		return reconcile.Result{RequeueAfter: r.Facts.retry}, nil // what is known of it stays
	}
	p, err := r.connect(ctx, m)
	if err == nil {
		defer p.client.CloseIdleConnections()
	}
	timed, cancel := context.WithTimeout(ctx, m.timeout())
	defer cancel()
	if len(facts) > 0 && factsIn == 0 {
		read := p.facts(timed, facts, err)
		if ctx.Err() != nil {
			return reconcile.Result{}, nil // the controller stops, which says nothing about the member
		}
		factsIn = r.Facts.store(ref, read)
	}
	if reports {
		switch {
		case err != nil:
			r.Reports.away(ref, shorten(err.Error()))
			reportsIn = r.Reports.pause
		case reportsIn == 0 || r.Reports.renewed(ref, p):
			if reportsIn = r.Reports.turn(timed, ref, p); ctx.Err() != nil {
				return reconcile.Result{}, nil
			}
		}
	}
	switch {
	case len(facts) == 0:
		factsIn = reportsIn
	case !reports:
		reportsIn = factsIn
	}
	return reconcile.Result{RequeueAfter: max(time.Millisecond, min(factsIn, reportsIn))}, nil
}

// facts reads facts. Of a member that cannot be connected to, err says why.
func (p *probe) facts(ctx context.Context, wanted map[factKey]wantedFact, err error) map[factKey]gotFact {
	read := map[factKey]gotFact{}
	for key, w := range wanted {
		value, failed := any(nil), err
		if failed == nil {
			value, failed = p.fact(ctx, &w)
		}
		read[key] = gotFact{value: value}
		if failed != nil { // what was known stays, and nobody waits for this member
			read[key] = gotFact{err: shorten(failed.Error())}
		}
	}
	return read
}

// subject reads a member from the cache; nil if it is not there.
func (r *MemberReader) subject(ctx context.Context, ref memberRef) (*subject, error) {
	switch ref.Kind {
	case clusterv1.AttachedClusterKind:
		c := &clusterv1.AttachedCluster{}
		if err := r.Get(ctx, ref.NamespacedName, c); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		return attachedSubject(c), nil
	default:
		c := &clusterv1.Cluster{}
		if err := r.Get(ctx, ref.NamespacedName, c); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		return clusterSubject(c), nil
	}
}

// connect returns what sends requests to a member.
func (r *MemberReconciler) connect(ctx context.Context, m *subject) (*probe, error) {
	credentials, wrong, err := r.observeCredentials(ctx, m)
	if err != nil {
		return nil, err
	}
	k := &kubeconfig{}
	if wrong == nil {
		k, wrong = r.readCredentials(ctx, m, credentials)
	}
	if wrong == nil && m.configMap != nil {
		k.config, wrong = r.workloadIdentity(ctx, m, k)
	}
	if wrong != nil {
		return nil, errors.New(wrong.message)
	}
	return newProbe(k, m.timeout())
}

// fact reads a fact. It is nil if it is not there.
func (p *probe) fact(ctx context.Context, w *wantedFact) (any, error) {
	if w.Resource == nil {
		return p.address(), nil
	}
	o, err := p.object(ctx, w.Resource)
	if err != nil || o == nil {
		return nil, err
	}
	return w.of.Value(w.Fact, o)
}

// address returns the host and port of the member's API server.
func (p *probe) address() string {
	if p.base.Port() != "" {
		return p.base.Host
	}
	return net.JoinHostPort(p.base.Hostname(), "443")
}

// object reads an object of the member; nil if it is not there.
func (p *probe) object(ctx context.Context, ref *plugin.ResourceReference) (map[string]any, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, err
	}
	parts := []string{"apis", gv.Group, gv.Version}
	if gv.Group == "" {
		parts = []string{"api", gv.Version}
	}
	if ref.Namespace != "" {
		parts = append(parts, "namespaces", ref.Namespace)
	}
	plural := ref.Plural
	if plural == "" {
		plural = strings.ToLower(ref.Kind) + "s"
	}
	parts = append(parts, plural, ref.Name)
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(p.base.String(), "/")+"/"+strings.Join(parts, "/"), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", acceptJSON)
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, errors.New(p.unreachable(err).message)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxFactSize+1))
	what := fmt.Sprintf("%s %s", ref.Kind, strings.TrimPrefix(ref.Namespace+"/"+ref.Name, "/"))
	switch {
	case err != nil:
		return nil, errors.New(p.unreachable(err).message)
	case resp.StatusCode == http.StatusNotFound:
		return nil, nil
	case resp.StatusCode == http.StatusForbidden || resp.StatusCode == http.StatusUnauthorized:
		return nil, fmt.Errorf("the credentials may not read %s (%d): bind their user to a role that may", what, resp.StatusCode)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("reading %s: %s", what, resp.Status)
	case len(body) > maxFactSize:
		return nil, fmt.Errorf("%s has more than %d bytes", what, maxFactSize)
	}
	var o map[string]any
	if err := json.Unmarshal(body, &o); err != nil {
		return nil, fmt.Errorf("reading %s: %w", what, err)
	}
	return o, nil
}
