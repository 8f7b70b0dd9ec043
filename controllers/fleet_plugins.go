package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/controllers/publisher"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/baseline"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/object"
	"github.com/fleetwright/fleetwright/renderers/plugin"
	"github.com/fleetwright/fleetwright/renderers/rule"
)

// FleetFinalizer keeps a Fleet until its plugins have ended.
const FleetFinalizer = "fleet.kurator.dev/plugins"

var fleetKind = fleetv1.GroupVersion.WithKind(fleetv1.FleetKind)

// Reasons of plugins that are not well, beside those of their Applications.
const (
	unknownPluginReason   = "UnknownPlugin"
	pluginNotLoadedReason = "NotLoaded"
	readingFactsReason    = "ReadingFacts"
	inUseReason           = "InUse"
)

func (r *FleetReconciler) delivery(fleet *fleetv1.Fleet) *delivery {
	return &delivery{r.Client, r.EventRecorder, fleet, fleetKind, object.Digests{}}
}

// deliverPlugins brings the plugins of a fleet to what it declares. What is wrong with one is in its status, and hinders no
// other one; an error is one to try again for.
func (r *FleetReconciler) deliverPlugins(ctx context.Context, fleet *fleetv1.Fleet, members []member.Member) error {
	uses := plugin.Uses(fleet)
	if len(uses) == 0 && !controllerutil.ContainsFinalizer(fleet, FleetFinalizer) {
		fleet.Status.Plugins, fleet.Status.PluginEndpoints, fleet.Status.RenderDigest = nil, nil, ""
		return nil
	}
	apps, err := r.pluginApplications(ctx, fleet)
	if err != nil {
		return err
	}
	if !controllerutil.ContainsFinalizer(fleet, FleetFinalizer) {
		if err := r.patchFinalizer(ctx, fleet, controllerutil.AddFinalizer); err != nil {
			return err
		}
	}
	was := fleet.Status.Plugins
	fleet.Status.Plugins = nil
	var endpoints []fleetv1.PluginEndpoint
	used, wanted := map[string]bool{}, map[string]bool{}
	d, known := r.delivery(fleet), true
	var errs []error
	for i := range uses {
		use := &uses[i]
		used[use.Name], wanted[plugin.Name(fleet.Name, use.Name)] = true, true
		status := fleetv1.PluginStatus{Name: use.Name, Application: plugin.Name(fleet.Name, use.Name), Ready: string(metav1.ConditionFalse)}
		at, err := r.deliverPlugin(ctx, d, fleet, use, members, &status)
		endpoints = append(endpoints, at...)
		known = known && err == nil && status.Reason != pluginNotLoadedReason && status.Reason != readingFactsReason
		switch {
		case errors.Is(err, errOverBudget): // a change of the budget, or of the Fleet, is what goes on from here
			status.Reason, status.Message = overBudgetReason, bounded(err.Error(), 1000)
		case err != nil:
			errs = append(errs, fmt.Errorf("plugin %s: %w", use.Name, err))
			status.Reason, status.Message = applyFailedReason, shorten(err.Error())
		}
		fleet.Status.Plugins = append(fleet.Status.Plugins, status)
	}
	if known { // otherwise it stands for what was rendered last
		fleet.Status.RenderDigest = d.made.Sum()
	}
	r.Facts.forgetFleet(client.ObjectKeyFromObject(fleet), used)
	fleet.Status.PluginEndpoints = endpoints[:min(len(endpoints), fleetv1.MaxPluginEndpoints)]

	inUse, err := r.inUse(ctx, fleet, apps, wanted)
	if err != nil {
		return err
	}
	for name := range inUse {
		wanted[name] = true
	}
	if err := d.end(ctx, apps, wanted); err != nil {
		errs = append(errs, err)
	}
	unwanted := false
	for i := range apps {
		if message, ok := inUse[apps[i].Name]; ok {
			unwanted = true
			fleet.Status.Plugins = append(fleet.Status.Plugins, fleetv1.PluginStatus{Name: rule.EnginePlugin, Application: apps[i].Name,
				Ready: string(metav1.ConditionFalse), Reason: inUseReason, Message: message, Members: apps[i].Status.Members.Summary})
		} else if !wanted[apps[i].Name] {
			unwanted = true
			fleet.Status.Plugins = append(fleet.Status.Plugins, fleetv1.PluginStatus{Name: strings.TrimPrefix(apps[i].Name, "plugin-"+fleet.Name+"-"), Application: apps[i].Name,
				Ready: string(metav1.ConditionFalse), Reason: endingReason, Message: ending(&apps[i])})
		}
	}
	left, err := r.endPluginObjects(ctx, fleet, uses, unwanted)
	errs = append(errs, err)
	if len(uses) == 0 && len(apps) == 0 && left == 0 && controllerutil.ContainsFinalizer(fleet, FleetFinalizer) {
		errs = append(errs, r.patchFinalizer(ctx, fleet, controllerutil.RemoveFinalizer))
	}
	r.announcePlugins(fleet, was)
	return errors.Join(errs...)
}

