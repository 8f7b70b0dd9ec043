package budget

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/member"
)

func step(members, changed, deleted int) *Step {
	s := &Step{Members: members}
	for i := range changed {
		s.Change(member.Key{Kind: "AttachedCluster", Name: fmt.Sprint(i)}, map[string]string{policyv1.DefaultRegionLabel: fmt.Sprint(i % 3), "zone": "one"})
	}
	for i := range deleted {
		s.Delete(member.Key{Kind: "AttachedCluster", Name: fmt.Sprint(i)}, map[string]string{policyv1.DefaultRegionLabel: fmt.Sprint(i % 3), "zone": "one"})
	}
	return s
}

func TestCheck(t *testing.T) {
	kinds := func(s *Step, kinds ...string) *Step {
		s.Kinds = map[string]bool{}
		for _, k := range kinds {
			s.Kinds[k] = true
		}
		return s
	}
	unknown := step(10, 1, 1)
	unknown.Unknown = true
	for _, tt := range []struct {
		name string
		step *Step
		spec policyv1.ChangeBudgetSpec
		want []string
	}{
		{"within", step(10, 2, 2), policyv1.ChangeBudgetSpec{Members: new(intstr.FromString("20%")), Deletions: new(intstr.FromInt32(2)), Regions: new(int32(2))}, nil},
		{"members", step(10, 3, 0), policyv1.ChangeBudgetSpec{Members: new(intstr.FromString("20%"))}, []string{"changes 3 of 10 members, and 2 (20%) may be (ChangeBudget b)"}},
		{"a percentage is one at least", step(3, 1, 0), policyv1.ChangeBudgetSpec{Members: new(intstr.FromString("20%"))}, nil},
		{"but nothing is nothing", step(3, 1, 0), policyv1.ChangeBudgetSpec{Members: new(intstr.FromString("0%"))}, []string{"changes 1 of 3 members, and 0 (0%) may be (ChangeBudget b)"}},
		{"deletions", step(10, 3, 2), policyv1.ChangeBudgetSpec{Deletions: new(intstr.FromInt32(1))}, []string{"takes something away from 2 of 10 members, and 1 may be (ChangeBudget b)"}},
		{"regions", step(10, 3, 0), policyv1.ChangeBudgetSpec{Regions: new(int32(2))}, []string{"changes something in 3 regions, and 2 may be (ChangeBudget b)"}},
		{"another label", step(10, 3, 0), policyv1.ChangeBudgetSpec{Regions: new(int32(1)), RegionLabel: "zone"}, nil},
		{"kinds", kinds(step(10, 1, 1), "PersistentVolumeClaim", "Cluster.rook.io", "Deployment.apps"), policyv1.ChangeBudgetSpec{ProtectedKinds: []string{"PersistentVolumeClaim", "Cluster.rook.io"}},
			[]string{"deletes objects of protected kinds: Cluster.rook.io, PersistentVolumeClaim (ChangeBudget b)"}},
		{"a kind of another group", kinds(step(10, 1, 1), "Cluster.cluster.x-k8s.io"), policyv1.ChangeBudgetSpec{ProtectedKinds: []string{"Cluster.rook.io"}}, nil},
		{"unknown is refused", unknown, policyv1.ChangeBudgetSpec{ProtectedKinds: []string{"Namespace"}}, []string{"ends something of which it is not known whether it has objects of protected kinds (ChangeBudget b)"}},
		{"unknown where nothing is protected", unknown, policyv1.ChangeBudgetSpec{Regions: new(int32(5))}, nil},
		{"nothing changes", step(10, 0, 0), policyv1.ChangeBudgetSpec{Members: new(intstr.FromInt32(0)), Regions: new(int32(0))}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := &policyv1.ChangeBudget{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: tt.spec}
			NewWithT(t).Expect(Check(tt.step, []*policyv1.ChangeBudget{b})).To(Equal(tt.want))
		})
	}
}

func TestAllows(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Allows("sha256:a", "sha256:a")).To(BeTrue())
	g.Expect(Allows("sha256:b, sha256:a", "sha256:a")).To(BeTrue())
	g.Expect(Allows("sha256:ab", "sha256:a")).To(BeFalse())
	g.Expect(Allows("", "")).To(BeFalse(), "what renders to nothing has no digest, and is not allowed by nothing")
}
