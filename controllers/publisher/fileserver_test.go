package publisher

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/artifact/config"
	"k8s.io/apimachinery/pkg/types"
)

var owner = types.NamespacedName{Namespace: "fleets", Name: "base"}

func options(dir string) config.Options {
	return config.Options{StoragePath: dir, StorageAddress: "127.0.0.1:0", StorageAdvAddress: "fleet-controller.flux-system.svc.cluster.local.",
		ArtifactRetentionTTL: time.Minute, ArtifactRetentionRecords: 2, ArtifactDigestAlgo: "sha256"}
}

func fileServer(t *testing.T, dir string) *FileServer {
	t.Helper()
	f, err := New(options(dir))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return f
}

// publisherOf returns a function that publishes one file with a text for owner, and whose revision the text is.
func publisherOf(t *testing.T, f *FileServer) func(text string) *meta.Artifact {
	return func(text string) *meta.Artifact {
		t.Helper()
		artifact, err := f.Publish(t.Context(), owner, text, map[string][]byte{"a.yaml": []byte("a: " + text + "\n")})
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		return artifact
	}
}

func get(f *FileServer, url string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	f.ServeHTTP(w, httptest.NewRequest(http.MethodGet, url, nil))
	return w
}

func TestPublish(t *testing.T) {
	g := NewWithT(t)
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	f := fileServer(t, dir)
	artifact, err := f.Publish(t.Context(), owner, "sha256:abc", map[string][]byte{
		"kustomization.yaml": []byte("resources: [m1/ns.yaml]\n"), "m1/ns.yaml": []byte("kind: Namespace\n"), "m1/empty.yaml": nil,
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(artifact.Digest).To(MatchRegexp("^sha256:[0-9a-f]{64}$"))
	g.Expect(artifact.Path).To(Equal("externalartifact/fleets/base/" + strings.TrimPrefix(artifact.Digest, "sha256:") + ".tar.gz"))
	g.Expect(artifact.URL).To(Equal("http://fleet-controller.flux-system.svc.cluster.local./" + artifact.Path))
	g.Expect(artifact.Revision).To(Equal("sha256:abc"))
	g.Expect(artifact.LastUpdateTime.Time).To(BeTemporally("~", time.Now(), time.Minute))
	g.Expect(f.storage.VerifyArtifact(*artifact)).To(Succeed())

	w := get(f, artifact.URL)
	g.Expect(w.Code).To(Equal(http.StatusOK))
	g.Expect(w.Header().Get("Content-Type")).To(Equal("application/gzip"))
	g.Expect(int64(w.Body.Len())).To(Equal(*artifact.Size))
	unzipped, err := gzip.NewReader(w.Body)
	g.Expect(err).NotTo(HaveOccurred())
	var entries []string
	for tarball := tar.NewReader(unzipped); ; {
		h, err := tarball.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		g.Expect(err).NotTo(HaveOccurred())
		content, err := io.ReadAll(tarball)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(h.ModTime.Unix()).To(BeZero())
		entries = append(entries, fmt.Sprintf("%s %o %s", h.Name, h.Mode, content))
	}
	g.Expect(entries).To(Equal([]string{". 750 ", "kustomization.yaml 600 resources: [m1/ns.yaml]\n", "m1 750 ", "m1/empty.yaml 600 ", "m1/ns.yaml 600 kind: Namespace\n"}))
	g.Expect(os.ReadDir(filepath.Join(dir, stagingDir))).To(BeEmpty())
}

// Every replica has the same, whenever and however it made it.
func TestPublishIsDeterministic(t *testing.T) {
	g := NewWithT(t)
	var names []string
	for i := range 50 {
		names = append(names, fmt.Sprintf("m%d/%d.yaml", i%7, i), fmt.Sprintf("m%d.yaml", i))
	}
	var digests []string
	for _, umask := range []int{0o022, 0o077, 0} {
		files := map[string][]byte{}
		for _, name := range names {
			files[name] = []byte("name: " + name + "\n")
		}
		was := syscall.Umask(umask)
		f := fileServer(t, t.TempDir())
		artifact, err := f.Publish(t.Context(), owner, "r", files)
		syscall.Umask(was)
		g.Expect(err).NotTo(HaveOccurred())
		digests = append(digests, artifact.Digest)
		slices.Reverse(names)
	}
	g.Expect(slices.Compact(digests)).To(HaveLen(1))
}

func TestPublishAgain(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	f := fileServer(t, dir)
	publish := publisherOf(t, f)
	first := publish("one")
	file := f.storage.LocalPath(*first)
	before, err := os.Stat(file)
	g.Expect(err).NotTo(HaveOccurred())

	again := publish("one")
	g.Expect(again).To(Equal(first))
	after, err := os.Stat(file)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.SameFile(before, after)).To(BeTrue())
	g.Expect(after.ModTime()).To(Equal(before.ModTime()))

	again.Revision = "what a caller does to it is not remembered"
	g.Expect(publish("one")).To(Equal(first))

	t.Log("a disk that was emptied")
	g.Expect(os.RemoveAll(dir)).To(Succeed())
	g.Expect(get(f, first.URL).Code).To(Equal(http.StatusNotFound))
	g.Expect(publish("one").Digest).To(Equal(first.Digest))
	g.Expect(get(f, first.URL).Code).To(Equal(http.StatusOK))

	t.Log("a new process")
	f = fileServer(t, dir)
	g.Expect(get(f, first.URL).Code).To(Equal(http.StatusOK))
	g.Expect(publisherOf(t, f)("one").URL).To(Equal(first.URL))

	t.Log("what is refused leaves what is published")
	_, err = f.Publish(t.Context(), owner, "two", map[string][]byte{"s.yaml": []byte("kind: Secret")})
	g.Expect(err).To(MatchError(ContainSubstring("s.yaml")))
	_, err = f.Publish(t.Context(), owner, "two", map[string][]byte{"a": nil, "a/b": nil})
	g.Expect(err).To(MatchError(ContainSubstring("archiving")))
	g.Expect(get(f, first.URL).Code).To(Equal(http.StatusOK))
	g.Expect(os.ReadDir(filepath.Join(dir, stagingDir))).To(BeEmpty())
}

func TestOldArtifacts(t *testing.T) {
	g := NewWithT(t)
	f := fileServer(t, t.TempDir())
	publish := publisherOf(t, f)
	served := func(a *meta.Artifact) bool { return get(f, a.URL).Code == http.StatusOK }
	age := func(a *meta.Artifact) {
		hourAgo := time.Now().Add(-time.Hour)
		g.Expect(os.Chtimes(f.storage.LocalPath(*a), hourAgo, hourAgo)).To(Succeed())
	}

	a := publish("a")
	age(a)
	b := publish("b")
	g.Expect(served(a)).To(BeTrue(), "it was published long ago, but replaced just now")
	g.Expect(served(b)).To(BeTrue())
	c := publish("c")
	g.Expect(served(a)).To(BeFalse(), "two are kept")
	g.Expect(served(b)).To(BeTrue())
	g.Expect(served(c)).To(BeTrue())

	t.Log("back to an earlier one, that is still there or no more")
	b2 := publish("b")
	g.Expect(b2.URL).To(Equal(b.URL))
	g.Expect(served(b2)).To(BeTrue())
	a2 := publish("a")
	g.Expect(a2.Digest).To(Equal(a.Digest))
	g.Expect(served(a2)).To(BeTrue())
	g.Expect(served(b)).To(BeTrue())

	t.Log("what was replaced long ago ends with the next publication")
	age(b)
	publish("d")
	g.Expect(served(b)).To(BeFalse())
	g.Expect(served(a)).To(BeTrue())

	t.Log("none is kept but the present one")
	f.opts.ArtifactRetentionRecords, f.opts.ArtifactRetentionTTL = 0, -time.Hour
	e := publish("e")
	g.Expect(served(e)).To(BeTrue())
	g.Expect(os.ReadDir(filepath.Dir(f.storage.LocalPath(*e)))).To(HaveLen(1))
}

func TestRemove(t *testing.T) {
	g := NewWithT(t)
	f := fileServer(t, t.TempDir())
	publish := publisherOf(t, f)
	artifact := publish("one")
	beside := types.NamespacedName{Namespace: owner.Namespace, Name: "base-2"}
	other, err := f.Publish(t.Context(), beside, "one", map[string][]byte{"a.yaml": nil})
	g.Expect(err).NotTo(HaveOccurred())

	g.Expect(f.Remove(owner)).To(Succeed())
	g.Expect(f.Remove(owner)).To(Succeed(), "there is nothing more")
	g.Expect(get(f, artifact.URL).Code).To(Equal(http.StatusNotFound))
	g.Expect(get(f, other.URL).Code).To(Equal(http.StatusOK))
	publish("one")
	g.Expect(get(f, artifact.URL).Code).To(Equal(http.StatusOK))

	for _, o := range []types.NamespacedName{{}, {Namespace: "fleets"}, {Namespace: "fleets", Name: ".."}, {Namespace: "a/b", Name: "c"}} {
		g.Expect(f.Remove(o)).NotTo(Succeed())
		_, err := f.Publish(t.Context(), o, "one", map[string][]byte{"a.yaml": nil})
		g.Expect(err).To(HaveOccurred())
	}
}

func TestPublishConcurrently(t *testing.T) {
	g := NewWithT(t)
	f := fileServer(t, t.TempDir())
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			o := types.NamespacedName{Namespace: "fleets", Name: fmt.Sprint("base-", i%4)}
			revision := fmt.Sprint(i / 4 % 2)
			artifact, err := f.Publish(t.Context(), o, revision, map[string][]byte{"a.yaml": []byte(revision)})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(artifact.Revision).To(Equal(revision))
			g.Expect(f.storage.VerifyArtifact(*artifact)).To(Succeed())
		})
	}
	wg.Wait()
}

