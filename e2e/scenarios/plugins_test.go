package scenarios

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	k8sappsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/e2e/harness"
)

// pluginFields are all plugins, as a fleet of the members one, two and three declares them; COMPONENTS-<name> is where
// their charts come from.
var pluginFields = map[string]string{
	"metric": `
    thanos: {objectStoreConfig: {secretName: objstore}}
    prometheus: {external: {sourceRanges: [10.0.0.0/8]}}`,
	"grafana": `
    adminSecretName: grafana-admin`,
	"policy": `
    kyverno: {podSecurity: {standard: baseline}}`,
	"backup": `
    storage:
      location: {bucket: backups, provider: aws, endpoint: "https://s3.example.test", region: eu}
      secretName: velero`,
	"distributedStorage": `
    storage: {storage: {nodes: [{name: a, devices: [{name: sdb}]}, {name: b, devices: [{name: sdb}]}, {name: c, devices: [{name: sdb}]}]}}`,
	"flagger": `
    trafficRoutingProvider: traefik
    publicTestloader: true`,
	"submariner": `
    brokerServer: broker.example.test:6443
    clusterCidrs: {CLUSTER-CIDRS}
    serviceCidrs: {SERVICE-CIDRS}`,
}

// fleetWithPlugins returns a Fleet of members with some of the plugins; more is further YAML for a plugin.
func fleetWithPlugins(charts *harness.Charts, members []string, plugins []string, more map[string]string) string {
	doc := fleet("prod", members...) + "  plugin:\n"
	var pods, services []string
	for _, m := range members {
		n := map[string]int{"one": 1, "two": 2, "three": 3}[m]
		pods, services = append(pods, fmt.Sprintf("%s: 10.%d.0.0/16", m, n)), append(services, fmt.Sprintf("%s: 10.%d.0.0/16", m, 100+n))
	}
	// Of what can traffic be routed by, traefik alone is installed.
	but := map[string][]string{"flagger": {"kuma", "nginx"}}
	for _, name := range slices.Sorted(slices.Values(plugins)) {
		doc += "   " + name + ":" + replace(pluginFields[name], "CLUSTER-CIDRS", strings.Join(pods, ", "), "SERVICE-CIDRS", strings.Join(services, ", ")) +
			more[name] + "\n    components: " + charts.Components(name, but[name]...) + "\n"
	}
	return doc
}

// secrets are what the hub's Secrets have: all that a template, --set, YAML or a shell could take for something else.
type secrets struct {
	objstore, access, secret string
	admin                    string
}

// marked returns the markers in the secrets, which are looked for where no secret may be.
func (s secrets) marked() []string {
	var out []string
	for _, text := range []string{s.objstore, s.access, s.secret, s.admin} {
		_, rest, _ := strings.Cut(text, "MARK")
		out = append(out, "MARK"+rest[:16])
	}
	return out
}

func newSecrets(generation string) secrets {
	const nasty = "{{ .Release.Name }},a=b,c[0]={d}\\,\"'`$(id) ${x} << .cluster.name >> é漢😀\t|\n  - &a *a !!binary %\n---\n"
	return secrets{
		objstore: "type: S3\nconfig: {key: MARKobjstore" + generation + "aaaaaaa}\n" + nasty,
		access:   "MARKaccess" + generation + "bbbbbbbbb{{ fail \"evaluated\" }},=",
		secret:   nasty + "MARKsecret" + generation + "ccccccccc\r\n",
		admin:    "MARKadmin" + generation + "ddddddddddd{{",
	}
}

// pluginSecrets writes the Secrets of the fleet, which Flux is told to watch.
func (s *scenario) pluginSecrets(v secrets) {
	s.t.Helper()
	for name, data := range map[string]map[string]string{
		"objstore":      {"objstore.yml": v.objstore},
		"velero":        {"access-key": v.access, "secret-key": v.secret},
		"grafana-admin": {"admin-user": "admin", "admin-password": v.admin},
	} {
		secret := &corev1.Secret{ObjectMeta: s.named(name)}
		_, err := controllerutil.CreateOrUpdate(s.ctx, env.Hub.Client, secret, func() error {
			secret.Labels = map[string]string{meta.LabelKeyWatch: meta.LabelValueWatchEnabled}
			secret.Data = map[string][]byte{}
			for key, value := range data {
				secret.Data[key] = []byte(value)
			}
			return nil
		})
		s.Expect(err).NotTo(HaveOccurred())
	}
}

