package application

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/member"
)

// deepCopy copies what is declared, so that a test may change it.
func deepCopy(d Declared) Declared {
	var out Declared
	for _, o := range d.Applications {
		out.Applications = append(out.Applications, o.DeepCopy())
	}
	for _, o := range d.Fleets {
		out.Fleets = append(out.Fleets, o.DeepCopy())
	}
	for _, o := range d.AttachedClusters {
		out.AttachedClusters = append(out.AttachedClusters, o.DeepCopy())
	}
	for _, o := range d.Clusters {
		out.Clusters = append(out.Clusters, o.DeepCopy())
	}
	return out
}

func readCase(t testing.TB, name string) Declared {
	t.Helper()
	declared, err := loadCRDs(t, ourCRDs).readDeclared("testdata/" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	return declared
}

func shuffle[T any](r *rand.Rand, list []T) {
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
}

// TestOrder holds that the order of what is declared changes no byte, and that what is declared is only read.
func TestOrder(t *testing.T) {
	ours := loadCRDs(t, ourCRDs)
	for name, files := range goldenCases(t) {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			declared, err := ours.readDeclared(files...)
			g.Expect(err).NotTo(HaveOccurred())
			before := deepCopy(declared)
			want := Render(declared)
			g.Expect(declared).To(Equal(before))

			r := rand.New(rand.NewPCG(1, 2))
			for range 100 {
				shuffle(r, declared.Applications)
				shuffle(r, declared.Fleets)
				shuffle(r, declared.AttachedClusters)
				shuffle(r, declared.Clusters)
				for _, f := range declared.Fleets {
					shuffle(r, f.Spec.Clusters)
				}
				if got := Render(declared); !reflect.DeepEqual(got, want) {
					g.Expect(string(asYAML(t, got))).To(Equal(string(asYAML(t, want))))
					g.Expect(got).To(Equal(want))
				}
			}
		})
	}
}

// TestBrokenMembers holds that broken members change nothing for the others.
func TestBrokenMembers(t *testing.T) {
	g := NewWithT(t)
	declared := readCase(t, "broken-members")
	with := Render(declared)
	g.Expect(with.Problems).To(HaveLen(4))
	g.Expect(with.Objects).To(HaveLen(1 + 7))

	fleet := declared.Fleets[0]
	fleet.Spec.Clusters = slices.DeleteFunc(fleet.Spec.Clusters, func(c fleetv1.FleetCluster) bool {
		return slices.Contains([]string{"m03", "m05", "m09"}, c.Name) || c.Name == "m07" && c.Kind == "AttachedCluster"
	})
	without := Render(declared)
	g.Expect(without.Problems).To(BeEmpty())
	g.Expect(without.Objects).To(Equal(with.Objects))
}

func testApplication(alter ...func(*appsv1.ApplicationSpec)) *appsv1.Application {
	app := &appsv1.Application{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}}
	app.Spec.Source.GitRepository = &appsv1.GitRepositorySource{GitRepositorySpec: sourcev1.GitRepositorySpec{
		URL: "https://git.example.com/web", Interval: metav1.Duration{Duration: DefaultInterval}}}
	app.Spec.Destination = &appsv1.ApplicationDestination{Fleet: "prod"}
	app.Spec.SyncPolicies = []appsv1.ApplicationSyncPolicy{{Name: "web", Kustomization: &appsv1.Kustomization{Path: "./web"}}}
	for _, f := range alter {
		f(&app.Spec)
	}
	return app
}

func raw(s string) *apiextensionsv1.JSON { return &apiextensionsv1.JSON{Raw: []byte(s)} }

