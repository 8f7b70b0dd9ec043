package controllers

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	. "github.com/onsi/gomega"
)

const goodPlugin = `
apiVersion: kurator.dev/v1alpha1
kind: Plugin
metadata: {name: podinfo}
spec:
  components:
  - name: podinfo
    chart: {repository: oci://ghcr.io/stefanprodan/charts, name: podinfo, version: 6.9.2}
    namespace: podinfo
    values:
      ui: {message: '${config.?message.orValue("hello")}'}
`

// file is an entry of an archive.
type file struct {
	name, content string
	kind          byte
}

func archive(files ...file) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: 0o644, Typeflag: tar.TypeReg, Size: int64(len(f.content))}
		if f.kind != 0 {
			h.Typeflag, h.Linkname, h.Size = f.kind, f.content, 0
		}
		if err := w.WriteHeader(h); err != nil {
			panic(err)
		}
		if f.kind == 0 {
			if _, err := w.Write([]byte(f.content)); err != nil {
				panic(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// artifactServer serves artifacts as Flux's source-controller does.
type artifactServer struct {
	*httptest.Server
	mu     sync.Mutex
	files  map[string][]byte
	served int
}

func newArtifactServer(t *testing.T) *artifactServer {
	s := &artifactServer{files: map[string][]byte{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.served++
		b, ok := s.files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(b)
	}))
	t.Cleanup(s.Close)
	return s
}

// publish has the server serve an artifact.
func (s *artifactServer) publish(revision string, b []byte) *meta.Artifact {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := fmt.Sprintf("%x", sha256.Sum256(b))
	path := "/" + sum + ".tar.gz"
	s.files[path] = b
	size := int64(len(b))
	return &meta.Artifact{URL: s.URL + path, Path: path[1:], Digest: "sha256:" + sum, Revision: revision, Size: &size}
}

// count returns how often something was asked for.
func (s *artifactServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.served
}

func TestFetchPlugin(t *testing.T) {
	server := newArtifactServer(t)
	random := make([]byte, maxPluginArchive+1)
	_, _ = rand.Read(random)
	many := make([]file, maxPluginFiles+1)
	for i := range many {
		many[i] = file{name: fmt.Sprintf("f%d", i)}
	}
	good := file{name: "plugin.yaml", content: goodPlugin}
	for _, tt := range []struct {
		name, folder string
		archive      []byte
		change       func(*meta.Artifact)
		problem      string
		again        bool // may be gone the next time
	}{
		{name: "good", archive: archive(file{name: "./", kind: tar.TypeDir}, file{name: "README.md", content: "hello"}, good)},
		{name: "as tar -C writes it", archive: archive(file{name: "./plugin.yaml", content: goodPlugin})},
		{name: "in a folder", folder: "plugins/podinfo", archive: archive(file{name: "plugins/podinfo/plugin.yaml", content: goodPlugin}, file{name: "plugin.yaml", content: "other"})},
		{name: "folder with a slash", folder: "./plugins/", archive: archive(file{name: "plugins/plugin.yaml", content: goodPlugin})},
		{name: "a link elsewhere", archive: archive(good, file{name: "link", content: "/etc/passwd", kind: tar.TypeSymlink})},

		{name: "no archive", archive: []byte("hello"), problem: "not a plugin: it is no tar.gz"},
		{name: "cut off", archive: archive(file{name: "plugin.yaml", content: string(random[:5000])})[:3000], problem: "unexpected EOF"},
		{name: "a container image", archive: archive(file{name: "usr/bin/provisioner", content: "\x7fELF"}, file{name: "etc/passwd", content: "root"}),
			problem: "not a plugin: there is no plugin.yaml: it has etc/passwd, usr/bin/provisioner"},
		{name: "another folder", folder: "other", archive: archive(good), problem: "there is no other/plugin.yaml: it has plugin.yaml"},
		{name: "climbs", archive: archive(file{name: "../../plugin.yaml", content: goodPlugin}), problem: `"../../plugin.yaml" leads out of the archive`},
		{name: "climbs inside", archive: archive(file{name: "a/../../plugin.yaml", content: goodPlugin}), problem: "leads out of the archive"},
		{name: "absolute", archive: archive(good, file{name: "/etc/cron.d/x", content: "x"}), problem: `"/etc/cron.d/x" leads out of the archive`},
		{name: "path that climbs", folder: "../..", archive: archive(good), problem: "there is no ../../plugin.yaml"},
		{name: "a link", archive: archive(file{name: "plugin.yaml", content: "/etc/passwd", kind: tar.TypeSymlink}), problem: "plugin.yaml is a link, and has to be a file"},
		{name: "a folder", archive: archive(file{name: "plugin.yaml/", kind: tar.TypeDir}), problem: "plugin.yaml is a folder"},
		{name: "too many files", archive: archive(many...), problem: "more than 10000 files"},
		{name: "definition too large", archive: archive(file{name: "plugin.yaml", content: strings.Repeat("#", maxPluginDefinition+1)}), problem: "plugin.yaml has more than 1 MiB"},
		{name: "bomb", archive: archive(file{name: "zeros", content: strings.Repeat("0", maxPluginUnpacked)}, good), problem: "unpacks to more than 100 MiB"},
		{name: "too large", archive: random, problem: "not a plugin: it has more than 10 MiB"},
		{name: "too large, and does not say so", archive: random, change: func(a *meta.Artifact) { a.Size = nil }, problem: "not a plugin: it has more than 10 MiB"},
		{name: "another name", archive: archive(file{name: "plugin.yaml", content: strings.Replace(goodPlugin, "name: podinfo}", "name: other}", 1)}),
			problem: `plugin.yaml: metadata.name is "other", and the PluginConfig calls it "podinfo"`},
		{name: "a mistake", archive: archive(file{name: "plugin.yaml", content: strings.Replace(goodPlugin, "config.?message", "confg.?message", 1)}),
			problem: "plugin.yaml: spec.components[0].values.ui.message: confg.?message.orValue(\"hello\"): undeclared reference to 'confg'"},

		{name: "wrong digest", archive: archive(good), change: func(a *meta.Artifact) { a.Digest = "sha256:" + strings.Repeat("0", 64) }, problem: "and should have sha256:000", again: true},
		{name: "unknown digest", archive: archive(good), change: func(a *meta.Artifact) { a.Digest = "md5:0" }, problem: `digest "md5:0"`, again: true},
		{name: "no digest", archive: archive(good), change: func(a *meta.Artifact) { a.Digest = "" }, problem: `digest ""`, again: true},
		{name: "gone", archive: archive(good), change: func(a *meta.Artifact) { a.URL += "x" }, problem: "404 Not Found", again: true},
		{name: "no server", archive: archive(good), change: func(a *meta.Artifact) { a.URL = "http://127.0.0.1:1/x" }, problem: "connection refused", again: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			artifact := server.publish("latest@sha256:1", tt.archive)
			if tt.change != nil {
				tt.change(artifact)
			}
			p, err := fetchPlugin(t.Context(), artifact, tt.folder, "podinfo")
			if tt.problem == "" {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(p.Metadata.Name).To(Equal("podinfo"))
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(tt.problem)))
			if tt.again {
				g.Expect(err).NotTo(MatchError(errNotPlugin))
			} else {
				g.Expect(err).To(MatchError(errNotPlugin))
			}
		})
	}
}
