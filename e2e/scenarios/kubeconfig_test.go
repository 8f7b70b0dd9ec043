package scenarios

import (
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fluxcd/pkg/apis/meta"

	"github.com/fleetwright/fleetwright/e2e/harness"
)

// H9: each kubeconfig that Flux could not use is refused with a reason of its own, on the AttachedCluster and on the
// Application, and nothing is generated for it.
func TestRefusedKubeconfigs(t *testing.T) {
	s := begin(t)
	member := env.Members[0]
	edited := func(edit func(*clientcmdapi.Config)) map[string][]byte {
		return map[string][]byte{"value": s.edited(member, edit)}
	}
	user := func(edit func(*clientcmdapi.AuthInfo)) map[string][]byte {
		return edited(func(c *clientcmdapi.Config) { edit(c.AuthInfos["admin"]) })
	}
	server := func(edit func(*clientcmdapi.Cluster)) map[string][]byte {
		return edited(func(c *clientcmdapi.Config) { edit(c.Clusters[member.Name]) })
	}
	refused := map[string]struct {
		secret map[string][]byte // nil for no Secret
		says   string
	}{
		"missing":    {nil, "KubeconfigNotFound: there is no Secret missing-kubeconfig"},
		"other-key":  {map[string][]byte{"config": member.Kubeconfig, "note": []byte("x")}, "KubeconfigKeyMissing: key value of Secret other-key-kubeconfig: there is no such key, but config, note"},
		"no-config":  {map[string][]byte{"value": []byte("hello")}, "KubeconfigInvalid: "},
		"twice":      {map[string][]byte{"value": []byte(base64.StdEncoding.EncodeToString(member.Kubeconfig))}, "KubeconfigEncodedTwice: "},
		"no-context": {edited(func(c *clientcmdapi.Config) { c.Contexts["b"], c.CurrentContext = c.Contexts[member.Name], "" }), "KubeconfigNoContext: "},
		"ipv6":       {server(func(c *clientcmdapi.Cluster) { c.Server = "https://2001:db8::1:6443" }), "KubeconfigServerInvalid: "},
		"insecure": {server(func(c *clientcmdapi.Cluster) {
			c.CertificateAuthorityData, c.InsecureSkipTLSVerify = nil, true
		}), "KubeconfigInsecure: "},
		"file": {user(func(u *clientcmdapi.AuthInfo) { u.Token, u.TokenFile = "", "/token" }), "KubeconfigRefersToFile: "},
		"exec": {user(func(u *clientcmdapi.AuthInfo) {
			u.Token, u.Exec = "", &clientcmdapi.ExecConfig{APIVersion: "client.authentication.k8s.io/v1", Command: "login", InteractiveMode: "Never"}
		}), "KubeconfigExec: "},
		"auth-provider": {user(func(u *clientcmdapi.AuthInfo) {
			u.Token, u.AuthProvider = "", &clientcmdapi.AuthProviderConfig{Name: "oidc"}
		}), "KubeconfigAuthProvider: "},
		"as":          {user(func(u *clientcmdapi.AuthInfo) { u.Impersonate = "somebody" }), "KubeconfigImpersonates: "},
		"wrong-token": {user(func(u *clientcmdapi.AuthInfo) { u.Token = "wrong" }), "CredentialsRejected: "},
		"wrong-ca":    {server(func(c *clientcmdapi.Cluster) { c.CertificateAuthorityData = otherAuthority(s) }), "TLSFailed: "},
	}
	s.push("shop", shop)
	for name, r := range refused {
		if r.secret != nil {
			s.Expect(env.Hub.Client.Create(s.ctx, &corev1.Secret{ObjectMeta: s.named(name + "-kubeconfig"), Data: r.secret})).To(Succeed())
		}
		s.apply(attachedCluster(name, "region=eu"))
	}
	s.apply(fleet("prod", names(refused)...))
	s.apply(shopApplication)

	for name, r := range refused {
		s.Eventually(s.health(name)).Should(HavePrefix("False "+r.says), name)
	}
	s.Eventually(func(g Gomega) {
		reasons := notReady(s.app("shop").Status.Members)
		for name, r := range refused {
			g.Expect(r.says).To(HavePrefix(reasons[name]+": "), name)
		}
	}).Should(Succeed())
	s.Expect(s.kustomizations()).To(BeEmpty())
	s.Expect(s.applied(member)()).To(BeEmpty())

	t.Log("once written right, it is used at once")
	s.kubeconfig("exec", member.Kubeconfig)
	s.Eventually(s.data(member, s.ns, "shop")).Should(HaveKeyWithValue("cluster", "exec in eu"))
	s.Expect(names(s.kustomizations())).To(ConsistOf("shop-app-exec"))
}

