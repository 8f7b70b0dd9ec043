package scale

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// A controller that is killed at any moment leaves nothing half: the next one comes to what it would have come to.
// SCALE_SEED repeats the moments of an earlier run.
func TestKilledAtRandom(t *testing.T) {
	const members, kills = 200, 5 // kills in each of four phases
	seed := time.Now().UnixNano()
	if s := os.Getenv("SCALE_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseInt(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("SCALE_SEED=%d", seed)
	k := &killer{WithT: NewWithT(t), t: t, rand: rand.New(rand.NewPCG(uint64(seed), 0))}
	ctx := t.Context()
	var err error
	k.Lab, err = NewLab(ctx, env, "killed")
	k.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { env.KillController() })

	// The members are there, and known, before the first kill.
	fleet := k.named(members)
	k.Expect(k.Apply(ctx, fleet, fleetv1.FleetKind)).To(Succeed())
	k.Expect(k.Attach(ctx, 0, members)).To(Succeed())
	k.start()
	k.Expect(k.Until(ctx, &fleetv1.FleetList{}, FleetName, func(o client.Object) bool { return o.(*fleetv1.Fleet).Status.Members.Ready == members })).To(Succeed())

	app := k.Application(1)
	k.phase("create", kills, 2*members, func() { k.Expect(k.Apply(ctx, app, appsv1.ApplicationKind)).To(Succeed()) })
	k.expect(app, members)
	k.Expect(k.Flux(ctx, metav1.ConditionTrue, "Applied revision: main@sha1:0123456789abcdef")).To(Succeed())
	k.untilReady(app, members)

	app = k.Application(2)
	k.phase("change", kills, 2*members, func() { k.Expect(k.Apply(ctx, app, appsv1.ApplicationKind)).To(Succeed()) })
	k.expect(app, members)

	rest := members - members/3
	k.phase("shrink", kills, 2*(members/3), func() { k.Expect(k.Apply(ctx, k.named(rest), fleetv1.FleetKind)).To(Succeed()) })
	k.expect(app, rest)
	k.Expect(k.Flux(ctx, metav1.ConditionTrue, "Applied revision: main@sha1:fedcba9876543210")).To(Succeed())
	k.untilReady(app, rest)

	k.phase("delete", kills, 2*rest, func() { k.Expect(k.Delete(ctx, app)).To(Succeed()) })
	k.Expect(k.Until(ctx, &appsv1.ApplicationList{}, AppName, func(o client.Object) bool { return o == nil })).To(Succeed())
	left, err := k.Generated(ctx)
	k.Expect(err).NotTo(HaveOccurred())
	k.Expect(left).To(BeEmpty())
	// Nothing holds the members either.
	k.Expect(Each(members, func(i int) error { return k.Delete(ctx, k.Member(i)) })).To(Succeed())
	k.Eventually(func() ([]client.Object, error) { return k.List(ctx, &clusterv1.AttachedClusterList{}) }, time.Minute, time.Second).Should(BeEmpty())
	k.Expect(k.kills).To(Equal(4 * kills))
}

type killer struct {
	*WithT
	*Lab
	t     *testing.T
	rand  *rand.Rand
	kills int
}

func (k *killer) start() {
	k.t.Helper()
	k.Expect(env.StartController(k.t.Context(), "--log-level=info")).To(Succeed())
}

// named returns the fleet of the first members, by name.
func (k *killer) named(members int) *fleetv1.Fleet {
	fleet := k.Fleet()
	fleet.Spec.ClusterSelector = nil
	for i := range members {
		fleet.Spec.Clusters = append(fleet.Spec.Clusters, fleetv1.FleetCluster{Name: MemberName(i)})
	}
	return fleet
}

// phase makes a change while the controller runs, and kills it again and again on the way. A moment is a number of
// changes of children, so that it is on the way however fast the machine is; about half of them are in all.
func (k *killer) phase(what string, kills, changes int, change func()) {
	k.t.Helper()
	seen := k.watchChildren()
	change()
	for range kills {
		after := k.rand.IntN(1 + changes/kills)
		n := seen(after, 5*time.Second)
		env.KillController()
		k.kills++
		k.t.Logf("%s: killed after %d changes", what, n)
		k.start()
	}
}

