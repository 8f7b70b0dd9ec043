package controllers

import (
	"cmp"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
)

// reporters are the API servers of members, as far as their policy reports go: one server, a path for each member.
type reporters struct {
	t      *testing.T
	server *httptest.Server

	mu      sync.Mutex
	members map[string]*reporter
	// log are the requests but for watches, in order: "member resource".
	log     []string
	watches int
	watched int // those that were refused
	closed  bool
}

// reporter is one member: reports of results each, the policies of which take turns.
type reporter struct {
	reports, results int
	policies         []string
	result           string
	version          int
	status           int // of answers, if not 200
	watchStatus      int // of watches, if not 200
	body             string
	token            string
	expire           bool // a continue, once
	changed          chan struct{}
}

func newReporters(t *testing.T) *reporters {
	r := &reporters{t: t, members: map[string]*reporter{}}
	r.server = httptest.NewTLSServer(r)
	t.Cleanup(func() { r.server.CloseClientConnections(); r.server.Close() })
	return r
}

func (r *reporters) add(name string, m reporter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m.changed, m.version = make(chan struct{}), 1
	if m.result == "" {
		m.result = "pass"
	}
	r.members[name] = &m
}

// change changes a member, and tells those who watch it.
func (r *reporters) change(name string, f func(*reporter)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[name]
	f(m)
	m.version++
	close(m.changed)
	m.changed = make(chan struct{})
}

// shut has all members answer nothing of use, and count nothing, until they are open again.
func (r *reporters) shut(closed bool) { r.mu.Lock(); defer r.mu.Unlock(); r.closed = closed }

// lists counts the requests that are no watches, and open the watches.
func (r *reporters) lists() int { r.mu.Lock(); defer r.mu.Unlock(); return len(r.log) }
func (r *reporters) open() int  { r.mu.Lock(); defer r.mu.Unlock(); return r.watches }
func (r *reporters) requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.log)
}

func (r *reporters) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	name, resource := parts[0], parts[len(parts)-1]
	query := req.URL.Query()
	r.mu.Lock()
	m := r.members[name]
	if m == nil {
		r.mu.Unlock()
		http.NotFound(w, req)
		return
	}
	if r.closed {
		r.mu.Unlock()
		http.Error(w, "shut", http.StatusServiceUnavailable)
		return
	}
	if refused := cmp.Or(m.watchStatus, m.status); query.Get("watch") != "" && refused != 0 {
		r.watched++
		r.mu.Unlock()
		reason := metav1.StatusReasonNotFound
		if refused == http.StatusForbidden {
			reason = metav1.StatusReasonForbidden
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(refused)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, refused)
		return
	}
	if query.Get("watch") != "" {
		r.watches++
		changed, flusher := m.changed, w.(http.Flusher)
		r.mu.Unlock()
		w.WriteHeader(http.StatusOK)
		flusher.Flush()
		for done := false; !done; {
			select {
			case <-changed:
				r.mu.Lock()
				changed = m.changed
				done = m.status != 0
				r.mu.Unlock()
				if resource == "policyreports" {
					fmt.Fprintf(w, `{"type":"MODIFIED","object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"x","resourceVersion":"%d"}}}`+"\n", m.version)
					flusher.Flush()
				}
			case <-req.Context().Done():
				done = true
			}
		}
		r.mu.Lock()
		r.watches--
		r.mu.Unlock()
		return
	}
	defer r.mu.Unlock()
	r.log = append(r.log, name+" "+resource)
	switch {
	case m.token != "" && req.Header.Get("Authorization") != "Bearer "+m.token:
		w.WriteHeader(http.StatusUnauthorized)
		return
	case m.status != 0:
		w.WriteHeader(m.status)
		return
	case m.body != "" && resource == "policyreports":
		fmt.Fprint(w, m.body)
		return
	}
	from, limit, total := 0, 0, m.reports
	from, _ = strconv.Atoi(query.Get("continue"))
	limit, _ = strconv.Atoi(query.Get("limit"))
	if from > 0 && m.expire {
		m.expire = false
		w.WriteHeader(http.StatusGone)
		return
	}
	if resource != "policyreports" {
		total = 0
	}
	next := ""
	if from+limit < total {
		next = strconv.Itoa(from + limit)
	}
	fmt.Fprint(w, `{"apiVersion":"wgpolicyk8s.io/v1alpha2","items":[`)
	for i := from; i < min(from+limit, total); i++ {
		if i > from {
			fmt.Fprint(w, ",")
		}
		var results []map[string]any
		for j := range m.results {
			results = append(results, map[string]any{"policy": m.policies[(i*m.results+j)%len(m.policies)], "result": m.result, "severity": "medium", "message": strings.Repeat("why ", 100)})
		}
		b, _ := json.Marshal(map[string]any{"metadata": map[string]any{"name": fmt.Sprint(i)}, "scope": map[string]any{"kind": "Pod", "namespace": "shop", "name": fmt.Sprintf("%s-%d", name, i)}, "results": results})
		_, _ = w.Write(b)
	}
	fmt.Fprintf(w, `],"kind":"List","metadata":{"resourceVersion":"%d","continue":%q}}`, m.version, next) // the keys are sorted
}

