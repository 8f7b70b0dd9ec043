package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// git is a repository, read with the git on PATH: nobody's checkout, index or configuration is changed.
type git struct {
	ctx context.Context
	// root is the folder of the working tree.
	root string
}

func openGit(ctx context.Context, path string) (*git, error) {
	folder := path
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		folder = filepath.Dir(path)
	}
	g := &git{ctx: ctx, root: folder}
	out, err := g.run("rev-parse", "--show-toplevel")
	if err != nil {
		return nil, fmt.Errorf("%s is in no Git repository: compare two folders instead: %w", path, err)
	}
	g.root = strings.TrimSpace(string(out))
	return g, nil
}

func (g *git) run(args ...string) ([]byte, error) {
	cmd := exec.CommandContext(g.ctx, "git", append([]string{"-C", g.root}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git %s: %w: %s", args[0], err, strings.Join(strings.Fields(stderr.String()), " "))
	}
	return out, nil
}

// commit returns the commit that a revision is.
func (g *git) commit(revision string) (string, error) {
	out, err := g.run("rev-parse", "--verify", "--quiet", "--end-of-options", revision+"^{commit}")
	if err != nil {
		return "", fmt.Errorf("there is no revision %s here: fetch it first (a shallow clone has few: git fetch --unshallow)", revision)
	}
	return strings.TrimSpace(string(out)), nil
}

// mergeBase returns where two revisions have parted. The second one may be empty, for the working tree.
func (g *git) mergeBase(a, b string) (string, error) {
	if b == "" {
		b = "HEAD"
	}
	from, err := g.commit(a)
	if err != nil {
		return "", err
	}
	to, err := g.commit(b)
	if err != nil {
		return "", err
	}
	out, err := g.run("merge-base", from, to)
	if err != nil {
		return "", fmt.Errorf("%s and %s have no common ancestor here: fetch more of them (git fetch --unshallow), or leave --merge-base out", a, b)
	}
	return strings.TrimSpace(string(out)), nil
}

// remotes returns the URLs that the repository is fetched from; none if there are none.
func (g *git) remotes() []string {
	out, err := g.run("config", "--get-regexp", `^remote\..*\.url$`)
	if err != nil {
		return nil
	}
	var urls []string
	for line := range strings.Lines(string(out)) {
		if _, url, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			urls = append(urls, url)
		}
	}
	return urls
}

// inside returns paths as they are in the repository.
func (g *git) inside(paths []string) (out []string, err error) {
	root, err := filepath.EvalSymlinks(g.root)
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		absolute, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		if resolved, err := filepath.EvalSymlinks(absolute); err == nil {
			absolute = resolved
		}
		relative, err := filepath.Rel(root, absolute)
		if err != nil || !filepath.IsLocal(relative) {
			return nil, fmt.Errorf("%s is not in the repository %s", path, g.root)
		}
		out = append(out, relative)
	}
	return out, nil
}

// checkout writes the files of a revision into a folder.
func (g *git) checkout(revision, folder string) error {
	commit, err := g.commit(revision)
	if err != nil {
		return err
	}
	// What a file of the repository says about archives (export-ignore) is not asked for: Flux's checkout has all files.
	index := filepath.Join(filepath.Dir(folder), filepath.Base(folder)+".index")
	cmd := exec.CommandContext(g.ctx, "git", "-C", g.root, "read-tree", commit)
	cmd.Env = append(os.Environ(), "GIT_INDEX_FILE="+index)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git read-tree %s: %w: %s", revision, err, out)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	cmd = exec.CommandContext(g.ctx, "git", "-C", g.root, "checkout-index", "--all", "--force", "--prefix="+folder+string(filepath.Separator))
	cmd.Env = append(os.Environ(), "GIT_INDEX_FILE="+index)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git checkout-index %s: %w: %s", revision, err, out)
	}
	return nil
}
