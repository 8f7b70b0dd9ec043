// Package bench measures the controller at work for many members, against the floor: the same server-side applies from
// a loop that does nothing else. All in one run on one API server, so that the ratios mean something.
package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/e2e/harness"
	"github.com/fleetwright/fleetwright/e2e/scale"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/object"
)

var env *harness.Env

// table is what is printed at the end: a row for each measurement.
var table []row

type row struct {
	*run
	what      string
	took, cpu time.Duration // zero where there is nothing to say
	text      string
}

func TestMain(m *testing.M) {
	harness.Main(m, harness.Options{WithoutFlux: true}, func(e *harness.Env) {
		env = e
		// The garbage collector would delete what the floor makes, as its owner is not there.
		env.Hub.ControllerManager.Kill()
	})
}

// BenchmarkMembers runs once for each number of members in BENCH_MEMBERS.
func BenchmarkMembers(b *testing.B) {
	sizes := os.Getenv("BENCH_MEMBERS")
	if sizes == "" {
		sizes = "100,1000,5000"
	}
	for size := range strings.SplitSeq(sizes, ",") {
		n, err := strconv.Atoi(size)
		if err != nil {
			b.Fatalf("BENCH_MEMBERS=%s: %v", sizes, err)
		}
		b.Run(size, func(b *testing.B) {
			for b.Loop() {
				newRun(b, n).all()
			}
		})
	}
	fmt.Println(summary())
}

func summary() string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "members\twhat\ttime\tfloor\tratio\tcontroller CPU\trequests")
	for _, r := range table {
		took, cpu, floor, ratio := "", "", "", ""
		if r.took > 0 {
			took = r.took.Round(time.Millisecond).String()
		}
		if r.cpu > 0 {
			cpu = r.cpu.Round(time.Millisecond).String()
		}
		if f := r.floor[r.what]; f > 0 {
			floor, ratio = f.Round(time.Millisecond).String(), fmt.Sprintf("%.2f", r.took.Seconds()/f.Seconds())
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", r.n, r.what, took, floor, ratio, cpu, r.text)
	}
	w.Flush()
	return out.String()
}

// run is the life of one Application with n members.
type run struct {
	b *testing.B
	*scale.Lab
	n     int
	ctx   context.Context
	floor map[string]time.Duration // what a bare loop takes
	total map[string]time.Duration // what the controller takes
}

func newRun(b *testing.B, n int) *run {
	// Not b.Context(): the cleanup needs one, too.
	ctx, cancel := context.WithCancel(context.Background())
	b.Cleanup(cancel)
	lab, err := scale.NewLab(ctx, env, fmt.Sprintf("bench-%d", n))
	r := &run{b: b, Lab: lab, n: n, ctx: ctx, floor: map[string]time.Duration{}, total: map[string]time.Duration{}}
	r.must(err)
	return r
}

func (r *run) must(err error) {
	r.b.Helper()
	if err != nil {
		r.b.Fatal(err)
	}
}

func (r *run) all() {
	r.must(env.StartController(r.ctx, "--log-level=info"))
	r.must(r.Settle(r.ctx))
	empty := r.heap()
	env.KillController()
	r.render()
	r.measureFloor(0)

	r.must(env.StartController(r.ctx, "--log-level=info"))
	r.attach()
	r.profile("profile?seconds=10", func() { r.write("create", 1) })
	r.write("change", 2)
	r.storm()

	u, err := r.Usage(r.ctx)
	r.must(err)
	perMember := (r.heap() - empty) / float64(r.n) / 1024
	r.row("memory", 0, 0, fmt.Sprintf("%.1f KiB of heap a member at rest, after a collection; RSS %.0f MiB", perMember, u.RSS/(1<<20)))
	r.b.ReportMetric(perMember, "KiB/member")
	r.profile("heap", func() {})

	r.oneMember()
	r.end()
	env.KillController()
	r.measureFloor(1)
	for what, floor := range r.floor {
		r.b.ReportMetric(r.total[what].Seconds()/floor.Seconds(), what+"/floor")
	}
}

