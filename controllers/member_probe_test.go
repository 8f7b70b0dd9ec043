package controllers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	runtimeclient "github.com/fluxcd/pkg/runtime/client"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
)

// mustRead reads a kubeconfig that is accepted.
func mustRead(t testing.TB, content string) *kubeconfig {
	t.Helper()
	k, wrong := readKubeconfig(t.Context(), &clusterv1.KubeconfigReference{Name: "c1"}, map[string][]byte{"value": []byte(content)}, runtimeclient.KubeConfigOptions{})
	if wrong != nil {
		t.Fatal(wrong.message)
	}
	return k
}

func TestProbeMemberSees(t *testing.T) {
	tests := []struct {
		name  string
		setup func(*fakeMember)
		want  sighting
	}{
		{"everything", func(*fakeMember) {}, sighting{version: "v1.36.3", nodes: ptr.To(int64(3)), clusterID: "id-1"}},
		{"no nodes where that is forbidden", func(m *fakeMember) { m.status["/api/v1/nodes"] = 403 }, sighting{version: "v1.36.3", clusterID: "id-1"}},
		{"no identity where that is forbidden", func(m *fakeMember) { m.status[clusterPath] = 403 }, sighting{version: "v1.36.3", nodes: ptr.To(int64(3))}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			m := newFakeMember(t)
			tt.setup(m)
			seen, wrong := probeMember(t.Context(), mustRead(t, m.kubeconfig("s3cret")), 10*time.Second)
			g.Expect(wrong).To(BeNil())
			g.Expect(*seen).To(Equal(tt.want))
			g.Expect(m.probes()).To(Equal(1), "no other request for the version, such as for flow control")
		})
	}
}

func TestProbeMemberExplains(t *testing.T) {
	pemOf := func(s *httptest.Server) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	}
	member := func(change func(*fakeMember)) func(*testing.T) string {
		return func(t *testing.T) string {
			m := newFakeMember(t)
			change(m)
			return m.kubeconfig("s3cret")
		}
	}
	tests := []struct {
		name       string
		kubeconfig func(t *testing.T) string
		timeout    time.Duration
		reason     string
		message    string // SERVER stands for the address
	}{
		{"another token", member(func(m *fakeMember) { m.token = "another" }), 0, CredentialsRejectedReason,
			"SERVER rejects the credentials (401): renew them (key value of Secret c1)"},
		{"no right to anything", member(func(m *fakeMember) { m.status[versionPath] = 403 }), 0, CredentialsForbiddenReason,
			"SERVER does not let these credentials read /version (403): bind their user to a role, cluster-admin say (key value of Secret c1)"},
		{"a load balancer without a server", member(func(m *fakeMember) { m.status[versionPath] = 503 }), 0, UnhealthyReason,
			"SERVER answers /version with 503 Service Unavailable: look at its API server and etcd (key value of Secret c1)"},
		{"an API server without etcd", member(func(m *fakeMember) { m.status["/api/v1/nodes"] = 500 }), 0, UnhealthyReason,
			"SERVER answers /api/v1/nodes with 500 Internal Server Error: look at its API server and etcd (key value of Secret c1)"},
		{"a login page", member(func(m *fakeMember) { m.status[versionPath] = 302 }), 0, NotKubernetesReason,
			"SERVER answers, but not as a Kubernetes API server: correct the server (key value of Secret c1)"},
		{"some web server", func(t *testing.T) string {
			s := serverWith(t, nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }))
			return kubeconfigFor(s.URL, pemOf(s), "token: t")
		}, 0, NotKubernetesReason, "SERVER answers, but not as a Kubernetes API server: correct the server (key value of Secret c1)"},
		{"a listener that never answers", func(t *testing.T) string {
			return kubeconfigFor("https://"+listenDead(t), nil, "token: t")
		}, 100 * time.Millisecond, UnreachableReason,
			"SERVER gave no answer within 100ms: check the address, and the network and firewalls from the hub to it (key value of Secret c1)"},
		{"a server that never ends its answer", func(t *testing.T) string {
			s := serverWith(t, nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = w.Write([]byte(`{"gitVersion":`))
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			}))
			return kubeconfigFor(s.URL, pemOf(s), "token: t")
		}, 200 * time.Millisecond, UnreachableReason,
			"SERVER gave no answer within 200ms: check the address, and the network and firewalls from the hub to it (key value of Secret c1)"},
		{"nobody listens", func(t *testing.T) string {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			defer l.Close()
			return kubeconfigFor("https://"+l.Addr().String(), nil, "token: t")
		}, 0, UnreachableReason,
			"SERVER refuses the connection: check the address, and the network and firewalls from the hub to it (key value of Secret c1)"},
		{"a connection that breaks", func(t *testing.T) string {
			s := serverWith(t, nil, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
			return kubeconfigFor(s.URL, pemOf(s), "token: t")
		}, 0, UnreachableReason,
			"SERVER cannot be reached: check the address, and the network and firewalls from the hub to it (key value of Secret c1)"},
		{"a proxy that nobody listens on", func(t *testing.T) string {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			defer l.Close()
			return strings.Replace(newFakeMember(t).kubeconfig("s3cret"), "server:", "proxy-url: 'http://"+l.Addr().String()+"', server:", 1)
		}, 0, UnreachableReason,
			"SERVER refuses the connection: check proxy-url, and the network from the hub to the proxy (key value of Secret c1)"},
		{"another authority", func(t *testing.T) string {
			return kubeconfigFor(newFakeMember(t).URL, newCertificate(t, "other", time.Now().Add(time.Hour)).certPEM, "token: t")
		}, 0, TLSFailedReason,
			"SERVER has a certificate of an authority that the kubeconfig does not know: correct certificate-authority-data (key value of Secret c1)"},
		{"another name", func(t *testing.T) string {
			c := newCertificate(t, "c1.example.com", time.Now().Add(time.Hour))
			s := serverWith(t, c.serverConfig(), http.NotFoundHandler())
			return kubeconfigFor(s.URL, c.certPEM, "token: t")
		}, 0, TLSFailedReason,
			"SERVER has a certificate for another name: correct the server, or set tls-server-name (key value of Secret c1)"},
		{"an expired certificate", func(t *testing.T) string {
			c := newCertificate(t, "c1", time.Now().Add(-time.Hour))
			s := serverWith(t, c.serverConfig(), http.NotFoundHandler())
			return strings.Replace(kubeconfigFor(s.URL, c.certPEM, "token: t"), "server:", "tls-server-name: c1, server:", 1)
		}, 0, TLSFailedReason,
			"SERVER has a certificate that has expired, or is not valid yet: renew it, or set the clock (key value of Secret c1)"},
		{"a server that wants a client certificate", func(t *testing.T) string {
			c := newCertificate(t, "c1", time.Now().Add(time.Hour))
			config := c.serverConfig()
			config.ClientAuth = tls.RequireAndVerifyClientCert
			s := serverWith(t, config, http.NotFoundHandler())
			return strings.Replace(kubeconfigFor(s.URL, c.certPEM, "token: t"), "server:", "tls-server-name: c1, server:", 1)
		}, 0, TLSFailedReason,
			"SERVER ends the TLS handshake: check the client certificate, and tls-server-name (key value of Secret c1)"},
		{"plain HTTP", func(t *testing.T) string {
			s := httptest.NewServer(http.NotFoundHandler())
			t.Cleanup(s.Close)
			return kubeconfigFor(strings.Replace(s.URL, "http:", "https:", 1), nil, "token: t")
		}, 0, TLSFailedReason, "SERVER does not speak TLS: correct the server (key value of Secret c1)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			if tt.timeout == 0 {
				tt.timeout = 10 * time.Second
			}
			k := mustRead(t, tt.kubeconfig(t))
			started := time.Now()
			seen, wrong := probeMember(t.Context(), k, tt.timeout)
			g.Expect(time.Since(started)).To(BeNumerically("<", tt.timeout+5*time.Second))
			g.Expect(seen).To(BeNil())
			g.Expect(wrong.reason).To(Equal(tt.reason))
			g.Expect(wrong.message).To(Equal(strings.ReplaceAll(tt.message, "SERVER", k.config.Host)))
			g.Expect(wrong.stalled).To(BeFalse())

			again, next := probeMember(t.Context(), k, tt.timeout)
			g.Expect(again).To(BeNil())
			g.Expect(next).To(Equal(wrong), "it must not change from probe to probe")
		})
	}
}

