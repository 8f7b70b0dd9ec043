package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// end ends what the plan says, after a look past the cache that nothing which was decided on has changed.
func (r *ApplicationReconciler) end(ctx context.Context, obs *observed, p *plan) []error {
	endings, err := r.afterDependents(ctx, obs, p, slices.DeleteFunc(slices.Clone(p.endings), deleting))
	if err != nil {
		return []error{fmt.Errorf("nothing was ended: %w", err)}
	}
	if len(endings) == 0 {
		return nil
	}
	if err := r.confirm(ctx, obs, endings); err != nil {
		return []error{fmt.Errorf("nothing was ended: %w", err)}
	}
	ended, failures := r.endObjects(ctx, obs.app, p, endings)
	if ended > 0 {
		r.Eventf(obs.app, "Normal", "Pruned", "ended %d objects that are not declared any more", ended)
	}
	return failures
}

// afterDependents leaves out what the children of Applications that depend on this one come after, on the same member, as
// long as these are there. Where such an Application stays on a member, its child is rendered anew, does not name any more
// what leaves, and holds up nothing; but the Application may be about to leave, too, and is given the time to.
func (r *ApplicationReconciler) afterDependents(ctx context.Context, obs *observed, p *plan, endings []client.Object) ([]client.Object, error) {
	var since map[types.UID]time.Time
	defer func() { obs.state.since = since }()
	if len(endings) == 0 {
		return nil, nil
	}
	naming, there, err := r.observeDependents(ctx, obs.app, endings)
	if err != nil || len(there) == 0 {
		return endings, err
	}
	now := time.Now()
	since = map[types.UID]time.Time{}
	return slices.DeleteFunc(endings, func(live client.Object) bool {
		if _, handedOver := p.handover[kindOf(live)]; handedOver || !isChild(live) {
			return false // nothing is taken away from the member
		}
		before, other := naming[kindOf(live)], there[memberOf(live)]
		if before == nil && other != nil {
			from := cmp.Or(obs.state.since[live.GetUID()], now)
			since[live.GetUID()] = from
			left := together - now.Sub(from)
			p.again = max(p.again, left)
			if left > 0 || deleting(other) {
				before = other
			}
		}
		if before == nil {
			return false
		}
		p.waits = append(p.waits, fmt.Sprintf("%s ends after %s of Application %s", kindOf(live), kindOf(before), ownerName(before)))
		return true
	}), nil
}

// observeDependents returns the children of the Applications that depend on one: those which name something that is to
// end on their member, by its name, and one on each member.
func (r *ApplicationReconciler) observeDependents(ctx context.Context, app *appsv1.Application, endings []client.Object) (naming map[object.Ref]client.Object, there map[member.Key]client.Object, err error) {
	ends := map[object.Ref]client.Object{}
	for _, live := range endings {
		ends[kindOf(live)] = live
	}
	naming, there = map[object.Ref]client.Object{}, map[member.Key]client.Object{}
	dependents, err := r.dependentsOf(ctx, app)
	if err != nil {
		return nil, nil, err
	}
	for i := range dependents {
		children, err := r.observeChildren(ctx, client.ObjectKeyFromObject(&dependents[i]))
		if err != nil {
			return nil, nil, err
		}
		for _, child := range children {
			there[memberOf(child)] = firstOf(there[memberOf(child)], child)
			for _, ref := range dependsOn(child) {
				if live := ends[ref]; live != nil && sameMember(live, child) {
					naming[ref] = firstOf(naming[ref], child)
				}
			}
		}
	}
	return naming, there, nil
}

// firstOf returns one of two objects, whatever their order: rather one that is ending.
func firstOf(a, b client.Object) client.Object {
	if a == nil || deleting(b) && !deleting(a) || deleting(a) == deleting(b) && b.GetName() < a.GetName() {
		return b
	}
	return a
}

// sameMember says whether two children serve the same member, by their labels or, whatever somebody has done to these, by
// how Flux reaches it.
func sameMember(a, b client.Object) bool {
	return memberOf(a) == memberOf(b) || equality.Semantic.DeepEqual(kubeConfigOf(a), kubeConfigOf(b))
}

// errStale says that the cache is behind the API server.
var errStale = errors.New("the cache is behind")

