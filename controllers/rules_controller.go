package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	runtimectrl "github.com/fluxcd/pkg/runtime/controller"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/controllers/publisher"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/object"
	"github.com/fleetwright/fleetwright/renderers/plugin"
	"github.com/fleetwright/fleetwright/renderers/rule"
)

// +kubebuilder:rbac:groups=policy.kurator.dev,resources=fleetsecuritypolicies,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=policy.kurator.dev,resources=fleetsecuritypolicies/status,verbs=patch
// +kubebuilder:rbac:groups=policy.kurator.dev,resources=fleetsecuritypolicies/finalizers,verbs=update
// +kubebuilder:rbac:groups=cluster.kurator.dev,resources=clustercompliances,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=cluster.kurator.dev,resources=clustercompliances/status,verbs=patch
// +kubebuilder:rbac:groups=cluster.kurator.dev,resources=clustercompliances/finalizers,verbs=update

// RulesFinalizer keeps a FleetSecurityPolicy or a ClusterCompliance until what it has on members has ended.
const RulesFinalizer = "policy.kurator.dev/rules"

// Reasons of rules that are not well, beside those of their Applications.
const (
	ruleFailedReason     = rule.RuleFailedReason
	heldBackReason       = "HeldBack"
	engineRemovedReason  = "KyvernoRemoved"
	compliantReason      = "Compliant"
	nonCompliantReason   = "RulesBroken"
	notReportedYetReason = "NotReported"
)

// ruled is a FleetSecurityPolicy or a ClusterCompliance: rules for members.
type ruled interface {
	client.Object
	conditions.Setter
	GetRules() *policyv1.RulesStatus
	GetOptions() *policyv1.RuleOptions
}

// Rules is what the controllers of objects that have rules need.
type Rules struct {
	client.Client
	record.EventRecorder
	runtimectrl.Metrics
	// Publisher is where the rendered files are fetched from.
	Publisher publisher.Publisher
	// Plugins are the types of rules, and the plugins whose namespaces are left alone.
	Plugins *Plugins
	// Reports are what members report.
	Reports *Reports
	// Shard selects the objects to look after; nil selects all.
	Shard labels.Selector
}

// RulesReconciler turns each object of a kind that has rules into one published artifact and the Applications that deliver
// it, and says in its status what the members report.
type RulesReconciler[T ruled] struct {
	Rules
	kind    ruleKind[T]
	written written[T]
}

// ruleKind is what is particular to a kind of objects that have rules.
type ruleKind[T ruled] struct {
	name string
	new  func() T
	list func(ctx context.Context, c client.Reader, opts ...client.ListOption) ([]T, error)
	set  func(T) *rule.Set
}

var securityPolicies = ruleKind[*policyv1.FleetSecurityPolicy]{
	name: policyv1.FleetSecurityPolicyKind,
	new:  func() *policyv1.FleetSecurityPolicy { return &policyv1.FleetSecurityPolicy{} },
	list: func(ctx context.Context, c client.Reader, opts ...client.ListOption) ([]*policyv1.FleetSecurityPolicy, error) {
		var list policyv1.FleetSecurityPolicyList
		err := c.List(ctx, &list, opts...)
		return pointers(list.Items), err
	},
	set: rule.OfPolicy,
}

var clusterCompliances = ruleKind[*clusterv1.ClusterCompliance]{
	name: clusterv1.ClusterComplianceKind,
	new:  func() *clusterv1.ClusterCompliance { return &clusterv1.ClusterCompliance{} },
	list: func(ctx context.Context, c client.Reader, opts ...client.ListOption) ([]*clusterv1.ClusterCompliance, error) {
		var list clusterv1.ClusterComplianceList
		err := c.List(ctx, &list, opts...)
		return pointers(list.Items), err
	},
	set: rule.OfCompliance,
}

// FleetSecurityPolicies looks after FleetSecurityPolicies.
func FleetSecurityPolicies(r Rules) *RulesReconciler[*policyv1.FleetSecurityPolicy] {
	return &RulesReconciler[*policyv1.FleetSecurityPolicy]{Rules: r, kind: securityPolicies}
}

// ClusterCompliances looks after ClusterCompliances.
func ClusterCompliances(r Rules) *RulesReconciler[*clusterv1.ClusterCompliance] {
	return &RulesReconciler[*clusterv1.ClusterCompliance]{Rules: r, kind: clusterCompliances}
}

