// Package harness starts what Fleetwright works with, as plain processes on loopback: a hub and members (API servers
// with etcd and a controller manager, no nodes), Flux's controllers, a Git server, and Fleetwright's controller.
package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	kuratorv1 "github.com/fleetwright/fleetwright/api/kurator/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
)

// Scheme knows all kinds that tests and the demo deal with.
var Scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme,
		sourcev1.AddToScheme, kustomizev1.AddToScheme, helmv2.AddToScheme,
		fleetv1.AddToScheme, appsv1.AddToScheme, clusterv1.AddToScheme, kuratorv1.AddToScheme, policyv1.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}()

// Options say what to start.
type Options struct {
	// Members is the number of member clusters, member1 and on.
	Members int
	// WithoutFlux leaves Flux's controllers out, for what concerns Fleetwright alone.
	WithoutFlux bool
}

// Env is what was started.
type Env struct {
	Hub     *Cluster
	Members []*Cluster
	Git     *Git

	// Flux's controllers; Helm is helm-controller or its stand-in.
	SourceController    *Process
	KustomizeController *Process
	Helm                *Process

	// Controller is Fleetwright's, after StartController.
	Controller *Process

	// Dir holds all data; its folder logs has one log a process.
	Dir string

	etcd     *Process
	etcdURL  string
	replicas []*Process
	added    []*Cluster
	mu       sync.Mutex
	charts   func() (*Charts, error)
	web      *web
	// artifactsAddr is where Fleetwright's controller serves what it rendered.
	artifactsAddr string
}

// Start starts all but Fleetwright's controller. The caller closes the Env; on an error nothing is left running.
func Start(ctx context.Context, opts Options) (env *Env, err error) {
	env = &Env{Members: make([]*Cluster, opts.Members)}
	defer func() {
		if err != nil {
			err = errors.Join(err, env.Close())
		}
	}()
	if env.Dir, err = os.MkdirTemp("", "fleetwright-e2e-"); err != nil {
		return env, err
	}
	if err := os.Mkdir(filepath.Join(env.Dir, "logs"), 0o700); err != nil {
		return env, err
	}
	if env.Git, err = startGit(filepath.Join(env.Dir, "git")); err != nil {
		return env, err
	}
	if env.web, err = startWeb(env.Dir); err != nil {
		return env, err
	}
	etcd, err := env.startEtcd(ctx)
	if err != nil {
		return env, err
	}
	env.etcdURL = etcd
	env.charts = sync.OnceValues(env.startCharts)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return env.startHub(ctx, etcd, opts) })
	for i := range opts.Members {
		group.Go(func() (err error) {
			if env.Members[i], err = newCluster(ctx, env.Dir, etcd, fmt.Sprintf("member%d", i+1)); err != nil {
				return err
			}
			return env.Members[i].startControllerManager(ctx)
		})
	}
	return env, group.Wait()
}

// AddMember starts one more control plane, for a test that does things to all of a cluster. It ends with the Env.
func (e *Env) AddMember(ctx context.Context, name string) (*Cluster, error) {
	c, err := newCluster(ctx, e.Dir, e.etcdURL, name)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.added = append(e.added, c)
	e.mu.Unlock()
	return c, c.startControllerManager(ctx)
}

func (e *Env) startEtcd(ctx context.Context) (string, error) {
	path, err := program("etcd")
	if err != nil {
		return "", err
	}
	addrs, err := freeAddrs(2)
	if err != nil {
		return "", err
	}
	url, peers := "http://"+addrs[0], "http://"+addrs[1]
	e.etcd, err = startProcess(ctx, e.Dir, "etcd", path, []string{
		"--data-dir=" + filepath.Join(e.Dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=" + url, "--advertise-client-urls=" + url,
		"--listen-peer-urls=" + peers, "--initial-advertise-peer-urls=" + peers, "--initial-cluster=default=" + peers,
	}, nil, url+"/health")
	return url, err
}

func (e *Env) startHub(ctx context.Context, etcd string, opts Options) (err error) {
	if e.Hub, err = newCluster(ctx, e.Dir, etcd, "hub"); err != nil {
		return err
	}
	if _, err := envtest.InstallCRDs(e.Hub.RESTConfig, envtest.CRDInstallOptions{
		Paths:              []string{filepath.Join(Root(), "bin/crds"), filepath.Join(Root(), "config/crd/bases")},
		ErrorIfPathMissing: true,
		Scheme:             runtime.NewScheme(),
		MaxTime:            time.Minute,
	}); err != nil {
		return err
	}
	if err := e.Hub.startControllerManager(ctx); err != nil || opts.WithoutFlux {
		return err
	}
	return e.startFlux(ctx)
}

// Close kills all processes and removes all data.
func (e *Env) Close() error {
	processes := append(slices.Clone(e.replicas), e.Controller, e.Helm, e.KustomizeController, e.SourceController)
	for _, c := range append(append(e.Members, e.Hub), e.added...) {
		if c != nil {
			processes = append(append(processes, c.nodes...), c.ControllerManager, c.APIServer)
		}
	}
	for _, p := range append(processes, e.etcd) {
		if p != nil {
			p.Kill()
		}
	}
	if e.Git != nil {
		e.Git.server.Close()
	}
	if e.web != nil {
		e.web.Close()
	}
	return os.RemoveAll(e.Dir)
}

// KeepLogs moves the logs to where they outlive Close, and says where.
func (e *Env) KeepLogs() {
	kept, err := os.MkdirTemp("", "fleetwright-e2e-logs-")
	if err == nil {
		kept = filepath.Join(kept, "logs")
		err = os.Rename(filepath.Join(e.Dir, "logs"), kept)
	}
	if err != nil {
		fmt.Println("logs are lost:", err)
		return
	}
	if e.Controller != nil {
		e.Controller.LogFile = filepath.Join(kept, filepath.Base(e.Controller.LogFile))
		fmt.Printf("--- the end of %s\n%s\n", e.Controller.LogFile, e.Controller.Tail(40))
	}
	fmt.Println("--- logs of all processes:", kept)
}

// Main is a TestMain: it starts an Env, hands it to use, runs the tests, and ends all.
func Main(m *testing.M, opts Options, use func(*Env)) {
	os.Exit(func() int {
		started := time.Now()
		env, err := Start(context.Background(), opts)
		if err != nil {
			fmt.Println("harness:", err)
			return 1
		}
		fmt.Printf("harness: hub and %d members are up after %s\n", opts.Members, time.Since(started).Round(time.Second/10))
		defer func() {
			if err := env.Close(); err != nil {
				fmt.Println("harness:", err)
			}
		}()
		use(env)
		code := m.Run()
		if code != 0 {
			env.KeepLogs()
		}
		return code
	}())
}
