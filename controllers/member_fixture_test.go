package controllers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// certificate is a self-signed certificate and its key, in PEM.
type certificate struct {
	cert    *x509.Certificate
	certPEM []byte
	keyPEM  []byte
}

func newCertificate(t testing.TB, name string, notAfter time.Time) *certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: notAfter.Add(-365 * 24 * time.Hour), NotAfter: notAfter, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificate{
		cert:    cert,
		certPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		keyPEM:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}),
	}
}

func (c *certificate) certData() string { return base64.StdEncoding.EncodeToString(c.certPEM) }

func (c *certificate) keyData() string { return base64.StdEncoding.EncodeToString(c.keyPEM) }

// user returns the fields of a kubeconfig's user.
func (c *certificate) user() string {
	return "client-certificate-data: " + c.certData() + ", client-key-data: " + c.keyData()
}

// fakeMember is a member's API server, as much of it as is probed. Fields are set under the lock of set.
type fakeMember struct {
	*httptest.Server
	mu        sync.Mutex
	requests  int // of /version, which is one for each probe
	token     string
	version   string
	clusterID string
	nodes     int
	status    map[string]int // by path, where it is not 200
}

func newFakeMember(t testing.TB) *fakeMember {
	m := &fakeMember{token: "s3cret", version: "v1.36.3", clusterID: "id-1", nodes: 3, status: map[string]int{}}
	m.Server = httptest.NewTLSServer(m)
	t.Cleanup(m.Close)
	return m
}

func (m *fakeMember) set(change func(*fakeMember)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
}

// probes returns how often the member was probed.
func (m *fakeMember) probes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.requests
}

func (m *fakeMember) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.URL.Path == versionPath {
		m.requests++
	}
	if m.token != "" && r.Header.Get("Authorization") != "Bearer "+m.token {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if code := m.status[r.URL.Path]; code != 0 {
		w.Header().Set("Location", "https://login.example.com")
		w.WriteHeader(code)
		return
	}
	switch r.URL.Path {
	case versionPath:
		fmt.Fprintf(w, `{"gitVersion":%q}`, m.version)
	case "/api/v1/nodes":
		fmt.Fprintf(w, `{"kind":"PartialObjectMetadataList","metadata":{"continue":"x","remainingItemCount":%d},"items":[{"metadata":{"name":"n1"}}]}`, m.nodes-1)
	case clusterPath:
		fmt.Fprintf(w, `{"kind":"PartialObjectMetadata","metadata":{"name":"kube-system","uid":%q}}`, m.clusterID)
	default:
		http.NotFound(w, r)
	}
}

// kubeconfig returns one that opens the member.
func (m *fakeMember) kubeconfig(token string) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: m.Certificate().Raw})
	return kubeconfigFor(m.URL, ca, "token: "+token)
}

func kubeconfigFor(url string, ca []byte, userFields string) string {
	cluster := fmt.Sprintf("{certificate-authority-data: %s, server: %q}", base64.StdEncoding.EncodeToString(ca), url)
	if ca == nil {
		cluster = fmt.Sprintf("{server: %q}", url)
	}
	return strings.NewReplacer(`{server: "https://c1.example.com:6443"}`, cluster, "token: s3cret", userFields).Replace(goodKubeconfig)
}

// serverWith returns a TLS server with its own certificate and rules.
func serverWith(t testing.TB, config *tls.Config, handler http.Handler) *httptest.Server {
	s := httptest.NewUnstartedServer(handler)
	s.TLS = config
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}
