package controllers

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kuratorv1 "github.com/fleetwright/fleetwright/api/kurator/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// PluginFetcher fetches the plugins of PluginConfigs on every replica, the leader or not: each of them renders the same.
// It writes nothing to the hub. It knows no shards, as a Fleet may use the plugins of any PluginConfig of its namespace.
//
// A revision that is no plugin is looked at once; the last good one stays in use.
type PluginFetcher struct {
	client.Client
	Plugins *Plugins
}

// SetupWithManager registers the fetcher. It does not wait to be elected.
func (f *PluginFetcher) SetupWithManager(mgr ctrl.Manager, opts controller.Options) error {
	f.Plugins.load(true)
	if err := mgr.Add(pluginConfigsAreRead{f}); err != nil {
		return err
	}
	opts.NeedLeaderElection = new(false)
	changed := predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{})
	source := handler.EnqueueRequestsFromMapFunc(f.configsOf)
	return ctrl.NewControllerManagedBy(mgr).
		Named("pluginfetcher").
		For(&kuratorv1.PluginConfig{}, builder.WithPredicates(changed)).
		Watches(&sourcev1.OCIRepository{}, source).
		Watches(&sourcev1.GitRepository{}, source).
		Watches(&sourcev1.Bucket{}, source).
		Watches(&sourcev1.ExternalArtifact{}, source).
		WithOptions(opts).
		Complete(f)
}

// configsOf returns the PluginConfigs that have plugins from a source.
func (f *PluginFetcher) configsOf(ctx context.Context, o client.Object) []reconcile.Request {
	var configs kuratorv1.PluginConfigList
	if err := f.List(ctx, &configs, client.InNamespace(o.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache knows no error but a missing index
	}
	var requests []reconcile.Request
	for i := range configs.Items {
		c := &configs.Items[i]
		from := func(s kuratorv1.PluginSource) bool {
			return isSourceKind(o, pluginSource(c, &s).Kind) && pluginSource(c, &s).Name == o.GetName()
		}
		if slices.ContainsFunc(c.Spec.Plugins, from) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(c)})
		}
	}
	return requests
}

// pluginConfigsAreRead registers the PluginConfigs that there are when the process starts, so that their plugins are not
// taken for unknown ones while they are being fetched.
type pluginConfigsAreRead struct{ *PluginFetcher }

func (pluginConfigsAreRead) NeedLeaderElection() bool { return false }

func (f pluginConfigsAreRead) Start(ctx context.Context) error {
	var configs kuratorv1.PluginConfigList
	if err := f.List(ctx, &configs, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("reading PluginConfigs: %w", err)
	}
	for i := range configs.Items {
		c := &configs.Items[i]
		key := client.ObjectKeyFromObject(c)
		if _, ok := f.Plugins.get(key); ok || deleting(c) {
			continue
		}
		f.Plugins.set(key, unfetched(c))
		// One that went in the meantime may have been removed before it was set.
		if err := f.Get(ctx, key, &kuratorv1.PluginConfig{}); apierrors.IsNotFound(err) {
			f.Plugins.remove(key)
		}
	}
	f.Plugins.load(false)
	return nil
}

// unfetched is what a PluginConfig brings as long as nothing was fetched.
func unfetched(c *kuratorv1.PluginConfig) broughtPlugins {
	b := broughtPlugins{uid: c.UID, created: c.CreationTimestamp}
	for i := range c.Spec.Plugins {
		b.plugins = append(b.plugins, broughtPlugin{name: c.Spec.Plugins[i].Name, state: pluginWaiting, problem: "it is being fetched"})
	}
	return b
}