func TestExplainDNS(t *testing.T) {
	g := NewWithT(t)
	k := mustRead(t, goodKubeconfig)
	p, err := newProbe(k, time.Second)
	g.Expect(err).NotTo(HaveOccurred())
	wrong := p.unreachable(fmt.Errorf("get: %w", &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "c1.example.com", Server: "10.0.0.10:53", IsNotFound: true}}))
	g.Expect(wrong).To(Equal(&problem{reason: UnreachableReason,
		message: "https://c1.example.com:6443 cannot be reached, as the hub does not know the name c1.example.com: correct the server, or add the name to DNS (key value of Secret c1)"}))
}

// TestProbeMemberByRotatedCertificate makes sure that no connection or certificate of an earlier probe is used.
func TestProbeMemberByRotatedCertificate(t *testing.T) {
	g := NewWithT(t)
	member, old, new := newCertificate(t, "c1", time.Now().Add(time.Hour)), newCertificate(t, "old", time.Now().Add(time.Hour)), newCertificate(t, "new", time.Now().Add(time.Hour))
	var users []string
	config := member.serverConfig()
	config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	config.ClientCAs.AddCert(old.cert)
	config.ClientCAs.AddCert(new.cert)
	s := serverWith(t, config, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		users = append(users, r.TLS.PeerCertificates[0].Subject.CommonName)
		w.WriteHeader(http.StatusForbidden)
	}))
	for _, c := range []*certificate{old, new} {
		k := mustRead(t, strings.Replace(kubeconfigFor(s.URL, member.certPEM, c.user()), "server:", "tls-server-name: c1, server:", 1))
		_, wrong := probeMember(t.Context(), k, 10*time.Second)
		g.Expect(wrong.reason).To(Equal(CredentialsForbiddenReason))
	}
	g.Expect(users).To(Equal([]string{"old", "new"}))
}

func TestProbeMemberThroughProxy(t *testing.T) {
	g := NewWithT(t)
	m := newFakeMember(t)
	var asked string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Method + " " + r.Host
		w.WriteHeader(http.StatusBadGateway)
	}))
	t.Cleanup(proxy.Close)
	k := mustRead(t, strings.Replace(m.kubeconfig("s3cret"), "server:", "proxy-url: '"+proxy.URL+"', server:", 1))
	_, wrong := probeMember(t.Context(), k, 10*time.Second)
	g.Expect(wrong.reason).To(Equal(UnreachableReason))
	g.Expect(asked).To(Equal("CONNECT " + strings.TrimPrefix(m.URL, "https://")))
}

func (c *certificate) serverConfig() *tls.Config {
	pair, err := tls.X509KeyPair(c.certPEM, c.keyPEM)
	if err != nil {
		panic(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}}
}

// listenDead returns the address of a listener that accepts connections and never answers.
func listenDead(t testing.TB) string {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String() // the kernel accepts
}
