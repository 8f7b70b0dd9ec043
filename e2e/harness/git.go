package harness

import (
	"context"
	"fmt"
	"io/fs"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Git serves repositories over HTTP from a folder.
type Git struct {
	dir    string
	server *httptest.Server
}

func startGit(dir string) (*Git, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	execPath, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		return nil, fmt.Errorf("looking for git http-backend: %w", err)
	}
	return &Git{dir: dir, server: httptest.NewServer(&cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(execPath)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1"},
	})}, nil
}

// URL returns the address of a repository.
func (g *Git) URL(repo string) string { return g.server.URL + "/" + repo }

// Push writes files, from path to content, to the branch main of a repository and commits them. It makes the
// repository if it is new. A file with empty content is deleted; files not named stay. It returns the commit.
func (g *Git) Push(ctx context.Context, repo string, files map[string]string) (string, error) {
	dir := filepath.Join(g.dir, repo)
	if _, err := os.Stat(dir); err != nil {
		if _, err := g.git(ctx, g.dir, "init", "--quiet", "--initial-branch=main", dir); err != nil {
			return "", err
		}
	}
	for path, content := range files {
		if err := writeOrDelete(filepath.Join(dir, path), content); err != nil {
			return "", err
		}
	}
	if _, err := g.git(ctx, dir, "add", "--all"); err != nil {
		return "", err
	}
	if _, err := g.git(ctx, dir, "commit", "--quiet", "--allow-empty", "--message=push"); err != nil {
		return "", err
	}
	return g.git(ctx, dir, "rev-parse", "HEAD")
}

func writeOrDelete(path, content string) error {
	if content == "" {
		return os.Remove(path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content), 0o600)
}

func (g *Git) git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	// The developer's own configuration (signing, hooks) stays out of it.
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=e2e", "GIT_AUTHOR_EMAIL=e2e@localhost", "GIT_COMMITTER_NAME=e2e", "GIT_COMMITTER_EMAIL=e2e@localhost")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// ReadFiles reads a folder into what Push takes, with prefix before each path.
func ReadFiles(dir, prefix string) (map[string]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		files[filepath.Join(prefix, rel)] = string(content)
		return err
	})
	return files, err
}
