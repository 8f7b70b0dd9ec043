package contents

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/chartutil"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/go-logr/logr"
	"helm.sh/helm/v4/pkg/chart/common"
	commonutil "helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartv2util "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/kustomize/kyaml/openapi"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/fleetwright/fleetwright/cmd/fleetwright/manifest"
	"github.com/fleetwright/fleetwright/renderers/application"
)

// loadedChart is a chart, and what identifies it.
type loadedChart struct {
	path string
	id   string
	// name and kubernetes are those of its metadata.
	name, kubernetes string
	// values are those of valuesFiles, in place of the chart's own.
	values map[string]any
	err    error
}

// load reads a chart anew: Helm changes the one that it renders.
func (l *loadedChart) load() (*chart.Chart, error) {
	loaded, err := loader.Load(l.path)
	if err != nil {
		return nil, err
	}
	for _, d := range loaded.Metadata.Dependencies {
		if !slices.ContainsFunc(loaded.Dependencies(), func(c *chart.Chart) bool { return c.Name() == d.Name }) {
			return nil, fmt.Errorf("chart %s needs chart %s, which is not in its folder charts: run helm dependency build", loaded.Name(), d.Name)
		}
	}
	if l.values != nil {
		loaded.Values = l.values
	}
	return loaded, nil
}

// chart finds the chart of a HelmRelease.
func (c *Contents) chart(x *application.Rendered, spec *helmv2.HelmReleaseSpec) (*loadedChart, error) {
	if spec.ChartRef == nil {
		return nil, errors.New("the HelmRelease has no chartRef")
	}
	at := key{cmp.Or(spec.ChartRef.Namespace, x.Metadata.Namespace), spec.ChartRef.Kind, spec.ChartRef.Name}
	id := sum(at.namespace, at.kind, at.name)
	if found, ok := c.charts[id]; ok {
		return found, found.err
	}
	found := c.find(at)
	if found.err == nil {
		var loaded *chart.Chart
		if loaded, found.err = found.load(); found.err == nil {
			found.id, found.name, found.kubernetes = chartID(loaded, found.values), loaded.Name(), loaded.Metadata.KubeVersion
		}
	}
	if found.err != nil {
		found.err = errors.New(strings.ReplaceAll(found.err.Error(), c.Root+string(filepath.Separator), ""))
	}
	c.charts[id] = found
	return found, found.err
}

func chartID(loaded *chart.Chart, values map[string]any) string {
	files := map[string]string{}
	for _, f := range loaded.Raw {
		files[f.Name] = sum(string(f.Data))
	}
	return sum(files, values)
}

// find finds the chart that a source fetches.
func (c *Contents) find(at key) *loadedChart {
	source := c.sources[at]
	text := func(fields ...string) string {
		v, _, _ := unstructured.NestedString(source, fields...)
		return v
	}
	switch {
	case source == nil:
		return &loadedChart{err: fmt.Errorf("there is no %s %s/%s in the repository", at.kind, at.namespace, at.name)}
	case at.kind == sourcev1.OCIRepositoryKind:
		name, version := path.Base(text("url")), cmp.Or(text("ref", "semver"), text("ref", "tag"))
		if text("ref", "digest") != "" {
			return &loadedChart{err: fmt.Errorf("chart %s is at %s, and only versions are looked for in folders", name, text("ref", "digest"))}
		}
		return c.among(name, version)
	case at.kind != sourcev1.HelmChartKind:
		return &loadedChart{err: fmt.Errorf("%s %s/%s: a chart of that kind of source is not looked for", at.kind, at.namespace, at.name)}
	case text("sourceRef", "kind") == sourcev1.HelmRepositoryKind:
		return c.among(text("chart"), text("version"))
	}
	folder, err := c.sourceFolder(key{at.namespace, text("sourceRef", "kind"), text("sourceRef", "name")})
	if err != nil {
		return &loadedChart{err: err}
	}
	found := &loadedChart{path: filepath.Join(folder, filepath.FromSlash(text("chart")))}
	if found.err = inside(folder, found.path); found.err != nil {
		return found
	}
	files, _, _ := unstructured.NestedStringSlice(source, "valuesFiles")
	for _, file := range files {
		name := filepath.Join(found.path, filepath.FromSlash(file))
		if !strings.HasPrefix(file, "./") && !strings.HasPrefix(file, "../") && filepath.Base(file) != file {
			name = filepath.Join(folder, filepath.FromSlash(file))
		}
		if found.err = inside(folder, name); found.err != nil {
			return found
		}
		b, err := os.ReadFile(name)
		if err != nil {
			found.err = err
			return found
		}
		values, err := common.ReadValues(b)
		if err != nil {
			found.err = err
			return found
		}
		found.values = chartutil.MergeMaps(found.values, values)
	}
	return found
}

