package publisher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/artifact/config"
	"github.com/fluxcd/pkg/artifact/digest"
	"github.com/fluxcd/pkg/artifact/storage"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

const (
	extension = ".tar.gz"
	// stagingDir is the folder of the storage for what is not yet complete. It is never served.
	stagingDir = ".staging"
	// archiveName has not the extension of what is served.
	archiveName = "archive"

	shutdownTimeout = 5 * time.Second
)

// servedDir is the folder of the storage that is served.
var servedDir = strings.ToLower(sourcev1.ExternalArtifactKind)

// FileServer is a Publisher that keeps artifacts on disk and serves them over HTTP. A file is named by the digest of
// its own bytes: a replica that has made other bytes of the same contents, because of another version of gzip, answers
// that it has not got the file, never with bytes that do not match the digest.
type FileServer struct {
	opts    *config.Options
	storage *storage.Storage

	// mu guards published, and the folders of objects against a change in the middle of another.
	mu        sync.Mutex
	published map[types.NamespacedName]*meta.Artifact // the last one
}

var (
	_ Publisher    = (*FileServer)(nil)
	_ http.Handler = (*FileServer)(nil)
)

// New prepares the storage: it makes the folder if it is not there, and removes what a killed process left half done.
// Its errors name the flag to set. The folder belongs to one process at a time.
func New(opts config.Options) (*FileServer, error) {
	algorithm, err := digest.AlgorithmForName(opts.ArtifactDigestAlgo)
	if err != nil {
		return nil, fmt.Errorf("--artifact-digest-algo: %w", err)
	}
	digest.Canonical = algorithm // the only way to tell the storage
	if opts.StoragePath, err = filepath.Abs(opts.StoragePath); err != nil {
		return nil, fmt.Errorf("--storage-path: %w", err)
	}
	staging := filepath.Join(opts.StoragePath, stagingDir)
	if err := errors.Join(os.RemoveAll(staging), os.MkdirAll(staging, 0o700)); err != nil {
		return nil, fmt.Errorf("creating the storage of artifacts; set --storage-path to a folder that can be written: %w", err)
	}
	s, err := storage.New(&opts)
	if err != nil {
		return nil, fmt.Errorf("--storage-path, --storage-addr or --storage-adv-addr: %w", err)
	}
	return &FileServer{opts: &opts, storage: s, published: map[types.NamespacedName]*meta.Artifact{}}, nil
}

// Publish implements Publisher.
func (f *FileServer) Publish(ctx context.Context, owner types.NamespacedName, revision string, files map[string][]byte) (*meta.Artifact, error) {
	if err := checkOwner(owner); err != nil {
		return nil, err
	}
	if artifact := f.current(owner, revision); artifact != nil {
		return artifact, nil
	}
	if err := check(files); err != nil {
		return nil, err
	}
	dir, err := f.staging()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	archived, err := f.archive(dir, files)
	if err != nil {
		return nil, fmt.Errorf("archiving: %w", err)
	}
	return f.place(ctx, owner, revision, archived)
}

// Remove implements Publisher.
func (f *FileServer) Remove(owner types.NamespacedName) error {
	if err := checkOwner(owner); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.published, owner)
	return os.RemoveAll(filepath.Join(f.opts.StoragePath, storage.ArtifactDir(sourcev1.ExternalArtifactKind, owner.Namespace, owner.Name)))
}

// checkOwner refuses names that would be a path to somewhere else.
func checkOwner(owner types.NamespacedName) error {
	for _, name := range []string{owner.Namespace, owner.Name} {
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			return fmt.Errorf("owner %q: %s", owner, problems[0])
		}
	}
	return nil
}

// current returns the artifact of an owner if it has the revision, and its file is still there.
func (f *FileServer) current(owner types.NamespacedName, revision string) *meta.Artifact {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.currentLocked(owner, revision)
}

func (f *FileServer) currentLocked(owner types.NamespacedName, revision string) *meta.Artifact {
	artifact := f.published[owner]
	if artifact == nil || artifact.Revision != revision || !f.storage.ArtifactExist(*artifact) {
		return nil
	}
	return artifact.DeepCopy()
}

// staging makes a folder for one archive. It is in the storage, so that the archive can be moved to its place at once.
func (f *FileServer) staging() (string, error) {
	parent := filepath.Join(f.opts.StoragePath, stagingDir)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", err
	}
	return os.MkdirTemp(parent, "")
}