// deliverPlugin delivers one plugin, fills in its status, and returns its endpoints.
func (r *FleetReconciler) deliverPlugin(ctx context.Context, d *delivery, fleet *fleetv1.Fleet, use *plugin.Use, members []member.Member, status *fleetv1.PluginStatus) ([]fleetv1.PluginEndpoint, error) {
	known := func() []fleetv1.PluginEndpoint { // while nothing new is known
		return slices.DeleteFunc(slices.Clone(fleet.Status.PluginEndpoints), func(e fleetv1.PluginEndpoint) bool { return e.Plugin != use.Name })
	}
	registered, err := r.Plugins.Get(fleet.Namespace, use.Name)
	if err != nil {
		status.Reason, status.Message = unknownPluginReason, err.Error()+": what was installed stays as it is"
		if errors.Is(err, errPluginNotLoaded) {
			status.Ready, status.Reason = string(metav1.ConditionUnknown), pluginNotLoadedReason
		}
		return known(), nil
	}
	use.Config = application.MergeValues(registered.Config, use.Config)
	invalid := func(err error) ([]fleetv1.PluginEndpoint, error) {
		status.Reason, status.Message = invalidReason, fmt.Sprintf("%s: %s: what was installed stays as it is", use.Path, shorten(err.Error()))
		return known(), nil
	}
	in := plugin.Input{Fleet: fleet, Use: *use, Members: members}
	if in.Taken, err = r.taken(ctx, fleet, use.Name); err != nil {
		return known(), err
	}
	reads, err := registered.Reads(in)
	if err != nil {
		return invalid(err)
	}
	r.Facts.want(fleet, use.Name, registered.Plugin, reads, members)
	live := &appsv1.Application{}
	err = r.Get(ctx, types.NamespacedName{Namespace: fleet.Namespace, Name: status.Application}, live, client.UnsafeDisableDeepCopyOption(true))
	if client.IgnoreNotFound(err) != nil {
		return known(), err
	}
	status.Members = live.Status.Members.Summary
	observed, secrets, unread := r.Facts.observed(fleet, use.Name, reads, members, err == nil)
	if unread != "" {
		status.Ready, status.Reason = string(metav1.ConditionUnknown), readingFactsReason
		status.Message = fmt.Sprintf("waits for what is read from member %s: what was installed stays as it is", unread)
		return known(), nil
	}
	if observed.Kept, err = r.keep(ctx, fleet, registered.Plugin, reads, secrets); err != nil {
		return known(), err
	}
	in.Observed = observed
	rendered, err := registered.Render(in)
	if err != nil {
		return invalid(err)
	}

	for name, files := range map[string]map[string][]byte{
		rendered.Application.Name: rendered.Files, rendered.ChartName: rendered.Chart,
	} {
		if len(files) == 0 {
			continue
		}
		artifact, err := r.Publisher.Publish(ctx, types.NamespacedName{Namespace: fleet.Namespace, Name: name}, baseline.Revision(files), files)
		if err != nil {
			return known(), fmt.Errorf("publishing: %w", err)
		}
		if err := d.applyArtifact(ctx, name, plugin.ArtifactSpec(fleet), artifact); err != nil {
			return known(), err
		}
	}
	if err := d.applyApplication(ctx, rendered.Application); err != nil {
		return known(), err
	}
	apps, err := r.pluginApplications(ctx, fleet)
	if err != nil {
		return known(), err
	}
	apps = slices.DeleteFunc(slices.Clone(apps), func(a appsv1.Application) bool { return a.Name != rendered.Application.Name })
	if err := d.passOn(ctx, apps, false, fleetv1.AllowChangeAnnotation, fleetv1.ReconcileAnnotation, meta.ReconcileRequestAnnotation); err != nil {
		return known(), err
	}
	endpoints, waits := endpointsOf(use.Name, reads, members, observed)
	judgePlugin(status, apps, waits, append(rendered.Warnings, r.Facts.problems(fleet, use.Name)...))
	return endpoints, nil
}

