package controllers

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	runtimeclient "github.com/fluxcd/pkg/runtime/client"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// Reasons why a kubeconfig is refused. Each is something that Flux cannot use, or would quietly leave out.
const (
	KubeconfigNotFoundReason      = "KubeconfigNotFound"
	KubeconfigKeyMissingReason    = "KubeconfigKeyMissing"
	KubeconfigInvalidReason       = "KubeconfigInvalid"
	KubeconfigEncodedTwiceReason  = "KubeconfigEncodedTwice"
	KubeconfigNoContextReason     = "KubeconfigNoContext"
	KubeconfigServerInvalidReason = "KubeconfigServerInvalid"
	KubeconfigFileReason          = "KubeconfigRefersToFile"
	KubeconfigExecReason          = "KubeconfigExec"
	KubeconfigAuthProviderReason  = "KubeconfigAuthProvider"
	KubeconfigInsecureReason      = "KubeconfigInsecure"
	KubeconfigImpersonatesReason  = "KubeconfigImpersonates"
)

// kubeconfig is what a member is reached with.
type kubeconfig struct {
	config *rest.Config
	// from says for people where it comes from.
	from string
	// expiresAt is when the client certificate expires, and renewAt when it is time for a new one; zero if there is none.
	expiresAt, renewAt time.Time
	// certificateOnly says that there is nothing beside the client certificate that could open the member.
	certificateOnly bool
}

// readKubeconfig reads the kubeconfig in the data of a Secret by the rules of Flux, so that what is accepted here is
// what Flux can use. Where Flux would leave out a part and go on, it refuses: the member would not be what was declared.
func readKubeconfig(ctx context.Context, ref *clusterv1.KubeconfigReference, data map[string][]byte, opts runtimeclient.KubeConfigOptions) (*kubeconfig, *problem) {
	key := ref.Key
	if key == "" {
		key = clusterv1.DefaultKubeconfigKey
	}
	from := fmt.Sprintf("key %s of Secret %s", key, ref.Name)
	refuse := func(reason, format string, args ...any) (*kubeconfig, *problem) {
		return nil, &problem{reason: reason, message: object.OneLine(from + ": " + fmt.Sprintf(format, args...)), stalled: true}
	}

	value, ok := data[key]
	value = unpack(value)
	switch {
	case !ok && len(data) == 0:
		return refuse(KubeconfigKeyMissingReason, "the Secret is empty: write the kubeconfig under this key")
	case !ok:
		return refuse(KubeconfigKeyMissingReason, "there is no such key, but %s: name the one with the kubeconfig", listed(slices.Collect(maps.Keys(data))))
	case encodesKubeconfig(value):
		return refuse(KubeconfigEncodedTwiceReason, "the kubeconfig is base64-encoded twice: give it to stringData as it is, or encode it once for data")
	case !looksLikeKubeconfig(value):
		return refuse(KubeconfigInvalidReason, "this is no kubeconfig: write one with clusters, contexts and users")
	}

	raw, err := clientcmd.Load(value)
	if err != nil {
		return refuse(KubeconfigInvalidReason, "%s: see what kubectl --kubeconfig FILE config view says", explainLoad(err))
	}
	if p := fileReference(raw); p != "" {
		return refuse(KubeconfigFileReason, "%s", p)
	}
	names := slices.Collect(maps.Keys(raw.Contexts))
	if raw.CurrentContext == "" {
		return refuse(KubeconfigNoContextReason, "there is no current-context: set it to one of %s", listed(names))
	}
	current := raw.Contexts[raw.CurrentContext]
	if current == nil {
		return refuse(KubeconfigNoContextReason, "there is no context %q, which current-context names: set it to one of %s", raw.CurrentContext, listed(names))
	}
	cluster, user := raw.Clusters[current.Cluster], raw.AuthInfos[current.AuthInfo]
	if cluster == nil {
		return refuse(KubeconfigInvalidReason, "there is no cluster %q, which context %q names: set it to one of %s",
			current.Cluster, raw.CurrentContext, listed(slices.Collect(maps.Keys(raw.Clusters))))
	}
	if p := checkServer(cluster.Server); p != "" {
		return refuse(KubeconfigServerInvalidReason, "%s", p)
	}
	if cluster.InsecureSkipTLSVerify && !opts.InsecureTLS {
		return refuse(KubeconfigInsecureReason, "insecure-skip-tls-verify is not allowed here: write the cluster's authority into certificate-authority-data instead")
	}
	if user == nil && current.AuthInfo != "" {
		return refuse(KubeconfigInvalidReason, "there is no user %q, which context %q names: set it to one of %s",
			current.AuthInfo, raw.CurrentContext, listed(slices.Collect(maps.Keys(raw.AuthInfos))))
	}
	if user != nil {
		switch {
		case user.Exec != nil && !opts.InsecureExecProvider:
			return refuse(KubeconfigExecReason, "user %q runs a program (exec) to log in, which Flux does not: write a token or a client certificate, or use configMapRef", current.AuthInfo)
		case user.AuthProvider != nil:
			return refuse(KubeconfigAuthProviderReason, "user %q logs in by auth-provider, which Flux does not: write a token or a client certificate, or use configMapRef", current.AuthInfo)
		case user.Impersonate != "" || user.ImpersonateUID != "" || len(user.ImpersonateGroups) > 0 || len(user.ImpersonateUserExtra) > 0:
			return refuse(KubeconfigImpersonatesReason, "user %q acts as somebody else (as), which Flux leaves out: write that user's own credentials", current.AuthInfo)
		}
	}

	config, err := runtimeclient.KubeConfigFromBytes(value)
	if err != nil {
		return refuse(KubeconfigInvalidReason, "%s", strings.TrimPrefix(err.Error(), "invalid configuration: "))
	}
	config = sanitize(ctx, config, opts)
	if _, _, err := rest.DefaultServerUrlFor(config); err != nil {
		return refuse(KubeconfigServerInvalidReason, "the server is no address: write https://HOST:PORT")
	}
	if _, err := rest.TLSConfigFor(config); err != nil {
		return refuse(KubeconfigInvalidReason, "the certificates or the key are not usable: %v", err)
	}
	expiresAt, renewAt := certificateExpiry(config.CertData)
	return &kubeconfig{
		config:          config,
		from:            from,
		expiresAt:       expiresAt,
		renewAt:         renewAt,
		certificateOnly: len(config.CertData) > 0 && config.BearerToken == "" && config.Username == "" && config.ExecProvider == nil,
	}, nil
}

