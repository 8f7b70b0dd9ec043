// Package contents makes what Kustomizations and HelmReleases put on members, as Flux would, out of what is at hand: without a
// cluster, and without a network.
package contents

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/baseline"
	"github.com/fleetwright/fleetwright/renderers/object"
	"github.com/fleetwright/fleetwright/renderers/repository"
)

// Options say what is at hand.
type Options struct {
	Rendered *repository.Rendered
	// Declared are the objects that people have written: sources that Applications refer to, ConfigMaps and Secrets that values
	// are from. Others are passed over.
	Declared []*unstructured.Unstructured
	// Root is the folder of the state of the repository; it may be empty.
	Root string
	// Self says whether a GitRepository, by its URL, is the repository itself.
	Self func(url string) bool
	// Folders are the checkouts of sources, by name, namespace/name or URL.
	Folders map[string]string
	// Charts are folders with charts: NAME-VERSION.tgz, unpacked, or an OCI image layout.
	Charts []string
	// Cache is a folder of charts that were pulled; it may be empty. With Pull, those that are not at hand are fetched into it;
	// without, nothing is fetched from anywhere.
	Cache string
	Pull  bool
	// KubeVersion returns the Kubernetes version of a member; empty if it is not known. It may be nil.
	KubeVersion func(child *application.Rendered) string
	// Origins has objects say in an annotation where they are written, which Origin reads.
	Origins bool
}

// making is held while anything is made: kustomize keeps state in variables of its packages.
var making sync.Mutex

// Contents is what ends up on members of one state. It may be asked by several at once, who wait for each other.
type Contents struct {
	Options
	temporary string         // for published files, which are in no folder
	revisions map[key]string // of published files
	sources   map[key]map[string]any
	values    *values
	reads     map[string]string // IDs of what is read for a path
	builds    map[string]build
	made      map[string]made
	charts    map[string]*loadedChart
	indexes   map[string]*index // of Helm repositories
	notes     map[string]int
	taken     map[string]bool
}

type key struct{ namespace, kind, name string }

// New takes what is at hand. The caller calls Close.
func New(o Options) (*Contents, error) {
	temporary, err := os.MkdirTemp("", "fleetwright-contents-")
	if err != nil {
		return nil, err
	}
	if o.Root != "" {
		if o.Root, err = absolute(o.Root); err != nil {
			return nil, err
		}
	}
	c := &Contents{Options: o, temporary: temporary, revisions: map[key]string{}, sources: map[key]map[string]any{},
		values: &values{objects: map[key]*unstructured.Unstructured{}}, reads: map[string]string{}, builds: map[string]build{}, made: map[string]made{},
		charts: map[string]*loadedChart{}, indexes: map[string]*index{}, notes: map[string]int{}, taken: map[string]bool{}}
	for _, d := range o.Declared {
		at := key{cmp.Or(d.GetNamespace(), "default"), d.GetKind(), d.GetName()}
		switch d.GroupVersionKind().Group {
		case sourcev1.GroupVersion.Group:
			c.sources[at], _, _ = unstructured.NestedMap(d.Object, "spec")
		case "":
			c.values.objects[at] = d
		}
	}
	for i := range o.Rendered.Objects {
		if x := &o.Rendered.Objects[i]; strings.HasPrefix(x.APIVersion, sourcev1.GroupVersion.Group+"/") {
			b, err := json.Marshal(x.Spec)
			if err != nil {
				return nil, err
			}
			var spec map[string]any
			if err := json.Unmarshal(b, &spec); err != nil {
				return nil, err
			}
			c.sources[key{x.Metadata.Namespace, x.Kind, x.Metadata.Name}] = spec
		}
	}
	return c, nil
}

// Close removes what was written for a while.
func (c *Contents) Close() error { return os.RemoveAll(c.temporary) }

// Notes say what was left out of what was made, and for how many children.
func (c *Contents) Notes() map[string]int {
	making.Lock()
	defer making.Unlock()
	return maps.Clone(c.notes)
}

// Taken says which versions were taken of charts of which a range was wanted.
func (c *Contents) Taken() []string {
	making.Lock()
	defer making.Unlock()
	return slices.Sorted(maps.Keys(c.taken))
}

// made is what a child puts on its member.
type made struct {
	objects []*unstructured.Unstructured
	err     error
}

