package member

import (
	"math/rand/v2"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

type labelSet = map[string]string

func attached(name string, labels labelSet, alter ...func(*clusterv1.AttachedCluster)) *clusterv1.AttachedCluster {
	a := &clusterv1.AttachedCluster{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: labels}}
	a.Spec.Kubeconfig = &clusterv1.KubeconfigReference{Name: name + "-kubeconfig", Key: "value"}
	for _, f := range alter {
		f(a)
	}
	return a
}

func cluster(name string, labels labelSet, alter ...func(*clusterv1.Cluster)) *clusterv1.Cluster {
	c := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: labels}}
	c.Spec.Kind = clusterv1.ClusterAttached
	c.Spec.KubeconfigRef = &clusterv1.KubeconfigReference{Name: name + "-of-cluster"}
	for _, f := range alter {
		f(c)
	}
	return c
}

func fleet(clusters ...fleetv1.FleetCluster) *fleetv1.Fleet {
	return &fleetv1.Fleet{ObjectMeta: metav1.ObjectMeta{Name: "prod", Namespace: "default"}, Spec: fleetv1.FleetSpec{Clusters: clusters}}
}

func selecting(f *fleetv1.Fleet, labels labelSet) *fleetv1.Fleet {
	f.Spec.ClusterSelector = &metav1.LabelSelector{MatchLabels: labels}
	return f
}

func secret(name, key string) *meta.KubeConfigReference {
	return &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: name, Key: key}}
}

