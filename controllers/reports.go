package controllers

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fluxcd/pkg/runtime/jitter"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
)

const (
	// reportPause is how soon reports are listed again at the earliest, and reportShare how many times as long as the last list
	// took: a member whose reports change all the time costs a bounded share.
	reportPause = 30 * time.Second
	reportShare = 20
	// reportRetry is how soon a member is asked again that has no reports, or does not let them be read; and how often it is
	// made sure that one is watched with the credentials that it has now.
	reportRetry = 5 * time.Minute
	// ownersSettle is for how long what is new of members is collected before who wants it is woken.
	ownersSettle = 3 * time.Second
	// maxFindingsOfMember is how many findings of a member are kept for an object with rules.
	maxFindingsOfMember = 5
)

// Reports are what members' policy reports say: counts, and the worst of it. Who has rules says what it wants, and the
// MemberReader reads it: a member is listed page by page, and then watched for whether anything changes at all.
type Reports struct {
	// pause, retry and settle are the constants, but for tests; page is the number of reports in a page.
	pause, retry, settle time.Duration
	page                 int
	// maxResults and maxBytes bound what is read of a member at a time.
	maxResults int
	maxBytes   int64

	mu      sync.Mutex
	members map[memberRef]*reportsOf
	queues  map[string][]queue
	// wake wakes the reader for a member.
	wake chan event.TypedGenericEvent[memberRef]
	// stopped is closed when the process is to end.
	stopped chan struct{}
}

// reportOwner is what has rules: a FleetSecurityPolicy or a ClusterCompliance.
type reportOwner struct {
	types.NamespacedName
	Kind string
}

// memberReport is what a member reports about the rules of an object.
type memberReport struct {
	// revision is that of the rules which the member had when it was read.
	revision string
	// counts are by policy.
	counts   map[string]policyv1.ResultCounts
	findings []reportFinding
	// readAt is when that was read; zero if it never was.
	readAt time.Time
	// problem says why it could not be read since; empty if it was.
	problem string
	// truncated says that there was more than is read of a member.
	truncated bool
}

// reportFinding is a result that is not good.
type reportFinding struct{ policy, result, severity, resource, message string }

// wantedReport is what an object counts on a member.
type wantedReport struct {
	// policies are sorted; one that ends with * stands for all that begin so.
	policies []string
	// revision is that of the rules which the member has: another one is worth another look.
	revision string
}

// reportsOf is what is known, and wanted, of the reports of a member.
type reportsOf struct {
	wanted map[reportOwner]wantedReport
	known  map[reportOwner]memberReport
	// problem says why they could not be read last.
	problem string
	// due is when they are to be listed; zero if nothing has changed since they were.
	due time.Time
	// list is the one under way, took how long the last one took, and next when there may be another.
	list *reportList
	took time.Duration
	next time.Time
	// watch is the one that tells of changes.
	watch *reportWatch
	// with are the credentials that were used last.
	with [32]byte
}

// NewReports returns reports that know nothing.
func NewReports() *Reports {
	return &Reports{
		pause: reportPause, retry: reportRetry, settle: ownersSettle, page: 250, maxResults: 200_000, maxBytes: 256 << 20,
		members: map[memberRef]*reportsOf{}, queues: map[string][]queue{},
		wake: make(chan event.TypedGenericEvent[memberRef], 1024), stopped: make(chan struct{}),
	}
}

// want says which policies an object counts on which members, and which revision of its rules these have, in place of what it
// said before.
func (r *Reports) want(owner reportOwner, policies []string, members map[memberRef]string) {
	var wake []memberRef
	r.mu.Lock()
	if len(policies) == 0 {
		members = nil
	}
	for ref, revision := range members {
		m := r.members[ref]
		if m == nil {
			m = &reportsOf{wanted: map[reportOwner]wantedReport{}, known: map[reportOwner]memberReport{}}
			r.members[ref] = m
		}
		if was, ok := m.wanted[owner]; ok && was.revision == revision && slices.Equal(was.policies, policies) {
			continue
		}
		m.wanted[owner] = wantedReport{policies, revision}
		m.list = nil
		if m.due.IsZero() {
			m.due = later(time.Now(), m.next)
		}
		wake = append(wake, ref)
	}
	r.unwant(owner, func(ref memberRef) bool { _, ok := members[ref]; return !ok })
	r.mu.Unlock()
	for _, ref := range wake {
		r.give(ref)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// forget drops what an object wanted.
func (r *Reports) forget(owner reportOwner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unwant(owner, func(memberRef) bool { return true })
}

func (r *Reports) unwant(owner reportOwner, from func(memberRef) bool) {
	for ref, m := range r.members {
		if _, ok := m.wanted[owner]; !ok || !from(ref) {
			continue
		}
		delete(m.wanted, owner)
		delete(m.known, owner)
		if len(m.wanted) == 0 {
			m.watch.end()
			delete(r.members, ref)
		}
	}
}

// of returns what is known of a member; false if nothing is.
func (r *Reports) of(owner reportOwner, ref memberRef) (memberReport, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[ref]
	if m == nil {
		return memberReport{}, false
	}
	report, ok := m.known[owner]
	report.problem = m.problem
	return report, ok
}

// changes is a source of a controller that is to look at the objects of a kind for which something is new.
func (r *Reports) changes(kind string) source.Source {
	return source.Func(func(_ context.Context, q queue) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.queues[kind] = append(r.queues[kind], q)
		return nil
	})
}

func (r *Reports) notify(owners []reportOwner) {
	for _, owner := range owners {
		for _, q := range r.queues[owner.Kind] {
			q.AddAfter(reconcile.Request{NamespacedName: owner.NamespacedName}, r.settle)
		}
	}
}

// give gives a member a turn. When the reader has ended nobody takes it, and nobody is to wait for that.
func (r *Reports) give(ref memberRef) {
	select {
	case r.wake <- event.TypedGenericEvent[memberRef]{Object: ref}:
	case <-r.stopped:
	}
}

// stop ends all watches, once.
func (r *Reports) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.stopped)
	for _, m := range r.members {
		m.watch.end()
	}
}

