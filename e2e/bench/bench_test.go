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

// table is what is printed at the end: a line a measurement.
var table []string

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
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "members\twhat\ttime\tfloor\tratio\tcontroller CPU\trequests")
	for _, line := range table {
		fmt.Fprintln(w, line)
	}
	w.Flush()
	fmt.Println(out.String())
}

// run is the life of one Application with n members.
type run struct {
	b *testing.B
	*scale.Lab
	n     int
	ctx   context.Context
	floor map[string]time.Duration
}

func newRun(b *testing.B, n int) *run {
	// Not b.Context(): the cleanup needs one, too.
	ctx, cancel := context.WithCancel(context.Background())
	b.Cleanup(cancel)
	lab, err := scale.NewLab(ctx, env, fmt.Sprintf("bench-%d", n))
	r := &run{b: b, Lab: lab, n: n, ctx: ctx, floor: map[string]time.Duration{}}
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
	r.measureFloor()

	r.must(env.StartController(r.ctx, "--log-level=info"))
	r.attach()
	r.profile("profile?seconds=10", func() { r.write("create", 1) })
	r.write("change", 2)
	r.storm()

	u, err := r.Usage(r.ctx)
	r.must(err)
	perMember := (r.heap() - empty) / float64(r.n) / 1024
	r.row("memory", "", "", fmt.Sprintf("%.1f KiB of heap a member at rest, after a collection; RSS %.0f MiB", perMember, u.RSS/(1<<20)))
	r.b.ReportMetric(perMember, "KiB/member")
	r.profile("heap", func() {})

	r.oneMember()
	r.end()
	env.KillController()
}

// render measures rendering alone.
func (r *run) render() {
	app := r.Application(1)
	start, objects := time.Now(), 0
	for time.Since(start) < time.Second {
		objects += len(r.rendered(app))
	}
	rate := float64(objects) / time.Since(start).Seconds()
	r.row("render", "", "", fmt.Sprintf("%.0f objects/s", rate))
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

// measureFloor applies the same objects, in a namespace of their own, without the controller.
func (r *run) measureFloor() {
	namespace := r.Namespace + "-floor"
	r.must(env.Hub.CreateNamespace(r.ctx, namespace))
	var objects []*object.Object
	for i, what := range []string{"create", "change"} {
		objects = r.rendered(r.Application(i + 1))
		for _, o := range objects {
			o.Metadata.Namespace = namespace
			o.Metadata.OwnerReferences = []any{metav1.OwnerReference{APIVersion: appsv1.GroupVersion.String(), Kind: appsv1.ApplicationKind,
				Name: scale.AppName, UID: "00000000-0000-0000-0000-000000000000", Controller: new(true), BlockOwnerDeletion: new(true)}}
		}
		start := time.Now()
		r.must(r.ApplyRaw(r.ctx, objects))
		r.floor[what] = time.Since(start)
	}
	start := time.Now()
	r.must(r.DeleteRaw(r.ctx, objects))
	r.floor["delete"] = time.Since(start)
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
	r.must(r.Settle(r.ctx))
	app := r.Application(revision)
	took := r.measure(what, func() {
		r.must(r.Apply(r.ctx, app, appsv1.ApplicationKind))
		r.untilApp(func(a *appsv1.Application) bool {
			return a.Status.ObservedGeneration == app.Generation && a.Status.Objects >= 2*r.n
		})
	})
	r.b.ReportMetric(took.Seconds()/r.floor[what].Seconds(), what+"/floor")

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
		r.must(r.Settle(r.ctx))
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
	r.must(r.Settle(r.ctx))
}

func notReady(a *appsv1.Application) string {
	b, _ := json.Marshal(a.Status.Members.NotReady)
	return string(b)
}

// rounds is how often one member is changed in each way; the times are medians.
const rounds = 5

// oneMember adds members, changes a label of theirs that the HelmRelease depends on, and removes them, one at a time.
func (r *run) oneMember() {
	kinds := map[string]client.ObjectList{"manifests": &kustomizev1.KustomizationList{}, "chart": &helmv2.HelmReleaseList{}}
	eachChild := func(i int, is func(client.Object) bool) {
		for policy, list := range kinds {
			r.must(r.Until(r.ctx, list, scale.AppName+"-"+policy+"-"+scale.MemberName(i), is))
		}
	}
	total := func(n int) {
		r.untilApp(func(a *appsv1.Application) bool { return a.Status.Members.Total == n && a.Status.Objects >= 2*n })
	}
	r.changeOne("add one", func(i int) {
		r.must(r.Attach(r.ctx, i, i+1))
		eachChild(i, func(o client.Object) bool { return o != nil })
	}, func(i int) { total(i + 1) })
	r.must(r.Flux(r.ctx, metav1.ConditionTrue, "Applied revision: main@sha1:0123456789abcdef"))
	r.changeOne("label one", func(i int) {
		m := r.Member(i)
		r.must(r.Patch(r.ctx, m, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"region":"moon"}}}`))))
		r.must(r.Until(r.ctx, kinds["chart"], scale.AppName+"-chart-"+scale.MemberName(i), func(o client.Object) bool {
			return strings.Contains(string(o.(*helmv2.HelmRelease).Spec.Values.Raw), "moon")
		}))
	}, func(int) {
		r.untilApp(func(a *appsv1.Application) bool { return a.Status.Members.Ready < a.Status.Members.Total })
	})
	r.changeOne("remove one", func(i int) {
		i = 2*r.n + rounds - 1 - i // the last first
		m := r.Member(i)
		r.must(r.Delete(r.ctx, m))
		eachChild(i, func(o client.Object) bool { return o == nil })
	}, func(i int) { total(2*r.n + rounds - 1 - i) })
}

func (r *run) changeOne(what string, change, settled func(i int)) {
	r.must(r.Settle(r.ctx))
	var times []time.Duration
	before, usage := r.counts()
	for i := range rounds {
		start := time.Now()
		change(r.n + i)
		times = append(times, time.Since(start))
		settled(r.n + i)
	}
	r.must(r.Settle(r.ctx))
	slices.Sort(times)
	after, used := r.counts()
	requests := after.Since(before)
	text := fmt.Sprintf("for %d: %s", rounds, show(requests))
	r.row(what, ms(times[rounds/2]), ms((used.CPU-usage.CPU)/rounds), text)
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
func (r *run) measure(what string, do func()) time.Duration {
	before, usage := r.counts()
	start := time.Now()
	do()
	took := time.Since(start)
	r.must(r.Settle(r.ctx))
	after, used := r.counts()
	r.row(what, seconds(took), seconds(used.CPU-usage.CPU), show(after.Since(before)))
	return took
}

func (r *run) row(what, took, cpu, text string) {
	floor, ratio := "", ""
	if f, ok := r.floor[what]; ok {
		d, _ := time.ParseDuration(took)
		floor, ratio = seconds(f), fmt.Sprintf("%.2f", d.Seconds()/f.Seconds())
	}
	line := strings.Join([]string{strconv.Itoa(r.n), what, took, floor, ratio, cpu, text}, "\t")
	table = append(table, line)
	fmt.Println(strings.ReplaceAll(line, "\t", " | "))
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

func seconds(d time.Duration) string { return fmt.Sprintf("%.2fs", d.Seconds()) }
func ms(d time.Duration) string      { return fmt.Sprintf("%dms", d.Milliseconds()) }