func TestResolve(t *testing.T) {
	type list = []fleetv1.FleetCluster
	prod := labelSet{"env": "prod"}
	for _, tt := range []struct {
		name     string
		fleet    *fleetv1.Fleet
		attached []*clusterv1.AttachedCluster
		clusters []*clusterv1.Cluster
		want     []Member // Ready, Message and Version are compared where they matter, below
	}{
		{
			name:     "without kind an AttachedCluster is found",
			fleet:    fleet(list{{Name: "c1"}}...),
			attached: []*clusterv1.AttachedCluster{attached("c1", prod), attached("c2", prod)},
			want:     []Member{{Name: "c1", Kind: "AttachedCluster", Labels: prod, KubeConfig: secret("c1-kubeconfig", "value"), Reason: NotProbedReason}},
		},
		{
			name:     "without kind a Cluster comes first",
			fleet:    fleet(list{{Name: "c1"}}...),
			attached: []*clusterv1.AttachedCluster{attached("c1", nil)},
			clusters: []*clusterv1.Cluster{cluster("c1", nil)},
			want:     []Member{{Name: "c1", Kind: "Cluster", KubeConfig: secret("c1-of-cluster", "value"), Reason: NotProbedReason}},
		},
		{
			name:     "with its kind",
			fleet:    fleet(list{{Name: "c1", Kind: "AttachedCluster"}}...),
			attached: []*clusterv1.AttachedCluster{attached("c1", nil)},
			clusters: []*clusterv1.Cluster{cluster("c1", nil)},
			want:     []Member{{Name: "c1", Kind: "AttachedCluster", KubeConfig: secret("c1-kubeconfig", "value"), Reason: NotProbedReason}},
		},
		{
			name:     "sorted by name, and what is missing is a member too",
			fleet:    fleet(list{{Name: "c3"}, {Name: "c2", Labels: prod}, {Name: "c1"}}...),
			attached: []*clusterv1.AttachedCluster{attached("c1", nil), attached("c3", nil)},
			want: []Member{
				{Name: "c1", Kind: "AttachedCluster", KubeConfig: secret("c1-kubeconfig", "value"), Reason: NotProbedReason},
				{Name: "c2", Labels: prod, Reason: NotFoundReason},
				{Name: "c3", Kind: "AttachedCluster", KubeConfig: secret("c3-kubeconfig", "value"), Reason: NotProbedReason},
			},
		},
		{
			name:     "the fleet's labels win",
			fleet:    fleet(list{{Name: "c1", Labels: labelSet{"env": "prod", "tier": "1"}}}...),
			attached: []*clusterv1.AttachedCluster{attached("c1", labelSet{"env": "lab", "region": "eu"})},
			want: []Member{{Name: "c1", Kind: "AttachedCluster", Labels: labelSet{"env": "prod", "tier": "1", "region": "eu"},
				KubeConfig: secret("c1-kubeconfig", "value"), Reason: NotProbedReason}},
		},
		{
			name:     "selected by its own labels, of either kind; listed and selected is one",
			fleet:    selecting(fleet(list{{Name: "c1", Labels: labelSet{"tier": "1"}}, {Name: "c4", Labels: prod}}...), prod),
			attached: []*clusterv1.AttachedCluster{attached("c1", prod), attached("c2", labelSet{"env": "lab"}), attached("c4", nil)},
			clusters: []*clusterv1.Cluster{cluster("c3", prod)},
			want: []Member{
				{Name: "c1", Kind: "AttachedCluster", Labels: labelSet{"env": "prod", "tier": "1"}, KubeConfig: secret("c1-kubeconfig", "value"), Reason: NotProbedReason},
				{Name: "c3", Kind: "Cluster", Labels: prod, KubeConfig: secret("c3-of-cluster", "value"), Reason: NotProbedReason},
				{Name: "c4", Kind: "AttachedCluster", Labels: prod, KubeConfig: secret("c4-kubeconfig", "value"), Reason: NotProbedReason},
			},
		},
		{
			name:     "listed twice is one, with the labels of both",
			fleet:    fleet(list{{Name: "c1", Labels: labelSet{"a": "1", "b": "1"}}, {Name: "c1", Kind: "AttachedCluster", Labels: labelSet{"b": "2"}}}...),
			attached: []*clusterv1.AttachedCluster{attached("c1", nil)},
			want: []Member{{Name: "c1", Kind: "AttachedCluster", Labels: labelSet{"a": "1", "b": "2"},
				KubeConfig: secret("c1-kubeconfig", "value"), Reason: NotProbedReason}},
		},
		{
			name:     "two kinds of one name: the Cluster has the name",
			fleet:    fleet(list{{Name: "c1", Kind: "AttachedCluster"}, {Name: "c1", Kind: "Cluster"}}...),
			attached: []*clusterv1.AttachedCluster{attached("c1", nil)},
			clusters: []*clusterv1.Cluster{cluster("c1", nil)},
			want: []Member{
				{Name: "c1", Kind: "Cluster", KubeConfig: secret("c1-of-cluster", "value"), Reason: NotProbedReason},
				{Name: "c1", Kind: "AttachedCluster", Reason: DuplicateReason},
			},
		},
		{
			name:     "what is missing takes nobody's name",
			fleet:    selecting(fleet(list{{Name: "c1", Kind: "Cluster"}}...), prod),
			attached: []*clusterv1.AttachedCluster{attached("c1", prod)},
			want: []Member{
				{Name: "c1", Kind: "AttachedCluster", Labels: prod, KubeConfig: secret("c1-kubeconfig", "value"), Reason: NotProbedReason},
				{Name: "c1", Reason: NotFoundReason},
			},
		},
		{
			name:  "the key of the Secret, and a ConfigMap",
			fleet: selecting(fleet(), nil),
			attached: []*clusterv1.AttachedCluster{
				attached("c1", nil, func(a *clusterv1.AttachedCluster) { a.Spec.Kubeconfig.Key = "kubeconfig" }),
				attached("c2", nil, func(a *clusterv1.AttachedCluster) {
					a.Spec.Kubeconfig, a.Spec.ConfigMapRef = nil, &meta.LocalObjectReference{Name: "identity"}
				}),
				attached("c3", nil, func(a *clusterv1.AttachedCluster) { a.Spec.Kubeconfig = nil }),
			},
			clusters: []*clusterv1.Cluster{cluster("c4", nil, func(c *clusterv1.Cluster) { c.Spec.KubeconfigRef.Key = "admin.conf" })},
			want: []Member{
				{Name: "c1", Kind: "AttachedCluster", KubeConfig: secret("c1-kubeconfig", "kubeconfig"), Reason: NotProbedReason},
				{Name: "c2", Kind: "AttachedCluster", KubeConfig: &meta.KubeConfigReference{ConfigMapRef: &meta.LocalObjectReference{Name: "identity"}}, Reason: NotProbedReason},
				{Name: "c3", Kind: "AttachedCluster", Reason: NoKubeconfigReason},
				{Name: "c4", Kind: "Cluster", KubeConfig: secret("c4-of-cluster", "admin.conf"), Reason: NotProbedReason},
			},
		},
		{
			name:  "what a provider makes is reached through its status, never through the provider's credential",
			fleet: selecting(fleet(), nil),
			clusters: []*clusterv1.Cluster{
				cluster("c1", nil, provisioned),
				cluster("c2", nil, provisioned, func(c *clusterv1.Cluster) { c.Status.KubeconfigSecretRef = "made" }),
				cluster("c3", nil, provisioned, func(c *clusterv1.Cluster) { c.Spec.Kind, c.Spec.Provider, c.Spec.InfraType = "", "", "aws" }),
			},
			want: []Member{
				{Name: "c1", Kind: "Cluster", Reason: NoKubeconfigReason},
				{Name: "c2", Kind: "Cluster", KubeConfig: secret("made", "value"), Reason: NotProbedReason},
				{Name: "c3", Kind: "Cluster", Reason: NoKubeconfigReason},
			},
		},
		{
			name:     "no selector selects nothing",
			fleet:    fleet(),
			attached: []*clusterv1.AttachedCluster{attached("c1", nil)},
			want:     []Member{},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			before := deepCopies(tt.attached)
			got, err := Resolve(tt.fleet, NewClusters(tt.attached, tt.clusters))
			g.Expect(err).NotTo(HaveOccurred())
			for i := range got {
				if got[i].KubeConfig == nil {
					g.Expect(got[i].Message).NotTo(BeEmpty())
				}
				got[i].Message = ""
			}
			g.Expect(got).To(Equal(tt.want))
			g.Expect(tt.attached).To(Equal(before), "the cache is not changed")
		})
	}
}

