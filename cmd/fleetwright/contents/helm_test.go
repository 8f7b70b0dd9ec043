package contents

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	. "github.com/onsi/gomega"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartv2util "helm.sh/helm/v4/pkg/chart/v2/util"
	"sigs.k8s.io/yaml"

	"github.com/fleetwright/fleetwright/renderers/application"
)

func helmChart(name, spec string) string {
	return "apiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmChart\nmetadata: {name: " + name + "}\nspec: " + spec + "\n"
}

// releasing returns a HelmRelease with a spec in YAML.
func releasing(t testing.TB, spec string) *application.Rendered {
	out := &helmv2.HelmReleaseSpec{ReleaseName: "web"}
	NewWithT(t).Expect(yaml.UnmarshalStrict([]byte(spec), out)).To(Succeed())
	return child("HelmRelease", out)
}

const configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}-{{ .Chart.Version }}}\ndata: {a: {{ .Values.a | default \"\" | quote }}}\n"

// packed writes NAME-VERSION.tgz into a folder.
func packed(t testing.TB, into, name, version string, more map[string]string) string {
	g := NewWithT(t)
	files := map[string]string{"Chart.yaml": "apiVersion: v2\nname: " + name + "\nversion: " + version + "\n", "values.yaml": "a: default\n", "templates/all.yaml": configMap}
	for name, text := range more {
		files[name] = text
	}
	loaded, err := loader.Load(folder(t, files))
	g.Expect(err).NotTo(HaveOccurred())
	file, err := chartv2util.Save(loaded, into)
	g.Expect(err).NotTo(HaveOccurred())
	return file
}

// image returns a chart as Helm pushes it.
func image(t testing.TB, name, version string) v1.Image {
	g := NewWithT(t)
	b, err := os.ReadFile(packed(t, t.TempDir(), name, version, nil))
	g.Expect(err).NotTo(HaveOccurred())
	out, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), "application/vnd.cncf.helm.config.v1+json"), static.NewLayer(b, chartLayer))
	g.Expect(err).NotTo(HaveOccurred())
	return withConfig{out, []byte(fmt.Sprintf(`{"name":%q,"version":%q,"apiVersion":"v2"}`, name, version))}
}

// withConfig has a config that is no image's.
type withConfig struct {
	v1.Image
	config []byte
}

func (w withConfig) RawConfigFile() ([]byte, error) { return w.config, nil }
func (w withConfig) ConfigName() (v1.Hash, error)   { return partial.ConfigName(w) }
func (w withConfig) Digest() (v1.Hash, error)       { return partial.Digest(w) }
func (w withConfig) Size() (int64, error)           { return partial.Size(w) }
func (w withConfig) RawManifest() ([]byte, error)   { return partial.RawManifest(w) }
func (w withConfig) Manifest() (*v1.Manifest, error) {
	m, err := w.Image.Manifest()
	if err != nil {
		return nil, err
	}
	m = m.DeepCopy()
	if m.Config.Digest, err = w.ConfigName(); err != nil {
		return nil, err
	}
	m.Config.Size = int64(len(w.config))
	return m, nil
}

