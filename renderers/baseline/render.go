// Package baseline renders ClusterConfigs: to files that all members share, and to the Application that delivers them.
package baseline

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/kustomize"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/object"
	"github.com/fleetwright/fleetwright/renderers/template"
)

// Rendered is what a ClusterConfig becomes. It is shared and only read.
type Rendered struct {
	// Files are the rendered manifests by path, with a kustomization.yaml; nil if there are none.
	Files map[string][]byte
	// Revision is "latest@sha256:" and a digest of the paths and contents.
	Revision string
	// Objects are what is in the files, sorted.
	Objects []*unstructured.Unstructured
	// Application delivers the files; nil if there are none.
	Application *appsv1.Application
	// Overlay delivers what is in the user's own source, after the files; nil if there is none.
	Overlay *appsv1.Application
	// NotInEffect says what is accepted and has no effect.
	NotInEffect []string
	// paths are the fields that the objects come from.
	paths map[Key]string
}

const (
	pruneAnnotation = "kustomize.toolkit.fluxcd.io/prune"
	forceAnnotation = "kustomize.toolkit.fluxcd.io/force"
	ssaAnnotation   = "kustomize.toolkit.fluxcd.io/ssa"
	// applyTimeout bounds how long Flux waits for what it has applied to be healthy.
	applyTimeout = 5 * time.Minute
	// policyName and overlayName are the sync policies of the Applications.
	policyName  = "objects"
	overlayName = "overlay"
)

// Name returns the name of the ExternalArtifact and of the Application of a ClusterConfig.
func Name(config string) string { return object.Name(application.MaxNameLength, "baseline", config) }

// OverlayName returns the name of the Application of a ClusterConfig's manifests.sourceRef.
func OverlayName(config string) string {
	return object.Name(application.MaxNameLength, "baseline", config, overlayName)
}

// Render renders a ClusterConfig. An error is one that only a change of the spec mends; it names the field.
func Render(config *clusterv1.ClusterConfig) (*Rendered, error) {
	c := collector{seen: map[Key]string{}}
	c.all(&config.Spec)
	if c.err != nil {
		return nil, c.err
	}
	r := &Rendered{NotInEffect: c.notInEffect, paths: c.seen}
	var patches []kustomize.Patch
	for _, o := range c.objects {
		patch, err := shareable(o.Unstructured)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", o.path, KeyOf(o.Unstructured), err)
		}
		if patch != nil {
			patches = append(patches, *patch)
		}
		r.Objects = append(r.Objects, o.Unstructured)
	}
	slices.SortFunc(r.Objects, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(cmp.Compare(a.GetKind(), b.GetKind()), cmp.Compare(a.GetNamespace(), b.GetNamespace()),
			cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(a.GetAPIVersion(), b.GetAPIVersion()))
	})
	slices.SortFunc(patches, func(a, b kustomize.Patch) int {
		return cmp.Or(cmp.Compare(a.Target.Kind, b.Target.Kind), cmp.Compare(a.Target.Namespace, b.Target.Namespace),
			cmp.Compare(a.Target.Name, b.Target.Name), cmp.Compare(a.Target.Group, b.Target.Group))
	})
	manifests := config.Spec.Manifests
	overlay := manifests != nil && manifests.SourceRef != nil
	if len(r.Objects) == 0 && !overlay {
		return nil, errors.New("spec: there is nothing in this ClusterConfig")
	}
	if len(r.Objects) > 0 {
		var err error
		if r.Files, err = files(r.Objects, facts(&patches)); err != nil {
			return nil, err
		}
		r.Revision = revision(r.Files)
		r.Application = deliver(config, patches)
	}
	if overlay {
		r.Overlay = deliverOverlay(config, r.Application)
	}
	if len(config.Spec.Overrides) > 0 && r.Application == nil {
		r.NotInEffect = append(r.NotInEffect, "spec.overrides (they are for what is rendered here, and not for manifests.sourceRef)")
	}
	if i := config.Spec.Interval; i != nil && i.Duration <= 0 {
		r.NotInEffect = append(r.NotInEffect, fmt.Sprintf("spec.interval: %s (it is %s)", i.Duration, application.DefaultInterval))
	}
	for _, app := range []*appsv1.Application{r.Application, r.Overlay} {
		if app == nil {
			continue
		}
		if _, err := application.Compile(app); err != nil {
			return nil, fmt.Errorf("what this becomes is invalid: %w", err)
		}
	}
	return r, nil
}

// Manifests writes objects that all members share to files, with a kustomization.yaml. Where they have member facts, the
// patches, which are for each member's Kustomization, have them instead.
func Manifests(objects []*unstructured.Unstructured) (map[string][]byte, []kustomize.Patch, error) {
	var patches []kustomize.Patch
	for _, o := range objects {
		patch, err := shareable(o)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", KeyOf(o), err)
		}
		if patch != nil {
			patches = append(patches, *patch)
		}
	}
	out, err := files(objects, facts(&patches))
	return out, patches, err
}

// Revision returns the revision of files: "latest@sha256:" and a digest of the paths and contents.
func Revision(files map[string][]byte) string { return revision(files) }