func provisioned(c *clusterv1.Cluster) {
	c.Spec.Kind, c.Spec.Provider, c.Spec.KubeconfigRef = clusterv1.ClusterProvisioned, "vmware", nil
	c.Spec.Credential = &clusterv1.ClusterCredential{SecretRef: clusterv1.NewSecretRef("cloud-credential")}
}

func deepCopies(in []*clusterv1.AttachedCluster) []*clusterv1.AttachedCluster {
	var out []*clusterv1.AttachedCluster
	for _, a := range in {
		out = append(out, a.DeepCopy())
	}
	return out
}

func TestLeaving(t *testing.T) {
	g := NewWithT(t)
	now := metav1.Now()
	a := attached("c1", nil, func(a *clusterv1.AttachedCluster) { a.DeletionTimestamp = &now })
	got, err := Resolve(fleet(fleetv1.FleetCluster{Name: "c1"}), NewClusters([]*clusterv1.AttachedCluster{a}, nil))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(got[0].Leaving).To(BeTrue())
	g.Expect(got[0].KubeConfig).NotTo(BeNil(), "its children still need it to clean up")
}

func TestReady(t *testing.T) {
	for _, tt := range []struct {
		name       string
		conditions []metav1.Condition
		ready      bool
		reason     string
	}{
		{name: "no status", reason: NotProbedReason},
		{name: "unknown", conditions: []metav1.Condition{{Type: "Ready", Status: "Unknown", Reason: "Progressing"}}, reason: NotProbedReason},
		{name: "ready", conditions: []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Succeeded"}}, ready: true},
		{name: "not ready", conditions: []metav1.Condition{{Type: "Ready", Status: "False", Reason: "Unreachable", Message: "no route"}}, reason: "Unreachable"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			a := attached("c1", nil, func(a *clusterv1.AttachedCluster) { a.Status.Conditions = tt.conditions })
			got, err := Resolve(fleet(fleetv1.FleetCluster{Name: "c1"}), NewClusters([]*clusterv1.AttachedCluster{a}, nil))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got[0].Ready).To(Equal(tt.ready))
			g.Expect(got[0].Reason).To(Equal(tt.reason))
		})
	}
}

func TestVersion(t *testing.T) {
	g := NewWithT(t)
	version := func(resourceVersion string, generation int64, labels map[string]string) Version {
		a := attached("c1", nil, func(a *clusterv1.AttachedCluster) { a.UID, a.ResourceVersion = "u", resourceVersion })
		f := fleet(fleetv1.FleetCluster{Name: "c1", Labels: labels})
		f.UID, f.Generation = "f", generation
		got, err := Resolve(f, NewClusters([]*clusterv1.AttachedCluster{a}, nil))
		g.Expect(err).NotTo(HaveOccurred())
		return got[0].Version
	}
	g.Expect(version("1", 1, nil)).To(Equal(version("1", 1, nil)))
	g.Expect(version("1", 1, nil)).NotTo(Equal(version("2", 1, nil)))
	g.Expect(version("1", 1, nil)).To(Equal(version("1", 2, nil)), "another generation, with nothing of the fleet in the member")
	g.Expect(version("1", 1, labelSet{"a": "b"})).NotTo(Equal(version("1", 2, labelSet{"a": "b"})))
	g.Expect(version("1", 1, labelSet{"a": "b"})).NotTo(Equal(version("1", 1, nil)))
}

func TestInvalidSelector(t *testing.T) {
	f := fleet()
	f.Spec.ClusterSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: "Maybe"}}}
	_, err := Resolve(f, NewClusters(nil, nil))
	NewWithT(t).Expect(err).To(MatchError(`spec.clusterSelector: "Maybe" is not a valid label selector operator`))
}

// TestOrder holds that the order of what is given changes nothing.
func TestOrder(t *testing.T) {
	g := NewWithT(t)
	var as []*clusterv1.AttachedCluster
	var cs []*clusterv1.Cluster
	f := selecting(fleet(), labelSet{"env": "prod"})
	for _, name := range []string{"c1", "c2", "c3", "c4", "c5"} {
		as, cs = append(as, attached(name, labelSet{"env": "prod"})), append(cs, cluster(name, labelSet{"env": "prod"}))
		f.Spec.Clusters = append(f.Spec.Clusters, fleetv1.FleetCluster{Name: name + "x"}, fleetv1.FleetCluster{Name: name})
	}
	want, err := Resolve(f, NewClusters(as, cs))
	g.Expect(err).NotTo(HaveOccurred())
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		r.Shuffle(len(as), func(i, j int) { as[i], as[j] = as[j], as[i] })
		r.Shuffle(len(cs), func(i, j int) { cs[i], cs[j] = cs[j], cs[i] })
		list := f.Spec.Clusters
		r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		got, err := Resolve(f, NewClusters(as, cs))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got).To(Equal(want))
	}
}
