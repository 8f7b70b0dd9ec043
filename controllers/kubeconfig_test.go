package controllers

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	runtimeclient "github.com/fluxcd/pkg/runtime/client"
	. "github.com/onsi/gomega"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
)

const goodKubeconfig = `apiVersion: v1
kind: Config
current-context: main
clusters:
- name: c1
  cluster: {server: "https://c1.example.com:6443"}
contexts:
- name: main
  context: {cluster: c1, user: flux}
users:
- name: flux
  user: {token: s3cret}
`

// edited returns the good kubeconfig with pairs of old and new text replaced.
func edited(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(goodKubeconfig) }

func server(url string) string { return edited("https://c1.example.com:6443", url) }

func user(fields string) string { return edited("{token: s3cret}", "{"+fields+"}") }

func TestReadKubeconfigAccepts(t *testing.T) {
	client := newCertificate(t, "flux", time.Now().Add(48*time.Hour))
	tests := []struct {
		name string
		in   string
		opts runtimeclient.KubeConfigOptions
		want func(g Gomega, k *kubeconfig)
	}{
		{name: "YAML", in: goodKubeconfig, want: func(g Gomega, k *kubeconfig) {
			g.Expect(k.config.Host).To(Equal("https://c1.example.com:6443"))
			g.Expect(k.config.BearerToken).To(Equal("s3cret"))
			g.Expect(k.config.Timeout).To(BeZero())
			g.Expect(k.from).To(Equal("key value of Secret c1-kubeconfig"))
			g.Expect(k.expiresAt).To(BeZero())
			g.Expect(k.certificateOnly).To(BeFalse())
		}},
		{name: "JSON", in: `{"current-context":"x","clusters":[{"name":"c","cluster":{"server":"https://c1"}}],"contexts":[{"name":"x","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{"token":"t"}}]}`},
		{name: "several contexts", in: edited("contexts:\n", "contexts:\n- name: other\n  context: {cluster: c1, user: flux}\n")},
		{name: "IPv6 with brackets", in: server("https://[2001:db8::1]:6443"), want: func(g Gomega, k *kubeconfig) {
			g.Expect(k.config.Host).To(Equal("https://[2001:db8::1]:6443"))
		}},
		{name: "IPv6 without a port", in: server("https://[2001:db8::1]")},
		{name: "no scheme", in: server("10.0.0.1:6443")},
		{name: "a path", in: server("https://rancher.example.com/k8s/clusters/c-1")},
		{name: "proxy-url", in: edited("{server:", "{proxy-url: 'http://proxy:3128', server:"), want: func(g Gomega, k *kubeconfig) {
			g.Expect(k.config.Proxy).NotTo(BeNil())
		}},
		{name: "tls-server-name", in: edited("{server:", "{tls-server-name: kubernetes.default, server:"), want: func(g Gomega, k *kubeconfig) {
			g.Expect(k.config.ServerName).To(Equal("kubernetes.default"))
		}},
		{name: "basic auth", in: user("username: u, password: p")},
		{name: "no credentials", in: user("")},
		{name: "no user", in: edited(", user: flux", "")},
		{name: "client certificate", in: user(client.user()), want: func(g Gomega, k *kubeconfig) {
			g.Expect(k.certificateOnly).To(BeTrue())
			g.Expect(k.expiresAt).To(BeTemporally("==", client.cert.NotAfter))
			g.Expect(k.renewAt).To(BeTemporally("==", client.cert.NotAfter.Add(-7*24*time.Hour)))
		}},
		{name: "client certificate and token", in: user(client.user() + ", token: t"), want: func(g Gomega, k *kubeconfig) {
			g.Expect(k.certificateOnly).To(BeFalse())
			g.Expect(k.expiresAt).NotTo(BeZero())
		}},
		{name: "exec where it is allowed", in: user("exec: {apiVersion: client.authentication.k8s.io/v1, command: aws, interactiveMode: Never}"),
			opts: runtimeclient.KubeConfigOptions{InsecureExecProvider: true}, want: func(g Gomega, k *kubeconfig) {
				g.Expect(k.config.ExecProvider).NotTo(BeNil())
			}},
		{name: "no verification where it is allowed", in: edited("{server:", "{insecure-skip-tls-verify: true, server:"),
			opts: runtimeclient.KubeConfigOptions{InsecureTLS: true}, want: func(g Gomega, k *kubeconfig) {
				g.Expect(k.config.Insecure).To(BeTrue())
			}},
		{name: "an entry that is not used is exec", in: edited("users:\n", "users:\n- name: other\n  user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: aws, interactiveMode: Never}}\n")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			k, wrong := readKubeconfig(t.Context(), &clusterv1.KubeconfigReference{Name: "c1-kubeconfig"}, map[string][]byte{"value": []byte(tt.in)}, tt.opts)
			g.Expect(wrong).To(BeNil())
			if tt.want != nil {
				tt.want(g, k)
			}
		})
	}
}