// secretOn returns a key of a Secret of a cluster; empty if it is not there.
func (s *scenario) secretOn(cluster *harness.Cluster, namespace, name, key string) func() (string, error) {
	return func() (string, error) {
		secret := &corev1.Secret{}
		err := cluster.Client.Get(s.ctx, types.NamespacedName{Namespace: namespace, Name: name}, secret)
		return string(secret.Data[key]), client.IgnoreNotFound(err)
	}
}

// operated is the status that the operators give to what the charts make.
var operated = map[schema.GroupVersionKind]string{
	{Group: "monitoring.coreos.com", Version: "v1", Kind: "Prometheus"}:     `{"conditions":[{"type":"Available","status":"True"},{"type":"Reconciled","status":"True"}]}`,
	{Group: "velero.io", Version: "v1", Kind: "BackupStorageLocation"}:      `{"phase":"Available"}`,
	{Group: "ceph.rook.io", Version: "v1", Kind: "CephCluster"}:             `{"phase":"Ready","ceph":{"health":"HEALTH_WARN"}}`,
	{Group: "policies.kyverno.io", Version: "v1", Kind: "ValidatingPolicy"}: `{"conditionStatus":{"ready":true}}`,
	submarinerKind: `{"gateways":[{"haStatus":"active","connections":[{"status":"connected"}]}]}`,
}

var submarinerKind = schema.GroupVersionKind{Group: "submariner.io", Version: "v1alpha1", Kind: "Submariner"}

// submarinerFinalizer is that of Submariner's operator, which it removes when it has taken the network down.
const submarinerFinalizer = "controllers.submariner.io/cleanup"

// playOperators does on a member what runs there in earnest: a cloud that gives Services a load balancer, and the operators
// of custom resources. It ends with the test.
func (s *scenario) playOperators(name string, member *harness.Cluster) {
	for wait := time.NewTicker(500 * time.Millisecond); ; {
		select {
		case <-s.ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		}
		var services corev1.ServiceList
		_ = member.Client.List(s.ctx, &services, client.InNamespace("monitoring"))
		for i := range services.Items {
			if o := &services.Items[i]; o.Spec.Type == corev1.ServiceTypeLoadBalancer && len(o.Status.LoadBalancer.Ingress) == 0 {
				before := o.DeepCopy()
				o.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: name + ".lb.example.test"}}
				_ = member.Client.Status().Patch(s.ctx, o, client.MergeFrom(before))
			}
		}
		for gvk, status := range operated {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(gvk)
			if err := member.Client.List(s.ctx, list); err != nil {
				continue // there is no such kind yet
			}
			for i := range list.Items {
				s.operate(member, &list.Items[i], status)
			}
		}
	}
}

