// Package scale has what tests and benchmarks with many members need: a hub whose members all lead to one small server,
// an Application with two objects a member, and the counts of what the API server and the controller did.
package scale

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/e2e/harness"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// Names of what a Lab makes.
const (
	FleetName = "all"
	AppName   = "web"

	controllerUser = "fleet-controller"
	inFlight       = 16
)

// Lab is a namespace of a hub with many members.
type Lab struct {
	client.Client
	Env       *harness.Env
	Namespace string

	server *httptest.Server
	watch  client.WithWatch
	// floor sends requests as bytes, over one connection and from the controller's user, so that the API server treats
	// both alike.
	floor *http.Client
}

// NewLab makes the namespace, and starts the server that is every member's API server until the context ends.
func NewLab(ctx context.Context, env *harness.Env, namespace string) (*Lab, error) {
	l := &Lab{Client: env.Hub.Client, Env: env, Namespace: namespace}
	for _, ns := range []string{namespace, harness.FluxNamespace} {
		if err := env.Hub.CreateNamespace(ctx, ns); err != nil {
			return nil, err
		}
	}
	l.server = httptest.NewUnstartedServer(http.HandlerFunc(serveMember))
	l.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	l.server.StartTLS()
	context.AfterFunc(ctx, l.server.Close)
	var err error
	if l.watch, err = client.NewWithWatch(env.Hub.RESTConfig, client.Options{Scheme: harness.Scheme}); err != nil {
		return nil, err
	}
	as := rest.CopyConfig(env.Hub.RESTConfig)
	as.Impersonate.UserName = controllerUser
	l.floor, err = rest.HTTPClientFor(as)
	return l, err
}

// kubeconfig returns the kubeconfig of a member. No two are alike: each names an authority of its own.
func (l *Lab) kubeconfig(name string) []byte {
	ca := append([]byte("# of "+name+"\n"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: l.server.Certificate().Raw})...)
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: l.server.URL, CertificateAuthorityData: ca}
	config.AuthInfos["fleetwright"] = &clientcmdapi.AuthInfo{Token: "token-of-" + name}
	config.Contexts["fleetwright"] = &clientcmdapi.Context{Cluster: name, AuthInfo: "fleetwright"}
	config.CurrentContext = "fleetwright"
	b, err := clientcmd.Write(*config)
	if err != nil {
		panic(err)
	}
	return b
}

// serveMember answers a probe.
func serveMember(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/version":
		fmt.Fprint(w, `{"gitVersion":"v1.36.3"}`)
	case "/api/v1/nodes":
		fmt.Fprint(w, `{"kind":"PartialObjectMetadataList","metadata":{"remainingItemCount":2},"items":[{"metadata":{"name":"n1"}}]}`)
	default:
		fmt.Fprint(w, `{"kind":"PartialObjectMetadata","metadata":{"name":"kube-system","uid":"one-for-all"}}`)
	}
}

// MemberName returns the name of the i-th member.
func MemberName(i int) string { return fmt.Sprintf("member-%05d", i) }

// Member returns a member.
func (l *Lab) Member(i int) *clusterv1.AttachedCluster {
	name := MemberName(i)
	m := &clusterv1.AttachedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: name,
		Labels: map[string]string{"env": "prod", "region": []string{"eu", "us", "ap"}[i%3]}}}
	m.Spec.Kubeconfig = &clusterv1.KubeconfigReference{Name: name + "-kubeconfig", Key: "value"}
	return m
}

// Secret returns the Secret with the kubeconfig of a member.
func (l *Lab) Secret(i int) *corev1.Secret {
	name := MemberName(i)
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: name + "-kubeconfig"},
		Data: map[string][]byte{"value": l.kubeconfig(name)}}
}

// Attach creates the members from the first to before the last, with a kubeconfig each.
func (l *Lab) Attach(ctx context.Context, first, last int) error {
	return Each(last-first, func(i int) error {
		if err := l.Create(ctx, l.Secret(first+i)); err != nil {
			return err
		}
		return l.Create(ctx, l.Member(first+i))
	})
}

// Fleet returns a fleet of all members of the namespace that are labelled env=prod.
func (l *Lab) Fleet() *fleetv1.Fleet {
	f := &fleetv1.Fleet{ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: FleetName}}
	f.Spec.ClusterSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}
	return f
}

