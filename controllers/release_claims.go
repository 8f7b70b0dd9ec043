package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
)

// releaseClaims sees to it that one Helm release on one member has one HelmRelease: the first that there is. What the
// cache cannot show yet, a HelmRelease that is just being created, is reserved here. (Two shards, which are two processes,
// see each other's claims only through the cache.)
type releaseClaims struct {
	mu       sync.Mutex
	reserved map[string]string                        // claim to the namespace/name of a HelmRelease
	waiting  map[string]map[types.NamespacedName]bool // claim to the Applications that want it
}

func newReleaseClaims() *releaseClaims {
	return &releaseClaims{reserved: map[string]string{}, waiting: map[string]map[types.NamespacedName]bool{}}
}

// takeClaim takes the claim of a child. If another HelmRelease has it, it says which, and returns it if it is this
// Application's own.
func (r *ApplicationReconciler) takeClaim(ctx context.Context, app *appsv1.Application, child *childState) (other string, own client.Object) {
	// The cache is read under the lock: a claim is either reserved or in the cache.
	r.claims.mu.Lock()
	defer r.claims.mu.Unlock()
	var holders helmv2.HelmReleaseList
	// The cache's List fails only for a missing index, which the first test would show.
	if err := r.List(ctx, &holders, client.MatchingFields{claimIndex: bucket(child.claim)}, client.UnsafeDisableDeepCopy); err != nil {
		return err.Error(), nil
	}
	claim, name := child.claim, app.Namespace+"/"+child.ref.Name
	for i := range holders.Items {
		if h := &holders.Items[i]; h.Namespace+"/"+h.Name != name && claimOf(h) == child.claim {
			other = "HelmRelease " + h.Namespace + "/" + h.Name
			if owner := ownerName(h); owner != "" {
				other += fmt.Sprintf(" of Application %s", owner)
				if owner == app.Name && h.Namespace == app.Namespace {
					own = h
				}
			}
			break
		}
	}
	if holder, ok := r.claims.reserved[claim]; ok && holder != name && other == "" {
		other = "HelmRelease " + holder
	}
	if other == "" {
		r.claims.reserved[claim] = name
		return "", nil
	}
	if r.claims.waiting[claim] == nil {
		r.claims.waiting[claim] = map[types.NamespacedName]bool{}
	}
	r.claims.waiting[claim][client.ObjectKeyFromObject(app)] = true
	return other, own
}

// release gives a claim back that came to nothing.
func (c *releaseClaims) release(namespace, claim, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reserved[claim] == namespace+"/"+name {
		delete(c.reserved, claim)
	}
}

// freed is for a HelmRelease that is gone, or claims another release now. It returns the Applications that wait for it.
func (c *releaseClaims) freed(h *helmv2.HelmRelease) []types.NamespacedName {
	c.mu.Lock()
	defer c.mu.Unlock()
	claim := claimOf(h)
	if c.reserved[claim] == h.Namespace+"/"+h.Name {
		delete(c.reserved, claim)
	}
	waiting := make([]types.NamespacedName, 0, len(c.waiting[claim]))
	for key := range c.waiting[claim] {
		waiting = append(waiting, key)
	}
	delete(c.waiting, claim)
	slices.SortFunc(waiting, func(a, b types.NamespacedName) int { return slices.Compare([]string{a.String()}, []string{b.String()}) })
	return waiting
}

// claimOf returns the claim of a HelmRelease that is there, whoever made it.
func claimOf(o client.Object) string {
	h, ok := o.(*helmv2.HelmRelease)
	if !ok {
		return ""
	}
	return claimIn(h.Namespace, application.Claim(h.Spec.KubeConfig, h.GetStorageNamespace(), h.GetReleaseName()))
}

// claimIn makes a claim good for all namespaces. How a member is reached is told by names in one namespace; the hub is
// the same for all.
func claimIn(namespace, claim string) string {
	if claim == "" || strings.HasPrefix(claim, "hub/") {
		return claim
	}
	return namespace + "/" + claim
}
