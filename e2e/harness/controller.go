package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

const controllerName = "fleet-controller"

// StartController starts Fleetwright's controller, again too, after KillController. Later args win over earlier ones.
func (e *Env) StartController(ctx context.Context, args ...string) (err error) {
	kubeconfig, err := e.controllerKubeconfig(ctx)
	if err != nil {
		return err
	}
	if e.artifactsAddr == "" { // after a restart it is the same, as that of a Service is
		if e.artifactsAddr, err = freeAddr(); err != nil {
			return err
		}
	}
	args = append([]string{"--enable-leader-election=false", "--log-level=debug", "--storage-path=" + filepath.Join(e.Dir, "rendered"),
		"--storage-addr=" + e.artifactsAddr, "--storage-adv-addr=" + e.artifactsAddr}, args...)
	e.Controller, err = e.startController(ctx, controllerName, "", kubeconfig, nil, args...)
	return err
}

// KillController kills Fleetwright's controller in the middle of whatever it does.
func (e *Env) KillController() { e.Controller.Kill() }

// Replica is one of several processes of Fleetwright's controller, with a disk and an address of its own.
type Replica struct {
	*Process
	// Storage is the folder of what it has rendered, and Addr where it serves that.
	Storage, Addr string
}

// StartReplica starts a replica of Fleetwright's controller, again too, after a kill. Replicas elect a leader. They tell
// Flux to fetch what they render from one address, as that of their Service.
func (e *Env) StartReplica(ctx context.Context, name, service string, args ...string) (*Replica, error) {
	kubeconfig, err := e.controllerKubeconfig(ctx)
	if err != nil {
		return nil, err
	}
	r := &Replica{Storage: filepath.Join(e.Dir, "rendered-"+name)}
	if r.Addr, err = freeAddr(); err != nil {
		return nil, err
	}
	args = append([]string{"--enable-leader-election", "--log-level=debug", "--storage-path=" + r.Storage,
		"--storage-addr=" + r.Addr, "--storage-adv-addr=" + service}, args...)
	if r.Process, err = e.startController(ctx, controllerName+"-"+name, filepath.Join(Root(), "bin", controllerName), kubeconfig, nil, args...); err != nil {
		return nil, err
	}
	e.replicas = append(e.replicas, r.Process)
	return r, nil
}

// controllerKubeconfig writes a kubeconfig with which the controller may do on the hub what config/rbac lets it do,
// and no more.
func (e *Env) controllerKubeconfig(ctx context.Context) (string, error) {
	path := filepath.Join(e.Dir, controllerName+".kubeconfig")
	if _, err := os.Stat(path); err == nil { // of an earlier start: tests count the requests of a restart
		return path, nil
	}
	manifest, err := os.ReadFile(filepath.Join(Root(), "config/rbac/role.yaml"))
	if err != nil {
		return "", fmt.Errorf("%w: run make generate", err)
	}
	role := &rbacv1.ClusterRole{}
	if err := yaml.Unmarshal(manifest, role); err != nil {
		return "", err
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: controllerName},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: controllerName}},
	}
	objects := []client.Object{role, binding}
	if manifest, err = os.ReadFile(filepath.Join(Root(), "config/rbac/leader_election.yaml")); err != nil {
		return "", err
	}
	election, elects, _ := bytes.Cut(manifest, []byte("\n---\n"))
	lease, leases := &rbacv1.Role{}, &rbacv1.RoleBinding{}
	if err := errors.Join(yaml.Unmarshal(election, lease), yaml.Unmarshal(elects, leases)); err != nil {
		return "", err
	}
	leases.Subjects = binding.Subjects
	for _, obj := range []client.Object{lease, leases} {
		obj.SetNamespace(FluxNamespace)
		objects = append(objects, obj)
	}
	if err := e.Hub.CreateNamespace(ctx, FluxNamespace); err != nil {
		return "", err
	}
	for _, obj := range objects {
		if err := client.IgnoreAlreadyExists(e.Hub.Client.Create(ctx, obj)); err != nil {
			return "", err
		}
	}
	config, err := clientcmd.Load(e.Hub.Kubeconfig)
	if err != nil {
		return "", err
	}
	config.AuthInfos["admin"].Impersonate = controllerName
	return path, clientcmd.WriteToFile(*config, path)
}
