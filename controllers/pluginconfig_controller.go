package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	runtimectrl "github.com/fluxcd/pkg/runtime/controller"
	"github.com/fluxcd/pkg/runtime/predicates"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kuratorv1 "github.com/fleetwright/fleetwright/api/kurator/v1alpha1"
)

// +kubebuilder:rbac:groups=kurator.dev,resources=pluginconfigs,verbs=get;list;watch
// +kubebuilder:rbac:groups=kurator.dev,resources=pluginconfigs/status,verbs=patch
// +kubebuilder:rbac:groups=kurator.dev,resources=pluginconfigs/finalizers,verbs=update
// +kubebuilder:rbac:groups=source.toolkit.fluxcd.io,resources=gitrepositories;ocirepositories;buckets;externalartifacts,verbs=get;list;watch
// +kubebuilder:rbac:groups=source.toolkit.fluxcd.io,resources=ocirepositories,verbs=create;patch;delete

var pluginConfigKind = kuratorv1.GroupVersion.WithKind(kuratorv1.PluginConfigKind)

// defaultPluginInterval is how often an image is looked for anew.
const defaultPluginInterval = 10 * time.Minute

// Reasons of a PluginConfig.
const (
	pluginsNotReadyReason = "PluginsNotReady"
	invalidPluginReason   = "InvalidPlugin"
)

// PluginConfigReconciler has Flux fetch the images of PluginConfigs, and says how their plugins are, which PluginFetcher
// loads. It needs no finalizer: what it makes goes with its owner.
type PluginConfigReconciler struct {
	client.Client
	record.EventRecorder
	runtimectrl.Metrics
	// Plugins are what the fetcher has loaded.
	Plugins *Plugins
	// Shard selects the PluginConfigs to look after; nil selects all.
	Shard labels.Selector

	written written[*kuratorv1.PluginConfig]
}

// SetupWithManager registers the reconciler and its watches.
func (r *PluginConfigReconciler) SetupWithManager(mgr ctrl.Manager, opts controller.Options) error {
	changed := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicates.ReconcileRequestedPredicate{}, predicate.AnnotationChangedPredicate{}))
	owner := handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), &kuratorv1.PluginConfig{}, handler.OnlyControllerOwner())
	return ctrl.NewControllerManagedBy(mgr).
		For(&kuratorv1.PluginConfig{}, changed).
		Watches(&sourcev1.OCIRepository{}, owner, changed).
		WatchesRawSource(r.Plugins.Changes(r.inNamespace)).
		WithOptions(opts).
		Complete(r)
}

// inNamespace returns the PluginConfigs of a namespace, or of all.
func (r *PluginConfigReconciler) inNamespace(ctx context.Context, namespace string) []reconcile.Request {
	var configs kuratorv1.PluginConfigList
	if err := r.List(ctx, &configs, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache knows no error but a missing index
	}
	requests := make([]reconcile.Request, len(configs.Items))
	for i := range configs.Items {
		requests[i].NamespacedName = client.ObjectKeyFromObject(&configs.Items[i])
	}
	return requests
}

// Reconcile brings the sources of one PluginConfig to what is declared, and says how its plugins are.
func (r *PluginConfigReconciler) Reconcile(ctx context.Context, req ctrl.Request) (_ ctrl.Result, err error) {
	start := time.Now()
	cached := &kuratorv1.PluginConfig{}
	if err := r.Get(ctx, req.NamespacedName, cached); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.written.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if deleting(cached) || r.Shard != nil && !r.Shard.Matches(labels.Set(cached.Labels)) {
		return ctrl.Result{}, nil
	}
	cached = r.written.latest(cached)
	config := cached.DeepCopy()
	defer func() {
		err = errors.Join(err, r.written.patch(ctx, r.Client, r.EventRecorder, cached, config))
		r.RecordDuration(ctx, config, start)
	}()

	if suspended(config, config.Spec.Suspend) {
		setSuspended(config, config.Annotations, &config.Status.ReconcileRequestStatus)
		return ctrl.Result{}, nil
	}
	conditions.Delete(config, suspendedCondition)
	failed, err := r.applySources(ctx, config)
	r.report(config, failed)
	return ctrl.Result{}, errors.Join(err, r.passOnRequest(ctx, config))
}

