package contents

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/kustomize"
	securefs "github.com/fluxcd/pkg/kustomize/filesys"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/fleetwright/fleetwright/cmd/fleetwright/manifest"
	"github.com/fleetwright/fleetwright/renderers/application"
)

// build is what kustomize makes, before variables are substituted.
type build struct {
	resources resmap.ResMap
	err       error
}

// kustomize makes what a Kustomization applies.
func (c *Contents) kustomize(x *application.Rendered, spec *kustomizev1.KustomizationSpec) ([]*unstructured.Unstructured, error) {
	folder, err := c.folder(x, spec)
	if err != nil {
		return nil, err
	}
	shared := *spec // what the build depends on
	shared.KubeConfig, shared.DependsOn, shared.PostBuild, shared.CommonMetadata = nil, nil, nil, nil
	id := sum(folder, shared)
	b, ok := c.builds[id]
	if !ok {
		b.resources, b.err = c.run(folder, &shared, nil)
		c.builds[id] = b
	}
	if b.err != nil {
		return nil, b.err
	}
	refs := substitutes(spec)
	c.missing(x, refs)
	object, err := c.substituting(x, spec)
	if err != nil {
		return nil, err
	}
	var out []*unstructured.Unstructured
	for _, resource := range b.resources.Resources() {
		if spec.PostBuild != nil {
			resource = resource.DeepCopy()
			substituted, err := kustomize.SubstituteVariables(context.Background(), c.values, object, resource)
			if err != nil {
				return nil, fmt.Errorf("%s %s: postBuild: %w", resource.GetKind(), resource.GetName(), err)
			}
			if substituted != nil {
				resource = substituted
			}
		}
		m, err := resource.Map()
		if err != nil {
			return nil, err
		}
		o, err := normal(m)
		if err != nil {
			return nil, err
		}
		if meta := spec.CommonMetadata; meta != nil {
			o.SetLabels(added(o.GetLabels(), meta.Labels))
			o.SetAnnotations(added(o.GetAnnotations(), meta.Annotations))
		}
		out = append(out, o)
	}
	return out, nil
}

// normal returns an object with the types of JSON, whoever has read it.
func normal(m map[string]any) (*unstructured.Unstructured, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	o := &unstructured.Unstructured{}
	return o, json.Unmarshal(b, &o.Object)
}

func added(to, from map[string]string) map[string]string {
	for k, v := range from {
		if to == nil {
			to = map[string]string{}
		}
		to[k] = v
	}
	return to
}

// substituting returns a Kustomization whose variables are those that are at hand. Flux refuses one that is not defined.
func (c *Contents) substituting(x *application.Rendered, spec *kustomizev1.KustomizationSpec) (unstructured.Unstructured, error) {
	own := *spec
	if own.PostBuild != nil {
		own.PostBuild = own.PostBuild.DeepCopy()
		own.PostBuild.SubstituteFrom = slices.DeleteFunc(own.PostBuild.SubstituteFrom, func(r kustomizev1.SubstituteReference) bool {
			return c.values.objects[key{x.Metadata.Namespace, "ConfigMap", r.Name}] == nil || r.Kind != "ConfigMap"
		})
	}
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&kustomizev1.Kustomization{Spec: own})
	o := unstructured.Unstructured{Object: m}
	o.SetNamespace(x.Metadata.Namespace)
	return o, err
}

func substitutes(spec *kustomizev1.KustomizationSpec) (out []reference) {
	if spec.PostBuild != nil {
		for _, r := range spec.PostBuild.SubstituteFrom {
			out = append(out, reference{r.Kind, r.Name, r.Optional})
		}
	}
	return out
}

// readBy identifies what kustomize reads for a Kustomization: the files and folders, and what is not there.
func (c *Contents) readBy(folder string, spec *kustomizev1.KustomizationSpec) string {
	reading := &kustomizev1.KustomizationSpec{Path: spec.Path, Components: spec.Components, IgnoreMissingComponents: spec.IgnoreMissingComponents}
	id := sum(folder, reading)
	if read, ok := c.reads[id]; ok {
		return read
	}
	recorded := &recording{root: folder, seen: map[string]string{}}
	_, err := c.run(folder, reading, recorded)
	text := ""
	if err != nil {
		text = strings.ReplaceAll(err.Error(), folder, "")
	}
	c.reads[id] = sum(recorded.seen, text)
	return c.reads[id]
}

// kustomizing is held while kustomize runs, which keeps state in variables of its packages.
var kustomizing sync.Mutex

// run builds the folder of a Kustomization as Flux does, and nothing from elsewhere.
func (c *Contents) run(root string, spec *kustomizev1.KustomizationSpec, recorded *recording) (resmap.ResMap, error) {
	kustomizing.Lock()
	defer kustomizing.Unlock()
	defer manifest.Offline()()
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&kustomizev1.Kustomization{Spec: *spec})
	if err != nil {
		return nil, err
	}
	disk, err := securefs.MakeFsOnDiskSecure(root)
	if err != nil {
		return nil, err
	}
	if recorded != nil {
		recorded.FileSystem = disk
		disk = recorded
	}
	folder := filepath.Join(root, filepath.FromSlash(spec.Path))
	if !disk.IsDir(folder) {
		return nil, fmt.Errorf("path %s: there is no such folder", spec.Path)
	}
	file, name, _, err := kustomize.NewGeneratorWithIgnore(root, "", unstructured.Unstructured{Object: m}).GenerateManifest(folder)
	if err != nil {
		return nil, fmt.Errorf("path %s: %w", spec.Path, err)
	}
	fs := securefs.MakeFsInMemory(disk)
	if err := fs.WriteFile(name, file); err != nil {
		return nil, err
	}
	resources, err := krusty.MakeKustomizer(&krusty.Options{LoadRestrictions: types.LoadRestrictionsNone, PluginConfig: types.DisabledPluginConfig()}).Run(fs, folder)
	if err != nil {
		text := inErrors.ReplaceAllString(strings.Join(strings.Fields(err.Error()), " "), "(a patch)")
		return nil, fmt.Errorf("path %s: kustomize build: %s", spec.Path, text)
	}
	if recorded != nil {
		recorded.note("generated", sum(string(file)))
	}
	return resources, nil
}

// inErrors is what kustomize quotes of a patch, which may have the values of a Secret.
var inErrors = regexp.MustCompile("\\[patch: \".*\"\\]|config: `.*`")

// recording is a file system that notes what was asked of it.
type recording struct {
	filesys.FileSystem
	root string
	seen map[string]string
}

func (r *recording) note(path, what string) {
	if relative, err := filepath.Rel(r.root, path); err == nil {
		path = relative
	}
	r.seen[path] = what
}

// ReadFile reads a file.
func (r *recording) ReadFile(path string) ([]byte, error) {
	b, err := r.FileSystem.ReadFile(path)
	if err != nil {
		r.note(path, "not there")
	} else {
		r.note(path, sum(string(b)))
	}
	return b, err
}