// attached makes members that are reached there.
func (r *reporters) attached(h *hub, names ...string) {
	h.t.Helper()
	for _, name := range names {
		h.Expect(h.Create(h.t.Context(), r.secret(h, name, ""))).To(Succeed())
	}
	h.attach(names...)
}

func (r *reporters) secret(h *hub, name, token string) *corev1.Secret {
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: r.server.URL + "/" + name, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.server.Certificate().Raw})}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "t" + token}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	b, err := clientcmd.Write(*config)
	h.Expect(err).NotTo(HaveOccurred())
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name + "-kubeconfig", Namespace: h.ns}, Data: map[string][]byte{"value": b}}
}

// wants has an owner want these policies of members, and returns how to read what is known.
func (h *hub) wants(owner string, policies []string, members ...string) func(member string) memberReport {
	key := reportOwner{types.NamespacedName{Namespace: h.ns, Name: owner}, "Test"}
	ref := func(m string) memberRef {
		return memberRef{types.NamespacedName{Namespace: h.ns, Name: m}, clusterv1.AttachedClusterKind}
	}
	refs := map[memberRef]string{}
	for _, m := range members {
		refs[ref(m)] = ""
	}
	h.reports.want(key, policies, refs)
	return func(m string) memberReport {
		report, _ := h.reports.of(key, ref(m))
		return report
	}
}

// Policy reports of 300 members, of which one has a flood: counted, bounded, and free while nothing changes.
func TestReportsOfManyMembers(t *testing.T) {
	h, r := newHub(t), newReporters(t)
	var members []string
	for i := range 300 {
		name := fmt.Sprintf("m%03d", i)
		members = append(members, name)
		m := reporter{reports: 50, results: 2, policies: []string{h.ns + ".baseline.non-root", h.ns + ".baseline.labelled"}}
		if i%2 == 0 {
			m.result = "fail"
		}
		if name == "m000" {
			m.reports, m.results, m.result = 5000, 20, "fail"
		}
		r.add(name, m)
	}
	r.attached(h, members...)
	r.shut(true)
	h.start()
	h.reports.page = 50
	h.fleet("prod", members...)
	h.apply(baselineWithoutWaiting)
	h.delivered(len(members))
	h.Eventually(h.policySays("baseline", meta.ReadyCondition), time.Minute).Should(HavePrefix("True "))
	r.shut(false)

	const pages, others = 100 + 1, 299 * 2 // each kind of reports
	h.Eventually(r.lists, 3*time.Minute).Should(Equal(pages + others))
	h.Eventually(r.open, time.Minute).Should(Equal(600))
	t.Log("the flood of one delays no other: they are done while it has hardly begun")
	floodBefore, left := 0, others
	for _, request := range r.requests() {
		if strings.HasPrefix(request, "m000 ") {
			if left > 0 {
				floodBefore++
			}
		} else {
			left--
		}
	}
	h.Expect(floodBefore).To(BeNumerically("<", 30))

	t.Log("all is counted, and what is said of it is bounded")
	h.Eventually(func() policyv1.ResultCounts { return h.policy("baseline").Status.Compliance.Results }).
		Should(Equal(policyv1.ResultCounts{Pass: 150 * 100, Fail: 149*100 + 100_000}))
	status := h.policy("baseline").Status
	h.Expect(status.Compliance.Summary).To(Equal("150/300"))
	h.Expect(status.Compliance.Members).To(HaveLen(policyv1.MaxListedResults))
	h.Expect(status.Compliance.Members[0]).To(Equal(policyv1.MemberResults{Name: "m000", Kind: "AttachedCluster", Results: policyv1.ResultCounts{Fail: 100_000}, Rules: []string{"non-root", "labelled"}}), "the worst is first")
	h.Expect(status.Compliance.MembersOmitted).To(Equal(50))
	h.Expect(status.Compliance.Findings).To(HaveLen(policyv1.MaxListedFindings))
	h.Expect(status.Rules[0].FailingMembers).To(Equal(150))
	b, err := json.Marshal(status)
	h.Expect(err).NotTo(HaveOccurred())
	h.Expect(len(b)).To(BeNumerically("<", 64<<10))

	t.Log("while nothing changes, nothing is asked but what the watches hold open, and nothing is written")
	version, asked := h.policy("baseline").ResourceVersion, r.lists()
	h.requests.reset()
	h.Consistently(r.lists, 2*time.Second).Should(Equal(asked))
	h.Expect(h.policy("baseline").ResourceVersion).To(Equal(version))
	h.Expect(h.requests.counted()).To(BeEmpty())

	t.Log("what changes on one member is one list of that member, and one status")
	r.change("m001", func(m *reporter) { m.result = "fail" })
	h.Eventually(func() string { return h.policy("baseline").Status.Compliance.Summary }).Should(Equal("149/300"))
	h.Expect(r.lists()).To(Equal(asked + 2))
}