// shareable makes an object one for all members: where it has member facts, the patch that it returns has them instead.
func shareable(o *unstructured.Unstructured) (*kustomize.Patch, error) {
	var ops []string
	var walk func(v any, pointer, path string) (any, error)
	walk = func(v any, pointer, path string) (any, error) {
		switch v := v.(type) {
		case map[string]any:
			for _, k := range slices.Sorted(maps.Keys(v)) {
				if err := carried(k); err != nil || k == "<<" {
					return nil, cmp.Or(err, fmt.Errorf("%s: YAML takes the key << for another thing", cmp.Or(path, "the object")))
				}
				changed, err := walk(v[k], pointer+"/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(k), join(path, k))
				if err != nil {
					return nil, err
				}
				v[k] = changed
			}
		case []any:
			for i := range v {
				changed, err := walk(v[i], pointer+"/"+strconv.Itoa(i), path+"["+strconv.Itoa(i)+"]")
				if err != nil {
					return nil, err
				}
				v[i] = changed
			}
		case string:
			if err := carried(v); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			text, literal, err := template.JSONText(v)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			if text == "" {
				return literal, nil
			}
			if path == "apiVersion" || path == "kind" || path == "metadata.name" || path == "metadata.namespace" {
				return nil, fmt.Errorf("%s: %s: the name of an object cannot differ between members: use one name, or an Application", path, v)
			}
			op, err := json.Marshal(pointer)
			if err != nil {
				return nil, err
			}
			ops = append(ops, fmt.Sprintf(`{"op":"replace","path":%s,"value":%s}`, op, text))
			return v, nil
		}
		return v, nil
	}
	if _, err := walk(o.Object, "", ""); err != nil || len(ops) == 0 {
		return nil, err
	}
	return &kustomize.Patch{Target: selector(o), Patch: "[" + strings.Join(ops, ",") + "]"}, nil
}

// carried refuses what would not come out of kustomize, which reads JSON as YAML, as it went in.
func carried(s string) error {
	for _, r := range s {
		if r >= 0x7f && r < 0xa0 || r == 0xfffe || r == 0xffff {
			return fmt.Errorf("the character %U does not come through kustomize: take it out, or use binaryData", r)
		}
	}
	return nil
}

// factsName is the name of the object that keeps members without their facts from applying the files.
const factsName = "fleetwright-facts"

// facts adds a patch that says that the others are there, and returns its key, which stands for all of them; empty if there
// are none.
//
// The files that all members share hold placeholders, and are published before every member's Kustomization has the patches
// for them; one whose facts are missing will not get them at all. Without the patch of this key the files do not build, so
// nothing is applied, and nothing pruned: the replacement in the kustomization.yaml finds no source. The object itself is
// never applied: kustomize leaves out what is local-config.
func facts(patches *[]kustomize.Patch) string {
	if len(*patches) == 0 {
		return ""
	}
	b, _ := json.Marshal(*patches) // texts alone: it cannot fail
	sum := sha256.Sum256(b)
	key := "facts-" + hex.EncodeToString(sum[:8])
	*patches = append(*patches, kustomize.Patch{
		Target: &kustomize.Selector{Version: "v1", Kind: "ConfigMap", Name: factsName},
		Patch:  fmt.Sprintf(`[{"op":"add","path":"/data/%s","value":"set"}]`, key),
	})
	return key
}

// selector selects just this object. Kustomize takes what is in it for regular expressions, and nothing for anything.
func selector(o *unstructured.Unstructured) *kustomize.Selector {
	gvk := o.GroupVersionKind()
	group := regexp.QuoteMeta(gvk.Group)
	if group == "" {
		group = "^$" // a Service of Kubernetes, and not one of Knative
	}
	return &kustomize.Selector{
		Group: group, Version: gvk.Version, Kind: gvk.Kind,
		Namespace: regexp.QuoteMeta(o.GetNamespace()), Name: regexp.QuoteMeta(o.GetName()),
	}
}

// annotate returns an override that gives objects an annotation on members.
func annotate(objects []*unstructured.Unstructured, members []string, annotation string) appsv1.Override {
	o := appsv1.Override{Clusters: members, Kustomization: &appsv1.KustomizationOverride{}}
	for _, object := range objects {
		o.Kustomization.Patches = append(o.Kustomization.Patches, patchAnnotations(object, annotation))
	}
	return o
}

const annotationsLine = "\n  annotations:\n"

func patchAnnotations(o *unstructured.Unstructured, annotations string) kustomize.Patch {
	return kustomize.Patch{
		Target: selector(o),
		Patch: fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata:\n  name: %s%s    %s\n",
			o.GetAPIVersion(), o.GetKind(), strconv.Quote(o.GetName()), annotationsLine, annotations),
	}
}

