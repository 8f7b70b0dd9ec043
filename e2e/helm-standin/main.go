// Command helm-standin stands in for Flux's helm-controller in tests and the demo, where there is none.
//
// It installs, upgrades and uninstalls the chart of a HelmRelease with Helm's own library and reports as helm-controller
// does. It knows chartRef, kubeConfig.secretRef, values, valuesFrom and the label that has a Secret or ConfigMap watched,
// dependsOn, suspend, releaseName, targetNamespace, storageNamespace, timeouts, crds, hooks, waiting until all is ready or
// gone, healthCheckExprs and maxHistory. It leaves out remediation (what failed is tried again), drift detection, tests,
// post-renderers and service accounts.
package main

import (
	"flag"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
)

func main() {
	health := flag.String("health-addr", ":9440", "where probes are answered")
	metrics := flag.String("metrics-addr", ":8080", "where metrics are served")
	flag.Parse()
	ctrl.SetLogger(zap.New())
	if err := run(*health, *metrics); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(health, metrics string) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, helmv2.AddToScheme, sourcev1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	config.QPS = -1
	watched := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{meta.LabelKeyWatch: meta.LabelValueWatchEnabled})}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 scheme,
		Cache:                  cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.Secret{}: watched, &corev1.ConfigMap{}: watched}},
		HealthProbeBindAddress: health,
		Metrics:                metricsserver.Options{BindAddress: metrics},
		Client: client.Options{Cache: &client.CacheOptions{
			// As in Flux: kubeconfigs and values are read when they are needed.
			DisableFor: []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}},
		}},
	})
	if err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if err := (&reconciler{Client: mgr.GetClient()}).setup(mgr); err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}
