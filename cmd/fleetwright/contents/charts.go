package contents

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/fleetwright/fleetwright/renderers/application"
)

// loadedChart is a chart, and what identifies it.
type loadedChart struct {
	path string
	id   string
	// name, version and kubernetes are those of its metadata.
	name, version, kubernetes string
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
			found.id, found.name = chartID(loaded, found.values), loaded.Name()
			found.version, found.kubernetes = loaded.Metadata.Version, loaded.Metadata.KubeVersion
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
	text := func(fields ...string) string { return field(source, fields...) }
	switch {
	case source == nil:
		return &loadedChart{err: fmt.Errorf("there is no %s %s/%s in the repository", at.kind, at.namespace, at.name)}
	case at.kind == sourcev1.OCIRepositoryKind:
		w := wanted{name: path.Base(text("url")), url: text("url"), secret: text("secretRef", "name"), digest: text("ref", "digest")}
		if w.digest == "" {
			w.version = text("ref", "semver")
		}
		if w.digest == "" && w.version == "" {
			w.tag = text("ref", "tag")
		}
		w.insecure, _, _ = unstructured.NestedBool(source, "insecure")
		return c.among(w)
	case at.kind != sourcev1.HelmChartKind:
		return &loadedChart{err: fmt.Errorf("%s %s/%s: a chart of that kind of source is not looked for", at.kind, at.namespace, at.name)}
	}
	files, _, _ := unstructured.NestedStringSlice(source, "valuesFiles")
	optional, _, _ := unstructured.NestedBool(source, "ignoreMissingValuesFiles")
	if text("sourceRef", "kind") == sourcev1.HelmRepositoryKind {
		from := c.sources[key{at.namespace, sourcev1.HelmRepositoryKind, text("sourceRef", "name")}]
		w := wanted{name: text("chart"), url: field(from, "url"), secret: field(from, "secretRef", "name"), version: text("version")}
		w.insecure, _, _ = unstructured.NestedBool(from, "insecure")
		if field(from, "type") == sourcev1.HelmRepositoryTypeOCI {
			w.url = strings.TrimSuffix(w.url, "/") + "/" + w.name
		}
		found := c.among(w)
		if found.err == nil && len(files) > 0 {
			found.err = found.packaged(files, optional)
		}
		return found
	}
	folder, err := c.sourceFolder(key{at.namespace, text("sourceRef", "kind"), text("sourceRef", "name")})
	if err != nil {
		return &loadedChart{err: err}
	}
	found := &loadedChart{path: filepath.Join(folder, filepath.FromSlash(text("chart")))}
	if found.err = inside(folder, found.path); found.err != nil {
		return found
	}
	for _, file := range files {
		name := filepath.Join(found.path, filepath.FromSlash(file))
		if !strings.HasPrefix(file, "./") && !strings.HasPrefix(file, "../") && filepath.Base(file) != file {
			name = filepath.Join(folder, filepath.FromSlash(file))
		}
		if _, err := os.Lstat(name); optional && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if found.err = inside(folder, name); found.err != nil {
			return found
		}
		b, err := os.ReadFile(name)
		if err == nil {
			err = found.merge(b)
		}
		if err != nil {
			found.err = err
			return found
		}
	}
	return found
}

// packaged has the values of files of the chart in place of its own.
func (l *loadedChart) packaged(files []string, optional bool) error {
	loaded, err := loader.Load(l.path)
	if err != nil {
		return err
	}
	for _, file := range files {
		i := slices.IndexFunc(loaded.Raw, func(f *common.File) bool { return f.Name == path.Clean(file) })
		switch {
		case i >= 0:
			if err := l.merge(loaded.Raw[i].Data); err != nil {
				return fmt.Errorf("valuesFiles %s: %w", file, err)
			}
		case !optional:
			return fmt.Errorf("chart %s has no file %s, which valuesFiles names", loaded.Name(), file)
		}
	}
	return nil
}

func (l *loadedChart) merge(file []byte) error {
	values, err := common.ReadValues(file)
	l.values = chartutil.MergeMaps(l.values, values)
	return err
}

func field(source map[string]any, fields ...string) string {
	v, _, _ := unstructured.NestedString(source, fields...)
	return v
}

// inside refuses what is, or leads by a link, out of a folder, links of folders that it leads to by a link included.
func inside(folder, name string) error {
	seen := map[string]bool{}
	out := func(path string) bool {
		relative, err := filepath.Rel(folder, path)
		return err != nil || !filepath.IsLocal(relative)
	}
	var walk func(name string) error
	walk = func(name string) error {
		resolved := name
		var err error
		if !out(name) { // of what is not in it, nothing is looked at
			resolved, err = filepath.EvalSymlinks(name)
		}
		switch {
		case err != nil:
			return err
		case out(resolved):
			return fmt.Errorf("%s is not in the source, or a link out of it", name)
		case seen[resolved]:
			return nil
		}
		seen[resolved] = true
		return filepath.WalkDir(resolved, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.Type()&fs.ModeSymlink == 0 {
				return err
			}
			return walk(path)
		})
	}
	return walk(name)
}

// wanted is a chart that is fetched from a Helm repository or a registry.
type wanted struct {
	name string
	// url of the Helm repository, or of the chart in a registry.
	url      string
	insecure bool
	secret   string // with the credentials
	// version is a range; tag and digest are exact. All are empty for the newest.
	version, tag, digest string
}

func (w wanted) String() string {
	return w.name + " " + cmp.Or(w.digest, w.tag, w.version, "of any version")
}