// TestChartsAtHand holds where charts are found, and which of them is taken.
func TestChartsAtHand(t *testing.T) {
	g := NewWithT(t)
	archives, unpacked, images := t.TempDir(), folder(t, map[string]string{"podinfo/Chart.yaml": "apiVersion: v2\nname: podinfo\nversion: 6.6.0\n", "podinfo/templates/all.yaml": configMap}), t.TempDir()
	for _, version := range []string{"6.5.3", "6.5.4", "6.5.10", "7.0.0-rc.1"} {
		packed(t, archives, "podinfo", version, nil)
	}
	packed(t, archives, "podinfo-extra", "9.9.9", nil)
	g.Expect(os.WriteFile(filepath.Join(archives, "podinfo-nonsense.tgz"), nil, 0o600)).To(Succeed())
	in, err := layout.Write(images, empty.Index)
	g.Expect(err).NotTo(HaveOccurred())
	inLayout := image(t, "podinfo", "6.7.0")
	g.Expect(in.AppendImage(inLayout, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "stable"}))).To(Succeed())
	g.Expect(in.AppendImage(image(t, "other", "1.0.0"))).To(Succeed())
	g.Expect(in.AppendImage(empty.Image)).To(Succeed())
	digest, err := inLayout.Digest()
	g.Expect(err).NotTo(HaveOccurred())

	repository := "apiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmRepository\nmetadata: {name: charts}\nspec: {url: https://charts.example.org}\n---\n"
	ranged := func(version string) string {
		return repository + helmChart("podinfo", "{chart: podinfo, version: '"+version+"', sourceRef: {kind: HelmRepository, name: charts}}")
	}
	oci := func(ref string) string {
		return "apiVersion: source.toolkit.fluxcd.io/v1\nkind: OCIRepository\nmetadata: {name: podinfo}\nspec: {url: oci://registry.example.org/charts/podinfo, ref: " + ref + "}\n"
	}
	for name, test := range map[string]struct {
		folders          []string
		source           string
		want, taken, err string
	}{
		"exactly":               {folders: []string{archives}, source: ranged("6.5.3"), want: "6.5.3"},
		"the newest of a range": {folders: []string{archives, unpacked}, source: ranged("6.5.x"), want: "6.5.10", taken: "chart podinfo 6.5.x: 6.5.10 is taken"},
		"unpacked":              {folders: []string{archives, unpacked}, source: ranged(">=6.6"), want: "6.6.0", taken: "chart podinfo >=6.6: 6.6.0 is taken"},
		"the unpacked itself":   {folders: []string{filepath.Join(unpacked, "podinfo")}, source: ranged("6.6.0"), want: "6.6.0"},
		"any":                   {folders: []string{archives, unpacked}, source: ranged(""), want: "6.6.0", taken: "chart podinfo of any version: 6.6.0 is taken"},
		"a prerelease":          {folders: []string{archives}, source: ranged("7.0.0-rc.1"), want: "7.0.0-rc.1"},
		"none in the range":     {folders: []string{archives}, source: ranged("7.x"), err: "chart podinfo 7.x is not at hand: give a folder that has podinfo-VERSION.tgz with --charts, or allow --pull"},
		"no range":              {folders: []string{archives}, source: ranged("six"), err: "chart podinfo: version six: "},
		"tag":                   {folders: []string{archives}, source: oci("{tag: 6.5.4}"), want: "6.5.4"},
		"tag is no range":       {folders: []string{archives}, source: oci("{tag: '6.5'}"), err: "chart podinfo 6.5 is not at hand"},
		"semver":                {folders: []string{archives}, source: oci("{semver: ~6.5.0}"), want: "6.5.10", taken: "chart podinfo ~6.5.0: 6.5.10 is taken"},
		"layout":                {folders: []string{images}, source: ranged("6.7.0"), want: "6.7.0"},
		"tag in a layout":       {folders: []string{archives, images}, source: oci("{tag: stable}"), want: "6.7.0", taken: "chart podinfo stable: 6.7.0 is taken"},
		"digest in a layout":    {folders: []string{images}, source: oci("{digest: '" + digest.String() + "'}"), want: "6.7.0", taken: "chart podinfo " + digest.String() + ": 6.7.0 is taken"},
		"digest":                {folders: []string{archives}, source: oci("{digest: '" + digest.String() + "', tag: 6.5.4}"), err: "chart podinfo " + digest.String() + " is not at hand"},
		"a path":                {folders: []string{archives}, source: repository + helmChart("podinfo", "{chart: ../podinfo, sourceRef: {kind: HelmRepository, name: charts}}"), err: `"../podinfo" is not the name of a chart`},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			c := state(t, map[string]string{"declared/source.yaml": test.source}, func(o *Options) { o.Charts = test.folders })
			kind := "HelmChart"
			if strings.Contains(test.source, "OCIRepository") {
				kind = "OCIRepository"
			}
			x := releasing(t, "chartRef: {kind: "+kind+", name: podinfo}")
			objects, err := c.Objects(x)
			if test.err != "" {
				g.Expect(err).To(MatchError(HavePrefix(test.err)))
				g.Expect(c.ID(x)).To(BeEmpty())
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(c.ID(x)).NotTo(BeEmpty())
			g.Expect(names(objects)).To(Equal([]string{"ConfigMap default/web-" + test.want}))
			g.Expect(strings.Join(c.Taken(), "\n")).To(Equal(test.taken))
		})
	}

	// What of a layout is not what it says is refused.
	layers, err := inLayout.Layers()
	g.Expect(err).NotTo(HaveOccurred())
	blob, err := layers[0].Digest()
	g.Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(images, "blobs", "sha256", blob.Hex)
	g.Expect(os.Chmod(file, 0o600)).To(Succeed())
	g.Expect(os.WriteFile(file, []byte("x"), 0o600)).To(Succeed())
	c := state(t, map[string]string{"declared/source.yaml": ranged("6.7.0")}, func(o *Options) { o.Charts = []string{images} })
	_, err = c.Objects(releasing(t, "chartRef: {kind: HelmChart, name: podinfo}"))
	g.Expect(err).To(MatchError(ContainSubstring("has another digest")))
}

