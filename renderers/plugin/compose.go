package plugin

import (
	"fmt"
	"slices"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/baseline"
	"github.com/fleetwright/fleetwright/renderers/member"
)

// UnknownReason is that of a plugin that nobody has brought.
const UnknownReason = "UnknownPlugin"

// Composition is what the plugins of the fleets of a repository become.
type Composition struct {
	// Problems are theirs; those of the Applications that they become are found when these are rendered.
	Problems []application.Problem

	plugins []*composed
	byApp   map[[2]string]*composed // namespace and name of an Application
}

type composed struct {
	*Rendered
	fleet *fleetv1.Fleet
	use   Use
}

// Compose renders the plugins of all fleets of a repository, and returns what is declared with the Applications that
// deliver them added. What is read from members is not known: what needs it is held. Find returns a plugin that a fleet of a
// namespace may use, and the config that it has there under the fleet's own; nil if there is none.
func Compose(d application.Declared, find func(namespace, name string) (*Plugin, map[string]any)) (application.Declared, *Composition) {
	c := &Composition{byApp: map[[2]string]*composed{}}
	taken := map[[2]string]bool{}
	for _, app := range d.Applications {
		taken[[2]string{app.Namespace, app.Name}] = true
	}
	d.Applications = slices.Clone(d.Applications)
	for _, fleet := range d.Fleets {
		members, err := member.Resolve(fleet, member.NewClusters(inNamespace(d.AttachedClusters, fleet.Namespace), inNamespace(d.Clusters, fleet.Namespace)))
		if err != nil {
			continue // what is wrong with the fleet is said where it is used
		}
		for _, use := range Uses(fleet) {
			p, config := find(fleet.Namespace, use.Name)
			if p == nil {
				c.problem(fleet, use.Name, UnknownReason, fmt.Sprintf("%s: there is no plugin %s: name its folder with --plugin", use.Path, use.Name))
				continue
			}
			use.Config = application.MergeValues(config, use.Config)
			rendered, err := p.Render(Input{Fleet: fleet, Use: use, Members: members})
			if err != nil {
				c.problem(fleet, use.Name, application.InvalidReason, fmt.Sprintf("%s: %v", use.Path, err))
				continue
			}
			for _, text := range rendered.Warnings {
				c.problem(fleet, use.Name, application.NotInEffectReason, use.Path+": "+text).Warning = true
			}
			key := [2]string{fleet.Namespace, rendered.Application.Name}
			if taken[key] {
				c.problem(fleet, use.Name, application.NameCollisionReason, fmt.Sprintf("Application %s exists and is not this Fleet's: rename one of them", rendered.Application.Name))
				continue
			}
			x := &composed{rendered, fleet, use}
			taken[key], c.byApp[key] = true, x
			c.plugins = append(c.plugins, x)
			d.Applications = append(d.Applications, rendered.Application)
		}
	}
	return d, c
}

func inNamespace[T clusterv1.AttachedCluster | clusterv1.Cluster, P interface {
	*T
	GetNamespace() string
}](items []P, namespace string) []P {
	return slices.DeleteFunc(slices.Clone(items), func(p P) bool { return p.GetNamespace() != namespace })
}

func (c *Composition) problem(fleet *fleetv1.Fleet, plugin, reason, message string) *application.Problem {
	name := Name(fleet.Name, plugin)
	c.byApp[[2]string{fleet.Namespace, name}] = &composed{Rendered: &Rendered{}, fleet: fleet}
	c.Problems = append(c.Problems, application.Problem{Namespace: fleet.Namespace, Application: name, Reason: reason, Message: message})
	return &c.Problems[len(c.Problems)-1]
}

// FleetOf returns the fleet for whose plugin an Application was made; nil if it was for none.
func (c *Composition) FleetOf(namespace, app string) *fleetv1.Fleet {
	if x := c.byApp[[2]string{namespace, app}]; x != nil {
		return x.fleet
	}
	return nil
}

// UseOf returns how a fleet uses the plugin that an Application was made for; it is empty if it was made for none.
func (c *Composition) UseOf(namespace, app string) Use {
	if x := c.byApp[[2]string{namespace, app}]; x != nil {
		return x.use
	}
	return Use{}
}

// Files returns the published files that a Kustomization applies; nil if it applies something else.
func (c *Composition) Files(r application.Rendered) map[string][]byte {
	x := c.byApp[[2]string{r.Metadata.Namespace, r.Application}]
	if _, ok := r.Spec.(*kustomizev1.KustomizationSpec); x == nil || !ok {
		return nil
	}
	return x.Files
}

// Artifacts returns the ExternalArtifacts of the plugins, as they are declared.
func (c *Composition) Artifacts() (out []application.Rendered) {
	for _, x := range c.plugins {
		add := func(name string, files map[string][]byte) {
			if len(files) == 0 {
				return
			}
			out = append(out, application.Artifact(x.Application.Name, x.fleet.Namespace, name, ArtifactSpec(x.fleet), baseline.Revision(files)))
		}
		add(x.Application.Name, x.Files)
		add(x.ChartName, x.Chart)
	}
	return out
}

// ArtifactSpec returns the spec of the ExternalArtifacts of a fleet, which flux trace follows.
func ArtifactSpec(fleet *fleetv1.Fleet) *sourcev1.ExternalArtifactSpec {
	return &sourcev1.ExternalArtifactSpec{SourceRef: &meta.NamespacedObjectKindReference{
		APIVersion: fleetv1.GroupVersion.String(), Kind: fleetv1.FleetKind, Name: fleet.Name, Namespace: fleet.Namespace}}
}
