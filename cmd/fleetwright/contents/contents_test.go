package contents

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/kustomize"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/object"
	"github.com/fleetwright/fleetwright/renderers/repository"
)

const self = "https://git.example.org/fleet"

// folder writes files.
func folder(t testing.TB, files map[string]string) string {
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		NewWithT(t).Expect(os.MkdirAll(filepath.Dir(name), 0o700)).To(Succeed())
		NewWithT(t).Expect(os.WriteFile(name, []byte(text), 0o600)).To(Succeed())
	}
	return dir
}

// state returns the contents of a repository with files, some of which are declared: those below declared/.
func state(t testing.TB, files map[string]string, more ...func(o *Options)) *Contents {
	g := NewWithT(t)
	o := Options{Root: folder(t, files), Rendered: repository.Render(application.Declared{}, nil, nil), Self: func(url string) bool { return url == self }}
	declare(&o, "apiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata: {name: fleet}\nspec: {url: "+self+", ref: {branch: main}}\n")
	for name, text := range files {
		if strings.HasPrefix(name, "declared/") {
			declare(&o, text)
		}
	}
	for _, f := range more {
		f(&o)
	}
	c, err := New(o)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { c.Close() })
	return c
}

func declare(o *Options, text string) {
	for _, document := range strings.Split(text, "\n---\n") {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &u.Object); err != nil {
			panic(err)
		}
		o.Declared = append(o.Declared, u)
	}
}

// child returns a Kustomization or HelmRelease with a spec.
func child(kind string, spec any) *application.Rendered {
	return &application.Rendered{Object: &object.Object{Kind: kind, Metadata: object.Metadata{Name: "app-a", Namespace: "default"}, Spec: spec}, Application: "app"}
}

// kustomization returns a Kustomization of the repository itself, with a spec in YAML.
func kustomizing(t testing.TB, spec string) *application.Rendered {
	out := &kustomizev1.KustomizationSpec{SourceRef: kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "fleet"}}
	NewWithT(t).Expect(yaml.UnmarshalStrict([]byte(spec), out)).To(Succeed())
	return child("Kustomization", out)
}

// text returns objects as YAML.
func text(t testing.TB, objects []*unstructured.Unstructured) string {
	var out []string
	for _, o := range objects {
		b, err := yaml.Marshal(o.Object)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		out = append(out, string(b))
	}
	return strings.Join(out, "---\n")
}

func names(objects []*unstructured.Unstructured) (out []string) {
	for _, o := range objects {
		out = append(out, strings.Trim(o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName(), "/"))
	}
	return out
}

const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  template: {spec: {containers: [{name: web, image: "registry.example.org/web:1"}]}}
`

func TestKustomization(t *testing.T) {
	g := NewWithT(t)
	c := state(t, map[string]string{
		"deploy/kustomization.yaml": "resources: [web.yaml, secret.yaml]\n",
		"deploy/web.yaml":           deployment,
		"deploy/secret.yaml":        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: \"ENC[AES256_GCM,data:x,type:str]\"}\nsops: {mac: \"ENC[AES256_GCM,data:y]\", age: []}\n",
		"more/kustomization.yaml":   "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nlabels: [{pairs: {more: is-there}}]\n",
	})
	objects, err := c.Objects(kustomizing(t, `
path: ./deploy
namePrefix: a-
nameSuffix: -z
targetNamespace: shop
components: [../more, ../nosuch]
ignoreMissingComponents: true
images: [{name: registry.example.org/web, newTag: "2"}]
patches: [{target: {kind: Deployment}, patch: '[{"op": "add", "path": "/spec/replicas", "value": 3}]'}]
commonMetadata: {annotations: {team: shop}}
prune: true
interval: 1m
`))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text(t, objects)).To(Equal(`apiVersion: apps/v1
kind: Deployment
metadata:
  annotations:
    team: shop
  labels:
    more: is-there
  name: a-web-z
  namespace: shop
spec:
  replicas: 3
  template:
    spec:
      containers:
      - image: registry.example.org/web:2
        name: web
