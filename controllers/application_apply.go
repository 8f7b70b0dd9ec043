package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// inFlight is how many objects of one Application are written at a time. The API server gains little beyond it.
const inFlight = 16

// apply writes what the plan says, sources first. Whatever fails is in the state of its member; the rest goes on.
func (r *ApplicationReconciler) apply(ctx context.Context, obs *observed, p *plan) []error {
	var mu sync.Mutex
	var failures []error
	fail := func(w write, err error) {
		mu.Lock()
		defer mu.Unlock()
		if w.claim != "" && w.live == nil {
			r.claims.release(obs.app.Namespace, w.claim, w.Metadata.Name)
		}
		reason, message := applyFailedReason, fmt.Sprintf("%s: %s", w.Ref(), shorten(err.Error()))
		if apierrors.IsConflict(err) && w.live == nil {
			reason, message = notOursReason, fmt.Sprintf("%s exists and is not this Application's: rename the policy, or delete it", w.Ref())
		}
		if w.member == nil {
			p.sourceProblems = append(p.sourceProblems, message)
		} else {
			w.member.rank = progressing // what it was before the write no longer matters
			w.member.is(failed, reason, "%s", message)
		}
		failures = append(failures, fmt.Errorf("%s", message))
	}

	for _, batch := range [][]write{p.sources, p.children} {
		each(batch, func(w write) {
			if err := r.write(ctx, obs, w); err != nil {
				fail(w, err)
			}
		})
		if len(failures) > 0 && len(batch) > 0 && batch[0].member == nil {
			break // children of a source that could not be written would fail on every member
		}
	}
	if n := len(p.sources) + len(p.children) - len(failures); n > 0 {
		r.Eventf(obs.app, "Normal", "Applied", "applied %d objects", n)
	}
	return failures
}

// each does something with all items, inFlight of them at a time.
func each[T any](items []T, do func(T)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, inFlight)
	for _, item := range items {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			do(item)
		})
	}
	wg.Wait()
}

// failures collects errors from each.
type failures struct {
	mu   sync.Mutex
	errs []error
}

func (f *failures) add(err error) {
	if err == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs = append(f.errs, err)
}

// write applies one object. An object that is not there yet is applied without force, so that one which somebody has
// made in the meantime is a conflict and not taken over.
func (r *ApplicationReconciler) write(ctx context.Context, obs *observed, w write) error {
	w.Metadata.OwnerReferences = []any{ownerReference(obs.app)}
	body, err := json.Marshal(w.Object)
	if err != nil {
		return err
	}
	opts := []client.PatchOption{client.FieldOwner(FieldOwner)}
	if w.live != nil {
		opts = append(opts, client.ForceOwnership)
	}
	// Of the answer only the metadata is of interest, which is all that is sent and decoded then.
	o := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: w.APIVersion, Kind: w.Kind}}
	o.SetName(w.Metadata.Name)
	o.SetNamespace(w.Metadata.Namespace)
	if err := r.Patch(ctx, o, client.RawPatch(types.ApplyPatchType, body), opts...); err != nil {
		return err
	}
	obs.state.wrote(w.Object, o)
	return nil
}

func ownerReference(app *appsv1.Application) metav1.OwnerReference {
	return *metav1.NewControllerRef(app, appsv1.GroupVersion.WithKind(appsv1.ApplicationKind))
}

// applied is the outcome of a write.
type applied struct {
	digest     string
	generation int64
	at         time.Time
}

// pendingFor bounds how long a write is believed in that does not come back through the watch: whoever deletes an
// object while the watch is down leaves no trace there.
const pendingFor = 30 * time.Second

func (s *appState) wrote(declared *object.Object, o client.Object) {
	s.applied.Store(declared.Ref(), applied{declared.Digest(), o.GetGeneration(), time.Now()})
	s.mu.Lock()
	defer s.mu.Unlock()
	// What the server made of it is as declared by definition, even where it does not look so.
	s.verified[hash(string(o.GetUID()))] = versionOf(o)
}

// isPending says whether an object was just written as declared and the cache is only behind.
func (s *appState) isPending(ref object.Ref, digest string, live client.Object) bool {
	v, ok := s.applied.Load(ref)
	if !ok {
		return false
	}
	a := v.(applied)
	if a.digest != digest || time.Since(a.at) > pendingFor || live != nil && live.GetGeneration() >= a.generation {
		s.applied.Delete(ref)
		return false
	}
	return true
}

// isVerified says whether an object was seen to be as declared at its present version.
func (s *appState) isVerified(o client.Object) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.verified[hash(string(o.GetUID()))] == versionOf(o)
}

func (s *appState) verify(o client.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.verified[hash(string(o.GetUID()))] = versionOf(o)
}

// versionOf is what changes with the declared part of an object: the generation changes with its spec, and only with it.
func versionOf(o client.Object) uint64 {
	version := maphash.Comparable(seed, o.GetGeneration())
	for k, value := range o.GetLabels() { // in any order, so their hashes are added up
		version += maphash.Comparable(seed, [2]string{k, value})
	}
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil {
		version += hash(string(owner.UID))
	}
	return version
}

// hash is one for this process.
func hash(s string) uint64 { return maphash.String(seed, s) }
