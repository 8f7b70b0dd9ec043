package contents

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"sigs.k8s.io/yaml"
)

const (
	pullTimeout = 2 * time.Minute
	maxIndex    = 64 << 20
	maxChart    = 100 << 20 // what Helm unpacks
)

// index is what is used of the index of a Helm repository.
type index struct {
	Entries map[string][]struct {
		Version string   `json:"version"`
		URLs    []string `json:"urls"`
		Digest  string   `json:"digest"`
	} `json:"entries"`
}

// cached returns the folder of the cache for what is fetched from a place: two may have charts of the same name and version.
func (w wanted) cached(cache string) string { return filepath.Join(cache, sum(w.url, w.digest)) }

// pull fetches a chart into the cache.
func (c *Contents) pull(w wanted) (candidate, error) {
	scheme, rest, _ := strings.Cut(w.url, "://")
	switch scheme {
	case "oci":
		return c.pullImage(w, rest)
	case "http", "https":
		return c.pullArchive(w)
	}
	return candidate{}, errors.New("only http, https and oci are known")
}

// pullArchive fetches a chart from a Helm repository.
func (c *Contents) pullArchive(w wanted) (candidate, error) {
	base := strings.TrimSuffix(w.url, "/") + "/"
	list := c.indexes[base]
	if list == nil {
		b, err := w.get(base+"index.yaml", maxIndex)
		if err != nil {
			return candidate{}, err
		}
		if list, err = parseIndex(b); err != nil {
			return candidate{}, err
		}
		c.indexes[base] = list
	}
	entries := list.Entries[w.name]
	var all []candidate
	for _, e := range entries {
		all = append(all, candidate{version: e.Version})
	}
	i, err := w.newest(all)
	if err != nil {
		return candidate{}, err
	}
	if i < 0 || len(entries[i].URLs) == 0 {
		return candidate{}, errors.New("it is not there")
	}
	from, err := resolve(base, entries[i].URLs[0])
	if err != nil {
		return candidate{}, err
	}
	b, err := w.get(from, maxChart)
	if err != nil {
		return candidate{}, err
	}
	is := sha256.Sum256(b)
	if want := strings.TrimPrefix(entries[i].Digest, "sha256:"); want != "" && want != hex.EncodeToString(is[:]) {
		return candidate{}, fmt.Errorf("%s has another digest than the index says", from)
	}
	return c.store(w, entries[i].Version, b)
}

func parseIndex(b []byte) (*index, error) {
	out := &index{}
	if err := yaml.Unmarshal(b, out); err != nil {
		return nil, fmt.Errorf("its index cannot be read: %w", err)
	}
	return out, nil
}

// resolve returns the URL of an archive, which may be relative to the repository, query and all.
func resolve(base, to string) (string, error) {
	b, err := url.Parse(base)
	if err != nil {
		return "", err
	}
	u, err := b.Parse(to)
	if err != nil {
		return "", err
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return "", fmt.Errorf("%s is neither http nor https", to)
	}
	return u.String(), nil
}

// get fetches what a URL has.
func (w wanted) get(from string, most int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), pullTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	switch {
	case w.secret != "" && (response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusForbidden):
		return nil, fmt.Errorf("%s: it asks for what is in Secret %s, which is not read: give a folder that has the chart with --charts", response.Status, w.secret)
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %s", from, response.Status)
	}
	return limited(response.Body, most)
}

// limited reads all, but not without an end.
func limited(r io.Reader, most int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("it is larger than %d MiB", most>>20)
	}
	return b, err
}

// pullImage fetches a chart from a registry, with the credentials that docker and helm have for it.
func (c *Contents) pullImage(w wanted, at string) (candidate, error) {
	ctx, cancel := context.WithTimeout(context.Background(), pullTimeout)
	defer cancel()
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	var insecure []name.Option
	if w.insecure {
		insecure = append(insecure, name.Insecure)
	}
	repository, err := name.NewRepository(strings.TrimSuffix(at, "/"), insecure...)
	if err != nil {
		return candidate{}, err
	}
	tag := w.tag
	if tag == "" && w.digest == "" {
		tags, err := remote.List(repository, options...)
		if err != nil {
			return candidate{}, err
		}
		var all []candidate
		for _, t := range tags {
			all = append(all, candidate{tag: t, version: strings.ReplaceAll(t, "_", "+")}) // a tag has no +
		}
		i, err := w.newest(all)
		if err != nil {
			return candidate{}, err
		}
		if i < 0 {
			return candidate{}, errors.New("it is not there")
		}
		tag = all[i].tag
	}
	var reference name.Reference = repository.Tag(tag)
	if w.digest != "" {
		if reference, err = name.NewDigest(repository.Name()+"@"+w.digest, insecure...); err != nil {
			return candidate{}, err
		}
	}
	image, err := remote.Image(reference, options...)
	if err != nil {
		return candidate{}, err
	}
	m, layer, err := chartOf(image)
	if err != nil {
		return candidate{}, err
	}
	r, err := layer.Compressed() // which checks the digest
	if err != nil {
		return candidate{}, err
	}
	defer r.Close()
	b, err := limited(r, maxChart)
	if err != nil {
		return candidate{}, err
	}
	return c.store(w, m.Version, b)
}

// store writes a chart into the cache, at once: others may read it.
func (c *Contents) store(w wanted, version string, archive []byte) (candidate, error) {
	v, err := semver.NewVersion(version) // and not a path
	if err != nil {
		return candidate{}, fmt.Errorf("version %q: %w", version, err)
	}
	folder := w.cached(cmp.Or(c.Cache, c.temporary))
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return candidate{}, err
	}
	f, err := os.CreateTemp(folder, "pulled-")
	if err != nil {
		return candidate{}, err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(archive)
	file := filepath.Join(folder, w.name+"-"+v.Original()+".tgz")
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	return candidate{path: file, version: version, digest: w.digest}, err
}
