package application

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/object"
	"github.com/fleetwright/fleetwright/renderers/template"
)

// The kinds of Flux sources.
const (
	gitRepository    = sourcev1.GitRepositoryKind
	ociRepository    = sourcev1.OCIRepositoryKind
	bucket           = sourcev1.BucketKind
	helmRepository   = sourcev1.HelmRepositoryKind
	helmChart        = sourcev1.HelmChartKind
	externalArtifact = sourcev1.ExternalArtifactKind
)

func checkSource(s *appsv1.ApplicationSource, path string) error {
	n := 0
	for _, set := range []bool{s.GitRepository != nil, s.HelmRepository != nil, s.OCIRepository != nil, s.Bucket != nil, s.SourceRef != nil} {
		if set {
			n++
		}
	}
	if n != 1 {
		return fmt.Errorf("%s: exactly one of gitRepository, helmRepository, ociRepository, bucket and sourceRef is needed", path)
	}
	return nil
}

// policySource is where a policy's manifests or charts come from.
type policySource struct {
	*appsv1.ApplicationSource
	// name of the source object, where it is not a reference.
	name string
	// path of the field, and the policy whose own source it is; nil for the Application's.
	path   string
	policy *Policy
}

// sourceOf returns the source of the i-th policy: its own, or the Application's.
func sourceOf(app *appsv1.Application, i int) policySource {
	if own := app.Spec.SyncPolicies[i].Source; own != nil {
		return policySource{ApplicationSource: own, name: object.Name(MaxNameLength, app.Name, PolicyName(app, i)), path: fmt.Sprintf("spec.syncPolicies[%d].source", i)}
	}
	return policySource{ApplicationSource: &app.Spec.Source, name: app.Name, path: "spec.source"}
}

// ref returns the kind and name of the source.
func (s policySource) ref() (kind, name string) {
	switch {
	case s.SourceRef != nil:
		return s.SourceRef.Kind, s.SourceRef.Name
	case s.GitRepository != nil:
		return gitRepository, s.name
	case s.OCIRepository != nil:
		return ociRepository, s.name
	case s.Bucket != nil:
		return bucket, s.name
	default:
		return helmRepository, s.name
	}
}

// compileSources adds the source objects that the Application declares, before the charts in them, which are added with
// their policies.
func (p *Program) compileSources(app *appsv1.Application) error {
	var sources []*object.Object
	seen := map[string]bool{}
	for i, policy := range p.policies {
		s := sourceOf(app, i)
		if seen[s.name] {
			continue
		}
		seen[s.name] = true
		if app.Spec.SyncPolicies[i].Source != nil {
			s.policy = policy
		}
		o, err := p.compileSource(app, s)
		if err != nil {
			return err
		}
		if o != nil {
			sources = append(sources, o)
		}
	}
	p.sources = append(sources, p.sources...) // a repository before the charts in it
	return nil
}

// compileSource returns the object of a source; nil if there is none to be made.
func (p *Program) compileSource(app *appsv1.Application, s policySource) (*object.Object, error) {
	kind, name := s.ref()
	var spec any
	declared := s.DeepCopy()
	switch {
	case declared.SourceRef != nil:
		return nil, nil
	case declared.GitRepository != nil:
		if declared.GitRepository.GitImplementation != "" {
			p.ignores("%s.gitRepository.gitImplementation", s.path)
		}
		if declared.GitRepository.AccessFrom != nil {
			p.ignores("%s.gitRepository.accessFrom", s.path)
		}
		declared.GitRepository.Interval = p.interval(&declared.GitRepository.Interval, "%s.gitRepository.interval", s.path)
		spec = declared.GitRepository.GitRepositorySpec
	case declared.OCIRepository != nil:
		declared.OCIRepository.Interval = p.interval(&declared.OCIRepository.Interval, "%s.ociRepository.interval", s.path)
		if declared.OCIRepository.LayerSelector == nil && p.onlyHelm(app, name) {
			declared.OCIRepository.LayerSelector = chartLayer()
		}
		spec = *declared.OCIRepository
	case declared.Bucket != nil:
		declared.Bucket.Interval = p.interval(&declared.Bucket.Interval, "%s.bucket.interval", s.path)
		spec = *declared.Bucket
	default:
		if declared.HelmRepository.AccessFrom != nil {
			p.ignores("%s.helmRepository.accessFrom", s.path)
			declared.HelmRepository.AccessFrom = nil
		}
		if declared.HelmRepository.Type == sourcev1.HelmRepositoryTypeOCI && !usesHelmRepository(app, name) {
			return nil, nil // its charts are OCIRepositories
		}
		declared.HelmRepository.Interval = p.interval(&declared.HelmRepository.Interval, "%s.helmRepository.interval", s.path)
		spec = *declared.HelmRepository
	}
	o := p.source(kind, name, s.policy, spec)
	return o, o.Seal()
}

// onlyHelm says whether all policies that use a source are charts.
func (p *Program) onlyHelm(app *appsv1.Application, source string) bool {
	for i, policy := range p.policies {
		if sourceOf(app, i).name == source && policy.Kind != helmv2.HelmReleaseKind {
			return false
		}
	}
	return true
}

func usesHelmRepository(app *appsv1.Application, source string) bool {
	for i, policy := range app.Spec.SyncPolicies {
		if sourceOf(app, i).name == source && policy.Helm != nil && policy.Helm.ChartKind == helmChart {
			return true
		}
	}
	return false
}

func (p *Program) source(kind, name string, policy *Policy, spec any) *object.Object {
	return &object.Object{APIVersion: sourcev1.GroupVersion.String(), Kind: kind, Metadata: p.metadata(name, policy), Spec: spec}
}