func TestServeHTTP(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	f := fileServer(t, dir)
	path := "/" + publisherOf(t, f)("one").Path
	outside := filepath.Join(t.TempDir(), "outside.tar.gz")
	g.Expect(os.WriteFile(outside, nil, 0o600)).To(Succeed())
	served := filepath.Join(dir, servedDir)
	for _, file := range []string{"top.tar.gz", stagingDir + "/1.tar.gz", servedDir + "/fleets/base/notes.txt", servedDir + "/fleets/base/half.tar.gz123"} {
		g.Expect(os.WriteFile(filepath.Join(dir, file), nil, 0o600)).To(Succeed())
	}
	g.Expect(os.Mkdir(filepath.Join(served, "folder.tar.gz"), 0o700)).To(Succeed())
	g.Expect(os.Symlink(outside, filepath.Join(served, "link.tar.gz"))).To(Succeed())
	g.Expect(os.Symlink(filepath.Join(dir, path), filepath.Join(served, "inner.tar.gz"))).To(Succeed())
	g.Expect(os.Symlink(filepath.Dir(outside), filepath.Join(served, "link"))).To(Succeed())
	g.Expect(syscall.Mkfifo(filepath.Join(served, "pipe.tar.gz"), 0o600)).To(Succeed())

	for _, tt := range []struct {
		method, path string
		code         int
	}{
		{http.MethodGet, path, http.StatusOK},
		{http.MethodHead, path, http.StatusOK},
		{http.MethodPost, path, http.StatusMethodNotAllowed},
		{http.MethodPut, "/externalartifact/fleets/base/new.tar.gz", http.StatusMethodNotAllowed},
		{http.MethodDelete, path, http.StatusMethodNotAllowed},
		{http.MethodGet, "/", http.StatusNotFound},
		{http.MethodGet, "/externalartifact", http.StatusNotFound},
		{http.MethodGet, "/externalartifact/fleets/base/", http.StatusNotFound},
		{http.MethodGet, "/externalartifact/fleets/base/index.html", http.StatusNotFound},
		{http.MethodGet, "/externalartifact/fleets/base/none.tar.gz", http.StatusNotFound},
		{http.MethodGet, "/externalartifact/fleets/base/notes.txt", http.StatusNotFound},
		{http.MethodGet, "/externalartifact/fleets/base/half.tar.gz123", http.StatusNotFound},
		{http.MethodGet, "/externalartifact/folder.tar.gz", http.StatusNotFound},
		{http.MethodGet, "/externalartifact/link.tar.gz", http.StatusNotFound},
		{http.MethodGet, "/externalartifact/inner.tar.gz", http.StatusNotFound},
		{http.MethodGet, "/externalartifact/link/outside.tar.gz", http.StatusNotFound},
		{http.MethodGet, "/externalartifact/pipe.tar.gz", http.StatusNotFound},
		{http.MethodGet, "/top.tar.gz", http.StatusNotFound},
		{http.MethodGet, "/.staging/1.tar.gz", http.StatusNotFound},
		{http.MethodGet, "/externalartifact/../top.tar.gz", http.StatusNotFound},
		{http.MethodGet, "/externalartifact/%2e%2e/top.tar.gz", http.StatusNotFound},
		{http.MethodGet, "/externalartifact/..%2ftop.tar.gz", http.StatusNotFound},
		{http.MethodGet, "/" + path, http.StatusNotFound},
		{http.MethodGet, path + "%00.tar.gz", http.StatusNotFound},
	} {
		t.Run(tt.method+" "+tt.path, func(t *testing.T) {
			g := NewWithT(t)
			w := httptest.NewRecorder()
			f.ServeHTTP(w, httptest.NewRequest(tt.method, "http://host"+tt.path, nil))
			g.Expect(w.Code).To(Equal(tt.code))
			switch {
			case tt.code == http.StatusMethodNotAllowed:
				g.Expect(w.Header().Get("Allow")).To(Equal("GET, HEAD"))
			case tt.method == http.MethodHead:
				g.Expect(w.Body.Len()).To(BeZero())
			}
		})
	}
}

