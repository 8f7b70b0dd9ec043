package baseline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/kustomize/kyaml/openapi"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
	"sigs.k8s.io/yaml"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	templates "github.com/fleetwright/fleetwright/fleet-templates"
	"github.com/fleetwright/fleetwright/renderers/template"
)

// collector collects the objects of a ClusterConfig, each with the field that it comes from.
type collector struct {
	objects     []collected
	seen        map[Key]string
	notInEffect []string
	err         error // the first
}

type collected struct {
	*unstructured.Unstructured
	path string
}

func (c *collector) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// add takes an object that is made here.
func (c *collector) add(o runtime.Object, path string, args ...any) {
	path = fmt.Sprintf(path, args...)
	b, err := json.Marshal(o)
	if err != nil {
		c.fail("%s: %w", path, err)
		return
	}
	tree, err := decode(b)
	if err != nil {
		c.fail("%s: %w", path, err)
		return
	}
	c.take(&unstructured.Unstructured{Object: tree}, path)
}

// take takes an object, without what only a server fills in.
func (c *collector) take(o *unstructured.Unstructured, path string) {
	delete(o.Object, "status")
	if metadata, ok := o.Object["metadata"].(map[string]any); ok {
		for _, field := range []string{"creationTimestamp", "resourceVersion", "uid", "generation", "managedFields", "selfLink"} {
			delete(metadata, field)
		}
	}
	if err := checkNames(o); err != nil {
		c.fail("%s: %w", path, err)
		return
	}
	key := KeyOf(o)
	if first, ok := c.seen[key]; ok {
		c.fail("%s: %s is in %s already", path, key, first)
		return
	}
	c.seen[key] = path
	c.objects = append(c.objects, collected{o, path})
}

// checkNames refuses names that no API server takes. One with a placeholder is refused later, with a better reason.
func checkNames(o *unstructured.Unstructured) error {
	name, namespace := o.GetName(), o.GetNamespace()
	problems := validation.IsDNS1123Subdomain(name)
	if o.GroupVersionKind().Group == "rbac.authorization.k8s.io" { // there may be colons in them, say
		problems = content.IsPathSegmentName(name)
	}
	if len(problems) > 0 && !strings.Contains(name, "<<") {
		return fmt.Errorf("metadata.name: %q: %s", name, withoutExample(problems[0]))
	}
	if problems := validation.IsDNS1123Label(namespace); namespace != "" && len(problems) > 0 && !strings.Contains(namespace, "<<") {
		return fmt.Errorf("metadata.namespace: %q: %s", namespace, withoutExample(problems[0]))
	}
	return nil
}

// withoutExample leaves out the regular expression that Kubernetes adds to its messages.
func withoutExample(text string) string {
	text, _, _ = strings.Cut(text, " (e.g.")
	return text
}

// decode reads a JSON object. Whole numbers stay whole, and what a float cannot hold stays as it is written.
func decode(b []byte) (map[string]any, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var tree map[string]any
	if err := d.Decode(&tree); err != nil {
		return nil, err
	}
	numbers(tree)
	return tree, nil
}

// numbers makes int64 of whole numbers and float64 of others, as in every unstructured object.
func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = numbers(v[k])
		}
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
		return v.String()
	}
	return v
}

func named[T ~string](name T, namespace clusterv1.NamespaceName) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: string(name), Namespace: string(namespace)}
}

