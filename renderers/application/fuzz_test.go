package application

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

// FuzzRender holds, for Applications made of a seed, a template, a label's value and a map of values, that nothing
// panics, that the same comes out twice, that every object can be stored, and that a broken member is one error for each
// policy and changes nothing for the others.
func FuzzRender(f *testing.F) {
	for i, s := range []struct{ template, label, values string }{
		{"<< .cluster.name >>", "eu", `{"a":{"b":[1,"<< .cluster.labels.fuzz >>"]}}`},
		{`x-<< index .cluster.labels "fuzz" | number >>`, "004", `{"a":"<< .cluster.labels.fuzz | number >>","n":null}`},
		{`\<< .fleet.name >> <<EOF`, "<< .cluster.name >>", `[]`},
		{"<< .cluster.labels.fuzz | bool >>", "true", `{"<< .cluster.name >>":1e40}`},
		{"<< .cluster.labels.fuzz | number >>", "1e400", `{"a":"<< .cluster.labels.fuzz | number >>"}`},
		{`<< .cluster.kind | lower | replace "a" "" >>`, "", `{"a":"\u0000","b":"\ud800"}`},
	} {
		for seed := range 50 {
			f.Add(uint64(50*i+seed), s.template, s.label, s.values)
		}
	}
	f.Fuzz(func(t *testing.T, seed uint64, template, label, values string) {
		if json.Unmarshal([]byte(values), new(any)) != nil {
			t.Skip("no API server has it")
		}
		declared := fuzzDeclared(rand.New(rand.NewPCG(seed, 0)), template, label, values)
		want := Render(declared)
		if got := Render(deepCopy(declared)); !reflect.DeepEqual(got, want) {
			t.Fatalf("not the same twice:\n%s\n%s", asYAML(t, want), asYAML(t, got))
		}
		names := map[string]bool{}
		for _, o := range want.Objects {
			checkStorable(t, o)
			if name := o.Metadata.Namespace + "/" + o.Ref().String(); names[name] {
				t.Errorf("%s is there twice", name)
			} else {
				names[name] = true
			}
		}

		broken := deepCopy(declared)
		broken.AttachedClusters[0].Spec.Kubeconfig = nil
		key := clusterv1.AttachedClusterKind + " " + broken.AttachedClusters[0].Name
		got := Render(broken)
		isBroken := func(o Rendered) bool { return o.Member.Kind+" "+o.Member.Name == key }
		if slices.ContainsFunc(got.Objects, isBroken) {
			t.Errorf("the broken member has an object")
		}
		// Charts of its own are gone with the member, and what it had of names and releases is free for others.
		has := map[string]string{}
		for _, o := range got.Objects {
			has[o.Metadata.Namespace+"/"+o.Ref().String()] = o.Digest()
		}
		for _, o := range slices.DeleteFunc(want.Objects, isBroken) {
			if o.Member.Name == "" && o.Policy != "" {
				continue
			}
			if digest := has[o.Metadata.Namespace+"/"+o.Ref().String()]; digest != o.Digest() {
				t.Errorf("%s is another one because of a broken member: %q, not %q", o.Ref(), digest, o.Digest())
			}
		}
	})
}

// checkStorable holds that an API server would take the metadata and read the JSON.
func checkStorable(t *testing.T, o Rendered) {
	t.Helper()
	b, err := json.Marshal(o.Object)
	if err != nil || !json.Valid(b) {
		t.Fatalf("%s: %v", o.Ref(), err)
	}
	u := asUnstructured(t, o)
	if errs := apivalidation.ValidateObjectMetaAccessor(u, true, apivalidation.NameIsDNSSubdomain, nil); len(errs) > 0 {
		t.Errorf("%s: %v", o.Ref(), errs)
	}
}