// render measures rendering alone.
func (r *run) render() {
	app := r.Application(1)
	start, objects := time.Now(), 0
	for time.Since(start) < time.Second {
		objects += len(r.rendered(app))
	}
	rate := float64(objects) / time.Since(start).Seconds()
	r.row("render", 0, 0, fmt.Sprintf("%.0f objects/s", rate))
	r.b.ReportMetric(rate, "rendered/s")
}

// rendered returns what an Application is for all members.
func (r *run) rendered(app *appsv1.Application) []*object.Object {
	d := application.Declared{Applications: []*appsv1.Application{app}, Fleets: []*fleetv1.Fleet{r.Fleet()}}
	for i := range r.n {
		d.AttachedClusters = append(d.AttachedClusters, r.Member(i))
	}
	result := application.Render(d)
	if len(result.Problems) > 0 {
		r.b.Fatal(result.Problems[0].Message)
	}
	objects := make([]*object.Object, len(result.Objects))
	for i, o := range result.Objects {
		objects[i] = o.Object
	}
	return objects
}

// measureFloor applies one half of the same objects, in a namespace of their own, without the controller: one half before
// the controller's turn and one after, as a machine is not as fast at all times.
func (r *run) measureFloor(half int) {
	namespace := r.Namespace + "-floor"
	r.must(env.Hub.CreateNamespace(r.ctx, namespace))
	halfOf := func(revision int) []*object.Object {
		objects := r.rendered(r.Application(revision))
		objects = objects[half*len(objects)/2 : (half+1)*len(objects)/2]
		for _, o := range objects {
			o.Metadata.Namespace = namespace
			o.Metadata.OwnerReferences = []any{metav1.OwnerReference{APIVersion: appsv1.GroupVersion.String(), Kind: appsv1.ApplicationKind,
				Name: scale.AppName, UID: "00000000-0000-0000-0000-000000000000", Controller: new(true), BlockOwnerDeletion: new(true)}}
		}
		return objects
	}
	measure := func(what string, do func() error) {
		start := time.Now()
		r.must(do())
		r.floor[what] += time.Since(start)
	}
	first, second := halfOf(1), halfOf(2)
	measure("create", func() error { return r.ApplyRaw(r.ctx, first) })
	measure("change", func() error { return r.ApplyRaw(r.ctx, second) })
	measure("delete", func() error { return r.DeleteRaw(r.ctx, second) })
}

// attach makes the fleet and its members, which the controller probes.
func (r *run) attach() {
	r.measure("attach", func() {
		r.must(r.Apply(r.ctx, r.Fleet(), fleetv1.FleetKind))
		r.must(r.Attach(r.ctx, 0, r.n))
		r.must(r.Until(r.ctx, &fleetv1.FleetList{}, scale.FleetName, func(o client.Object) bool {
			return o != nil && o.(*fleetv1.Fleet).Status.Members.Ready == r.n
		}))
	})
}

// write applies a revision of the Application, and checks what came of it.
func (r *run) write(what string, revision int) {
	app := r.Application(revision)
	r.measure(what, func() {
		r.must(r.Apply(r.ctx, app, appsv1.ApplicationKind))
		r.untilApp(func(a *appsv1.Application) bool {
			return a.Status.ObservedGeneration == app.Generation && a.Status.Objects >= 2*r.n
		})
	})

	want := map[string]string{}
	for _, o := range r.rendered(app) { // with the defaults that admission wrote into it
		want[o.Ref().String()] = o.Digest()
	}
	live, err := r.Generated(r.ctx)
	r.must(err)
	for _, o := range live {
		key := o.GetObjectKind().GroupVersionKind().Kind + "/" + o.GetName()
		if want[key] != o.GetAnnotations()[fleetv1.DigestAnnotation] {
			r.b.Errorf("%s: %s is not as declared", what, key)
		}
		delete(want, key)
	}
	if len(want) > 0 {
		r.b.Errorf("%s: %d objects are missing", what, len(want))
	}
}

