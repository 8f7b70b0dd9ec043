package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// suspendedCondition is True while an object is suspended.
const suspendedCondition = "Suspended"

// suspended says whether we are not to act on an object: by its spec, or by Kurator's annotation.
func suspended(o client.Object, spec bool) bool {
	return spec || o.GetAnnotations()[fleetv1.PauseAnnotation] == fleetv1.PauseTrue
}

// setSuspended says that an object is suspended, and that a request waits if there is one.
func setSuspended(o conditions.Setter, annotations map[string]string, status *meta.ReconcileRequestStatus) {
	message := "suspended: nothing is changed until spec.suspend and the annotation " + fleetv1.PauseAnnotation + " are taken back"
	if requested, ok := meta.ReconcileAnnotationValue(annotations); ok && requested != status.LastHandledReconcileAt {
		message += fmt.Sprintf("; the reconcile request %s waits for that", requested)
	} else if annotations[fleetv1.ReconcileAnnotation] == fleetv1.ReconcileForce {
		message += "; a reconcile request waits for that"
	}
	conditions.MarkTrue(o, suspendedCondition, suspendedReason, "%s", message)
}

// passOnRequest handles a reconcile request: it is passed on to the sources and to the children that are not suspended,
// once, and is noted as handled.
func (r *ApplicationReconciler) passOnRequest(ctx context.Context, obs *observed) []error {
	app := obs.app
	forced := app.Annotations[fleetv1.ReconcileAnnotation] == fleetv1.ReconcileForce
	token, requested := meta.ReconcileAnnotationValue(app.Annotations)
	requested = requested && token != app.Status.LastHandledReconcileAt
	if !requested && (!forced || app.Status.ForceHandled) {
		app.Status.ForceHandled = forced
		return nil
	}
	if !requested {
		token = time.Now().Format(time.RFC3339Nano)
	}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, meta.ReconcileRequestAnnotation, token))
	var failed failures
	for _, objects := range []map[object.Ref]client.Object{obs.sources, obs.children} {
		each(slices.Collect(maps.Values(objects)), func(o client.Object) {
			if deleting(o) || fluxSuspended(o) {
				return
			}
			err := r.Patch(ctx, newWithName(o), patch, client.FieldOwner(RequestOwner))
			if client.IgnoreNotFound(err) != nil {
				failed.add(fmt.Errorf("passing the request on to %s: %w", kindOf(o), err))
			}
		})
	}
	if len(failed.errs) == 0 {
		app.Status.ForceHandled = forced
		if requested {
			app.Status.LastHandledReconcileAt = token
		}
	}
	return failed.errs
}
