package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/budget"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// +kubebuilder:rbac:groups=policy.kurator.dev,resources=changebudgets,verbs=get;list;watch

const overBudgetReason = "OverBudget"

// bound has a pass do nothing if it is the beginning of a step that is over a ChangeBudget and is not allowed. A step is known by
// the digest of what it leads to: one that has begun goes on, whatever happens to the process or the budgets.
func (r *ApplicationReconciler) bound(ctx context.Context, obs *observed, p *plan) error {
	status := &obs.app.Status
	var list policyv1.ChangeBudgetList
	if err := r.List(ctx, &list, client.InNamespace(obs.app.Namespace), client.UnsafeDisableDeepCopyOption(true)); err != nil {
		return err
	}
	if len(list.Items) == 0 {
		status.AcceptedDigest = ""
		return nil
	}
	digest := p.rendered.Sum()
	if digest == status.AcceptedDigest {
		return nil
	}
	budgets := pointers(list.Items)
	step, err := r.step(ctx, obs, p, budgets)
	if err != nil {
		return err
	}
	over := budget.Check(step, budgets)
	if len(over) == 0 || budget.Allows(obs.app.Annotations[fleetv1.AllowChangeAnnotation], digest) {
		status.AcceptedDigest = digest
		return nil
	}
	p.overBudget = overBudget(over, "Application", digest)
	p.sources, p.children, p.endings, p.surplus, p.prune, p.again = nil, nil, nil, 0, nil, 0
	return nil
}

// overBudget says by how much a step is over, and how to allow it.
func overBudget(over []string, kind, digest string) string {
	return fmt.Sprintf("over budget: %s: to allow just this, annotate the %s with %s=%s", strings.Join(over, "; "), kind, fleetv1.AllowChangeAnnotation, digest)
}

// errOverBudget says that something is not published because that is over a ChangeBudget.
var errOverBudget = errors.New("not published")

// bound refuses to publish another revision of files if that is over a ChangeBudget, and is not allowed: it changes something on
// all members that have what was published before.
func (d *delivery) bound(ctx context.Context, artifact, revision string) error {
	namespace := d.owner.GetNamespace()
	var list policyv1.ChangeBudgetList
	if err := d.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopyOption(true)); err != nil || len(list.Items) == 0 {
		return err
	}
	var kustomizations kustomizev1.KustomizationList
	var releases helmv2.HelmReleaseList
	for _, l := range []client.ObjectList{&kustomizations, &releases} {
		if err := d.List(ctx, l, client.InNamespace(namespace), client.UnsafeDisableDeepCopyOption(true)); err != nil {
			return err
		}
	}
	var children []client.Object
	for _, k := range pointers(kustomizations.Items) {
		children = append(children, k)
	}
	for _, h := range pointers(releases.Items) {
		children = append(children, h)
	}
	step := &budget.Step{}
	for _, child := range children {
		if sourceOf(child) == (object.Ref{Kind: sourcev1.ExternalArtifactKind, Name: artifact}) {
			step.Change(memberOf(child), labelsOf(ctx, d, namespace, memberOf(child)))
		}
	}
	step.Members = len(step.Changed)
	over, digest := budget.Check(step, pointers(list.Items)), budget.DigestOf(revision)
	if len(over) == 0 || budget.Allows(d.owner.GetAnnotations()[fleetv1.AllowChangeAnnotation], digest) {
		return nil
	}
	return fmt.Errorf("%w: %s", errOverBudget, overBudget(over, d.kind.Kind, digest))
}

// setOverBudget says that something is not published.
func setOverBudget(o conditions.Setter, err error) {
	conditions.Delete(o, meta.ReconcilingCondition)
	conditions.MarkTrue(o, appsv1.ChangeBlockedCondition, overBudgetReason, "%s", bounded(err.Error(), 1000))
	conditions.MarkFalse(o, meta.ReadyCondition, overBudgetReason, "%s", bounded(err.Error(), 1000))
}

