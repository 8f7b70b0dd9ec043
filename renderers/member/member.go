// Package member resolves a fleet to its members.
package member

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

// Member is one cluster of a fleet.
type Member struct {
	// Name and Kind are the member's identity. Kind is empty if there is no such object.
	Name, Kind string
	// Labels are the object's, overlaid by those that the fleet gives it.
	Labels map[string]string
	// KubeConfig is how Flux reaches the member. If it is nil, Reason and Message say why there is none.
	KubeConfig *meta.KubeConfigReference
	// Version changes whenever anything else here may have changed.
	Version Version
	// Leaving says that the object is being deleted: what the member has is to end.
	Leaving bool
	// Ready is the Ready condition of the object: Flux reaches the member. Where there is no status, as in Git, it is false.
	Ready bool
	// Kubernetes is the version of the member's API server, v1.36.3 say; empty if it is not known.
	Kubernetes string
	// Reason and Message say why the member is not ready.
	Reason, Message string
}

// Version is what a member was made of: the version of its object, zero if there is none, and, where the fleet gives it
// labels, the fleet's generation. A member that is added to a fleet leaves the versions of the others as they are.
type Version struct {
	Object          types.UID
	ResourceVersion string
	Fleet           types.UID
	Generation      int64
}

// Reasons why a member is not ready, beside those in the conditions of its object.
const (
	NotFoundReason     = "NotFound"
	NoKubeconfigReason = "NoProvider"
	NotProbedReason    = "NotProbed"
	DuplicateReason    = "DuplicateName"
)

// Key identifies a member in a namespace.
type Key struct{ Kind, Name string }

// Key returns the member's identity.
func (m *Member) Key() Key { return Key{m.Kind, m.Name} }

// String names the member for people.
func (m *Member) String() string {
	if m.Kind == "" {
		return m.Name
	}
	return m.Kind + "/" + m.Name
}

// Clusters are the cluster objects of one namespace.
type Clusters struct {
	attached map[string]*clusterv1.AttachedCluster
	clusters map[string]*clusterv1.Cluster
}

// NewClusters takes the cluster objects of one namespace, which it only reads.
func NewClusters(attached []*clusterv1.AttachedCluster, clusters []*clusterv1.Cluster) Clusters {
	c := Clusters{
		attached: make(map[string]*clusterv1.AttachedCluster, len(attached)),
		clusters: make(map[string]*clusterv1.Cluster, len(clusters)),
	}
	for _, a := range attached {
		c.attached[a.Name] = a
	}
	for _, cl := range clusters {
		c.clusters[cl.Name] = cl
	}
	return c
}

// Resolve returns the members of a fleet, sorted by name: those it lists, whether or not they exist, and those that its
// selector matches. It errs when the selector is invalid; then nothing is known about the members.
func Resolve(fleet *fleetv1.Fleet, clusters Clusters) ([]Member, error) {
	members := make([]Member, 0, len(fleet.Spec.Clusters))
	seen := make(map[Key]int, len(fleet.Spec.Clusters))
	for _, ref := range fleet.Spec.Clusters {
		m := clusters.lookup(ref.Kind, ref.Name)
		if i, ok := seen[m.Key()]; ok { // listed twice: the labels of both hold
			members[i].overlay(fleet, ref.Labels)
			continue
		}
		m.overlay(fleet, ref.Labels)
		seen[m.Key()] = len(members)
		members = append(members, m)
	}

	if fleet.Spec.ClusterSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(fleet.Spec.ClusterSelector)
		if err != nil {
			return nil, fmt.Errorf("spec.clusterSelector: %w", err)
		}
		for _, a := range clusters.attached {
			if _, ok := seen[Key{clusterv1.AttachedClusterKind, a.Name}]; !ok && selector.Matches(labels.Set(a.Labels)) {
				members = append(members, fromAttached(a))
			}
		}
		for _, c := range clusters.clusters {
			if _, ok := seen[Key{clusterv1.ClusterKind, c.Name}]; !ok && selector.Matches(labels.Set(c.Labels)) {
				members = append(members, fromCluster(c))
			}
		}
	}

	slices.SortFunc(members, func(a, b Member) int {
		if n := strings.Compare(a.Name, b.Name); n != 0 {
			return n
		}
		return strings.Compare(b.Kind, a.Kind) // a Cluster before an AttachedCluster
	})
	for i := 1; i < len(members); i++ {
		if members[i].Name == members[i-1].Name && members[i].Kind != "" {
			// Their objects would share names. The Cluster keeps the place.
			members[i].fail(DuplicateReason, fmt.Sprintf("%s and %s of one fleet have the same name: rename one, or leave one out",
				&members[i-1], &members[i]))
		}
	}
	return members, nil
}

