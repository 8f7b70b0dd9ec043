// Package scenarios tells what Fleetwright is for, from the outside: manifests pushed to Git, real API servers, Flux and
// the Helm stand-in (or a real helm-controller), and what then is on the members, and what is not.
//
// All scenarios share one hub and three members and run in parallel; each has a namespace of its own, on the hub and on
// the members, and Git repositories of its own. Nothing here sleeps: everything is waited for.
package scenarios

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/yaml"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/e2e/harness"
)

var env *harness.Env

func TestMain(m *testing.M) {
	harness.Main(m, harness.Options{Members: 3}, func(e *harness.Env) {
		env = e
		ctrl.SetLogger(zap.New(zap.WriteTo(io.Discard))) // warnings of API servers about old kinds
		if err := e.StartController(context.Background()); err != nil {
			panic(err) // after which the harness cleans up
		}
	})
}

const (
	// timeout bounds what has to happen; a machine that does other things, too, is slow at times.
	timeout = 90 * time.Second
	// quiet is for how long something must not happen that would follow at once if it did. Children are looked at a
	// second after they change.
	quiet = 2 * time.Second
)

// scenario is one story, in namespaces and Git repositories of its own.
type scenario struct {
	*WithT
	t   *testing.T
	ctx context.Context
	// ns is the namespace on the hub, and what is applied to members is labelled with it by Flux.
	ns string
}

func begin(t *testing.T) *scenario {
	t.Helper()
	t.Parallel()
	s := &scenario{WithT: NewWithT(t), t: t, ctx: t.Context()}
	s.SetDefaultEventuallyTimeout(timeout)
	s.SetDefaultEventuallyPollingInterval(200 * time.Millisecond)
	s.SetDefaultConsistentlyDuration(quiet)
	s.SetDefaultConsistentlyPollingInterval(200 * time.Millisecond)
	name := strings.ToLower(strings.TrimPrefix(t.Name(), "Test"))
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: name[:min(len(name), 30)] + "-"}}
	s.Expect(env.Hub.Client.Create(s.ctx, ns)).To(Succeed())
	s.ns = ns.Name
	t.Cleanup(func() {
		if t.Failed() {
			s.tellState()
		}
	})
	return s
}

// tellState prints the conditions of what is in the namespace, so that a failure can be understood.
func (s *scenario) tellState() {
	out, err := s.run("kubectl", "get", "fleets,attachedclusters,clusterconfigs,externalartifacts,applications,kustomizations,helmreleases,gitrepositories,helmcharts")
	s.t.Logf("in namespace %s: %v\n%s", s.ns, err, out)
}

// text fills in $NAMESPACE and the addresses of Git repositories, $GIT/<name>.
func (s *scenario) text(in string) string {
	return strings.NewReplacer("$NAMESPACE", s.ns, "$GIT/", env.Git.URL(s.ns+"-")).Replace(in)
}

// replace replaces pairs of old and new.
func replace(in string, pairs ...string) string { return strings.NewReplacer(pairs...).Replace(in) }

type files map[string]string

// push commits files to a Git repository; empty ones are deleted.
func (s *scenario) push(repo string, f files) {
	s.t.Helper()
	content := map[string]string{}
	for path, text := range f {
		content[path] = s.text(text)
	}
	_, err := env.Git.Push(s.ctx, s.ns+"-"+repo, content)
	s.Expect(err).NotTo(HaveOccurred())
}

// pushed has Flux look at a GitRepository now, as a webhook would after a push.
func (s *scenario) pushed(repository string) {
	s.t.Helper()
	s.Expect(harness.RequestReconcile(s.ctx, env.Hub.Client, &sourcev1.GitRepository{ObjectMeta: s.named(repository)})).To(Succeed())
}

func (s *scenario) named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: s.ns, Name: name}
}

// apply does what `kubectl apply --server-side` does on the hub.
func (s *scenario) apply(docs string) {
	s.t.Helper()
	for _, o := range s.decode(docs) {
		s.Expect(env.Hub.Client.Apply(s.ctx, client.ApplyConfigurationFromUnstructured(o), client.ForceOwnership, client.FieldOwner("kubectl"))).
			To(Succeed(), "%s %s", o.GetKind(), o.GetName())
	}
}

