package baseline

import (
	"cmp"
	"fmt"
	"slices"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/member"
)

// Reasons of problems, beside those of applications.
const (
	ConflictReason = clusterv1.ConflictCondition
	taken          = "Application %s exists and is not this ClusterConfig's: rename one of them"
)

// Targets returns the members of a target, as far as they are known: a fleet that is not there, or whose selector is invalid,
// has none. Fleets are those of the namespace by name.
func Targets(target clusterv1.ClusterConfigTarget, fleets map[string]*fleetv1.Fleet, clusters member.Clusters) []member.Key {
	fleet := fleets[target.Fleet]
	if target.Cluster != nil {
		fleet = &fleetv1.Fleet{Spec: fleetv1.FleetSpec{Clusters: []fleetv1.FleetCluster{{Name: target.Cluster.Name, Kind: target.Cluster.Kind}}}}
	}
	if fleet == nil {
		return nil
	}
	members, err := member.Resolve(fleet, clusters)
	if err != nil {
		return nil
	}
	selector := labels.Everything()
	if target.ClusterSelector != nil {
		if selector, err = metav1.LabelSelectorAsSelector(target.ClusterSelector); err != nil {
			return nil
		}
	}
	var keys []member.Key
	for i := range members {
		if m := &members[i]; !m.Leaving && m.Reason != member.DuplicateReason && selector.Matches(labels.Set(m.Labels)) {
			keys = append(keys, m.Key())
		}
	}
	return keys
}

// Settled returns the Application of a ClusterConfig when it is settled who has what several want on a member.
//
// Who has not got an object applies it only if it is not there (Flux's ssa: IfNotPresent), so nothing flips; it stays in
// Flux's inventory all the same, so nothing is pruned whenever another one gets it. All of them keep Flux from pruning it
// (prune: disabled) as long as others want it: whoever applied it last, and whatever becomes of a ClusterConfig, the object
// stays for the others.
func (r *Rendered) Settled(conflicts []Conflict, config string) *appsv1.Application {
	type group struct {
		annotation string
		objects    []*unstructured.Unstructured
		members    []string
	}
	var groups []*group
	settle := func(of []shared, annotation string) {
		for _, s := range of {
			i := slices.IndexFunc(groups, func(g *group) bool { return g.annotation == annotation && slices.Equal(g.members, s.members) })
			if i < 0 {
				groups = append(groups, &group{annotation: annotation, members: s.members})
				i = len(groups) - 1
			}
			groups[i].objects = append(groups[i].objects, s.object)
		}
	}
	settle(sharedObjects(conflicts, func(c *Conflict) (*unstructured.Unstructured, bool) { return c.lost, c.Loser.Name == config }), ssaAnnotation+": IfNotPresent")
	settle(sharedObjects(conflicts, func(c *Conflict) (*unstructured.Unstructured, bool) {
		if c.Loser.Name == config {
			return c.lost, true
		}
		return c.held, c.Holder.Name == config
	}), pruneAnnotation+": disabled")
	if len(groups) == 0 || r.Application == nil {
		return r.Application
	}
	app := r.Application.DeepCopy()
	for _, g := range groups {
		app.Spec.SyncPolicies[0].Overrides = append(app.Spec.SyncPolicies[0].Overrides, annotate(g.objects, g.members, g.annotation))
	}
	return app
}

// Shares says whether two ClusterConfigs want an object of the same kind and name.
func (r *Rendered) Shares(other *Rendered) bool {
	theirs := make(map[Key]bool, len(other.Objects))
	for _, o := range other.Objects {
		theirs[KeyOf(o)] = true
	}
	return slices.ContainsFunc(r.Objects, func(o *unstructured.Unstructured) bool { return theirs[KeyOf(o)] })
}

// Composition is what the ClusterConfigs of a repository become.
type Composition struct {
	// Problems are theirs; those of the Applications that they become are found when these are rendered.
	Problems []application.Problem

	configs []*composed
	byApp   map[[2]string]*composed // namespace and name of an Application
}

type composed struct {
	*Rendered
	config *clusterv1.ClusterConfig
}

