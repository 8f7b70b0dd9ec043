package contents

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/resource"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/fleetwright/fleetwright/cmd/fleetwright/manifest"
	"github.com/fleetwright/fleetwright/renderers/application"
)

// originAnnotation is where kustomize says which file an object is from.
const originAnnotation = "config.kubernetes.io/origin"

// Origin is where an object that is put on a member is written. The file is empty if that is not known.
type Origin struct {
	manifest.Position
	// Chart and Version are those of the chart, and Template is the file in it; empty if it is from none.
	Chart, Version, Template string
}

// Origin returns where an object of a child is written. Of published files, which nobody has written, nothing is known here.
func (c *Contents) Origin(x *application.Rendered, o *unstructured.Unstructured) (out Origin) {
	var from resource.Origin
	if sigsyaml.Unmarshal([]byte(o.GetAnnotations()[originAnnotation]), &from) != nil || c.Rendered.Files(*x) != nil {
		return out
	}
	path := filepath.FromSlash(cmp.Or(from.Path, from.ConfiguredIn))
	switch spec := x.Spec.(type) {
	case *kustomizev1.KustomizationSpec:
		folder, err := c.folder(x, spec)
		if err != nil || path == "" {
			return out
		}
		out.Position = written(filepath.Join(folder, filepath.FromSlash(spec.Path), path), o, from.ConfiguredBy.Kind)
	case *helmv2.HelmReleaseSpec:
		chart, err := c.chart(x, spec)
		if err != nil {
			return out
		}
		out.Chart, out.Version, out.File = chart.name, chart.version, chart.path
		_, out.Template, _ = strings.Cut(path, string(filepath.Separator)) // the first is the name of the chart
		if filepath.Ext(chart.path) != ".tgz" {
			out.File = filepath.Join(chart.path, out.Template)
		}
	}
	return out
}

// written returns where in a file an object is, or the generator that makes it. Kustomize may have put something before and
// after its name.
func written(file string, o *unstructured.Unstructured, generator string) manifest.Position {
	at, length := manifest.Position{File: file}, -1
	documents, _ := manifest.Load([]string{file}, nil) // it was read before
	for i := range documents {
		d := &unstructured.Unstructured{Object: documents[i].Object}
		switch {
		case generator != "":
			field := strings.ToLower(generator[:1]) + generator[1:] // configMapGenerator
			at = documents[i].At(field)
			items, _, _ := unstructured.NestedSlice(d.Object, field)
			for j := range items {
				item, _ := items[j].(map[string]any)
				if name, _ := item["name"].(string); name != "" && strings.Contains(o.GetName(), name) {
					at = documents[i].At(fmt.Sprintf("%s[%d]", field, j))
				}
			}
		case d.GetKind() == o.GetKind() && len(d.GetName()) > length && strings.Contains(o.GetName(), d.GetName()):
			at, length = documents[i].Start, len(d.GetName())
		}
	}
	return at
}

// decode reads the objects of a file of a chart, which may have to say that they are from there.
func (c *Contents) decode(name string, data []byte) ([]*unstructured.Unstructured, error) {
	objects, err := decode(name, data)
	if c.Origins {
		for _, o := range objects {
			o.SetAnnotations(added(o.GetAnnotations(), map[string]string{originAnnotation: "path: " + name}))
		}
	}
	return objects, err
}