func (s *scenario) decode(docs string) []*unstructured.Unstructured {
	s.t.Helper()
	var objects []*unstructured.Unstructured
	for doc := range strings.SplitSeq(s.text(docs), "\n---\n") {
		o := &unstructured.Unstructured{}
		s.Expect(yaml.UnmarshalStrict([]byte(doc), &o.Object)).To(Succeed(), doc)
		if o.GetNamespace() == "" {
			o.SetNamespace(s.ns)
		}
		objects = append(objects, o)
	}
	return objects
}

// merge does what `kubectl patch --type merge` does on the hub.
func (s *scenario) merge(o client.Object, patch string) {
	s.t.Helper()
	o.SetNamespace(s.ns)
	s.Expect(env.Hub.Client.Patch(s.ctx, o, client.RawPatch(types.MergePatchType, []byte(s.text(patch))))).To(Succeed())
}

func (s *scenario) delete(o client.Object) {
	s.t.Helper()
	o.SetNamespace(s.ns)
	s.Expect(env.Hub.Client.Delete(s.ctx, o)).To(Succeed())
}

// attach gives the hub the kubeconfig of a member, and makes it an AttachedCluster, with labels as in "env=prod".
func (s *scenario) attach(name string, member *harness.Cluster, labels ...string) {
	s.t.Helper()
	s.kubeconfig(name, member.Kubeconfig)
	s.apply(attachedCluster(name, labels...))
}

func attachedCluster(name string, labels ...string) string {
	return fmt.Sprintf(`
apiVersion: cluster.kurator.dev/v1alpha1
kind: AttachedCluster
metadata: {name: %s, labels: {%s}}
spec:
  kubeconfig: {name: %[1]s-kubeconfig}
  healthCheck: {interval: 5s, timeout: 2s}`, name, strings.ReplaceAll(strings.Join(labels, ", "), "=", ": "))
}

// kubeconfig writes the Secret of a member.
func (s *scenario) kubeconfig(member string, kubeconfig []byte) {
	s.t.Helper()
	secret := &corev1.Secret{ObjectMeta: s.named(member + "-kubeconfig")}
	_, err := controllerutil.CreateOrUpdate(s.ctx, env.Hub.Client, secret, func() error {
		secret.Data = map[string][]byte{"value": kubeconfig}
		return nil
	})
	s.Expect(err).NotTo(HaveOccurred())
}

// fleet returns a Fleet of these members.
func fleet(name string, members ...string) string {
	doc := "apiVersion: fleet.kurator.dev/v1alpha1\nkind: Fleet\nmetadata: {name: " + name + "}\nspec:\n  clusters:\n"
	for _, m := range members {
		doc += "  - {name: " + m + "}\n"
	}
	return doc
}

// get reads an object of the scenario's namespace on the hub.
func get[T client.Object](s *scenario, o T, name string) T {
	s.t.Helper()
	s.Expect(env.Hub.Client.Get(s.ctx, types.NamespacedName{Namespace: s.ns, Name: name}, o)).To(Succeed())
	return o
}

func (s *scenario) app(name string) *appsv1.Application { return get(s, &appsv1.Application{}, name) }

func (s *scenario) kustomization(name string) *kustomizev1.Kustomization {
	return get(s, &kustomizev1.Kustomization{}, name)
}

// kustomizations returns the Kustomizations of Applications by name, and releases the HelmReleases.
func (s *scenario) kustomizations() map[string]*kustomizev1.Kustomization {
	var list kustomizev1.KustomizationList
	s.Expect(env.Hub.Client.List(s.ctx, &list, client.InNamespace(s.ns), client.HasLabels{appsv1.ApplicationLabel})).To(Succeed())
	out := map[string]*kustomizev1.Kustomization{}
	for i := range list.Items {
		out[list.Items[i].Name] = &list.Items[i]
	}
	return out
}

func (s *scenario) releases() map[string]*helmv2.HelmRelease {
	var list helmv2.HelmReleaseList
	s.Expect(env.Hub.Client.List(s.ctx, &list, client.InNamespace(s.ns))).To(Succeed())
	out := map[string]*helmv2.HelmRelease{}
	for i := range list.Items {
		out[list.Items[i].Name] = &list.Items[i]
	}
	return out
}

