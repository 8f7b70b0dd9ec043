package controllers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
)

// reportList is a list of a member's reports that is under way: page by page, of the one kind and then of the other.
type reportList struct {
	reports map[reportOwner]*memberReport
	// owners are who wants a policy, and prefixes who wants those that begin so.
	owners, prefixes map[string][]reportOwner
	// kind is the index of the resource that is being listed, next where it goes on, and versions those of what was listed.
	kind     int
	next     string
	versions []string
	results  int
	bytes    int64
	took     time.Duration
}

func newReportList(wanted map[reportOwner]wantedReport) *reportList {
	l := &reportList{reports: map[reportOwner]*memberReport{}, owners: map[string][]reportOwner{}, prefixes: map[string][]reportOwner{}, versions: make([]string, len(reportResources))}
	for owner, w := range wanted {
		l.reports[owner] = &memberReport{revision: w.revision, counts: map[string]policyv1.ResultCounts{}}
		for _, p := range w.policies {
			to := l.owners
			prefix, all := strings.CutSuffix(p, "*")
			if all {
				to = l.prefixes
			}
			to[prefix] = append(to[prefix], owner)
		}
	}
	return l
}

func (l *reportList) done() bool { return l.kind == len(reportResources) }

// lastingError is one that does not end by itself.
type lastingError struct{ error }

func isLasting(err error) bool { return errors.As(err, &lastingError{}) }

// read reads one page.
func (l *reportList) read(ctx context.Context, p *probe, r *Reports) error {
	resource := reportResources[l.kind]
	query := url.Values{"limit": {fmt.Sprint(r.page)}}
	if l.next != "" {
		query.Set("continue", l.next)
	}
	address := fmt.Sprintf("%s/apis/%s/%s/%s?%s", strings.TrimSuffix(p.base.String(), "/"), resource.Group, resource.Version, resource.Resource, query.Encode())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", acceptJSON)
	resp, err := p.client.Do(req)
	if err != nil {
		return errors.New(p.unreachable(err).message)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusGone:
		return apierrors.NewResourceExpired("the list has expired")
	case http.StatusNotFound:
		return lastingError{fmt.Errorf("has no %s: is Kyverno there?", resource.Resource)}
	case http.StatusForbidden, http.StatusUnauthorized:
		return lastingError{fmt.Errorf("the credentials may not list %s (%d): bind their user to a role that may", resource.Resource, resp.StatusCode)}
	default:
		return fmt.Errorf("listing %s: %s", resource.Resource, resp.Status)
	}
	body := &countingReader{r: resp.Body, most: r.maxBytes - l.bytes}
	version, next, err := l.decode(json.NewDecoder(bufio.NewReader(body)), r.maxResults)
	l.bytes += body.n
	switch {
	case errors.Is(err, errTooMuch):
		for _, report := range l.reports {
			report.truncated = true
		}
		next = ""
	case err != nil:
		return fmt.Errorf("reading %s: %s", resource.Resource, shorten(err.Error()))
	}
	if l.next = next; version != "" {
		l.versions[l.kind] = version
	}
	if next == "" {
		l.kind++
		if errors.Is(err, errTooMuch) {
			l.kind = len(reportResources)
		}
	}
	return nil
}

// errTooMuch says that a member has more than is read of one.
var errTooMuch = errors.New("more than is read of a member")

// countingReader ends with errTooMuch.
type countingReader struct {
	r       io.Reader
	n, most int64
}

func (c *countingReader) Read(b []byte) (int, error) {
	if c.n >= c.most {
		return 0, errTooMuch
	}
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

// policyReport is what is read of a report. https://github.com/kubernetes-sigs/wg-policy-prototypes
type policyReport struct {
	Scope   objectReference `json:"scope"`
	Results []reportResult  `json:"results"`
}

type reportResult struct {
	Policy    string            `json:"policy"`
	Result    string            `json:"result"`
	Severity  string            `json:"severity"`
	Message   string            `json:"message"`
	Resources []objectReference `json:"resources"`
}

type objectReference struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func (o objectReference) String() string {
	return strings.TrimSpace(o.Kind + " " + strings.TrimPrefix(o.Namespace+"/"+o.Name, "/"))
}

// decode counts the reports of a page one by one, so that no more than one is in memory.
func (l *reportList) decode(d *json.Decoder, maxResults int) (version, next string, err error) {
	if err := delimiter(d, '{'); err != nil {
		return "", "", err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return version, next, err
		}
		switch key {
		case "metadata":
			var m struct {
				ResourceVersion string `json:"resourceVersion"`
				Continue        string `json:"continue"`
			}
			if err := d.Decode(&m); err != nil {
				return version, next, err
			}
			version, next = m.ResourceVersion, m.Continue
		case "items":
			token, err := d.Token()
			switch {
			case err != nil:
				return version, next, err
			case token == nil: // as a server writes no items that is not the API server itself
				continue
			case token != json.Delim('['):
				return version, next, fmt.Errorf("the answer is no list: %v where [ should be", token)
			}
			for d.More() {
				var report policyReport
				// One that is not as it should be counts with what could be read of it.
				if err := d.Decode(&report); err != nil && !errors.As(err, new(*json.UnmarshalTypeError)) {
					return version, next, err
				}
				if l.results += len(report.Results); l.results > maxResults {
					return version, next, errTooMuch
				}
				for i := range report.Results {
					l.count(&report, &report.Results[i])
				}
			}
			if err := delimiter(d, ']'); err != nil {
				return version, next, err
			}
		default:
			var skipped json.RawMessage
			if err := d.Decode(&skipped); err != nil {
				return version, next, err
			}
		}
	}
	return version, next, delimiter(d, '}')
}

func delimiter(d *json.Decoder, want json.Delim) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	if token != want {
		return fmt.Errorf("the answer is no list: %v where %v should be", token, want)
	}
	return nil
}

// count adds a result for those who want its policy.
func (l *reportList) count(report *policyReport, result *reportResult) {
	owners := l.owners[result.Policy]
	for prefix, more := range l.prefixes {
		if strings.HasPrefix(result.Policy, prefix) {
			owners = append(slices.Clip(owners), more...)
		}
	}
	for _, owner := range owners {
		to := l.reports[owner]
		counts := to.counts[result.Policy]
		switch result.Result {
		case "pass":
			counts.Pass++
		case "fail":
			counts.Fail++
		case "warn":
			counts.Warn++
		case "error":
			counts.Error++
		case "skip":
			counts.Skip++
		default:
			continue
		}
		to.counts[result.Policy] = counts
		if !slices.Contains(badResults, result.Result) {
			continue
		}
		of := report.Scope
		if len(result.Resources) > 0 {
			of = result.Resources[0]
		}
		to.add(reportFinding{policy: result.Policy, result: result.Result, severity: bounded(result.Severity, 20), resource: bounded(of.String(), 200), message: bounded(result.Message, 200)})
	}
}

// add keeps a finding if it is among the worst.
func (m *memberReport) add(f reportFinding) {
	i, _ := slices.BinarySearchFunc(m.findings, f, worse)
	if i < maxFindingsOfMember {
		m.findings = slices.Insert(m.findings, i, f)
		m.findings = m.findings[:min(len(m.findings), maxFindingsOfMember)]
	}
}