// TestCompileErrors is about what a CRD does not refuse, or a command line may not have checked.
func TestCompileErrors(t *testing.T) {
	chart := &appsv1.HelmChartTemplate{Spec: appsv1.HelmChartTemplateSpec{Chart: "web"}}
	helm := func(h appsv1.HelmRelease) []appsv1.ApplicationSyncPolicy {
		return []appsv1.ApplicationSyncPolicy{{Name: "web", Helm: &h}}
	}
	invalid := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Maybe"}}}
	for _, tt := range []struct {
		name  string
		alter func(s *appsv1.ApplicationSpec)
		err   string
	}{
		{"no policy", func(s *appsv1.ApplicationSpec) { s.SyncPolicies = nil }, ""}, // refused by the CRD
		{"neither", func(s *appsv1.ApplicationSpec) { s.SyncPolicies[0].Kustomization = nil },
			"spec.syncPolicies[0]: neither kustomization nor helm is set"},
		{"no source", func(s *appsv1.ApplicationSpec) { s.Source = appsv1.ApplicationSource{} },
			"spec.source: exactly one of gitRepository, helmRepository, ociRepository, bucket and sourceRef is needed"},
		{"manifests from a Helm repository", func(s *appsv1.ApplicationSpec) {
			s.Source = appsv1.ApplicationSource{HelmRepository: &sourcev1.HelmRepositorySpec{}}
		}, "spec.syncPolicies[0]: kustomization: a HelmRepository holds no manifests"},
		{"no chart", func(s *appsv1.ApplicationSpec) { s.SyncPolicies = helm(appsv1.HelmRelease{}) },
			"spec.syncPolicies[0]: helm: chart is missing"},
		{"chart of a chart", func(s *appsv1.ApplicationSpec) {
			s.Source = appsv1.ApplicationSource{OCIRepository: &sourcev1.OCIRepositorySpec{}}
			s.SyncPolicies = helm(appsv1.HelmRelease{Chart: chart})
		}, "spec.syncPolicies[0]: helm: chart: an OCIRepository is the chart itself"},
		{"values that are no map", func(s *appsv1.ApplicationSpec) {
			s.SyncPolicies = helm(appsv1.HelmRelease{Chart: chart, Values: raw(`[1]`)})
		}, "spec.syncPolicies[0]: helm.values: has to be a map"},
		{"selector", func(s *appsv1.ApplicationSpec) { s.Destination.ClusterSelector = invalid },
			`spec.syncPolicies[0]: destination.clusterSelector: "Maybe" is not a valid label selector operator`},
		{"no destination in a destination", func(s *appsv1.ApplicationSpec) { s.Destination = &appsv1.ApplicationDestination{} },
			"spec.syncPolicies[0]: destination: exactly one of fleet and cluster is needed"},
		{"fleet and cluster", func(s *appsv1.ApplicationSpec) { s.Destination.Cluster = &appsv1.ClusterReference{Name: "c1"} },
			"spec.syncPolicies[0]: destination: exactly one of fleet and cluster is needed"},
		{"selector of a cluster", func(s *appsv1.ApplicationSpec) {
			s.Destination = &appsv1.ApplicationDestination{Cluster: &appsv1.ClusterReference{Name: "c1"}, ClusterSelector: &metav1.LabelSelector{}}
		}, "spec.syncPolicies[0]: destination.clusterSelector chooses members of a fleet: set fleet"},
		{"fleet that looks like a cluster", func(s *appsv1.ApplicationSpec) { s.Destination.Fleet = ClusterKey("", "c1") },
			`spec.syncPolicies[0]: destination.fleet: "cluster//c1" is no name of a Fleet`},
		{"override selector", func(s *appsv1.ApplicationSpec) {
			s.SyncPolicies[0].Overrides = []appsv1.Override{{Clusters: []string{"c1"}, Kustomization: &appsv1.KustomizationOverride{}},
				{Selector: invalid, Kustomization: &appsv1.KustomizationOverride{}}}
		}, `spec.syncPolicies[0]: overrides[1].selector: "Maybe" is not a valid label selector operator`},
		{"template", func(s *appsv1.ApplicationSpec) {
			s.SyncPolicies[0].Kustomization.Patches = append(s.SyncPolicies[0].Kustomization.Patches, kustomize.Patch{Patch: "<< .cluster.name | shout >>"})
		}, `spec.syncPolicies[0]: kustomization: patches[0].patch: << .cluster.name | shout >>: function "shout" not defined`},
		{"chart template", func(s *appsv1.ApplicationSpec) {
			s.SyncPolicies = helm(appsv1.HelmRelease{Chart: &appsv1.HelmChartTemplate{Spec: appsv1.HelmChartTemplateSpec{Chart: "web", Version: "<< .cluster. >>"}}})
		}, `spec.syncPolicies[0]: helm: chart: spec.version: << .cluster. >>: `},
		{"policy name", func(s *appsv1.ApplicationSpec) { s.SyncPolicies[0].Name = "Web!" },
			`spec.syncPolicies[0].name: "Web!": a lowercase RFC 1123 label must consist of`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			app := testApplication(tt.alter)
			_, err := Compile(app)
			if tt.err == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(tt.err)))
			g.Expect(Render(Declared{Applications: []*appsv1.Application{app}})).To(Equal(Result{Problems: []Problem{
				{Namespace: "default", Application: "web", Reason: InvalidReason, Message: err.Error()}}}))
		})
	}
}

