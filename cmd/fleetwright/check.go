package main

import (
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	"github.com/fleetwright/fleetwright/cmd/fleetwright/contents"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/compat"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/repository"
)

// check adds to the problems what members cannot take of what is delivered to them, as far as that is at hand.
func check(rendered *repository.Rendered, c *contents.Contents) {
	for _, f := range compat.Check(deliveries(rendered, c)) {
		for _, name := range f.Members {
			rendered.Problems = append(rendered.Problems, application.Problem{
				Namespace: f.Namespace, Application: f.Application, Policy: f.Policy, Member: name, Reason: f.Reason, Message: f.Message, Warning: true,
			})
		}
	}
}

// deliveries returns what children put on members; those that put the same together.
func deliveries(rendered *repository.Rendered, c *contents.Contents) []compat.Delivery {
	kubernetes := versions(rendered.Declared)
	type alike struct {
		namespace, application, policy, kubernetes string
		first                                      *unstructured.Unstructured // of what is shared by all that are the same
	}
	var out []compat.Delivery
	places := map[alike]int{}
	for i := range rendered.Objects {
		x := &rendered.Objects[i]
		if repository.IsSource(x) {
			continue
		}
		outline := c.Outline(x)
		key := alike{namespace: x.Metadata.Namespace, application: x.Application, policy: x.Policy, kubernetes: outline.Kubernetes}
		if len(outline.Objects) > 0 {
			key.first = outline.Objects[0]
		}
		at, ok := places[key]
		if !ok {
			kind, name := rendered.Written(x.Metadata.Namespace, x.Application)
			at, places[key] = len(out), len(out)
			out = append(out, compat.Delivery{Namespace: x.Metadata.Namespace, Application: x.Application, Policy: x.Policy, Owner: kind + " " + name,
				Chart: outline.Chart, Kubernetes: outline.Kubernetes, Objects: slices.Clone(outline.Objects)})
		}
		out[at].Members = append(out[at].Members, compat.Member{Key: x.Member, Kubernetes: kubernetes[memberIn{x.Metadata.Namespace, x.Member}]})
	}
	return out
}

// memberIn is a member in its namespace.
type memberIn struct {
	namespace string
	member.Key
}

// versions returns the Kubernetes versions of members, as far as they are known.
func versions(d application.Declared) map[memberIn]string {
	out := map[memberIn]string{}
	for _, c := range d.AttachedClusters {
		out[memberIn{c.Namespace, member.Key{Kind: clusterv1.AttachedClusterKind, Name: c.Name}}] = c.Status.KubernetesVersion
	}
	for _, c := range d.Clusters {
		out[memberIn{c.Namespace, member.Key{Kind: clusterv1.ClusterKind, Name: c.Name}}] = c.Status.KubernetesVersion
	}
	return out
}