// A member that cannot be read keeps its last result, with its age.
func TestReportsOfAMemberThatIsAway(t *testing.T) {
	h, r := newHub(t), newReporters(t)
	r.add("a", reporter{reports: 3, results: 1, policies: []string{h.ns + ".baseline.non-root"}, result: "fail"})
	r.add("b", reporter{reports: 3, results: 1, policies: []string{h.ns + ".baseline.non-root"}})
	r.attached(h, "a", "b")
	h.start()
	h.fleet("prod", "a", "b")
	h.apply(baselineWithoutWaiting)
	compliance := func() policyv1.Compliance { return h.policy("baseline").Status.Compliance }
	h.Eventually(compliance).Should(And(HaveField("Summary", "0/2"), HaveField("Results", policyv1.ResultCounts{Fail: 3, Pass: 3})))
	h.Expect(h.policySays("baseline", policyv1.CompliantCondition)()).To(ContainSubstring("not known of b (does not have the rules yet)"), "what it reports is of who knows what")
	h.delivered(2)
	h.Eventually(compliance).Should(HaveField("Summary", "1/2"))
	h.Expect(h.policySays("baseline", policyv1.CompliantCondition)()).To(Equal("False RulesBroken: 1/2 members are compliant; results that are bad: a (3)"))
	h.Eventually(r.open).Should(Equal(4))

	h.health("a", metav1.ConditionFalse, "Unreachable", "does not answer")
	h.health("b", metav1.ConditionFalse, "Unreachable", "does not answer")
	h.Eventually(func() []policyv1.MemberResults { return compliance().Members }).Should(HaveLen(2))
	h.Expect(h.policySays("baseline", policyv1.CompliantCondition)()).To(Equal("False RulesBroken: 0/2 members are compliant; results that are bad: a (3); not known of b (does not answer)"))
	c := compliance()
	h.Expect(c.Results).To(Equal(policyv1.ResultCounts{Fail: 3, Pass: 3}))
	h.Expect(c.Members[0]).To(And(HaveField("Name", "a"), HaveField("Message", "does not answer"), HaveField("ReadAt", Not(BeNil()))))
	h.Eventually(r.open).Should(BeZero(), "nobody asks who does not answer")

	t.Log("a restart knows it still")
	h.stop()
	h.start()
	h.Consistently(compliance).Should(Equal(c))

	t.Log("and when it answers again, what it says then counts")
	r.change("a", func(m *reporter) { m.result = "pass" })
	h.health("a", metav1.ConditionTrue, "Reached", "")
	h.health("b", metav1.ConditionTrue, "Reached", "")
	h.Eventually(compliance).Should(And(HaveField("Summary", "2/2"), HaveField("Members", BeEmpty())))
	h.Expect(h.policySays("baseline", policyv1.CompliantCondition)()).To(HavePrefix("True Compliant: 2/2"))
}

