// Package manifest reads what a repository declares: without a cluster, and as strictly as the API server would.
package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	kuratorv1 "github.com/fleetwright/fleetwright/api/kurator/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/plugin"
)

// Source says what is read.
type Source struct {
	// Paths are files, folders or -, which is Stdin.
	Paths []string
	Stdin io.Reader
	// Members is a file, or -, with AttachedClusters and Clusters as they are on the hub. It may be empty.
	Members string
	// Namespace of the objects that have none.
	Namespace string
}

// Set is what was read.
type Set struct {
	application.Declared
	// PluginConfigs give plugins from outside their parameters.
	PluginConfigs []*kuratorv1.PluginConfig
	// Warnings are about what was passed over.
	Warnings []error

	admissions admissions
	positions  map[id]Position
}

type id struct{ kind, namespace, name string }

// Read reads and validates everything. The error joins all that is wrong, each with file, line, object and field.
func (s Source) Read() (*Set, error) {
	set := &Set{admissions: admissions{}, positions: map[id]Position{}}
	err := set.read(s.Paths, s, false)
	if len(set.positions) == 0 {
		set.Warnings = append(set.Warnings, fmt.Errorf("no Fleet, Application, ClusterConfig, FleetSecurityPolicy, ClusterCompliance, PluginConfig, AttachedCluster or Cluster in %s", strings.Join(s.Paths, ", ")))
	}
	if s.Members == "" {
		return set, err
	}
	live := &Set{admissions: set.admissions, positions: map[id]Position{}}
	liveErr := live.read([]string{s.Members}, s, true)
	if liveErr == nil && len(live.AttachedClusters)+len(live.Clusters) == 0 {
		liveErr = fmt.Errorf("--members %s: no AttachedCluster or Cluster is in it: write it with fleetwright inventory export -A", s.Members)
	}
	set.join(live)
	return set, errors.Join(err, liveErr)
}

// Position returns where an object is written.
func (s *Set) Position(kind, namespace, name string) Position {
	return s.positions[id{kind, namespace, name}]
}

// In returns where a field of the object is that is written here: spec.clusters[0].labels.gpu. Where that cannot be told, of what
// was read from stdin say, it is where the object is.
func (p Position) In(path string) Position {
	if path == "" || p.Line == 0 {
		return p
	}
	documents, _ := Load([]string{p.File}, nil) // it was read before
	for i := range documents {
		if documents[i].Start == p {
			return documents[i].At(path)
		}
	}
	return p
}

func (s *Set) read(paths []string, source Source, live bool) error {
	documents, err := load(paths, source.Stdin, false)
	errs := []error{err}
	for _, d := range documents {
		errs = append(errs, s.add(d, source.Namespace, live))
	}
	return errors.Join(errs...)
}

// add validates one document and takes it, if it is ours.
func (s *Set) add(d Document, namespace string, live bool) error {
	if d.Object == nil {
		return d.Start.errorf("an item of a list has to be an object")
	}
	gvk := d.gvk()
	if items, ok := d.Object["items"].([]any); ok && strings.HasSuffix(gvk.Kind, "List") {
		var errs []error
		for i := range items {
			errs = append(errs, s.add(d.item(items, i), namespace, live))
		}
		return errors.Join(errs...)
	}
	if live && gvk.Kind != clusterv1.AttachedClusterKind && gvk.Kind != clusterv1.ClusterKind {
		return nil
	}
	if gvk.GroupVersion().String() == plugin.DefinitionAPIVersion && (gvk.Kind == plugin.DefinitionKind || gvk.Kind == plugin.RuleTypeKind) {
		return nil // the file of a plugin, which is no object
	}
	admission, err := s.admissions.find(gvk)
	if errors.Is(err, errUnknownKind) {
		s.Warnings = append(s.Warnings, d.Start.errorf("%w", err))
		return nil
	}
	if err != nil {
		return d.At("apiVersion").errorf("%w", err)
	}
	if admission == nil {
		return nil
	}

	metadata, _ := d.Object["metadata"].(map[string]any)
	if own, ok := metadata["namespace"]; metadata != nil && (!ok || own == "" || own == nil) {
		metadata["namespace"] = namespace
	}
	if refusals := admission.admit(d.Object, live); len(refusals) > 0 {
		name, _ := metadata["name"].(string)
		return d.refuse(strings.TrimSpace(gvk.Kind+" "+name), refusals)
	}

	key := id{gvk.Kind, metadata["namespace"].(string), metadata["name"].(string)}
	if first, ok := s.positions[key]; ok {
		return d.Start.errorf("%s %s is in %s already, in the same namespace, %s", key.kind, key.name, first, key.namespace)
	}
	s.positions[key] = d.Start
	switch gvk.GroupKind() {
	case fleetv1.GroupVersion.WithKind(fleetv1.FleetKind).GroupKind():
		err = decode(d.Object, &s.Fleets)
	case appsv1.GroupVersion.WithKind(appsv1.ApplicationKind).GroupKind():
		err = decode(d.Object, &s.Applications)
	case clusterv1.GroupVersion.WithKind(clusterv1.AttachedClusterKind).GroupKind():
		err = decode(d.Object, &s.AttachedClusters)
	case clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind).GroupKind():
		err = decode(d.Object, &s.Clusters)
	case clusterv1.GroupVersion.WithKind(clusterv1.ClusterConfigKind).GroupKind():
		err = decode(d.Object, &s.ClusterConfigs)
	case clusterv1.GroupVersion.WithKind(clusterv1.ClusterComplianceKind).GroupKind():
		err = decode(d.Object, &s.ClusterCompliances)
	case policyv1.GroupVersion.WithKind(policyv1.FleetSecurityPolicyKind).GroupKind():
		err = decode(d.Object, &s.FleetSecurityPolicies)
	case policyv1.GroupVersion.WithKind(policyv1.ChangeBudgetKind).GroupKind():
		err = decode(d.Object, &s.ChangeBudgets)
	case kuratorv1.GroupVersion.WithKind(kuratorv1.PluginConfigKind).GroupKind():
		err = decode(d.Object, &s.PluginConfigs)
	}
	if err != nil {
		return d.Start.errorf("%s %s: %w", key.kind, key.name, err)
	}
	return nil
}