// applySources writes the OCIRepositories of images, and ends those that are not wanted any more. What fails is returned by
// plugin; err is what to try again for.
func (r *PluginConfigReconciler) applySources(ctx context.Context, config *kuratorv1.PluginConfig) (failed map[string]error, err error) {
	failed = map[string]error{}
	wanted := map[string]bool{}
	var errs []error
	for i := range config.Spec.Plugins {
		s := &config.Spec.Plugins[i]
		if s.Image == "" {
			continue
		}
		name := pluginSource(config, s).Name
		wanted[name] = true
		if err := r.applySource(ctx, config, name, repositoryOf(config, s)); err != nil {
			failed[s.Name] = err
			if !errors.Is(err, errNotOurs) {
				errs = append(errs, err)
			}
		}
	}
	sources, err := r.sources(ctx, config)
	if err != nil {
		return failed, err
	}
	for _, source := range sources {
		if wanted[source.Name] || deleting(source) {
			continue
		}
		o := &sourcev1.OCIRepository{}
		o.Name, o.Namespace = source.Name, source.Namespace
		if err := r.Delete(ctx, o, client.Preconditions{UID: &source.UID}); client.IgnoreNotFound(err) != nil {
			errs = append(errs, err)
		}
	}
	return failed, errors.Join(errs...)
}

// applySource writes an OCIRepository, unless it is as declared.
func (r *PluginConfigReconciler) applySource(ctx context.Context, config *kuratorv1.PluginConfig, name string, spec *sourcev1.OCIRepositorySpec) error {
	body, declared, err := declare(config, pluginConfigKind, sourcev1.GroupVersion.WithKind(sourcev1.OCIRepositoryKind), name, spec)
	if err != nil {
		return err
	}
	live := &sourcev1.OCIRepository{}
	err = r.Get(ctx, types.NamespacedName{Namespace: config.Namespace, Name: name}, live, client.UnsafeDisableDeepCopyOption(true))
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	there := err == nil
	notOurs := fmt.Errorf("OCIRepository %s %w: rename the PluginConfig or the plugin, or delete it", name, errNotOurs)
	switch {
	case there && !ownsPluginSource(config, live):
		return notOurs
	case there && deleting(live):
		return nil // it is made anew when it is gone
	case there && isDeclared(declared, live, live.Spec):
		return nil
	}
	err = applyBody(ctx, r.Client, body, there)
	if apierrors.IsConflict(err) && !there {
		return notOurs
	}
	return err
}

// sources returns the OCIRepositories of a PluginConfig, from the cache.
func (r *PluginConfigReconciler) sources(ctx context.Context, config *kuratorv1.PluginConfig) ([]*sourcev1.OCIRepository, error) {
	var list sourcev1.OCIRepositoryList
	if err := r.List(ctx, &list, client.InNamespace(config.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(pointers(list.Items), func(o *sourcev1.OCIRepository) bool { return !ownsPluginSource(config, o) }), nil
}

// repositoryOf returns how Flux fetches the image of a plugin.
func repositoryOf(config *kuratorv1.PluginConfig, s *kuratorv1.PluginSource) *sourcev1.OCIRepositorySpec {
	repository, digest, _ := strings.Cut(strings.TrimPrefix(s.Image, sourcev1.OCIRepositoryPrefix), "@")
	ref := &sourcev1.OCIRepositoryRef{Digest: digest}
	if colon := strings.LastIndex(repository, ":"); colon > strings.LastIndex(repository, "/") {
		if digest == "" {
			ref.Tag = repository[colon+1:]
		}
		repository = repository[:colon]
	}
	if *ref == (sourcev1.OCIRepositoryRef{}) {
		ref = nil // Flux takes latest
	}
	interval := cmp.Or(s.Interval, config.Spec.Interval, &metav1.Duration{Duration: defaultPluginInterval})
	return &sourcev1.OCIRepositorySpec{URL: sourcev1.OCIRepositoryPrefix + repository, Reference: ref, Interval: *interval,
		Verify: s.Verify, SecretRef: s.SecretRef, Insecure: s.Insecure}
}

// passOnRequest passes a reconcile request on to the sources, once, and notes it as handled.
func (r *PluginConfigReconciler) passOnRequest(ctx context.Context, config *kuratorv1.PluginConfig) error {
	token, ok := meta.ReconcileAnnotationValue(config.Annotations)
	if !ok || token == config.Status.LastHandledReconcileAt {
		return nil
	}
	sources, err := r.sources(ctx, config)
	if err != nil {
		return err
	}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, meta.ReconcileRequestAnnotation, token))
	for _, source := range sources {
		o := &sourcev1.OCIRepository{}
		o.Name, o.Namespace = source.Name, source.Namespace
		if err := r.Patch(ctx, o, patch, client.FieldOwner(RequestOwner)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("passing the request on: %w", err)
		}
	}
	config.Status.LastHandledReconcileAt = token
	return nil
}

