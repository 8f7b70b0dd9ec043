package application

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/fluxcd/pkg/apis/kustomize"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

// BenchmarkRender renders a Kustomization and a HelmRelease for each of 1,000 members.
func BenchmarkRender(b *testing.B) {
	for _, bb := range []struct {
		name  string
		alter func(app *appsv1.Application)
	}{
		{"static", func(*appsv1.Application) {}},
		{"overrides", func(app *appsv1.Application) {
			selector := &metav1.LabelSelector{MatchLabels: map[string]string{"third": "0"}}
			app.Spec.SyncPolicies[0].Overrides = []appsv1.Override{{Selector: selector, Kustomization: &appsv1.KustomizationOverride{
				Path: "./third", Images: []kustomize.Image{{Name: "web", NewTag: "2"}},
			}}}
			app.Spec.SyncPolicies[1].Overrides = []appsv1.Override{{Selector: selector, Helm: &appsv1.HelmOverride{
				Values: &apiextensionsv1.JSON{Raw: []byte(`{"replicas":3,"ingress":{"hosts":["third.example.org"]}}`)},
			}}}
		}},
		{"override-each", func(app *appsv1.Application) {
			for i := range 256 {
				names := []string{fmt.Sprintf("member-%04d", i)}
				app.Spec.SyncPolicies[0].Overrides = append(app.Spec.SyncPolicies[0].Overrides, appsv1.Override{Clusters: names,
					Kustomization: &appsv1.KustomizationOverride{Path: "./" + names[0]}})
				app.Spec.SyncPolicies[1].Overrides = append(app.Spec.SyncPolicies[1].Overrides, appsv1.Override{Clusters: names,
					Helm: &appsv1.HelmOverride{Values: &apiextensionsv1.JSON{Raw: fmt.Appendf(nil, `{"replicas":%d}`, i)}}})
			}
		}},
		{"templates", func(app *appsv1.Application) {
			app.Spec.SyncPolicies[0].Kustomization.Path = "./clusters/<< .cluster.name >>"
			app.Spec.SyncPolicies[1].Helm.Values = &apiextensionsv1.JSON{Raw: []byte(`{"replicas":2,"image":{"repository":"example.com/web","tag":"1.0.0"},
				"ingress":{"enabled":true,"hosts":["<< .cluster.name >>.<< .cluster.labels.region >>.example.org"]},"zone":"<< index .cluster.labels \"third\" | number >>"}`)}
		}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			declared := benchmarkDeclared(1000)
			bb.alter(declared.Applications[0])
			objects := 0
			b.ReportAllocs()
			for b.Loop() {
				result := Render(declared)
				if len(result.Problems) > 0 {
					b.Fatal(result.Problems[0])
				}
				objects += len(result.Objects)
			}
			b.ReportMetric(float64(objects)/b.Elapsed().Seconds(), "objects/s")

			before := liveHeap()
			result := Render(declared)
			b.ReportMetric((liveHeap()-before)/float64(len(result.Objects)), "live-B/object")
		})
	}
}

func liveHeap() float64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc)
}

func benchmarkDeclared(members int) Declared {
	fleet := &fleetv1.Fleet{ObjectMeta: metav1.ObjectMeta{Name: "prod", Namespace: "default"}}
	fleet.Spec.ClusterSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}
	d := Declared{Fleets: []*fleetv1.Fleet{fleet}}
	for i := range members {
		d.AttachedClusters = append(d.AttachedClusters, &clusterv1.AttachedCluster{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("member-%04d", i), Namespace: "default",
				Labels: map[string]string{"env": "prod", "region": "eu", "third": fmt.Sprint(i % 3)}},
			Spec: clusterv1.AttachedClusterSpec{Kubeconfig: &clusterv1.KubeconfigReference{Name: fmt.Sprintf("member-%04d", i), Key: "value"}},
		})
	}
	prune := true
	app := &appsv1.Application{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}}
	app.Spec.Source.GitRepository = &appsv1.GitRepositorySource{GitRepositorySpec: sourcev1.GitRepositorySpec{URL: "https://git.example.com/web", Interval: metav1.Duration{Duration: DefaultInterval}}}
	app.Spec.Destination = &appsv1.ApplicationDestination{Fleet: "prod"}
	app.Spec.SyncPolicies = []appsv1.ApplicationSyncPolicy{
		{Name: "manifests", Kustomization: &appsv1.Kustomization{Path: "./web", Prune: &prune, TargetNamespace: "web",
			Patches: []kustomize.Patch{{Patch: "- op: replace\n  path: /spec/replicas\n  value: 2\n", Target: &kustomize.Selector{Kind: "Deployment", Name: "web"}}},
			Images:  []kustomize.Image{{Name: "web", NewTag: "1"}}}},
		{Name: "chart", DependsOn: []appsv1.NameReference{{Name: "manifests"}}, Helm: &appsv1.HelmRelease{
			Chart:  &appsv1.HelmChartTemplate{Spec: appsv1.HelmChartTemplateSpec{Chart: "./charts/web"}},
			Values: &apiextensionsv1.JSON{Raw: []byte(`{"replicas":2,"image":{"repository":"example.com/web","tag":"1.0.0"},"ingress":{"enabled":true,"hosts":["web.example.org"]}}`)},
		}},
	}
	d.Applications = []*appsv1.Application{app}
	return d
}
