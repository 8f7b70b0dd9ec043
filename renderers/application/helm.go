package application

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// maxReleaseName is Helm's own limit.
const maxReleaseName = 53

// release is a HelmRelease's spec before it is a member's: chart is set where the chart differs between members.
type release struct {
	helmv2.HelmReleaseSpec `json:",inline"`
	// TemplatedChart is a chart that holds a template, and so is not shared by all members. It takes the place of the
	// chart that Flux would make an object of for each HelmRelease.
	TemplatedChart *appsv1.HelmChartTemplate `json:"chart,omitempty"`
}

func (p *Program) compileHelm(app *appsv1.Application, policy *Policy) (func([]override) (*variant, error), error) {
	i := policy.index
	declared := app.Spec.SyncPolicies[i].Helm.DeepCopy()
	chart := declared.Chart
	declared.Chart, declared.ChartKind = nil, ""
	spec, err := convert[helmv2.HelmReleaseSpec](declared)
	if err != nil {
		return nil, fmt.Errorf("helm: %w", err)
	}
	base := &release{HelmReleaseSpec: *spec}
	base.Interval = p.interval(declared.Interval, "spec.syncPolicies[%d].helm.interval", i)
	defaultRelease(p, policy, base)
	if err := p.compileChart(app, policy, base, chart); err != nil {
		return nil, fmt.Errorf("helm: %w", err)
	}

	return func(matched []override) (*variant, error) {
		merged := *base
		values, err := mergeValues(base.Values, matched)
		if err != nil {
			return nil, err
		}
		merged.Values = values
		v, err := newVariant(&merged)
		if err != nil {
			return nil, fmt.Errorf("helm: %w", err)
		}
		return v, nil
	}, nil
}

// defaultRelease sets what Flux would default for one cluster, and not for many.
func defaultRelease(p *Program, policy *Policy, r *release) {
	if r.ReleaseName == "" {
		r.ReleaseName = object.Name(maxReleaseName, p.name, policy.Name)
	}
	if r.TargetNamespace == "" {
		r.TargetNamespace = p.namespace
	}
	// Flux's default is the hub's namespace, which the member does not have.
	if r.StorageNamespace == "" {
		r.StorageNamespace = r.TargetNamespace
	}
	if r.DriftDetection == nil {
		r.DriftDetection = &helmv2.DriftDetection{}
	}
	if r.DriftDetection.Mode == "" {
		r.DriftDetection.Mode = helmv2.DriftDetectionEnabled
	}
	if r.Install == nil {
		r.Install = &helmv2.Install{}
	}
	r.Install.CreateNamespace = true
	// Remediation that has used up its retries ends for good; a member that was away for a while should catch up.
	if r.Install.Strategy == nil && r.Install.Remediation == nil {
		r.Install.Strategy = &helmv2.InstallStrategy{Name: string(helmv2.ActionStrategyRetryOnFailure)}
	}
	if r.Upgrade == nil {
		r.Upgrade = &helmv2.Upgrade{}
	}
	if r.Upgrade.Strategy == nil && r.Upgrade.Remediation == nil {
		r.Upgrade.Strategy = &helmv2.UpgradeStrategy{Name: string(helmv2.ActionStrategyRetryOnFailure)}
	}
}

// mergeValues merges the values of overrides over a policy's, in order, as Helm merges values files.
func mergeValues(base *apiextensionsv1.JSON, matched []override) (*apiextensionsv1.JSON, error) {
	merged, err := decodeValues(base)
	if err != nil {
		return nil, fmt.Errorf("helm.values: %w", err)
	}
	for _, o := range matched {
		if o.Helm == nil {
			continue
		}
		over, err := decodeValues(o.Helm.Values)
		if err != nil {
			return nil, fmt.Errorf("overrides: helm.values: %w", err)
		}
		merged = MergeValues(merged, over)
	}
	if merged == nil {
		return nil, nil
	}
	b, err := json.Marshal(merged)
	return &apiextensionsv1.JSON{Raw: b}, err
}

func decodeValues(values *apiextensionsv1.JSON) (map[string]any, error) {
	if values == nil || len(values.Raw) == 0 {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(values.Raw))
	d.UseNumber()
	var out map[string]any
	if err := d.Decode(&out); err != nil {
		return nil, errors.New("has to be a map")
	}
	return out, nil
}

// MergeValues returns base with over on top, as Helm merges values. Maps are merged; anything else, lists and nulls too, replaces what was there:
// a null has to reach Helm, where it takes the chart's default away.
func MergeValues(base, over map[string]any) map[string]any {
	if base == nil {
		return over
	}
	out := make(map[string]any, len(base)+len(over))
	for k, v := range base {
		out[k] = v
	}
	for k, v := range over {
		b, bok := out[k].(map[string]any)
		o, ook := v.(map[string]any)
		if bok && ook {
			v = MergeValues(b, o)
		}
		out[k] = v
	}
	return out
}
