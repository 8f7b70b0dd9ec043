package contents

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/kustomize"
	securefs "github.com/fluxcd/pkg/kustomize/filesys"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/kustomize/kyaml/openapi"

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
	if c.Origins {
		shared.BuildMetadata = []kustomizev1.BuildMetadataOption{kustomizev1.BuildMetadataOriginAnnotations}
	}
	id := sum(folder, shared)
	b, ok := c.builds[id]
	if !ok {
		b.resources, b.err = c.run(folder, &shared, nil)
		c.builds[id] = b
	}
	if b.err != nil {
		return nil, b.err
	}
	variables, complete, err := c.variables(x, spec)
	if err != nil {
		return nil, err
	}
	var out []*unstructured.Unstructured
	for _, resource := range b.resources.Resources() {
		if spec.PostBuild != nil {
			resource = resource.DeepCopy()
			if err := substitute(resource, spec, variables, complete); err != nil {
				return nil, fmt.Errorf("%s %s: postBuild: %w", resource.GetKind(), resource.GetName(), err)
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

// variables returns those of a Kustomization, and whether they are all that Flux has.
func (c *Contents) variables(x *application.Rendered, spec *kustomizev1.KustomizationSpec) (out map[string]string, complete bool, err error) {
	if spec.PostBuild == nil {
		return nil, true, nil
	}
	refs := substitutes(spec)
	c.missing(x, refs)
	known := &kustomizev1.PostBuild{}
	for i, r := range refs {
		if r.kind == "ConfigMap" && c.values.objects[key{x.Metadata.Namespace, r.kind, r.name}] != nil {
			known.SubstituteFrom = append(known.SubstituteFrom, spec.PostBuild.SubstituteFrom[i])
		}
	}
	complete = !slices.ContainsFunc(refs, func(r reference) bool {
		return r.kind == "Secret" || !r.optional && c.values.objects[key{x.Metadata.Namespace, r.kind, r.name}] == nil
	})
	o, err := kustomization(kustomizev1.KustomizationSpec{PostBuild: known})
	if err != nil {
		return nil, false, err
	}
	o.SetNamespace(x.Metadata.Namespace)
	if out, err = kustomize.LoadVariables(context.Background(), c.values, o); err != nil {
		return nil, false, err
	}
	maps.Copy(out, spec.PostBuild.Substitute)
	return out, complete, nil
}

func kustomization(spec kustomizev1.KustomizationSpec) (unstructured.Unstructured, error) {
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&kustomizev1.Kustomization{Spec: spec})
	return unstructured.Unstructured{Object: m}, err
}

// variable finds the variables of a text.
var variable = regexp.MustCompile(`\$\{([_[:alpha:]][_[:alpha:][:digit:]]*)`)

// substitute puts the values of variables into a resource. One that has none is refused, as Flux does, unless its value may be where
// we do not look: then it stays.
func substitute(resource *resource.Resource, spec *kustomizev1.KustomizationSpec, variables map[string]string, complete bool) error {
	if !complete {
		text, err := resource.AsYAML()
		if err != nil {
			return err
		}
		variables = maps.Clone(variables)
		for _, found := range variable.FindAllStringSubmatch(string(text), -1) {
			if _, ok := variables[found[1]]; !ok {
				variables[found[1]] = found[0] + "}"
			}
		}
	}
	o, err := kustomization(kustomizev1.KustomizationSpec{PostBuild: &kustomizev1.PostBuild{Substitute: variables}})
	if err != nil {
		return err
	}
	_, err = kustomize.SubstituteVariables(context.Background(), nil, o, resource, kustomize.SubstituteWithDryRun(true),
		kustomize.SubstituteWithStrict(true), kustomize.SubstituteWithAlways(spec.PostBuild.SubstituteStrategy == kustomizev1.SubstituteStrategyAlways))
	return err
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
		text = err.Error()
	}
	c.reads[id] = sum(recorded.seen, text)
	return c.reads[id]
}

// run builds the folder of a Kustomization as Flux does, and nothing from elsewhere.
func (c *Contents) run(root string, spec *kustomizev1.KustomizationSpec, recorded *recording) (_ resmap.ResMap, err error) {
	defer func() {
		if err != nil { // the same wherever the folder is
			err = errors.New(strings.ReplaceAll(strings.ReplaceAll(err.Error(), root+string(filepath.Separator), ""), root, "."))
		}
	}()
	o, err := kustomization(*spec)
	if err != nil {
		return nil, err
	}
	disk, err := securefs.MakeFsOnDiskSecure(root)
	if err != nil {
		return nil, err
	}
	if recorded == nil {
		recorded = &recording{root: root, seen: map[string]string{}}
	}
	recorded.FileSystem = disk
	folder, err := securejoin.SecureJoin(root, spec.Path) // as Flux does: what leads out of it is a folder in it
	if err != nil {
		return nil, err
	}
	if !recorded.IsDir(folder) {
		return nil, fmt.Errorf("path %s: there is no such folder", spec.Path)
	}
	file, name, _, err := kustomize.NewGeneratorWithIgnore(root, "", o).GenerateManifest(folder)
	if err != nil {
		return nil, fmt.Errorf("path %s: %w", spec.Path, err)
	}
	fs := securefs.MakeFsInMemory(recorded)
	if err := fs.WriteFile(name, file); err != nil {
		return nil, err
	}
	recorded.ownSchema = hasOwnSchema(file)
	resources, err := runKustomize(fs, folder)
	if recorded.ownSchema { // it stays in a variable of kustomize, and is read anew, which takes a while, only then
		openapi.ResetOpenAPI()
	}
	if err != nil {
		return nil, fmt.Errorf("path %s: kustomize build: %w", spec.Path, err)
	}
	recorded.note("generated", sum(string(file)))
	return resources, nil
}

// runKustomize is Build of Flux's library, but that it does not read the schemas of Kubernetes anew each time.
func runKustomize(fs filesys.FileSystem, folder string) (_ resmap.ResMap, err error) {
	defer manifest.Offline()()
	defer func() {
		if r := recover(); r != nil { // which kustomize does for invalid objects
			err = fmt.Errorf("%v", r)
		}
		if err != nil {
			text := inErrors.ReplaceAllString(strings.Join(strings.Fields(err.Error()), " "), "(a patch)")
			if strings.Contains(text, "no 'git' program") {
				text = manifest.ErrRemote.Error() + ": " + text
			}
			err = errors.New(text)
		}
	}()
	return krusty.MakeKustomizer(&krusty.Options{LoadRestrictions: types.LoadRestrictionsNone, PluginConfig: types.DisabledPluginConfig()}).Run(fs, folder)
}

// hasOwnSchema says whether a kustomization may bring a schema.
func hasOwnSchema(kustomization []byte) bool { return bytes.Contains(kustomization, []byte("openapi")) }

// inErrors is what kustomize quotes of a patch, which may have the values of a Secret.
var inErrors = regexp.MustCompile("\\[patch: \".*\"\\]|config: `.*`")

// recording is a file system that notes what was asked of it.
type recording struct {
	filesys.FileSystem
	root string
	seen map[string]string
	// ownSchema says that a kustomization was read that may bring a schema.
	ownSchema bool
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
		r.ownSchema = r.ownSchema || slices.Contains(konfig.RecognizedKustomizationFileNames(), filepath.Base(path)) && hasOwnSchema(b)
	}
	return b, err
}
