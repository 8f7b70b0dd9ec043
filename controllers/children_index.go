package controllers

import (
	"context"
	"hash/fnv"
	"strconv"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// memberIndex finds the children of a member, by memberIndexValue, and some of others.
const memberIndex = "member"

// IndexChildren adds the indexes that several controllers look up children with. It is called once for a manager.
func IndexChildren(ctx context.Context, mgr ctrl.Manager) error {
	for _, kind := range []client.Object{&kustomizev1.Kustomization{}, &helmv2.HelmRelease{}} {
		if err := mgr.GetFieldIndexer().IndexField(ctx, kind, memberIndex, indexByMember); err != nil {
			return err
		}
	}
	return nil
}

func indexByMember(o client.Object) []string {
	m := memberOf(o)
	if m.Name == "" {
		return nil
	}
	return []string{memberIndexValue(m.Kind, m.Name)}
}

func memberIndexValue(kind, name string) string { return bucket(kind + "/" + name) }

// bucket is what a key that hardly two objects share is indexed by. An index has a set for each value, of half a
// kilobyte; with buckets there are no more sets than these, and who looks something up looks twice.
func bucket(key string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return strconv.Itoa(int(h.Sum32() % 256))
}
