package harness

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
)

var env *Env

func TestMain(m *testing.M) { Main(m, Options{Members: 1}, func(e *Env) { env = e }) }

const timeout = 30 * time.Second

var app = map[string]string{
	"deploy/config.yaml":            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: from-git, namespace: default}\ndata: {version: one}\n",
	"chart/Chart.yaml":              "apiVersion: v2\nname: chart\nversion: 1.0.0\n",
	"chart/values.yaml":             "greeting: none\n",
	"chart/templates/configmap.yml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}-greeting}\ndata: {greeting: {{ .Values.greeting }}}\n",
}

// The harness is worth trusting when Flux alone delivers with it: from Git to a member, a change, and the end.
func TestFluxDelivers(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	hub, member := env.Hub.Client, env.Members[0].Client
	_, err := env.Git.Push(ctx, "app", app)
	g.Expect(err).NotTo(HaveOccurred())

	inDefault := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }
	kubeConfig := &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "member1"}}
	interval := metav1.Duration{Duration: time.Hour}
	source := &sourcev1.GitRepository{ObjectMeta: inDefault("app"), Spec: sourcev1.GitRepositorySpec{
		URL: env.Git.URL("app"), Interval: interval, Reference: &sourcev1.GitRepositoryRef{Branch: "main"},
	}}
	kustomization := &kustomizev1.Kustomization{ObjectMeta: inDefault("app"), Spec: kustomizev1.KustomizationSpec{
		SourceRef: kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "app"}, Path: "./deploy",
		Interval: interval, Prune: true, KubeConfig: kubeConfig,
	}}
	chart := &sourcev1.HelmChart{ObjectMeta: inDefault("chart"), Spec: sourcev1.HelmChartSpec{
		SourceRef: sourcev1.LocalHelmChartSourceReference{Kind: "GitRepository", Name: "app"}, Chart: "./chart", Interval: interval,
	}}
	release := &helmv2.HelmRelease{ObjectMeta: inDefault("chart"), Spec: helmv2.HelmReleaseSpec{
		ChartRef: &helmv2.CrossNamespaceSourceReference{Kind: "HelmChart", Name: "chart"}, Interval: interval,
		TargetNamespace: "charts", StorageNamespace: "charts", ReleaseName: "chart",
		Install: &helmv2.Install{CreateNamespace: true}, KubeConfig: kubeConfig,
	}}
	for _, obj := range []client.Object{env.Members[0].KubeconfigSecret("default", "member1"), source, kustomization, chart, release} {
		g.Expect(hub.Create(ctx, obj)).To(Succeed())
	}

	onMember := func(namespace, name string) func() (map[string]string, error) {
		return func() (map[string]string, error) {
			cm := &corev1.ConfigMap{}
			err := member.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, cm)
			return cm.Data, client.IgnoreNotFound(err)
		}
	}
	g.Eventually(onMember("default", "from-git"), timeout).Should(HaveKeyWithValue("version", "one"))
	g.Eventually(onMember("charts", "chart-greeting"), timeout).Should(HaveKeyWithValue("greeting", "none"))
	g.Eventually(func() (bool, error) {
		err := hub.Get(ctx, client.ObjectKeyFromObject(release), release)
		return apimeta.IsStatusConditionTrue(release.Status.Conditions, meta.ReadyCondition), err
	}, timeout).Should(BeTrue())
	g.Expect(release.Status.ObservedGeneration).To(Equal(release.Generation))
	g.Expect(release.Status.History.Latest().FullReleaseName()).To(Equal("charts/chart.v1"))

	// A new commit, noticed when asked for, and new values.
	_, err = env.Git.Push(ctx, "app", map[string]string{"deploy/config.yaml": "", "deploy/other.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other, namespace: default}\ndata: {version: two}\n"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(RequestReconcile(ctx, hub, source)).To(Succeed())
	g.Expect(hub.Patch(ctx, release, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"values":{"greeting":"hello"}}}`)))).To(Succeed())
	g.Eventually(onMember("default", "other"), timeout).Should(HaveKeyWithValue("version", "two"))
	g.Eventually(onMember("default", "from-git"), timeout).Should(BeNil())
	g.Eventually(onMember("charts", "chart-greeting"), timeout).Should(HaveKeyWithValue("greeting", "hello"))

	// A member that was away gets what is due when it is back.
	g.Expect(env.Members[0].Restart(ctx)).To(Succeed())

	g.Expect(hub.Delete(ctx, kustomization)).To(Succeed())
	g.Expect(hub.Delete(ctx, release)).To(Succeed())
	g.Eventually(gone(ctx, hub, kustomization), timeout).Should(BeTrue())
	g.Eventually(gone(ctx, hub, release), timeout).Should(BeTrue())
	g.Expect(onMember("default", "other")()).To(BeNil())
	g.Expect(onMember("charts", "chart-greeting")()).To(BeNil())

	// Namespaces end, which takes the controller manager.
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "charts"}}
	g.Expect(member.Delete(ctx, ns)).To(Succeed())
	g.Eventually(gone(ctx, member, ns), timeout).Should(BeTrue())
}

func gone(ctx context.Context, c client.Client, obj client.Object) func() (bool, error) {
	return func() (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(obj), obj)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}
}
