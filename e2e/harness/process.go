package harness

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Process is one program that the harness runs. It is killed, never asked to stop: all state is thrown away, and what
// holds for Fleetwright has to hold after a kill.
type Process struct {
	Name    string
	LogFile string
	// MetricsURL is where a controller serves its metrics.
	MetricsURL string

	cmd  *exec.Cmd
	done chan struct{}
}

// startProcess starts a program with its output in logs/<name>.log and waits until healthURL, if there is
// one, answers 200.
func startProcess(ctx context.Context, dir, name, path string, args, env []string, healthURL string) (*Process, error) {
	p := &Process{Name: name, LogFile: filepath.Join(dir, "logs", name+".log"), done: make(chan struct{})}
	// One log for all runs of the same program.
	log, err := os.OpenFile(p.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()

	p.cmd = exec.Command(path, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// What a program writes beside its data goes with the rest of dir, and it sees no kubeconfig but the one it is given.
	home := filepath.Join(dir, "home", name)
	if err := os.MkdirAll(home, 0o700); err != nil {
		return nil, err
	}
	p.cmd.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home, "KUBECONFIG=")
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.SysProcAttr = procAttr()
	if err := startFromLastingThread(p.cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	if healthURL == "" {
		return p, nil
	}
	if err := p.waitHealthy(ctx, healthURL); err != nil {
		p.Kill()
		return nil, fmt.Errorf("%s did not become healthy: %w\n%s", name, err, p.Tail(20))
	}
	return p, nil
}

// startFromLastingThread starts commands from one thread that never ends: procAttr ties a process to the thread that
// started it, and Go ends threads of its own accord.
func startFromLastingThread(cmd *exec.Cmd) error {
	result := make(chan error)
	starts <- func() { result <- cmd.Start() }
	return <-result
}

var starts = func() chan func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range c {
			f()
		}
	}()
	return c
}()

var healthClient = http.Client{
	Timeout: 5 * time.Second,
	// A control plane makes its own certificate when it starts.
	Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
}

func (p *Process) waitHealthy(ctx context.Context, url string) error {
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		if !p.Running() {
			return false, fmt.Errorf("it ended: %s", p.cmd.ProcessState)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false, err
		}
		resp, err := healthClient.Do(req)
		if err != nil {
			return false, nil //nolint:nilerr // Not up yet.
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK, nil
	})
}

// Running says whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Kill ends the process at once, with whatever it started, and waits for it.
func (p *Process) Kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}

// Pause stops the process without ending it: its sockets accept and never answer, as a hung machine's do.
func (p *Process) Pause() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (p *Process) Resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// Tail returns the last lines of the log.
func (p *Process) Tail(lines int) string {
	log, err := os.ReadFile(p.LogFile)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(log)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// freeAddr returns an address on loopback that nothing listens on. Its port is below those that the system gives to
// outgoing connections, so that none of these takes it before the program that it is meant for.
func freeAddr() (string, error) {
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000))
		if l, err := net.Listen("tcp", addr); err == nil {
			return addr, l.Close()
		}
	}
	return "", fmt.Errorf("no free port found on loopback")
}

// freeAddrs returns n different ones.
func freeAddrs(n int) ([]string, error) {
	seen := map[string]bool{}
	var addrs []string
	for len(addrs) < n {
		addr, err := freeAddr()
		if err != nil {
			return nil, err
		}
		if !seen[addr] {
			seen[addr] = true
			addrs = append(addrs, addr)
		}
	}
	return addrs, nil
}

// program returns the path of a program in bin/, where make puts or links all that is needed.
func program(name string) (string, error) {
	path := filepath.Join(Root(), "bin", name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("bin/%s is missing: run make parts build bin/helm-standin", name)
	}
	return path, nil
}

// Root returns the folder of the product's module.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}
