package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// observed is all that a pass knows. Everything in it belongs to the cache and is only read, but for app and state.
type observed struct {
	app   *appsv1.Application
	state *appState
	scope *application.Scope

	// children are the Kustomizations and HelmReleases of the Application, and sources its source objects.
	children map[object.Ref]client.Object
	sources  map[object.Ref]client.Object

	// fleets are the fleets that exist, by name, and unknown says why the members of a fleet are not known. A single
	// cluster that a policy goes to is in neither: the scope has it.
	fleets  map[string]*fleetv1.Fleet
	unknown map[string]unknownFleet
	// lookup returns a Flux object of the namespace, whoever owns it; nil if there is none.
	lookup func(object.Ref) client.Object
	// missing are the Applications in dependsOn that do not exist or do not compile.
	missing []string
}

// unknownFleet says why the members of a fleet are not known. What is not known is not pruned.
type unknownFleet struct{ reason, message string }

// compiled is the Program of one generation of an Application.
type compiled struct {
	*application.Program
	uid        types.UID
	generation int64
}

// errInvalid marks an error that only a change of the spec mends.
var errInvalid = errors.New("the spec is invalid")

func (r *ApplicationReconciler) observe(ctx context.Context, app *appsv1.Application) (*observed, error) {
	obs := &observed{app: app, state: r.state(client.ObjectKeyFromObject(app)), unknown: map[string]unknownFleet{}}
	if c := obs.state.compiled; c == nil || c.uid != app.UID || c.generation != app.Generation {
		program, err := application.Compile(app)
		if err != nil {
			obs.state.compiled = nil
			return nil, fmt.Errorf("%w: %w", errInvalid, err)
		}
		obs.state.compiled = &compiled{program, app.UID, app.Generation}
		obs.state.children = map[childKey]*childState{}
	}

	dependencies, err := r.observeDependencies(ctx, obs)
	if err != nil {
		return nil, err
	}
	obs.scope = &application.Scope{Fleets: map[string]*application.Fleet{}, Dependencies: dependencies}
	fleets := obs.state.Fleets()
	for _, d := range dependencies {
		fleets = append(fleets, d.Fleets()...)
	}
	if err := r.observeFleets(ctx, obs, fleets); err != nil {
		return nil, err
	}
	obs.lookup = func(ref object.Ref) client.Object {
		o := newFluxObject(ref.Kind)
		if err := r.Get(ctx, types.NamespacedName{Namespace: app.Namespace, Name: ref.Name}, o, client.UnsafeDisableDeepCopyOption(true)); err != nil {
			return nil // the cache knows no error but that it is not there
		}
		return o
	}
	obs.children, obs.sources, err = r.observeObjects(ctx, app)
	return obs, err
}

// observeDependencies returns the Programs of the Applications that this one depends on. An Application that is
// missing or invalid is noted; a cycle is an error.
func (r *ApplicationReconciler) observeDependencies(ctx context.Context, obs *observed) (map[string]*application.Program, error) {
	programs := map[string]*application.Program{}
	if cycle := application.Cycle(obs.app.Name, func(name string) []string { return r.next(ctx, obs.app.Namespace, name) }); cycle != "" {
		return nil, fmt.Errorf("%w: spec.dependsOn: the Applications wait for each other: %s", errInvalid, cycle)
	}
	for _, name := range obs.state.DependsOn() {
		dependency := &appsv1.Application{}
		err := r.Get(ctx, types.NamespacedName{Namespace: obs.app.Namespace, Name: name}, dependency, client.UnsafeDisableDeepCopyOption(true))
		if client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		if err != nil {
			obs.missing = append(obs.missing, name)
			continue
		}
		program, err := application.Compile(dependency)
		if err != nil {
			obs.missing = append(obs.missing, name)
			continue
		}
		programs[name] = program
	}
	return programs, nil
}

// next returns what an Application depends on, by name.
func (r *ApplicationReconciler) next(ctx context.Context, namespace, name string) (names []string) {
	app := &appsv1.Application{}
	if err := r.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, app, client.UnsafeDisableDeepCopyOption(true)); err != nil {
		return nil // not there: the cache knows no other error
	}
	for _, d := range app.Spec.DependsOn {
		names = append(names, d.Name)
	}
	return names
}

// observeFleets fills in the members of fleets and of the single clusters that policies go to.
func (r *ApplicationReconciler) observeFleets(ctx context.Context, obs *observed, names []string) error {
	obs.fleets = map[string]*fleetv1.Fleet{}
	if len(names) == 0 {
		return nil
	}
	clusters, err := listClusters(ctx, r.Client, obs.app.Namespace)
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, ok := obs.fleets[name]; ok {
			continue
		}
		if one := application.OneCluster(name, obs.app.Namespace, clusters); one != nil {
			obs.scope.Fleets[name] = one
			continue
		}
		fleet := &fleetv1.Fleet{}
		err := r.Get(ctx, types.NamespacedName{Namespace: obs.app.Namespace, Name: name}, fleet, client.UnsafeDisableDeepCopyOption(true))
		switch {
		case client.IgnoreNotFound(err) != nil:
			return err
		case err != nil:
			obs.unknown[name] = unknownFleet{application.FleetNotFoundReason,
				fmt.Sprintf("there is no Fleet %s in namespace %s: create it, or change the destination", name, obs.app.Namespace)}
			continue
		case !fleet.DeletionTimestamp.IsZero():
			obs.unknown[name] = unknownFleet{application.FleetNotFoundReason, fmt.Sprintf("Fleet %s is being deleted", name)}
			continue
		case suspended(fleet, fleet.Spec.Suspend):
			obs.unknown[name] = unknownFleet{suspendedReason, fmt.Sprintf("Fleet %s is suspended", name)}
			continue
		}
		obs.fleets[name] = fleet
		members, err := member.Resolve(fleet, clusters)
		if err != nil {
			obs.unknown[name] = unknownFleet{application.InvalidFleetReason, fmt.Sprintf("Fleet %s: %v", name, err)}
			continue
		}
		obs.scope.Fleets[name] = application.NewFleet(members)
	}
	return nil
}

