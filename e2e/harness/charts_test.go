package harness

import (
	"testing"

	. "github.com/onsi/gomega"
	k8sappsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
)

// A chart of the catalog, by name and version, becomes ready on nodes that pretend; Flux fetches it over TLS, and a Secret
// with Flux's label changes the release at once.
func TestChartsOnNodes(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	hub, member := env.Hub.Client, env.Members[0]
	charts, err := env.StartCharts()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(member.StartNodes(ctx, 1)).To(Succeed())
	g.Expect(env.Hub.CreateNamespace(ctx, "charts")).To(Succeed())
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "charts", Name: name} }

	var version string
	for _, k := range charts.plugins["flagger"].Spec.Components {
		if k.Name == "flagger" {
			version = k.Chart.Version
		}
	}
	kubeConfig := &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "member1"}}
	secret := &corev1.Secret{ObjectMeta: named("values"), StringData: map[string]string{"one": "a,b={c}\n"}}
	secret.Labels = map[string]string{meta.LabelKeyWatch: meta.LabelValueWatchEnabled}
	objects := []client.Object{member.KubeconfigSecret("charts", "member1"), secret}
	for name, repository := range map[string]sourcev1.HelmRepositorySpec{
		"oci": {Type: sourcev1.HelmRepositoryTypeOCI, URL: charts.OCI}, "index": {URL: charts.HTTPS},
	} {
		repository.Interval = metav1.Duration{Duration: timeout}
		objects = append(objects,
			&sourcev1.HelmRepository{ObjectMeta: named(name), Spec: repository},
			&sourcev1.HelmChart{ObjectMeta: named(name), Spec: sourcev1.HelmChartSpec{
				SourceRef: sourcev1.LocalHelmChartSourceReference{Kind: "HelmRepository", Name: name},
				Chart:     "flagger", Version: version, Interval: repository.Interval,
			}},
			&helmv2.HelmRelease{ObjectMeta: named(name), Spec: helmv2.HelmReleaseSpec{
				ChartRef: &helmv2.CrossNamespaceSourceReference{Kind: "HelmChart", Name: name}, Interval: metav1.Duration{Duration: 10 * timeout},
				TargetNamespace: "small", StorageNamespace: "small", ReleaseName: name, KubeConfig: kubeConfig,
				Install:    &helmv2.Install{CreateNamespace: true, CRDs: helmv2.CreateReplace},
				ValuesFrom: []helmv2.ValuesReference{{Kind: "Secret", Name: "values", ValuesKey: "one", TargetPath: "deep.one", Literal: true}},
			}})
	}
	for _, o := range objects {
		g.Expect(hub.Create(ctx, o)).To(Succeed())
	}
	values := func(release string) string {
		cm := &corev1.ConfigMap{}
		_ = member.Client.Get(ctx, client.ObjectKey{Namespace: "small", Name: release + "-values"}, cm)
		return cm.Data["sha256"]
	}
	before := map[string]string{}
	for _, name := range []string{"oci", "index"} {
		release := &helmv2.HelmRelease{ObjectMeta: named(name)}
		g.Eventually(func() (string, error) {
			err := hub.Get(ctx, client.ObjectKeyFromObject(release), release)
			ready := apimeta.FindStatusCondition(release.Status.Conditions, meta.ReadyCondition)
			if ready == nil {
				return "", err
			}
			return string(ready.Status) + " " + ready.Message, err
		}, timeout).Should(HavePrefix("True "))
		deployment := &k8sappsv1.Deployment{}
		g.Expect(member.Client.Get(ctx, client.ObjectKey{Namespace: "small", Name: name}, deployment)).To(Succeed())
		g.Expect(deployment.Status.ReadyReplicas).To(BeEquivalentTo(1))
		before[name] = values(name)
	}
	g.Expect(member.Client.Get(ctx, client.ObjectKey{Name: "canaries.flagger.app"}, &apiextensionsv1.CustomResourceDefinition{})).To(Succeed())

	secret.StringData = map[string]string{"one": "{{ two }}"}
	g.Expect(hub.Update(ctx, secret)).To(Succeed())
	for name := range before {
		g.Eventually(func() string { return values(name) }, timeout).ShouldNot(Equal(before[name]))
		release := &helmv2.HelmRelease{ObjectMeta: named(name)}
		g.Expect(hub.Delete(ctx, release)).To(Succeed())
		g.Eventually(gone(ctx, hub, release), timeout).Should(BeTrue())
		g.Expect(gone(ctx, member.Client, &k8sappsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "small", Name: name}})()).To(BeTrue())
	}
}