// TestFleetToCluster holds that a member keeps its object when it is reached by its name and not through a fleet any more.
func TestFleetToCluster(t *testing.T) {
	g := NewWithT(t)
	declared := readCase(t, "one-cluster")
	apps := declared.Applications
	render := func(d appsv1.ApplicationDestination) Rendered {
		app := testApplication(func(s *appsv1.ApplicationSpec) { s.Destination = &d })
		declared.Applications = []*appsv1.Application{app}
		r := Render(declared)
		g.Expect(r.Problems).To(BeEmpty())
		g.Expect(r.Objects).To(HaveLen(2))
		return r.Objects[1]
	}
	fleet, cluster := render(*apps[0].Spec.Destination), render(*apps[1].Spec.Destination)
	g.Expect(cluster.Member).To(Equal(fleet.Member))
	g.Expect(cluster.Spec).To(Equal(fleet.Spec))
	g.Expect(cluster.Metadata.Labels).NotTo(HaveKey(fleetv1.FleetLabel))
	delete(fleet.Metadata.Labels, fleetv1.FleetLabel)
	delete(fleet.Metadata.Annotations, fleetv1.DigestAnnotation)
	delete(cluster.Metadata.Annotations, fleetv1.DigestAnnotation)
	g.Expect(cluster.Metadata).To(Equal(fleet.Metadata))
}