// inside refuses what is, or leads by a link, out of a folder.
func inside(folder, name string) error {
	resolved, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	out := func(path string) bool {
		relative, err := filepath.Rel(folder, path)
		return err != nil || !filepath.IsLocal(relative)
	}
	if out(resolved) {
		return fmt.Errorf("%s is not in the source", name)
	}
	return filepath.WalkDir(resolved, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSymlink == 0 {
			return err
		}
		if target, err := filepath.EvalSymlinks(path); err != nil || out(target) {
			return fmt.Errorf("%s is a link out of the source", path)
		}
		return nil
	})
}

// among finds the newest version of a chart in a range among the folders with charts.
func (c *Contents) among(name, version string) *loadedChart {
	constraint, err := semver.NewConstraint(cmp.Or(version, "*"))
	if err != nil {
		return &loadedChart{err: fmt.Errorf("chart %s: version %s: %w", name, version, err)}
	}
	var found *loadedChart
	var newest *semver.Version
	take := func(path, text string) {
		v, err := semver.NewVersion(text)
		if err == nil && (constraint.Check(v) || text == version) && (newest == nil || v.GreaterThan(newest)) {
			found, newest = &loadedChart{path: path}, v
		}
	}
	for _, folder := range c.Charts {
		archives, _ := filepath.Glob(filepath.Join(folder, name+"-*.tgz"))
		for _, archive := range archives {
			take(archive, strings.TrimSuffix(strings.TrimPrefix(filepath.Base(archive), name+"-"), ".tgz"))
		}
		for _, unpacked := range []string{folder, filepath.Join(folder, name)} {
			b, err := os.ReadFile(filepath.Join(unpacked, "Chart.yaml"))
			m := &chart.Metadata{}
			if err == nil && sigsyaml.Unmarshal(b, m) == nil && m.Name == name {
				take(unpacked, m.Version)
			}
		}
	}
	if found == nil {
		return &loadedChart{err: fmt.Errorf("chart %s %s is not at hand: give a folder that has %s-VERSION.tgz with --charts", name, cmp.Or(version, "of any version"), name)}
	}
	return found
}

func valuesFrom(spec *helmv2.HelmReleaseSpec) (out []reference) {
	for _, r := range spec.ValuesFrom {
		out = append(out, reference{r.Kind, r.Name, r.Optional})
	}
	return out
}

// helm makes what a HelmRelease installs.
func (c *Contents) helm(x *application.Rendered, spec *helmv2.HelmReleaseSpec) ([]*unstructured.Unstructured, error) {
	found, err := c.chart(x, spec)
	if err != nil {
		return nil, err
	}
	objects, random, err := c.install(x, spec, found)
	if err == nil && random {
		// What is made anew each time would be a change each time: what two renders do not agree on is not compared.
		again, _, err := c.install(x, spec, found)
		if err != nil || len(again) != len(objects) {
			return nil, errors.Join(err, fmt.Errorf("chart %s makes other objects each time", filepath.Base(found.path)))
		}
		for i := range objects {
			objects[i].Object, _ = agreed(objects[i].Object, again[i].Object).(map[string]any)
		}
	}
	return objects, err
}

const generated = "(made anew each time)"

// agreed replaces what differs.
func agreed(a, b any) any {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok {
			return generated
		}
		out := map[string]any{}
		for k := range a {
			if _, ok := b[k]; ok {
				out[k] = agreed(a[k], b[k])
			}
		}
		return out
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return generated
		}
		out := make([]any, len(a))
		for i := range a {
			out[i] = agreed(a[i], b[i])
		}
		return out
	}
	if a != b {
		return generated
	}
	return a
}

// makesAnew finds the functions of templates that do not return the same each time.
var makesAnew = regexp.MustCompile(`\b(rand(Alpha|AlphaNum|Numeric|Ascii|Bytes|Int)|genCA|genCAWithKey|genSelfSignedCert|genSelfSignedCertWithKey|genSignedCert|genSignedCertWithKey|genPrivateKey|uuidv4|now|ago|date|htpasswd|bcrypt|encryptAES|shuffle)\b`)

