package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	templates "github.com/fleetwright/fleetwright/fleet-templates"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/baseline"
)

const retryInterval = time.Minute

// objects makes the policy one that applies objects.
func (r *rendering) objects(policy *appsv1.ApplicationSyncPolicy, k *Component) error {
	patches, err := r.files(k)
	if err != nil {
		return err
	}
	policy.Kustomization = &appsv1.Kustomization{
		Path: "./" + k.Name, Prune: new(true), Wait: true, Patches: patches,
		Interval: &metav1.Duration{Duration: application.DefaultInterval}, RetryInterval: &metav1.Duration{Duration: retryInterval},
		Timeout: &metav1.Duration{Duration: applyTimeout}, HealthCheckExprs: k.HealthCheckExprs,
	}
	if k.Timeout != nil {
		policy.Kustomization.Timeout = k.Timeout
	}
	if r.deletionPolicy() == appsv1.DeletionPolicyDelete {
		// What these objects need to end, the operator of a custom resource say, ends after them.
		policy.Kustomization.DeletionPolicy = kustomizev1.DeletionPolicyWaitForTermination
	}
	return nil
}

// files renders the objects of a component to files in a folder of its name, and returns the patches with member facts.
func (r *rendering) files(k *Component) (patches []kustomize.Patch, err error) {
	items := make([]any, len(k.Objects))
	for i := range k.Objects {
		items[i] = native(k.Objects[i])
	}
	got, _, err := r.env.expand(items, varConfig, r.values, "objects")
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for i, item := range got.([]any) {
		fields, ok := item.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("objects[%d]: has to be an object", i)
		}
		o := &unstructured.Unstructured{Object: fields}
		if o.GetKind() == "Secret" || strings.HasSuffix(o.GetKind(), "List") {
			return nil, fmt.Errorf("objects[%d]: a %s is not published: use secret, and objects one by one", i, o.GetKind())
		}
		if o.GetAPIVersion() == "" || o.GetKind() == "" || o.GetName() == "" {
			return nil, fmt.Errorf("objects[%d]: apiVersion, kind and metadata.name are needed", i)
		}
		objects = append(objects, o)
	}
	files, patches, err := baseline.Manifests(objects)
	if err != nil {
		return nil, err
	}
	if r.out.Files == nil {
		r.out.Files = map[string][]byte{}
	}
	for name, content := range files {
		r.out.Files[k.Name+"/"+name] = content
	}
	return patches, nil
}

// secret makes the policy a release of the chart that makes a Secret of what Flux reads from Secrets of the hub.
func (r *rendering) secret(policy *appsv1.ApplicationSyncPolicy, k *Component) error {
	r.out.Chart = secretChart()
	data, from := map[string]any{}, []meta.ValuesReference{}
	for _, key := range slices.Sorted(maps.Keys(k.Secret.Data)) {
		var parts []any
		for _, part := range k.Secret.Data[key] {
			if part.SecretName == "" {
				parts = append(parts, map[string]any{"text": part.Text})
				continue
			}
			name, err := r.env.text(part.SecretName, varConfig, r.values)
			if err != nil {
				return fmt.Errorf("secret: %w", err)
			}
			if name == "" {
				return errors.New("secret: no Secret is named")
			}
			value := fmt.Sprintf("v%d", len(from))
			from = append(from, meta.ValuesReference{Kind: "Secret", Name: name, ValuesKey: part.Key, TargetPath: "secrets." + value, Literal: true})
			parts = append(parts, map[string]any{"from": value})
		}
		data[key] = parts
	}
	name, err := r.some("secret.name", k.Secret.Name)
	if err != nil {
		return err
	}
	namespace, err := r.some("secret.namespace", k.Secret.Namespace)
	if err != nil {
		return err
	}
	if policy.Helm, err = r.release(lower(k.Name), namespace, map[string]any{"name": name, "data": data}); err != nil {
		return err
	}
	policy.Helm.ValuesFrom = from
	policy.Source = &appsv1.ApplicationSource{SourceRef: &appsv1.SourceReference{
		Kind: sourcev1.ExternalArtifactKind, Name: ChartName(r.in.Fleet.Name, r.Metadata.Name)}}
	return nil
}

// secretChart returns the files of the chart, in the folder that Helm expects in an archive.
func secretChart() map[string][]byte {
	files := map[string][]byte{}
	err := fs.WalkDir(templates.FS, "secret", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		files[path], err = fs.ReadFile(templates.FS, path)
		return err
	})
	if err != nil {
		panic(err) // it is embedded
	}
	return files
}