// TestMemberErrors is about what is known of one member only.
func TestMemberErrors(t *testing.T) {
	chart := &appsv1.HelmChartTemplate{Spec: appsv1.HelmChartTemplateSpec{Chart: "web"}}
	helm := func(h appsv1.HelmRelease) func(s *appsv1.ApplicationSpec) {
		h.Chart = chart
		return func(s *appsv1.ApplicationSpec) {
			s.SyncPolicies = []appsv1.ApplicationSyncPolicy{{Name: "web", Helm: &h}}
		}
	}
	for _, tt := range []struct {
		name  string
		alter func(s *appsv1.ApplicationSpec)
		err   string
	}{
		{"label", func(s *appsv1.ApplicationSpec) { s.SyncPolicies[0].Kustomization.Path = "<< .cluster.labels.site >>" },
			`kustomization.path: << .cluster.labels.site >>: the cluster has no label "site"`},
		{"label in values", helm(appsv1.HelmRelease{Values: raw(`{"a":[{"b":"<< index .cluster.labels \"x/site\" >>"}]}`)}),
			`helm.values.a[0].b: << index .cluster.labels "x/site" >>: the cluster has no label "x/site"`},
		{"number where a string is", func(s *appsv1.ApplicationSpec) {
			s.SyncPolicies[0].Kustomization.Path = "<< .cluster.labels.n | number >>"
		},
			`kustomization.path: cannot be a number`},
		{"bool where a string is", helm(appsv1.HelmRelease{ReleaseName: "<< .cluster.labels.yes | bool >>"}), `helm.releaseName: cannot be a bool`},
		{"release name", helm(appsv1.HelmRelease{ReleaseName: "<< .cluster.name >>" + strings.Repeat("x", 60)}), "has more than 53 characters"},
		{"release name, empty", helm(appsv1.HelmRelease{ReleaseName: "<< .cluster.labels.empty >>"}), `helm.releaseName: "": `},
		{"release name, invalid", helm(appsv1.HelmRelease{ReleaseName: "<< .cluster.kind >>"}), `helm.releaseName: "AttachedCluster": `},
		{"target namespace", helm(appsv1.HelmRelease{TargetNamespace: "<< .cluster.kind >>", StorageNamespace: "x"}), `helm.targetNamespace: "AttachedCluster": `},
		{"storage namespace", helm(appsv1.HelmRelease{StorageNamespace: "<< .cluster.kind >>"}), `helm.storageNamespace: "AttachedCluster": `},
		{"override that does not parse", func(s *appsv1.ApplicationSpec) {
			s.SyncPolicies[0].Overrides = []appsv1.Override{{Clusters: []string{"c1"}, Kustomization: &appsv1.KustomizationOverride{Path: "<< .cluster.name | shout >>"}}}
		}, `kustomization: path: << .cluster.name | shout >>: function "shout" not defined`},
		{"override values", func(s *appsv1.ApplicationSpec) {
			helm(appsv1.HelmRelease{})(s)
			s.SyncPolicies[0].Overrides = []appsv1.Override{{Clusters: []string{"c1"}, Helm: &appsv1.HelmOverride{Values: raw(`"x"`)}}}
		}, `overrides: helm.values: has to be a map`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			p, err := Compile(testApplication(tt.alter))
			g.Expect(err).NotTo(HaveOccurred())
			c1 := testMember("c1")
			c1.Labels = map[string]string{"n": "1", "empty": "", "yes": "true"}
			_, err = p.Child(&Scope{}, p.Policies()[0], &c1)
			g.Expect(err).To(MatchError(ContainSubstring(tt.err)))
		})
	}
}

func testMember(name string) member.Member {
	return member.Member{Name: name, Kind: clusterv1.AttachedClusterKind, Ready: true,
		KubeConfig: &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: name, Key: "value"}}}
}

func TestMergeMaps(t *testing.T) {
	type m = map[string]any
	for _, tt := range []struct {
		name             string
		base, over, want m
	}{
		{"nothing", nil, nil, nil},
		{"no base", nil, m{"a": 1}, m{"a": 1}},
		{"nothing over", m{"a": 1}, nil, m{"a": 1}},
		{"by key", m{"a": m{"b": 1, "c": 1}}, m{"a": m{"c": 2, "d": 2}}, m{"a": m{"b": 1, "c": 2, "d": 2}}},
		{"lists are replaced", m{"a": []any{1, 2}}, m{"a": []any{3}}, m{"a": []any{3}}},
		{"a null stays", m{"a": m{"b": 1}}, m{"a": nil, "x": nil}, m{"a": nil, "x": nil}},
		{"a map over a null", m{"a": nil}, m{"a": m{"b": 1}}, m{"a": m{"b": 1}}},
		{"a scalar over a map", m{"a": m{"b": 1}}, m{"a": 1}, m{"a": 1}},
		{"a map over a scalar", m{"a": 1}, m{"a": m{"b": 1}}, m{"a": m{"b": 1}}},
		{"an empty map takes nothing away", m{"a": m{"b": 1}}, m{"a": m{}}, m{"a": m{"b": 1}}},
		{"false and zero are values", m{"a": true, "b": 1}, m{"a": false, "b": 0}, m{"a": false, "b": 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			base := maps.Clone(tt.base)
			g.Expect(MergeValues(tt.base, tt.over)).To(Equal(tt.want))
			g.Expect(tt.base).To(Equal(base), "base is not changed")
		})
	}
}