// Whether members are compliant is said of those alone that have the rules, have been read since, and have reported something.
func TestCompliantIsNotGuessed(t *testing.T) {
	h, r := newHub(t), newReporters(t)
	policy := h.ns + ".baseline.non-root"
	r.add("a", reporter{reports: 1, results: 1, policies: []string{policy}})
	r.add("silent", reporter{policies: []string{policy}})
	r.attached(h, "a", "silent")
	h.start()
	h.fleet("prod", "a", "silent")
	h.apply(baselineWithoutWaiting)
	compliant := h.policySays("baseline", policyv1.CompliantCondition)
	h.Eventually(compliant).Should(HavePrefix("Unknown NotReported: 0/2 members are compliant; not known of "))
	h.Consistently(compliant).Should(HavePrefix("Unknown NotReported: 0/2 "), "no member has them")
	h.delivered(2)
	h.Eventually(compliant).Should(Equal("Unknown NotReported: 1/2 members are compliant; not known of silent (has reported nothing about these rules)"))
	r.change("silent", func(m *reporter) { m.reports, m.results = 1, 1 })
	h.Eventually(compliant).Should(Equal("True Compliant: 2/2 members are compliant"))

	t.Log("another revision is not known before the members have it and were read again")
	h.apply(strings.Replace(baselineWithoutWaiting, "enforcement: audit", "enforcement: enforce", 1))
	h.Eventually(compliant).Should(HavePrefix("Unknown NotReported: 0/2 "))
	h.delivered(2)
	h.Eventually(compliant).Should(Equal("True Compliant: 2/2 members are compliant"))

	t.Log("while a rule cannot be rendered, what members have of it counts")
	r.change("a", func(m *reporter) { m.result = "fail" })
	h.Eventually(compliant).Should(Equal("False RulesBroken: 1/2 members are compliant; results that are bad: a (1)"))
	h.apply(strings.Replace(baselineWithoutWaiting, "[Pod]", "[Nosuch]", 1))
	h.Eventually(compliant).Should(Equal("False RulesBroken: 1/2 members are compliant; results that are bad: a (1); rules that are not as declared: non-root"))
	h.Consistently(func() policyv1.Compliance { return h.policy("baseline").Status.Compliance }).
		Should(HaveField("Results", policyv1.ResultCounts{Pass: 1, Fail: 1}))
	h.Expect(h.policy("baseline").Status.Rules[0].Results).To(Equal(policyv1.ResultCounts{Pass: 1, Fail: 1}))
	r.change("a", func(m *reporter) { m.result = "pass" })
	h.Eventually(compliant).Should(Equal("Unknown NotReported: 2/2 members are compliant; rules that are not as declared: non-root"))

	t.Log("a restart takes nothing back meanwhile")
	h.apply(strings.Replace(baselineWithoutWaiting, "enforcement: audit", "enforcement: enforce", 1))
	h.Eventually(compliant).Should(Equal("True Compliant: 2/2 members are compliant"))
	before := h.policy("baseline").ResourceVersion
	h.stop()
	h.start()
	h.Consistently(func() string { return h.policy("baseline").ResourceVersion }).Should(Equal(before))
}

// What a member reports is shown to people: it has nothing in it that a terminal acts on.
func TestReportsAreText(t *testing.T) {
	g := NewWithT(t)
	l := newReportList(map[reportOwner]wantedReport{{Kind: "x"}: {policies: []string{"p"}}})
	_, _, err := l.decode(json.NewDecoder(strings.NewReader(`{"items":[{"results":[{"policy":"p","result":"fail","message":"a\u001b[31mRED\u202e\tb\u00a0c"}]}]}`)), 10)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(l.reports[reportOwner{Kind: "x"}].findings[0].message).To(Equal("a\uFFFD[31mRED\uFFFD b c"))
}