func TestServer(t *testing.T) {
	g := NewWithT(t)
	f := fileServer(t, t.TempDir())
	artifact := publisherOf(t, f)("one")
	server, err := f.Server()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(server.NeedLeaderElection()).To(BeFalse(), "every replica serves")

	taken := options(t.TempDir())
	taken.StorageAddress = server.Listener.Addr().String()
	second, err := New(taken)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = second.Server()
	g.Expect(err).To(MatchError(ContainSubstring("--storage-addr")))

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- server.Start(ctx) }()
	response, err := http.Get("http://" + server.Listener.Addr().String() + "/" + artifact.Path)
	g.Expect(err).NotTo(HaveOccurred())
	body, err := io.ReadAll(response.Body)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(response.Body.Close()).To(Succeed())
	g.Expect(response.StatusCode).To(Equal(http.StatusOK))
	g.Expect(int64(len(body))).To(Equal(*artifact.Size))
	stop()
	g.Expect(<-ended).To(Succeed())
}

func TestNew(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	f := fileServer(t, dir)
	artifact := publisherOf(t, f)("one")
	left := filepath.Join(dir, stagingDir, "123", "content")
	g.Expect(os.MkdirAll(left, 0o700)).To(Succeed())
	f = fileServer(t, dir)
	g.Expect(os.ReadDir(filepath.Join(dir, stagingDir))).To(BeEmpty(), "what a killed process left")
	g.Expect(get(f, artifact.URL).Code).To(Equal(http.StatusOK))

	t.Chdir(dir)
	relative := options("relative")
	f, err := New(relative)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(publisherOf(t, f)("one").Digest).To(Equal(artifact.Digest))

	file := filepath.Join(dir, "file")
	g.Expect(os.WriteFile(file, nil, 0o600)).To(Succeed())
	for flag, change := range map[string]func(*config.Options){
		"--storage-path":         func(o *config.Options) { o.StoragePath = filepath.Join(file, "below") },
		"set --storage-path":     func(o *config.Options) { o.StoragePath = file },
		"--storage-addr":         func(o *config.Options) { o.StorageAdvAddress, o.StorageAddress = "", "nonsense" },
		"--artifact-digest-algo": func(o *config.Options) { o.ArtifactDigestAlgo = "crc" },
	} {
		o := options(dir)
		change(&o)
		_, err := New(o)
		g.Expect(err).To(MatchError(ContainSubstring(flag)))
	}
}