// compileChart makes the chart of a policy an object that all members share, and refers to it.
func (p *Program) compileChart(app *appsv1.Application, policy *Policy, r *release, chart *appsv1.HelmChartTemplate) error {
	kind, name := sourceOf(app, policy.index).ref()
	switch kind {
	case ociRepository, helmChart, externalArtifact:
		if chart != nil {
			return fmt.Errorf("chart: an %s is the chart itself: leave chart out, and pin the version in the source", kind)
		}
		r.ChartRef = &helmv2.CrossNamespaceSourceReference{Kind: kind, Name: name}
		return nil
	}
	if chart == nil {
		return fmt.Errorf("chart is missing: say which chart of the source to install, chart.spec.chart")
	}
	if chart.Spec.Interval == nil {
		chart.Spec.Interval = &r.Interval
	}
	interval := p.interval(chart.Spec.Interval, "spec.syncPolicies[%d].helm.chart.spec.interval", policy.index)
	chart.Spec.Interval = &interval

	tree, err := toTree(chart)
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	value, err := template.Compile(tree)
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	if !value.Static() {
		r.TemplatedChart = chart
		policy.chart = func(c *appsv1.HelmChartTemplate) (*object.Object, error) {
			b, err := json.Marshal(c)
			if err != nil {
				return nil, err
			}
			sum := sha256.Sum256(b)
			return p.chartObject(app, policy, c, object.Name(MaxNameLength, p.name, policy.Name, hex.EncodeToString(sum[:5])))
		}
		return nil
	}
	o, err := p.chartObject(app, policy, chart, object.Name(MaxNameLength, p.name, policy.Name))
	if err != nil {
		return err
	}
	r.ChartRef = &helmv2.CrossNamespaceSourceReference{Kind: o.Kind, Name: o.Metadata.Name}
	p.sources = append(p.sources, o)
	return nil
}

func (p *Program) chartObject(app *appsv1.Application, policy *Policy, c *appsv1.HelmChartTemplate, name string) (*object.Object, error) {
	var o *object.Object
	from := sourceOf(app, policy.index)
	repository := from.HelmRepository
	if repository != nil && repository.Type == sourcev1.HelmRepositoryTypeOCI && app.Spec.SyncPolicies[policy.index].Helm.ChartKind != helmChart {
		spec, err := ociChart(repository, c)
		if err != nil {
			return nil, err
		}
		o = p.source(ociRepository, name, policy, *spec)
	} else {
		kind, source := from.ref()
		spec := sourcev1.HelmChartSpec{
			Chart:                    c.Spec.Chart,
			Version:                  c.Spec.Version,
			SourceRef:                sourcev1.LocalHelmChartSourceReference{Kind: kind, Name: source},
			Interval:                 *c.Spec.Interval,
			ReconcileStrategy:        c.Spec.ReconcileStrategy,
			ValuesFiles:              c.Spec.ValuesFiles,
			IgnoreMissingValuesFiles: c.Spec.IgnoreMissingValuesFiles,
		}
		if v := c.Spec.Verify; v != nil {
			spec.Verify = &sourcev1.HelmChartVerification{Provider: v.Provider, SecretRef: v.SecretRef}
		}
		o = p.source(helmChart, name, policy, spec)
	}
	if c.Metadata != nil {
		for k, v := range c.Metadata.Labels {
			if _, ours := o.Metadata.Labels[k]; !ours {
				o.Metadata.Labels[k] = v
			}
		}
		for k, v := range c.Metadata.Annotations {
			if o.Metadata.Annotations == nil {
				o.Metadata.Annotations = map[string]string{}
			}
			o.Metadata.Annotations[k] = v
		}
	}
	return o, o.Seal()
}

var exactVersion = regexp.MustCompile(`^v?[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)

// ociChart makes one chart of an OCI Helm repository an OCIRepository.
func ociChart(r *sourcev1.HelmRepositorySpec, c *appsv1.HelmChartTemplate) (*sourcev1.OCIRepositorySpec, error) {
	if len(c.Spec.ValuesFiles) > 0 {
		return nil, fmt.Errorf("chart.spec.valuesFiles: a chart fetched as OCIRepository has none: put the values into helm.values, or set helm.chartKind: HelmChart")
	}
	spec := &sourcev1.OCIRepositorySpec{
		URL:           strings.TrimSuffix(r.URL, "/") + "/" + c.Spec.Chart,
		LayerSelector: chartLayer(),
		Provider:      r.Provider,
		SecretRef:     r.SecretRef,
		CertSecretRef: r.CertSecretRef,
		Interval:      *c.Spec.Interval,
		Timeout:       r.Timeout,
		Insecure:      r.Insecure,
		Suspend:       r.Suspend,
	}
	switch v := c.Spec.Version; {
	case v == "":
		spec.Reference = &sourcev1.OCIRepositoryRef{SemVer: "*"}
	case exactVersion.MatchString(v):
		// Helm writes the + of a version, which a tag may not have, as _.
		spec.Reference = &sourcev1.OCIRepositoryRef{Tag: strings.ReplaceAll(v, "+", "_")}
	default:
		spec.Reference = &sourcev1.OCIRepositoryRef{SemVer: v}
	}
	if v := c.Spec.Verify; v != nil {
		spec.Verify = &sourcev1.OCIRepositoryVerification{Provider: v.Provider, SecretRef: v.SecretRef}
	}
	return spec, nil
}

// chartLayer selects the layer of an OCI artifact that Helm puts charts into.
// https://helm.sh/docs/topics/registries/#helm-chart-manifest
func chartLayer() *sourcev1.OCILayerSelector {
	return &sourcev1.OCILayerSelector{
		MediaType: "application/vnd.cncf.helm.chart.content.v1.tar+gzip",
		Operation: sourcev1.OCILayerCopy,
	}
}
