package contents

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/chartutil"
	"github.com/go-logr/logr"
	"helm.sh/helm/v4/pkg/chart/common"
	commonutil "helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	chartv2util "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/kustomize/kyaml/openapi"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/fleetwright/fleetwright/renderers/application"
)

func valuesFrom(spec *helmv2.HelmReleaseSpec) (out []reference) {
	for _, r := range spec.ValuesFrom {
		out = append(out, reference{r.Kind, r.Name, r.Optional})
	}
	return out
}

// releaseName returns the name of the release of a HelmRelease; empty of anything else.
func releaseName(x *application.Rendered) string {
	if spec, ok := x.Spec.(*helmv2.HelmReleaseSpec); ok {
		return helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Name: x.Metadata.Name, Namespace: x.Metadata.Namespace}, Spec: *spec}.GetReleaseName()
	}
	return ""
}

// helm makes what a HelmRelease installs.
func (c *Contents) helm(x *application.Rendered, spec *helmv2.HelmReleaseSpec) ([]*unstructured.Unstructured, error) {
	found, err := c.chart(x, spec)
	if err != nil {
		return nil, err
	}
	c.missing(x, valuesFrom(spec))
	objects, random, err := c.install(x, spec, found, time.Unix(1<<30, 0))
	if err == nil && random {
		// What is made anew each time would be a change each time: what two renders at two times do not agree on is not compared.
		again, _, err := c.install(x, spec, found, time.Unix(1<<31+12345, 0))
		if err != nil || len(again) != len(objects) {
			return nil, errors.Join(err, fmt.Errorf("chart %s makes other objects each time", found.name))
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
var makesAnew = regexp.MustCompile(`\b(rand(Alpha|AlphaNum|Numeric|Ascii|Bytes|Int)|genCA|genCAWithKey|genSelfSignedCert|genSelfSignedCertWithKey|genSignedCert|genSignedCertWithKey|genPrivateKey|uuidv4|now|ago|htpasswd|bcrypt|encryptAES|shuffle)\b`)

// mayMakeAnew says whether a chart, or what is in its values for it to render, has such a function.
func mayMakeAnew(loaded *chart.Chart, values map[string]any) bool {
	b, err := json.Marshal(values)
	if err != nil || makesAnew.Match(b) {
		return true
	}
	for _, f := range loaded.Raw {
		if f.Name != "README.md" && !strings.HasPrefix(f.Name, "crds/") && makesAnew.Match(f.Data) {
			return true
		}
	}
	return slices.ContainsFunc(loaded.Dependencies(), func(d *chart.Chart) bool { return mayMakeAnew(d, nil) })
}

// draft is the schema of schemas, which Helm has.
var draft = regexp.MustCompile(`^https?://json-schema\.org/(draft-0[467]|draft/(2019-09|2020-12))/schema#?$`)

// elsewhere returns something that the schemas of the values of a chart refer to and do not have; empty if there is nothing.
func elsewhere(loaded *chart.Chart) string {
	var walk func(v any) string
	walk = func(v any) string {
		switch v := v.(type) {
		case map[string]any:
			for _, k := range slices.Sorted(maps.Keys(v)) {
				text, ok := v[k].(string)
				switch {
				case ok && k == "$schema" && !draft.MatchString(text), ok && strings.HasSuffix(strings.ToLower(k), "ref") && k[0] == '$' && !strings.HasPrefix(text, "#"):
					return text
				}
				if found := walk(v[k]); found != "" {
					return found
				}
			}
		case []any:
			for i := range v {
				if found := walk(v[i]); found != "" {
					return found
				}
			}
		}
		return ""
	}
	var schema any
	if len(loaded.Schema) > 0 && json.Unmarshal(loaded.Schema, &schema) == nil { // Helm says what is wrong with it
		if found := walk(schema); found != "" {
			return found
		}
	}
	for _, d := range loaded.Dependencies() {
		if found := elsewhere(d); found != "" {
			return found
		}
	}
	return ""
}

// install renders a chart as Helm does when it installs at a time, and says whether the next time it may render to something else.
func (c *Contents) install(x *application.Rendered, spec *helmv2.HelmReleaseSpec, found *loadedChart, at time.Time) (out []*unstructured.Unstructured, random bool, err error) {
	loaded, err := found.load()
	if err != nil {
		return nil, false, err
	}
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
	unchecked := spec.Install != nil && spec.Install.DisableSchemaValidation
	if reference := elsewhere(loaded); reference != "" && !unchecked { // Helm would fetch it
		unchecked = true
		c.notes[fmt.Sprintf("values of chart %s are not checked: their schema refers to %s, which is elsewhere", found.name, reference)]++
	}
	namespace := (&helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: x.Metadata.Namespace}, Spec: *spec}).GetReleaseNamespace()
	top, err := commonutil.ToRenderValuesWithSchemaValidation(loaded, values, common.ReleaseOptions{Name: releaseName(x), Namespace: namespace, Revision: 1, IsInstall: true}, capabilities, unchecked)
	if err != nil {
		return nil, false, err
	}
	files, err := engine.Engine{CustomTemplateFuncs: template.FuncMap{
		"now": func() time.Time { return at },
		"ago": func(t time.Time) string { return at.Sub(t).Round(time.Second).String() },
	}}.Render(loaded, top)
	if err != nil {
		return nil, false, err
	}
	random = mayMakeAnew(loaded, values)
	var crds []*unstructured.Unstructured // which Helm applies before, and nothing is done with
	if spec.Install == nil || spec.Install.CRDs != helmv2.Skip || spec.Upgrade != nil && (spec.Upgrade.CRDs == helmv2.Create || spec.Upgrade.CRDs == helmv2.CreateReplace) {
		for _, crd := range loaded.CRDObjects() {
			objects, err := c.decode(crd.Filename, crd.File.Data)
			if err != nil {
				return nil, false, err
			}
			for _, o := range objects { // Helm never deletes them
				o.SetAnnotations(added(o.GetAnnotations(), map[string]string{"helm.sh/resource-policy": "keep"}))
			}
			crds = append(crds, objects...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasPrefix(path.Base(name), "_") || path.Base(name) == "NOTES.txt" {
			continue
		}
		objects, err := c.decode(name, []byte(files[name]))
		if err != nil {
			return nil, false, err
		}
		out = append(out, objects...)
	}
	out = slices.DeleteFunc(out, func(o *unstructured.Unstructured) bool { // tests are run when somebody asks for them
		return slices.ContainsFunc(strings.Split(o.GetAnnotations()["helm.sh/hook"], ","), func(h string) bool { return strings.HasPrefix(strings.TrimSpace(h), "test") })
	})
	cluster := map[schema.GroupKind]bool{} // kinds of its own that are in no namespace
	for _, o := range slices.Concat(crds, out) {
		if scope, _, _ := unstructured.NestedString(o.Object, "spec", "scope"); o.GetKind() == "CustomResourceDefinition" && scope == "Cluster" {
			group, _, _ := unstructured.NestedString(o.Object, "spec", "group")
			kind, _, _ := unstructured.NestedString(o.Object, "spec", "names", "kind")
			cluster[schema.GroupKind{Group: group, Kind: kind}] = true
		}
	}
	for _, o := range out {
		namespaced, known := openapi.IsNamespaceScoped(kyaml.TypeMeta{APIVersion: o.GetAPIVersion(), Kind: o.GetKind()})
		if o.GetNamespace() == "" && (namespaced || !known && !cluster[o.GroupVersionKind().GroupKind()]) {
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
	return append(crds, out...), random, nil
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
		resources, err := runKustomize(fs, ".")
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
