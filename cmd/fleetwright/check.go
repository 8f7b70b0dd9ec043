package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/baseline"
	"github.com/fleetwright/fleetwright/renderers/compat"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/repository"
)

// check adds to the problems what members cannot take of the published files.
func check(rendered *repository.Rendered) error {
	deliveries, err := deliveries(rendered)
	if err != nil {
		return err
	}
	for _, f := range compat.Check(deliveries) {
		for _, name := range f.Members {
			rendered.Problems = append(rendered.Problems, application.Problem{
				Namespace: f.Namespace, Application: f.Application, Policy: f.Policy, Member: name, Reason: f.Reason, Message: f.Message, Warning: true,
			})
		}
	}
	return nil
}

// deliveries returns what the Kustomizations on published files put on members; those that get the same together, as each
// is a run of kustomize.
func deliveries(rendered *repository.Rendered) ([]compat.Delivery, error) {
	type id struct {
		namespace string
		member.Key
	}
	kubernetes := map[id]string{}
	for _, c := range rendered.Declared.AttachedClusters {
		kubernetes[id{c.Namespace, member.Key{Kind: clusterv1.AttachedClusterKind, Name: c.Name}}] = c.Status.KubernetesVersion
	}
	for _, c := range rendered.Declared.Clusters {
		kubernetes[id{c.Namespace, member.Key{Kind: clusterv1.ClusterKind, Name: c.Name}}] = c.Status.KubernetesVersion
	}

	type alike struct{ namespace, application, policy, path, patches string }
	var out []compat.Delivery
	places := map[alike]int{}
	for _, r := range rendered.Objects {
		spec, ok := r.Spec.(*kustomizev1.KustomizationSpec)
		files := rendered.Files(r)
		if !ok || files == nil {
			continue
		}
		patches, err := json.Marshal(spec.Patches)
		if err != nil {
			return nil, err
		}
		key := alike{r.Metadata.Namespace, r.Application, r.Policy, spec.Path, string(patches)}
		i, ok := places[key]
		if !ok {
			b, err := baseline.Expand(files, spec.Patches, spec.Path)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.Ref(), err)
			}
			objects, err := decodeAll(b)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.Ref(), err)
			}
			kind, name := rendered.Written(r.Metadata.Namespace, r.Application)
			i, places[key] = len(out), len(out)
			out = append(out, compat.Delivery{Namespace: r.Metadata.Namespace, Application: r.Application, Policy: r.Policy, Owner: kind + " " + name, Objects: objects})
		}
		out[i].Members = append(out[i].Members, compat.Member{Key: r.Member, Kubernetes: kubernetes[id{r.Metadata.Namespace, r.Member}]})
	}
	return out, nil
}

// decodeAll reads the documents of a YAML stream.
func decodeAll(b []byte) (out []*unstructured.Unstructured, err error) {
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(b), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := d.Decode(&o.Object); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		if o.Object != nil {
			out = append(out, o)
		}
	}
}