// sanitize keeps of a configuration what Flux keeps.
func sanitize(ctx context.Context, config *rest.Config, opts runtimeclient.KubeConfigOptions) *rest.Config {
	// Flux asks the member whether it has flow control, to set its own request limit. A probe has no use for the answer.
	// A context that is done spares the member the question; what would log in before it fails is put aside.
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	quiet := rest.CopyConfig(config)
	quiet.ExecProvider, quiet.WrapTransport = nil, nil
	out := runtimeclient.KubeConfig(ctx, quiet, opts)
	out.WrapTransport = config.WrapTransport
	if opts.InsecureExecProvider {
		out.ExecProvider = config.ExecProvider
	}
	out.Timeout = 0 // one deadline for the whole probe comes with its context
	return out
}

// looksLikeKubeconfig is a cheap test that every kubeconfig passes. The Secret cache keeps nothing else.
func looksLikeKubeconfig(value []byte) bool {
	return bytes.Contains(value, []byte("clusters")) && bytes.Contains(value, []byte("contexts"))
}

// encodesKubeconfig says whether a value is base64 of a kubeconfig.
func encodesKubeconfig(value []byte) bool {
	value = bytes.TrimSpace(value)
	decoded := make([]byte, base64.StdEncoding.DecodedLen(len(value)))
	n, err := base64.StdEncoding.Decode(decoded, value)
	return err == nil && looksLikeKubeconfig(decoded[:n])
}

// explainLoad says what is wrong without repeating what is in the kubeconfig, as the decoders' own messages do.
func explainLoad(err error) string {
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) && wrongType.Field != "" {
		return fmt.Sprintf("field %s of the kubeconfig has the wrong type (a name like yes or 7 needs quotes)", wrongType.Field)
	}
	var notBase64 base64.CorruptInputError
	if errors.As(err, &notBase64) {
		return "a field whose name ends in -data is not base64"
	}
	return "the kubeconfig is no valid YAML or JSON"
}

// fileReference refuses what Flux refuses for any entry, used or not: files that only exist where the kubeconfig was made.
func fileReference(raw *clientcmdapi.Config) string {
	const instead = "cluster or user %q refers to a file (%s), which does not exist here: write its content into %s"
	for _, name := range slices.Sorted(maps.Keys(raw.Clusters)) {
		if raw.Clusters[name].CertificateAuthority != "" {
			return fmt.Sprintf(instead, name, "certificate-authority", "certificate-authority-data")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(raw.AuthInfos)) {
		user := raw.AuthInfos[name]
		switch {
		case user.TokenFile != "":
			return fmt.Sprintf(instead, name, "tokenFile", "token")
		case user.ClientCertificate != "":
			return fmt.Sprintf(instead, name, "client-certificate", "client-certificate-data")
		case user.ClientKey != "":
			return fmt.Sprintf(instead, name, "client-key", "client-key-data")
		}
	}
	return ""
}

// checkServer refuses an address that only fails, or leads elsewhere, when it is dialled.
func checkServer(server string) string {
	if server == "" {
		return "the cluster has no server: write https://HOST:PORT"
	}
	full := server
	if !strings.Contains(full, "://") {
		full = "https://" + full // as Flux does
	}
	scheme, rest, _ := strings.Cut(full, "://")
	host, _, _ := strings.Cut(rest, "/")
	host = host[strings.LastIndex(host, "@")+1:]
	if strings.Count(host, ":") > 1 && !strings.HasPrefix(host, "[") {
		return fmt.Sprintf("the server %q is an IPv6 address without brackets: write https://[ADDRESS]:PORT", host)
	}
	u, err := url.Parse(full)
	if err != nil || u.Hostname() == "" || (scheme != "https" && scheme != "http") {
		return fmt.Sprintf("the server %q is no address: write https://HOST:PORT", host)
	}
	return ""
}

// expiryNotice is how long before its end a client certificate should be renewed, if it was not made for less.
const expiryNotice = 7 * 24 * time.Hour

// certificateExpiry returns when the first certificate of a PEM file, the client's own, expires, and when it is time to
// renew it: one that lives for hours is renewed by a machine, which need not be told days before.
func certificateExpiry(data []byte) (expiresAt, renewAt time.Time) {
	for {
		var block *pem.Block
		block, data = pem.Decode(data)
		if block == nil {
			return time.Time{}, time.Time{}
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return time.Time{}, time.Time{}
		}
		return cert.NotAfter, cert.NotAfter.Add(-min(expiryNotice, cert.NotAfter.Sub(cert.NotBefore)/4))
	}
}