// storm changes the status of all children twice: all fail with a long message, then all are well.
func (r *run) storm() {
	long := strings.Repeat("Helm install failed: context deadline exceeded; ", 50)
	children, err := r.Children(r.ctx)
	r.must(err)
	for _, what := range []string{"all fail", "all ready"} {
		status, message, ready := metav1.ConditionFalse, long, 0
		if what == "all ready" {
			status, message, ready = metav1.ConditionTrue, "Applied revision: main@sha1:0123456789abcdef", r.n
		}
		r.measure(what, func() {
			r.must(r.Reconciled(r.ctx, children, status, message))
			var last *appsv1.Application
			r.untilApp(func(a *appsv1.Application) bool {
				last = a
				failed := len(a.Status.Members.NotReady) + a.Status.Members.NotReadyOmitted
				return a.Status.Members.Ready == ready && failed == r.n-ready && !strings.Contains(notReady(a), "Progressing")
			})
			if ready == 0 {
				b, err := json.Marshal(last.Status)
				r.must(err)
				if len(b) > 64<<10 {
					r.b.Errorf("the status has %d bytes", len(b))
				}
				r.b.ReportMetric(float64(len(b))/1024, "status-KiB")
			}
		})
	}
}

func notReady(a *appsv1.Application) string {
	b, _ := json.Marshal(a.Status.Members.NotReady)
	return string(b)
}

// rounds is how often one member is changed in each way; the times are medians.
const rounds = 3

// oneMember changes one member at a time: one joins the fleet by its label, or by its name in the fleet, a label that its
// HelmRelease depends on is changed, or it is deleted.
func (r *run) oneMember() {
	kinds := map[string]client.ObjectList{"manifests": &kustomizev1.KustomizationList{}, "chart": &helmv2.HelmReleaseList{}}
	eachChild := func(i int, is func(client.Object) bool) {
		for policy, list := range kinds {
			r.must(r.Until(r.ctx, list, scale.AppName+"-"+policy+"-"+scale.MemberName(i), is))
		}
	}
	there := func(o client.Object) bool { return o != nil }
	gone := func(o client.Object) bool { return o == nil }
	next := r.n

	r.changeOne("add one", func(i int) {
		r.must(r.Attach(r.ctx, next+i, next+i+1))
		eachChild(next+i, there)
	})
	r.must(r.Flux(r.ctx, metav1.ConditionTrue, "Applied revision: main@sha1:0123456789abcdef"))
	r.changeOne("label one", func(i int) {
		moon := []byte(`{"metadata":{"labels":{"region":"moon"}}}`)
		r.must(r.Patch(r.ctx, r.Member(next+i), client.RawPatch(types.MergePatchType, moon)))
		r.must(r.Until(r.ctx, kinds["chart"], scale.AppName+"-chart-"+scale.MemberName(next+i), func(o client.Object) bool {
			return strings.Contains(string(o.(*helmv2.HelmRelease).Spec.Values.Raw), "moon")
		}))
	})
	r.changeOne("remove one", func(i int) {
		r.must(r.Delete(r.ctx, r.Member(next+i)))
		eachChild(next+i, gone)
	})

	next += rounds
	fleet := r.Fleet()
	for i := range rounds {
		other := r.Member(next + i)
		other.Labels["env"] = "test"
		r.must(r.Create(r.ctx, r.Secret(next+i)))
		r.must(r.Create(r.ctx, other))
	}
	r.changeOne("name one", func(i int) {
		fleet.ManagedFields, fleet.ResourceVersion = nil, ""
		fleet.Spec.Clusters = append(fleet.Spec.Clusters, fleetv1.FleetCluster{Name: scale.MemberName(next + i)})
		r.must(r.Apply(r.ctx, fleet, fleetv1.FleetKind))
		eachChild(next+i, there)
	})
	for i := range rounds {
		r.must(r.Delete(r.ctx, r.Member(next+i)))
		eachChild(next+i, gone)
	}
}

