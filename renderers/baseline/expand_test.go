package baseline

import (
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/fluxcd/pkg/apis/kustomize"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// Expand returns what ends up on a member: the files at a path, built by kustomize with the patches of the member's
// Kustomization, as Flux does.
func Expand(files map[string][]byte, patches []kustomize.Patch, dir string) ([]byte, error) {
	fs := filesys.MakeFsInMemory()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := fs.WriteFile(path.Join("/", name), files[name]); err != nil {
			return nil, err
		}
	}
	file := path.Join("/", dir, "kustomization.yaml")
	k := types.Kustomization{}
	if b, err := fs.ReadFile(file); err != nil {
		return nil, err
	} else if err := yaml.Unmarshal(b, &k); err != nil {
		return nil, err
	}
	for _, p := range patches {
		patch := types.Patch{Patch: p.Patch}
		if p.Target != nil {
			b, err := yaml.Marshal(p.Target)
			if err != nil {
				return nil, err
			}
			patch.Target = &types.Selector{}
			if err := yaml.Unmarshal(b, patch.Target); err != nil {
				return nil, fmt.Errorf("the target of a patch: %w", err)
			}
		}
		k.Patches = append(k.Patches, patch)
	}
	b, err := yaml.Marshal(k)
	if err != nil {
		return nil, err
	}
	if err := fs.WriteFile(file, b); err != nil {
		return nil, err
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(fs, path.Dir(file))
	if err != nil {
		return nil, err
	}
	return built.AsYaml()
}
