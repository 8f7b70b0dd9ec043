package controllers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/controllers/publisher"
	"github.com/fleetwright/fleetwright/renderers/baseline"
)

// errNotOurs says that an object which would be written is somebody else's.
var errNotOurs = errors.New("exists and is not this object's")

// artifactKey is the name of the ExternalArtifact, and of the Application, of a ClusterConfig.
func artifactKey(config types.NamespacedName) types.NamespacedName {
	return types.NamespacedName{Namespace: config.Namespace, Name: baseline.Name(config.Name)}
}

// publish stores the files of a ClusterConfig. The artifact is nil if there are none.
func publish(ctx context.Context, p publisher.Publisher, config *clusterv1.ClusterConfig, rendered *baseline.Rendered) (*meta.Artifact, error) {
	if rendered.Application == nil {
		return nil, nil
	}
	return p.Publish(ctx, artifactKey(client.ObjectKeyFromObject(config)), rendered.Revision, rendered.Files)
}

// deliver publishes the files, and then applies the Applications that deliver them.
func (r *ClusterConfigReconciler) deliver(ctx context.Context, config *clusterv1.ClusterConfig, rendered *baseline.Rendered) error {
	artifact, err := publish(ctx, r.Publisher, config, rendered)
	if err != nil {
		return fmt.Errorf("publishing: %w", err)
	}
	if artifact != nil {
		if err := r.applyArtifact(ctx, config, artifact); err != nil {
			return err
		}
	}
	conflicts, err := r.conflicts(ctx, config)
	if err != nil {
		return err
	}
	setConflict(config, conflicts)
	wanted := map[string]bool{}
	for _, a := range []*appsv1.Application{rendered.Settled(conflicts, config.Name), rendered.Overlay} {
		if a == nil {
			continue
		}
		wanted[a.Name] = true
		if err := r.applyApplication(ctx, config, a); err != nil {
			return err
		}
	}
	return r.endApplications(ctx, config, wanted)
}

// applyApplication writes an Application, unless it is as declared.
func (r *ClusterConfigReconciler) applyApplication(ctx context.Context, config *clusterv1.ClusterConfig, app *appsv1.Application) error {
	body, digest, err := declare(config, configKind, appsv1.GroupVersion.WithKind(appsv1.ApplicationKind), app.Name, app.Spec)
	if err != nil {
		return err
	}
	live := &appsv1.Application{}
	err = r.Get(ctx, client.ObjectKeyFromObject(app), live, client.UnsafeDisableDeepCopyOption(true))
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	there := err == nil
	switch {
	case there && !ownedBy(live, config):
		return fmt.Errorf("Application %s %w: rename the ClusterConfig, or delete it", app.Name, errNotOurs)
	case there && deleting(live):
		return nil // it is made anew when it is gone
	case there && isDeclared(digest, app.Spec, live, live.Spec):
		return nil
	}
	err = applyBody(ctx, r.Client, body, there)
	if apierrors.IsConflict(err) && !there {
		return fmt.Errorf("Application %s %w: rename the ClusterConfig, or delete it", app.Name, errNotOurs)
	}
	return err
}

// applyArtifact writes the ExternalArtifact, unless it says already what it has to.
func (r *ClusterConfigReconciler) applyArtifact(ctx context.Context, config *clusterv1.ClusterConfig, artifact *meta.Artifact) error {
	gvk := sourcev1.GroupVersion.WithKind(sourcev1.ExternalArtifactKind)
	key := artifactKey(client.ObjectKeyFromObject(config))
	live := &sourcev1.ExternalArtifact{}
	err := r.Get(ctx, key, live, client.UnsafeDisableDeepCopyOption(true))
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	there := err == nil
	if there && !ownedBy(live, config) {
		return fmt.Errorf("ExternalArtifact %s %w: rename the ClusterConfig, or delete it", key.Name, errNotOurs)
	}
	body, digest, err := declare(config, configKind, gvk, key.Name, baseline.ArtifactSpec(config))
	if err != nil {
		return err
	}
	if !there || live.Annotations[fleetv1.DigestAnnotation] != digest {
		if err := applyBody(ctx, r.Client, body, there); err != nil {
			if apierrors.IsConflict(err) && !there {
				return fmt.Errorf("ExternalArtifact %s %w: rename the ClusterConfig, or delete it", key.Name, errNotOurs)
			}
			return err
		}
	}
	if a := live.Status.Artifact; a != nil && a.Revision == artifact.Revision && a.Digest == artifact.Digest && a.URL == artifact.URL {
		return nil
	}
	ready := metav1.Condition{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: succeededReason,
		Message: "published " + artifact.Revision, LastTransitionTime: metav1.Now(), ObservedGeneration: live.Generation}
	if was := apimeta.FindStatusCondition(live.Status.Conditions, meta.ReadyCondition); was != nil && was.Status == ready.Status {
		ready.LastTransitionTime = was.LastTransitionTime
	}
	status := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": gvk.GroupVersion().String(), "kind": gvk.Kind,
		"metadata": map[string]any{"name": key.Name, "namespace": key.Namespace},
		"status":   sourcev1.ExternalArtifactStatus{Artifact: artifact, Conditions: []metav1.Condition{ready}},
	}}
	b, err := json.Marshal(status.Object)
	if err != nil {
		return err
	}
	o := &sourcev1.ExternalArtifact{}
	o.Name, o.Namespace = key.Name, key.Namespace
	if err := r.Status().Patch(ctx, o, client.RawPatch(types.ApplyPatchType, b), client.FieldOwner(FieldOwner), client.ForceOwnership); err != nil {
		return err
	}
	r.Eventf(config, "Normal", "Published", "published %s", artifact.Revision)
	return nil
}

