package application

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
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

func checkSource(s *appsv1.ApplicationSource) error {
	n := 0
	for _, set := range []bool{s.GitRepository != nil, s.HelmRepository != nil, s.OCIRepository != nil, s.Bucket != nil, s.SourceRef != nil} {
		if set {
			n++
		}
	}
	if n != 1 {
		return fmt.Errorf("spec.source: exactly one of gitRepository, helmRepository, ociRepository, bucket and sourceRef is needed")
	}
	return nil
}

// sourceRef returns the kind and name of the Application's source.
func sourceRef(app *appsv1.Application) (kind, name string) {
	switch s := &app.Spec.Source; {
	case s.SourceRef != nil:
		return s.SourceRef.Kind, s.SourceRef.Name
	case s.GitRepository != nil:
		return gitRepository, app.Name
	case s.OCIRepository != nil:
		return ociRepository, app.Name
	case s.Bucket != nil:
		return bucket, app.Name
	default:
		return helmRepository, app.Name
	}
}

// compileSources adds the source object that the Application declares. The charts in it are added with their policies.
func (p *Program) compileSources(app *appsv1.Application) error {
	var spec any
	s := app.Spec.Source.DeepCopy()
	switch {
	case s.SourceRef != nil:
		return nil
	case s.GitRepository != nil:
		if s.GitRepository.GitImplementation != "" {
			p.ignores("spec.source.gitRepository.gitImplementation")
		}
		if s.GitRepository.AccessFrom != nil {
			p.ignores("spec.source.gitRepository.accessFrom")
		}
		s.GitRepository.Interval = p.interval(&s.GitRepository.Interval, "spec.source.gitRepository.interval")
		spec = s.GitRepository.GitRepositorySpec
	case s.OCIRepository != nil:
		s.OCIRepository.Interval = p.interval(&s.OCIRepository.Interval, "spec.source.ociRepository.interval")
		if s.OCIRepository.LayerSelector == nil && p.onlyHelm() {
			s.OCIRepository.LayerSelector = chartLayer()
		}
		spec = *s.OCIRepository
	case s.Bucket != nil:
		s.Bucket.Interval = p.interval(&s.Bucket.Interval, "spec.source.bucket.interval")
		spec = *s.Bucket
	default:
		if s.HelmRepository.AccessFrom != nil {
			p.ignores("spec.source.helmRepository.accessFrom")
			s.HelmRepository.AccessFrom = nil
		}
		if s.HelmRepository.Type == sourcev1.HelmRepositoryTypeOCI && !p.usesHelmRepository(app) {
			return nil // its charts are OCIRepositories
		}
		s.HelmRepository.Interval = p.interval(&s.HelmRepository.Interval, "spec.source.helmRepository.interval")
		spec = *s.HelmRepository
	}
	kind, name := sourceRef(app)
	o := p.source(kind, name, nil, spec)
	p.sources = slices.Insert(p.sources, 0, o) // before the charts in it
	return o.Seal()
}

func (p *Program) onlyHelm() bool {
	for _, policy := range p.policies {
		if policy.Kind != helmv2.HelmReleaseKind {
			return false
		}
	}
	return true
}

func (p *Program) usesHelmRepository(app *appsv1.Application) bool {
	for _, policy := range app.Spec.SyncPolicies {
		if policy.Helm != nil && policy.Helm.ChartKind == helmChart {
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
	kind, name := sourceRef(app)
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
	repository := app.Spec.Source.HelmRepository
	if repository != nil && repository.Type == sourcev1.HelmRepositoryTypeOCI && app.Spec.SyncPolicies[policy.index].Helm.ChartKind != helmChart {
		spec, err := ociChart(repository, c)
		if err != nil {
			return nil, err
		}
		o = p.source(ociRepository, name, policy, *spec)
	} else {
		kind, source := sourceRef(app)
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