// step says what a pass begins to change. Members that do not answer count as if they did.
func (r *ApplicationReconciler) step(ctx context.Context, obs *observed, p *plan, budgets []*policyv1.ChangeBudget) (*budget.Step, error) {
	step, members := &budget.Step{Kinds: map[string]bool{}}, map[member.Key]bool{}
	sources := map[object.Ref]bool{} // that change
	for _, w := range p.sources {
		sources[w.Ref()] = w.live != nil && carriedDigest(w.live) != w.Digest()
	}
	for _, live := range obs.sources {
		if sources[sourceOf(live)] {
			sources[kindOf(live)] = true
		}
	}
	for ref, m := range p.renderedFor {
		members[m.Key()] = true
		if live := obs.children[ref]; live == nil || carriedDigest(live) != p.rendered[ref] || sources[sourceOf(live)] {
			step.Change(m.Key(), m.Labels)
		}
	}
	for _, live := range obs.children {
		members[memberOf(live)] = true
	}
	for _, live := range p.unwanted {
		key := memberOf(live)
		step.Delete(key, labelsOf(ctx, r, obs.app.Namespace, key))
		if p.orphans(obs.app, live) || !protects(budgets) {
			continue
		}
		kinds, err := r.applied(ctx, live)
		if err != nil {
			return nil, err
		}
		step.Unknown = step.Unknown || kinds == nil
		for _, kind := range kinds {
			step.Kinds[kind] = true
		}
	}
	step.Members = len(members)
	return step, nil
}

func protects(budgets []*policyv1.ChangeBudget) bool {
	for _, b := range budgets {
		if len(b.Spec.ProtectedKinds) > 0 {
			return true
		}
	}
	return false
}

// labelsOf returns the labels of a cluster; none if it is gone.
func labelsOf(ctx context.Context, r client.Reader, namespace string, key member.Key) map[string]string {
	var o client.Object = &clusterv1.AttachedCluster{}
	if key.Kind == clusterv1.ClusterKind {
		o = &clusterv1.Cluster{}
	}
	if err := r.Get(ctx, types.NamespacedName{Namespace: namespace, Name: key.Name}, o, client.UnsafeDisableDeepCopyOption(true)); err != nil {
		return nil // the cache knows no error but that it is not there
	}
	return o.GetLabels()
}

// applied returns the kinds of what a child has applied: Kind, or Kind.group. It is nil if that is not known. The cache does not
// have the inventories.
func (r *ApplicationReconciler) applied(ctx context.Context, child client.Object) ([]string, error) {
	live := newFluxObject(kindOf(child).Kind)
	if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(child), live); err != nil {
		return []string{}, client.IgnoreNotFound(err)
	}
	var ids []string
	switch o := live.(type) {
	case *kustomizev1.Kustomization:
		if o.Status.Inventory == nil {
			return nil, nil
		}
		for _, e := range o.Status.Inventory.Entries {
			ids = append(ids, e.ID)
		}
	case *helmv2.HelmRelease:
		if o.Status.Inventory == nil {
			return nil, nil
		}
		for _, e := range o.Status.Inventory.Entries {
			ids = append(ids, e.ID)
		}
	}
	kinds := []string{}
	for _, id := range ids { // namespace_name_group_kind
		parts := strings.Split(id, "_")
		if len(parts) < 4 {
			return nil, nil
		}
		kinds = append(kinds, strings.TrimSuffix(parts[len(parts)-1]+"."+parts[len(parts)-2], "."))
	}
	return kinds, nil
}

func setChangeBlocked(app *appsv1.Application, p *plan) {
	if p.overBudget == "" {
		conditions.Delete(app, appsv1.ChangeBlockedCondition)
		return
	}
	conditions.MarkTrue(app, appsv1.ChangeBlockedCondition, overBudgetReason, "%s", p.overBudget)
}

// budgeted watches ChangeBudgets, for all objects of a kind in their namespace.
func budgeted(c client.Reader, list func() client.ObjectList) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		all := list()
		if err := c.List(ctx, all, client.InNamespace(o.GetNamespace()), client.UnsafeDisableDeepCopyOption(true)); err != nil {
			return nil
		}
		var requests []reconcile.Request
		_ = apimeta.EachListItem(all, func(item runtime.Object) error { // no item errs
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(item.(client.Object))})
			return nil
		})
		return requests
	})
}