// archive writes the files to a tarball in the folder. Its bytes depend on the files alone.
func (f *FileServer) archive(dir string, files map[string][]byte) (*meta.Artifact, error) {
	content := filepath.Join(dir, "content")
	if err := os.Mkdir(content, 0o700); err != nil {
		return nil, err
	}
	for name, data := range files {
		file := filepath.Join(content, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			return nil, err
		}
	}
	artifact := &meta.Artifact{Path: path.Join(stagingDir, filepath.Base(dir), archiveName)}
	return artifact, f.storage.Archive(artifact, content, nil)
}

// place moves an archive to where it is served, and remembers it.
func (f *FileServer) place(ctx context.Context, owner types.NamespacedName, revision string, archived *meta.Artifact) (*meta.Artifact, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if artifact := f.currentLocked(owner, revision); artifact != nil {
		return artifact, nil // another one was faster
	}
	_, encoded, _ := strings.Cut(archived.Digest, ":")
	name := &metav1.ObjectMeta{Namespace: owner.Namespace, Name: owner.Name}
	artifact := f.storage.NewArtifactFor(sourcev1.ExternalArtifactKind, name, revision, encoded+extension)
	artifact.Digest, artifact.Size, artifact.LastUpdateTime = archived.Digest, archived.Size, archived.LastUpdateTime
	if err := f.storage.MkdirAll(artifact); err != nil {
		return nil, err
	}
	// The one that is replaced counts as old from now on: until the leader has published the new one, Flux asks for it.
	if last := f.published[owner]; last != nil {
		now := time.Now()
		_ = os.Chtimes(f.storage.LocalPath(*last), now, now) // it may be gone, with the disk
	}
	if err := os.Rename(f.storage.LocalPath(*archived), f.storage.LocalPath(artifact)); err != nil {
		return nil, err
	}
	f.published[owner] = &artifact
	if err := f.collect(artifact); err != nil { // what stays does no harm
		ctrl.LoggerFrom(ctx).Error(err, "cannot remove old artifacts", "owner", owner)
	}
	return artifact.DeepCopy(), nil
}

// collect removes the old artifacts of the owner of the present one, which is spared however old it is.
// Storage.GarbageCollect would do the same in the background, where it may go on when something else is present.
func (f *FileServer) collect(present meta.Artifact) error {
	garbage, err := f.storage.GetGarbageFiles(present, storage.GarbageCountLimit, f.opts.ArtifactRetentionRecords, f.opts.ArtifactRetentionTTL)
	for _, file := range garbage {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}

// Server returns the server of the artifacts, for the manager to run on every replica, and takes its port.
func (f *FileServer) Server() (*manager.Server, error) {
	listener, err := net.Listen("tcp", f.opts.StorageAddress)
	if err != nil {
		return nil, fmt.Errorf("--storage-addr: %w", err)
	}
	return &manager.Server{
		Name: "artifacts",
		Server: &http.Server{
			Handler:           f,
			ReadHeaderTimeout: 10 * time.Second,
			ReadTimeout:       10 * time.Second,
			WriteTimeout:      time.Minute,
			IdleTimeout:       2 * time.Minute,
			MaxHeaderBytes:    16 << 10,
		},
		Listener:        listener,
		ShutdownTimeout: new(shutdownTimeout),
	}, nil
}

// ServeHTTP serves published artifacts, and nothing else: no folder, no link, nothing that is not complete.
func (f *FileServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	file := f.open(strings.TrimPrefix(r.URL.Path, "/"))
	if file == nil {
		http.NotFound(w, r)
		return
	}
	defer file.Close()
	w.Header().Set("Content-Type", "application/gzip")
	http.ServeContent(w, r, "", time.Time{}, file) // when the file was made is not the same on another replica
}

// open returns a published file, or nil.
func (f *FileServer) open(name string) *os.File {
	if !fs.ValidPath(name) || !strings.HasPrefix(name, servedDir+"/") || !strings.HasSuffix(name, extension) {
		return nil
	}
	root, err := os.OpenRoot(f.opts.StoragePath) // no link leads out of it
	if err != nil {
		return nil
	}
	defer root.Close()
	if info, err := root.Lstat(name); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	file, err := root.Open(name)
	if err != nil {
		return nil
	}
	return file
}