// Reconcile publishes the rules of one object, brings its Applications to what is declared, and says what members report.
func (r *RulesReconciler[T]) Reconcile(ctx context.Context, req ctrl.Request) (_ ctrl.Result, err error) {
	start := time.Now()
	cached := r.kind.new()
	if err := r.Get(ctx, req.NamespacedName, cached); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.written.forget(req.NamespacedName)
			r.Reports.forget(reportOwner{req.NamespacedName, r.kind.name})
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if r.Shard != nil && !r.Shard.Matches(labels.Set(cached.GetLabels())) {
		return ctrl.Result{}, nil
	}
	cached = r.written.latest(cached)
	o := cached.DeepCopyObject().(T)
	defer func() {
		err = errors.Join(err, r.written.patch(ctx, r.Client, r.EventRecorder, cached, o))
		r.RecordDuration(ctx, o, start)
	}()

	if deleting(o) {
		return ctrl.Result{}, r.finalize(ctx, o)
	}
	if suspended(o, o.GetOptions().Suspend) {
		setSuspended(o, o.GetAnnotations(), &o.GetRules().ReconcileRequestStatus)
		return ctrl.Result{}, r.passOn(ctx, o)
	}
	conditions.Delete(o, suspendedCondition)
	if err := r.addFinalizer(ctx, o); err != nil {
		return ctrl.Result{}, err
	}
	o.GetRules().ObservedGeneration = o.GetGeneration()

	set := r.kind.set(o)
	rendered, members, err := renderRules(ctx, r.Client, r.Plugins, set)
	switch {
	case errors.Is(err, errInvalid):
		r.failAll(o, application.InvalidReason, err)
		setStalled(o, application.InvalidReason, err)
		return ctrl.Result{}, reconcile.TerminalError(err)
	case errors.Is(err, errPluginNotLoaded) && r.Plugins.isLoading():
		return ctrl.Result{}, nil
	case errors.Is(err, errPluginNotLoaded), errors.Is(err, errUnknownPlugin):
		r.waits(o, pluginNotLoadedReason, err)
		return ctrl.Result{}, nil
	case errors.Is(err, errFleetNotFound):
		r.failAll(o, application.FleetNotFoundReason, err)
		r.waits(o, application.FleetNotFoundReason, err)
		return ctrl.Result{}, r.passOn(ctx, o)
	case err != nil:
		return ctrl.Result{}, err
	}
	if r.Plugins.isLoading() && slices.ContainsFunc(rendered.Failed(), func(f rule.Rule) bool { return errors.Is(f.Err, errPluginNotLoaded) }) {
		return ctrl.Result{}, nil // the process has just begun: what was said before is right until it is known
	}
	kept := keptRules(o.GetRules(), rendered)
	if len(kept) == 0 {
		if err := r.deliver(ctx, o, set, rendered); err != nil {
			if errors.Is(err, errNotOurs) {
				r.failAll(o, notOursReason, err)
				setStalled(o, notOursReason, err)
				return ctrl.Result{}, reconcile.TerminalError(err)
			}
			if errors.Is(err, errOverBudget) {
				setOverBudget(o, err)
				return ctrl.Result{}, r.passOn(ctx, o)
			}
			conditions.MarkFalse(o, meta.ReadyCondition, applyFailedReason, "%s", shorten(err.Error()))
			return ctrl.Result{}, err
		}
	}
	if err := r.passOn(ctx, o); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, r.report(ctx, o, rendered, kept, members)
}

// errFleetNotFound says that there is no fleet for the rules.
var errFleetNotFound = errors.New("fleet not found")

// renderRules renders rules, and returns the members that they are for.
func renderRules(ctx context.Context, c client.Reader, plugins *Plugins, set *rule.Set) (*rule.Rendered, []member.Key, error) {
	fleets, clusters, err := observeFleets(ctx, c, set.Namespace)
	if err != nil {
		return nil, nil, err
	}
	of, err := set.Of(fleets, clusters)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w: create it, or change spec.fleet: what was delivered stays as it is", errFleetNotFound, err)
	}
	engines := set.EnginesOf(of, func(fleet string) bool {
		key := types.NamespacedName{Namespace: set.Namespace, Name: plugin.Name(fleet, rule.EnginePlugin)}
		return c.Get(ctx, key, &appsv1.Application{}, client.UnsafeDisableDeepCopyOption(true)) == nil
	})
	rendered, err := rule.Render(rule.Input{Set: set, Fleets: of, Engines: engines, Find: finder(plugins, set.Namespace), Types: plugins.RuleTypes(set.Namespace)})
	if err != nil {
		if !errors.Is(err, errPluginNotLoaded) && !errors.Is(err, errUnknownPlugin) {
			err = fmt.Errorf("%w: %w", errInvalid, err)
		}
		return nil, nil, err
	}
	return rendered, set.Members(of, clusters), nil
}

// observeFleets returns the fleets and clusters of a namespace, from the cache.
func observeFleets(ctx context.Context, c client.Reader, namespace string) ([]*fleetv1.Fleet, member.Clusters, error) {
	var fleets fleetv1.FleetList
	if err := c.List(ctx, &fleets, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, member.Clusters{}, err
	}
	clusters, err := listClusters(ctx, c, namespace)
	return pointers(fleets.Items), clusters, err
}

// finder finds the types of rules and plugins of a namespace.
func finder(plugins *Plugins, namespace string) rule.Find {
	return func(name string, ruleType bool) (*plugin.Plugin, map[string]any, error) {
		get := plugins.Get
		if ruleType {
			get = plugins.RuleType
		}
		registered, err := get(namespace, name)
		return registered.Plugin, registered.Config, err
	}
}