// taken returns the members that an older fleet has a plugin on, and that fleet: two would undo each other's work.
func (r *FleetReconciler) taken(ctx context.Context, fleet *fleetv1.Fleet, name string) (map[string]string, error) {
	var fleets fleetv1.FleetList
	if err := r.List(ctx, &fleets, client.InNamespace(fleet.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	var out map[string]string
	for i := range fleets.Items {
		other := &fleets.Items[i]
		older := other.CreationTimestamp.Before(&fleet.CreationTimestamp) || other.CreationTimestamp.Equal(&fleet.CreationTimestamp) && other.Name < fleet.Name
		if other.Name == fleet.Name || !older || !slices.ContainsFunc(plugin.Uses(other), func(u plugin.Use) bool { return strings.EqualFold(u.Name, name) }) {
			continue
		}
		clusters, err := listClusters(ctx, r.Client, fleet.Namespace)
		if err != nil {
			return nil, err
		}
		members, err := member.Resolve(other, clusters)
		if err != nil {
			continue // what is wrong with it is in its own status
		}
		for i := range members {
			if out == nil {
				out = map[string]string{}
			}
			out[members[i].Name] = other.Name
		}
	}
	return out, nil
}

// pluginApplications returns the Applications of the plugins of a fleet, from the cache.
func (r *FleetReconciler) pluginApplications(ctx context.Context, fleet *fleetv1.Fleet) ([]appsv1.Application, error) {
	var apps appsv1.ApplicationList
	err := r.List(ctx, &apps, client.InNamespace(fleet.Namespace), deliveredFor(fleetv1.FleetKind, fleet.Name), client.UnsafeDisableDeepCopy)
	return apps.Items, err
}

// endPluginObjects deletes the artifacts and Secrets that no plugin of a fleet has, when the Applications that they were for
// are gone, and returns how many are left.
func (r *FleetReconciler) endPluginObjects(ctx context.Context, fleet *fleetv1.Fleet, uses []plugin.Use, ending bool) (int, error) {
	wanted := map[string]bool{}
	for _, use := range uses {
		wanted[plugin.Name(fleet.Name, use.Name)], wanted[plugin.ChartName(fleet.Name, use.Name)] = true, true
	}
	var artifacts sourcev1.ExternalArtifactList
	if err := r.List(ctx, &artifacts, client.InNamespace(fleet.Namespace), deliveredFor(fleetv1.FleetKind, fleet.Name), client.UnsafeDisableDeepCopy); err != nil {
		return 0, err
	}
	secrets, err := r.keptSecrets(ctx, fleet)
	if err != nil {
		return 0, err
	}
	left := 0
	for _, o := range append(objects(pointers(artifacts.Items)), objects(secrets)...) {
		if wanted[o.GetName()] {
			continue
		}
		left++
		if ending || deleting(o) {
			continue
		}
		uid := o.GetUID()
		gone := o.DeepCopyObject().(client.Object)
		if err := r.Delete(ctx, gone, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
			return left, err
		}
		if _, ok := o.(*sourcev1.ExternalArtifact); ok {
			if err := r.Publisher.Remove(client.ObjectKeyFromObject(o)); err != nil {
				return left, err
			}
		}
	}
	return left, nil
}

// finalize ends the plugins of a fleet that is deleted, and then the fleet. The order in which they end is their
// Applications'.
func (r *FleetReconciler) finalize(ctx context.Context, fleet *fleetv1.Fleet) error {
	if !controllerutil.ContainsFinalizer(fleet, FleetFinalizer) {
		return nil
	}
	r.Facts.forgetFleet(client.ObjectKeyFromObject(fleet), nil)
	apps, err := r.pluginApplications(ctx, fleet)
	if err != nil {
		return err
	}
	inUse, err := r.inUse(ctx, fleet, apps, nil)
	if err != nil {
		return err
	}
	if err := r.delivery(fleet).end(ctx, slices.DeleteFunc(slices.Clone(apps), func(a appsv1.Application) bool { return inUse[a.Name] != "" }), nil); err != nil {
		return err
	}
	left, err := r.endPluginObjects(ctx, fleet, nil, len(apps) > 0)
	if err != nil {
		return err
	}
	if len(apps) > 0 {
		var texts []string
		for i := range apps {
			texts = append(texts, fmt.Sprintf("Application %s: %s", apps[i].Name, cmp.Or(inUse[apps[i].Name], ending(&apps[i]))))
		}
		message := bounded("its plugins end: "+strings.Join(texts, "; "), 2000)
		conditions.MarkReconciling(fleet, endingReason, "%s", message)
		conditions.MarkFalse(fleet, meta.ReadyCondition, endingReason, "%s", message)
		return nil
	}
	if left > 0 {
		return nil // their end leads here
	}
	return client.IgnoreNotFound(r.patchFinalizer(ctx, fleet, controllerutil.RemoveFinalizer))
}

// patchFinalizer writes the finalizers. The lock keeps one that somebody else adds in between.
func (r *FleetReconciler) patchFinalizer(ctx context.Context, fleet *fleetv1.Fleet, change func(client.Object, string) bool) error {
	written := fleet.DeepCopy()
	change(written, FleetFinalizer)
	return r.Patch(ctx, written, client.MergeFromWithOptions(fleet.DeepCopy(), client.MergeFromWithOptimisticLock{}), client.FieldOwner(FieldOwner))
}

// pluginArtifacts renders and stores what the plugins of a fleet publish. What cannot be rendered is said by the leader.
func pluginArtifacts(ctx context.Context, plugins *Plugins, p publisher.Publisher, fleet *fleetv1.Fleet) error {
	for _, use := range plugin.Uses(fleet) {
		registered, err := plugins.Get(fleet.Namespace, use.Name)
		if err != nil {
			continue
		}
		use.Config = application.MergeValues(registered.Config, use.Config)
		files, chart, err := registered.Artifacts(fleet, use)
		if err != nil {
			continue
		}
		for name, content := range map[string]map[string][]byte{plugin.Name(fleet.Name, use.Name): files, plugin.ChartName(fleet.Name, use.Name): chart} {
			if len(content) == 0 {
				continue
			}
			if _, err := p.Publish(ctx, types.NamespacedName{Namespace: fleet.Namespace, Name: name}, baseline.Revision(content), content); err != nil {
				return err
			}
		}
	}
	return nil
}