// Compose renders all ClusterConfigs of a repository, those that fleets imply as well, and returns what is declared with
// the Applications that deliver them added.
func Compose(d application.Declared) (application.Declared, *Composition) {
	c := &Composition{byApp: map[[2]string]*composed{}}
	names := map[[2]string]bool{}
	for _, app := range d.Applications {
		names[[2]string{app.Namespace, app.Name}] = true
	}
	d.Applications = slices.Clone(d.Applications)
	d.ClusterConfigs = slices.Clone(d.ClusterConfigs)
	for _, fleet := range d.Fleets {
		same := func(c *clusterv1.ClusterConfig) bool { return c.Namespace == fleet.Namespace }
		if isolation := Isolation(fleet, filter(d.ClusterConfigs, same)); isolation != nil {
			d.ClusterConfigs = append(d.ClusterConfigs, isolation)
		}
	}
	slices.SortStableFunc(d.ClusterConfigs, func(a, b *clusterv1.ClusterConfig) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, config := range d.ClusterConfigs {
		config.Kind = clusterv1.ClusterConfigKind
		rendered, err := Render(config)
		if err != nil {
			c.problem(config, application.InvalidReason, err.Error())
			continue
		}
		for _, text := range rendered.NotInEffect {
			c.problem(config, application.NotInEffectReason, text+" has no effect").Warning = true
		}
		c.configs = append(c.configs, &composed{rendered, config})
	}
	for _, namespace := range c.namespaces() {
		c.namespace(&d, namespace, names)
	}
	return d, c
}

// namespace adds the Applications of one namespace.
func (c *Composition) namespace(d *application.Declared, namespace string, names map[[2]string]bool) {
	fleets := map[string]*fleetv1.Fleet{}
	for _, f := range d.Fleets {
		if f.Namespace == namespace {
			fleets[f.Name] = f
		}
	}
	clusters := member.NewClusters(
		filter(d.AttachedClusters, func(c *clusterv1.AttachedCluster) bool { return c.Namespace == namespace }),
		filter(d.Clusters, func(c *clusterv1.Cluster) bool { return c.Namespace == namespace }))
	own := filter(c.configs, func(c *composed) bool { return c.config.Namespace == namespace })
	var wants []Wants
	for _, x := range own {
		wants = append(wants, Wants{Config: x.config, Objects: x.Objects, Members: Targets(x.config.Spec.Target, fleets, clusters)})
	}
	conflicts := Conflicts(wants)
	for _, x := range own {
		for _, text := range Texts(conflicts, x.config.Name) {
			c.problem(x.config, ConflictReason, text).Warning = true
		}
		apps := []*appsv1.Application{x.Overlay}
		if x.Application != nil {
			apps = slices.Insert(apps, 0, x.Settled(conflicts, x.config.Name))
		}
		for _, app := range apps {
			if app == nil {
				continue
			}
			key := [2]string{app.Namespace, app.Name}
			if names[key] {
				c.problem(x.config, application.NameCollisionReason, fmt.Sprintf(taken, app.Name))
				break
			}
			names[key], c.byApp[key] = true, x
			d.Applications = append(d.Applications, app)
		}
	}
}

func (c *Composition) namespaces() []string {
	var out []string
	for _, x := range c.configs {
		if !slices.Contains(out, x.config.Namespace) {
			out = append(out, x.config.Namespace)
		}
	}
	return out
}

func (c *Composition) problem(config *clusterv1.ClusterConfig, reason, message string) *application.Problem {
	// A problem names an Application; what people have written is found by ConfigOf.
	name := Name(config.Name)
	key := [2]string{config.Namespace, name}
	if c.byApp[key] == nil {
		c.byApp[key] = &composed{config: config}
	}
	c.Problems = append(c.Problems, application.Problem{Namespace: config.Namespace, Application: name, Reason: reason, Message: message})
	return &c.Problems[len(c.Problems)-1]
}

// ConfigOf returns the ClusterConfig that an Application delivers; nil if it is one that people have written.
func (c *Composition) ConfigOf(namespace, app string) *clusterv1.ClusterConfig {
	if x := c.byApp[[2]string{namespace, app}]; x != nil {
		return x.config
	}
	return nil
}

// PathOf returns the field of the ClusterConfig of an Application that an object on members comes from; empty if it comes from
// somewhere else.
func (c *Composition) PathOf(namespace, app string, key Key) string {
	x := c.byApp[[2]string{namespace, app}]
	switch {
	case x == nil || x.Rendered == nil:
		return ""
	case x.Overlay != nil && x.Overlay.Name == app:
		return "spec.manifests.sourceRef"
	}
	return x.paths[key]
}

// Files returns the files that a Kustomization is built of; nil if they are not rendered here.
func (c *Composition) Files(r application.Rendered) map[string][]byte {
	x := c.byApp[[2]string{r.Metadata.Namespace, r.Application}]
	spec, ok := r.Spec.(*kustomizev1.KustomizationSpec)
	if x == nil || !ok || spec.SourceRef.Kind != sourcev1.ExternalArtifactKind || spec.SourceRef.Name != Name(x.config.Name) {
		return nil
	}
	return x.Files
}

// Artifacts returns the ExternalArtifacts of the ClusterConfigs, as they are declared.
func (c *Composition) Artifacts() []application.Rendered {
	var out []application.Rendered
	for _, x := range c.configs {
		if x.Application == nil || c.byApp[[2]string{x.config.Namespace, x.Application.Name}] != x {
			continue
		}
		out = append(out, application.Artifact(x.Application.Name, x.config.Namespace, Name(x.config.Name), ArtifactSpec(x.config), x.Revision))
	}
	return out
}

// ArtifactSpec returns the spec of the ExternalArtifact of a ClusterConfig, which flux trace follows.
func ArtifactSpec(config *clusterv1.ClusterConfig) *sourcev1.ExternalArtifactSpec {
	return &sourcev1.ExternalArtifactSpec{SourceRef: &meta.NamespacedObjectKindReference{
		APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterConfigKind, Name: config.Name, Namespace: config.Namespace,
	}}
}

func filter[T any](items []T, keep func(T) bool) []T {
	var out []T
	for _, item := range items {
		if keep(item) {
			out = append(out, item)
		}
	}
	return out
}
