package compat

import (
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fleetwright/fleetwright/renderers/member"
)

func at(name, version string) Member {
	return Member{Key: member.Key{Kind: "AttachedCluster", Name: name}, Kubernetes: version}
}

func object(apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

// say prints a finding in one line.
func say(findings []Finding) []string {
	var out []string
	for _, f := range findings {
		out = append(out, fmt.Sprintf("%s/%s %s %v: %s", f.Application, f.Policy, f.Reason, f.Members, f.Message))
	}
	return out
}

func TestSupported(t *testing.T) {
	for _, tt := range []struct {
		kubernetes, version string
		message             string
	}{
		{kubernetes: "", version: "v1.20.0"},
		{kubernetes: ">=1.25.0-0", version: ""},
		{kubernetes: ">=1.25.0-0", version: "unknown"},
		{kubernetes: ">=1.25.0-0", version: "v1.25.0"},
		{kubernetes: ">=1.25.0-0", version: "v1.24.17", message: "chart kyverno supports Kubernetes >=1.25.0-0 (here v1.24.17): upgrade, or choose another version of the chart"},
		{kubernetes: "^1.25.0-0", version: "v1.36.4+k3s1"},
		{kubernetes: ">=1.25.0", version: "v1.30.4+k3s1"},
		{kubernetes: ">=1.25.0-0", version: "v1.30.4-gke.100"},
		{kubernetes: ">=1.25.0", version: "v1.30.4-gke.100", message: "chart kyverno supports Kubernetes >=1.25.0, which Helm takes to be without versions that have a suffix (here v1.30.4-gke.100): choose a version of the chart whose range has one, >=1.25.0-0 say"},
		{kubernetes: ">=1.30.4-0", version: "v1.29.4-gke.100", message: "chart kyverno supports Kubernetes >=1.30.4-0 (here v1.29.4-gke.100): upgrade, or choose another version of the chart"},
		{kubernetes: ">=1.30.4-0 <1.31.0-0", version: "v1.30.4-eks-a737599"},
		{kubernetes: "<1.31.0-0", version: "v1.31.0-alpha.1", message: "chart kyverno supports Kubernetes <1.31.0-0 (here v1.31.0-alpha.1): upgrade, or choose another version of the chart"},
		{kubernetes: ">=1.19.0-0 || <1.10", version: "v1.18", message: "chart kyverno supports Kubernetes >=1.19.0-0 || <1.10 (here v1.18): upgrade, or choose another version of the chart"},
		{kubernetes: "new", version: "v1.36.4", message: `chart kyverno: its kubeVersion, "new", is no range of versions, and Helm refuses it: choose another version of the chart`},
	} {
		g := NewWithT(t)
		got := Check([]Delivery{{Application: "a", Chart: "kyverno", Kubernetes: tt.kubernetes, Members: []Member{at("m", tt.version)}}})
		if tt.message == "" {
			g.Expect(got).To(BeEmpty(), "%s %s", tt.kubernetes, tt.version)
		} else {
			g.Expect(got).To(Equal([]Finding{{Application: "a", Members: []string{"m"}, Reason: UnsupportedReason, Message: tt.message}}))
		}
	}
}

func TestServed(t *testing.T) {
	for _, tt := range []struct {
		apiVersion, kind, version string
		want                      string // without the object and its apiVersion
		warning                   bool
	}{
		{"v1", "ConfigMap", "v1.36.4", "", false},
		{"apps/v1", "Deployment", "v1.16.0", "", false},
		{"apps/v1", "Nonsense", "v1.36.4", "", false},
		{"example.com/v1", "Widget", "v1.36.4", "", false}, // who knows who brings its CRD
		{"policy/v1beta1", "PodDisruptionBudget", "", "", false},
		{"policy/v1beta1", "PodDisruptionBudget", "v2.0.0", "", false},
		{"policy/v1beta1", "PodDisruptionBudget", "v1.23.9", "", false},
		{"policy/v1beta1", "PodDisruptionBudget", "v1.24.9-gke.1", "is not served from Kubernetes 1.25 on, the next version (here v1.24.9-gke.1): before the upgrade, write policy/v1", true},
		{"policy/v1beta1", "PodDisruptionBudget", "v1.25.0", "is not served since Kubernetes 1.25 (here v1.25.0): write policy/v1", false},
		{"policy/v1", "PodDisruptionBudget", "v1.21.0", "", false},
		{"policy/v1", "PodDisruptionBudget", "v1.20.4", "is served from Kubernetes 1.21 on (here v1.20.4): upgrade, or write policy/v1beta1 for these members", false},
		{"batch/v1beta1", "CronJob", "v1.36.4", "is not served since Kubernetes 1.25 (here v1.36.4): write batch/v1", false},
		{"extensions/v1beta1", "Ingress", "v1.36.4", "is not served since Kubernetes 1.22 (here v1.36.4): write networking.k8s.io/v1", false},
		{"extensions/v1beta1", "Deployment", "v1.36.4", "is not served since Kubernetes 1.16 (here v1.36.4): write apps/v1", false},
		{"autoscaling/v2beta2", "HorizontalPodAutoscaler", "v1.26.0", "is not served since Kubernetes 1.26 (here v1.26.0): write autoscaling/v2", false},
		{"autoscaling/v2", "HorizontalPodAutoscaler", "v1.22.0", "is served from Kubernetes 1.23 on (here v1.22.0): upgrade, or write autoscaling/v1 for these members", false},
		{"policy/v1beta1", "PodSecurityPolicy", "v1.25.0", "is not served since Kubernetes 1.25 (here v1.25.0): leave it out, and use the labels of Pod Security Admission or a FleetSecurityPolicy", false},
		{"apiextensions.k8s.io/v1beta1", "CustomResourceDefinition", "v1.22.0", "is not served since Kubernetes 1.22 (here v1.22.0): write apiextensions.k8s.io/v1", false},
		{"admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "v1.29.1", "is served from Kubernetes 1.30 on (here v1.29.1): upgrade, or write admissionregistration.k8s.io/v1beta1 for these members", false},
		{"admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "v1.25.1", "is served from Kubernetes 1.30 on (here v1.25.1): upgrade, or leave it out there", false},
		{"flowcontrol.apiserver.k8s.io/v1beta3", "FlowSchema", "v1.31.2", "is not served from Kubernetes 1.32 on, the next version (here v1.31.2): before the upgrade, write flowcontrol.apiserver.k8s.io/v1", true},
		{"storage.k8s.io/v1beta1", "CSIStorageCapacity", "v1.27.0", "is not served since Kubernetes 1.27 (here v1.27.0): write storage.k8s.io/v1", false},
	} {
		g := NewWithT(t)
		got := Check([]Delivery{{Application: "a", Members: []Member{at("m", tt.version)}, Objects: []*unstructured.Unstructured{object(tt.apiVersion, tt.kind, "shop", "web")}}})
		if tt.want == "" {
			g.Expect(got).To(BeEmpty(), "%s %s %s", tt.apiVersion, tt.kind, tt.version)
			continue
		}
		reason := NotServedReason
		if tt.warning {
			reason = LastServedReason
		}
		g.Expect(got).To(Equal([]Finding{{Application: "a", Members: []string{"m"}, Reason: reason, Warning: tt.warning,
			Message: tt.kind + " shop/web: " + tt.apiVersion + " " + tt.want}}))
	}
}

// TestOneFindingForMany holds that what is wrong with many objects and many members is said once.
func TestOneFindingForMany(t *testing.T) {
	g := NewWithT(t)
	var members []Member
	for i := range 1000 {
		members = append(members, at(fmt.Sprintf("m%03d", i), fmt.Sprintf("v1.%d.%d", 23+i%4, i%2)))
	}
	var objects []*unstructured.Unstructured
	for i := range 20 {
		objects = append(objects, object("policy/v1beta1", "PodDisruptionBudget", "shop", fmt.Sprintf("web-%02d", i)), object("v1", "ConfigMap", "shop", fmt.Sprintf("web-%02d", i)))
	}
	got := Check([]Delivery{
		{Application: "a", Policy: "p", Members: members[:600], Objects: objects, Chart: "web", Kubernetes: ">=1.24.1-0 <1.26"},
		{Application: "a", Policy: "p", Members: members[600:], Objects: objects},
	})
	g.Expect(got).To(HaveLen(3))
	g.Expect(got[0].Reason).To(Equal(NotServedReason))
	g.Expect(got[0].Message).To(Equal("PodDisruptionBudget shop/web-00, shop/web-01, shop/web-02 and 17 more: policy/v1beta1 is not served since Kubernetes 1.25 (here v1.25.0, v1.26.1): write policy/v1"))
	g.Expect(got[0].Members).To(HaveLen(500))
	g.Expect(got[0].Members[:2]).To(Equal([]string{"m002", "m003"}))
	g.Expect(got[1].Reason).To(Equal(LastServedReason))
	g.Expect(got[1].Members).To(HaveLen(250))
	g.Expect(got[2].Message).To(Equal("chart web supports Kubernetes >=1.24.1-0 <1.26 (here v1.23.0, v1.26.1): upgrade, or choose another version of the chart"))
	g.Expect(got[2].Members).To(HaveLen(300))
}

func TestCompareVersions(t *testing.T) {
	g := NewWithT(t)
	versions := []string{"v1.25.0", "v1.9.1", "v1.25.0-gke.2", "v1.9.10"}
	slices.SortFunc(versions, compareVersions)
	g.Expect(versions).To(Equal([]string{"v1.9.1", "v1.9.10", "v1.25.0", "v1.25.0-gke.2"}))
}

func TestOwnedTwice(t *testing.T) {
	const name = "widgets.example.com"
	crd := func(annotations map[string]string) []*unstructured.Unstructured {
		o := object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", name)
		o.SetAnnotations(annotations)
		return []*unstructured.Unstructured{o, object("example.com/v1", "Widget", "shop", "w")}
	}
	mine := Delivery{Namespace: "shop", Application: "a", Policy: "p", Owner: "Application a", Members: []Member{at("m1", ""), at("m2", "v1.36.4")}, Objects: crd(nil)}
	delivery := func(change func(d *Delivery)) Delivery {
		d := Delivery{Namespace: "shop", Application: "fleet-x", Policy: "crds", Owner: "Fleet x", Members: []Member{at("m2", "v1.36.4"), at("m3", "")}, Objects: crd(nil)}
		change(&d)
		return d
	}
	for _, tt := range []struct {
		name  string
		other Delivery
		want  []string
	}{
		{name: "two", other: delivery(func(*Delivery) {}), want: []string{"fleet-x/crds CRDOwnedTwice [m2]: CustomResourceDefinition widgets.example.com comes from Application a, policy p, too: " +
			"they overwrite each other's, and when one leaves it is deleted with all that was made of it: leave it out of one, for a chart with crds: Skip"}},
		{name: "other members", other: delivery(func(d *Delivery) { d.Members = d.Members[1:] })},
		{name: "members of another namespace", other: delivery(func(d *Delivery) { d.Namespace = "other" })},
		{name: "of the same policy", other: delivery(func(d *Delivery) { d.Application, d.Policy = "a", "p" })},
		{name: "only if it is not there", other: delivery(func(d *Delivery) { d.Objects = crd(map[string]string{ssaAnnotation: "IfNotPresent"}) })},
		{name: "an object of it", other: delivery(func(d *Delivery) { d.Objects = d.Objects[1:] })},
		{name: "a Cluster of the same name", other: delivery(func(d *Delivery) { d.Members[0].Kind = "Cluster" })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			NewWithT(t).Expect(say(Check([]Delivery{mine, tt.other}))).To(Equal(tt.want))
		})
	}
}

// TestGone holds that what is written here is not in the Go types of Kubernetes, and that what is said to come instead is
// something.
func TestGone(t *testing.T) {
	g := NewWithT(t)
	types := ofTypes()
	for gvk, l := range gone {
		g.Expect(types[gvk]).To(BeZero(), gvk.String())
		g.Expect(l.replacement.Empty() || lifecycles()[l.replacement] != lifecycle{}).To(BeTrue(), gvk.String())
	}
}