// Application returns an Application with a Kustomization and a HelmRelease for each member of the fleet. Each revision
// is a change of both.
func (l *Lab) Application(revision int) *appsv1.Application {
	prune := true
	app := &appsv1.Application{ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: AppName}}
	app.Spec.Source.GitRepository = &appsv1.GitRepositorySource{GitRepositorySpec: sourcev1.GitRepositorySpec{
		URL: "https://git.example.com/web", Interval: metav1.Duration{Duration: 10 * time.Minute}}}
	app.Spec.Destination = &appsv1.ApplicationDestination{Fleet: FleetName}
	app.Spec.SyncPolicies = []appsv1.ApplicationSyncPolicy{
		{Name: "manifests", Kustomization: &appsv1.Kustomization{Path: fmt.Sprintf("./web/%d", revision), Prune: &prune, TargetNamespace: "web"}},
		{Name: "chart", Helm: &appsv1.HelmRelease{
			Chart: &appsv1.HelmChartTemplate{Spec: appsv1.HelmChartTemplateSpec{Chart: "./charts/web"}},
			Values: &apiextensionsv1.JSON{Raw: fmt.Appendf(nil, `{"replicas":%d,"image":{"repository":"example.com/web","tag":"1.0.0"},
				"ingress":{"enabled":true,"hosts":["<< .cluster.labels.region >>.example.org"]}}`, revision)},
		}},
	}
	return app
}

// Apply applies an object as it is, as somebody with kubectl would.
func (l *Lab) Apply(ctx context.Context, o client.Object, kind string) error {
	gvk, err := l.GroupVersionKindFor(o)
	if err != nil {
		return err
	}
	gvk.Kind = kind
	o.GetObjectKind().SetGroupVersionKind(gvk)
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return l.Patch(ctx, o, client.RawPatch(types.ApplyPatchType, body), client.ForceOwnership, client.FieldOwner("lab"))
}

// Children returns the Kustomizations and HelmReleases of the namespace.
func (l *Lab) Children(ctx context.Context) ([]client.Object, error) {
	return l.List(ctx, &kustomizev1.KustomizationList{}, &helmv2.HelmReleaseList{})
}

// Generated returns all objects of the namespace of the kinds that are generated.
func (l *Lab) Generated(ctx context.Context) ([]client.Object, error) {
	return l.List(ctx, &kustomizev1.KustomizationList{}, &helmv2.HelmReleaseList{}, &sourcev1.GitRepositoryList{},
		&sourcev1.OCIRepositoryList{}, &sourcev1.BucketList{}, &sourcev1.HelmRepositoryList{}, &sourcev1.HelmChartList{})
}

// List returns the objects of the namespace of some kinds.
func (l *Lab) List(ctx context.Context, lists ...client.ObjectList) ([]client.Object, error) {
	var out []client.Object
	for _, list := range lists {
		if err := l.Client.List(ctx, list, client.InNamespace(l.Namespace)); err != nil {
			return nil, err
		}
		items, err := apimeta.ExtractList(list)
		if err != nil {
			return nil, err
		}
		for _, item := range items {
			out = append(out, item.(client.Object))
		}
	}
	return out, nil
}

// Flux says of all children that Flux has reconciled them.
func (l *Lab) Flux(ctx context.Context, status metav1.ConditionStatus, message string) error {
	children, err := l.Children(ctx)
	if err != nil {
		return err
	}
	return l.Reconciled(ctx, children, status, message)
}

// Reconciled says of these children that Flux has reconciled them.
func (l *Lab) Reconciled(ctx context.Context, children []client.Object, status metav1.ConditionStatus, message string) error {
	return Each(len(children), func(i int) error {
		o := children[i]
		before := o.DeepCopyObject().(client.Object)
		condition := metav1.Condition{Type: meta.ReadyCondition, Status: status, Reason: meta.ReconciliationSucceededReason, Message: message, ObservedGeneration: o.GetGeneration()}
		switch o := o.(type) {
		case *kustomizev1.Kustomization:
			o.Status.ObservedGeneration = o.Generation
			o.Status.LastAppliedRevision = "main@sha1:0123456789abcdef0123456789abcdef01234567"
			apimeta.SetStatusCondition(&o.Status.Conditions, condition)
		case *helmv2.HelmRelease:
			o.Status.ObservedGeneration = o.Generation
			apimeta.SetStatusCondition(&o.Status.Conditions, condition)
		}
		return l.Status().Patch(ctx, o, client.MergeFrom(before))
	})
}