// confirm compares what a decision to end something rests on with the API server. The cache may be behind, for one kind
// more than for another; gone is only what the API server says is gone.
func (r *ApplicationReconciler) confirm(ctx context.Context, obs *observed, endings []client.Object) error {
	app := &appsv1.Application{}
	if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(obs.app), app); err != nil {
		return err
	}
	if app.UID != obs.app.UID || app.Generation != obs.app.Generation {
		return fmt.Errorf("Application %s: %w", app.Name, errStale)
	}
	for name, cached := range obs.fleets {
		fleet := &fleetv1.Fleet{}
		if err := r.APIReader.Get(ctx, types.NamespacedName{Namespace: app.Namespace, Name: name}, fleet); err != nil {
			return err
		}
		if fleet.UID != cached.UID || fleet.Generation != cached.Generation {
			return fmt.Errorf("Fleet %s: %w", name, errStale)
		}
	}
	members := map[member.Key]bool{}
	for _, o := range endings {
		members[memberOf(o)] = true
	}
	delete(members, member.Key{})
	var failed failures
	each(slices.Collect(maps.Keys(members)), func(key member.Key) { failed.add(r.confirmMember(ctx, app.Namespace, key)) })
	return errors.Join(first(failed.errs, 3)...)
}

func (r *ApplicationReconciler) confirmMember(ctx context.Context, namespace string, key member.Key) error {
	var cached, live client.Object = &clusterv1.AttachedCluster{}, &clusterv1.AttachedCluster{}
	if key.Kind == clusterv1.ClusterKind {
		cached, live = &clusterv1.Cluster{}, &clusterv1.Cluster{}
	}
	name := types.NamespacedName{Namespace: namespace, Name: key.Name}
	errCached, errLive := r.Get(ctx, name, cached), r.APIReader.Get(ctx, name, live)
	if err := client.IgnoreNotFound(errLive); err != nil {
		return err
	}
	if apierrors.IsNotFound(errCached) != apierrors.IsNotFound(errLive) || cached.GetResourceVersion() != live.GetResourceVersion() {
		return fmt.Errorf("%s %s: %w", key.Kind, key.Name, errStale)
	}
	return nil
}

// endObjects deletes objects, and returns how many. Where what they applied is to stay, Flux is told so first.
func (r *ApplicationReconciler) endObjects(ctx context.Context, app *appsv1.Application, p *plan, endings []client.Object) (int, []error) {
	endings = slices.DeleteFunc(slices.Clone(endings), deleting)
	var failed failures
	var mu sync.Mutex
	var kept []string
	r.keeps(client.ObjectKeyFromObject(app), r.Keep != nil) // before it looks at others, so that no change of theirs is missed
	each(endings, func(o client.Object) {
		wait, err := "", error(nil)
		if p.orphans(app, o) {
			err = r.orphan(ctx, o)
		} else if r.Keep != nil {
			wait, err = r.Keep(ctx, app, o)
		}
		if wait != "" {
			mu.Lock()
			defer mu.Unlock()
			kept = append(kept, wait)
		} else if err == nil {
			uid := o.GetUID()
			err = r.Delete(ctx, newWithName(o), client.Preconditions{UID: &uid})
		}
		if client.IgnoreNotFound(err) != nil {
			failed.add(fmt.Errorf("ending %s: %w", kindOf(o), err))
		}
	})
	slices.Sort(kept)
	p.held = append(p.held, kept...)
	r.keeps(client.ObjectKeyFromObject(app), len(kept) > 0)
	return len(endings) - len(failed.errs) - len(kept), failed.errs
}

// keeps remembers whether children of an Application wait for what others are to do.
func (r *ApplicationReconciler) keeps(app types.NamespacedName, waits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if waits {
		r.keeping[app] = true
	} else {
		delete(r.keeping, app)
	}
}

// keepers returns the Applications of a namespace of which children wait for what others are to do.
func (r *ApplicationReconciler) keepers(_ context.Context, o client.Object) []reconcile.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	var requests []reconcile.Request
	for app := range r.keeping {
		if app.Namespace == o.GetNamespace() {
			requests = append(requests, reconcile.Request{NamespacedName: app})
		}
	}
	return requests
}

// orphan makes Flux leave what a child applied when the child is deleted. A HelmRelease has no other way than to be
// suspended.
func (r *ApplicationReconciler) orphan(ctx context.Context, o client.Object) error {
	var patch string
	switch o := o.(type) {
	case *kustomizev1.Kustomization:
		if o.Spec.DeletionPolicy == kustomizev1.DeletionPolicyOrphan {
			return nil
		}
		patch = `{"spec":{"deletionPolicy":"Orphan"}}`
	case *helmv2.HelmRelease:
		patch = `{"spec":{"suspend":true}}`
	default:
		return nil
	}
	return r.Patch(ctx, newWithName(o), client.RawPatch(types.MergePatchType, []byte(patch)), client.FieldOwner(FieldOwner))
}