// candidate is a chart at hand.
type candidate struct{ path, version, tag, digest string }

// newest returns the one of the candidates that is wanted, or -1.
func (w wanted) newest(of []candidate) (int, error) {
	constraint, err := semver.NewConstraint(cmp.Or(w.version, "*"))
	if err != nil {
		return -1, fmt.Errorf("chart %s: version %s: %w", w.name, w.version, err)
	}
	found := -1
	var newest *semver.Version
	for i, x := range of {
		switch {
		case w.digest != "":
			if x.digest == w.digest {
				return i, nil
			}
		case w.tag != "":
			if x.tag == w.tag || x.version == strings.ReplaceAll(w.tag, "_", "+") { // a tag has no +
				return i, nil
			}
		default:
			v, err := semver.NewVersion(x.version)
			if err == nil && (constraint.Check(v) || x.version == w.version) && (newest == nil || v.GreaterThan(newest)) {
				found, newest = i, v
			}
		}
	}
	return found, nil
}

// chartName is what is a name, and not a path.
var chartName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)

// among finds a chart in the folders with charts, or else in the cache, or else where it is fetched from.
func (c *Contents) among(w wanted) *loadedChart {
	if !chartName.MatchString(w.name) {
		return &loadedChart{err: fmt.Errorf("%q is not the name of a chart", w.name)}
	}
	var all []candidate
	for _, folder := range c.Charts {
		all = append(all, archives(folder, w.name)...)
		for _, folder := range []string{folder, filepath.Join(folder, w.name)} {
			b, err := os.ReadFile(filepath.Join(folder, "Chart.yaml"))
			m := &chart.Metadata{}
			if err == nil && sigsyaml.Unmarshal(b, m) == nil && m.Name == w.name {
				all = append(all, candidate{path: folder, version: m.Version})
			}
			images, err := inLayout(folder, w.name)
			if err != nil {
				return &loadedChart{err: fmt.Errorf("chart %s: the OCI layout %s: %w", w.name, folder, err)}
			}
			all = append(all, images...)
		}
	}
	i, err := w.newest(all)
	if err == nil && i < 0 && c.Cache != "" {
		all = archives(w.cached(c.Cache), w.name)
		for j := range all {
			all[j].digest = w.digest // that of the folder
		}
		i, err = w.newest(all)
	}
	switch {
	case err != nil:
		return &loadedChart{err: err}
	case i < 0 && c.Pull:
		taken, err := c.pull(w)
		if err != nil {
			return &loadedChart{err: fmt.Errorf("chart %s cannot be pulled from %s: %w", w, w.url, err)}
		}
		all, i = []candidate{taken}, 0
	case i < 0:
		return &loadedChart{err: fmt.Errorf("chart %s is not at hand: give a folder that has %s-VERSION.tgz with --charts, or allow --pull", w, w.name)}
	}
	if all[i].version != cmp.Or(w.version, w.tag) {
		c.taken[fmt.Sprintf("chart %s: %s is taken", w, all[i].version)] = true
	}
	return &loadedChart{path: all[i].path}
}

// archives finds NAME-VERSION.tgz.
func archives(folder, name string) (out []candidate) {
	entries, _ := os.ReadDir(folder) // sorted
	for _, entry := range entries {
		rest, ok := strings.CutPrefix(entry.Name(), name+"-")
		version, tgz := strings.CutSuffix(rest, ".tgz")
		if ok && tgz {
			out = append(out, candidate{path: filepath.Join(folder, entry.Name()), version: version})
		}
	}
	return out
}

// chartLayer is what Helm pushes a chart as.
const chartLayer = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"

// inLayout finds a chart in an OCI image layout.
func inLayout(folder, name string) (out []candidate, err error) {
	index, err := layout.ImageIndexFromPath(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, d := range manifest.Manifests {
		if !d.MediaType.IsImage() {
			continue
		}
		image, err := index.Image(d.Digest)
		if err != nil {
			return nil, err
		}
		m, layer, err := chartOf(image)
		if err != nil || m.Name != name { // something else, which may well be there
			continue
		}
		digest, err := layer.Digest()
		if err != nil {
			return nil, err
		}
		file := filepath.Join(folder, "blobs", digest.Algorithm, digest.Hex)
		if err := verified(file, digest); err != nil {
			return nil, err
		}
		out = append(out, candidate{path: file, version: m.Version, tag: d.Annotations["org.opencontainers.image.ref.name"], digest: d.Digest.String()})
	}
	return out, nil
}

// chartOf returns the metadata and the archive of a chart in an image.
func chartOf(image v1.Image) (*chart.Metadata, v1.Layer, error) {
	b, err := image.RawConfigFile()
	if err != nil {
		return nil, nil, err
	}
	m := &chart.Metadata{}
	if err := json.Unmarshal(b, m); err != nil || m.Name == "" {
		return nil, nil, errors.New("it is not a Helm chart")
	}
	layers, err := image.Layers()
	if err != nil {
		return nil, nil, err
	}
	for _, l := range layers {
		if t, err := l.MediaType(); err == nil && t == chartLayer {
			return m, l, nil
		}
	}
	return nil, nil, errors.New("it is not a Helm chart: no layer is " + chartLayer)
}

func verified(file string, digest v1.Hash) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if is, _, err := v1.SHA256(io.Reader(f)); err != nil || is != digest {
		return errors.Join(err, fmt.Errorf("%s has another digest", filepath.Base(file)))
	}
	return nil
}
