package plugin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// chart makes the policy a release of a chart.
func (r *rendering) chart(policy *appsv1.ApplicationSyncPolicy, k *Component) error {
	chart := *k.Chart
	for _, o := range r.options(k) {
		if c := o.Chart; c != nil {
			if c.Repository != "" && c.Repository != chart.Repository || c.Name != "" && c.Name != chart.Name || c.Version != "" && c.Version != chart.Version {
				chart.Digest = "" // of another chart
			}
			chart.Repository, chart.Name, chart.Version = cmp.Or(c.Repository, chart.Repository), cmp.Or(c.Name, chart.Name), cmp.Or(c.Version, chart.Version)
		}
	}
	if err := checkRepository(chart.Repository); err != nil {
		return err
	}
	namespace, err := r.some("namespace", k.Namespace)
	if err != nil {
		return err
	}
	got, _, err := r.env.expand(k.Values, varFleet, r.values, "values")
	if err != nil {
		return err
	}
	values, _ := got.(map[string]any)
	user, err := r.extraArgs(k)
	if err != nil {
		return err
	}
	release, err := r.some("release", cmp.Or(k.Release, lower(k.Name)))
	if err != nil {
		return err
	}
	h, err := r.release(release, namespace, application.MergeValues(values, user))
	if err != nil {
		return err
	}
	crds := helmv2.CRDsPolicy(cmp.Or(k.CRDs, string(helmv2.CreateReplace)))
	h.Install, h.Upgrade = &helmv2.Install{CRDs: crds}, &helmv2.Upgrade{CRDs: crds}
	h.HealthCheckExprs = k.HealthCheckExprs
	if k.Timeout != nil {
		h.Timeout = k.Timeout
	}
	for _, v := range k.ValuesFrom {
		ref := meta.ValuesReference{Kind: "Secret", ValuesKey: v.Key, TargetPath: v.TargetPath, Literal: true}
		if v.SecretName != "" {
			if ref.Name, err = r.env.text(v.SecretName, varConfig, r.values); err != nil {
				return fmt.Errorf("valuesFrom: %w", err)
			}
			if ref.Name == "" {
				continue
			}
		} else {
			ref.Name, ref.ValuesKey = Name(r.in.Fleet.Name, r.Metadata.Name), r.kept(cmp.Or(v.Fact, v.Generated))
		}
		h.ValuesFrom = append(h.ValuesFrom, ref)
	}
	policy.Helm = h
	policy.Source, h.Chart = source(chart)
	return nil
}

// source returns where a chart comes from.
func source(c Chart) (*appsv1.ApplicationSource, *appsv1.HelmChartTemplate) {
	repository := &sourcev1.HelmRepositorySpec{URL: c.Repository, Interval: metav1.Duration{Duration: application.DefaultInterval}}
	if c.Digest == "" {
		if strings.HasPrefix(c.Repository, "oci://") {
			repository.Type = sourcev1.HelmRepositoryTypeOCI
		}
		return &appsv1.ApplicationSource{HelmRepository: repository},
			&appsv1.HelmChartTemplate{Spec: appsv1.HelmChartTemplateSpec{Chart: c.Name, Version: c.Version}}
	}
	return &appsv1.ApplicationSource{OCIRepository: &sourcev1.OCIRepositorySpec{
		URL: strings.TrimSuffix(c.Repository, "/") + "/" + c.Name, Reference: &sourcev1.OCIRepositoryRef{Digest: c.Digest},
		Interval: metav1.Duration{Duration: application.DefaultInterval},
	}}, nil
}

// maxReleaseName is Helm's own limit.
const maxReleaseName = 53

func (r *rendering) release(name, namespace string, values map[string]any) (*appsv1.HelmRelease, error) {
	h := &appsv1.HelmRelease{
		ReleaseName: object.Name(maxReleaseName, name), TargetNamespace: namespace, StorageNamespace: namespace,
		Interval: &metav1.Duration{Duration: application.DefaultInterval}, Timeout: &metav1.Duration{Duration: installTimeout},
	}
	if len(values) > 0 {
		b, err := json.Marshal(values)
		if err != nil {
			return nil, fmt.Errorf("values: %w", err)
		}
		h.Values = &apiextensionsv1.JSON{Raw: b}
	}
	return h, nil
}

// some evaluates a template that may not be empty.
func (r *rendering) some(field, template string) (string, error) {
	text, err := r.env.text(template, varConfig, r.values)
	if err == nil && text == "" {
		err = errors.New("is empty")
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", field, err)
	}
	return text, nil
}

// checkRepository refuses what Flux refuses.
func checkRepository(url string) error {
	for _, prefix := range []string{"oci://", "https://", "http://"} {
		if strings.HasPrefix(url, prefix) {
			return nil
		}
	}
	return fmt.Errorf("chart.repository: %q: has to begin with oci:// or https://", url)
}

// options returns what the fleet says of a component: by the plugin's own field, and by its name.
func (r *rendering) options(k *Component) []fleetv1.PluginChart {
	var out []fleetv1.PluginChart
	if k.Options != "" {
		at := any(r.in.Use.Config)
		if k.Options != "." {
			for _, part := range strings.Split(k.Options, ".") {
				m, _ := at.(map[string]any)
				at = m[part]
			}
		}
		if m, ok := at.(map[string]any); ok {
			var o fleetv1.PluginChart
			if b, err := json.Marshal(map[string]any{"chart": m["chart"], "extraArgs": m["extraArgs"]}); err == nil && json.Unmarshal(b, &o) == nil {
				out = append(out, o)
			}
		}
	}
	if o, ok := r.in.Use.Components[k.Name]; ok {
		out = append(out, o)
	}
	return out
}

// extraArgs returns the values that the fleet gives a component.
func (r *rendering) extraArgs(k *Component) (map[string]any, error) {
	var out map[string]any
	for _, o := range r.options(k) {
		if o.ExtraArgs == nil || string(o.ExtraArgs.Raw) == "null" {
			continue
		}
		got, err := decode(o.ExtraArgs.Raw)
		if err != nil {
			return nil, errors.New("extraArgs: has to be a map")
		}
		out = application.MergeValues(out, got)
	}
	return out, nil
}

func decode(raw []byte) (map[string]any, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var out map[string]any
	return out, d.Decode(&out)
}

// native makes numbers what expressions can count with.
func native(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, item := range v {
			out[k] = native(item)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = native(v[i])
		}
		return out
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		f, _ := v.Float64()
		return f
	}
	return v
}