func fuzzDeclared(r *rand.Rand, template, label, values string) Declared {
	const namespace = "default"
	var d Declared
	name := func(prefix string, i int) string {
		const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
		out := fmt.Sprint(prefix, i)
		for range r.IntN(50) {
			if r.IntN(12) == 0 && out[len(out)-1] != '-' {
				out += "-"
			} else {
				out += string(letters[r.IntN(len(letters))])
			}
		}
		return out + "x"
	}
	pick := func(choices ...string) string { return choices[r.IntN(len(choices))] }
	labels := func() map[string]string {
		return map[string]string{"fuzz": pick(label, label, "1"), "env": pick("prod", "lab"), ShardLabel: pick("", "", "shard1", label)}
	}
	selector := func() *metav1.LabelSelector {
		return pickOne(r, nil, &metav1.LabelSelector{}, &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}},
			&metav1.LabelSelector{MatchLabels: map[string]string{"fuzz": label}})
	}

	fleet := &fleetv1.Fleet{ObjectMeta: metav1.ObjectMeta{Name: name("fleet", 0), Namespace: namespace}}
	fleet.Spec.ClusterSelector = selector()
	for i := range 1 + r.IntN(5) {
		a := &clusterv1.AttachedCluster{ObjectMeta: metav1.ObjectMeta{Name: name("m", i), Namespace: namespace, Labels: labels()}}
		a.Spec.Kubeconfig = &clusterv1.KubeconfigReference{Name: a.Name}
		d.AttachedClusters = append(d.AttachedClusters, a)
		if r.IntN(4) > 0 {
			fleet.Spec.Clusters = append(fleet.Spec.Clusters, fleetv1.FleetCluster{Name: pick(a.Name, a.Name, a.Name, "missing"), Labels: labels()})
		}
		if r.IntN(4) == 0 {
			c := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: a.Name + pick("", "y"), Namespace: namespace, Labels: labels()}}
			c.Spec.KubeconfigRef = &clusterv1.KubeconfigReference{Name: c.Name, Key: "k"}
			d.Clusters = append(d.Clusters, c)
		}
	}
	d.Fleets = []*fleetv1.Fleet{fleet}

	for i := range 1 + r.IntN(3) {
		app := &appsv1.Application{ObjectMeta: metav1.ObjectMeta{Name: name("app", i), Namespace: namespace}}
		app.Spec.Destination = pickOne(r, nil, &appsv1.ApplicationDestination{Fleet: fleet.Name, ClusterSelector: selector()},
			&appsv1.ApplicationDestination{Cluster: &appsv1.ClusterReference{Name: pick(d.AttachedClusters[0].Name, "missing"), Kind: pick("", "AttachedCluster", "Cluster")}})
		app.Spec.Source = pickOne(r,
			appsv1.ApplicationSource{GitRepository: &appsv1.GitRepositorySource{}},
			appsv1.ApplicationSource{HelmRepository: &sourcev1.HelmRepositorySpec{Type: pick("", "oci")}},
			appsv1.ApplicationSource{OCIRepository: &sourcev1.OCIRepositorySpec{}},
			appsv1.ApplicationSource{SourceRef: &appsv1.SourceReference{Kind: "ExternalArtifact", Name: "x"}})
		if i > 0 && r.IntN(2) == 0 {
			app.Spec.DependsOn = []appsv1.NameReference{{Name: d.Applications[r.IntN(i)].Name}}
		}
		for j := range 1 + r.IntN(3) {
			p := appsv1.ApplicationSyncPolicy{Name: pick("", name("p", j))}
			earlier := "x"
			if j > 0 {
				earlier = PolicyName(app, r.IntN(j))
				p.DependsOn = pickOne(r, nil, []appsv1.NameReference{{Name: earlier}})
			}
			override := appsv1.Override{Clusters: []string{d.AttachedClusters[0].Name}, Selector: selector()}
			if manifests := app.Spec.Source.HelmRepository == nil && r.IntN(2) == 0; manifests {
				p.Kustomization = &appsv1.Kustomization{Path: pick("./x", template), NamePrefix: pick("", template), TargetNamespace: pick("", "ns", template),
					PostBuild: &kustomizev1.PostBuild{Substitute: map[string]string{"a": pick("b", template)}},
					Patches:   []kustomize.Patch{{Patch: pick("x", template)}},
					DependsOn: []meta.DependencyReference{{Name: pick("x", template, earlier)}}}
				override.Kustomization = &appsv1.KustomizationOverride{Path: pick("", template), Images: []kustomize.Image{{Name: "a", NewTag: template}}}
			} else {
				p.Helm = &appsv1.HelmRelease{ReleaseName: pick("", "release", template), TargetNamespace: pick("", "ns"), Values: &apiextensionsv1.JSON{Raw: []byte(values)}}
				if app.Spec.Source.GitRepository != nil || app.Spec.Source.HelmRepository != nil {
					p.Helm.Chart = &appsv1.HelmChartTemplate{Spec: appsv1.HelmChartTemplateSpec{Chart: "chart", Version: pick("", "1.x", template)}}
				}
				override.Helm = &appsv1.HelmOverride{Values: &apiextensionsv1.JSON{Raw: []byte(pick(values, `{"a":null,"b":{"c":1}}`))}}
			}
			if r.IntN(2) == 0 {
				p.Overrides = []appsv1.Override{override}
			}
			app.Spec.SyncPolicies = append(app.Spec.SyncPolicies, p)
		}
		d.Applications = append(d.Applications, app)
	}
	return d
}

func pickOne[T any](r *rand.Rand, choices ...T) T { return choices[r.IntN(len(choices))] }