func names[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }

// resourceVersions tells whether children were written, by us or by Flux.
func (s *scenario) resourceVersions() map[string]string {
	out := map[string]string{}
	for name, k := range s.kustomizations() {
		out[name] = k.ResourceVersion
	}
	for name, h := range s.releases() {
		out[name] = h.ResourceVersion
	}
	return out
}

// without returns a map without some keys.
func without[V any](m map[string]V, keys ...string) map[string]V {
	m = maps.Clone(m)
	for _, key := range keys {
		delete(m, key)
	}
	return m
}

// ready waits until the present generation of an Application is Ready=True with this many members, "2/2" say.
func (s *scenario) ready(app, members string) {
	s.t.Helper()
	s.reports(app, metav1.ConditionTrue, members)
}

// reports waits for a Ready condition and a count of members in the status of an Application.
func (s *scenario) reports(name string, status metav1.ConditionStatus, members string) *appsv1.Application {
	s.t.Helper()
	var app *appsv1.Application
	s.Eventually(func(g Gomega) {
		app = s.app(name)
		c := apimeta.FindStatusCondition(app.Status.Conditions, meta.ReadyCondition)
		g.Expect(c).NotTo(BeNil(), "there is no condition Ready yet")
		g.Expect(fmt.Sprintf("%s %s", c.Status, app.Status.Members.Summary)).To(Equal(fmt.Sprintf("%s %s", status, members)), c.Message)
		g.Expect(app.Status.ObservedGeneration).To(Equal(app.Generation), "observed generation")
	}).Should(Succeed())
	return app
}

// notReady returns the members that a status lists, with their reasons.
func notReady(members fleetv1.MemberSummary) map[string]string {
	out := map[string]string{}
	for _, m := range members.NotReady {
		out[m.Name] = m.Reason
	}
	return out
}

// memberMessage returns what a status says of a member.
func memberMessage(members fleetv1.MemberSummary, name string) string {
	for _, m := range members.NotReady {
		if m.Name == name {
			return m.Message
		}
	}
	return ""
}

// condition returns a condition as "True Reason: message"; empty if there is none.
func condition(conditions []metav1.Condition, t string) string {
	c := apimeta.FindStatusCondition(conditions, t)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
}

// health returns the Ready condition of an AttachedCluster.
func (s *scenario) health(name string) func() string {
	return func() string {
		c := get(s, &clusterv1.AttachedCluster{}, name)
		return condition(c.Status.Conditions, meta.ReadyCondition)
	}
}

// data returns the data of a ConfigMap of a cluster; nil if there is none.
func (s *scenario) data(cluster *harness.Cluster, namespace, name string) func() (map[string]string, error) {
	return func() (map[string]string, error) {
		cm := &corev1.ConfigMap{}
		err := cluster.Client.Get(s.ctx, client.ObjectKey{Namespace: namespace, Name: name}, cm)
		return cm.Data, client.IgnoreNotFound(err)
	}
}

// exists says whether an object is there, and not being deleted.
func (s *scenario) exists(cluster *harness.Cluster, o client.Object) func() (bool, error) {
	return func() (bool, error) {
		err := cluster.Client.Get(s.ctx, client.ObjectKeyFromObject(o), o)
		return err == nil && o.GetDeletionTimestamp().IsZero(), client.IgnoreNotFound(err)
	}
}

// gone says whether an object of the scenario's namespace on the hub is not there any more.
func (s *scenario) gone(o client.Object) func() (bool, error) {
	o.SetNamespace(s.ns)
	return func() (bool, error) {
		err := env.Hub.Client.Get(s.ctx, client.ObjectKeyFromObject(o), o)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}
}

