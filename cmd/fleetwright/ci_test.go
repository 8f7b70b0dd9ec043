package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// comments are those of a pull request, as the APIs of GitHub and GitLab have them.
type comments struct {
	auth, method string
	requests     []string
	bodies       map[string]string
}

func (c *comments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.requests = append(c.requests, r.Method+" "+r.URL.Path)
	if got := r.Header.Get(strings.SplitN(c.auth, ": ", 2)[0]); got != strings.SplitN(c.auth, ": ", 2)[1] {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	var sent struct{ Body string }
	if r.Method != http.MethodGet {
		b, _ := io.ReadAll(r.Body)
		if json.Unmarshal(b, &sent) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
	}
	switch r.Method {
	case http.MethodGet:
		out := []map[string]any{{"id": 1, "body": "looks good"}}
		for id, body := range c.bodies {
			out = append(out, map[string]any{"id": json.Number(id), "body": body})
		}
		_ = json.NewEncoder(w).Encode(out)
	case http.MethodPost:
		c.bodies["7"] = sent.Body
	case c.method:
		c.bodies[r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]] = sent.Body
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

// TestPlanScript holds that the script of the CI jobs keeps one comment, on GitHub and GitLab.
func TestPlanScript(t *testing.T) {
	for _, tool := range []string{"curl", "jq", "git", "sh"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not on PATH: the script of the CI jobs needs it", tool)
		}
	}
	g := NewWithT(t)
	bin := filepath.Join(t.TempDir(), "fleetwright")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, ".").CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(out))
	script, err := filepath.Abs("../../config/ci/plan.sh")
	g.Expect(err).NotTo(HaveOccurred())

	origin, clone := filepath.Join(t.TempDir(), "origin"), filepath.Join(t.TempDir(), "clone")
	git := func(dir string, args ...string) {
		out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"}, args...)...).CombinedOutput()
		g.Expect(err).NotTo(HaveOccurred(), string(out))
	}
	g.Expect(os.CopyFS(origin, os.DirFS("testdata/pulls/base"))).To(Succeed())
	git(origin, "init", "-q", "-b", "main")
	git(origin, "add", "-A")
	git(origin, "commit", "-qm", "base")
	git(origin, "checkout", "-qb", "change")
	edit(g, filepath.Join(origin, "deploy/shop/kustomization.yaml"), `"1.2"`, `"1.3"`)
	git(origin, "commit", "-qam", "change")
	git(".", "clone", "-q", "-b", "change", origin, clone)

	for _, hoster := range []struct {
		name, auth, method string
		env                func(url string) []string
		path               string
	}{
		{"github", "Authorization: Bearer s3cret", http.MethodPatch, func(url string) []string {
			event := filepath.Join(t.TempDir(), "event.json")
			g.Expect(os.WriteFile(event, []byte(`{"pull_request": {"number": 12}}`), 0o600)).To(Succeed())
			return []string{"GITHUB_EVENT_PATH=" + event, "GITHUB_BASE_REF=main", "GITHUB_API_URL=" + url, "GITHUB_REPOSITORY=platform/fleet", "GITHUB_TOKEN=s3cret"}
		}, "/repos/platform/fleet/issues/12/comments"},
		{"gitlab", "PRIVATE-TOKEN: s3cret", http.MethodPut, func(url string) []string {
			return []string{"CI_MERGE_REQUEST_IID=12", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME=main", "CI_API_V4_URL=" + url, "CI_PROJECT_ID=34", "GITLAB_TOKEN=s3cret"}
		}, "/projects/34/merge_requests/12/notes"},
	} {
		t.Run(hoster.name, func(t *testing.T) {
			g := NewWithT(t)
			api := &comments{auth: hoster.auth, method: hoster.method, bodies: map[string]string{}}
			server := httptest.NewServer(api)
			defer server.Close()
			run := func(args ...string) (string, error) {
				cmd := exec.CommandContext(t.Context(), script, append([]string{"--self", self, "-n", "fleet"}, args...)...)
				cmd.Dir = clone
				cmd.Env = append([]string{"FLEETWRIGHT=" + bin, "PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, hoster.env(server.URL)...)
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			out, err := run()
			g.Expect(err).NotTo(HaveOccurred(), out)
			g.Expect(out).To(ContainSubstring("6 of 6 members change"))
			g.Expect(out).NotTo(ContainSubstring("s3cret"))
			g.Expect(api.requests).To(Equal([]string{"GET " + hoster.path, "POST " + hoster.path}))
			g.Expect(api.bodies["7"]).To(And(HavePrefix("<!-- fleetwright diff -->\n### 6 of 6 members change"), ContainSubstring("shop:1.3")))

			t.Log("the next time, it is the same comment")
			api.requests = nil
			out, err = run()
			g.Expect(err).NotTo(HaveOccurred(), out)
			g.Expect(api.requests).To(HaveLen(2))
			g.Expect(api.requests[1]).To(And(HavePrefix(hoster.method+" "), HaveSuffix("/7")))
			g.Expect(api.bodies).To(HaveLen(1))

			t.Log("what is wrong with the command is its exit code, and no comment")
			api.requests = nil
			g.Expect(os.Remove(filepath.Join(clone, "plan.md"))).To(Succeed())
			out, err = run("--plugin", "nosuch")
			g.Expect(err).To(MatchError(fmt.Sprintf("exit status %d", exitUsage)), out)
			g.Expect(api.requests).To(BeEmpty())
		})
	}
}