func TestReadKubeconfigRefuses(t *testing.T) {
	value := func(s string) map[string][]byte { return map[string][]byte{"value": []byte(s)} }
	client, other := newCertificate(t, "flux", time.Now().Add(time.Hour)), newCertificate(t, "other", time.Now().Add(time.Hour))
	tests := []struct {
		name    string
		data    map[string][]byte
		reason  string
		message string
	}{
		{"empty Secret", nil, KubeconfigKeyMissingReason,
			"the Secret is empty: write the kubeconfig under this key"},
		{"key absent", map[string][]byte{"kubeconfig": nil, "admin.conf": nil}, KubeconfigKeyMissingReason,
			"there is no such key, but admin.conf, kubeconfig: name the one with the kubeconfig"},
		{"one key of many absent", map[string][]byte{"a": nil, "b": nil, "c": nil, "d": nil, "e": nil, "f": nil, "g": nil}, KubeconfigKeyMissingReason,
			"there is no such key, but a, b, c, d, e and 2 more: name the one with the kubeconfig"},
		{"empty value", value(""), KubeconfigInvalidReason,
			"this is no kubeconfig: write one with clusters, contexts and users"},
		{"something else", value("password"), KubeconfigInvalidReason,
			"this is no kubeconfig: write one with clusters, contexts and users"},
		{"base64 twice", value(base64.StdEncoding.EncodeToString([]byte(goodKubeconfig)) + "\n"), KubeconfigEncodedTwiceReason,
			"the kubeconfig is base64-encoded twice: give it to stringData as it is, or encode it once for data"},
		{"broken YAML", value(goodKubeconfig + "  : ["), KubeconfigInvalidReason,
			"the kubeconfig is no valid YAML or JSON: see what kubectl --kubeconfig FILE config view says"},
		{"wrong type", value(user("token: 1234567890")), KubeconfigInvalidReason,
			"field users.user.token of the kubeconfig has the wrong type (a name like yes or 7 needs quotes): see what kubectl --kubeconfig FILE config view says"},
		{"data that is not base64", value(edited("{server:", "{certificate-authority-data: '!', server:")), KubeconfigInvalidReason,
			"a field whose name ends in -data is not base64: see what kubectl --kubeconfig FILE config view says"},
		{"two contexts without current-context", value(edited("current-context: main\n", "", "contexts:\n", "contexts:\n- name: spare\n  context: {cluster: c1, user: flux}\n")), KubeconfigNoContextReason,
			"there is no current-context: set it to one of main, spare"},
		{"one context without current-context", value(edited("current-context: main\n", "")), KubeconfigNoContextReason,
			"there is no current-context: set it to one of main"},
		{"current-context that is not there", value(edited("current-context: main", "current-context: mian")), KubeconfigNoContextReason,
			`there is no context "mian", which current-context names: set it to one of main`},
		{"cluster that is not there", value(edited("cluster: c1,", "cluster: c2,")), KubeconfigInvalidReason,
			`there is no cluster "c2", which context "main" names: set it to one of c1`},
		{"user that is not there", value(edited("user: flux", "user: nobody")), KubeconfigInvalidReason,
			`there is no user "nobody", which context "main" names: set it to one of flux`},
		{"no server", value(edited(`server: "https://c1.example.com:6443"`, "")), KubeconfigServerInvalidReason,
			"the cluster has no server: write https://HOST:PORT"},
		{"IPv6 without brackets", value(server("https://2001:db8::1:6443")), KubeconfigServerInvalidReason,
			`the server "2001:db8::1:6443" is an IPv6 address without brackets: write https://[ADDRESS]:PORT`},
		{"IPv6 without brackets and scheme", value(server("2001:db8::1")), KubeconfigServerInvalidReason,
			`the server "2001:db8::1" is an IPv6 address without brackets: write https://[ADDRESS]:PORT`},
		{"server with a space", value(server("https://c1 .example.com")), KubeconfigServerInvalidReason,
			`the server "c1 .example.com" is no address: write https://HOST:PORT`},
		{"server with another scheme", value(server("tcp://admin:pw@c1.example.com")), KubeconfigServerInvalidReason,
			`the server "c1.example.com" is no address: write https://HOST:PORT`},
		{"server with a path and no scheme", value(server("c1.example.com/k8s")), KubeconfigServerInvalidReason,
			"the server is no address: write https://HOST:PORT"},
		{"certificate-authority", value(edited("{server:", "{certificate-authority: /ca.crt, server:")), KubeconfigFileReason,
			`cluster or user "c1" refers to a file (certificate-authority), which does not exist here: write its content into certificate-authority-data`},
		{"tokenFile", value(user("tokenFile: /token")), KubeconfigFileReason,
			`cluster or user "flux" refers to a file (tokenFile), which does not exist here: write its content into token`},
		{"client-certificate", value(user("client-certificate: c.crt, client-key: c.key")), KubeconfigFileReason,
			`cluster or user "flux" refers to a file (client-certificate), which does not exist here: write its content into client-certificate-data`},
		{"client-key", value(user("client-key: c.key")), KubeconfigFileReason,
			`cluster or user "flux" refers to a file (client-key), which does not exist here: write its content into client-key-data`},
		{"file of an entry that is not used", value(edited("users:\n", "users:\n- name: other\n  user: {tokenFile: /token}\n")), KubeconfigFileReason,
			`cluster or user "other" refers to a file (tokenFile), which does not exist here: write its content into token`},
		{"exec", value(user("exec: {apiVersion: client.authentication.k8s.io/v1, command: aws, interactiveMode: Never}")), KubeconfigExecReason,
			`user "flux" runs a program (exec) to log in, which Flux does not: write a token or a client certificate, or use configMapRef`},
		{"auth-provider", value(user("auth-provider: {name: gcp}")), KubeconfigAuthProviderReason,
			`user "flux" logs in by auth-provider, which Flux does not: write a token or a client certificate, or use configMapRef`},
		{"insecure", value(edited("{server:", "{insecure-skip-tls-verify: true, server:")), KubeconfigInsecureReason,
			"insecure-skip-tls-verify is not allowed here: write the cluster's authority into certificate-authority-data instead"},
		{"as", value(user("token: t, as: admin")), KubeconfigImpersonatesReason,
			`user "flux" acts as somebody else (as), which Flux leaves out: write that user's own credentials`},
		{"as-groups", value(user("token: t, as-groups: [admins]")), KubeconfigImpersonatesReason,
			`user "flux" acts as somebody else (as), which Flux leaves out: write that user's own credentials`},
		{"certificate without key", value(user("client-certificate-data: " + client.certData())), KubeconfigInvalidReason,
			"client-key-data or client-key must be specified for flux to use the clientCert authentication method."},
		{"certificate and another's key", value(user("client-certificate-data: " + client.certData() + ", client-key-data: " + other.keyData())), KubeconfigInvalidReason,
			"the certificates or the key are not usable: tls: private key does not match public key"},
		{"authority that is none", value(edited("{server:", "{certificate-authority-data: aGVsbG8=, server:")), KubeconfigInvalidReason,
			"the certificates or the key are not usable: unable to load root certificates: unable to parse bytes as PEM block"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			k, wrong := readKubeconfig(t.Context(), &clusterv1.KubeconfigReference{Name: "c1-kubeconfig", Key: "value"}, tt.data, runtimeclient.KubeConfigOptions{})
			g.Expect(k).To(BeNil())
			g.Expect(wrong.reason).To(Equal(tt.reason))
			g.Expect(wrong.message).To(Equal("key value of Secret c1-kubeconfig: " + tt.message))
			g.Expect(wrong.stalled).To(BeTrue())

			// The Secret cache takes away what it does not need, and the answer stays the same.
			g.Expect(stripped(g, tt.data)).To(WithTransform(func(data map[string][]byte) *problem {
				_, wrong := readKubeconfig(t.Context(), &clusterv1.KubeconfigReference{Name: "c1-kubeconfig"}, data, runtimeclient.KubeConfigOptions{})
				return wrong
			}, Equal(wrong)))
		})
	}
}