// report says how the plugins are.
func (r *PluginConfigReconciler) report(config *kuratorv1.PluginConfig, failed map[string]error) {
	key := client.ObjectKeyFromObject(config)
	status := &config.Status
	brought, _ := r.Plugins.get(key)
	if brought.uid != config.UID {
		brought = broughtPlugins{}
	}
	if brought.generation == 0 && status.ObservedGeneration == config.Generation && len(failed) == 0 {
		return // the process has just begun: what was said before is right until the fetcher has looked
	}
	status.ObservedGeneration, status.Plugins = config.Generation, nil
	var texts []string
	count := map[pluginState]int{}
	for i := range config.Spec.Plugins {
		s := &config.Spec.Plugins[i]
		b := brought.plugin(s.Name)
		if brought.generation != config.Generation {
			b.is(pluginWaiting, "is being fetched")
		}
		switch err := cmp.Or(r.Plugins.taken(key, s.Name), failed[s.Name]); {
		case errors.Is(err, errPluginNameTaken):
			b.Plugin, b.revision = nil, "" // what was loaded is not what Fleets get
			b.is(pluginStalled, "%v", err)
		case errors.Is(err, errNotOurs):
			b.is(pluginStalled, "%v", err)
		case err != nil:
			b.is(pluginFailing, "%v", err)
		}
		count[b.state]++
		status.Plugins = append(status.Plugins, kuratorv1.PluginSourceStatus{Name: s.Name, Type: s.Type, Ready: b.ready(), Revision: b.revision, Message: b.problem})
		if b.state != pluginLoaded {
			texts = append(texts, s.Name+" ("+b.problem+")")
		}
	}
	status.Summary = fmt.Sprintf("%d/%d", count[pluginLoaded], len(config.Spec.Plugins))
	summary := status.Summary + " plugins ready"
	if len(texts) > 0 {
		summary = bounded(summary+"; "+capped(texts, 3), 2000)
	}
	setPluginsReady(config, count, summary)
}

// setPluginsReady sets Ready, Reconciling and Stalled from how many plugins are how. While one is being fetched, it is not
// stalled, as kstatus understands that.
func setPluginsReady(config *kuratorv1.PluginConfig, count map[pluginState]int, summary string) {
	conditions.Delete(config, meta.StalledCondition)
	conditions.Delete(config, meta.ReconcilingCondition)
	switch {
	case count[pluginWaiting] > 0:
		conditions.MarkReconciling(config, meta.ProgressingReason, "%s", summary)
		if count[pluginStalled]+count[pluginFailing] == 0 {
			conditions.MarkUnknown(config, meta.ReadyCondition, meta.ProgressingReason, "%s", summary)
			return
		}
		conditions.MarkFalse(config, meta.ReadyCondition, pluginsNotReadyReason, "%s", summary)
	case count[pluginStalled] > 0:
		conditions.MarkStalled(config, invalidPluginReason, "%s", summary)
		conditions.MarkFalse(config, meta.ReadyCondition, invalidPluginReason, "%s", summary)
	case count[pluginFailing] > 0:
		conditions.MarkFalse(config, meta.ReadyCondition, pluginsNotReadyReason, "%s", summary)
	default:
		conditions.MarkTrue(config, meta.ReadyCondition, succeededReason, "%s", summary)
	}
}

func (b *broughtPlugin) ready() string {
	switch b.state {
	case pluginLoaded:
		return string(metav1.ConditionTrue)
	case pluginWaiting:
		return string(metav1.ConditionUnknown)
	}
	return string(metav1.ConditionFalse)
}