// refuse says where in the document each refusal is, from top to bottom.
func (d *Document) refuse(what string, refusals []refusal) error {
	slices.SortStableFunc(refusals, func(a, b refusal) int { return d.At(a.path).Line - d.At(b.path).Line })
	var errs []error
	for _, r := range refusals {
		errs = append(errs, d.At(r.path).errorf("%s: %s", what, strings.TrimPrefix(r.path+": "+r.message, ": ")))
	}
	return errors.Join(errs...)
}

// decode reads an object from JSON, as one that comes from the API server.
func decode[T any](object map[string]any, into *[]*T) error {
	b, err := json.Marshal(object)
	if err != nil {
		return err
	}
	out := new(T)
	*into = append(*into, out)
	return json.Unmarshal(b, out)
}

func (d *Document) gvk() schema.GroupVersionKind {
	apiVersion, _ := d.Object["apiVersion"].(string)
	kind, _ := d.Object["kind"].(string)
	return schema.FromAPIVersionAndKind(apiVersion, kind)
}

// item returns an object of a list.
func (d *Document) item(items []any, i int) Document {
	out := Document{Start: d.At(fmt.Sprintf("items[%d]", i)), before: d.before}
	out.Object, _ = items[i].(map[string]any)
	for key, value := range pairs(d.node) {
		if key.Value == "items" {
			out.node = resolve(resolve(value).Content[i])
		}
	}
	return out
}

// join adds the live clusters. Of one that was read from a file as well, only the status is taken: the file is what it
// will be, and the hub alone knows the Secret of a cluster that a provider has made.
func (s *Set) join(live *Set) {
	joinStatus(s, &s.AttachedClusters, live, live.AttachedClusters, clusterv1.AttachedClusterKind,
		func(to, from *clusterv1.AttachedCluster) { to.Status = from.Status })
	joinStatus(s, &s.Clusters, live, live.Clusters, clusterv1.ClusterKind,
		func(to, from *clusterv1.Cluster) { to.Status = from.Status })
}

func joinStatus[T interface {
	GetNamespace() string
	GetName() string
}](s *Set, objects *[]T, live *Set, others []T, kind string, take func(to, from T)) {
	own := map[id]T{}
	for _, o := range *objects {
		own[id{kind, o.GetNamespace(), o.GetName()}] = o
	}
	for _, other := range others {
		key := id{kind, other.GetNamespace(), other.GetName()}
		if o, ok := own[key]; ok {
			take(o, other)
			continue
		}
		*objects = append(*objects, other)
		s.positions[key] = live.positions[key]
	}
}

// Names returns the names of the objects of some kinds in files and folders, sorted, for completion: nothing is
// validated, and what cannot be read is passed over.
func Names(paths []string, kinds ...string) []string {
	var names []string
	var add func(d Document)
	add = func(d Document) {
		items, _ := d.Object["items"].([]any)
		for i := range items {
			add(d.item(items, i))
		}
		metadata, _ := d.Object["metadata"].(map[string]any)
		if name, ok := metadata["name"].(string); ok && slices.Contains(kinds, d.gvk().Kind) {
			names = append(names, name)
		}
	}
	paths = slices.DeleteFunc(paths, func(path string) bool { return path == "" || path == "-" })
	documents, _ := load(paths, nil, false)
	for _, d := range documents {
		add(d)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
