package harness

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Cluster is a control plane: an API server and a controller manager, without nodes before StartNodes. All clusters of an Env share one
// etcd, each under a prefix of its own.
type Cluster struct {
	Name string
	// Kubeconfig holds everything needed to be the cluster's administrator, certificate and token too.
	Kubeconfig     []byte
	KubeconfigFile string
	RESTConfig     *rest.Config
	Client         client.Client

	APIServer         *Process
	ControllerManager *Process

	// nodes are what StartNodes has started.
	nodes           []*Process
	dir, etcd, addr string
}

// adminToken lets anyone in who can read the kubeconfig: the clusters listen on loopback only, and hold nothing.
const adminToken = "admin"

// newCluster starts a control plane.
func newCluster(ctx context.Context, dir, etcd, name string) (*Cluster, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	c := &Cluster{Name: name, dir: dir, etcd: etcd, addr: addr, KubeconfigFile: filepath.Join(dir, name+".kubeconfig")}
	if err := c.writeCredentials(); err != nil {
		return nil, err
	}
	if err := c.StartAPIServer(ctx); err != nil {
		return nil, err
	}
	if err := c.connect(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, c.Name, name) }

// writeCredentials makes the folder of the cluster, the key that signs service account tokens, and the list of users.
func (c *Cluster) writeCredentials() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.path(""), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(c.path("sa.key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return err
	}
	return os.WriteFile(c.path("tokens.csv"), []byte(adminToken+",admin,admin,system:masters\n"), 0o600)
}

// StartAPIServer starts the API server, again too, after APIServer.Kill: on the same address, with the same
// certificate and data.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	path, err := program("kube-apiserver")
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(c.addr)
	if err != nil {
		return err
	}
	c.APIServer, err = startProcess(ctx, c.dir, c.Name+"-kube-apiserver", path, []string{
		"--etcd-servers=" + c.etcd, "--etcd-prefix=/" + c.Name,
		"--bind-address=127.0.0.1", "--secure-port=" + port,
		// The server makes its serving certificate there.
		"--cert-dir=" + c.path("certs"),
		"--token-auth-file=" + c.path("tokens.csv"), "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.path("sa.key"), "--service-account-signing-key-file=" + c.path("sa.key"),
		"--service-cluster-ip-range=10.0.0.0/24", "--allow-privileged",
		// The kubernetes Service would need an address that is not loopback.
		"--endpoint-reconciler-type=none",
	}, nil, "https://"+c.addr+"/readyz")
	return err
}

// connect fills in the kubeconfig and the client, from the certificate that the API server has made.
func (c *Cluster) connect() error {
	cert, err := os.ReadFile(filepath.Join(c.path("certs"), "apiserver.crt"))
	if err != nil {
		return err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[c.Name] = &clientcmdapi.Cluster{Server: "https://" + c.addr, CertificateAuthorityData: cert}
	config.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Token: adminToken}
	config.Contexts[c.Name] = &clientcmdapi.Context{Cluster: c.Name, AuthInfo: "admin"}
	config.CurrentContext = c.Name
	if c.Kubeconfig, err = clientcmd.Write(*config); err != nil {
		return err
	}
	if err := os.WriteFile(c.KubeconfigFile, c.Kubeconfig, 0o600); err != nil {
		return err
	}
	if c.RESTConfig, err = clientcmd.RESTConfigFromKubeConfig(c.Kubeconfig); err != nil {
		return err
	}
	c.RESTConfig.QPS = -1
	c.Client, err = client.New(c.RESTConfig, client.Options{Scheme: Scheme})
	return err
}

// startControllerManager starts the controllers without which namespaces stay in deletion, owned objects stay
// behind, and service accounts and aggregated roles do nothing. On the hub it comes after the CRDs: the garbage
// collector looks for new kinds only now and then.
func (c *Cluster) startControllerManager(ctx context.Context) error {
	var err error
	c.ControllerManager, err = c.startSecure(ctx, "kube-controller-manager", "kube-controller-manager", "--leader-elect=false",
		"--service-account-private-key-file="+c.path("sa.key"), "--root-ca-file="+filepath.Join(c.path("certs"), "apiserver.crt"),
		"--controllers=daemonset-controller,namespace-controller,garbage-collector-controller,serviceaccount-controller,serviceaccount-token-controller,clusterrole-aggregation-controller",
		"--kube-api-qps=200", "--kube-api-burst=400")
	return err
}

// Restart kills the API server and starts it again.
func (c *Cluster) Restart(ctx context.Context) error {
	c.APIServer.Kill()
	return c.StartAPIServer(ctx)
}

// KubeconfigSecret returns a Secret with the cluster's kubeconfig, as Flux and Fleetwright read it.
func (c *Cluster) KubeconfigSecret(namespace, name string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data:       map[string][]byte{"value": c.Kubeconfig},
	}
}

// CreateNamespace creates a namespace, or leaves the one that exists.
func (c *Cluster) CreateNamespace(ctx context.Context, name string) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := client.IgnoreAlreadyExists(c.Client.Create(ctx, ns)); err != nil {
		return fmt.Errorf("creating namespace %s on %s: %w", name, c.Name, err)
	}
	return nil
}
