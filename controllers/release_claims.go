package controllers

import (
	"context"
	"fmt"
	"strings"
	"sync"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// releaseClaims sees to it that one Helm release on one member has one HelmRelease: the first that there is. What the
// cache cannot show yet, a HelmRelease that is just being created, is reserved here. (Two shards, which are two processes,
// see each other's claims only through the cache.)
type releaseClaims struct {
	mu       sync.Mutex
	reserved map[string]string                        // claim to the namespace/name of a HelmRelease
	waiting  map[string]map[types.NamespacedName]bool // claim, or nameKey, to the Applications that want it
}

func newReleaseClaims() *releaseClaims {
	return &releaseClaims{reserved: map[string]string{}, waiting: map[string]map[types.NamespacedName]bool{}}
}

// takeClaim takes the claim of a child. If another HelmRelease has it, it says which, and returns it if it is this
// Application's own.
func (r *ApplicationReconciler) takeClaim(ctx context.Context, app *appsv1.Application, child object.Ref, claim string) (other string, own client.Object) {
	// The cache is read under the lock: a claim is either reserved or in the cache.
	r.claims.mu.Lock()
	defer r.claims.mu.Unlock()
	var holders helmv2.HelmReleaseList
	// The cache's List fails only for a missing index, which the first test would show.
	if err := r.List(ctx, &holders, client.MatchingFields{claimIndex: bucket(claim)}, client.UnsafeDisableDeepCopy); err != nil {
		return err.Error(), nil
	}
	name := app.Namespace + "/" + child.Name
	for i := range holders.Items {
		if h := &holders.Items[i]; h.Namespace+"/"+h.Name != name && claimOf(h) == claim {
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
	r.claims.waitLocked(claim, app)
	return other, own
}

// wait notes that an Application waits for a claim, or a name, to be free.
func (c *releaseClaims) wait(key string, app *appsv1.Application) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waitLocked(key, app)
}

func (c *releaseClaims) waitLocked(key string, app *appsv1.Application) {
	if c.waiting[key] == nil {
		c.waiting[key] = map[types.NamespacedName]bool{}
	}
	c.waiting[key][client.ObjectKeyFromObject(app)] = true
}

// nameKey is what an Application waits for whose object has the name of somebody else's.
func nameKey(namespace string, ref object.Ref) string {
	return "name/" + namespace + "/" + ref.String()
}

// release gives a claim back that came to nothing.
func (c *releaseClaims) release(namespace, claim, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseLocked(claim, namespace+"/"+name)
}

func (c *releaseClaims) releaseLocked(claim, holder string) {
	if c.reserved[claim] != holder {
		return
	}
	delete(c.reserved, claim)
	if len(c.reserved) == 0 {
		c.reserved = map[string]string{} // a map keeps the size that it once had
	}
}

// freed is for an object whose name is free now, and what it claims, if it claims something. It returns the Applications
// that wait for either.
func (c *releaseClaims) freed(o client.Object, name bool) (waiting []types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var keys []string
	if claim := claimOf(o); claim != "" {
		c.releaseLocked(claim, o.GetNamespace()+"/"+o.GetName())
		keys = append(keys, claim)
	}
	if name {
		keys = append(keys, nameKey(o.GetNamespace(), kindOf(o)))
	}
	for _, key := range keys {
		for app := range c.waiting[key] {
			waiting = append(waiting, app)
		}
		delete(c.waiting, key)
	}
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