// next says whether anything is wanted of a member, and when its turn is; now if a page is due.
func (r *Reports) next(ref memberRef) (wanted bool, in time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[ref]
	switch {
	case m == nil:
		return false, 0
	case m.list != nil:
		return true, 0
	case m.due.IsZero():
		return true, jitter.JitteredIntervalDuration(r.retry)
	}
	return true, max(0, time.Until(m.due))
}

// away says that a member cannot be asked. What is known of it stays.
func (r *Reports) away(ref memberRef, problem string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[ref]
	if m == nil {
		return
	}
	m.watch.end()
	m.watch, m.list, m.due = nil, nil, later(time.Now(), m.next)
	r.say(m, problem)
}

// failed says why a member could not be read after some time, and returns when to try again.
func (r *Reports) failed(ref memberRef, err error, took time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[ref]
	if m == nil {
		return r.retry
	}
	m.list = nil
	in := jitter.JitteredIntervalDuration(r.retry)
	if isLasting(err) {
		m.watch.end()
		m.watch = nil
	} else {
		in = max(r.pause, reportShare*took)
	}
	m.due = time.Now().Add(in)
	r.say(m, shorten(err.Error()))
	return in
}

// say notes what is wrong with a member.
func (r *Reports) say(m *reportsOf, problem string) {
	if m.problem != problem {
		m.problem = problem
		r.notify(slices.Collect(maps.Keys(m.wanted)))
	}
}

// changed notes that something is new on a member: it is listed again when that may be.
func (r *Reports) changed(ref memberRef, w *reportWatch) {
	r.mu.Lock()
	m := r.members[ref]
	if m == nil || m.watch != w || !m.due.IsZero() {
		r.mu.Unlock()
		return
	}
	m.due = later(time.Now(), m.next)
	r.mu.Unlock()
	r.give(ref)
}

// renewed says whether a member has other credentials than those that were used last: what was refused may be allowed now. One
// that is not watched for another reason is asked when it is due, and not before.
func (r *Reports) renewed(ref memberRef, p *probe) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[ref]
	return m != nil && m.with != credentialsOf(p.config)
}

// turn reads a page of the reports of a member, and returns when it wants another turn.
func (r *Reports) turn(ctx context.Context, ref memberRef, p *probe) time.Duration {
	r.mu.Lock()
	m := r.members[ref]
	if m == nil {
		r.mu.Unlock()
		return r.retry
	}
	m.with = credentialsOf(p.config)
	list := m.list
	if list == nil {
		list = newReportList(m.wanted)
		m.list, m.due = list, time.Time{}
	}
	r.mu.Unlock()

	started := time.Now()
	err := list.read(ctx, p, r)
	list.took += time.Since(started)
	switch {
	case apierrors.IsResourceExpired(err): // it took too long, and begins again
		r.mu.Lock()
		defer r.mu.Unlock()
		m.list, m.took = nil, list.took
		m.due = time.Now().Add(max(r.pause, reportShare*m.took))
		return time.Until(m.due)
	case err != nil:
		return r.failed(ref, err, list.took)
	case !list.done():
		return 0
	}
	return r.finish(ref, p, list)
}

