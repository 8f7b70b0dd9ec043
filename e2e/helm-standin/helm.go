package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/cli"
	"helm.sh/helm/v4/pkg/kube"
	helmrelease "helm.sh/helm/v4/pkg/release"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/cel"
)

// helmConfig connects Helm to the cluster of the HelmRelease. The caller calls cleanup.
func (r *reconciler) helmConfig(ctx context.Context, hr *helmv2.HelmRelease) (_ *action.Configuration, cleanup func(), err error) {
	cleanup = func() {}
	settings := cli.New()
	settings.SetNamespace(hr.GetReleaseNamespace())
	if ref := hr.Spec.KubeConfig; ref != nil {
		if ref.SecretRef == nil {
			return nil, nil, errors.New("helm-standin knows kubeConfig.secretRef only")
		}
		kubeconfig, err := r.kubeconfig(ctx, hr.Namespace, ref.SecretRef)
		if err != nil {
			return nil, nil, err
		}
		file, err := os.CreateTemp("", "kubeconfig-")
		if err != nil {
			return nil, nil, err
		}
		cleanup = func() { _ = os.Remove(file.Name()) }
		if _, err = file.Write(kubeconfig); err == nil {
			err = file.Close()
		}
		if err != nil {
			cleanup()
			return nil, nil, err
		}
		settings.KubeConfig = file.Name()
	}
	config := action.NewConfiguration()
	if err := config.Init(settings.RESTClientGetter(), hr.GetStorageNamespace(), "secret"); err != nil {
		cleanup()
		return nil, nil, err
	}
	config.Releases.MaxHistory = hr.GetMaxHistory()
	return config, cleanup, nil
}

func (r *reconciler) kubeconfig(ctx context.Context, namespace string, ref *meta.SecretKeyReference) ([]byte, error) {
	secret := &corev1.Secret{}
	if err := r.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Name}, secret); err != nil {
		return nil, err
	}
	for _, key := range []string{ref.Key, "value", "value.yaml"} {
		if kubeconfig, ok := secret.Data[key]; ok {
			return kubeconfig, nil
		}
		if key != "" && key == ref.Key {
			break
		}
	}
	return nil, fmt.Errorf("secret %s/%s has no kubeconfig", namespace, ref.Name)
}

func install(ctx context.Context, config *action.Configuration, hr *helmv2.HelmRelease, loaded *chart.Chart, values common.Values) (helmrelease.Releaser, error) {
	spec := hr.GetInstall()
	do := action.NewInstall(config)
	do.ReleaseName = hr.GetReleaseName()
	do.Namespace = hr.GetReleaseNamespace()
	do.CreateNamespace = spec.CreateNamespace
	do.Timeout = spec.GetTimeout(hr.GetTimeout()).Duration
	do.DisableHooks, do.WaitForJobs = spec.DisableHooks, !spec.DisableWaitForJobs
	do.TakeOwnership = !spec.DisableTakeOwnership
	var err error
	if do.WaitStrategy, do.WaitOptions, err = waiting(config, hr, spec.DisableWait); err != nil {
		return nil, err
	}
	do.SkipCRDs = true
	if err := applyCRDs(ctx, config, loaded, cmp.Or(spec.CRDs, helmv2.Create)); err != nil {
		return nil, err
	}
	return do.RunWithContext(ctx, loaded, values)
}

func upgrade(ctx context.Context, config *action.Configuration, hr *helmv2.HelmRelease, loaded *chart.Chart, values common.Values) (helmrelease.Releaser, error) {
	spec := hr.GetUpgrade()
	do := action.NewUpgrade(config)
	do.Namespace = hr.GetReleaseNamespace()
	do.Timeout = spec.GetTimeout(hr.GetTimeout()).Duration
	do.MaxHistory = hr.GetMaxHistory()
	do.DisableHooks, do.WaitForJobs = spec.DisableHooks, !spec.DisableWaitForJobs
	do.TakeOwnership = !spec.DisableTakeOwnership
	var err error
	if do.WaitStrategy, do.WaitOptions, err = waiting(config, hr, spec.DisableWait); err != nil {
		return nil, err
	}
	do.SkipCRDs = true
	if err := applyCRDs(ctx, config, loaded, cmp.Or(spec.CRDs, helmv2.Skip)); err != nil {
		return nil, err
	}
	return do.RunWithContext(ctx, hr.GetReleaseName(), loaded, values)
}

