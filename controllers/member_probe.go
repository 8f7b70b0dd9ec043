package controllers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"

	"github.com/fleetwright/fleetwright/renderers/object"
)

// Reasons of the Ready condition of a member after a probe. ReachedReason is the good one.
const (
	ReachedReason              = "Reached"
	UnreachableReason          = "Unreachable"
	TLSFailedReason            = "TLSFailed"
	CredentialsRejectedReason  = "CredentialsRejected"
	CredentialsForbiddenReason = "CredentialsForbidden"
	CredentialsExpiredReason   = "CredentialsExpired"
	NotKubernetesReason        = "NotKubernetes"
	UnhealthyReason            = "Unhealthy"
	ClusterChangedReason       = "ClusterChanged"
)

// problem says why a member is not ready.
type problem struct {
	reason string
	// message is for people: one line that stays the same as long as the problem does.
	message string
	// stalled says that only a person can mend it.
	stalled bool
}

// sighting is what a probe saw of a member.
type sighting struct {
	version   string
	nodes     *int64 // nil where the credentials may not list nodes
	clusterID string // empty where the credentials may not read the namespace kube-system
}

const (
	versionPath = "/version"
	// One node and the number of the others, straight from the member's store: it costs the same for any size of cluster.
	nodesPath   = "/api/v1/nodes?limit=1"
	clusterPath = "/api/v1/namespaces/kube-system"

	acceptJSON     = "application/json"
	acceptMetadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	acceptList     = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// probeMember looks at a member once: whether it answers, as what, how many nodes it has, and which cluster it is. The
// timeout is for all of it, name resolution and connecting included.
func probeMember(ctx context.Context, k *kubeconfig, timeout time.Duration) (*sighting, *problem) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	p, err := newProbe(k, timeout)
	if err != nil {
		return nil, &problem{reason: KubeconfigInvalidReason, message: object.OneLine(fmt.Sprintf("%s: %v", k.from, err)), stalled: true}
	}
	// A connection kept until the next probe would tell nothing about reaching the member, and thousands of members
	// would keep thousands of them.
	defer utilnet.CloseIdleConnectionsFor(p.client.Transport)

	var info version.Info
	allowed, wrong := p.get(ctx, versionPath, acceptJSON, &info)
	switch {
	case wrong != nil:
		return nil, wrong
	case !allowed:
		return nil, p.problem(CredentialsForbiddenReason, "does not let these credentials read %s (403): bind their user to a role, cluster-admin say", versionPath)
	case info.GitVersion == "":
		return nil, p.notKubernetes()
	}

	seen := &sighting{version: info.GitVersion}
	var nodes metav1.PartialObjectMetadataList
	if allowed, wrong = p.get(ctx, nodesPath, acceptList, &nodes); wrong != nil {
		return nil, wrong
	}
	if allowed {
		seen.nodes = countOf(&nodes)
	}
	var namespace metav1.PartialObjectMetadata
	if allowed, wrong = p.get(ctx, clusterPath, acceptMetadata, &namespace); wrong != nil {
		return nil, wrong
	}
	if allowed {
		seen.clusterID = string(namespace.UID)
	}
	return seen, nil
}

// countOf returns how many objects there are, going by the first page of a list; nil if the server does not say.
func countOf(list *metav1.PartialObjectMetadataList) *int64 {
	n := int64(len(list.Items))
	switch {
	case list.RemainingItemCount != nil:
		n += *list.RemainingItemCount
	case list.Continue != "":
		return nil
	}
	return &n
}

// probe sends the requests of one look at a member.
type probe struct {
	*kubeconfig
	client  *http.Client
	base    *url.URL
	timeout time.Duration
}

func newProbe(k *kubeconfig, timeout time.Duration) (*probe, error) {
	base, _, err := rest.DefaultServerUrlFor(k.config)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(k.config)
	if err != nil {
		return nil, err
	}
	// A login page somewhere else is no API server, and the credentials are not for it.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &probe{k, &http.Client{Transport: transport, CheckRedirect: stay}, base, timeout}, nil
}

