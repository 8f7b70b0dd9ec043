package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/opencontainers/go-digest"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
)

// chartSource is an object whose artifact is a chart.
type chartSource interface {
	client.Object
	GetArtifact() *meta.Artifact
}

// chartSources are the kinds that chartRef may name.
var chartSources = map[string]func() chartSource{
	sourcev1.HelmChartKind:        func() chartSource { return &sourcev1.HelmChart{} },
	sourcev1.OCIRepositoryKind:    func() chartSource { return &sourcev1.OCIRepository{} },
	sourcev1.ExternalArtifactKind: func() chartSource { return &sourcev1.ExternalArtifact{} },
}

// loadChart downloads the chart of a HelmRelease and checks that it is what the source says.
func (r *reconciler) loadChart(ctx context.Context, hr *helmv2.HelmRelease) (*chart.Chart, *meta.Artifact, error) {
	ref := hr.Spec.ChartRef
	if ref == nil {
		return nil, nil, errors.New("helm-standin needs chartRef")
	}
	newSource := chartSources[ref.Kind]
	if newSource == nil {
		return nil, nil, fmt.Errorf("helm-standin does not know the chart source %s", ref.Kind)
	}
	source, key := newSource(), types.NamespacedName{Namespace: hr.Namespace, Name: ref.Name}
	if err := r.Get(ctx, key, source); err != nil {
		return nil, nil, fmt.Errorf("%w: %s: %w", errWaiting, key, err)
	}
	artifact := source.GetArtifact()
	if artifact == nil {
		return nil, nil, fmt.Errorf("%w: %s %s has no artifact yet", errWaiting, ref.Kind, key)
	}
	archive, err := download(ctx, artifact)
	if err != nil {
		return nil, nil, err
	}
	loaded, err := loader.LoadArchive(bytes.NewReader(archive))
	return loaded, artifact, err
}

func download(ctx context.Context, artifact *meta.Artifact) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, artifact.URL, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		// Replaced by a newer one a moment ago; the source will say so.
		return nil, fmt.Errorf("%w: %s: %s", errWaiting, artifact.URL, resp.Status)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", artifact.URL, resp.Status)
	}
	archive, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	want, err := digest.Parse(artifact.Digest)
	if err != nil {
		return nil, fmt.Errorf("digest of %s: %w", artifact.URL, err)
	}
	if got := want.Algorithm().FromBytes(archive); got != want {
		return nil, fmt.Errorf("%s is %s, and not %s", artifact.URL, got, want)
	}
	return archive, nil
}

// ociDigest is what tells two charts of the same version apart. helm-controller looks at it for OCIRepositories only: a
// chart in an ExternalArtifact needs another version when it changes.
func ociDigest(hr *helmv2.HelmRelease, artifact *meta.Artifact) string {
	if hr.Spec.ChartRef.Kind == sourcev1.OCIRepositoryKind {
		return artifact.Digest
	}
	return ""
}
