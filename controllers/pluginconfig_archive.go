package controllers

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/artifact/digest"

	"github.com/fleetwright/fleetwright/renderers/plugin"
)

// How much may be fetched for a plugin, which is a file or two: what is larger is something else.
const (
	maxPluginArchive    = 10 << 20
	maxPluginUnpacked   = 100 << 20
	maxPluginFiles      = 10_000
	maxPluginDefinition = 1 << 20
	pluginFetchTimeout  = time.Minute
)

// errNotPlugin says that what was fetched is no plugin: only something else that is fetched mends that.
var errNotPlugin = errors.New("what was fetched is not a plugin")

// fetchPlugin downloads an artifact of Flux, and loads the plugin of a name in a folder of it. Nothing is written to disk,
// and nothing in it is run. An error that is not an errNotPlugin may be gone the next time.
func fetchPlugin(ctx context.Context, artifact *meta.Artifact, folder, name string) (*plugin.Plugin, error) {
	archive, err := download(ctx, artifact)
	if err != nil {
		return nil, err
	}
	definition, err := findDefinition(archive, folder)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotPlugin, err)
	}
	p, err := plugin.Parse(definition)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errNotPlugin, path.Join(folder, plugin.DefinitionFile), err)
	}
	if p.Metadata.Name != name {
		return nil, fmt.Errorf("%w: %s: metadata.name is %q, and the PluginConfig calls it %q: they have to be the same",
			errNotPlugin, path.Join(folder, plugin.DefinitionFile), p.Metadata.Name, name)
	}
	return p, nil
}

// download returns an artifact, as its digest says.
func download(ctx context.Context, artifact *meta.Artifact) ([]byte, error) {
	tooLarge := fmt.Errorf("%w: it has more than %d MiB", errNotPlugin, maxPluginArchive>>20)
	if artifact.Size != nil && *artifact.Size > maxPluginArchive {
		return nil, tooLarge
	}
	ctx, cancel := context.WithTimeout(ctx, pluginFetchTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, artifact.URL, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", artifact.URL, response.Status)
	}
	b, err := io.ReadAll(io.LimitReader(response.Body, maxPluginArchive+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", artifact.URL, err)
	}
	if len(b) > maxPluginArchive {
		return nil, tooLarge
	}
	name, _, _ := strings.Cut(artifact.Digest, ":")
	algorithm, err := digest.AlgorithmForName(name)
	if err != nil {
		return nil, fmt.Errorf("digest %q: %w", artifact.Digest, err)
	}
	if got := algorithm.FromBytes(b).String(); got != artifact.Digest {
		return nil, fmt.Errorf("%s has the digest %s, and should have %s: it was changed on the way, or is just being replaced", artifact.URL, got, artifact.Digest)
	}
	return b, nil
}

// findDefinition returns the plugin.yaml in a folder of an archive.
func findDefinition(archive []byte, folder string) ([]byte, error) {
	compressed, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, fmt.Errorf("it is no tar.gz: %w", err)
	}
	wanted := path.Join(folder, plugin.DefinitionFile)
	limited := &io.LimitedReader{R: compressed, N: maxPluginUnpacked}
	files := tar.NewReader(limited)
	var found []byte
	var seen []string
	for n := 0; ; n++ {
		file, err := files.Next()
		switch {
		case errors.Is(err, io.EOF) && found != nil:
			return found, nil
		case errors.Is(err, io.EOF):
			return nil, fmt.Errorf("there is no %s: it has %s", wanted, listed(seen))
		case limited.N <= 0:
			return nil, fmt.Errorf("it unpacks to more than %d MiB", maxPluginUnpacked>>20)
		case err != nil:
			return nil, fmt.Errorf("it is no tar.gz: %w", err)
		case n >= maxPluginFiles:
			return nil, fmt.Errorf("it has more than %d files", maxPluginFiles)
		case !filepath.IsLocal(file.Name):
			return nil, fmt.Errorf("%q leads out of the archive", file.Name)
		}
		name := path.Clean(file.Name)
		if name != wanted {
			if name != "." && len(seen) < 1000 {
				seen = append(seen, name)
			}
			continue
		}
		if file.Typeflag != tar.TypeReg {
			return nil, fmt.Errorf("%s is a %s, and has to be a file", wanted, kindOfFile(file.FileInfo().Mode()))
		}
		if file.Size > maxPluginDefinition {
			return nil, fmt.Errorf("%s has more than %d MiB", wanted, maxPluginDefinition>>20)
		}
		if found, err = io.ReadAll(files); err != nil {
			return nil, fmt.Errorf("%s: %w", wanted, err)
		}
	}
}

func kindOfFile(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "folder"
	case mode&fs.ModeSymlink != 0:
		return "link"
	}
	return "special file"
}
