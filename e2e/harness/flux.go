package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
)

// FluxNamespace is the namespace that Flux's controllers believe to run in.
const FluxNamespace = "flux-system"

// startFlux starts source-, kustomize- and helm-controller against the hub.
func (e *Env) startFlux(ctx context.Context) (err error) {
	if err := e.Hub.CreateNamespace(ctx, FluxNamespace); err != nil {
		return err
	}
	storage := filepath.Join(e.Dir, "artifacts")
	if err := os.MkdirAll(storage, 0o700); err != nil {
		return err
	}
	addr, err := freeAddr()
	if err != nil {
		return err
	}
	trust := []string{"SSL_CERT_FILE=" + e.web.caFile}
	if e.SourceController, err = e.startController(ctx, "source-controller", "", e.Hub.KubeconfigFile, trust,
		"--storage-path="+storage, "--storage-addr="+addr, "--storage-adv-addr="+addr); err != nil {
		return err
	}
	// Rendered manifests arrive as ExternalArtifacts, which Flux accepts behind this gate.
	const artifacts = "--feature-gates=ExternalArtifact=true"
	const dependency = "--requeue-dependency=2s"
	if e.KustomizeController, err = e.startController(ctx, "kustomize-controller", "", e.Hub.KubeconfigFile, nil,
		artifacts, dependency, "--no-remote-bases=true"); err != nil {
		return err
	}
	if path := os.Getenv("HELM_CONTROLLER"); path != "" {
		fmt.Println("harness: helm-controller is", path)
		e.Helm, err = e.startController(ctx, "helm-controller", path, e.Hub.KubeconfigFile, nil, artifacts, dependency)
		return err
	}
	fmt.Println("harness: helm-standin stands in for helm-controller; HELM_CONTROLLER would name a real one")
	e.Helm, err = e.startController(ctx, "helm-standin", "", e.Hub.KubeconfigFile, nil)
	return err
}

// startController starts a controller, from bin/ if no path is given. Flux's and ours have these flags in common.
func (e *Env) startController(ctx context.Context, name, path, kubeconfig string, env []string, args ...string) (*Process, error) {
	if path == "" {
		var err error
		if path, err = program(name); err != nil {
			return nil, err
		}
	}
	addrs, err := freeAddrs(2)
	if err != nil {
		return nil, err
	}
	health, metrics := addrs[0], addrs[1]
	args = append([]string{"--health-addr=" + health, "--metrics-addr=" + metrics}, args...)
	env = append([]string{"KUBECONFIG=" + kubeconfig, "RUNTIME_NAMESPACE=" + FluxNamespace}, env...)
	p, err := startProcess(ctx, e.Dir, name, path, args, env, "http://"+health+"/readyz")
	if err != nil {
		return nil, err
	}
	p.MetricsURL = "http://" + metrics + "/metrics"
	return p, nil
}

// RequestReconcile asks the controller of a Flux object, or of one of ours, to look at it now, as `flux reconcile` does.
func RequestReconcile(ctx context.Context, c client.Client, obj client.Object) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, meta.ReconcileRequestAnnotation, time.Now().Format(time.RFC3339Nano))
	return c.Patch(ctx, obj, client.RawPatch(types.MergePatchType, []byte(patch)))
}
