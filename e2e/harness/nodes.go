package harness

import (
	"context"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"golang.org/x/sync/errgroup"
)

// workloads are the controllers that make pods of what a chart installs.
const workloads = "deployment-controller,replicaset-controller,statefulset-controller,job-controller"

// StartNodes gives the cluster nodes that only pretend, and all it takes for a Deployment to become ready on them: the
// controllers that make pods, the scheduler, and kwok, which plays nodes and pods. Nothing ever runs, and no Service
// gets an address.
func (c *Cluster) StartNodes(ctx context.Context, count int) error {
	group, groupCtx := errgroup.WithContext(ctx)
	started := make([]*Process, 3)
	group.Go(func() (err error) {
		started[0], err = c.startSecure(groupCtx, "kube-controller-manager", "workloads", "--controllers="+workloads,
			"--leader-elect=false", "--kube-api-qps=200", "--kube-api-burst=400")
		return err
	})
	group.Go(func() (err error) {
		started[1], err = c.startSecure(groupCtx, "kube-scheduler", "scheduler", "--leader-elect=false",
			"--kube-api-qps=200", "--kube-api-burst=400")
		return err
	})
	group.Go(func() (err error) {
		started[2], err = c.startKwok(groupCtx)
		return err
	})
	err := group.Wait()
	for _, p := range started {
		if p != nil {
			c.nodes = append(c.nodes, p)
		}
	}
	if err != nil {
		return err
	}
	for i := range count {
		if err := c.addNode(ctx, fmt.Sprintf("%s-node%d", c.Name, i+1)); err != nil {
			return err
		}
	}
	return nil
}

// startSecure starts a component of Kubernetes that makes its own serving certificate.
func (c *Cluster) startSecure(ctx context.Context, name, as string, args ...string) (*Process, error) {
	path, err := program(name)
	if err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	return startProcess(ctx, c.dir, c.Name+"-"+as, path, append([]string{
		"--kubeconfig=" + c.KubeconfigFile, "--bind-address=127.0.0.1", "--secure-port=" + port, "--cert-dir=" + c.path(as),
	}, args...), nil, "https://"+addr+"/healthz")
}

func (c *Cluster) startKwok(ctx context.Context) (*Process, error) {
	path, err := program("kwok")
	if err != nil {
		return nil, err
	}
	stages, err := program("kwok-stages.yaml")
	if err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	return startProcess(ctx, c.dir, c.Name+"-kwok", path, []string{
		"--kubeconfig=" + c.KubeconfigFile, "--config=" + stages, "--manage-all-nodes", "--server-address=" + addr,
		// Nothing looks whether the nodes are still alive.
		"--node-lease-duration-seconds=0",
	}, nil, "http://"+addr+"/healthz")
}

// addNode makes a node and waits until it is ready.
func (c *Cluster) addNode(ctx context.Context, name string) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64"}}}
	if err := c.Client.Create(ctx, node); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		if err := c.Client.Get(ctx, client.ObjectKeyFromObject(node), node); err != nil {
			return false, err
		}
		if len(node.Spec.Taints) > 0 {
			// The API server keeps pods off a new node until a controller that is not here has seen it ready.
			before := node.DeepCopy()
			node.Spec.Taints = nil
			return false, c.Client.Patch(ctx, node, client.MergeFrom(before))
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				return true, nil
			}
		}
		return false, nil
	})
}