// get reads an object of the member. It returns false if that is forbidden.
func (p *probe) get(ctx context.Context, path, accept string, into any) (bool, *problem) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(p.base.String(), "/")+path, nil)
	if err != nil {
		return false, p.unreachable(err)
	}
	req.Header.Set("Accept", accept)
	resp, err := p.client.Do(req)
	if err != nil {
		return false, p.unreachable(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil {
		err = ctx.Err() // an answer cut off by the deadline can look like a whole one
	}
	if err != nil {
		return false, p.unreachable(err)
	}

	path, _, _ = strings.Cut(path, "?")
	switch code := resp.StatusCode; {
	case code == http.StatusUnauthorized:
		return false, p.problem(CredentialsRejectedReason, "rejects the credentials (401): renew them")
	case code == http.StatusForbidden:
		return false, nil
	case code >= http.StatusInternalServerError || code == http.StatusTooManyRequests:
		return false, p.problem(UnhealthyReason, "answers %s with %d %s: look at its API server and etcd", path, code, http.StatusText(code))
	case code != http.StatusOK || json.Unmarshal(body, into) != nil:
		return false, p.notKubernetes()
	}
	return true, nil
}

// server names the member's API server for people, without what the address may hold of credentials.
func (p *probe) server() string { return p.base.Scheme + "://" + p.base.Host }

func (p *probe) problem(reason, format string, args ...any) *problem {
	return &problem{reason: reason, message: object.OneLine(fmt.Sprintf("%s %s (%s)", p.server(), fmt.Sprintf(format, args...), p.from))}
}

func (p *probe) notKubernetes() *problem {
	return p.problem(NotKubernetesReason, "answers, but not as a Kubernetes API server: correct the server")
}

// unreachable says why there was no answer. The messages of the errors themselves hold the ports of sockets, the time
// of day and whichever of a name's addresses was tried, and would be another at each probe.
func (p *probe) unreachable(err error) *problem {
	if what := explainTLS(err); what != "" {
		return p.problem(TLSFailedReason, "%s", what)
	}
	var dns *net.DNSError
	var op *net.OpError
	var timeout net.Error
	where := "check the address, and the network and firewalls from the hub to it"
	if errors.As(err, &op) && op.Op == "proxyconnect" {
		where = "check proxy-url, and the network from the hub to the proxy"
	}
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return p.problem(UnreachableReason, "cannot be reached, as the hub does not know the name %s: correct the server, or add the name to DNS", dns.Name)
	case errors.Is(err, syscall.ECONNREFUSED):
		return p.problem(UnreachableReason, "refuses the connection: %s", where)
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return p.problem(UnreachableReason, "cannot be reached, as there is no route to it: %s", where)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return p.problem(UnreachableReason, "gave no answer within %s: %s", p.timeout, where)
	}
	return p.problem(UnreachableReason, "cannot be reached: %s", where)
}

// explainTLS returns what is wrong with the TLS of a connection; empty if it is something else.
func explainTLS(err error) string {
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var op *net.OpError
	var verification *tls.CertificateVerificationError
	var header tls.RecordHeaderError
	switch {
	case errors.As(err, &authority):
		return "has a certificate of an authority that the kubeconfig does not know: correct certificate-authority-data"
	case errors.As(err, &host):
		return "has a certificate for another name: correct the server, or set tls-server-name"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "has a certificate that has expired, or is not valid yet: renew it, or set the clock"
	case errors.As(err, &invalid), errors.As(err, &verification):
		return "has a certificate that cannot be trusted: check it with openssl s_client"
	case errors.As(err, &op) && op.Op == "remote error": // a TLS alert
		return "ends the TLS handshake: check the client certificate, and tls-server-name"
	case errors.As(err, &header), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return "does not speak TLS: correct the server"
	}
	return ""
}