// Reconcile fetches what is new of the plugins of one PluginConfig.
func (f *PluginFetcher) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	config := &kuratorv1.PluginConfig{}
	if err := f.Get(ctx, req.NamespacedName, config); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	if config.UID == "" || deleting(config) { // it is gone
		f.Plugins.remove(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	before, ok := f.Plugins.get(req.NamespacedName)
	if !ok || before.uid != config.UID {
		before = unfetched(config)
		f.Plugins.set(req.NamespacedName, before)
	}
	held := suspended(config, config.Spec.Suspend)
	next := broughtPlugins{uid: config.UID, created: config.CreationTimestamp, generation: config.Generation}
	var errs []error
	for i := range config.Spec.Plugins {
		s := &config.Spec.Plugins[i]
		b := before.plugin(s.Name)
		if !held || b.Plugin == nil {
			if err := f.look(ctx, config, s, &b, held); err != nil {
				errs = append(errs, fmt.Errorf("plugin %s: %w", s.Name, err))
			}
		}
		next.plugins = append(next.plugins, b)
	}
	if held { // one that was taken out stays
		for _, b := range before.plugins {
			if b.Plugin != nil && !config.Spec.Has(b.name) {
				next.plugins = append(next.plugins, b)
			}
		}
	}
	f.Plugins.set(req.NamespacedName, next)
	return ctrl.Result{}, errors.Join(errs...)
}

// look brings one plugin to what its source has. An error is one after which to try again.
func (f *PluginFetcher) look(ctx context.Context, config *kuratorv1.PluginConfig, s *kuratorv1.PluginSource, b *broughtPlugin, held bool) error {
	b.name = s.Name
	b.is(pluginLoaded, "")
	parameters, err := pluginParameters(s)
	if err != nil {
		b.is(pluginStalled, "config: %v", err)
		return nil
	}
	b.config = parameters
	ref := pluginSource(config, s)
	source, err := f.source(ctx, config.Namespace, ref)
	if err != nil {
		b.is(pluginFailing, "%s: %v", ref, err)
		return err
	}
	switch {
	case source == nil && s.Image != "":
		b.is(pluginWaiting, "%s is being made", ref)
	case source == nil:
		b.is(pluginFailing, "there is no %s in the namespace", ref)
	case s.Image != "" && !ownsPluginSource(config, source):
		b.is(pluginStalled, "%s %v: rename the PluginConfig or the plugin, or delete it", ref, errNotOurs)
	default:
		return f.take(ctx, config, s, source, b, held)
	}
	return nil
}

// take loads what a source has, unless that was tried before.
func (f *PluginFetcher) take(ctx context.Context, config *kuratorv1.PluginConfig, s *kuratorv1.PluginSource, source fluxSource, b *broughtPlugin, held bool) error {
	ref := pluginSource(config, s)
	b.follow(ref, source)
	artifact := source.GetArtifact()
	if artifact == nil {
		return nil
	}
	tried := strings.Join([]string{artifact.Digest, artifact.Revision, s.Path}, " ")
	if tried != b.tried {
		if held && artifact.Revision != revisionOf(config, s.Name) {
			b.is(pluginWaiting, "the PluginConfig is suspended, so %s is not taken, and %s is not there any more", artifact.Revision, cmp.Or(revisionOf(config, s.Name), "another one"))
			return nil
		}
		if message := unverified(source); message != "" {
			b.is(pluginFailing, "%s: %s is not verified, so it is not taken: %s", ref, artifact.Revision, message)
			return nil
		}
		loaded, err := fetchPlugin(ctx, artifact, s.Path, s.Name)
		if err != nil && !errors.Is(err, errNotPlugin) {
			b.is(pluginFailing, "%s: %s cannot be fetched: %v", ref, artifact.Revision, err)
			return err
		}
		b.tried, b.broken = tried, ""
		if err != nil {
			b.broken = err.Error()
		} else {
			b.Plugin, b.revision = loaded, artifact.Revision
		}
	}
	if b.broken != "" {
		b.is(pluginStalled, "%s: %s: %s", ref, artifact.Revision, b.broken)
	}
	return nil
}

// follow says what a source says of itself.
func (b *broughtPlugin) follow(ref object.Ref, source fluxSource) {
	ready := conditions.Get(source, meta.ReadyCondition)
	if _, ok := source.(*sourcev1.ExternalArtifact); !ok {
		ready = fluxReady(source)
	}
	switch {
	case ready != nil && ready.Status == metav1.ConditionFalse:
		b.is(pluginFailing, "%s: %s", ref, ready.Message)
	case source.GetArtifact() == nil, ready == nil, ready.Status == metav1.ConditionUnknown:
		b.is(pluginWaiting, "%s is being fetched", ref)
	}
}

// is says how a plugin is.
func (b *broughtPlugin) is(state pluginState, format string, args ...any) {
	b.state, b.problem = state, bounded(fmt.Sprintf(format, args...), 500)
	if b.Plugin != nil && state != pluginLoaded {
		b.problem += "; " + b.revision + " stays in use"
	}
}

// plugin returns the plugin of a name; one that is yet to be fetched if there is none.
func (b broughtPlugins) plugin(name string) broughtPlugin {
	if i := slices.IndexFunc(b.plugins, func(p broughtPlugin) bool { return p.name == name }); i >= 0 {
		return b.plugins[i]
	}
	return broughtPlugin{name: name, state: pluginWaiting}
}

// unverified says that a source is to be verified, and is not.
func unverified(source fluxSource) string {
	switch o := source.(type) {
	case *sourcev1.OCIRepository:
		if o.Spec.Verify == nil {
			return ""
		}
	case *sourcev1.GitRepository:
		if o.Spec.Verification == nil {
			return ""
		}
	default:
		return ""
	}
	verified := conditions.Get(source, sourcev1.SourceVerifiedCondition)
	switch {
	case verified == nil || verified.ObservedGeneration < source.GetGeneration():
		return "Flux has not looked at it yet"
	case verified.Status != metav1.ConditionTrue:
		return verified.Message
	}
	return ""
}

// revisionOf is the revision that was in use when the status was written.
func revisionOf(config *kuratorv1.PluginConfig, name string) string {
	for _, s := range config.Status.Plugins {
		if s.Name == name {
			return s.Revision
		}
	}
	return ""
}

// pluginParameters returns the config of a plugin. Its numbers are json.Number.
func pluginParameters(s *kuratorv1.PluginSource) (map[string]any, error) {
	if s.Config == nil || len(s.Config.Raw) == 0 {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(s.Config.Raw))
	d.UseNumber()
	var config map[string]any
	if err := d.Decode(&config); err != nil {
		return nil, errors.New("has to be a map")
	}
	return config, nil
}

// pluginSource returns where a plugin comes from.
func pluginSource(config *kuratorv1.PluginConfig, s *kuratorv1.PluginSource) object.Ref {
	if s.SourceRef != nil {
		return object.Ref{Kind: s.SourceRef.Kind, Name: s.SourceRef.Name}
	}
	return object.Ref{Kind: sourcev1.OCIRepositoryKind, Name: object.Name(validation.DNS1123LabelMaxLength, config.Name, s.Name)}
}

// ownsPluginSource says whether an OCIRepository is a PluginConfig's: by name, so that one restored from a backup has it back.
func ownsPluginSource(config *kuratorv1.PluginConfig, o client.Object) bool {
	owner := metav1.GetControllerOfNoCopy(o)
	return owner != nil && owner.Kind == kuratorv1.PluginConfigKind && owner.Name == config.Name
}

// fluxSource is a source of Flux.
type fluxSource interface {
	client.Object
	conditions.Getter
	GetArtifact() *meta.Artifact
}

// newFluxSource returns an empty source of a kind.
func newFluxSource(kind string) fluxSource {
	switch kind {
	case sourcev1.OCIRepositoryKind:
		return &sourcev1.OCIRepository{}
	case sourcev1.GitRepositoryKind:
		return &sourcev1.GitRepository{}
	case sourcev1.BucketKind:
		return &sourcev1.Bucket{}
	}
	return &sourcev1.ExternalArtifact{}
}

// isSourceKind says whether an object from the cache, which has no kind, is of a kind of sources.
func isSourceKind(o client.Object, kind string) bool {
	return fmt.Sprintf("%T", o) == fmt.Sprintf("%T", newFluxSource(kind))
}

// source returns a source from the cache; nil if there is none.
func (f *PluginFetcher) source(ctx context.Context, namespace string, ref object.Ref) (fluxSource, error) {
	source := newFluxSource(ref.Kind)
	err := f.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Name}, source)
	if err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return source, nil
}