func (c *collector) all(spec *clusterv1.ClusterConfigSpec) {
	for i := range spec.Namespaces {
		c.namespace(&spec.Namespaces[i], i)
	}
	for i := range spec.ResourceQuotas {
		c.resourceQuota(&spec.ResourceQuotas[i], i)
	}
	for i, l := range spec.LimitRanges {
		for j, item := range l.Limits {
			for field, list := range map[string]corev1.ResourceList{"max": item.Max, "min": item.Min, "default": item.Default,
				"defaultRequest": item.DefaultRequest, "maxLimitRequestRatio": item.MaxLimitRequestRatio} {
				for _, name := range slices.Sorted(maps.Keys(list)) {
					if q := list[name]; q.Sign() < 0 {
						c.fail("spec.limitRanges[%d].limits[%d].%s[%s]: %s is negative", i, j, field, name, q.String())
					}
				}
			}
		}
		c.add(&corev1.LimitRange{TypeMeta: typeMeta("v1", "LimitRange"), ObjectMeta: named(l.Name, l.Namespace), Spec: l.LimitRangeSpec},
			"spec.limitRanges[%d]", i)
	}
	for i := range spec.NetworkPolicies {
		c.networkPolicy(&spec.NetworkPolicies[i], i)
	}
	if spec.RBAC != nil {
		c.rbac(spec.RBAC)
	}
	for i, s := range spec.ServiceAccounts {
		o := &corev1.ServiceAccount{TypeMeta: typeMeta("v1", "ServiceAccount"), ObjectMeta: named(s.Name, s.Namespace),
			AutomountServiceAccountToken: new(s.AutomountServiceAccountToken), ImagePullSecrets: s.ImagePullSecrets}
		o.Labels, o.Annotations = s.Labels, s.Annotations
		c.add(o, "spec.serviceAccounts[%d]", i)
	}
	for i, p := range spec.PriorityClasses {
		o := &schedulingv1.PriorityClass{TypeMeta: typeMeta("scheduling.k8s.io/v1", "PriorityClass"), ObjectMeta: named(p.Name, ""),
			Value: p.Value, GlobalDefault: p.GlobalDefault, Description: p.Description, PreemptionPolicy: p.PreemptionPolicy}
		o.Annotations = map[string]string{forceAnnotation: "Enabled"} // it cannot be changed
		c.add(o, "spec.priorityClasses[%d]", i)
	}
	for i := range spec.StorageClasses {
		c.storageClass(&spec.StorageClasses[i], i)
	}
	if spec.Manifests != nil {
		for i := range spec.Manifests.Objects {
			c.manifest(spec.Manifests.Objects[i].Raw, i)
		}
	}
	c.nodes(spec)
}

func typeMeta(apiVersion, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}
}

func (c *collector) namespace(n *clusterv1.BaselineNamespace, i int) {
	o := &corev1.Namespace{TypeMeta: typeMeta("v1", "Namespace"), ObjectMeta: named(n.Name, "")}
	o.Labels, o.Annotations = maps.Clone(n.Labels), maps.Clone(n.Annotations)
	if n.PodSecurity != "" {
		for _, mode := range []string{"enforce", "audit", "warn"} {
			put(&o.Labels, "pod-security.kubernetes.io/"+mode, n.PodSecurity)
		}
	}
	if n.DeletionPolicy != "Delete" {
		put(&o.Annotations, pruneAnnotation, "disabled") // Flux looks for it on the member's object
	}
	c.add(o, "spec.namespaces[%d]", i)
}

func (c *collector) resourceQuota(q *clusterv1.BaselineResourceQuota, i int) {
	hard := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(q.Hard)) {
		value := q.Hard[name]
		hard[name] = string(value)
		// What a fact will be is known to the member's API server.
		if text, literal, err := template.JSONText(string(value)); err == nil && text == "" {
			if q, err := resource.ParseQuantity(literal); err != nil {
				c.fail("spec.resourceQuotas[%d].hard[%s]: %q is not a quantity", i, name, literal)
			} else if q.Sign() < 0 {
				c.fail("spec.resourceQuotas[%d].hard[%s]: %q is negative", i, name, literal)
			}
		}
	}
	path := fmt.Sprintf("spec.resourceQuotas[%d]", i)
	b, err := json.Marshal(corev1.ResourceQuota{TypeMeta: typeMeta("v1", "ResourceQuota"), ObjectMeta: named(q.Name, q.Namespace),
		Spec: corev1.ResourceQuotaSpec{Scopes: q.Scopes, ScopeSelector: q.ScopeSelector}})
	if err != nil {
		c.fail("%s: %w", path, err)
		return
	}
	tree, err := decode(b)
	if err != nil {
		c.fail("%s: %w", path, err)
		return
	}
	tree["spec"].(map[string]any)["hard"] = hard
	c.take(&unstructured.Unstructured{Object: tree}, path)
}

func put(m *map[string]string, key, value string) {
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[key] = value
}