// otherAuthority returns the certificate of a server that is not the member's.
func otherAuthority(s *scenario) []byte {
	config, err := clientcmd.Load(env.Members[1].Kubeconfig)
	s.Expect(err).NotTo(HaveOccurred())
	return config.Clusters[env.Members[1].Name].CertificateAuthorityData
}

// H9: what Flux can use is used, through Flux: a key of one's own, another name in the certificate, a proxy.
func TestAcceptedKubeconfigs(t *testing.T) {
	s := begin(t)
	proxy, proxied := connectProxy(t)
	s.push("shop", shop)
	s.Expect(env.Hub.Client.Create(s.ctx, &corev1.Secret{ObjectMeta: s.named("key-kubeconfig"),
		Data: map[string][]byte{"kubeconfig": env.Members[0].Kubeconfig, "value": []byte("not this one")}})).To(Succeed())
	s.apply(replace(attachedCluster("key", "region=eu"), "{name: key-kubeconfig}", "{name: key-kubeconfig, key: kubeconfig}"))
	s.kubeconfig("tls-name", s.edited(env.Members[1], func(c *clientcmdapi.Config) {
		c.Clusters[env.Members[1].Name].TLSServerName = "kubernetes.default.svc"
	}))
	s.apply(attachedCluster("tls-name", "region=eu"))
	s.kubeconfig("proxy", s.edited(env.Members[2], func(c *clientcmdapi.Config) { c.Clusters[env.Members[2].Name].ProxyURL = proxy }))
	s.apply(attachedCluster("proxy", "region=eu"))
	s.apply(fleet("prod", "key", "tls-name", "proxy"))
	s.apply(shopApplication)

	for i, name := range []string{"key", "tls-name", "proxy"} {
		s.Eventually(s.data(env.Members[i], s.ns, "shop")).Should(HaveKeyWithValue("cluster", name+" in eu"))
	}
	s.ready("shop", "3/3")
	s.Expect(s.kustomization("shop-app-key").Spec.KubeConfig.SecretRef).To(Equal(&meta.SecretKeyReference{Name: "key-kubeconfig", Key: "kubeconfig"}))
	s.Expect(proxied.Load()).To(BeNumerically(">", 1), "the probe and Flux both go through the proxy")
}

// connectProxy is an HTTP proxy for TLS, as many networks have one. It counts connections.
func connectProxy(t *testing.T) (url string, count *atomic.Int64) {
	t.Helper()
	count = &atomic.Int64{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", r.Host)
		if r.Method != http.MethodConnect || err != nil {
			http.Error(w, fmt.Sprint(err), http.StatusBadGateway)
			return
		}
		count.Add(1)
		from, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_, _ = io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n")
		go func() {
			_, _ = io.Copy(to, buffered)
			_ = to.Close()
		}()
		_, _ = io.Copy(from, to)
		_ = from.Close()
	}))
	t.Cleanup(server.Close)
	return server.URL, count
}

