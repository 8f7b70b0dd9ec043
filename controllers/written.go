package controllers

import (
	"context"
	"sync"

	"github.com/fluxcd/pkg/runtime/conditions"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// written remembers objects as they were after their status was written, until the cache has them. A pass that compared
// its outcome with an older status could take it for what is there already, and nobody would write the right one any more.
type written[T conditions.Setter] struct {
	mu sync.Mutex
	m  map[types.NamespacedName]T
}

// latest returns an object from the cache as it was written last.
func (w *written[T]) latest(cached T) T {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := client.ObjectKeyFromObject(cached)
	o, ok := w.m[key]
	if !ok {
		return cached
	}
	newer, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), cached.GetResourceVersion())
	if err != nil || newer <= 0 || o.GetUID() != cached.GetUID() {
		delete(w.m, key)
		return cached
	}
	return o
}

func (w *written[T]) remember(o T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.m == nil {
		w.m = map[types.NamespacedName]T{}
	}
	o.SetManagedFields(nil)
	w.m[client.ObjectKeyFromObject(o)] = o
}

// patch writes the status of an object if it has changed, in one request, and tells people. What else has changed of the
// object since, finalizers say, is no part of it.
func (w *written[T]) patch(ctx context.Context, c client.Client, recorder record.EventRecorder, before, after T) error {
	from := before.DeepCopyObject().(T)
	from.SetResourceVersion(after.GetResourceVersion())
	from.SetGeneration(after.GetGeneration())
	from.SetFinalizers(after.GetFinalizers())
	from.SetManagedFields(after.GetManagedFields())
	if equality.Semantic.DeepEqual(from, after) {
		return nil
	}
	announce(recorder, before, after)
	o := after.DeepCopyObject().(T)
	if err := c.Status().Patch(ctx, o, client.MergeFrom(from), client.FieldOwner(FieldOwner)); err != nil {
		return client.IgnoreNotFound(err)
	}
	w.remember(o)
	return nil
}

func (w *written[T]) forget(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.m, key)
}
