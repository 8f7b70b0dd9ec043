package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// deliveryIndex finds the Applications and ExternalArtifacts that deliver an object.
const deliveryIndex = ".delivery"

func indexByDelivery(o client.Object) []string {
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil {
		return []string{owner.Kind + "/" + owner.Name}
	}
	return nil
}

// deliveredFor selects what delivers an object, in the cache.
func deliveredFor(kind, name string) client.MatchingFields {
	return client.MatchingFields{deliveryIndex: kind + "/" + name}
}

// delivery writes what an object is delivered by: the Applications and ExternalArtifacts that it owns.
type delivery struct {
	client.Client
	record.EventRecorder
	owner client.Object
	kind  schema.GroupVersionKind
	// made is what was rendered, to be applied.
	made object.Digests
}

// applyApplication writes an Application, unless it is as declared.
func (d *delivery) applyApplication(ctx context.Context, app *appsv1.Application) error {
	body, declared, err := declare(d.owner, d.kind, appsv1.GroupVersion.WithKind(appsv1.ApplicationKind), app.Name, app.Spec)
	if err != nil {
		return err
	}
	d.made.Add(declared)
	live := &appsv1.Application{}
	err = d.Get(ctx, client.ObjectKeyFromObject(app), live, client.UnsafeDisableDeepCopyOption(true))
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	there := err == nil
	switch {
	case there && !d.owns(live):
		return fmt.Errorf("Application %s %w: rename the %s, or delete it", app.Name, errNotOurs, d.kind.Kind)
	case there && deleting(live):
		return nil // it is made anew when it is gone
	case there && isDeclared(declared, live, live.Spec):
		return nil
	}
	err = applyBody(ctx, d.Client, body, there)
	if apierrors.IsConflict(err) && !there {
		return fmt.Errorf("Application %s %w: rename the %s, or delete it", app.Name, errNotOurs, d.kind.Kind)
	}
	return err
}

// applyArtifact writes the ExternalArtifact, unless it says already what it has to.
func (d *delivery) applyArtifact(ctx context.Context, name string, spec *sourcev1.ExternalArtifactSpec, artifact *meta.Artifact) error {
	gvk := sourcev1.GroupVersion.WithKind(sourcev1.ExternalArtifactKind)
	key := types.NamespacedName{Namespace: d.owner.GetNamespace(), Name: name}
	live := &sourcev1.ExternalArtifact{}
	err := d.Get(ctx, key, live, client.UnsafeDisableDeepCopyOption(true))
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	there := err == nil
	if there && !d.owns(live) {
		return fmt.Errorf("ExternalArtifact %s %w: rename the %s, or delete it", key.Name, errNotOurs, d.kind.Kind)
	}
	body, declared, err := declare(d.owner, d.kind, gvk, key.Name, spec)
	if err != nil {
		return err
	}
	d.made[declared.Ref()] = artifact.Revision
	if !there || live.Annotations[fleetv1.DigestAnnotation] != declared.Digest() {
		if err := applyBody(ctx, d.Client, body, there); err != nil {
			if apierrors.IsConflict(err) && !there {
				return fmt.Errorf("ExternalArtifact %s %w: rename the %s, or delete it", key.Name, errNotOurs, d.kind.Kind)
			}
			return err
		}
	}
	if a := live.Status.Artifact; a != nil && a.Revision == artifact.Revision && a.Digest == artifact.Digest && a.URL == artifact.URL {
		return nil
	}
	if a := live.Status.Artifact; a != nil && a.Revision != artifact.Revision {
		if err := d.bound(ctx, name, artifact.Revision); err != nil {
			return err
		}
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
	if err := d.Status().Patch(ctx, o, client.RawPatch(types.ApplyPatchType, b), client.FieldOwner(FieldOwner), client.ForceOwnership); err != nil {
		return err
	}
	d.Eventf(d.owner, "Normal", "Published", "published %s as %s", artifact.Revision, key.Name)
	return nil
}

// isDeclared says whether an object is as declared: it carries the digest, and nobody has changed its spec since.
func isDeclared(declared *object.Object, live client.Object, spec any) bool {
	if live.GetAnnotations()[fleetv1.DigestAnnotation] != declared.Digest() {
		return false
	}
	want, err := toTree(declared.Spec)
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

// declare returns an object that another one owns, and as what it is applied.
func declare(owner client.Object, ownerKind, gvk schema.GroupVersionKind, name string, spec any) (body []byte, declared *object.Object, err error) {
	if declared, err = object.New(gvk, owner.GetNamespace(), name, spec); err != nil {
		return nil, nil, err
	}
	declared.Metadata.OwnerReferences = []any{metav1.NewControllerRef(owner, ownerKind)}
	body, err = json.Marshal(declared)
	return body, declared, err
}

// owns says whether an object is the owner's: by name, so that one restored from a backup has it back.
func (d *delivery) owns(o client.Object) bool {
	owner := metav1.GetControllerOfNoCopy(o)
	return owner != nil && owner.Kind == d.kind.Kind && owner.Name == d.owner.GetName()
}

// passOn gives Applications the annotations of the owner that are for them, and pauses them while it is suspended.
func (d *delivery) passOn(ctx context.Context, apps []appsv1.Application, suspended bool, keys ...string) error {
	for i := range apps {
		change := map[string]any{}
		for _, key := range keys {
			want, ok := d.owner.GetAnnotations()[key]
			if key == fleetv1.PauseAnnotation {
				want, ok = fleetv1.PauseTrue, suspended
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
		if err := d.Patch(ctx, o, client.RawPatch(types.MergePatchType, b), client.FieldOwner(RequestOwner)); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}

// endAll asks all Applications to end, and says how that goes; empty if there is none any more.
func (d *delivery) endAll(ctx context.Context, apps []appsv1.Application) (string, error) {
	if len(apps) == 0 {
		return "", nil
	}
	if err := d.end(ctx, apps, nil); err != nil {
		return "", err
	}
	var texts []string
	for i := range apps {
		text := "was asked to end" // until it says how that goes, it says how the members were
		if deleting(&apps[i]) {
			text = conditions.GetMessage(&apps[i], meta.ReadyCondition)
		}
		texts = append(texts, fmt.Sprintf("Application %s: %s", apps[i].Name, text))
	}
	return bounded("ends on the members: "+strings.Join(texts, "; "), 2000), nil
}

// setEnds says in the conditions of an object how what delivers it ends.
func setEnds(o conditions.Setter, message string) {
	conditions.MarkReconciling(o, endingReason, "%s", message)
	conditions.MarkFalse(o, meta.ReadyCondition, endingReason, "%s", message)
}

// end deletes the Applications that are not wanted any more.
func (d *delivery) end(ctx context.Context, apps []appsv1.Application, wanted map[string]bool) error {
	for i := range apps {
		if wanted[apps[i].Name] || deleting(&apps[i]) {
			continue
		}
		uid := apps[i].UID
		o := &appsv1.Application{}
		o.Name, o.Namespace = apps[i].Name, apps[i].Namespace
		if err := d.Delete(ctx, o, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}
