package controllers

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"sigs.k8s.io/controller-runtime/pkg/builder"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	"github.com/fleetwright/fleetwright/controllers/publisher"
)

// ArtifactStager renders ClusterConfigs and stores the files on every replica, the leader or not: each of them serves the
// same, so Flux may ask any. It writes nothing to the hub.
type ArtifactStager struct {
	client.Client
	Publisher publisher.Publisher
	Baselines *Baselines
	// Shard selects the ClusterConfigs to serve; nil selects all.
	Shard labels.Selector

	mu     sync.Mutex
	staged map[types.NamespacedName]int64 // the generation that is stored, or cannot be
}

// SetupWithManager registers the stager. It does not wait to be elected.
func (s *ArtifactStager) SetupWithManager(mgr ctrl.Manager, opts controller.Options) error {
	s.staged = map[types.NamespacedName]int64{}
	opts.NeedLeaderElection = new(false)
	return ctrl.NewControllerManagedBy(mgr).
		Named("artifactstager").
		For(&clusterv1.ClusterConfig{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(opts).
		Complete(s)
}

// Reconcile stores the files of one ClusterConfig, and removes those of one that is gone.
func (s *ArtifactStager) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	config := &clusterv1.ClusterConfig{}
	if err := s.Get(ctx, req.NamespacedName, config); err != nil {
		if client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, err
		}
		s.mark(req.NamespacedName, 0)
		s.Baselines.forget(req.NamespacedName)
		return ctrl.Result{}, s.Publisher.Remove(artifactKey(req.NamespacedName))
	}
	if s.serves(config) {
		rendered, err := s.Baselines.Render(config)
		if err == nil { // else the leader says so in the status
			if _, err := publish(ctx, s.Publisher, config, rendered); err != nil {
				return ctrl.Result{}, err
			}
		}
	}
	s.mark(req.NamespacedName, config.Generation)
	return ctrl.Result{}, nil
}

func (s *ArtifactStager) serves(config *clusterv1.ClusterConfig) bool {
	return s.Shard == nil || s.Shard.Matches(labels.Set(config.Labels))
}

func (s *ArtifactStager) mark(key types.NamespacedName, generation int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if generation == 0 {
		delete(s.staged, key)
		return
	}
	s.staged[key] = generation
}

// Ready is a readiness check: a replica is asked only when it has everything that there is. Once it has had it, a
// newer generation does not make it unready: Flux tries again.
func (s *ArtifactStager) Ready(req *http.Request) error {
	var configs clusterv1.ClusterConfigList
	if err := s.List(req.Context(), &configs, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range configs.Items {
		key := client.ObjectKeyFromObject(&configs.Items[i])
		if _, ok := s.staged[key]; !ok && s.serves(&configs.Items[i]) {
			return fmt.Errorf("the artifact of ClusterConfig %s is not rendered yet", key)
		}
	}
	return nil
}
