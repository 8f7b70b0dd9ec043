package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	"github.com/fleetwright/fleetwright/controllers/publisher"
	"github.com/fleetwright/fleetwright/renderers/baseline"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// errNotOurs says that an object which would be written is somebody else's.
var errNotOurs = errors.New("exists and is not this object's")

// artifactKey is the name of the ExternalArtifact, and of the Application, of a ClusterConfig.
func artifactKey(config types.NamespacedName) types.NamespacedName {
	return types.NamespacedName{Namespace: config.Namespace, Name: baseline.Name(config.Name)}
}

// publish stores the files of a ClusterConfig. The artifact is nil if there are none.
func publish(ctx context.Context, p publisher.Publisher, config *clusterv1.ClusterConfig, rendered *baseline.Rendered) (*meta.Artifact, error) {
	if rendered.Application == nil {
		return nil, nil
	}
	return p.Publish(ctx, artifactKey(client.ObjectKeyFromObject(config)), rendered.Revision, rendered.Files)
}

// deliver publishes the files, and then applies the Applications that deliver them. While something has to be waited for
// before that, it says so.
func (r *ClusterConfigReconciler) deliver(ctx context.Context, config *clusterv1.ClusterConfig, rendered *baseline.Rendered) (wait string, err error) {
	conflicts, err := r.conflicts(ctx, config)
	if err != nil {
		return "", err
	}
	setConflict(config, conflicts)
	d, app := r.delivery(config), rendered.Settled(conflicts, config.Name)
	if app != nil {
		if app, wait, err = r.drop(ctx, config, rendered, app); err != nil {
			return "", err
		}
		if wait != "" {
			return wait, d.applyApplication(ctx, app)
		}
	}
	artifact, err := publish(ctx, r.Publisher, config, rendered)
	if err != nil {
		return "", fmt.Errorf("publishing: %w", err)
	}
	if artifact != nil {
		if err := d.applyArtifact(ctx, baseline.Name(config.Name), baseline.ArtifactSpec(config), artifact); err != nil {
			return "", err
		}
	}
	wanted := map[string]bool{}
	for _, a := range []*appsv1.Application{app, rendered.Overlay} {
		if a == nil {
			continue
		}
		wanted[a.Name] = true
		if err := d.applyApplication(ctx, a); err != nil {
			return "", err
		}
	}
	config.Status.RenderDigest = d.made.Sum()
	apps, err := r.applications(ctx, config)
	if err != nil {
		return "", err
	}
	// What moves from one Application to the other has to be there before it ends here.
	there := slices.DeleteFunc(slices.Clone(apps), func(a appsv1.Application) bool { return !wanted[a.Name] || !isReady(&a) })
	if len(there) < len(wanted) {
		return "", nil
	}
	return "", d.end(ctx, apps, wanted)
}

// isReady says whether an Application is ready as it is declared now.
func isReady(app *appsv1.Application) bool {
	return app.Status.ObservedGeneration == app.Generation && conditions.IsReady(app)
}

func (r *ClusterConfigReconciler) delivery(config *clusterv1.ClusterConfig) *delivery {
	return &delivery{r.Client, r.EventRecorder, config, configKind, object.Digests{}}
}

var configKind = clusterv1.GroupVersion.WithKind(clusterv1.ClusterConfigKind)

// applications returns the Applications of a ClusterConfig, from the cache.
func (r *ClusterConfigReconciler) applications(ctx context.Context, config *clusterv1.ClusterConfig) ([]appsv1.Application, error) {
	var apps appsv1.ApplicationList
	err := r.List(ctx, &apps, client.InNamespace(config.Namespace), deliveredFor(clusterv1.ClusterConfigKind, config.Name), client.UnsafeDisableDeepCopy)
	return apps.Items, err
}