// FuzzReadKubeconfig looks for what is accepted here and not by Flux, and for what breaks a message.
func FuzzReadKubeconfig(f *testing.F) {
	for _, seed := range []string{
		goodKubeconfig, server("https://[2001:db8::1]:6443"), server("2001:db8::1"), user("tokenFile: x"), user("token: 7"),
		user("exec: {command: x}"), edited("current-context: main\n", ""), edited("{server:", "{proxy-url: 'socks5://x', server:"),
		base64.StdEncoding.EncodeToString([]byte(goodKubeconfig)), "clusters: [contexts", "clusters:\ncontexts:\nusers:\n",
		strings.ReplaceAll(goodKubeconfig, "main", `"a\nb"`),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		g := NewWithT(t)
		k, wrong := readKubeconfig(t.Context(), &clusterv1.KubeconfigReference{Name: "c1"}, map[string][]byte{"value": value}, runtimeclient.KubeConfigOptions{})
		if wrong == nil {
			config, err := runtimeclient.KubeConfigFromBytes(value)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(k.config.Host).To(Equal(config.Host))
			g.Expect(config.Impersonate.UserName).To(BeEmpty())
			g.Expect(config.ExecProvider).To(BeNil())
			_, err = newProbe(k, time.Second)
			g.Expect(err).NotTo(HaveOccurred())
			return
		}
		g.Expect(k).To(BeNil())
		g.Expect(wrong.reason).NotTo(BeEmpty())
		g.Expect(wrong.message).To(HavePrefix("key value of Secret c1: "))
		g.Expect(wrong.message).NotTo(ContainSubstring("\n"))
		g.Expect(utf8.ValidString(wrong.message)).To(BeTrue())
	})
}