// ID identifies what a child is made of, beside its spec; empty if that is not at hand.
func (c *Contents) ID(x *application.Rendered) string {
	making.Lock()
	defer making.Unlock()
	switch spec := x.Spec.(type) {
	case *kustomizev1.KustomizationSpec:
		read := c.revision(x)
		if read == "" {
			folder, err := c.folder(x, spec)
			if err != nil {
				return ""
			}
			read = c.readBy(folder, spec)
		}
		return sum(read, c.values.referred(x.Metadata.Namespace, substitutes(spec)))
	case *helmv2.HelmReleaseSpec:
		loaded, err := c.chart(x, spec)
		if err != nil {
			return ""
		}
		return sum(loaded.id, c.kubeVersion(x), c.values.referred(x.Metadata.Namespace, valuesFrom(spec)))
	}
	return ""
}

// Objects returns what a child puts on its member; they are only read. Children that are declared the same have the same.
func (c *Contents) Objects(x *application.Rendered) ([]*unstructured.Unstructured, error) {
	making.Lock()
	defer making.Unlock()
	return c.objects(x)
}

func (c *Contents) objects(x *application.Rendered) ([]*unstructured.Unstructured, error) {
	id := c.madeOf(x)
	out, ok := c.made[id]
	if !ok {
		out = c.make(x)
		c.made[id] = out
	}
	return out.objects, out.err
}

// madeOf identifies a child without what is its member's alone.
func (c *Contents) madeOf(x *application.Rendered) string {
	var own any
	switch spec := x.Spec.(type) {
	case *kustomizev1.KustomizationSpec:
		common := *spec
		common.KubeConfig, common.DependsOn = nil, nil
		own = common
	case *helmv2.HelmReleaseSpec:
		common := *spec
		common.KubeConfig, common.DependsOn = nil, nil
		own = common
	}
	return sum(x.Metadata.Namespace, releaseName(x), own, c.kubeVersion(x), c.revision(x))
}

// revision returns that of the published files that a Kustomization applies; empty if it applies something else.
func (c *Contents) revision(x *application.Rendered) string {
	spec, ok := x.Spec.(*kustomizev1.KustomizationSpec)
	if !ok {
		return ""
	}
	at := key{x.Metadata.Namespace, x.Application, spec.SourceRef.Kind + "/" + spec.SourceRef.Name}
	out, ok := c.revisions[at]
	if !ok {
		if files := c.Rendered.Files(*x); files != nil {
			out = baseline.Revision(files)
		}
		c.revisions[at] = out
	}
	return out
}

// Outline is what is known of a child at little cost.
type Outline struct {
	// Objects are what it puts on its member; of a Kustomization before variables are substituted, of a HelmRelease if they were
	// made already. Nil if they are not known.
	Objects []*unstructured.Unstructured
	// Chart is the name of the chart of a HelmRelease, and Kubernetes the range of versions that it says it supports.
	Chart, Kubernetes string
}

// Outline returns what is known of a child without rendering a chart for each member, or substituting variables.
func (c *Contents) Outline(x *application.Rendered) (out Outline) {
	making.Lock()
	defer making.Unlock()
	switch spec := x.Spec.(type) {
	case *kustomizev1.KustomizationSpec:
		own := *spec
		own.KubeConfig, own.DependsOn, own.PostBuild, own.CommonMetadata = nil, nil, nil, nil
		bare := application.Rendered{Object: &object.Object{Kind: x.Kind, Metadata: x.Metadata, Spec: &own}, Application: x.Application, Policy: x.Policy}
		out.Objects, _ = c.objects(&bare) // what cannot be built is said where it is compared
	case *helmv2.HelmReleaseSpec:
		out.Objects = c.made[c.madeOf(x)].objects
		if found, err := c.chart(x, spec); err == nil {
			out.Chart, out.Kubernetes = found.name, found.kubernetes
		}
	}
	return out
}