// applied returns the UIDs of all objects on a cluster, of whatever kind, that Flux has applied for this scenario:
// "Kind namespace/name". Kinds that Flux does not label are not among them.
func (s *scenario) applied(cluster *harness.Cluster) func() map[string]types.UID {
	return func() map[string]types.UID {
		out := map[string]types.UID{}
		for _, group := range []string{kustomizev1.GroupVersion.Group, helmv2.GroupVersion.Group} {
			for _, o := range s.labelled(cluster, client.MatchingLabels{group + "/namespace": s.ns}) {
				out[fmt.Sprintf("%s %s/%s", o.Kind, o.Namespace, o.Name)] = o.UID
			}
		}
		return out
	}
}

// labelled returns the objects of any kind that carry labels.
func (s *scenario) labelled(cluster *harness.Cluster, labels client.MatchingLabels) []metav1.PartialObjectMetadata {
	var out []metav1.PartialObjectMetadata
	for _, gvk := range s.kinds(cluster) {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(gvk)
		s.Expect(cluster.Client.List(s.ctx, list, labels)).To(Succeed(), gvk.String())
		for _, o := range list.Items {
			o.Kind = gvk.Kind
			out = append(out, o)
		}
	}
	return out
}

// kindsOf remembers the kinds that a cluster can list.
var kindsOf sync.Map

func (s *scenario) kinds(cluster *harness.Cluster) []schema.GroupVersionKind {
	if kinds, ok := kindsOf.Load(cluster); ok {
		return kinds.([]schema.GroupVersionKind)
	}
	d, err := discovery.NewDiscoveryClientForConfig(cluster.RESTConfig)
	s.Expect(err).NotTo(HaveOccurred())
	lists, err := d.ServerPreferredResources()
	s.Expect(err).NotTo(HaveOccurred())
	var kinds []schema.GroupVersionKind
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		s.Expect(err).NotTo(HaveOccurred())
		for _, r := range list.APIResources {
			if slices.Contains(r.Verbs, "list") && r.Kind != "ComponentStatus" {
				kinds = append(kinds, gv.WithKind(r.Kind))
			}
		}
	}
	s.Expect(kinds).NotTo(BeEmpty())
	kindsOf.Store(cluster, kinds)
	return kinds
}

// left returns what Fleetwright has made in the scenario's namespace on the hub.
func (s *scenario) left() []string {
	var out []string
	for _, o := range s.labelled(env.Hub, client.MatchingLabels{fleetv1.ManagedByLabel: fleetv1.ManagedByValue}) {
		if o.Namespace == s.ns {
			out = append(out, o.Kind+" "+o.Name)
		}
	}
	return out
}

// hold keeps a child of the hub from ending, as a slow member would, until the function that it returns is called.
func (s *scenario) hold(o client.Object) (release func()) {
	s.t.Helper()
	const finalizer = "scenarios.test/hold"
	change := func(f func(client.Object, string) bool) {
		s.Eventually(func() error {
			if err := env.Hub.Client.Get(s.ctx, client.ObjectKeyFromObject(o), o); err != nil {
				return err
			}
			before := o.DeepCopyObject().(client.Object)
			f(o, finalizer)
			return env.Hub.Client.Patch(s.ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		}).Should(Succeed())
	}
	change(controllerutil.AddFinalizer)
	return func() { change(controllerutil.RemoveFinalizer) }
}

var controller sync.Mutex

// restartController kills Fleetwright's controller, does something while it is down, and starts it again.
func (s *scenario) restartController(meanwhile func()) {
	s.t.Helper()
	controller.Lock()
	defer controller.Unlock()
	env.KillController()
	defer func() { s.Expect(env.StartController(context.Background())).To(Succeed()) }()
	if meanwhile != nil {
		meanwhile()
	}
}

// run runs a program of bin/ against the scenario's namespace on the hub and returns what it prints.
func (s *scenario) run(program string, args ...string) (string, error) {
	cmd := exec.CommandContext(context.Background(), filepath.Join(harness.Root(), "bin", program), append(args, "--namespace", s.ns)...)
	cmd.Env = append(cmd.Environ(), "KUBECONFIG="+env.Hub.KubeconfigFile, "HOME="+env.Dir)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// flux runs the flux CLI, which has to succeed.
func (s *scenario) flux(args ...string) string {
	s.t.Helper()
	out, err := s.run("flux", args...)
	s.Expect(err).NotTo(HaveOccurred(), "flux %s:\n%s", strings.Join(args, " "), out)
	return out
}
