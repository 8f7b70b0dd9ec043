package scale

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Requests counts requests by verb and resource, "APPLY kustomizations" or "PATCH applications/status", as the API
// server counts them.
type Requests map[string]int

// Requests returns how many requests the API server has answered since it started. Those that it sends itself are among
// them.
func (l *Lab) Requests(ctx context.Context) (Requests, error) {
	c, err := rest.HTTPClientFor(l.Env.Hub.RESTConfig)
	if err != nil {
		return nil, err
	}
	out := Requests{}
	err = samples(ctx, c, l.Env.Hub.RESTConfig.Host+"/metrics", func(name string, labels map[string]string, value float64) {
		if name == "apiserver_request_total" && labels["resource"] != "" {
			key := labels["verb"] + " " + labels["resource"]
			if labels["subresource"] != "" {
				key += "/" + labels["subresource"]
			}
			out[key] += int(value)
		}
	})
	return out, err
}

// Since returns what was counted after an earlier count.
func (r Requests) Since(before Requests) Requests {
	out := Requests{}
	for key, n := range r {
		if n > before[key] {
			out[key] = n - before[key]
		}
	}
	return out
}

// Without leaves some out.
func (r Requests) Without(drop func(verb, resource string) bool) Requests {
	out := maps.Clone(r)
	maps.DeleteFunc(out, func(key string, _ int) bool {
		verb, resource, _ := strings.Cut(key, " ")
		return drop(verb, resource)
	})
	return out
}

// String lists them, sorted.
func (r Requests) String() string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(r)) {
		out = append(out, fmt.Sprintf("%d %s", r[key], key))
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}

// Usage is what the controller has used since it started.
type Usage struct {
	CPU time.Duration
	// RSS is its memory as the system sees it, and Heap what the last garbage collection found in use.
	RSS, Heap float64
	// Reconciles counts passes by controller.
	Reconciles map[string]int
	// Busy counts the Fleets and Applications that are queued or at work.
	Busy int
}

// Usage asks the controller.
func (l *Lab) Usage(ctx context.Context) (Usage, error) {
	u := Usage{Reconciles: map[string]int{}}
	err := samples(ctx, http.DefaultClient, l.Env.Controller.MetricsURL, func(name string, labels map[string]string, value float64) {
		switch name {
		case "process_cpu_seconds_total":
			u.CPU = time.Duration(value * float64(time.Second))
		case "process_resident_memory_bytes":
			u.RSS = value
		case "go_gc_heap_live_bytes":
			u.Heap = value
		case "controller_runtime_reconcile_total":
			u.Reconciles[labels["controller"]] += int(value)
		case "workqueue_depth", "controller_runtime_active_workers":
			if settles(labels["controller"]) {
				u.Busy += int(value)
			}
		}
	})
	return u, err
}

// settles says whether a controller comes to rest: members are probed for ever.
func settles(controller string) bool { return controller == "fleet" || controller == "application" }

// Settle waits until the controller has had nothing to do for a while.
func (l *Lab) Settle(ctx context.Context) error {
	const quiet, poll = 2 * time.Second, 400 * time.Millisecond
	var last string
	var since time.Time
	return wait.PollUntilContextTimeout(ctx, poll, 5*time.Minute, true, func(ctx context.Context) (bool, error) {
		u, err := l.Usage(ctx)
		if err != nil {
			return false, err
		}
		if now := fmt.Sprint(u.Reconciles["fleet"], u.Reconciles["application"]); now != last || u.Busy > 0 {
			last, since = now, time.Now()
		}
		return time.Since(since) >= quiet, nil
	})
}

var sample = regexp.MustCompile(`^(\w+)(?:\{(.*)\})? (\S+)$`)
var label = regexp.MustCompile(`(\w+)="([^"]*)"`)

// samples reads metrics.
func samples(ctx context.Context, c *http.Client, url string, each func(name string, labels map[string]string, value float64)) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		return fmt.Errorf("%s: %s: %s", url, resp.Status, body)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		// Most are buckets of histograms, which nobody here wants.
		if strings.HasPrefix(line, "#") || strings.Contains(line, "_bucket{") {
			continue
		}
		m := sample.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		value, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			return err
		}
		labels := map[string]string{}
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			labels[l[1]] = l[2]
		}
		each(m[1], labels, value)
	}
	return lines.Err()
}

// LiveHeap returns the bytes on the controller's heap after a garbage collection.
func (l *Lab) LiveHeap(ctx context.Context) (float64, error) {
	// The first collection leaves what pools keep until the next.
	for range 2 {
		url := strings.TrimSuffix(l.Env.Controller.MetricsURL, "/metrics") + "/debug/pprof/heap?gc=1"
		if err := l.fetch(ctx, url, io.Discard); err != nil {
			return 0, err
		}
	}
	u, err := l.Usage(ctx)
	return u.Heap, err
}

// Profile writes a profile of the controller to a file: heap, allocs, or profile?seconds=10.
func (l *Lab) Profile(ctx context.Context, what, file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(l.fetch(ctx, strings.TrimSuffix(l.Env.Controller.MetricsURL, "/metrics")+"/debug/pprof/"+what, f), f.Close())
}

func (l *Lab) fetch(ctx context.Context, url string, to io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	_, err = io.Copy(to, resp.Body)
	return err
}