// keptRules returns the rules that cannot be rendered any more and that members have: while there is one, nothing is
// published, as what is not published would be taken from them.
func keptRules(status *policyv1.RulesStatus, rendered *rule.Rendered) (names []string) {
	for _, failed := range rendered.Failed() {
		if slices.ContainsFunc(status.Rules, func(s policyv1.RuleStatus) bool { return s.Name == failed.Name && s.Delivered }) {
			names = append(names, failed.Name)
		}
	}
	return names
}

// deliver publishes the files, applies the Applications that deliver them, and ends those that are not wanted any more.
func (r *RulesReconciler[T]) deliver(ctx context.Context, o T, set *rule.Set, rendered *rule.Rendered) error {
	d := r.delivery(o)
	if rendered.Files != nil {
		artifact, err := r.Publisher.Publish(ctx, types.NamespacedName{Namespace: set.Namespace, Name: set.PoliciesName()}, rendered.Revision, rendered.Files)
		if err != nil {
			return fmt.Errorf("publishing: %w", err)
		}
		if err := d.applyArtifact(ctx, set.PoliciesName(), set.ArtifactSpec(), artifact); err != nil {
			return err
		}
	}
	wanted := map[string]bool{}
	for _, app := range rendered.Applications() {
		wanted[app.Name] = true
		if err := d.applyApplication(ctx, app); err != nil {
			return err
		}
	}
	apps, err := r.applications(ctx, o)
	if err != nil {
		return err
	}
	o.GetRules().RenderDigest = d.made.Sum()
	return d.end(ctx, apps, wanted)
}

func (r *RulesReconciler[T]) delivery(o T) *delivery {
	return &delivery{r.Client, r.EventRecorder, o, r.kind.set(o).Kind, object.Digests{}}
}

// applications returns the Applications of an object, from the cache.
func (r *RulesReconciler[T]) applications(ctx context.Context, o T) ([]appsv1.Application, error) {
	var apps appsv1.ApplicationList
	err := r.List(ctx, &apps, client.InNamespace(o.GetNamespace()), deliveredFor(r.kind.name, o.GetName()), client.UnsafeDisableDeepCopy)
	return apps.Items, err
}

func (r *RulesReconciler[T]) passOn(ctx context.Context, o T) error {
	apps, err := r.applications(ctx, o)
	if err != nil {
		return err
	}
	return r.delivery(o).passOn(ctx, apps, suspended(o, o.GetOptions().Suspend),
		fleetv1.AllowPruneAnnotation, fleetv1.AllowChangeAnnotation, fleetv1.ReconcileAnnotation, meta.ReconcileRequestAnnotation, fleetv1.PauseAnnotation)
}

func (r *RulesReconciler[T]) addFinalizer(ctx context.Context, o T) error {
	if controllerutil.ContainsFinalizer(o, RulesFinalizer) {
		return nil
	}
	before := o.DeepCopyObject().(T)
	controllerutil.AddFinalizer(o, RulesFinalizer)
	status := *o.GetRules().DeepCopy()
	if err := r.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(FieldOwner)); err != nil {
		return err
	}
	*o.GetRules() = status
	return nil
}

// finalize ends the Applications, and with them what is on the members, then the artifact, and then the object.
func (r *RulesReconciler[T]) finalize(ctx context.Context, o T) error {
	if !controllerutil.ContainsFinalizer(o, RulesFinalizer) {
		return nil
	}
	r.Reports.forget(reportOwner{client.ObjectKeyFromObject(o), r.kind.name})
	apps, err := r.applications(ctx, o)
	if err != nil {
		return err
	}
	ends, err := r.delivery(o).endAll(ctx, apps)
	if err != nil {
		return err
	}
	if ends != "" {
		setEnds(o, ends)
		return nil
	}
	before := o.DeepCopyObject().(T)
	controllerutil.RemoveFinalizer(o, RulesFinalizer)
	return client.IgnoreNotFound(r.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(FieldOwner)))
}

// count says which results of which members are wanted.
func (r *RulesReconciler[T]) count(o T, rendered *rule.Rendered, members []member.Key, revisions map[member.Key]string) {
	wanted := map[memberRef]string{}
	for _, m := range members {
		if m.Kind != "" {
			wanted[refOf(o, m)] = revisions[m]
		}
	}
	r.Reports.want(reportOwner{client.ObjectKeyFromObject(o), r.kind.name}, rendered.Counted(), wanted)
}

// refOf returns the reference of a member in the namespace of an object.
func refOf(o client.Object, m member.Key) memberRef {
	return memberRef{types.NamespacedName{Namespace: o.GetNamespace(), Name: m.Name}, m.Kind}
}

// rulesArtifact stores what an object with rules publishes. What cannot be rendered is said by the leader.
func rulesArtifact(ctx context.Context, c client.Reader, plugins *Plugins, p publisher.Publisher, set *rule.Set, status *policyv1.RulesStatus) error {
	rendered, _, err := renderRules(ctx, c, plugins, set)
	if err != nil || rendered.Files == nil || len(keptRules(status, rendered)) > 0 {
		return nil //nolint:nilerr // the leader says so in the status
	}
	_, err = p.Publish(ctx, types.NamespacedName{Namespace: set.Namespace, Name: set.PoliciesName()}, rendered.Revision, rendered.Files)
	return err
}