func TestReportsThatCannotBeRead(t *testing.T) {
	h, r := newHub(t), newReporters(t)
	one := reporter{reports: 4, results: 1, policies: []string{"p"}}
	for name, change := range map[string]func(*reporter){
		"none":      func(m *reporter) { m.status = http.StatusNotFound },
		"forbidden": func(m *reporter) { m.status = http.StatusForbidden },
		"broken":    func(m *reporter) { m.status = http.StatusInternalServerError },
		"expired":   func(m *reporter) { m.expire = true },
		"flood":     func(m *reporter) { m.reports = 1000 },
		"garbage":   func(m *reporter) { m.body = `{"items": 3}` },
		"odd": func(m *reporter) {
			m.body = `{"metadata":{"resourceVersion":"1"},"items":[{"results":null},{"results":[{"policy":7,"result":"fail"}]},{"scope":"x","results":[{"policy":"p","result":"fail"}]},{"results":[{"policy":"p","result":"maybe"},{"policy":"q","result":"fail"}]}]}`
		},
		"rotated": func(m *reporter) { m.token = "t" },
	} {
		m := one
		change(&m)
		r.add(name, m)
	}
	members := []string{"none", "forbidden", "broken", "expired", "flood", "garbage", "odd", "rotated"}
	r.attached(h, members...)
	h.start()
	h.reports.page, h.reports.maxResults = 2, 500
	of := h.wants("o", []string{"p"}, members...)
	problem := func(m string) func() string { return func() string { return of(m).problem } }
	h.Eventually(problem("none")).Should(Equal("has no policyreports: is Kyverno there?"))
	h.Eventually(problem("forbidden")).Should(Equal("the credentials may not list policyreports (403): bind their user to a role that may"))
	h.Eventually(problem("broken")).Should(HavePrefix("listing policyreports: 500"))
	h.Eventually(problem("garbage")).Should(ContainSubstring("the answer is no list"))
	passed := map[string]policyv1.ResultCounts{"p": {Pass: 4}}
	h.Eventually(func() any { return of("expired").counts }).Should(Equal(passed))
	h.Eventually(func() any { return of("rotated").counts }).Should(Equal(passed))
	h.Eventually(func() bool { return of("flood").truncated }).Should(BeTrue())
	h.Expect(of("flood").counts).To(Equal(map[string]policyv1.ResultCounts{"p": {Pass: 500}}))
	h.Eventually(func() any { return of("odd").counts }).Should(Equal(map[string]policyv1.ResultCounts{"p": {Fail: 1}}))

	t.Log("and what can be read again, is")
	r.change("none", func(m *reporter) { m.status = 0 })
	h.Eventually(func() any { return of("none").counts }).Should(Equal(passed))
	h.Expect(of("none").problem).To(BeEmpty())

	t.Log("what there is too much of is read again, although nothing tells of changes")
	r.change("flood", func(m *reporter) { m.result = "fail" })
	h.Eventually(func() any { return of("flood").counts }).Should(Equal(map[string]policyv1.ResultCounts{"p": {Fail: 500}}))

	t.Log("where Kyverno is taken away, that is said, and nobody goes on asking")
	r.change("expired", func(m *reporter) { m.status = http.StatusNotFound })
	h.Eventually(problem("expired")).Should(Equal("has no policyreports: is Kyverno there?"))
	h.Expect(of("expired").counts).To(Equal(passed))
	refused := func() int { r.mu.Lock(); defer r.mu.Unlock(); return r.watched }
	asked := refused()
	h.Consistently(refused).Should(Equal(asked))
	r.change("expired", func(m *reporter) { m.status = 0 })
	h.Eventually(problem("expired")).Should(BeEmpty())

	t.Log("with other credentials it is watched anew")
	const open = 9 // two of each that can be read, but one of the flood
	h.Eventually(r.open).Should(Equal(open))
	secret := r.secret(h, "rotated", "2")
	h.Expect(h.Patch(t.Context(), secret, client.Merge)).To(Succeed())
	r.change("rotated", func(m *reporter) { m.token, m.result = "t2", "fail" })
	h.Eventually(func() any { return of("rotated").counts }).Should(Equal(map[string]policyv1.ResultCounts{"p": {Fail: 4}}))
	h.Eventually(r.open).Should(Equal(open))

	t.Log("who is wanted by nobody is watched by nobody, and with the process all of them end")
	h.wants("o", []string{"p"}, "expired")
	h.Eventually(r.open).Should(Equal(2))
	h.stop()
	h.Eventually(r.open).Should(BeZero())
}
