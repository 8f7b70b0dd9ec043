package harness

import (
	"context"
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
	e.Controller, err = e.startController(ctx, controllerName, "", kubeconfig, args...)
	return err
}

// KillController kills Fleetwright's controller in the middle of whatever it does.
func (e *Env) KillController() { e.Controller.Kill() }

// controllerKubeconfig writes a kubeconfig with which the controller may do on the hub what config/rbac lets it do,
// and no more.
func (e *Env) controllerKubeconfig(ctx context.Context) (string, error) {
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
	for _, obj := range []client.Object{role, binding} {
		if err := client.IgnoreAlreadyExists(e.Hub.Client.Create(ctx, obj)); err != nil {
			return "", err
		}
	}
	config, err := clientcmd.Load(e.Hub.Kubeconfig)
	if err != nil {
		return "", err
	}
	config.AuthInfos["admin"].Impersonate = controllerName
	path := filepath.Join(e.Dir, controllerName+".kubeconfig")
	return path, clientcmd.WriteToFile(*config, path)
}