// presets are the files of the presets of network policies, and their names.
var presets = map[string]string{
	clusterv1.DefaultDeny:        "default-deny",
	clusterv1.DefaultDenyIngress: "default-deny-ingress",
	clusterv1.DefaultDenyEgress:  "default-deny-egress",
	clusterv1.AllowDNS:           "allow-dns",
	clusterv1.AllowSameNamespace: "allow-same-namespace",
}

func (c *collector) networkPolicy(p *clusterv1.BaselineNetworkPolicy, i int) {
	name, spec := string(p.Name), p.Spec
	if p.Preset != "" {
		preset, ok := presets[p.Preset]
		if !ok {
			c.fail("spec.networkPolicies[%d].preset: there is none called %s", i, p.Preset)
			return
		}
		if name == "" {
			name = preset
		}
		spec = &networkingv1.NetworkPolicySpec{}
		readTemplate("networkpolicies/"+preset+".yaml", spec)
	}
	if name == "" || spec == nil {
		c.fail("spec.networkPolicies[%d]: needs a preset, or a name and a spec", i)
		return
	}
	for _, namespace := range p.Namespaces {
		c.add(&networkingv1.NetworkPolicy{TypeMeta: typeMeta("networking.k8s.io/v1", "NetworkPolicy"), ObjectMeta: named(name, namespace), Spec: *spec},
			"spec.networkPolicies[%d]", i)
	}
}

// readTemplate reads a template into a value. The templates are part of the program, so an error is one of ours.
func readTemplate(path string, into any) {
	b, err := templates.FS.ReadFile(path)
	if err == nil {
		err = yaml.UnmarshalStrict(b, into)
	}
	if err != nil {
		panic(fmt.Sprintf("fleet-templates/%s: %v", path, err))
	}
}

func (c *collector) rbac(spec *clusterv1.BaselineRBAC) {
	const group, api = "rbac.authorization.k8s.io", "rbac.authorization.k8s.io/v1"
	for i, r := range spec.ClusterRoles {
		o := &rbacv1.ClusterRole{TypeMeta: typeMeta(api, "ClusterRole"), ObjectMeta: named(r.Name, ""), Rules: r.Rules}
		o.Labels = r.Labels
		c.add(o, "spec.rbac.clusterRoles[%d]", i)
	}
	for i, r := range spec.Roles {
		o := &rbacv1.Role{TypeMeta: typeMeta(api, "Role"), ObjectMeta: named(r.Name, r.Namespace), Rules: r.Rules}
		o.Labels = r.Labels
		c.add(o, "spec.rbac.roles[%d]", i)
	}
	for i, b := range spec.Bindings {
		ref := rbacv1.RoleRef{APIGroup: group, Kind: "ClusterRole", Name: b.ClusterRole}
		if b.Role != "" {
			ref.Kind, ref.Name = "Role", b.Role
		}
		var subjects []rbacv1.Subject
		for _, g := range b.Groups {
			subjects = append(subjects, rbacv1.Subject{APIGroup: group, Kind: rbacv1.GroupKind, Name: g})
		}
		for _, u := range b.Users {
			subjects = append(subjects, rbacv1.Subject{APIGroup: group, Kind: rbacv1.UserKind, Name: u})
		}
		for _, s := range b.ServiceAccounts {
			subjects = append(subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: string(s.Name), Namespace: string(s.Namespace)})
		}
		// A binding's role cannot be changed: Flux makes it anew.
		force := map[string]string{forceAnnotation: "Enabled"}
		if b.Namespace == "" {
			o := &rbacv1.ClusterRoleBinding{TypeMeta: typeMeta(api, "ClusterRoleBinding"), ObjectMeta: named(b.Name, ""), RoleRef: ref, Subjects: subjects}
			o.Annotations = force
			c.add(o, "spec.rbac.bindings[%d]", i)
			continue
		}
		o := &rbacv1.RoleBinding{TypeMeta: typeMeta(api, "RoleBinding"), ObjectMeta: named(b.Name, b.Namespace), RoleRef: ref, Subjects: subjects}
		o.Annotations = force
		c.add(o, "spec.rbac.bindings[%d]", i)
	}
}