var configKind = clusterv1.GroupVersion.WithKind(clusterv1.ClusterConfigKind)

// isDeclared says whether an object is as declared: it carries the digest, and nobody has changed its spec since.
func isDeclared(digest string, declared any, live client.Object, spec any) bool {
	if live.GetAnnotations()[fleetv1.DigestAnnotation] != digest {
		return false
	}
	want, err := toTree(declared)
	if err != nil {
		return false
	}
	got, err := toTree(spec)
	return err == nil && contains(want, got)
}

// applyBody applies an object. One that is not there yet is applied without force, so that one which somebody has made in
// the meantime is a conflict and not taken over.
func applyBody(ctx context.Context, c client.Client, body []byte, there bool) error {
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal(body, &o.Object); err != nil {
		return err
	}
	opts := []client.PatchOption{client.FieldOwner(FieldOwner)}
	if there {
		opts = append(opts, client.ForceOwnership)
	}
	return c.Patch(ctx, o, client.RawPatch(types.ApplyPatchType, body), opts...)
}

// declare returns an object that another one owns, as it is applied, and the digest that it carries.
func declare(owner client.Object, ownerKind, gvk schema.GroupVersionKind, name string, spec any) (body []byte, digest string, err error) {
	b, err := json.Marshal(spec)
	if err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(b)
	digest = hex.EncodeToString(sum[:16])
	body, err = json.Marshal(map[string]any{
		"apiVersion": gvk.GroupVersion().String(), "kind": gvk.Kind,
		"metadata": map[string]any{
			"name": name, "namespace": owner.GetNamespace(),
			"labels":          map[string]string{fleetv1.ManagedByLabel: fleetv1.ManagedByValue},
			"annotations":     map[string]string{fleetv1.DigestAnnotation: digest},
			"ownerReferences": []any{metav1.NewControllerRef(owner, ownerKind)},
		},
		"spec": json.RawMessage(b),
	})
	return body, digest, err
}

// ownedBy says whether an object is a ClusterConfig's: by name, so that one restored from a backup has it back.
func ownedBy(o client.Object, config *clusterv1.ClusterConfig) bool {
	owner := metav1.GetControllerOfNoCopy(o)
	return owner != nil && owner.Kind == clusterv1.ClusterConfigKind && owner.Name == config.Name
}

// mirrored are the annotations by which a user asks something of the ClusterConfig that its Applications do.
var mirrored = []string{fleetv1.AllowPruneAnnotation, fleetv1.ReconcileAnnotation, meta.ReconcileRequestAnnotation, fleetv1.PauseAnnotation}

// passOn gives the Applications the annotations of the ClusterConfig that are for them, and pauses them while it is suspended.
func (r *ClusterConfigReconciler) passOn(ctx context.Context, config *clusterv1.ClusterConfig) error {
	apps, err := r.applications(ctx, config)
	if err != nil {
		return err
	}
	for i := range apps {
		change := map[string]any{}
		for _, key := range mirrored {
			want, ok := config.Annotations[key]
			if key == fleetv1.PauseAnnotation {
				want, ok = fleetv1.PauseTrue, suspended(config, config.Spec.Suspend)
			}
			got, has := apps[i].Annotations[key]
			switch {
			case ok && got != want:
				change[key] = want
			case !ok && has && key != meta.ReconcileRequestAnnotation: // flux sets that one on the Application itself, too
				change[key] = nil
			}
		}
		if len(change) == 0 || deleting(&apps[i]) {
			continue
		}
		b, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": change}})
		if err != nil {
			return err
		}
		o := &appsv1.Application{}
		o.Name, o.Namespace = apps[i].Name, apps[i].Namespace
		if err := r.Patch(ctx, o, client.RawPatch(types.MergePatchType, b), client.FieldOwner(RequestOwner)); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}

// applications returns the Applications of a ClusterConfig, from the cache.
func (r *ClusterConfigReconciler) applications(ctx context.Context, config *clusterv1.ClusterConfig) ([]appsv1.Application, error) {
	var apps appsv1.ApplicationList
	err := r.List(ctx, &apps, client.InNamespace(config.Namespace), client.MatchingFields{configIndex: config.Name}, client.UnsafeDisableDeepCopy)
	return apps.Items, err
}

// endApplications deletes the Applications that are not wanted any more.
func (r *ClusterConfigReconciler) endApplications(ctx context.Context, config *clusterv1.ClusterConfig, wanted map[string]bool) error {
	apps, err := r.applications(ctx, config)
	if err != nil {
		return err
	}
	for i := range apps {
		if wanted[apps[i].Name] || deleting(&apps[i]) {
			continue
		}
		uid := apps[i].UID
		o := &appsv1.Application{}
		o.Name, o.Namespace = apps[i].Name, apps[i].Namespace
		if err := r.Delete(ctx, o, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}