func (c Clusters) lookup(kind, name string) Member {
	if kind != clusterv1.AttachedClusterKind {
		if cl, ok := c.clusters[name]; ok {
			return fromCluster(cl)
		}
	}
	if kind != clusterv1.ClusterKind {
		if a, ok := c.attached[name]; ok {
			return fromAttached(a)
		}
	}
	m := Member{Name: name}
	what := kind
	if what == "" {
		what = "Cluster or AttachedCluster"
	}
	m.fail(NotFoundReason, fmt.Sprintf("there is no %s %s in the fleet's namespace: create it, or take it out of spec.clusters", what, name))
	return m
}

func fromAttached(a *clusterv1.AttachedCluster) Member {
	m := fromObject(clusterv1.AttachedClusterKind, a, &a.Status.MemberHealth)
	switch {
	case a.Spec.Kubeconfig != nil:
		m.KubeConfig = secretRef(a.Spec.Kubeconfig.Name, a.Spec.Kubeconfig.Key)
	case a.Spec.ConfigMapRef != nil:
		m.KubeConfig = &meta.KubeConfigReference{ConfigMapRef: a.Spec.ConfigMapRef}
	default:
		m.fail(NoKubeconfigReason, "nothing says how to reach this cluster: set spec.kubeconfig or spec.configMapRef")
	}
	return m
}

func fromCluster(c *clusterv1.Cluster) Member {
	m := fromObject(clusterv1.ClusterKind, c, &c.Status.MemberHealth)
	switch {
	case c.Spec.KubeconfigRef != nil:
		m.KubeConfig = secretRef(c.Spec.KubeconfigRef.Name, c.Spec.KubeconfigRef.Key)
	case c.Status.KubeconfigSecretRef != "":
		m.KubeConfig = secretRef(c.Status.KubeconfigSecretRef, clusterv1.DefaultKubeconfigKey)
	default:
		m.fail(NoKubeconfigReason, "no provider serves this cluster yet: it becomes a member when its status names a kubeconfig Secret")
	}
	return m
}

func fromObject(kind string, o metav1.Object, health *clusterv1.MemberHealth) Member {
	m := Member{
		Name:    o.GetName(),
		Kind:    kind,
		Labels:  o.GetLabels(),
		Version: Version{Object: o.GetUID(), ResourceVersion: o.GetResourceVersion()},
		Leaving: !o.GetDeletionTimestamp().IsZero(),

		Kubernetes: health.KubernetesVersion,
	}
	ready := apimeta.FindStatusCondition(health.Conditions, meta.ReadyCondition)
	switch {
	case ready == nil || ready.Status == metav1.ConditionUnknown || health.ObservedGeneration != o.GetGeneration():
		m.Reason, m.Message = NotProbedReason, "was not looked at yet"
	case ready.Status == metav1.ConditionTrue:
		m.Ready = true
	default:
		m.Reason, m.Message = ready.Reason, ready.Message
	}
	return m
}

func (m *Member) fail(reason, message string) {
	m.KubeConfig, m.Ready, m.Reason, m.Message = nil, false, reason, message
}

func secretRef(name, key string) *meta.KubeConfigReference {
	if key == "" {
		key = clusterv1.DefaultKubeconfigKey
	}
	return &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: name, Key: key}}
}

// overlay puts labels of the fleet over the member's, which belong to a cache and are not changed.
func (m *Member) overlay(fleet *fleetv1.Fleet, over map[string]string) {
	if len(over) == 0 {
		return
	}
	merged := make(map[string]string, len(m.Labels)+len(over))
	maps.Copy(merged, m.Labels)
	maps.Copy(merged, over)
	m.Labels = merged
	m.Version.Fleet, m.Version.Generation = fleet.UID, fleet.Generation
}
