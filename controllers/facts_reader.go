package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/fluxcd/pkg/runtime/conditions"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/plugin"
)

// maxFactSize bounds the object that a fact is read from, in bytes.
const maxFactSize = 1 << 20

// FactReconciler reads the facts that plugins want from members. It writes nothing anywhere.
type FactReconciler struct {
	// MemberReconciler knows how members are reached.
	MemberReconciler
	Facts *Facts
}

// SetupWithManager starts the controller with the manager.
func (r *FactReconciler) SetupWithManager(mgr ctrl.Manager, concurrent int) error {
	wake := handler.TypedFuncs[memberRef, memberRef]{
		GenericFunc: func(_ context.Context, e event.TypedGenericEvent[memberRef], q workqueue.TypedRateLimitingInterface[memberRef]) {
			q.Add(e.Object)
		},
	}
	return builder.TypedControllerManagedBy[memberRef](mgr).
		Named("facts").
		WatchesRawSource(source.TypedChannel(r.Facts.members, wake)).
		WithOptions(controller.TypedOptions[memberRef]{MaxConcurrentReconciles: concurrent}).
		Complete(r)
}

// Reconcile reads the facts of one member.
func (r *FactReconciler) Reconcile(ctx context.Context, ref memberRef) (reconcile.Result, error) {
	wanted := r.Facts.of(ref)
	if len(wanted) == 0 {
		return reconcile.Result{}, nil
	}
	m, err := r.subject(ctx, ref)
	if err != nil || m == nil {
		return reconcile.Result{}, err
	}
	if !conditions.IsReady(m.object) || deleting(m.object) {
		return reconcile.Result{RequeueAfter: r.Facts.retry}, nil // what is known of it stays
	}
	read := map[factKey]gotFact{}
	p, err := r.connect(ctx, m)
	if err == nil {
		defer p.client.CloseIdleConnections()
	}
	timed, cancel := context.WithTimeout(ctx, m.timeout())
	defer cancel()
	for key, w := range wanted {
		value, failed := any(nil), err
		if failed == nil {
			value, failed = p.fact(timed, &w)
		}
		read[key] = gotFact{value: value}
		if failed != nil { // what was known stays, and nobody waits for this member
			read[key] = gotFact{err: shorten(failed.Error())}
		}
	}
	if ctx.Err() != nil {
		return reconcile.Result{}, nil // the controller stops, which says nothing about the member
	}
	return reconcile.Result{RequeueAfter: r.Facts.store(ref, read)}, nil
}

// subject reads a member from the cache; nil if it is not there.
func (r *FactReconciler) subject(ctx context.Context, ref memberRef) (*subject, error) {
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