func TestCycle(t *testing.T) {
	for _, tt := range []struct {
		edges map[string]string
		start string
		want  string
	}{
		{map[string]string{"a": "b", "b": "c"}, "a", ""},
		{map[string]string{"a": "a"}, "a", "a → a"},
		{map[string]string{"a": "bc", "c": "a"}, "a", "a → c → a"},
		{map[string]string{"a": "b", "b": "c", "c": "b"}, "a", ""}, // a cycle among others
		{map[string]string{"a": "b", "b": "c", "c": "b"}, "b", "b → c → b"},
	} {
		next := func(name string) []string { return strings.Split(tt.edges[name], "")[:len(tt.edges[name])] }
		NewWithT(t).Expect(Cycle(tt.start, next)).To(Equal(tt.want), "%v", tt.edges)
	}
}

// TestManyDependencies would take for ever if every way through the dependencies were gone.
func TestManyDependencies(t *testing.T) {
	g := NewWithT(t)
	app := testApplication(func(s *appsv1.ApplicationSpec) {
		s.SyncPolicies = nil
		var before []appsv1.NameReference
		for i := range 64 {
			name := fmt.Sprintf("p%02d", i)
			s.SyncPolicies = append(s.SyncPolicies, appsv1.ApplicationSyncPolicy{Name: name, DependsOn: slices.Clone(before), Kustomization: &appsv1.Kustomization{}})
			before = append(before, appsv1.NameReference{Name: name})
		}
	})
	_, err := Compile(app)
	g.Expect(err).NotTo(HaveOccurred())
}

// TestStamp holds that a stamp changes with whatever a child is made of beside the Application.
func TestStamp(t *testing.T) {
	infra := testApplication(func(s *appsv1.ApplicationSpec) {
		s.Destination.Fleet = "infra"
		s.SyncPolicies[0].Name = "cni"
	})
	infra.Name = "infra"
	app := testApplication(func(s *appsv1.ApplicationSpec) {
		s.DependsOn = []appsv1.NameReference{{Name: "infra"}}
		s.SyncPolicies = append(s.SyncPolicies,
			appsv1.ApplicationSyncPolicy{Name: "named", Destination: &appsv1.ApplicationDestination{Fleet: "other"}, Kustomization: &appsv1.Kustomization{}})
		s.SyncPolicies[0].Kustomization.DependsOn = []meta.DependencyReference{{Name: "named"}}
	})
	program, err := Compile(app)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	dependency, err := Compile(infra)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())

	c1 := testMember("c1")
	scope := func(alter func(fleets map[string][]member.Member, s *Scope)) *Scope {
		fleets := map[string][]member.Member{"prod": {c1}, "infra": {c1}, "other": {c1}}
		s := &Scope{Fleets: map[string]*Fleet{}, Dependencies: map[string]*Program{"infra": dependency}}
		alter(fleets, s)
		for name, members := range fleets {
			s.Fleets[name] = NewFleet(members)
		}
		return s
	}
	policy := program.Policies()[0]
	render := func(s *Scope) (string, Stamp) {
		child, err := program.Child(s, policy, &c1)
		if err != nil {
			t.Fatal(err)
		}
		return child.Object.Digest(), program.Stamp(s, policy, &c1)
	}
	digest, stamp := render(scope(func(map[string][]member.Member, *Scope) {}))
	for name, alter := range map[string]func(fleets map[string][]member.Member, s *Scope){
		"out of the other fleet":    func(fleets map[string][]member.Member, _ *Scope) { fleets["infra"] = nil },
		"out of the policy's fleet": func(fleets map[string][]member.Member, _ *Scope) { delete(fleets, "other") },
		"leaving the other fleet": func(fleets map[string][]member.Member, _ *Scope) {
			c := c1
			c.Leaving = true
			fleets["infra"] = []member.Member{c}
		},
		"the dependency is gone": func(_ map[string][]member.Member, s *Scope) { delete(s.Dependencies, "infra") },
		"another member joins": func(fleets map[string][]member.Member, _ *Scope) {
			fleets["prod"] = []member.Member{c1, testMember("c2")}
		},
		"another one leaves infra": func(fleets map[string][]member.Member, _ *Scope) {
			fleets["infra"] = []member.Member{c1, testMember("c2")}
		},
		"the same, resolved once more": func(map[string][]member.Member, *Scope) {},
	} {
		t.Run(name, func(t *testing.T) {
			d, s := render(scope(alter))
			NewWithT(t).Expect(s == stamp).To(Equal(d == digest))
		})
	}
	c2 := c1
	c2.Version.ResourceVersion = "2"
	NewWithT(t).Expect(program.Stamp(&Scope{}, policy, &c2)).NotTo(Equal(program.Stamp(&Scope{}, policy, &c1)))
}