func (c *Contents) make(x *application.Rendered) (out made) {
	switch spec := x.Spec.(type) {
	case *kustomizev1.KustomizationSpec:
		out.objects, out.err = c.kustomize(x, spec)
	case *helmv2.HelmReleaseSpec:
		out.objects, out.err = c.helm(x, spec)
	default:
		out.err = fmt.Errorf("%s: what it puts on a member is not known", x.Kind)
	}
	if out.err != nil {
		out.err = errors.New(strings.ReplaceAll(strings.ReplaceAll(out.err.Error(), c.Root+string(filepath.Separator), ""), c.temporary+string(filepath.Separator), ""))
		return out
	}
	slices.SortStableFunc(out.objects, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(cmp.Compare(a.GetKind(), b.GetKind()), cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return out
}

func (c *Contents) kubeVersion(x *application.Rendered) string {
	if c.KubeVersion == nil {
		return ""
	}
	return c.KubeVersion(x)
}

// folder returns the folder of the source of a Kustomization.
func (c *Contents) folder(x *application.Rendered, spec *kustomizev1.KustomizationSpec) (string, error) {
	if revision := c.revision(x); revision != "" {
		folder, files := filepath.Join(c.temporary, sum(revision)), c.Rendered.Files(*x)
		if _, err := os.Stat(folder); err == nil {
			return folder, nil
		}
		for _, name := range slices.Sorted(maps.Keys(files)) {
			file := filepath.Join(folder, filepath.FromSlash(name))
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				return "", err
			}
			if err := os.WriteFile(file, files[name], 0o600); err != nil {
				return "", err
			}
		}
		return folder, nil
	}
	return c.sourceFolder(key{cmp.Or(spec.SourceRef.Namespace, x.Metadata.Namespace), spec.SourceRef.Kind, spec.SourceRef.Name})
}

// sourceFolder returns the folder that has what a source fetches.
func (c *Contents) sourceFolder(at key) (string, error) {
	source := c.sources[at]
	url, _, _ := unstructured.NestedString(source, "url")
	for _, name := range []string{at.namespace + "/" + at.name, at.name, url} {
		if folder := c.Folders[name]; folder != "" && name != "" {
			return absolute(folder)
		}
	}
	if at.kind == sourcev1.GitRepositoryKind && url != "" && c.Root != "" && c.Self != nil && c.Self(url) {
		for _, field := range []string{"tag", "semver", "commit", "name"} {
			if ref, _, _ := unstructured.NestedString(source, "ref", field); ref != "" {
				return "", fmt.Errorf("%s %s/%s is at %s %s: give a checkout of it with --source %s=PATH", at.kind, at.namespace, at.name, field, ref, at.name)
			}
		}
		return c.Root, nil
	}
	if source == nil {
		return "", fmt.Errorf("there is no %s %s/%s in the repository: give what it fetches with --source %s=PATH", at.kind, at.namespace, at.name, at.name)
	}
	return "", fmt.Errorf("%s %s/%s (%s) is not at hand: give a checkout of it with --source %s=PATH", at.kind, at.namespace, at.name, url, at.name)
}

// absolute returns the name of a folder as kustomize wants it.
func absolute(folder string) (string, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(folder)
}

// values are the ConfigMaps and Secrets of the repository, as a client that reads them. What a Secret has is not read: it must not
// get into what is shown.
type values struct {
	client.Client
	objects map[key]*unstructured.Unstructured
}

// Get reads a ConfigMap.
func (v *values) Get(_ context.Context, at client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	cm, ok := into.(*corev1.ConfigMap)
	o := v.objects[key{at.Namespace, "ConfigMap", at.Name}]
	if !ok || o == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, at.Name)
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, cm)
}

// reference names a ConfigMap or a Secret that values are from.
type reference struct {
	kind, name string
	optional   bool
}

// referred identifies the ConfigMaps that are referred to.
func (v *values) referred(namespace string, refs []reference) string {
	var found []any
	for _, r := range refs {
		if o := v.objects[key{namespace, r.kind, r.name}]; o != nil && r.kind == "ConfigMap" {
			found = append(found, r.name, o.Object["data"])
		}
	}
	return sum(found...)
}

// missing says of what values are from, and which is not read.
func (c *Contents) missing(x *application.Rendered, refs []reference) {
	for _, r := range refs {
		there := c.values.objects[key{x.Metadata.Namespace, r.kind, r.name}] != nil
		switch {
		case r.kind == "Secret":
			c.notes[fmt.Sprintf("%s of Application %s is compared without the values of Secret %s: what is in Secrets is not read", x.Kind, x.Application, r.name)]++
		case !there && !r.optional:
			c.notes[fmt.Sprintf("%s of Application %s is compared without the values of %s %s: it is not in the repository", x.Kind, x.Application, r.kind, r.name)]++
		}
	}
}

// sum is a digest of values.
func sum(values ...any) string {
	b, err := json.Marshal(values)
	if err != nil {
		return err.Error()
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:16])
}
