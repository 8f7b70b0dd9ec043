package harness

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// kyvernoNamespace is where Kyverno keeps what it needs of its own.
const kyvernoNamespace = "kyverno"

// StartKyverno gives the cluster Kyverno, as it is but for the pods: its CRDs, its admission controller, which the API server
// asks on this machine, and its reports controller.
func (c *Cluster) StartKyverno(ctx context.Context) error {
	if err := c.applyKyvernoCRDs(ctx); err != nil {
		return err
	}
	if err := c.CreateNamespace(ctx, kyvernoNamespace); err != nil {
		return err
	}
	for _, o := range []client.Object{
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: kyvernoNamespace, Name: "kyverno"}, Data: map[string]string{
			// As plugins-catalog/policy sets it, and the chart by itself.
			"webhooks":        `{"namespaceSelector":{"matchExpressions":[{"key":"kubernetes.io/metadata.name","operator":"NotIn","values":["kube-system","kyverno","flux-system"]}]}}`,
			"resourceFilters": "[Event,*,*][*/*,kube-system,*][*/*,kube-public,*][*/*,kube-node-lease,*][*/*,kyverno,*]",
		}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: kyvernoNamespace, Name: "kyverno-metrics"}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "kyverno-reports-controller"},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: kyvernoNamespace, Name: "kyverno-reports-controller"}}},
	} {
		if err := client.IgnoreAlreadyExists(c.Client.Create(ctx, o)); err != nil {
			return fmt.Errorf("preparing Kyverno on %s: %w", c.Name, err)
		}
	}
	admission, err := freeAddr()
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(admission)
	if err != nil {
		return err
	}
	p, err := c.startKyverno(ctx, "kyverno", "kyverno-admission-controller", "https://"+admission+"/health/liveness",
		"--serverIP="+admission, "--webhookServerHost=127.0.0.1", "--webhookServerPort="+port, "--caSecretName=kyverno-ca", "--tlsSecretName=kyverno-tls",
		"--backgroundServiceAccountName=system:serviceaccount:kyverno:kyverno-background-controller",
		"--reportsServiceAccountName=system:serviceaccount:kyverno:kyverno-reports-controller", "--controllerRuntimeMetricsAddress=0")
	if err != nil {
		return err
	}
	c.nodes = append(c.nodes, p)
	p, err = c.startKyverno(ctx, "kyverno-reports", "kyverno-reports-controller", "")
	if err != nil {
		return err
	}
	c.nodes = append(c.nodes, p)
	return nil
}

func (c *Cluster) startKyverno(ctx context.Context, name, account, healthURL string, args ...string) (*Process, error) {
	path, err := program(name)
	if err != nil {
		return nil, err
	}
	metrics, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(metrics)
	if err != nil {
		return nil, err
	}
	dir := c.path(name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return startProcess(ctx, c.dir, c.Name+"-"+name, path, append([]string{
		"--kubeconfig=" + c.KubeconfigFile, "--disableMetrics=true", "--metricsPort=" + port, "--enableConfigMapCaching=false"}, args...), []string{
		"KYVERNO_NAMESPACE=" + kyvernoNamespace, "KYVERNO_SERVICEACCOUNT_NAME=" + account, "KYVERNO_DEPLOYMENT=" + account, "KYVERNO_POD_NAME=" + account + "-0",
		"KYVERNO_SVC=kyverno-svc", "INIT_CONFIG=kyverno", "METRICS_CONFIG=kyverno-metrics", "TUF_ROOT=" + dir}, healthURL)
}

// applyKyvernoCRDs applies the CRDs, and waits until they are served.
func (c *Cluster) applyKyvernoCRDs(ctx context.Context) error {
	dir, err := program("kyverno-crds")
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return err
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		crd := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(b, &crd.Object); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		body, err := crd.MarshalJSON()
		if err != nil {
			return err
		}
		if err := c.Client.Patch(ctx, crd, client.RawPatch(types.ApplyPatchType, body), client.FieldOwner("kyverno"), client.ForceOwnership); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			if err := c.Client.Get(ctx, client.ObjectKeyFromObject(crd), crd); err != nil {
				return false, err
			}
			conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions") // null at first
			return slices.ContainsFunc(conditions, func(c any) bool {
				condition, _ := c.(map[string]any)
				return condition["type"] == "Established" && condition["status"] == "True"
			}), nil
		})
		if err != nil {
			return fmt.Errorf("%s: is not established: %w", crd.GetName(), err)
		}
	}
	return nil
}