func (r *reconciler) uninstall(ctx context.Context, hr *helmv2.HelmRelease) error {
	config, cleanup, err := r.helmConfig(ctx, hr)
	if err != nil {
		return err
	}
	defer cleanup()
	spec := hr.GetUninstall()
	do := action.NewUninstall(config)
	do.IgnoreNotFound = true
	do.KeepHistory = spec.KeepHistory
	do.Timeout = spec.GetTimeout(hr.GetTimeout()).Duration
	do.DisableHooks, do.DeletionPropagation = spec.DisableHooks, spec.GetDeletionPropagation()
	do.WaitStrategy = kube.StatusWatcherStrategy
	if spec.DisableWait {
		do.WaitStrategy = kube.HookOnlyStrategy
	}
	_, err = do.Run(hr.GetReleaseName())
	return err
}

// waiting says how to wait for what a chart has installed: until kstatus, or an expression of the HelmRelease, calls
// everything current.
func waiting(config *action.Configuration, hr *helmv2.HelmRelease, disabled bool) (kube.WaitStrategy, []kube.WaitOption, error) {
	switch {
	case disabled:
		return kube.HookOnlyStrategy, nil, nil
	case hr.GetWaitStrategy() == helmv2.WaitStrategyLegacy:
		return kube.LegacyStrategy, nil, nil
	case len(hr.Spec.HealthCheckExprs) == 0:
		return kube.StatusWatcherStrategy, nil, nil
	}
	newReader, err := cel.NewStatusReader(hr.Spec.HealthCheckExprs)
	if err != nil {
		return "", nil, err
	}
	mapper, err := config.RESTClientGetter.ToRESTMapper()
	if err != nil {
		return "", nil, err
	}
	return kube.StatusWatcherStrategy, []kube.WaitOption{kube.WithKStatusReaders(newReader(mapper))}, nil
}

// applyCRDs does to what is in the folder crds of a chart what a policy says.
func applyCRDs(ctx context.Context, config *action.Configuration, loaded *chart.Chart, policy helmv2.CRDsPolicy) error {
	crds := loaded.CRDObjects()
	if policy == helmv2.Skip || len(crds) == 0 {
		return nil
	}
	restConfig, err := config.RESTClientGetter.ToRESTConfig()
	if err != nil {
		return err
	}
	member, err := client.New(restConfig, client.Options{})
	if err != nil {
		return err
	}
	var all kube.ResourceList
	for _, crd := range crds {
		for doc := range bytes.SplitSeq(crd.File.Data, []byte("\n---\n")) {
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal(doc, &o.Object); err != nil {
				return fmt.Errorf("CRD %s: %w", crd.Name, err)
			}
			if len(o.Object) == 0 {
				continue
			}
			if policy == helmv2.CreateReplace {
				err = member.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.ForceOwnership, client.FieldOwner("helm-controller"))
			} else {
				err = client.IgnoreAlreadyExists(member.Create(ctx, o))
			}
			if err != nil {
				return fmt.Errorf("CRD %s: %w", crd.Name, err)
			}
		}
		built, err := config.KubeClient.Build(bytes.NewReader(crd.File.Data), false)
		if err != nil {
			return err
		}
		all = append(all, built...)
	}
	waiter, err := config.KubeClient.GetWaiter(kube.StatusWatcherStrategy)
	if err != nil {
		return err
	}
	if err := waiter.Wait(all, time.Minute); err != nil {
		return err
	}
	// What was known of the cluster's kinds before is out of date.
	discovery, err := config.RESTClientGetter.ToDiscoveryClient()
	if err != nil {
		return err
	}
	discovery.Invalidate()
	mapper, err := config.RESTClientGetter.ToRESTMapper()
	if resettable, ok := mapper.(apimeta.ResettableRESTMapper); ok {
		resettable.Reset()
	}
	return err
}
