package application

import (
	"reflect"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	. "github.com/onsi/gomega"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
)

// TestFluxFields holds that whatever Flux's specs can say can be said in an Application. A new version of Flux with a
// new field fails here.
func TestFluxFields(t *testing.T) {
	for _, tt := range []struct {
		ours, flux any
		without    []string // what Fleetwright sets
		extra      []string // what is ours
	}{
		{ours: appsv1.Kustomization{}, flux: kustomizev1.KustomizationSpec{}, without: []string{"sourceRef", "kubeConfig"}},
		{ours: appsv1.HelmRelease{}, flux: helmv2.HelmReleaseSpec{}, without: []string{"chartRef", "kubeConfig", "chart"}, extra: []string{"chart", "chartKind"}},
		{ours: appsv1.HelmChartTemplate{}, flux: helmv2.HelmChartTemplate{}, without: []string{"spec"}, extra: []string{"spec"}},
		{ours: appsv1.HelmChartTemplateSpec{}, flux: helmv2.HelmChartTemplateSpec{}, without: []string{"sourceRef"}},
	} {
		t.Run(reflect.TypeOf(tt.ours).Name(), func(t *testing.T) {
			g := NewWithT(t)
			ours, flux := jsonFields(reflect.TypeOf(tt.ours)), jsonFields(reflect.TypeOf(tt.flux))
			for _, name := range tt.without {
				g.Expect(flux).To(HaveKey(name))
				delete(flux, name)
			}
			for _, name := range tt.extra {
				g.Expect(ours).To(HaveKey(name))
				delete(ours, name)
			}
			g.Expect(ours).To(Equal(flux))
		})
	}
}

// jsonFields returns the JSON names of a struct's fields with the types of their values, whether or not by pointer.
func jsonFields(t reflect.Type) map[string]string {
	fields := map[string]string{}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		typ := f.Type
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		fields[name] = typ.String()
	}
	return fields
}
