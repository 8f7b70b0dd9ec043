package scale

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

// Standing still is free: when everything is as declared, reconciling all of it again, and starting again, sends nothing
// but watches, what they start from, and the leader's lease. The API server is who counts.
func TestStandingStillIsFree(t *testing.T) {
	const members, resyncs = 500, 10
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(time.Minute)
	g.SetDefaultEventuallyPollingInterval(250 * time.Millisecond) // asking costs the controller more than a resync does
	ctx := t.Context()
	lab, err := NewLab(ctx, env, "quiet")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(lab.AllowLease(ctx)).To(Succeed())
	g.Expect(env.StartController(ctx, "--enable-leader-election", "--log-level=info")).To(Succeed())
	t.Cleanup(func() { env.KillController() })

	g.Expect(lab.Apply(ctx, lab.Fleet(), fleetv1.FleetKind)).To(Succeed())
	g.Expect(lab.Attach(ctx, 0, members)).To(Succeed())
	g.Expect(lab.Apply(ctx, lab.Application(1), appsv1.ApplicationKind)).To(Succeed())
	untilApp := func(is func(*appsv1.Application) bool) {
		g.Expect(lab.Until(ctx, &appsv1.ApplicationList{}, AppName, func(o client.Object) bool { return o != nil && is(o.(*appsv1.Application)) })).To(Succeed())
	}
	// Two each, the source and the chart.
	untilApp(func(a *appsv1.Application) bool { return a.Status.Objects == 2*members+2 })
	g.Expect(lab.Settle(ctx)).To(Succeed())
	g.Expect(lab.Flux(ctx, metav1.ConditionTrue, "Applied revision: main@sha1:0123456789abcdef")).To(Succeed())
	untilApp(func(a *appsv1.Application) bool { return a.Status.Members.Ready == members })
	g.Expect(lab.Settle(ctx)).To(Succeed())

	versions := func() map[string]string {
		objects, err := lab.Generated(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		others, err := lab.List(ctx, &appsv1.ApplicationList{}, &clusterv1.AttachedClusterList{})
		g.Expect(err).NotTo(HaveOccurred())
		out := map[string]string{}
		for _, o := range append(objects, others...) {
			out[fmt.Sprintf("%T/%s", o, o.GetName())] = o.GetResourceVersion()
		}
		return out
	}
	before := versions()
	g.Expect(before).To(HaveLen(3*members + 3))

	// A change of an annotation that means nothing has the Fleet and the Application looked at. It is the one request that
	// is not the controller's.
	requests, usage := count(t, g, lab)
	done := usage.Reconciles
	for i := range resyncs {
		touch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/touched":"%d"}}}`, i)
		g.Expect(lab.Patch(ctx, lab.Fleet(), client.RawPatch("application/merge-patch+json", touch))).To(Succeed())
		g.Eventually(func(g Gomega) {
			u, err := lab.Usage(ctx)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(u.Reconciles["fleet"]).To(BeNumerically(">", done["fleet"]))
			g.Expect(u.Reconciles["application"]).To(BeNumerically(">", done["application"]))
			g.Expect(u.Busy).To(BeZero())
			done = u.Reconciles
		}).Should(Succeed())
	}
	g.Expect(lab.Settle(ctx)).To(Succeed())
	after, used := count(t, g, lab)
	sent := after.Since(requests)
	cpu := (used.CPU - usage.CPU) / resyncs
	t.Logf("%d resyncs of %d members: %s of CPU each; requests: %s", resyncs, members, cpu, sent)
	g.Expect(sent["PATCH fleets"]).To(Equal(resyncs))
	delete(sent, "PATCH fleets")
	g.Expect(noise(sent, false)).To(BeEmpty())
	g.Expect(cpu).To(BeNumerically("<", 100*time.Millisecond))
	g.Expect(versions()).To(Equal(before))

	// A new process, which has nothing but what it reads.
	requests, _ = count(t, g, lab)
	env.KillController()
	g.Expect(env.StartController(ctx, "--enable-leader-election", "--log-level=info")).To(Succeed())
	g.Eventually(func(g Gomega) {
		u, err := lab.Usage(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(u.Reconciles["fleet"]).NotTo(BeZero())
		g.Expect(u.Reconciles["application"]).NotTo(BeZero())
		g.Expect(u.Reconciles["attachedcluster"]).To(BeNumerically(">=", members))
	}, 2*time.Minute).Should(Succeed())
	g.Expect(lab.Settle(ctx)).To(Succeed())
	after, used = count(t, g, lab)
	sent = after.Since(requests)
	t.Logf("a restart: %s of CPU; requests: %s", used.CPU, sent.Without(func(verb, _ string) bool { return verb == "WATCH" }))
	// The harness makes sure of the controller's role, and a leader says that it is one.
	for _, request := range []string{"POST clusterroles", "POST clusterrolebindings", "POST events"} {
		g.Expect(sent[request]).To(BeNumerically("<=", 1), request)
		delete(sent, request)
	}
	g.Expect(noise(sent, true)).To(BeEmpty())
	g.Expect(versions()).To(Equal(before))
}

// count returns what the API server and the controller count.
func count(t *testing.T, g Gomega, lab *Lab) (Requests, Usage) {
	t.Helper()
	requests, err := lab.Requests(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	usage, err := lab.Usage(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	return requests, usage
}

// noise leaves of what was sent what must not be: neither watches, nor the lease, nor lists when a process starts.
func noise(sent Requests, starts bool) Requests {
	return sent.Without(func(verb, resource string) bool {
		return verb == "WATCH" || resource == "leases" || verb == "LIST" && starts
	})
}