func (s *scenario) operate(member *harness.Cluster, o *unstructured.Unstructured, status string) {
	if o.GroupVersionKind() == submarinerKind {
		before := o.DeepCopy()
		operator := &k8sappsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: "submariner-operator"}}
		there, _ := s.exists(member, operator)()
		switch {
		case !there: // and so nobody removes the finalizer
		case o.GetDeletionTimestamp() != nil && time.Since(o.GetDeletionTimestamp().Time) < 3*time.Second: // it is at work
		case o.GetDeletionTimestamp() == nil && controllerutil.AddFinalizer(o, submarinerFinalizer),
			o.GetDeletionTimestamp() != nil && controllerutil.RemoveFinalizer(o, submarinerFinalizer):
			_ = member.Client.Patch(s.ctx, o, client.MergeFrom(before))
		}
	}
	if _, has := o.Object["status"]; !has && o.GetDeletionTimestamp() == nil {
		_ = member.Client.Status().Patch(s.ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"status":`+status+`}`)))
	}
}

// pluginsReady waits until the fleet is ready with all of these plugins on so many members.
func (s *scenario) pluginsReady(plugins []string, members int) {
	s.t.Helper()
	s.Eventually(func(g Gomega) {
		f := get(s, &fleetv1.Fleet{}, "prod")
		g.Expect(f.Status.ObservedGeneration).To(Equal(f.Generation), "observed generation")
		var ready, not []string
		for _, p := range f.Status.Plugins {
			if p.Ready == "True" {
				ready = append(ready, p.Name)
			} else {
				not = append(not, fmt.Sprintf("%s (%s %s: %s)", p.Name, p.Members, p.Reason, p.Message))
			}
			want := map[string]int{"grafana": 1, "metric": members + 1}[p.Name] // the hub counts where something is there
			if want == 0 {
				want = members
			}
			if p.Ready == "True" {
				g.Expect(p.Members).To(Equal(fmt.Sprintf("%d/%[1]d", want)), p.Name)
			}
		}
		g.Expect(not).To(BeEmpty())
		g.Expect(ready).To(ConsistOf(plugins))
		g.Expect(condition(f.Status.Conditions, meta.ReadyCondition)).To(HavePrefix("True "))
	}).Should(Succeed())
}

// ends records what of Flux ends in the scenario's namespace from now on.
type ends struct {
	mu   sync.Mutex
	seen map[string]uint64 // what ended, and when: the version of the hub's data
}

func (s *scenario) recordEnds() *ends {
	s.t.Helper()
	e := &ends{seen: map[string]uint64{}}
	withWatch, err := client.NewWithWatch(env.Hub.RESTConfig, client.Options{Scheme: harness.Scheme})
	s.Expect(err).NotTo(HaveOccurred())
	for _, list := range []client.ObjectList{&kustomizev1.KustomizationList{}, &helmv2.HelmReleaseList{}} {
		w, err := withWatch.Watch(s.ctx, list, client.InNamespace(s.ns))
		s.Expect(err).NotTo(HaveOccurred())
		go func() {
			for event := range w.ResultChan() {
				if o, ok := event.Object.(client.Object); ok && event.Type == watch.Deleted {
					version, _ := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
					e.mu.Lock()
					e.seen[o.GetName()] = version
					e.mu.Unlock()
				}
			}
		}()
	}
	return e
}

// names returns what has ended, in order.
func (e *ends) names() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.SortedFunc(maps.Keys(e.seen), func(a, b string) int { return int(int64(e.seen[a]) - int64(e.seen[b])) })
}

// expectOrder asserts that on each member components, plugin-component, ended in an order.
func (s *scenario) expectOrder(e *ends, members []string, order ...string) {
	s.t.Helper()
	for _, m := range members {
		var want []string
		for _, component := range order {
			want = append(want, "plugin-prod-"+component+"-"+m)
		}
		var got []string
		s.Eventually(func() []string {
			got = slices.DeleteFunc(e.names(), func(name string) bool { return !slices.Contains(want, name) })
			return got
		}).Should(HaveLen(len(want)), func() string { return fmt.Sprintf("of %v, this ended: %v", want, e.names()) })
		s.Expect(got).To(Equal(want))
	}
}

// deployment says whether a Deployment is on a cluster.
func (s *scenario) deployment(cluster *harness.Cluster, namespace, name string) func() (bool, error) {
	return s.exists(cluster, &k8sappsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
}

// Plugins, must hold 2, 3, 5 and 8: all plugins on three members, from nothing to the end.
func TestPlugins(t *testing.T) {
	s := begin(t)
	charts, err := env.StartCharts()
	s.Expect(err).NotTo(HaveOccurred())
	members := map[string]*harness.Cluster{"one": env.Members[0], "two": env.Members[1], "three": env.Members[2]}
	all := []string{"one", "two", "three"}
	started := time.Now()
	group, ctx := errgroup.WithContext(context.Background()) // what is started lives as long as the environment
	group.Go(func() error { return env.Hub.StartNodes(ctx, 1) })
	for _, m := range members {
		group.Go(func() error { return m.StartNodes(ctx, 2) })
	}
	s.Expect(group.Wait()).To(Succeed())
	t.Logf("nodes are up after %s", time.Since(started).Round(time.Second/10))
	for name, m := range members {
		s.attach(name, m)
		go s.playOperators(name, m)
	}
	plugins := slices.Sorted(maps.Keys(pluginFields))
	was := newSecrets("0")
	s.pluginSecrets(was)
	started = time.Now()
	s.apply(fleetWithPlugins(charts, all, plugins, nil))

	t.Log("the fleet becomes ready with all of them")
	s.pluginsReady(plugins, 3)
	t.Logf("ready after %s", time.Since(started).Round(time.Second/10))
	s.facts(members)
	t.Logf("with all endpoints after %s", time.Since(started).Round(time.Second/10))
	s.secretsArrived(members, was)

	t.Log("rotated secrets reach the members, and the hub's controllers run on")
	now := newSecrets("1")
	s.pluginSecrets(now)
	s.secretsArrived(members, now)
	s.pluginsReady(plugins, 3)
	token, err := s.secretOn(members["one"], "submariner-k8s-broker", "submariner-k8s-broker-client-token", "token")()
	s.Expect(err).NotTo(HaveOccurred())
	psk := string(get(s, &corev1.Secret{}, "plugin-prod-submariner").Data["psk"])
	s.Expect(token).NotTo(BeEmpty())
	s.Expect(psk).NotTo(BeEmpty())
	hidden := append(append(was.marked(), now.marked()...), token[len(token)-40:], psk)
	s.nothingLeaks(hidden)
	for name, m := range members {
		s.onlyWhereTheChartPutsIt(name, m, hidden)
	}

	t.Log("users have objects of the kinds that came")
	for _, m := range members {
		for _, doc := range usersObjects {
			o := s.decode(doc)[0]
			s.Expect(m.Client.Create(s.ctx, o)).To(Succeed())
		}
	}

	t.Log("a plugin taken out ends in order on every member; the others stay as they are")
	e, before := s.recordEnds(), s.releaseUIDs(members, "submariner")
	plugins = slices.DeleteFunc(plugins, func(p string) bool { return p == "submariner" })
	s.apply(fleetWithPlugins(charts, all, plugins, nil))
	s.expectOrder(e, all, "submariner-connection", "submariner-operator")
	s.expectOrder(e, []string{"one"}, "submariner-connection", "submariner-operator", "submariner-broker", "submariner-broker-namespace")
	s.pluginsReady(plugins, 3)
	for _, m := range members {
		s.Expect(s.deployment(m, "submariner-operator", "submariner-operator")()).To(BeFalse())
		gone := &unstructured.Unstructured{}
		gone.SetGroupVersionKind(submarinerKind)
		gone.SetNamespace("submariner-operator")
		gone.SetName("submariner")
		s.Expect(s.exists(m, gone)()).To(BeFalse())
	}
	s.Eventually(s.gone(&corev1.Secret{ObjectMeta: s.named("plugin-prod-submariner")})).Should(BeTrue())
	s.Expect(s.releaseUIDs(members, "")).To(Equal(before))

	t.Log("so does a member that leaves, but for what is to stay; the other members keep what they have")
	e, before = s.recordEnds(), s.releaseUIDs(without(members, "three"), "")
	two := []string{"one", "two"}
	s.apply(fleetWithPlugins(charts, two, plugins, nil))
	s.expectOrder(e, []string{"three"}, "policy-policies", "policy-kyverno", "policy-namespaces")
	s.expectOrder(e, []string{"three"}, "flagger-loadtester", "flagger-flagger", "flagger-traefik")
	s.expectOrder(e, []string{"three"}, "flagger-namespaces", "metric-prometheus", "metric-objstore", "metric-namespaces")
	s.pluginsReady(plugins, 2)
	s.left3(members["three"])
	s.Expect(s.releaseUIDs(without(members, "three"), "")).To(Equal(before))
	s.Eventually(s.endpoints).Should(HaveLen(2))
	s.Eventually(s.thanosEndpoints).Should(ConsistOf("dns+one.lb.example.test:10901", "dns+two.lb.example.test:10901"))

	t.Log("the fleet goes: Rook stays, as nobody has said otherwise, and Velero goes, as somebody has")
	s.apply(fleetWithPlugins(charts, two, plugins, map[string]string{"backup": "\n    deletionPolicy: Delete"}))
	s.pluginsReady(plugins, 2)
	e = s.recordEnds()
	s.delete(&fleetv1.Fleet{ObjectMeta: s.named("prod")})
	s.Eventually(s.gone(&fleetv1.Fleet{ObjectMeta: s.named("prod")})).Should(BeTrue())
	s.expectOrder(e, two, "policy-policies", "policy-kyverno", "policy-namespaces")
	s.expectOrder(e, two, "flagger-flagger", "metric-prometheus", "metric-objstore", "metric-namespaces")
	s.expectOrder(e, []string{"hub"}, "grafana-grafana", "metric-thanos")
	s.expectOrder(e, two, "backup-velero", "backup-credentials", "backup-namespaces")
	for _, name := range two {
		m := members[name]
		s.Expect(s.deployment(m, "velero", "velero")()).To(BeFalse(), name)
		s.Expect(s.deployment(m, "monitoring", "prometheus")()).To(BeFalse(), name)
		s.Expect(s.deployment(m, "kyverno", "kyverno")()).To(BeFalse(), name)
		for _, release := range []string{"rook-ceph", "ceph-csi-drivers", "rook-ceph-cluster"} {
			s.Expect(s.deployment(m, "rook-ceph", release)()).To(BeTrue(), "%s on %s", release, name)
		}
		s.usersObjectsStay(name, m)
	}
	s.nothingOnHub()
	s.nothingLeaks(hidden)
}

// facts waits until what was read from members is where it goes.
func (s *scenario) facts(members map[string]*harness.Cluster) {
	s.t.Helper()
	var shown, asked []string
	for name := range members {
		shown, asked = append(shown, name+" dns+"+name+".lb.example.test:10901"), append(asked, "dns+"+name+".lb.example.test:10901")
	}
	s.Eventually(s.endpoints).Should(ConsistOf(shown))
	s.Eventually(s.thanosEndpoints).Should(ConsistOf(asked))
	s.Expect(s.deployment(env.Hub, s.ns, "prod-thanos")()).To(BeTrue())
	s.Expect(s.deployment(env.Hub, s.ns, "prod-grafana")()).To(BeTrue())

	broker := &corev1.Secret{}
	s.Expect(members["one"].Client.Get(s.ctx, types.NamespacedName{Namespace: "submariner-k8s-broker", Name: "submariner-k8s-broker-client-token"}, broker)).To(Succeed())
	s.Expect(broker.Data["token"]).NotTo(BeEmpty())
	keys := map[string]bool{}
	for name, m := range members {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(submarinerKind)
		s.Expect(m.Client.Get(s.ctx, types.NamespacedName{Namespace: "submariner-operator", Name: "submariner"}, o)).To(Succeed())
		spec, _, _ := unstructured.NestedStringMap(o.Object, "spec")
		s.Expect(spec["brokerK8sApiServerToken"]).To(Equal(string(broker.Data["token"])), name)
		s.Expect(spec["brokerK8sCA"]).To(Equal(base64.StdEncoding.EncodeToString(broker.Data["ca.crt"])), name)
		s.Expect(spec).To(SatisfyAll(HaveKeyWithValue("clusterID", name), HaveKeyWithValue("brokerK8sApiServer", "broker.example.test:6443")))
		keys[spec["ceIPSecPSK"]] = true
	}
	s.Expect(keys).To(HaveLen(1))
	s.Expect(keys).NotTo(HaveKey(""))
}

// endpoints returns what the fleet says that its Prometheus is reached at.
func (s *scenario) endpoints() (out []string) {
	for _, e := range get(s, &fleetv1.Fleet{}, "prod").Status.PluginEndpoints {
		if e.Plugin == "metric" {
			out = append(out, e.Cluster+" "+e.Address)
		}
	}
	return out
}

// thanosEndpoints returns what the hub's Thanos asks.
func (s *scenario) thanosEndpoints() []string {
	for name, hr := range s.releases() {
		if strings.HasPrefix(name, "plugin-prod-metric-thanos") {
			var values struct{ AdditionalEndpoints []string }
			s.Expect(json.Unmarshal(hr.Spec.Values.Raw, &values)).To(Succeed())
			return values.AdditionalEndpoints
		}
	}
	return nil
}

// secretsArrived waits until every member has what the hub has, byte for byte.
func (s *scenario) secretsArrived(members map[string]*harness.Cluster, v secrets) {
	s.t.Helper()
	for name, m := range members {
		s.Eventually(s.secretOn(m, "monitoring", "thanos-objstore", "objstore.yml")).Should(Equal(v.objstore), name)
		s.Eventually(s.secretOn(m, "velero", "velero-credentials", "cloud")).
			Should(Equal("[default]\naws_access_key_id="+v.access+"\naws_secret_access_key="+v.secret+"\n"), name)
	}
}

// releaseUIDs returns the UIDs of the Deployments of all plugins but one on members.
func (s *scenario) releaseUIDs(members map[string]*harness.Cluster, but string) map[string]types.UID {
	out := map[string]types.UID{}
	for name, m := range members {
		var list k8sappsv1.DeploymentList
		s.Expect(m.Client.List(s.ctx, &list)).To(Succeed())
		for _, d := range list.Items {
			if d.Labels["app.kubernetes.io/instance"] != "" && (but == "" || !strings.HasPrefix(d.Namespace, but)) {
				out[name+" "+d.Namespace+"/"+d.Name] = d.UID
			}
		}
	}
	return out
}

// usersObjects are what users have of the kinds that plugins bring.
var usersObjects = []string{
	"apiVersion: monitoring.coreos.com/v1\nkind: ServiceMonitor\nmetadata: {name: users, namespace: default}",
	"apiVersion: flagger.app/v1beta1\nkind: Canary\nmetadata: {name: users, namespace: default}",
	"apiVersion: velero.io/v1\nkind: Backup\nmetadata: {name: users, namespace: velero}",
	"apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: users}",
	"apiVersion: policies.kyverno.io/v1\nkind: ValidatingPolicy\nmetadata: {name: users}",
}

func (s *scenario) usersObjectsStay(name string, m *harness.Cluster) {
	s.t.Helper()
	for _, doc := range usersObjects {
		o := s.decode(doc)[0]
		s.Expect(s.exists(m, o)()).To(BeTrue(), "%s on %s", o.GetKind(), name)
	}
}

// left3 asserts what is on a member that has left: Velero, Rook, and what is the users'.
func (s *scenario) left3(m *harness.Cluster) {
	s.t.Helper()
	has := names(s.releaseUIDs(map[string]*harness.Cluster{"three": m}, ""))
	s.Expect(has).To(ConsistOf("three velero/velero", "three rook-ceph/rook-ceph", "three rook-ceph/ceph-csi-drivers", "three rook-ceph/rook-ceph-cluster"))
	s.usersObjectsStay("three", m)
	for _, ns := range []string{"monitoring", "kyverno", "velero", "rook-ceph", "flagger-system"} {
		s.Expect(s.exists(m, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})()).To(BeTrue(), ns)
	}
}

// nothingOnHub asserts that nothing of the plugins is left on the hub, in its API server and on its disks.
func (s *scenario) nothingOnHub() {
	s.t.Helper()
	s.Eventually(s.left).Should(BeEmpty())
	for _, list := range []client.ObjectList{&appsv1.ApplicationList{}, &kustomizev1.KustomizationList{}, &helmv2.HelmReleaseList{},
		&sourcev1.HelmRepositoryList{}, &sourcev1.HelmChartList{}, &sourcev1.OCIRepositoryList{}, &sourcev1.ExternalArtifactList{}} {
		s.Expect(env.Hub.Client.List(s.ctx, list, client.InNamespace(s.ns))).To(Succeed())
		s.Expect(apimeta.LenList(list)).To(BeZero(), "%T", list)
	}
	var deployments k8sappsv1.DeploymentList
	s.Expect(env.Hub.Client.List(s.ctx, &deployments, client.InNamespace(s.ns))).To(Succeed())
	s.Expect(deployments.Items).To(BeEmpty())
	s.Eventually(s.published).Should(BeEmpty())
}

// published returns the files of the scenario's namespace that Fleetwright serves.
func (s *scenario) published() (files []string) {
	_ = filepath.WalkDir(filepath.Join(env.Dir, "rendered"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && strings.Contains(path, s.ns) {
			files = append(files, path)
		}
		return nil
	})
	return files
}

// encodings returns how a text may be written in a dump: as it is, and as a part of something in base64.
func encodings(text string) []string {
	out := []string{text}
	for shift := range 3 {
		encoded := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat(" ", shift) + text))
		// The first and the last characters depend on what is around the text.
		out = append(out, encoded[(shift*8+5)/6:len(encoded)-2])
	}
	return out
}

// find returns which of the texts are in content, in whatever encoding. The texts themselves are not named.
func find(hidden []string, content []byte) (found []int) {
	for i, text := range hidden {
		if slices.ContainsFunc(encodings(text), func(e string) bool { return bytes.Contains(content, []byte(e)) }) {
			found = append(found, i)
		}
	}
	return found
}

// dump calls f with every object of a cluster, Helm's releases unpacked.
func (s *scenario) dump(cluster *harness.Cluster, f func(o *unstructured.Unstructured, content []byte)) {
	s.t.Helper()
	kindsOf.Delete(cluster) // plugins have brought more
	for _, gvk := range s.kinds(cluster) {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		s.Expect(cluster.Client.List(s.ctx, list)).To(Succeed(), gvk.String())
		for i := range list.Items {
			o := &list.Items[i]
			content, err := json.Marshal(o.Object)
			s.Expect(err).NotTo(HaveOccurred())
			if release, _, _ := unstructured.NestedString(o.Object, "data", "release"); release != "" {
				b, err := base64.StdEncoding.DecodeString(release)
				s.Expect(err).NotTo(HaveOccurred())
				b, err = base64.StdEncoding.DecodeString(string(b))
				s.Expect(err).NotTo(HaveOccurred())
				content = append(content, unpacked(b)...)
			}
			f(o, content)
		}
	}
}

// unpacked returns what is in a gzip file; anything else as it is.
func unpacked(b []byte) []byte {
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return b
	}
	out, err := io.ReadAll(r)
	if err != nil {
		return b
	}
	return out
}

// nothingLeaks asserts that no secret is on the hub but in the Secrets of the fleet: in no object, log or artifact.
func (s *scenario) nothingLeaks(hidden []string) {
	s.t.Helper()
	secrets := []string{"objstore", "velero", "grafana-admin", "plugin-prod-submariner"}
	held := map[string]bool{}
	s.dump(env.Hub, func(o *unstructured.Unstructured, content []byte) {
		found := find(hidden, content)
		if o.GetKind() == "Secret" && o.GetNamespace() == s.ns && slices.Contains(secrets, o.GetName()) {
			held[o.GetName()] = len(found) > 0
			return
		}
		s.Expect(found).To(BeEmpty(), "%s %s/%s", o.GetKind(), o.GetNamespace(), o.GetName())
	})
	s.Expect(held).To(SatisfyAll(HaveKeyWithValue("objstore", true), HaveKeyWithValue("velero", true)), "what is looked for is found where it is")
	files := 0
	for _, dir := range []string{"logs", "artifacts", "rendered"} {
		err := filepath.WalkDir(filepath.Join(env.Dir, dir), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return nil //nolint:nilerr // removed meanwhile
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return nil //nolint:nilerr // removed meanwhile
			}
			files++
			s.Expect(find(hidden, unpacked(b))).To(BeEmpty(), path)
			return nil
		})
		s.Expect(err).NotTo(HaveOccurred())
	}
	s.Expect(files).To(BeNumerically(">", 20))
}

// onlyWhereTheChartPutsIt asserts that on a member secrets are in those objects alone that are there to hold them.
func (s *scenario) onlyWhereTheChartPutsIt(name string, member *harness.Cluster, hidden []string) {
	s.t.Helper()
	allowed := []string{"Secret monitoring/thanos-objstore", "Secret velero/velero-credentials", "Submariner submariner-operator/submariner",
		"Secret submariner-k8s-broker/submariner-k8s-broker-client-token"}
	held := map[string]bool{}
	s.dump(member, func(o *unstructured.Unstructured, content []byte) {
		if len(find(hidden, content)) == 0 {
			return
		}
		at := fmt.Sprintf("%s %s/%s", o.GetKind(), o.GetNamespace(), o.GetName())
		if o.GetKind() == "Secret" && strings.HasPrefix(o.GetName(), "sh.helm.release.v1.") {
			at = "release " + o.GetLabels()["name"] // Helm keeps the values of a release, on the member
		}
		held[at] = true
	})
	want := append(slices.Clone(allowed), "release objstore", "release credentials", "release submariner-operator")
	if name != "one" {
		want = slices.DeleteFunc(want, func(w string) bool { return strings.Contains(w, "broker") })
	}
	s.Expect(names(held)).To(ConsistOf(want), name)
}
