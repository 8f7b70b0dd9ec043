// Package object is what every renderer returns: a Flux object as it is declared, its name and its digest.
package object

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

// FieldManager is who applies objects.
const FieldManager = "fleetwright"

// Object is a Flux object as it is declared: what server-side apply is to own, and nothing else. It has no status, and
// no owner reference, which only the one who applies it knows.
type Object struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	// Spec points to or is a spec type of the Flux API, kustomizev1.KustomizationSpec say. Objects share parts of it: it is
	// only read.
	Spec any `json:"spec"`
}

// Metadata is the declared part of an object's metadata.
type Metadata struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	OwnerReferences []any             `json:"ownerReferences,omitempty"`
}

// Ref is the kind and name of an object in a namespace that goes without saying.
type Ref struct{ Kind, Name string }

// Ref returns the object's kind and name.
func (o *Object) Ref() Ref { return Ref{o.Kind, o.Metadata.Name} }

// String returns Kind/name.
func (r Ref) String() string { return r.Kind + "/" + r.Name }

// Digest returns the digest that Seal wrote.
func (o *Object) Digest() string { return o.Metadata.Annotations[fleetv1.DigestAnnotation] }

// Seal writes the digest of everything else in the object into its annotations. Two objects have the same digest just
// when they are declared the same.
func (o *Object) Seal() error {
	delete(o.Metadata.Annotations, fleetv1.DigestAnnotation)
	b, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("%s: %w", o.Ref(), err)
	}
	sum := sha256.Sum256(b)
	if o.Metadata.Annotations == nil {
		o.Metadata.Annotations = map[string]string{}
	}
	o.Metadata.Annotations[fleetv1.DigestAnnotation] = hex.EncodeToString(sum[:16])
	return nil
}

// New returns an object that is made for another one, which is to own it.
func New(gvk schema.GroupVersionKind, namespace, name string, spec any) (*Object, error) {
	o := &Object{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Spec: spec, Metadata: Metadata{Name: name, Namespace: namespace,
		Labels: map[string]string{fleetv1.ManagedByLabel: fleetv1.ManagedByValue}}}
	return o, o.Seal()
}

// Digests are what identifies objects: the digest, or of what is published the revision, of each.
type Digests map[Ref]string

// Add adds objects by the digests that Seal wrote.
func (d Digests) Add(objects ...*Object) {
	for _, o := range objects {
		d[o.Ref()] = o.Digest()
	}
}

// Sum returns one digest of all, whatever the order they came in; empty if there is nothing.
func (d Digests) Sum() string {
	if len(d) == 0 {
		return ""
	}
	lines := make([]string, 0, len(d))
	for ref, digest := range d {
		lines = append(lines, ref.Kind+"/"+ref.Name+" "+digest+"\n")
	}
	slices.Sort(lines)
	h := sha256.New()
	for _, line := range lines {
		h.Write([]byte(line))
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// Name joins parts with dashes. A name longer than max bytes ends in a hash of all of it instead of in a cut, so that
// two long names stay two. If the parts are DNS subdomains, so is the name.
func Name(max int, parts ...string) string {
	name := parts[0]
	for _, p := range parts[1:] {
		name += "-" + p
	}
	if len(name) <= max {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	hash := hex.EncodeToString(sum[:5])
	return strings.TrimRight(name[:max-len(hash)-1], "-.") + "-" + hash
}