// TestPull holds that with Pull, charts are fetched once, and found in the cache from then on.
func TestPull(t *testing.T) {
	g := NewWithT(t)
	charts := t.TempDir()
	for _, version := range []string{"1.0.0", "1.1.0", "2.0.0", "3.0.0"} {
		packed(t, charts, "app", version, nil)
	}
	var index strings.Builder
	index.WriteString("apiVersion: v1\nentries:\n  app:\n")
	for _, version := range []string{"2.0.0", "1.1.0", "1.0.0"} {
		fmt.Fprintf(&index, "  - {name: app, version: %s, urls: [archives/app-%s.tgz]}\n", version, version)
	}
	fmt.Fprintf(&index, "  - {name: app, version: 3.0.0, digest: %s, urls: [archives/app-3.0.0.tgz]}\n", strings.Repeat("0", 64))
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		switch {
		case strings.HasPrefix(r.URL.Path, "/secret/"):
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/charts/index.yaml":
			_, _ = io.WriteString(w, index.String())
		default:
			http.StripPrefix("/charts/archives", http.FileServer(http.Dir(charts))).ServeHTTP(w, r)
		}
	}))
	defer server.Close()
	images := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer images.Close()
	host := strings.TrimPrefix(images.URL, "http://")
	for _, version := range []string{"1.0.0", "1.2.0"} {
		tag, err := name.NewTag(host + "/charts/app:" + version)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(remote.Write(tag, image(t, "app", version))).To(Succeed())
	}
	digest, err := image(t, "app", "1.0.0").Digest()
	g.Expect(err).NotTo(HaveOccurred())
	repository := func(path, more string) string {
		return "apiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmRepository\nmetadata: {name: charts}\nspec: {url: " + path + more + "}\n---\n"
	}
	chart := func(version string) string {
		return helmChart("app", "{chart: app, version: "+version+", sourceRef: {kind: HelmRepository, name: charts}}")
	}
	oci := func(ref string) string {
		return "apiVersion: source.toolkit.fluxcd.io/v1\nkind: OCIRepository\nmetadata: {name: app}\nspec: {url: oci://" + host + "/charts/app, ref: " + ref + "}\n"
	}
	for name, test := range map[string]struct{ source, want, err string }{
		"exactly":                                {source: repository(server.URL+"/charts", "") + chart("1.0.0"), want: "1.0.0"},
		"a range":                                {source: repository(server.URL+"/charts/", "") + chart("1.x"), want: "1.1.0"},
		"not there":                              {source: repository(server.URL+"/charts", "") + chart("9.x"), err: "chart app 9.x cannot be pulled from " + server.URL + "/charts: it is not there"},
		"another digest":                         {source: repository(server.URL+"/charts", "") + chart("3.0.0"), err: "chart app 3.0.0 cannot be pulled from " + server.URL + "/charts: " + server.URL + "/charts/archives/app-3.0.0.tgz has another digest than the index says"},
		"credentials":                            {source: repository(server.URL+"/secret", ", secretRef: {name: login}") + chart("1.x"), err: "chart app 1.x cannot be pulled from " + server.URL + "/secret: 401 Unauthorized: it asks for what is in Secret login"},
		"files":                                  {source: repository("file:///etc", "") + chart("1.x"), err: "chart app 1.x cannot be pulled from file:///etc: only http, https and oci are known"},
		"registry":                               {source: oci("{tag: 1.0.0}"), want: "1.0.0"},
		"registry, range":                        {source: oci("{semver: 1.x}"), want: "1.2.0"},
		"registry, digest":                       {source: oci("{digest: '" + digest.String() + "'}"), want: "1.0.0"},
		"registry, none":                         {source: oci("{tag: 9.0.0}"), err: "chart app 9.0.0 cannot be pulled from oci://" + host + "/charts/app: "},
		"HelmRepository of charts in a registry": {source: repository("oci://"+host+"/charts", ", type: oci") + chart("1.x"), want: "1.2.0"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			cache := t.TempDir()
			kind := "HelmChart"
			if strings.Contains(test.source, "OCIRepository") {
				kind = "OCIRepository"
			}
			x := releasing(t, "chartRef: {kind: "+kind+", name: app}")
			made := func(o Options) (string, error) {
				c := state(t, map[string]string{"declared/source.yaml": test.source}, func(into *Options) { into.Cache, into.Pull = o.Cache, o.Pull })
				objects, err := c.Objects(x)
				return strings.Join(names(objects), ", "), err
			}
			_, err := made(Options{Cache: cache})
			g.Expect(err).To(MatchError(ContainSubstring("is not at hand")))
			out, err := made(Options{Cache: cache, Pull: true})
			if test.err != "" {
				g.Expect(err).To(MatchError(HavePrefix(test.err)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(out).To(Equal("ConfigMap default/web-" + test.want))
			before := asked
			g.Expect(made(Options{Cache: cache})).To(Equal(out), "from the cache")
			g.Expect(made(Options{Cache: cache, Pull: true})).To(Equal(out))
			g.Expect(asked).To(Equal(before))
			g.Expect(made(Options{Pull: true})).To(Equal(out), "without a cache")
		})
	}
}

// app has all that a chart may have.
var app = map[string]string{
	"declared/chart.yaml":                      helmChart("app", "{chart: ./charts/app, sourceRef: {kind: GitRepository, name: fleet}}"),
	"declared/cm.yaml":                         "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: values, namespace: default}\ndata: {values.yaml: \"{a: of the ConfigMap, b: of the ConfigMap}\", one: \"1,2\"}\n",
	"declared/s.yaml":                          "apiVersion: v1\nkind: Secret\nmetadata: {name: secret, namespace: default}\nstringData: {values.yaml: \"{a: hunter2}\"}\n",
	"charts/app/Chart.yaml":                    "apiVersion: v2\nname: app\nversion: 1.0.0\nkubeVersion: '>=1.20.0-0'\ndependencies: [{name: sub, version: 1.0.0, condition: sub.enabled}]\n",
	"charts/app/values.yaml":                   "a: of the chart\nb: of the chart\nc: of the chart\nsub: {enabled: false}\n",
	"charts/app/values.schema.json":            `{"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"$ref": "#/definitions/a"}}, "definitions": {"a": {"type": "string"}}}`,
	"charts/app/charts/sub/Chart.yaml":         "apiVersion: v2\nname: sub\nversion: 1.0.0\n",
	"charts/app/charts/sub/templates/all.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: sub}\n",
	"charts/app/crds/crd.yaml":                 "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: wides.example.org}\nspec: {group: example.org, scope: Cluster, names: {kind: Wide}}\n",
	"charts/app/templates/_helpers.tpl":        `{{ define "name" }}{{ .Release.Name }}{{ end }}`,
	"charts/app/templates/NOTES.txt":           "Hello",
	"charts/app/templates/all.yaml": `
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ include "name" . }}}
data:
  values: "{{ .Values.a }}, {{ .Values.b }}, {{ .Values.c }}, {{ .Values.one }}"
  kubernetes: {{ .Capabilities.KubeVersion.Version }}
  install: "{{ .Release.IsInstall }} {{ .Release.Namespace }}"
---
apiVersion: v1
kind: List
items:
- {apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: role}}
- {apiVersion: example.org/v1, kind: Wide, metadata: {name: wide}}
- {apiVersion: example.org/v1, kind: Narrow, metadata: {name: narrow}}
`,
	"charts/app/templates/hooks.yaml": `
apiVersion: batch/v1
kind: Job
metadata: {name: migrate, annotations: {helm.sh/hook: "pre-install,pre-upgrade"}}
---
apiVersion: v1
kind: Pod
metadata: {name: test, annotations: {helm.sh/hook: test}}
`,
}

func TestHelmRelease(t *testing.T) {
	g := NewWithT(t)
	c := state(t, app, func(o *Options) { o.KubeVersion = func(*application.Rendered) string { return "v1.31.2" } })
	x := releasing(t, `
chartRef: {kind: HelmChart, name: app}
targetNamespace: shop
storageNamespace: shop
values: {b: of the HelmRelease, sub: {enabled: true}}
valuesFrom: [{kind: ConfigMap, name: values}, {kind: ConfigMap, name: values, valuesKey: one, targetPath: one, literal: true}]
commonMetadata: {labels: {team: shop}}
postRenderers: [{kustomize: {patches: [{target: {kind: ConfigMap}, patch: '[{"op": "add", "path": "/data/patched", "value": "yes"}]'}]}}]
`)
	objects, err := c.Objects(x)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(names(objects)).To(Equal([]string{"ClusterRole /role", "ConfigMap shop/web", "CustomResourceDefinition /wides.example.org", "Job shop/migrate",
		"Narrow shop/narrow", "Service shop/sub", "Wide /wide"}))
	g.Expect(objects[1].Object["data"]).To(Equal(map[string]any{"values": "of the ConfigMap, of the HelmRelease, of the chart, 1,2", "kubernetes": "v1.31.2",
		"install": "true shop", "patched": "yes"}))
	g.Expect(objects[1].GetLabels()).To(Equal(map[string]string{"team": "shop"}))
	g.Expect(objects[2].GetLabels()).To(BeEmpty(), "Helm applies crds/ as they are")
	g.Expect(c.Outline(x)).To(And(HaveField("Chart", "app"), HaveField("Kubernetes", ">=1.20.0-0"), HaveField("Objects", HaveLen(7))))
	g.Expect(c.Notes()).To(BeEmpty())

	// What is not in the release.
	objects, err = c.Objects(releasing(t, "chartRef: {kind: HelmChart, name: app}\ninstall: {crds: Skip}"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(names(objects)).NotTo(Or(ContainElement(ContainSubstring("wides")), ContainElement(ContainSubstring("sub"))))
	// Secrets are not read.
	objects, err = c.Objects(releasing(t, "chartRef: {kind: HelmChart, name: app}\nvaluesFrom: [{kind: Secret, name: secret}, {kind: ConfigMap, name: nosuch}]"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text(t, objects)).To(And(ContainSubstring("of the chart, of the chart"), Not(ContainSubstring("hunter2"))))
	g.Expect(fmt.Sprint(c.Notes())).To(And(ContainSubstring("Secret secret"), ContainSubstring("ConfigMap nosuch: it is not in the repository")))
	// What a patch has is in no message.
	_, err = c.Objects(releasing(t, "chartRef: {kind: HelmChart, name: app}\npostRenderers: [{kustomize: {patches: [{patch: '- {op: add, value: hunter2'}]}}]"))
	g.Expect(err).To(MatchError(And(HavePrefix("postRenderers: "), Not(ContainSubstring("hunter2")))))
	// The schema holds.
	_, err = c.Objects(releasing(t, "chartRef: {kind: HelmChart, name: app}\nvalues: {a: 1}"))
	g.Expect(err).To(MatchError(ContainSubstring("got number, want string")))
	// The names of two releases without a name are theirs.
	x, y := releasing(t, "{releaseName: '', chartRef: {kind: HelmChart, name: app}}"), releasing(t, "{releaseName: '', chartRef: {kind: HelmChart, name: app}}")
	y.Metadata.Name = "app-b"
	for _, x := range []*application.Rendered{x, y} {
		objects, err = c.Objects(x)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(names(objects)).To(ContainElement("ConfigMap default/" + x.Metadata.Name))
	}
}

// TestValuesFiles holds that they are in place of the chart's values, of a chart in a folder and of one in an archive.
func TestValuesFiles(t *testing.T) {
	g := NewWithT(t)
	charts := t.TempDir()
	packed(t, charts, "packed", "1.0.0", map[string]string{"prod.yaml": "a: production\n"})
	c := state(t, map[string]string{
		"chart/Chart.yaml": "apiVersion: v2\nname: local\nversion: 1.0.0\n", "chart/values.yaml": "a: default\n", "chart/templates/all.yaml": configMap,
		"env/prod.yaml":      "a: production\n",
		"declared/a.yaml":    helmChart("local", "{chart: ./chart, valuesFiles: [values.yaml, env/prod.yaml, nosuch.yaml], ignoreMissingValuesFiles: true, sourceRef: {kind: GitRepository, name: fleet}}"),
		"declared/b.yaml":    helmChart("packed", "{chart: packed, valuesFiles: [values.yaml, prod.yaml, nosuch.yaml], ignoreMissingValuesFiles: true, sourceRef: {kind: HelmRepository, name: x}}"),
		"declared/c.yaml":    helmChart("outside", "{chart: ./chart, valuesFiles: [../../../etc/hostname], sourceRef: {kind: GitRepository, name: fleet}}"),
		"declared/d.yaml":    helmChart("missing", "{chart: packed, valuesFiles: [nosuch.yaml], sourceRef: {kind: HelmRepository, name: x}}"),
		"declared/repo.yaml": "apiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmRepository\nmetadata: {name: x}\nspec: {url: https://charts.example.org}\n",
	}, func(o *Options) { o.Charts = []string{charts} })
	for _, name := range []string{"local", "packed"} {
		objects, err := c.Objects(releasing(t, "chartRef: {kind: HelmChart, name: "+name+"}"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(objects[0].Object["data"]).To(Equal(map[string]any{"a": "production"}), name)
	}
	for name, want := range map[string]string{"outside": "etc/hostname is not in the source", "missing": "chart packed has no file nosuch.yaml, which valuesFiles names"} {
		_, err := c.Objects(releasing(t, "chartRef: {kind: HelmChart, name: "+name+"}"))
		g.Expect(err).To(MatchError(ContainSubstring(want)))
	}
}

// TestChartsStayInside holds that links out of the repository are refused, those behind links included.
func TestChartsStayInside(t *testing.T) {
	outside := folder(t, map[string]string{"secret.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: hunter2}\n", "Chart.yaml": "apiVersion: v2\nname: x\nversion: 1.0.0\n"})
	for name, test := range map[string]struct {
		chart string
		links map[string]string
	}{
		"path":           {chart: "../../../../../../../.." + outside},
		"link":           {chart: "./chart", links: map[string]string{"chart/templates/x.yaml": outside + "/secret.yaml"}},
		"link of a link": {chart: "./chart", links: map[string]string{"chart/templates/more": "../../shared", "shared/x.yaml": outside + "/secret.yaml"}},
		"the chart":      {chart: "./linked", links: map[string]string{"linked": outside}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			c := state(t, map[string]string{
				"chart/Chart.yaml": "apiVersion: v2\nname: local\nversion: 1.0.0\n", "chart/templates/all.yaml": configMap, "shared/y.yaml": "",
				"declared/a.yaml": helmChart("local", "{chart: "+test.chart+", sourceRef: {kind: GitRepository, name: fleet}}"),
			})
			for link, to := range test.links {
				g.Expect(os.Symlink(to, filepath.Join(c.Root, link))).To(Succeed())
			}
			_, err := c.Objects(releasing(t, "chartRef: {kind: HelmChart, name: local}"))
			g.Expect(err).To(MatchError(ContainSubstring("is not in the source, or a link out of it")))
		})
	}
}

// TestMadeAnew holds that what a chart makes anew each time is the same each time here, in charts in archives in charts, and in what
// is a template in values.
func TestMadeAnew(t *testing.T) {
	g := NewWithT(t)
	sub := t.TempDir()
	packed(t, sub, "sub", "1.0.0", map[string]string{"templates/all.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: sub}\ndata: {password: {{ randAlphaNum 20 | b64enc }}, user: YWRtaW4=}\n"})
	archive, err := os.ReadFile(filepath.Join(sub, "sub-1.0.0.tgz"))
	g.Expect(err).NotTo(HaveOccurred())
	for name, test := range map[string]struct {
		files  map[string]string
		values string
		want   map[string]any
	}{
		"in an archive": {files: map[string]string{"chart/Chart.yaml": "apiVersion: v2\nname: app\nversion: 1.0.0\ndependencies: [{name: sub, version: 1.0.0}]\n", "chart/charts/sub-1.0.0.tgz": string(archive)},
			want: map[string]any{"password": generated, "user": "YWRtaW4="}},
		"in values": {files: map[string]string{"chart/templates/all.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a: {{ tpl .Values.a . }}}\n"}, values: `{a: "{{ uuidv4 }}"}`,
			want: map[string]any{"a": generated}},
		"a certificate": {files: map[string]string{"chart/templates/all.yaml": `
{{- $ca := genCA "ca" 365 }}
{{- $cert := genSignedCert "x" nil nil 365 $ca }}
apiVersion: v1
kind: Secret
metadata: {name: x, annotations: {sum: {{ $cert.Key | sha256sum }}}}
data: {ca.crt: {{ $ca.Cert | b64enc }}, tls.crt: {{ $cert.Cert | b64enc }}, same: YQ==}
`}, want: map[string]any{"ca.crt": generated, "tls.crt": generated, "same": "YQ=="}},
		"the time": {files: map[string]string{"chart/templates/all.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {at: {{ now | date \"2006-01-02\" }}, year: {{ now.Year | quote }}, unix: {{ now | unixEpoch | quote }}, b: same}\n"},
			want: map[string]any{"at": generated, "year": generated, "unix": generated, "b": "same"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			files := map[string]string{"chart/Chart.yaml": "apiVersion: v2\nname: app\nversion: 1.0.0\n", "declared/a.yaml": helmChart("app", "{chart: ./chart, sourceRef: {kind: GitRepository, name: fleet}}")}
			for name, text := range test.files {
				files[name] = text
			}
			var all []string
			for range 2 {
				objects, err := state(t, files).Objects(releasing(t, "chartRef: {kind: HelmChart, name: app}\nvalues: "+test.values))
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(objects[0].Object["data"]).To(Equal(test.want))
				all = append(all, text(t, objects))
			}
			g.Expect(all[0]).To(Equal(all[1]))
		})
	}
}

// FuzzIndex holds that whatever a Helm repository answers, what is taken of it is a chart in the range, and no path.
func FuzzIndex(f *testing.F) {
	f.Add("entries: {app: [{version: 1.0.0, urls: [app-1.0.0.tgz]}]}", "1.x")
	f.Add("entries: {app: [{version: ../../1.0.0, urls: ['file:///etc/passwd']}]}", "*")
	f.Add("entries: {app: [null, {version: v1.0.0+x, urls: ['//other/x?y']}]}", "")
	c := state(f, nil)
	f.Fuzz(func(t *testing.T, text, version string) {
		list, err := parseIndex([]byte(text))
		if err != nil {
			return
		}
		w := wanted{name: "app", version: version}
		var all []candidate
		for _, e := range list.Entries["app"] {
			all = append(all, candidate{version: e.Version})
		}
		i, err := w.newest(all)
		if err != nil || i < 0 {
			return
		}
		for _, u := range list.Entries["app"][i].URLs {
			if from, err := resolve("https://charts.example.org/x/", u); err == nil && !strings.HasPrefix(from, "http") {
				t.Errorf("%s is fetched", from)
			}
		}
		taken, err := c.store(w, all[i].version, nil)
		if err == nil && filepath.Dir(taken.path) != w.cached(c.temporary) {
			t.Errorf("%s is not in the cache", taken.path)
		}
	})
}