// listClusters reads the cluster objects of a namespace from the cache.
func listClusters(ctx context.Context, c client.Reader, namespace string) (member.Clusters, error) {
	var attached clusterv1.AttachedClusterList
	var clusters clusterv1.ClusterList
	for _, list := range []client.ObjectList{&attached, &clusters} {
		if err := c.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
			return member.Clusters{}, err
		}
	}
	return member.NewClusters(pointers(attached.Items), pointers(clusters.Items)), nil
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

// owned selects the objects that an Application owns, in the cache.
func owned(app types.NamespacedName) []client.ListOption {
	return []client.ListOption{client.InNamespace(app.Namespace), client.MatchingFields{ownerIndex: app.Name}, client.UnsafeDisableDeepCopy}
}

// observeChildren reads the children that an Application owns from the cache.
func (r *ApplicationReconciler) observeChildren(ctx context.Context, app types.NamespacedName) (map[object.Ref]client.Object, error) {
	var kustomizations kustomizev1.KustomizationList
	var releases helmv2.HelmReleaseList
	if err := errors.Join(r.List(ctx, &kustomizations, owned(app)...), r.List(ctx, &releases, owned(app)...)); err != nil {
		return nil, err
	}
	children := make(map[object.Ref]client.Object, len(kustomizations.Items)+len(releases.Items))
	for i := range kustomizations.Items {
		k := &kustomizations.Items[i]
		children[object.Ref{Kind: kustomizev1.KustomizationKind, Name: k.Name}] = k
	}
	for i := range releases.Items {
		h := &releases.Items[i]
		children[object.Ref{Kind: helmv2.HelmReleaseKind, Name: h.Name}] = h
	}
	return children, nil
}

// observeObjects reads the objects that an Application owns from the cache.
func (r *ApplicationReconciler) observeObjects(ctx context.Context, app *appsv1.Application) (children, sources map[object.Ref]client.Object, err error) {
	key := client.ObjectKeyFromObject(app)
	if children, err = r.observeChildren(ctx, key); err != nil {
		return nil, nil, err
	}
	sources = map[object.Ref]client.Object{}
	for kind, list := range sourceLists() {
		if err := r.List(ctx, list, owned(key)...); err != nil {
			return nil, nil, err
		}
		for _, o := range listItems(list) {
			sources[object.Ref{Kind: kind, Name: o.GetName()}] = o
		}
	}
	return children, sources, nil
}

// sourceLists returns an empty list of each kind of source that an Application may own.
func sourceLists() map[string]client.ObjectList {
	return map[string]client.ObjectList{
		sourcev1.GitRepositoryKind:  &sourcev1.GitRepositoryList{},
		sourcev1.OCIRepositoryKind:  &sourcev1.OCIRepositoryList{},
		sourcev1.BucketKind:         &sourcev1.BucketList{},
		sourcev1.HelmRepositoryKind: &sourcev1.HelmRepositoryList{},
		sourcev1.HelmChartKind:      &sourcev1.HelmChartList{},
	}
}

func listItems(list client.ObjectList) []client.Object {
	var out []client.Object
	switch l := list.(type) {
	case *sourcev1.GitRepositoryList:
		out = objects(pointers(l.Items))
	case *sourcev1.OCIRepositoryList:
		out = objects(pointers(l.Items))
	case *sourcev1.BucketList:
		out = objects(pointers(l.Items))
	case *sourcev1.HelmRepositoryList:
		out = objects(pointers(l.Items))
	case *sourcev1.HelmChartList:
		out = objects(pointers(l.Items))
	}
	return out
}

func objects[T client.Object](items []T) []client.Object {
	out := make([]client.Object, len(items))
	for i := range items {
		out[i] = items[i]
	}
	return out
}

// unknownDependency says that it is not known where an Application goes that this one depends on, and so what this one
// waits for; empty if all is known.
func (o *observed) unknownDependency() string {
	for _, name := range slices.Sorted(maps.Keys(o.scope.Dependencies)) {
		for _, fleet := range o.scope.Dependencies[name].Fleets() {
			if unknown, ok := o.unknown[fleet]; ok {
				return fmt.Sprintf("waits for Application %s: %s", name, unknown.message)
			}
		}
	}
	return ""
}

// someSuspended says whether a fleet that matters is suspended: its members go on with what they have.
func (o *observed) someSuspended() bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(o.unknown)), func(f unknownFleet) bool { return f.reason == suspendedReason })
}

// unknownFleets returns the fleets that the Application goes to and whose members are not known, sorted.
func (o *observed) unknownFleets() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(o.unknown)) {
		if slices.Contains(o.state.Fleets(), name) {
			names = append(names, name)
		}
	}
	return names
}