// changeOne changes members one after another, each when the controller has come to rest.
func (r *run) changeOne(what string, change func(i int)) {
	var times []time.Duration
	before, _ := r.counts()
	for i := range rounds {
		r.must(r.Settle(r.ctx))
		start := time.Now()
		change(i)
		times = append(times, time.Since(start))
	}
	r.must(r.Settle(r.ctx))
	after, _ := r.counts()
	slices.Sort(times)
	r.row(what, times[rounds/2], 0, fmt.Sprintf("for %d: %s", rounds, show(after.Since(before))))
	r.b.ReportMetric(times[rounds/2].Seconds()*1000, strings.ReplaceAll(what, " ", "-")+"-ms")
}

// end deletes the Application and the members, which leaves the hub as it was.
func (r *run) end() {
	app := r.Application(1)
	r.measure("delete", func() {
		r.must(r.Delete(r.ctx, app))
		r.must(r.Until(r.ctx, &appsv1.ApplicationList{}, app.Name, func(o client.Object) bool { return o == nil }))
	})
	r.must(scale.Each(r.n, func(i int) error {
		if err := r.Delete(r.ctx, r.Secret(i)); err != nil {
			return err
		}
		return r.Delete(r.ctx, r.Member(i))
	}))
	r.must(r.Delete(r.ctx, r.Fleet()))
	for i := range r.n {
		r.must(r.Until(r.ctx, &clusterv1.AttachedClusterList{}, scale.MemberName(i), func(o client.Object) bool { return o == nil }))
	}
}

func (r *run) untilApp(is func(*appsv1.Application) bool) {
	r.must(r.Until(r.ctx, &appsv1.ApplicationList{}, scale.AppName, func(o client.Object) bool { return o != nil && is(o.(*appsv1.Application)) }))
}

func (r *run) heap() float64 {
	h, err := r.LiveHeap(r.ctx)
	r.must(err)
	return h
}

func (r *run) counts() (scale.Requests, scale.Usage) {
	requests, err := r.Requests(r.ctx)
	r.must(err)
	usage, err := r.Usage(r.ctx)
	r.must(err)
	return requests, usage
}

// measure adds a row for what do does, which ends when it is done; the counts go on until the controller has settled.
func (r *run) measure(what string, do func()) {
	before, usage := r.counts()
	r.must(r.Settle(r.ctx)) // from being asked, too
	start := time.Now()
	do()
	r.total[what] = time.Since(start)
	r.must(r.Settle(r.ctx))
	after, used := r.counts()
	r.row(what, r.total[what], used.CPU-usage.CPU, show(after.Since(before)))
}

func (r *run) row(what string, took, cpu time.Duration, text string) {
	table = append(table, row{r, what, took, cpu, text})
	fmt.Printf("%d members, %s: %s\n", r.n, what, took.Round(time.Millisecond)) // it takes minutes
}

// show leaves out what is only there because somebody looks.
func show(r scale.Requests) string {
	r = maps.Clone(r)
	return r.Without(func(verb, resource string) bool {
		return verb == "WATCH" || verb == "LIST" || resource == "leases"
	}).String()
}

// profile does something and keeps a profile of the controller in the folder BENCH_PROFILES, if there is one.
func (r *run) profile(what string, do func()) {
	done := make(chan error, 1)
	if dir := os.Getenv("BENCH_PROFILES"); dir != "" {
		name, _, _ := strings.Cut(what, "?")
		go func() { done <- r.Profile(r.ctx, what, filepath.Join(dir, fmt.Sprintf("%s-%d.pprof", name, r.n))) }()
	} else {
		done <- nil
	}
	do()
	r.must(<-done)
}
