package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fleetwright/fleetwright/cmd/fleetwright/contents"
	"github.com/fleetwright/fleetwright/cmd/fleetwright/manifest"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/repository"
)

// atHand says where what sources fetch is at hand.
type atHand struct {
	folders map[string]string
	self    []string
	charts  []string
	cache   string
	pull    bool
}

func (a *atHand) flags(f *pflag.FlagSet) {
	f.StringToStringVar(&a.folders, "source", nil, "NAME=PATH: a checkout of what a source fetches, by its name, namespace/name or URL (may be repeated)")
	f.StringArrayVar(&a.self, "self", nil, "URL under which sources fetch the repository itself, beside those of its Git remotes (may be repeated)")
	f.StringArrayVar(&a.charts, "charts", nil, "folder with Helm charts, NAME-VERSION.tgz, unpacked or an OCI image layout (may be repeated)")
	f.BoolVar(&a.pull, "pull", false, "fetch charts that are not at hand from Helm repositories and registries; nothing else is ever fetched")
	f.StringVar(&a.cache, "chart-cache", "", "folder for what --pull fetches, used without it, too; a folder of the user if left out")
}

// contents returns what ends up on members of what was rendered from some paths, in a repository with a root. The caller closes it.
func (a *atHand) contents(rendered *repository.Rendered, paths []string, root string) (*contents.Contents, error) {
	paths = slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return path == "-" })
	documents, _ := manifest.Load(paths, nil) // what of it cannot be read was said, where it is of use
	var declared []*unstructured.Unstructured
	for _, d := range documents {
		declared = append(declared, &unstructured.Unstructured{Object: d.Object})
	}
	cache := a.cache
	if user, err := os.UserCacheDir(); err == nil && cache == "" && a.pull {
		cache = filepath.Join(user, "fleetwright", "charts")
	}
	kubernetes := versions(rendered.Declared)
	return contents.New(contents.Options{
		Rendered: rendered, Declared: declared, Root: root, Folders: a.folders, Charts: a.charts, Cache: cache, Pull: a.pull,
		Self: func(url string) bool {
			return slices.ContainsFunc(a.self, func(self string) bool { return sameRepository(self, url) })
		},
		KubeVersion: func(x *application.Rendered) string { return kubernetes[memberIn{x.Metadata.Namespace, x.Member}] },
	})
}

// root returns the folder of the repository that a path is in, and notes its URLs: the working tree of Git, or else the folder
// itself; empty if there is none.
func (a *atHand) root(ctx context.Context, path string) string {
	if path == "-" {
		return ""
	}
	if g, err := openGit(ctx, path); err == nil {
		a.self = append(a.self, g.remotes()...)
		return g.root
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return path
	}
	return ""
}

// sameRepository compares URLs of Git repositories: git@host:path is ssh://git@host/path, and nobody writes .git always.
func sameRepository(a, b string) bool {
	bare := func(url string) string {
		_, rest, ok := strings.Cut(url, "://")
		if !ok {
			rest = strings.Replace(url, ":", "/", 1)
		}
		if _, after, ok := strings.Cut(rest, "@"); ok {
			rest = after
		}
		return strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(rest, "/"), ".git"))
	}
	return bare(a) == bare(b)
}