// files writes the objects, a file for each kind, and a kustomization.yaml that names them.
func files(objects []*unstructured.Unstructured, facts string) (map[string][]byte, error) {
	out := map[string][]byte{}
	for _, o := range objects {
		b, err := yaml.Marshal(o.Object)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", KeyOf(o), err)
		}
		name := strings.ToLower(o.GetKind()) + ".yaml"
		out[name] = append(append(out[name], "---\n"...), b...)
	}
	if _, ok := out["kustomization.yaml"]; ok {
		return nil, errors.New("spec.manifests.objects: a Kustomization is for the hub, and not for a member: use an Application")
	}
	k := map[string]any{"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
	if facts != "" {
		self := map[string]any{"version": "v1", "kind": "ConfigMap", "name": factsName}
		k["replacements"] = []any{map[string]any{
			"source":  map[string]any{"version": "v1", "kind": "ConfigMap", "name": factsName, "fieldPath": "data." + facts},
			"targets": []any{map[string]any{"select": self, "fieldPaths": []any{"data." + facts}}},
		}}
		b, err := yaml.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": factsName, "annotations": map[string]any{"config.kubernetes.io/local-config": "true"}},
			"data":     map[string]any{"about": "Without the facts of a member, which are patches in its Kustomization, this does not build."}})
		if err != nil {
			return nil, err
		}
		out["_facts.yaml"] = b // no kind is written like this
	}
	k["resources"] = slices.Sorted(maps.Keys(out))
	b, err := yaml.Marshal(k)
	if err != nil {
		return nil, err
	}
	out["kustomization.yaml"] = b
	return out, nil
}

// revision returns a digest of paths and contents. It is not that of an archive, so that another compiler changes none.
func revision(files map[string][]byte) string {
	h := sha256.New()
	add := func(b []byte) {
		_ = binary.Write(h, binary.BigEndian, uint64(len(b)))
		h.Write(b)
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		add([]byte(path))
		add(files[path])
	}
	return "latest@sha256:" + hex.EncodeToString(h.Sum(nil))
}

func deliver(config *clusterv1.ClusterConfig, patches []kustomize.Patch) *appsv1.Application {
	policy := appsv1.ApplicationSyncPolicy{Name: policyName, Kustomization: kustomization(config)}
	policy.Kustomization.Path = "./"
	policy.Kustomization.Patches = patches
	for _, o := range config.Spec.Overrides {
		policy.Overrides = append(policy.Overrides, appsv1.Override{
			Clusters: o.Clusters, Selector: o.Selector, Kustomization: &appsv1.KustomizationOverride{Patches: o.Patches},
		})
	}
	return newApplication(config, Name(config.Name), &appsv1.SourceReference{Kind: sourcev1.ExternalArtifactKind, Name: Name(config.Name)}, policy)
}

// deliverOverlay returns the Application of the user's own source, which comes after the other one, if there is one.
func deliverOverlay(config *clusterv1.ClusterConfig, after *appsv1.Application) *appsv1.Application {
	m := config.Spec.Manifests
	policy := appsv1.ApplicationSyncPolicy{Name: overlayName, Kustomization: kustomization(config)}
	policy.Kustomization.Path, policy.Kustomization.Components = m.Path, m.Components
	// As elsewhere, no namespace goes with all that is in it because it was taken out.
	policy.Kustomization.Patches = []kustomize.Patch{{
		Target: &kustomize.Selector{Group: "^$", Version: "v1", Kind: "Namespace"},
		Patch:  fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: all\n  annotations:\n    %s: disabled\n", pruneAnnotation),
	}}
	app := newApplication(config, OverlayName(config.Name), &appsv1.SourceReference{Kind: m.SourceRef.Kind, Name: m.SourceRef.Name}, policy)
	if after != nil {
		app.Spec.DependsOn = []appsv1.NameReference{{Name: after.Name}}
	}
	return app
}

func kustomization(config *clusterv1.ClusterConfig) *appsv1.Kustomization {
	k := &appsv1.Kustomization{}
	k.Prune, k.Wait = new(true), true
	k.Interval = &metav1.Duration{Duration: application.DefaultInterval}
	if i := config.Spec.Interval; i != nil && i.Duration > 0 {
		k.Interval = i
	}
	k.RetryInterval, k.Timeout = &metav1.Duration{Duration: time.Minute}, &metav1.Duration{Duration: applyTimeout}
	return k
}

func newApplication(config *clusterv1.ClusterConfig, name string, source *appsv1.SourceReference, policy appsv1.ApplicationSyncPolicy) *appsv1.Application {
	app := &appsv1.Application{}
	app.APIVersion, app.Kind = appsv1.GroupVersion.String(), appsv1.ApplicationKind
	app.Name, app.Namespace = name, config.Namespace
	target := config.Spec.Target
	app.Spec = appsv1.ApplicationSpec{
		Source:         appsv1.ApplicationSource{SourceRef: source},
		SyncPolicies:   []appsv1.ApplicationSyncPolicy{policy},
		Destination:    &appsv1.ApplicationDestination{Fleet: target.Fleet, ClusterSelector: target.ClusterSelector, Cluster: target.Cluster},
		DeletionPolicy: config.Spec.DeletionPolicy,
		PruneBudget:    config.Spec.PruneBudget,
	}
	return app
}