// H10: tokens that live a quarter of an hour are renewed in the Secret. The new one is used at once, and renewing writes
// nothing but the Secret.
func TestRotatedCredentials(t *testing.T) {
	s := begin(t)
	member := env.Members[0]
	s.push("shop", shop)
	first := s.tokenKubeconfig(member, "first")
	s.kubeconfig("one", first)
	s.apply(attachedCluster("one", "region=eu"))
	s.apply(fleet("prod", "one"))
	s.apply(shopApplication)
	s.Eventually(s.data(member, s.ns, "shop")).Should(HaveKeyWithValue("version", "one"))
	s.ready("shop", "1/1")

	t.Log("a token that is renewed in time makes no stir")
	before := s.kustomization("shop-app-one").ResourceVersion
	s.kubeconfig("one", s.tokenKubeconfig(member, "second"))
	s.Expect(member.Client.Delete(s.ctx, &corev1.ServiceAccount{ObjectMeta: s.inKubeSystem("first")})).To(Succeed())
	s.Eventually(s.accepts(first)).Should(BeFalse())
	s.Consistently(s.health("one")).Should(HavePrefix("True Reached: "))
	s.push("shop", files{"base/config.yaml": shopConfig("two")})
	s.Expect(s.kustomization("shop-app-one").ResourceVersion).To(Equal(before))
	s.pushed("shop")
	s.Eventually(s.data(member, s.ns, "shop")).Should(HaveKeyWithValue("version", "two"), "Flux uses the new token, too")
	s.Expect(s.health("one")()).To(HavePrefix("True Reached: "))
	s.ready("shop", "1/1")

	t.Log("one that is not is said to be rejected, which is not unreachable; what runs stays")
	child := s.kustomization("shop-app-one")
	s.Expect(member.Client.Delete(s.ctx, &corev1.ServiceAccount{ObjectMeta: s.inKubeSystem("second")})).To(Succeed())
	s.Eventually(s.health("one")).Should(HavePrefix("False CredentialsRejected: "))
	s.Expect(notReady(s.reports("shop", "False", "0/1").Status.Members)).To(Equal(map[string]string{"one": "CredentialsRejected"}))

	t.Log("the new one is found without waiting, and the child is not written")
	s.kubeconfig("one", s.tokenKubeconfig(member, "third"))
	s.Eventually(s.health("one"), "5s").Should(HavePrefix("True Reached: "), "within one interval")
	s.ready("shop", "1/1")
	s.Expect(s.kustomization("shop-app-one").ResourceVersion).To(Equal(child.ResourceVersion))
	s.push("shop", files{"base/config.yaml": shopConfig("three")})
	s.pushed("shop")
	s.Eventually(s.data(member, s.ns, "shop")).Should(HaveKeyWithValue("version", "three"))
}

// tokenKubeconfig returns a kubeconfig with a short-lived token of a new service account that may do anything. To
// revoke it, delete the service account.
func (s *scenario) tokenKubeconfig(member *harness.Cluster, name string) []byte {
	s.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: s.inKubeSystem(name)}
	s.Expect(member.Client.Create(s.ctx, account)).To(Succeed())
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: account.ObjectMeta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: account.Name}},
	}
	binding.Namespace, binding.ResourceVersion, binding.UID = "", "", ""
	s.Expect(member.Client.Create(s.ctx, binding)).To(Succeed())
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(600))}}
	s.Expect(member.Client.SubResource("token").Create(s.ctx, account, token)).To(Succeed())
	return s.edited(member, func(c *clientcmdapi.Config) { c.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Token: token.Status.Token} })
}

// accepts says whether a cluster lets a kubeconfig in. An API server believes a revoked token for a few seconds.
func (s *scenario) accepts(kubeconfig []byte) func() (bool, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	s.Expect(err).NotTo(HaveOccurred())
	c, err := discovery.NewDiscoveryClientForConfig(config)
	s.Expect(err).NotTo(HaveOccurred())
	return func() (bool, error) {
		err := c.RESTClient().Get().AbsPath("/api/v1/namespaces/default").Do(s.ctx).Error()
		if apierrors.IsUnauthorized(err) {
			return false, nil
		}
		return err == nil, err
	}
}

func (s *scenario) inKubeSystem(name string) (m metav1.ObjectMeta) {
	m.Namespace, m.Name = "kube-system", s.ns+"-"+name
	return m
}