// finish keeps what was listed of a member, and watches it from there.
func (r *Reports) finish(ref memberRef, p *probe, list *reportList) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[ref]
	if m == nil || m.list != list { // something else is wanted by now
		return 0
	}
	m.list, m.took, m.next = nil, list.took, time.Now().Add(max(r.pause, reportShare*list.took))
	var news []reportOwner
	for owner, report := range list.reports {
		report.readAt = time.Now()
		was, ok := m.known[owner]
		if !ok || m.problem != "" || !was.equal(report) {
			news = append(news, owner)
		}
		m.known[owner] = *report
	}
	m.problem = ""
	r.notify(news)
	if with := credentialsOf(p.config); m.watch == nil || m.watch.with != with {
		m.watch.end()
		m.watch = nil
		select {
		case <-r.stopped:
		default:
			w, err := r.startWatch(ref, p.config, list.versions)
			if err != nil {
				m.due = time.Now().Add(r.retry)
				return r.retry
			}
			m.watch = w
		}
	}
	if m.due.IsZero() && slices.Contains(list.versions, "") { // there was too much to know all of what to watch from
		m.due = time.Now().Add(max(r.retry, reportShare*m.took))
	}
	if !m.due.IsZero() {
		return max(0, time.Until(m.due))
	}
	return jitter.JitteredIntervalDuration(r.retry)
}

func (m memberReport) equal(o *memberReport) bool {
	return m.revision == o.revision && m.truncated == o.truncated && maps.Equal(m.counts, o.counts) && slices.Equal(m.findings, o.findings)
}

// reportWatch tells of changes of the reports of a member, and of nothing else of them.
type reportWatch struct {
	cancel context.CancelFunc
	with   [32]byte // the credentials
}

func (w *reportWatch) end() {
	if w != nil {
		w.cancel()
	}
}

// credentialsOf stands for what a member is reached with.
func credentialsOf(c *rest.Config) [32]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q %q %q %q %q", c.Host, c.BearerToken, c.Username, c.Password, c.CAData, c.CertData, c.KeyData, c.ServerName))
}

// startWatch watches the reports of a member from the versions that they were listed at.
func (r *Reports) startWatch(ref memberRef, config *rest.Config, versions []string) (*reportWatch, error) {
	config = metadata.ConfigFor(config)
	config.QPS = -1
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background()) // it ends with stop
	w := &reportWatch{cancel: cancel, with: credentialsOf(config)}
	for i, resource := range reportResources {
		if versions[i] == "" {
			continue
		}
		lw := metadataWatcher{client.Resource(resource)}
		retried, err := watchtools.NewRetryWatcherWithContext(ctx, versions[i], lw)
		if err != nil {
			cancel()
			return nil, err
		}
		go func() {
			defer retried.Stop()
			for e := range retried.ResultChan() {
				switch e.Type {
				case watch.Bookmark:
				case watch.Error: // too old, say: it is listed, and watched from there
					r.lost(ref, w, apierrors.FromObject(e.Object))
					return
				default:
					r.changed(ref, w)
				}
			}
			if ctx.Err() == nil {
				r.lost(ref, w, nil)
			}
		}()
	}
	return w, nil
}

// lost notes that a watch has ended by itself. One that is refused would be refused again after each list.
func (r *Reports) lost(ref memberRef, w *reportWatch, err error) {
	r.mu.Lock()
	m := r.members[ref]
	if m == nil || m.watch != w {
		r.mu.Unlock()
		return
	}
	in := max(r.pause, reportShare*m.took)
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		in = max(in, jitter.JitteredIntervalDuration(r.retry))
	}
	m.watch.end()
	m.watch, m.due = nil, time.Now().Add(in)
	r.mu.Unlock()
	r.give(ref)
}

// metadataWatcher watches a resource without what is in it.
type metadataWatcher struct{ metadata.Getter }

// WatchWithContext implements cache.WatcherWithContext. A resource that is not there any more would be asked for each second:
// it is lost.
func (w metadataWatcher) WatchWithContext(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	got, err := w.Watch(ctx, opts)
	if apierrors.IsNotFound(err) {
		lost := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 1})
		gone := apierrors.NewResourceExpired("it is not served any more").Status()
		lost.Error(&gone)
		return lost, nil
	}
	return got, err
}

// reportResources are where Kyverno reports.
var reportResources = []schema.GroupVersionResource{
	{Group: "wgpolicyk8s.io", Version: "v1alpha2", Resource: "policyreports"},
	{Group: "wgpolicyk8s.io", Version: "v1alpha2", Resource: "clusterpolicyreports"},
}

// worse compares findings: the worst comes first.
func worse(a, b reportFinding) int {
	return cmp.Or(rankOf(badResults, a.result)-rankOf(badResults, b.result), rankOf(severities, a.severity)-rankOf(severities, b.severity),
		cmp.Compare(a.policy, b.policy), cmp.Compare(a.resource, b.resource), cmp.Compare(a.message, b.message))
}

var (
	badResults = []string{"fail", "error", "warn"}
	severities = []string{"critical", "high", "medium", "low", "info"}
)

func rankOf(order []string, s string) int {
	if i := slices.Index(order, s); i >= 0 {
		return i
	}
	return len(order)
}