func (c *collector) storageClass(s *clusterv1.BaselineStorageClass, i int) {
	o := &storagev1.StorageClass{TypeMeta: typeMeta("storage.k8s.io/v1", "StorageClass"), ObjectMeta: named(s.Name, ""),
		Provisioner: s.Provisioner, Parameters: s.Parameters, ReclaimPolicy: s.ReclaimPolicy, MountOptions: s.MountOptions,
		AllowVolumeExpansion: s.AllowVolumeExpansion}
	if s.VolumeBindingMode != "" {
		o.VolumeBindingMode = new(storagev1.VolumeBindingMode(s.VolumeBindingMode))
	}
	o.Annotations = map[string]string{forceAnnotation: "Enabled"} // most of it cannot be changed
	if s.Default {
		o.Annotations["storageclass.kubernetes.io/is-default-class"] = "true"
	}
	c.add(o, "spec.storageClasses[%d]", i)
}

// namespaced says whether an object is of one of Kubernetes' own kinds that live in a namespace, or of one that does not.
// Without a namespace, or with one, Flux applies none, and two ClusterConfigs could mean the same object.
func namespaced(o *unstructured.Unstructured) (is, isNot bool) {
	is, known := openapi.IsNamespaceScoped(kyaml.TypeMeta{APIVersion: o.GetAPIVersion(), Kind: o.GetKind()})
	return is, known && !is
}

// kustomizes returns an annotation of an object that kustomize would act on; empty if there is none.
func kustomizes(o *unstructured.Unstructured) string {
	for _, key := range slices.Sorted(maps.Keys(o.GetAnnotations())) {
		if strings.HasPrefix(key, "config.kubernetes.io/") || strings.HasPrefix(key, "internal.config.kubernetes.io/") {
			return key
		}
	}
	return ""
}

func (c *collector) manifest(raw []byte, i int) {
	path := fmt.Sprintf("spec.manifests.objects[%d]", i)
	tree, err := decode(raw)
	if err != nil {
		c.fail("%s: %w", path, err)
		return
	}
	o := &unstructured.Unstructured{Object: tree}
	inNamespace, inNone := namespaced(o)
	switch {
	case o.GetKind() == "" || o.GetAPIVersion() == "" || o.GetName() == "":
		c.fail("%s: an object needs apiVersion, kind and metadata.name", path)
	case o.GetKind() == "Secret" && o.GetAPIVersion() == "v1":
		c.fail("%s: Secret %s must not be published: keep it in Git with SOPS and deliver it by an Application", path, o.GetName())
	case strings.HasSuffix(o.GetKind(), "List") && tree["items"] != nil:
		c.fail("%s: %s: write each object of the list as an object of its own", path, o.GetKind())
	case strings.HasPrefix(o.GetAPIVersion(), "kustomize.config.k8s.io/"):
		c.fail("%s: a kustomization is no object: put it into a Git repository, and name that in manifests.sourceRef", path)
	case len(validation.IsDNS1035Label(strings.ToLower(o.GetKind()))) > 0 || o.GetKind()[0] < 'A' || o.GetKind()[0] > 'Z':
		c.fail("%s.kind: %q is no kind", path, o.GetKind())
	case kustomizes(o) != "":
		c.fail("%s.metadata.annotations[%s]: it is kustomize's own, which leaves out what has it, or fails: take it out", path, kustomizes(o))
	case o.GetNamespace() == "" && inNamespace:
		c.fail("%s: %s %s needs metadata.namespace", path, o.GetKind(), o.GetName())
	case o.GetNamespace() != "" && inNone:
		c.fail("%s.metadata.namespace: a %s is in no namespace: take it out", path, o.GetKind())
	case o.GetKind() == "ConfigMap" && o.GetName() == factsName:
		c.fail("%s: ConfigMap %s is Fleetwright's own: use another name", path, factsName)
	default:
		// As in spec.namespaces, none goes with all that is in it because a line was taken out.
		if annotations := o.GetAnnotations(); o.GetKind() == "Namespace" && o.GetAPIVersion() == "v1" && annotations[pruneAnnotation] == "" {
			put(&annotations, pruneAnnotation, "disabled")
			o.SetAnnotations(annotations)
		}
		c.take(o, path)
	}
}
