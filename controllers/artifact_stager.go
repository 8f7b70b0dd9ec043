package controllers

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/controllers/publisher"
)

// ArtifactStager renders what the objects of a kind publish and stores the files on every replica, the leader or not: each
// of them serves the same, so Flux may ask any. It writes nothing to the hub.
type ArtifactStager struct {
	client.Client
	// Shard selects the objects to serve; nil selects all.
	Shard labels.Selector

	kind   string
	object client.Object
	list   func(ctx context.Context) ([]client.Object, error)
	// stage stores the files of an object, and remove those of one that is gone.
	stage  func(ctx context.Context, o client.Object) error
	remove func(key types.NamespacedName) error
	// again, if there is one, has what uses plugins from outside staged again, which is what users returns.
	again chan event.GenericEvent
	users handler.MapFunc
	// watches are what else changes what is published, and whom it leads to.
	watches map[client.Object]handler.MapFunc

	mu     sync.Mutex
	staged map[types.NamespacedName]bool // what is stored, or cannot be
}

// NewConfigStager stages what ClusterConfigs publish.
func NewConfigStager(c client.Client, p publisher.Publisher, baselines *Baselines) *ArtifactStager {
	return &ArtifactStager{
		Client: c, kind: clusterv1.ClusterConfigKind, object: &clusterv1.ClusterConfig{}, staged: map[types.NamespacedName]bool{},
		list: func(ctx context.Context) ([]client.Object, error) {
			var list clusterv1.ClusterConfigList
			err := c.List(ctx, &list, client.UnsafeDisableDeepCopy)
			return objects(pointers(list.Items)), err
		},
		stage: func(ctx context.Context, o client.Object) error {
			config := o.(*clusterv1.ClusterConfig)
			rendered, err := baselines.Render(config)
			if err != nil {
				return nil //nolint:nilerr // the leader says so in the status
			}
			_, err = publish(ctx, p, config, rendered)
			return err
		},
		remove: func(key types.NamespacedName) error {
			baselines.forget(key)
			return p.Remove(artifactKey(key))
		},
	}
}

// NewFleetStager stages what the plugins of Fleets publish.
func NewFleetStager(c client.Client, p publisher.Publisher, plugins *Plugins) *ArtifactStager {
	return &ArtifactStager{
		Client: c, kind: fleetv1.FleetKind, object: &fleetv1.Fleet{}, staged: map[types.NamespacedName]bool{}, again: coalesced(plugins), users: usersOfPlugins(c),
		list: func(ctx context.Context) ([]client.Object, error) {
			var list fleetv1.FleetList
			err := c.List(ctx, &list, client.UnsafeDisableDeepCopy)
			return objects(pointers(list.Items)), err
		},
		stage: func(ctx context.Context, o client.Object) error {
			return pluginArtifacts(ctx, plugins, p, o.(*fleetv1.Fleet))
		},
		remove: func(types.NamespacedName) error { return nil }, // the leader removes them, and a disk is a process's own
	}
}

// NewSecurityPolicyStager stages what FleetSecurityPolicies publish, and NewComplianceStager what ClusterCompliances do.
func NewSecurityPolicyStager(c client.Client, p publisher.Publisher, plugins *Plugins) *ArtifactStager {
	return newRulesStager(c, p, plugins, securityPolicies)
}

// NewComplianceStager stages what ClusterCompliances publish.
func NewComplianceStager(c client.Client, p publisher.Publisher, plugins *Plugins) *ArtifactStager {
	return newRulesStager(c, p, plugins, clusterCompliances)
}

func newRulesStager[T ruled](c client.Client, p publisher.Publisher, plugins *Plugins, kind ruleKind[T]) *ArtifactStager {
	return &ArtifactStager{
		Client: c, kind: kind.name, object: kind.new(), staged: map[types.NamespacedName]bool{}, again: coalesced(plugins),
		users: func(ctx context.Context, _ client.Object) []reconcile.Request { return rulesIn(ctx, c, kind, "") },
		list: func(ctx context.Context) ([]client.Object, error) {
			all, err := kind.list(ctx, c, client.UnsafeDisableDeepCopy)
			return objects(all), err
		},
		stage: func(ctx context.Context, o client.Object) error {
			return rulesArtifact(ctx, c, plugins, p, kind.set(o.(T)), o.(T).GetRules())
		},
		remove: func(key types.NamespacedName) error {
			o := kind.new()
			o.SetName(key.Name)
			return p.Remove(types.NamespacedName{Namespace: key.Namespace, Name: kind.set(o).PoliciesName()})
		},
		watches: map[client.Object]handler.MapFunc{&fleetv1.Fleet{}: func(ctx context.Context, fleet client.Object) []reconcile.Request {
			return rulesIn(ctx, c, kind, fleet.GetNamespace())
		}},
	}
}

// SetupWithManager registers the stager. It does not wait to be elected.
func (s *ArtifactStager) SetupWithManager(mgr ctrl.Manager, opts controller.Options) error {
	opts.NeedLeaderElection = new(false)
	b := ctrl.NewControllerManagedBy(mgr).
		Named("artifactstager-"+strings.ToLower(s.kind)).
		For(s.object, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(opts)
	if s.again != nil {
		b = b.WatchesRawSource(source.Channel(s.again, handler.EnqueueRequestsFromMapFunc(s.users)))
	}
	for o, leadsTo := range s.watches {
		b = b.Watches(o, whenSettled(leadsTo), builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{})))
	}
	return b.Complete(s)
}

// Reconcile stores the files of one object, and removes those of one that is gone.
func (s *ArtifactStager) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	o := s.object.DeepCopyObject().(client.Object)
	if err := s.Get(ctx, req.NamespacedName, o); err != nil {
		if client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, err
		}
		s.mark(req.NamespacedName, false)
		return ctrl.Result{}, s.remove(req.NamespacedName)
	}
	if s.serves(o) {
		if err := s.stage(ctx, o); err != nil {
			return ctrl.Result{}, err
		}
	}
	s.mark(req.NamespacedName, true)
	return ctrl.Result{}, nil
}

func (s *ArtifactStager) serves(o client.Object) bool {
	return s.Shard == nil || s.Shard.Matches(labels.Set(o.GetLabels()))
}

func (s *ArtifactStager) mark(key types.NamespacedName, staged bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if staged {
		s.staged[key] = true
	} else {
		delete(s.staged, key)
	}
}

// Ready is a readiness check: a replica is asked only when it has everything that there is. Once it has had it, a
// newer generation does not make it unready: Flux tries again.
func (s *ArtifactStager) Ready(req *http.Request) error {
	all, err := s.list(req.Context())
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range all {
		if key := client.ObjectKeyFromObject(o); !s.staged[key] && s.serves(o) {
			return fmt.Errorf("the artifact of %s %s is not rendered yet", s.kind, key)
		}
	}
	return nil
}