// install renders a chart as Helm does when it installs, and says whether the next time it may render to something else.
func (c *Contents) install(x *application.Rendered, spec *helmv2.HelmReleaseSpec, found *loadedChart) (out []*unstructured.Unstructured, random bool, err error) {
	loaded, err := found.load()
	if err != nil {
		return nil, false, err
	}
	refs := valuesFrom(spec)
	c.missing(x, refs)
	own := slices.DeleteFunc(slices.Clone(spec.ValuesFrom), func(r helmv2.ValuesReference) bool {
		return r.Kind != "ConfigMap" || c.values.objects[key{x.Metadata.Namespace, r.Kind, r.Name}] == nil
	})
	values, err := chartutil.ChartValuesFromReferences(context.Background(), logr.Discard(), c.values, x.Metadata.Namespace, (&helmv2.HelmRelease{Spec: *spec}).GetValues(), own...)
	if err != nil {
		return nil, false, err
	}
	if err := chartv2util.ProcessDependencies(loaded, values); err != nil {
		return nil, false, err
	}
	capabilities := common.DefaultCapabilities.Copy()
	if version := c.kubeVersion(x); version != "" {
		v, err := common.ParseKubeVersion(version)
		if err != nil {
			return nil, false, err
		}
		capabilities.KubeVersion = *v
	}
	namespace := cmp.Or(spec.TargetNamespace, x.Metadata.Namespace)
	top, err := commonutil.ToRenderValuesWithSchemaValidation(loaded, values, common.ReleaseOptions{Name: spec.ReleaseName, Namespace: namespace, Revision: 1, IsInstall: true},
		capabilities, spec.Install != nil && spec.Install.DisableSchemaValidation)
	if err != nil {
		return nil, false, err
	}
	files, err := engine.Render(loaded, top)
	if err != nil {
		return nil, false, err
	}
	for _, f := range loaded.Raw {
		random = random || strings.Contains(f.Name, "templates/") && makesAnew.Match(f.Data)
	}
	if spec.Install == nil || spec.Install.CRDs != helmv2.Skip {
		for _, crd := range loaded.CRDObjects() {
			objects, err := decode(crd.Filename, crd.File.Data)
			if err != nil {
				return nil, false, err
			}
			for _, o := range objects { // Helm never deletes them
				o.SetAnnotations(added(o.GetAnnotations(), map[string]string{"helm.sh/resource-policy": "keep"}))
			}
			out = append(out, objects...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasPrefix(path.Base(name), "_") || path.Base(name) == "NOTES.txt" {
			continue
		}
		objects, err := decode(name, []byte(files[name]))
		if err != nil {
			return nil, false, err
		}
		out = append(out, objects...)
	}
	out = slices.DeleteFunc(out, func(o *unstructured.Unstructured) bool { // tests are run when somebody asks for them
		return slices.ContainsFunc(strings.Split(o.GetAnnotations()["helm.sh/hook"], ","), func(h string) bool { return strings.HasPrefix(strings.TrimSpace(h), "test") })
	})
	for _, o := range out {
		namespaced, known := openapi.IsNamespaceScoped(kyaml.TypeMeta{APIVersion: o.GetAPIVersion(), Kind: o.GetKind()})
		if o.GetNamespace() == "" && (namespaced || !known) {
			o.SetNamespace(namespace)
		}
	}
	if out, err = postRendered(out, spec); err != nil {
		return nil, false, err
	}
	if meta := spec.CommonMetadata; meta != nil {
		for _, o := range out {
			o.SetLabels(added(o.GetLabels(), meta.Labels))
			o.SetAnnotations(added(o.GetAnnotations(), meta.Annotations))
		}
	}
	return out, random, nil
}

// decode reads the objects of a file; lists are taken apart.
func decode(name string, data []byte) (out []*unstructured.Unstructured, err error) {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		var m map[string]any
		err := decoder.Decode(&m)
		if err != nil && err.Error() == "EOF" {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if len(m) == 0 {
			continue
		}
		o, err := normal(m)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if o.IsList() {
			err = o.EachListItem(func(item runtime.Object) error {
				out = append(out, item.(*unstructured.Unstructured))
				return nil
			})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			continue
		}
		out = append(out, o)
	}
}

// postRendered does what the post-renderers of a HelmRelease do.
func postRendered(objects []*unstructured.Unstructured, spec *helmv2.HelmReleaseSpec) ([]*unstructured.Unstructured, error) {
	for _, p := range spec.PostRenderers {
		if p.Kustomize == nil || len(objects) == 0 {
			continue
		}
		b, err := json.Marshal(p.Kustomize)
		if err != nil {
			return nil, err
		}
		k := types.Kustomization{}
		if err := json.Unmarshal(b, &k); err != nil {
			return nil, fmt.Errorf("postRenderers: %w", err)
		}
		k.Resources = []string{"all.yaml"}
		file, err := sigsyaml.Marshal(k)
		if err != nil {
			return nil, err
		}
		var all bytes.Buffer
		for _, o := range objects {
			b, err := sigsyaml.Marshal(o.Object)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&all, "---\n%s", b)
		}
		fs := filesys.MakeFsInMemory()
		if err := errors.Join(fs.WriteFile("kustomization.yaml", file), fs.WriteFile("all.yaml", all.Bytes())); err != nil {
			return nil, err
		}
		kustomizing.Lock()
		restore := manifest.Offline()
		resources, err := krusty.MakeKustomizer(&krusty.Options{LoadRestrictions: types.LoadRestrictionsNone, PluginConfig: types.DisabledPluginConfig()}).Run(fs, ".")
		restore()
		kustomizing.Unlock()
		if err != nil {
			return nil, fmt.Errorf("postRenderers: %w", err)
		}
		objects = nil
		for _, r := range resources.Resources() {
			m, err := r.Map()
			if err != nil {
				return nil, err
			}
			o, err := normal(m)
			if err != nil {
				return nil, err
			}
			objects = append(objects, o)
		}
	}
	return objects, nil
}
