package controllers

import (
	"context"
	"fmt"
	"sync"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/baseline"
	"github.com/fleetwright/fleetwright/renderers/member"
)

// dropping has the ClusterConfigs that drop what others may want: the new revision, and since when it is known. After a
// restart, their Applications say what Flux is to leave.
type dropping struct {
	mu sync.Mutex
	m  map[types.NamespacedName]dropped
}

type dropped struct {
	revision string
	since    time.Time
}

func (d *dropping) is(key types.NamespacedName) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.m[key]
	return ok
}

func (d *dropping) begin(key types.NamespacedName, revision string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.m == nil {
		d.m = map[types.NamespacedName]dropped{}
	}
	if d.m[key].revision != revision {
		d.m[key] = dropped{revision, time.Now()}
	}
}

// left is how long is still waited for others that change in the same moment: kubectl and Flux apply one after the other.
func (d *dropping) left(key types.NamespacedName) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return max(0, together-time.Since(d.m[key].since))
}

func (d *dropping) end(key types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.m, key)
}

// drop returns the Application to be applied when a new revision drops objects that others want, and what has to be waited
// for before that revision may be published; then it is the one that is there, which has Flux leave them. It is in the
// Application until the new revision is everywhere: Flux reads the spec of a Kustomization and what is published at
// different times.
func (r *ClusterConfigReconciler) drop(ctx context.Context, config *clusterv1.ClusterConfig, rendered *baseline.Rendered, app *appsv1.Application) (_ *appsv1.Application, wait string, err error) {
	key := artifactKey(client.ObjectKeyFromObject(config))
	published, err := r.published(ctx, key)
	if err != nil {
		return nil, "", err
	}
	live := &appsv1.Application{}
	if err := r.Get(ctx, key, live, client.UnsafeDisableDeepCopyOption(true)); client.IgnoreNotFound(err) != nil {
		return nil, "", err
	}
	self := client.ObjectKeyFromObject(config)
	if published == rendered.Revision && !r.dropping.is(self) && len(baseline.LeftBy(live)) == 0 {
		return app, "", nil
	}

	r.dropping.begin(self, rendered.Revision) // before it looks at others, so that no change of theirs is missed
	live = &appsv1.Application{}
	if err := r.Keeper.APIReader.Get(ctx, key, live); client.IgnoreNotFound(err) != nil {
		return nil, "", err
	}
	var children kustomizev1.KustomizationList
	if err := r.Keeper.APIReader.List(ctx, &children, client.InNamespace(config.Namespace), client.MatchingLabels{appsv1.ApplicationLabel: key.Name}); err != nil {
		return nil, "", err
	}
	stays := map[baseline.Key]bool{}
	for _, o := range rendered.Objects {
		stays[baseline.KeyOf(o)] = true
	}
	left, dropped := baseline.Left{}, map[*kustomizev1.Kustomization][]*unstructured.Unstructured{}
	for _, child := range pointers(children.Items) {
		if deleting(child) {
			continue
		}
		if child.Status.LastAppliedRevision != rendered.Revision {
			left = baseline.LeftBy(live)
		}
		for _, o := range inventory(child) {
			if !stays[baseline.KeyOf(o)] {
				dropped[child] = append(dropped[child], o)
			}
		}
	}
	if len(dropped) > 0 {
		if wait, err = r.unsafe(ctx, config, live, dropped, left); err != nil {
			return nil, "", err
		}
		if wait == "" && r.dropping.left(self) > 0 {
			wait = "what it takes out may be about to come to another ClusterConfig"
		}
	}
	if len(left) == 0 && wait == "" {
		r.dropping.end(self)
	}
	if wait != "" && live.Name != "" {
		// What else has changed waits as well: it may not fit what is published.
		app = &appsv1.Application{TypeMeta: app.TypeMeta, Spec: live.Spec}
		app.Name, app.Namespace = live.Name, live.Namespace
	}
	if len(left) == 0 && wait == "" {
		return app, "", nil
	}
	return left.With(app), wait, nil
}

// unsafe adds what is dropped and wanted by others to what Flux is to leave, and says what has to be waited for.
func (r *ClusterConfigReconciler) unsafe(ctx context.Context, config *clusterv1.ClusterConfig, live *appsv1.Application, dropped map[*kustomizev1.Kustomization][]*unstructured.Unstructured, left baseline.Left) (wait string, err error) {
	w, err := r.Keeper.wishes(ctx, config.Namespace, config.Name, nil)
	if err != nil {
		return "", err
	}
	w.unwell = map[member.Key]string{}
	for _, m := range live.Status.Members.NotReady {
		w.unwell[member.Key{Kind: m.Kind, Name: m.Name}] = m.Message
	}
	app, waits := baseline.Name(config.Name), 0
	for child, objects := range dropped {
		m := memberOf(child)
		others := w.others(app, m)
		for _, o := range objects {
			if _, ok := others[baseline.KeyOf(o)]; ok {
				left.Add(m.Name, o)
			}
		}
		if _, text := w.unsafe(app, child, objects); text != "" {
			waits++
			if wait == "" || text < wait {
				wait = text
			}
		}
	}
	if waits > 1 {
		wait += fmt.Sprintf(" (and %d more)", waits-1)
	}
	return wait, nil
}

// published returns the revision that Flux is to apply; empty if there is none.
func (r *ClusterConfigReconciler) published(ctx context.Context, key types.NamespacedName) (string, error) {
	artifact := &sourcev1.ExternalArtifact{}
	err := r.Get(ctx, key, artifact, client.UnsafeDisableDeepCopyOption(true))
	if err != nil || artifact.Status.Artifact == nil {
		return "", client.IgnoreNotFound(err)
	}
	return artifact.Status.Artifact.Revision, nil
}
