package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/runtime/conditions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/member"
)

// TerminatingReason is the reason of a member that is being deleted and still in use.
const TerminatingReason = "Terminating"

// finalize lets a member go when nothing is generated for it any more. Flux needs the member's credentials to take away
// what it applied; without them a Kustomization never ends, and a HelmRelease ends and leaves its release behind.
func (r *MemberReconciler) finalize(ctx context.Context, m *subject) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(m.object, memberFinalizer) {
		r.forget(m.kind, m.key())
		return ctrl.Result{}, nil
	}
	children, err := childrenOf(ctx, r.Client, m, client.MatchingFields{memberIndex: memberIndexValue(m.kind, m.object.GetName())})
	if err == nil && len(children) == 0 {
		// The cache may not know of a child that was created a moment ago.
		children, err = childrenOf(ctx, r.APIReader, m, client.MatchingLabels{fleetv1.MemberLabel: m.object.GetName(), fleetv1.MemberKindLabel: m.kind})
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("looking for what is generated for %s %s: %w", m.kind, m.object.GetName(), err)
	}

	if len(children) == 0 {
		if err := client.IgnoreNotFound(r.patchFinalizers(ctx, m, controllerutil.RemoveFinalizer)); err != nil {
			return retryOnConflict(err)
		}
		r.forget(m.kind, m.key())
		return ctrl.Result{}, nil
	}
	before := m.object.DeepCopyObject().(memberObject)
	setHandled(m)
	setProblem(m, &problem{reason: TerminatingReason, message: fmt.Sprintf(
		"waiting for %d objects of %s to end: see kubectl get kustomizations,helmreleases -l %s=%s%s",
		len(children), ownersOf(children), fleetv1.MemberLabel, m.object.GetName(), r.blockedPrunes(ctx, children))})
	if err := r.patchStatus(ctx, m, before); err != nil {
		return retryOnConflict(err)
	}
	return ctrl.Result{}, nil // the end of a child leads here, and a prune that is blocked
}

func childrenOf(ctx context.Context, reader client.Reader, m *subject, which client.ListOption) ([]client.Object, error) {
	var kustomizations kustomizev1.KustomizationList
	var releases helmv2.HelmReleaseList
	in := client.InNamespace(m.object.GetNamespace())
	if err := errors.Join(reader.List(ctx, &kustomizations, in, which), reader.List(ctx, &releases, in, which)); err != nil {
		return nil, err
	}
	var children []client.Object
	for i := range kustomizations.Items {
		children = append(children, &kustomizations.Items[i])
	}
	for i := range releases.Items {
		children = append(children, &releases.Items[i])
	}
	return slices.DeleteFunc(children, func(o client.Object) bool {
		return memberOf(o) != member.Key{Kind: m.kind, Name: m.object.GetName()}
	}), nil
}

// ownersOf names the Applications and Fleets that objects were generated for.
func ownersOf(objects []client.Object) string {
	var owners []string
	for _, o := range objects {
		if owner := metav1.GetControllerOf(o); owner != nil {
			owners = append(owners, owner.Kind+" "+owner.Name)
		}
	}
	if len(owners) == 0 {
		return "nobody"
	}
	return listed(owners)
}

// blockedPrunes says which of the Applications that objects were generated for do not end them, and what to do.
func (r *MemberReconciler) blockedPrunes(ctx context.Context, objects []client.Object) string {
	var blocked []string
	for _, o := range objects {
		app := &appsv1.Application{}
		key := types.NamespacedName{Namespace: o.GetNamespace(), Name: ownerName(o)}
		if err := r.Get(ctx, key, app, client.UnsafeDisableDeepCopyOption(true)); err != nil {
			continue // what is not there blocks nothing: the cache knows no other error
		}
		if text := blockedPrune(app); text != "" {
			blocked = append(blocked, text)
		}
	}
	if len(blocked) == 0 {
		return ""
	}
	return "; " + listed(blocked)
}

// blockedPrune says that an Application does not end something, and what to do. It has no numbers: many members say it
// while they are deleted one after the other.
func blockedPrune(app *appsv1.Application) string {
	switch {
	case !conditions.IsTrue(app, appsv1.PruneBlockedCondition) || deleting(app):
		return ""
	case app.Status.Prune != nil && app.Status.Prune.Allow != "":
		return fmt.Sprintf("the prune of Application %s is over budget: to allow it, annotate the Application with %s=%s", app.Name, fleetv1.AllowPruneAnnotation, app.Status.Prune.Allow)
	}
	return fmt.Sprintf("Application %s does not end everything: see its condition %s", app.Name, appsv1.PruneBlockedCondition)
}

// pruneBlocked lets through Applications that begin, or cease, to block a prune.
func pruneBlocked() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return blockedPrune(e.ObjectOld.(*appsv1.Application)) != blockedPrune(e.ObjectNew.(*appsv1.Application))
		},
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	}
}

// childEnds enqueues the member that a child of it ended for, or is no longer labelled for.
func childEnds(kind string) (handler.EventHandler, predicate.Predicate) {
	enqueue := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		m := memberOf(o)
		if m.Kind != kind {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: m.Name}}}
	})
	return enqueue, predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(e event.UpdateEvent) bool { return memberOf(e.ObjectOld) != memberOf(e.ObjectNew) },
		DeleteFunc:  func(event.DeleteEvent) bool { return true },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