// watchChildren returns what waits for a number of changes of children, for so long at most, and says how many there were.
func (k *killer) watchChildren() func(n int, most time.Duration) int {
	k.t.Helper()
	ctx, cancel := context.WithCancel(k.t.Context())
	k.t.Cleanup(cancel)
	changes := make(chan struct{}, 100_000)
	for _, list := range []client.ObjectList{&kustomizev1.KustomizationList{}, &helmv2.HelmReleaseList{}} {
		k.Expect(k.watch.List(ctx, list, client.InNamespace(k.Namespace), client.Limit(1))).To(Succeed())
		w, err := k.watch.Watch(ctx, list, client.InNamespace(k.Namespace),
			&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}})
		k.Expect(err).NotTo(HaveOccurred())
		go func() {
			for range w.ResultChan() {
				changes <- struct{}{}
			}
		}()
	}
	return func(n int, most time.Duration) int {
		timeout := time.After(most)
		for i := range n {
			select {
			case <-changes:
			case <-timeout:
				return i
			}
		}
		return n
	}
}

// expect holds that what is there is what Render says for the first members, no more and no less.
func (k *killer) expect(app *appsv1.Application, members int) {
	k.t.Helper()
	ctx := k.t.Context()
	declared := application.Declared{Applications: []*appsv1.Application{app}, Fleets: []*fleetv1.Fleet{k.named(members)}}
	for i := range members {
		declared.AttachedClusters = append(declared.AttachedClusters, k.Member(i))
	}
	result := application.Render(declared)
	k.Expect(result.Problems).To(BeEmpty())

	k.Expect(k.Until(ctx, &appsv1.ApplicationList{}, AppName, func(o client.Object) bool {
		a := o.(*appsv1.Application)
		return a.Status.ObservedGeneration == app.Generation && a.Status.Objects == len(result.Objects) && a.Status.Prune == nil
	})).To(Succeed())
	k.Expect(k.Settle(ctx)).To(Succeed())

	// The same objects as the API server keeps them, which adds defaults, in a namespace of their own.
	reference := &Lab{Client: k.Client, Env: env, Namespace: k.Namespace + "-reference", floor: k.floor}
	k.Expect(env.Hub.CreateNamespace(ctx, reference.Namespace)).To(Succeed())
	objects := make([]*object.Object, len(result.Objects))
	for i, o := range result.Objects {
		objects[i] = o.Object
		objects[i].Metadata.Namespace = reference.Namespace
	}
	k.Expect(reference.ApplyRaw(ctx, objects)).To(Succeed())
	want, have := k.contents(reference), k.contents(k.Lab)
	k.Expect(have).To(HaveLen(len(result.Objects)))
	k.Expect(have).To(Equal(want))
	k.Expect(reference.DeleteRaw(ctx, objects)).To(Succeed())
}

// contents returns the labels, annotations and spec of all generated objects of a namespace, as text, by kind and name.
func (k *killer) contents(lab *Lab) map[string]string {
	k.t.Helper()
	objects, err := lab.Generated(k.t.Context())
	k.Expect(err).NotTo(HaveOccurred())
	out := map[string]string{}
	for _, o := range objects {
		tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		k.Expect(err).NotTo(HaveOccurred())
		text, err := json.Marshal([]any{o.GetLabels(), o.GetAnnotations(), tree["spec"]})
		k.Expect(err).NotTo(HaveOccurred())
		out[fmt.Sprintf("%T/%s", o, o.GetName())] = string(text)
	}
	return out
}

func (k *killer) untilReady(app *appsv1.Application, members int) {
	k.t.Helper()
	k.Expect(k.Until(k.t.Context(), &appsv1.ApplicationList{}, AppName, func(o client.Object) bool {
		a := o.(*appsv1.Application)
		return a.Status.ObservedGeneration == app.Generation && a.Status.Members.Ready == members && a.Status.Members.Total == members
	})).To(Succeed())
}