---
apiVersion: v1
kind: Secret
metadata:
  annotations:
    team: shop
  labels:
    more: is-there
  name: a-s-z
  namespace: shop
sops:
  age: []
  mac: ENC[AES256_GCM,data:y]
stringData:
  a: ENC[AES256_GCM,data:x,type:str]
`))
}

// TestKustomizationOfAFolder holds that a folder without a kustomization is taken as a whole.
func TestKustomizationOfAFolder(t *testing.T) {
	g := NewWithT(t)
	c := state(t, map[string]string{
		"deploy/web.yaml":                 deployment,
		"deploy/more/z.yaml":              "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: z, namespace: x}\n",
		"deploy/built/kustomization.yaml": "namePrefix: built-\nresources: [a.yaml]\n",
		"deploy/built/a.yaml":             "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: x}\n",
	})
	objects, err := c.Objects(kustomizing(t, "path: ./deploy"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(names(objects)).To(Equal([]string{"ConfigMap x/built-a", "ConfigMap x/z", "Deployment /web"}))
}

func TestPostBuild(t *testing.T) {
	files := map[string]string{
		"deploy/a.yaml":    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {region: '${region}', size: '${size:=small}', deep: 'x-${region}-${size:=small}'}\n",
		"deploy/b.yaml":    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b, annotations: {kustomize.toolkit.fluxcd.io/substitute: disabled}}\ndata: {region: '${region}'}\n",
		"declared/cm.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: values, namespace: default}\ndata: {region: eu, size: large}\n",
		"declared/s.yaml":  "apiVersion: v1\nkind: Secret\nmetadata: {name: secret, namespace: default}\nstringData: {region: hunter2}\n",
	}
	for name, test := range map[string]struct{ postBuild, region, size, err, note string }{
		"inline":               {postBuild: "substitute: {region: us}", region: "us", size: "small"},
		"ConfigMap":            {postBuild: "substituteFrom: [{kind: ConfigMap, name: values}]", region: "eu", size: "large"},
		"inline over":          {postBuild: "substituteFrom: [{kind: ConfigMap, name: values}]\nsubstitute: {region: us}", region: "us", size: "large"},
		"not defined":          {postBuild: "substitute: {other: x}", err: `variable not set (strict mode): "region"`},
		"no variables":         {postBuild: "substitute: {}", region: "${region}", size: "${size:=small}"},
		"optional not there":   {postBuild: "substituteFrom: [{kind: ConfigMap, name: nosuch, optional: true}]\nsubstitute: {region: us}", region: "us", size: "small"},
		"ConfigMap not there":  {postBuild: "substituteFrom: [{kind: ConfigMap, name: nosuch}]\nsubstitute: {region: us}", region: "us", size: "${size}", note: "without the values of ConfigMap nosuch: it is not in the repository"},
		"Secret":               {postBuild: "substituteFrom: [{kind: Secret, name: secret}]", region: "${region}", size: "${size}", note: "without the values of Secret secret: what is in Secrets is not read"},
		"Secret and ConfigMap": {postBuild: "substituteFrom: [{kind: Secret, name: secret}, {kind: ConfigMap, name: values}]", region: "eu", size: "large", note: "Secret secret"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			c := state(t, files)
			objects, err := c.Objects(kustomizing(t, "path: deploy\npostBuild:\n  "+strings.ReplaceAll(test.postBuild, "\n", "\n  ")))
			if test.err != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.err)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(objects[0].Object["data"]).To(Equal(map[string]any{"region": test.region, "size": test.size, "deep": "x-" + test.region + "-" + test.size}))
			g.Expect(objects[1].Object["data"]).To(Equal(map[string]any{"region": "${region}"}))
			notes := fmt.Sprint(c.Notes())
			g.Expect(notes).To(ContainSubstring(test.note))
			g.Expect(notes == "map[]").To(Equal(test.note == ""), notes)
		})
	}
}

// TestNothingFromOutside holds that nothing is read that is not in the source, however it is named.
func TestNothingFromOutside(t *testing.T) {
	secret := folder(t, map[string]string{"secret.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: hunter2}\n", "kustomization.yaml": "resources: [secret.yaml]\n"})
	for name, test := range map[string]struct {
		files map[string]string
		links map[string]string
		path  string
		err   string
	}{
		"path":                {path: "../../../../../../../.." + secret, err: "there is no such folder"},
		"absolute path":       {path: secret, err: "there is no such folder"},
		"resource":            {path: "deploy", files: map[string]string{"deploy/kustomization.yaml": "resources: [../../../../../../../../.." + secret + "]"}, err: "deploy"},
		"absolute resource":   {path: "deploy", files: map[string]string{"deploy/kustomization.yaml": "resources: [" + secret + "/secret.yaml]"}, err: "deploy"},
		"file of a generator": {path: "deploy", files: map[string]string{"deploy/kustomization.yaml": "configMapGenerator: [{name: x, files: [" + secret + "/secret.yaml]}]"}, err: "deploy"},
		"link to a file":      {path: "deploy", files: map[string]string{"deploy/kustomization.yaml": "resources: [link.yaml]"}, links: map[string]string{"deploy/link.yaml": secret + "/secret.yaml"}, err: "deploy"},
		"link to a folder":    {path: "deploy/link", files: map[string]string{"deploy/x": ""}, links: map[string]string{"deploy/link": secret}, err: "there is no such folder"},
		"linked in a folder":  {path: "deploy", files: map[string]string{"deploy/x": ""}, links: map[string]string{"deploy/link.yaml": secret + "/secret.yaml"}, err: "deploy"},
		"component":           {path: "deploy", files: map[string]string{"deploy/kustomization.yaml": "components: [" + secret + "]"}, err: "deploy"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			c := state(t, test.files)
			for link, to := range test.links {
				g.Expect(os.Symlink(to, filepath.Join(c.Root, link))).To(Succeed())
			}
			x := kustomizing(t, "path: "+test.path)
			g.Expect(c.ID(x)).NotTo(BeEmpty())
			objects, err := c.Objects(x)
			g.Expect(err).To(MatchError(ContainSubstring(test.err)), text(t, objects))
			g.Expect(err.Error()).NotTo(And(ContainSubstring("hunter2"), ContainSubstring(c.Root)))
		})
	}
}

// TestSourcesNotAtHand holds what is said of them.
func TestSourcesNotAtHand(t *testing.T) {
	source := func(spec string) string {
		return "apiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata: {name: infra}\nspec: " + spec + "\n"
	}
	for name, test := range map[string]struct{ source, err string }{
		"another":       {source("{url: https://git.example.org/infra}"), "GitRepository default/infra (https://git.example.org/infra) is not at hand: give a checkout of it with --source infra=PATH"},
		"another state": {source("{url: " + self + ", ref: {tag: v1}}"), "GitRepository default/infra is at tag v1: give a checkout of it with --source infra=PATH"},
		"none":          {source("{}")[:0] + "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: infra}\n", "there is no GitRepository default/infra in the repository: give what it fetches with --source infra=PATH"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			c := state(t, map[string]string{"declared/infra.yaml": test.source})
			x := kustomizing(t, "{path: deploy, sourceRef: {kind: GitRepository, name: infra}}")
			g.Expect(c.ID(x)).To(BeEmpty())
			_, err := c.Objects(x)
			g.Expect(err).To(MatchError(test.err))
			for _, as := range []string{"infra", "default/infra"} {
				c := state(t, map[string]string{"declared/infra.yaml": test.source}, func(o *Options) {
					o.Folders = map[string]string{as: folder(t, map[string]string{"deploy/web.yaml": deployment})}
				})
				objects, err := c.Objects(x)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(names(objects)).To(Equal([]string{"Deployment /web"}))
				g.Expect(c.ID(x)).NotTo(BeEmpty())
			}
		})
	}
}

// TestSameInTwoFolders holds that the same files are the same, wherever they are and in whatever order one asks, errors included,
// and that what a build reads, or looks for, is in the ID.
func TestSameInTwoFolders(t *testing.T) {
	g := NewWithT(t)
	base := map[string]string{
		"a/kustomization.yaml":        "resources: [web.yaml]\nconfigMapGenerator: [{name: x, files: [../shared/x.txt]}]\n",
		"a/web.yaml":                  deployment,
		"shared/x.txt":                "x",
		"b/web.yaml":                  deployment,
		"broken/kustomization.yaml":   "resources: [nosuch.yaml]\n",
		"not-used/web.yaml":           deployment,
		"schema/kustomization.yaml":   "openapi: {path: schema.json}\nresources: [k.yaml]\npatches: [{path: p.yaml}]\n",
		"schema/k.yaml":               "apiVersion: example.org/v1\nkind: K\nmetadata: {name: k}\nlist: [{name: a}]\n",
		"schema/p.yaml":               "apiVersion: example.org/v1\nkind: K\nmetadata: {name: k}\nlist: [{name: b}]\n",
		"schema/schema.json":          `{"definitions": {"K": {"type": "object", "properties": {"list": {"type": "array", "items": {"type": "object"}, "x-kubernetes-patch-merge-key": "name", "x-kubernetes-patch-strategy": "merge"}}, "x-kubernetes-group-version-kind": [{"group": "example.org", "kind": "K", "version": "v1"}]}}}`,
		"no-schema/k.yaml":            "apiVersion: example.org/v1\nkind: K\nmetadata: {name: k}\nlist: [{name: a}]\n",
		"no-schema/p.yaml":            "apiVersion: example.org/v1\nkind: K\nmetadata: {name: k}\nlist: [{name: b}]\n",
		"no-schema/kustomization.yml": "resources: [k.yaml]\npatches: [{path: p.yaml}]\n",
	}
	var children []*application.Rendered
	for _, spec := range []string{"path: a", "path: ./a\nnamePrefix: x-", "path: b", "path: broken", "path: nosuch", "path: b\ncomponents: [../c]\nignoreMissingComponents: true", "path: schema", "path: no-schema"} {
		children = append(children, kustomizing(t, spec))
	}
	ask := func(c *Contents, reverse bool) (ids, all []string) {
		ids, all = make([]string, len(children)), make([]string, len(children))
		order := make([]int, len(children))
		for i := range order {
			order[i] = i
		}
		if reverse {
			slices.Reverse(order)
		}
		for _, i := range order {
			if reverse {
				ids[i] = c.ID(children[i])
			}
			objects, err := c.Objects(children[i])
			ids[i] = c.ID(children[i])
			b, _ := json.Marshal(objects)
			all[i] = fmt.Sprint(string(b), err)
			g.Expect(ids[i]).NotTo(BeEmpty())
		}
		return ids, all
	}
	ids, all := ask(state(t, base), false)
	again, allAgain := ask(state(t, base), true)
	g.Expect(again).To(Equal(ids))
	g.Expect(allAgain).To(Equal(all))
	g.Expect(all[3]).To(ContainSubstring("nosuch.yaml"))

	for file, changes := range map[string][]int{
		"a/web.yaml": {0, 1}, "shared/x.txt": {0, 1}, "b/web.yaml": {2, 5}, "b/new.yaml": {2, 5}, "c/kustomization.yaml": {5},
		"broken/nosuch.yaml": {3}, "nosuch/web.yaml": {4}, "not-used/web.yaml": nil, "b/kustomization.yaml": {2, 5}, "b/README.md": nil,
	} {
		files := map[string]string{file: strings.Replace(deployment, "name: web", "name: other", 1)}
		if strings.HasSuffix(file, "kustomization.yaml") {
			files[file] = "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nlabels: [{pairs: {a: b}}]\n"
		}
		for name, text := range base {
			if files[name] == "" {
				files[name] = text
			}
		}
		changed, _ := ask(state(t, files), false)
		var differ []int
		for i := range changed {
			if changed[i] != ids[i] {
				differ = append(differ, i)
			}
		}
		g.Expect(differ).To(Equal(changes), file)
	}
}

// TestBuildsAreShared holds that members share what is built, and that some may ask at once.
func TestBuildsAreShared(t *testing.T) {
	g := NewWithT(t)
	c := state(t, map[string]string{"deploy/web.yaml": strings.Replace(deployment, "name: web", "name: 'web-${member}'", 1)})
	var children []*application.Rendered
	for i := range 10000 {
		x := kustomizing(t, "path: deploy")
		spec := x.Spec.(*kustomizev1.KustomizationSpec)
		spec.Images = []kustomize.Image{{Name: "registry.example.org/web", NewTag: fmt.Sprint(i % 40)}}
		spec.PostBuild = &kustomizev1.PostBuild{Substitute: map[string]string{"member": fmt.Sprint(i)}}
		children = append(children, x)
	}
	var wait sync.WaitGroup
	for worker := range 4 {
		wait.Go(func() {
			for i := worker; i < len(children); i += 4 {
				objects, err := c.Objects(children[i])
				if c.ID(children[i]); err != nil || objects[0].GetName() != fmt.Sprintf("web-%d", i) {
					t.Errorf("%d: %v, %v", i, names(objects), err)
				}
			}
		})
	}
	wait.Wait()
	g.Expect(c.builds).To(HaveLen(40))
	g.Expect(c.reads).To(HaveLen(1))
}

// TestNothingIsFetched holds that nobody is asked for anything without Pull.
func TestNothingIsFetched(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s was asked for", r.URL) }))
	defer server.Close()
	registry := strings.Replace(server.URL, "http://", "oci://", 1)
	c := state(t, map[string]string{
		"a/kustomization.yaml":         "resources: [" + server.URL + "/x.yaml]\n",
		"b/kustomization.yaml":         "resources: [\"ssh://git@127.0.0.1/org/repo?ref=main\"]\n",
		"chart/Chart.yaml":             "apiVersion: v2\nname: app\nversion: 1.0.0\n",
		"chart/values.schema.json":     `{"properties": {"a": {"$ref": "` + server.URL + `/schema.json"}}}`,
		"chart/templates/all.yaml":     "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {host: {{ getHostByName \"localhost\" | quote }}}\n",
		"declared/chart.yaml":          helmChart("local", "{chart: ./chart, sourceRef: {kind: GitRepository, name: fleet}}"),
		"declared/http-chart.yaml":     helmChart("http", "{chart: podinfo, version: 6.5.x, sourceRef: {kind: HelmRepository, name: http}}"),
		"declared/http-source.yaml":    "apiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmRepository\nmetadata: {name: http}\nspec: {url: " + server.URL + "}\n",
		"declared/registry-chart.yaml": "apiVersion: source.toolkit.fluxcd.io/v1\nkind: OCIRepository\nmetadata: {name: registry}\nspec: {url: " + registry + "/podinfo, ref: {tag: 6.5.4}}\n",
	})
	for _, path := range []string{"a", "b"} {
		_, err := c.Objects(kustomizing(t, "path: "+path))
		g.Expect(err).To(MatchError(ContainSubstring("nothing is loaded from elsewhere")))
	}
	x := releasing(t, "chartRef: {kind: HelmChart, name: http}")
	g.Expect(c.ID(x)).To(BeEmpty())
	_, err := c.Objects(x)
	g.Expect(err).To(MatchError(HavePrefix("chart podinfo 6.5.x is not at hand: ")))
	_, err = c.Objects(releasing(t, "chartRef: {kind: OCIRepository, name: registry}"))
	g.Expect(err).To(MatchError(HavePrefix("chart podinfo 6.5.4 is not at hand: ")))
	objects, err := c.Objects(releasing(t, "chartRef: {kind: HelmChart, name: local}\nvalues: {a: 1}"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(names(objects)).To(Equal([]string{"ConfigMap default/x"}))
	g.Expect(fmt.Sprint(c.Notes())).To(ContainSubstring("their schema refers to " + server.URL))
}