func TestClaim(t *testing.T) {
	g := NewWithT(t)
	secret := func(name, key string) *meta.KubeConfigReference {
		return &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: name, Key: key}}
	}
	seen := map[string]bool{}
	for _, claim := range []string{
		Claim(nil, "ns", "r"), Claim(secret("c1", "value"), "ns", "r"), Claim(secret("c2", "value"), "ns", "r"),
		Claim(secret("c1", "other"), "ns", "r"), Claim(secret("c1", "value"), "ns2", "r"), Claim(secret("c1", "value"), "ns", "r2"),
		Claim(&meta.KubeConfigReference{ConfigMapRef: &meta.LocalObjectReference{Name: "c1"}}, "ns", "r"),
	} {
		g.Expect(seen).NotTo(HaveKey(claim))
		seen[claim] = true
	}
	g.Expect(Claim(secret("c1", ""), "ns", "r")).To(Equal(Claim(secret("c1", "value"), "ns", "r")), "the default key")
}

// TestSharedSpecs holds that a child's own fields do not end up in another one's.
func TestSharedSpecs(t *testing.T) {
	g := NewWithT(t)
	p, err := Compile(testApplication(func(s *appsv1.ApplicationSpec) {
		s.SyncPolicies = []appsv1.ApplicationSyncPolicy{
			{Name: "first", Helm: &appsv1.HelmRelease{Chart: &appsv1.HelmChartTemplate{Spec: appsv1.HelmChartTemplateSpec{Chart: "a"}}}},
			{Name: "web", DependsOn: []appsv1.NameReference{{Name: "first"}}, Helm: &appsv1.HelmRelease{
				Chart:     &appsv1.HelmChartTemplate{Spec: appsv1.HelmChartTemplateSpec{Chart: "a"}},
				DependsOn: []meta.DependencyReference{{Name: "first"}, {Name: "x"}}, Values: raw(`{"a":1}`)}},
		}
	}))
	g.Expect(err).NotTo(HaveOccurred())
	members := []member.Member{testMember("c1"), testMember("c2")}
	scope := &Scope{Fleets: map[string]*Fleet{"prod": NewFleet(members)}}
	var specs []*helmv2.HelmReleaseSpec
	for i := range members {
		child, err := p.Child(scope, p.Policies()[1], &members[i])
		g.Expect(err).NotTo(HaveOccurred())
		specs = append(specs, child.Object.Spec.(*helmv2.HelmReleaseSpec))
	}
	for i, spec := range specs {
		name := members[i].Name
		g.Expect(spec.KubeConfig.SecretRef.Name).To(Equal(name))
		g.Expect(spec.DependsOn).To(Equal([]meta.DependencyReference{{Name: "web-first-" + name}, {Name: "x"}}))
	}
}

// TestAdmit holds that the checks of the goldens check.
func TestAdmit(t *testing.T) {
	g := NewWithT(t)
	flux := loadCRDs(t, fluxCRDs)
	result := Render(readCase(t, "hub"))
	for field, value := range map[string]any{
		"unknown": "x", "interval": "ten minutes", "prune": nil, "sourceRef": map[string]any{"kind": "HelmRepository", "name": "x"},
		"kubeConfig": map[string]any{}, // against a rule
	} {
		o := asUnstructured(t, result.Objects[2])
		g.Expect(o.GetKind()).To(Equal("Kustomization"))
		spec := o.Object["spec"].(map[string]any)
		if spec[field] = value; value == nil {
			delete(spec, field)
		}
		g.Expect(flux.admit(o)).To(MatchError(ContainSubstring(field)))
	}
}
