package application

import (
	"fmt"
	"maps"
	"slices"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/kustomize"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
)

func (p *Program) compileKustomization(app *appsv1.Application, i int) (func([]override) (*variant, error), error) {
	declared := app.Spec.SyncPolicies[i].Kustomization
	base, err := convert[kustomizev1.KustomizationSpec](declared)
	if err != nil {
		return nil, fmt.Errorf("kustomization: %w", err)
	}
	base.Interval = p.interval(declared.Interval, "spec.syncPolicies[%d].kustomization.interval", i)
	base.Prune = declared.Prune == nil || *declared.Prune
	if base.DeletionPolicy == "" && app.Spec.DeletionPolicy == appsv1.DeletionPolicyOrphan {
		base.DeletionPolicy = kustomizev1.DeletionPolicyOrphan
	}
	base.SourceRef, err = manifestSource(app, i)
	if err != nil {
		return nil, err
	}
	return func(matched []override) (*variant, error) {
		spec := base.DeepCopy()
		for _, o := range matched {
			if o.Kustomization != nil {
				overrideKustomization(spec, o.Kustomization)
			}
		}
		v, err := newVariant(spec)
		if err != nil {
			return nil, fmt.Errorf("kustomization: %w", err)
		}
		return v, nil
	}, nil
}

// manifestSource refers to the source of a policy, which holds manifests.
func manifestSource(app *appsv1.Application, i int) (kustomizev1.CrossNamespaceSourceReference, error) {
	kind, name := sourceOf(app, i).ref()
	if !slices.Contains([]string{gitRepository, ociRepository, bucket, externalArtifact}, kind) {
		return kustomizev1.CrossNamespaceSourceReference{}, fmt.Errorf("kustomization: a %s holds no manifests", kind)
	}
	return kustomizev1.CrossNamespaceSourceReference{Kind: kind, Name: name}, nil
}

// overrideKustomization merges an override into a spec of its own.
func overrideKustomization(spec *kustomizev1.KustomizationSpec, o *appsv1.KustomizationOverride) {
	if o.Path != "" {
		spec.Path = o.Path
	}
	if o.TargetNamespace != "" {
		spec.TargetNamespace = o.TargetNamespace
	}
	spec.Components = append(spec.Components, o.Components...)
	spec.Patches = append(spec.Patches, o.Patches...)
	for _, image := range o.Images {
		same := func(i kustomize.Image) bool { return i.Name == image.Name }
		if i := slices.IndexFunc(spec.Images, same); i >= 0 {
			spec.Images[i] = image
		} else {
			spec.Images = append(spec.Images, image)
		}
	}
	if o.PostBuild == nil {
		return
	}
	if spec.PostBuild == nil {
		spec.PostBuild = &kustomizev1.PostBuild{}
	}
	if o.PostBuild.SubstituteStrategy != "" {
		spec.PostBuild.SubstituteStrategy = o.PostBuild.SubstituteStrategy
	}
	if len(o.PostBuild.Substitute) > 0 {
		if spec.PostBuild.Substitute == nil {
			spec.PostBuild.Substitute = map[string]string{}
		}
		maps.Copy(spec.PostBuild.Substitute, o.PostBuild.Substitute)
	}
	spec.PostBuild.SubstituteFrom = append(spec.PostBuild.SubstituteFrom, o.PostBuild.SubstituteFrom...)
}
