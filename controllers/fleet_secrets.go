package controllers

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/plugin"
)

// watchLabel has Flux look at what refers to a Secret when the Secret changes.
// https://fluxcd.io/flux/components/helm/helmreleases/#values-references
const watchLabel = "reconcile.fluxcd.io/watch"

const defaultGeneratedLength = 48

// keptVersions remembers which version of a plugin's Secret was last seen to hold what is known. The cache has Secrets
// without what is in them.
type keptVersions struct {
	mu sync.Mutex
	m  map[types.NamespacedName]keptSecret
}

type keptSecret struct {
	resourceVersion string
	secrets         map[string]string
}

// keep writes the Secret of a plugin on the hub: what is generated, once, and the secret facts that were read. It returns
// the keys that the Secret has. A fact that is not known stays what it was.
func (r *FleetReconciler) keep(ctx context.Context, fleet *fleetv1.Fleet, p *plugin.Plugin, reads []plugin.Read, secrets map[string]string) (map[string]bool, error) {
	wanted := map[string]bool{}
	for _, g := range p.Spec.Generated {
		wanted[g.Name] = true
	}
	for i := range reads {
		if reads[i].Secret {
			wanted[reads[i].Key()] = true
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	key := types.NamespacedName{Namespace: fleet.Namespace, Name: plugin.Name(fleet.Name, p.Metadata.Name)}
	cached := &corev1.Secret{}
	err := r.Get(ctx, key, cached, client.UnsafeDisableDeepCopyOption(true))
	if client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	r.kept.mu.Lock()
	defer r.kept.mu.Unlock()
	if was, ok := r.kept.m[key]; ok && err == nil && was.resourceVersion == cached.ResourceVersion && maps.Equal(was.secrets, secrets) {
		return keysOf(cached.Data), nil
	}

	live := &corev1.Secret{}
	err = r.APIReader.Get(ctx, key, live)
	if client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	there := err == nil
	if there && !r.delivery(fleet).owns(live) {
		return nil, fmt.Errorf("Secret %s %w: rename the Fleet, or delete it", key.Name, errNotOurs)
	}
	data := map[string][]byte{}
	maps.Copy(data, live.Data)
	maps.DeleteFunc(data, func(key string, _ []byte) bool { return !wanted[key] }) // of a member that was read before
	for _, g := range p.Spec.Generated {
		if len(data[g.Name]) == 0 {
			text, err := random(g.Length)
			if err != nil {
				return nil, err
			}
			data[g.Name] = []byte(text)
		}
	}
	for name, value := range secrets {
		data[name] = []byte(value)
	}
	if len(data) == 0 {
		return nil, nil
	}
	if !there || !maps.EqualFunc(data, live.Data, func(a, b []byte) bool { return string(a) == string(b) }) {
		body, err := json.Marshal(map[string]any{
			"apiVersion": "v1", "kind": "Secret", "type": corev1.SecretTypeOpaque,
			"metadata": map[string]any{
				"name": key.Name, "namespace": key.Namespace,
				"labels":          map[string]string{fleetv1.ManagedByLabel: fleetv1.ManagedByValue, watchLabel: "Enabled"},
				"ownerReferences": []any{metav1.NewControllerRef(fleet, fleetKind)},
			},
			"data": data,
		})
		if err != nil {
			return nil, err
		}
		opts := []client.PatchOption{client.FieldOwner(FieldOwner)}
		if there {
			opts = append(opts, client.ForceOwnership)
		}
		live = &corev1.Secret{}
		live.Name, live.Namespace = key.Name, key.Namespace
		if err := r.Patch(ctx, live, client.RawPatch(types.ApplyPatchType, body), opts...); err != nil {
			if apierrors.IsConflict(err) && !there {
				return nil, fmt.Errorf("Secret %s %w: rename the Fleet, or delete it", key.Name, errNotOurs)
			}
			return nil, fmt.Errorf("writing Secret %s: %s", key.Name, apierrors.ReasonForError(err)) // the error may hold what was sent
		}
	}
	if r.kept.m == nil {
		r.kept.m = map[types.NamespacedName]keptSecret{}
	}
	r.kept.m[key] = keptSecret{live.ResourceVersion, maps.Clone(secrets)}
	return keysOf(data), nil
}

// keptSecrets returns the Secrets of the plugins of a fleet, from the cache.
func (r *FleetReconciler) keptSecrets(ctx context.Context, fleet *fleetv1.Fleet) ([]*corev1.Secret, error) {
	var list corev1.SecretList
	err := r.List(ctx, &list, client.InNamespace(fleet.Namespace), client.MatchingLabels{fleetv1.ManagedByLabel: fleetv1.ManagedByValue}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, err
	}
	var out []*corev1.Secret
	for i := range list.Items {
		if s := &list.Items[i]; r.delivery(fleet).owns(s) && strings.HasPrefix(s.Name, "plugin-") {
			out = append(out, s)
		}
	}
	return out, nil
}

func keysOf(data map[string][]byte) map[string]bool {
	out := map[string]bool{}
	for key := range data {
		out[key] = true
	}
	return out
}

// random returns letters and digits.
func random(length int) (string, error) {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	if length <= 0 {
		length = defaultGeneratedLength
	}
	out := make([]byte, length)
	for i := range out {
		n, err := rand.Int(rand.Reader, big.NewInt(int64(len(alphabet))))
		if err != nil {
			return "", err
		}
		out[i] = alphabet[n.Int64()]
	}
	return string(out), nil
}
