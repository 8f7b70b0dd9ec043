package application

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/member"
)

// clusterPrefix starts what stands for the name of a fleet where a destination is one cluster. No fleet has a slash in
// its name.
const clusterPrefix = "cluster/"

// DestinationKey returns what a Scope has the members of a destination under: the name of the fleet, or what stands for it.
func DestinationKey(d *appsv1.ApplicationDestination) string {
	if d.Cluster != nil {
		return ClusterKey(d.Cluster.Kind, d.Cluster.Name)
	}
	return d.Fleet
}

// ClusterKey is the DestinationKey of one cluster. The kind is empty where the destination has none.
func ClusterKey(kind, name string) string { return clusterPrefix + kind + "/" + name }

// OneCluster returns a fleet of the one cluster that a key stands for, whether or not it exists; nil if the key is the
// name of a fleet.
func OneCluster(key, namespace string, clusters member.Clusters) *Fleet {
	ref, ok := strings.CutPrefix(key, clusterPrefix)
	if !ok {
		return nil
	}
	kind, name, _ := strings.Cut(ref, "/")
	fleet := &fleetv1.Fleet{Spec: fleetv1.FleetSpec{Clusters: []fleetv1.FleetCluster{{Kind: kind, Name: name}}}}
	members, _ := member.Resolve(fleet, clusters) // errs for a selector only
	if m := &members[0]; m.Kind == "" {
		m.Message = fmt.Sprintf("there is no %s %s in namespace %s: create it, or change the destination",
			cmp.Or(kind, "Cluster or AttachedCluster"), name, namespace)
	}
	return NewFleet(members)
}

// checkDestination refuses what the CRD refuses: without either a policy would go to the hub.
func checkDestination(d *appsv1.ApplicationDestination) error {
	switch {
	case (d.Fleet != "") == (d.Cluster != nil):
		return errors.New("destination: exactly one of fleet and cluster is needed")
	case d.Cluster != nil && d.ClusterSelector != nil:
		return errors.New("destination.clusterSelector chooses members of a fleet: set fleet")
	case strings.Contains(d.Fleet, "/"):
		return fmt.Errorf("destination.fleet: %q is no name of a Fleet", d.Fleet)
	}
	return nil
}

// explainNoFleet says why a template finds no fleet.
func (p *Policy) explainNoFleet(err error) error {
	if p.OneCluster && strings.HasSuffix(err.Error(), `there is no "fleet"`) {
		return fmt.Errorf("%w: the destination is a cluster", err)
	}
	return err
}
