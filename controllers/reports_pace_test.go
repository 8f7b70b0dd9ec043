package controllers

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
)

// Credentials that may list and not watch: a list would follow each watch that is refused.
func TestReportsThatMayNotBeWatched(t *testing.T) {
	h, r := newHub(t), newReporters(t)
	r.add("a", reporter{reports: 1, results: 1, policies: []string{"p"}, watchStatus: http.StatusForbidden})
	r.attached(h, "a")
	h.start()
	h.reports.retry = time.Hour
	of := h.wants("o", []string{"p"}, "a")
	h.Eventually(func() any { return of("a").counts }).Should(Equal(map[string]policyv1.ResultCounts{"p": {Pass: 1}}))
	h.Consistently(r.lists).Should(Equal(2), "not even after the pause")
}

// A turn for something else, a fact that is due say, does not make a member be asked for reports before it is time.
func TestReportsAreNotAskedBeforeTheirTime(t *testing.T) {
	for name, status := range map[string]int{"none": http.StatusNotFound, "broken": http.StatusInternalServerError, "forbidden": http.StatusForbidden} {
		t.Run(name, func(t *testing.T) {
			h, r := newHub(t), newReporters(t)
			r.add("a", reporter{reports: 1, results: 1, policies: []string{"p"}, status: status})
			r.attached(h, "a")
			h.start()
			h.reports.pause, h.reports.retry = time.Hour, time.Hour
			of := h.wants("o", []string{"p"}, "a")
			h.Eventually(func() string { return of("a").problem }).ShouldNot(BeEmpty())
			reader := &MemberReader{MemberReconciler: MemberReconciler{Client: h.Client}, Facts: NewFacts(), Reports: h.reports}
			turn := func() {
				t.Helper()
				_, err := reader.Reconcile(t.Context(), memberRef{types.NamespacedName{Namespace: h.ns, Name: "a"}, clusterv1.AttachedClusterKind})
				h.Expect(err).NotTo(HaveOccurred())
			}
			for range 3 {
				turn()
			}
			h.Expect(r.lists()).To(Equal(1))

			t.Log("but with other credentials it is, at once")
			h.Expect(h.Update(t.Context(), r.secret(h, "a", "2"))).To(Succeed())
			turn()
			h.Expect(r.lists()).To(Equal(2))
		})
	}
}

// A server that is not the API server itself may write an empty list so.
func TestReportsOfAListOfNothing(t *testing.T) {
	h, r := newHub(t), newReporters(t)
	r.add("a", reporter{policies: []string{"p"}, body: `{"kind":"PolicyReportList","metadata":{"resourceVersion":"1"},"items":null}`})
	r.attached(h, "a")
	h.start()
	of := h.wants("o", []string{"p"}, "a")
	h.Eventually(func() bool { return !of("a").readAt.IsZero() }).Should(BeTrue())
	h.Expect(of("a").problem).To(BeEmpty())
}

// Nobody waits for a reader that has ended.
func TestReportsWantedOfAReaderThatEnded(t *testing.T) {
	g := NewWithT(t)
	r := NewReports()
	r.stop()
	refs := map[memberRef]string{}
	for i := range 2 * cap(r.wake) {
		refs[memberRef{types.NamespacedName{Name: fmt.Sprint(i)}, clusterv1.AttachedClusterKind}] = ""
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.want(reportOwner{Kind: "Test"}, []string{"p"}, refs)
	}()
	g.Eventually(done).Should(BeClosed())
}
