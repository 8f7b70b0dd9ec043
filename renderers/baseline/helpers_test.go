package baseline

import (
	"maps"
	"slices"
	"unicode/utf8"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/apis/meta"

	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/member"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// validText says whether JSON can hold a text, and YAML: control characters come through neither, and kustomize makes a
// blank of U+0085.
func validText(s string) bool {
	return utf8.ValidString(s) && !slices.ContainsFunc([]rune(s), func(r rune) bool {
		return r < ' ' && r != '\n' && r != '\t' && r != '\r' || r >= 0x7f && r < 0xa0 || r == 0xfffe || r == 0xffff || r == utf8.RuneError
	})
}

// patchesFor returns the patches of the Kustomization of member m1.
func patchesFor(program *application.Program, labels map[string]string) ([]kustomize.Patch, error) {
	m := &member.Member{Name: "m1", Kind: "AttachedCluster", Labels: labels, Ready: true,
		KubeConfig: &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "m1"}}}
	child, err := program.Child(&application.Scope{}, program.Policies()[0], m)
	if err != nil {
		return nil, err
	}
	return child.Object.Spec.(*kustomizev1.KustomizationSpec).Patches, nil
}
