package controllers

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// written remembers objects as they were after their status was written, until the cache has them. A pass that compared
// its outcome with an older status could take it for what is there already, and nobody would write the right one any more.
type written[T client.Object] struct {
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

func (w *written[T]) forget(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.m, key)
}