// ApplyRaw is the floor: server-side applies of rendered objects, one request for each, and the answer thrown away.
func (l *Lab) ApplyRaw(ctx context.Context, objects []*object.Object) error {
	bodies := make([][]byte, len(objects))
	for i, o := range objects {
		var err error
		if bodies[i], err = json.Marshal(o); err != nil {
			return err
		}
	}
	return Each(len(objects), func(i int) error {
		return l.send(ctx, http.MethodPatch, objects[i], "?fieldManager=fleetwright&force=true", bodies[i])
	})
}

// DeleteRaw deletes what ApplyRaw has made.
func (l *Lab) DeleteRaw(ctx context.Context, objects []*object.Object) error {
	return Each(len(objects), func(i int) error { return l.send(ctx, http.MethodDelete, objects[i], "", nil) })
}

func (l *Lab) send(ctx context.Context, method string, o *object.Object, query string, body []byte) error {
	plural := strings.ToLower(o.Kind) + "s"
	if strings.HasSuffix(plural, "repositorys") {
		plural = strings.TrimSuffix(plural, "ys") + "ies"
	}
	url := l.Env.Hub.RESTConfig.Host + "/apis/" + o.APIVersion + "/namespaces/" + o.Metadata.Namespace + "/" + plural + "/" + o.Metadata.Name + query
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", string(types.ApplyPatchType))
	req.Header.Set("Accept", "application/json")
	resp, err := l.floor.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode > http.StatusCreated {
		err = fmt.Errorf("%s %s: %s: %.300s", method, url, resp.Status, answer)
	}
	return err
}

// AllowLease lets the controller hold the lease of its leader, which config/rbac lets its service account do.
func (l *Lab) AllowLease(ctx context.Context) error {
	manifest, err := os.ReadFile(filepath.Join(harness.Root(), "config", "rbac", "leader_election.yaml"))
	if err != nil {
		return err
	}
	role := &rbacv1.Role{}
	doc, _, _ := strings.Cut(strings.TrimPrefix(string(manifest), "---\n"), "\n---")
	if err := yaml.UnmarshalStrict([]byte(doc), role); err != nil {
		return err
	}
	role.Namespace = harness.FluxNamespace
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: role.Namespace, Name: role.Name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: controllerUser}}}
	for _, o := range []client.Object{role, binding} {
		if err := client.IgnoreAlreadyExists(l.Create(ctx, o)); err != nil {
			return err
		}
	}
	return nil
}

// Each calls do for 0 to n-1, 16 at a time, and returns the first error.
func Each(n int, do func(i int) error) error {
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	next := make(chan int)
	for range inFlight {
		wg.Go(func() {
			for i := range next {
				if err := do(i); err != nil {
					once.Do(func() { first = err })
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	return first
}

// Until watches one object until it is as asked; o is nil while it is not there.
func (l *Lab) Until(ctx context.Context, list client.ObjectList, name string, is func(o client.Object) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	var last client.Object
	seen := func(o client.Object) bool { last = o; return is(o) }
	opts := []client.ListOption{client.InNamespace(l.Namespace), client.MatchingFields{"metadata.name": name}}
	for {
		if ctx.Err() != nil {
			text, _ := json.Marshal(last)
			return fmt.Errorf("waiting for %s: %w; it is %.4000s", name, ctx.Err(), text)
		}
		if err := l.watch.List(ctx, list, opts...); err != nil {
			return err
		}
		items, err := apimeta.ExtractList(list)
		if err != nil {
			return err
		}
		var o client.Object
		if len(items) > 0 {
			o = items[0].(client.Object)
		}
		if seen(o) {
			return nil
		}
		w, err := l.watch.Watch(ctx, list, append(opts, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}})...)
		if err != nil {
			return err
		}
		for e := range w.ResultChan() {
			o, ok := e.Object.(client.Object)
			if !ok {
				break
			}
			if e.Type == watch.Deleted {
				o = nil
			}
			if seen(o) {
				w.Stop()
				return nil
			}
		}
		w.Stop()
	}
}