// newWithName returns an empty object of the same kind and name: what the cache has is not written to.
func newWithName(o client.Object) client.Object {
	n := newFluxObject(kindOf(o).Kind)
	n.SetName(o.GetName())
	n.SetNamespace(o.GetNamespace())
	return n
}

// finalize ends the children, then the sources, then the Application. It needs no fleet.
func (r *ApplicationReconciler) finalize(ctx context.Context, app *appsv1.Application) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(app, ApplicationFinalizer) {
		return ctrl.Result{}, nil
	}
	children, sources, err := r.observeObjects(ctx, app)
	if err != nil {
		return ctrl.Result{}, err
	}
	var all []client.Object
	for _, o := range children {
		all = append(all, o)
	}
	sortObjects(all)
	if len(all) > 0 {
		if before, after, err := r.endsFirst(ctx, app); err != nil {
			return ctrl.Result{}, err
		} else if before != "" {
			setEnding(app, "waits for Application %s, which depends on this one, to end first", before)
			return ctrl.Result{RequeueAfter: after}, nil
		}
		obs := &observed{app: app}
		p := &plan{}
		now := inReverseOrder(all, obs.endable(p, p.undisputed(all)))
		_, failures := r.endObjects(ctx, app, p, now)
		setEnding(app, "%s", endingMessage(all, p.held))
		return ctrl.Result{}, errors.Join(failures...)
	}

	var unused []client.Object
	for _, o := range sources {
		unused = append(unused, o)
	}
	if len(unused) > 0 {
		sortObjects(unused)
		p := &plan{}
		_, failures := r.endObjects(ctx, app, p, p.undisputed(unused))
		setEnding(app, "%d sources are ending", len(unused))
		if len(p.held) > 0 {
			setEnding(app, "%s", p.held[0])
		}
		return ctrl.Result{}, errors.Join(failures...)
	}
	r.forget(client.ObjectKeyFromObject(app))
	before := app.DeepCopy()
	controllerutil.RemoveFinalizer(app, ApplicationFinalizer)
	return ctrl.Result{}, client.IgnoreNotFound(r.Patch(ctx, app, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(FieldOwner)))
}

// together is for how long an Application that is to end, or leaves a member, waits for those that depend on it to do so,
// too: kubectl deletes and changes one after the other. Deletion timestamps are whole seconds.
const together = 2 * time.Second

// endsFirst returns an Application that depends on this one and is being deleted, too, or may be in a moment; then with
// the time to look again.
func (r *ApplicationReconciler) endsFirst(ctx context.Context, app *appsv1.Application) (name string, after time.Duration, err error) {
	dependents, err := r.dependentsOf(ctx, app)
	if err != nil {
		return "", 0, err
	}
	for i := range dependents {
		d := &dependents[i]
		if slices.ContainsFunc(app.Spec.DependsOn, func(n appsv1.NameReference) bool { return n.Name == d.Name }) {
			continue // they wait for each other
		}
		if deleting(d) {
			return d.Name, 0, nil
		}
		if left := together - time.Since(app.DeletionTimestamp.Time); left > 0 {
			name, after = d.Name, left
		}
	}
	return name, after, nil
}

// dependentsOf returns the Applications that depend on one.
func (r *ApplicationReconciler) dependentsOf(ctx context.Context, app *appsv1.Application) ([]appsv1.Application, error) {
	var dependents appsv1.ApplicationList
	err := r.List(ctx, &dependents, client.InNamespace(app.Namespace), client.MatchingFields{dependsOnIndex: app.Name}, client.UnsafeDisableDeepCopy)
	return dependents.Items, err
}

func endingMessage(all []client.Object, held []string) string {
	if len(held) > 0 {
		return held[0]
	}
	var members []string
	var trouble string
	for _, o := range all {
		name := cmp.Or(memberOf(o).Name, "the hub")
		if !slices.Contains(members, name) {
			members = append(members, name)
		}
		ready := conditions.Get(o.(conditions.Getter), meta.ReadyCondition)
		if trouble == "" && deleting(o) && ready != nil && ready.Status == metav1.ConditionFalse {
			trouble = fmt.Sprintf("; %s: %s", kindOf(o), shorten(ready.Message))
		}
	}
	slices.Sort(members)
	return fmt.Sprintf("%d objects are ending on %s%s", len(all), capped(members, 5), trouble)
}
