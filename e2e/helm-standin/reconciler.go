package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	helmrelease "helm.sh/helm/v4/pkg/release"
	release "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/chartutil"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/opencontainers/go-digest"
)

type reconciler struct {
	client.Client
}

// notReady is why a HelmRelease is not ready, in helm-controller's words.
type notReady struct {
	reason string
	err    error
}

func (n notReady) Error() string { return n.err.Error() }
func (n notReady) Unwrap() error { return n.err }

// errWaiting marks what ends by itself: a source or a dependency that is not ready yet.
var errWaiting = errors.New("waiting")

const waitInterval = 2 * time.Second

func (r *reconciler) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&helmv2.HelmRelease{}, builder.WithPredicates(
			predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&sourcev1.HelmChart{}, handler.EnqueueRequestsFromMapFunc(r.usersOf(sourcev1.HelmChartKind))).
		Watches(&sourcev1.OCIRepository{}, handler.EnqueueRequestsFromMapFunc(r.usersOf(sourcev1.OCIRepositoryKind))).
		Watches(&sourcev1.ExternalArtifact{}, handler.EnqueueRequestsFromMapFunc(r.usersOf(sourcev1.ExternalArtifactKind))).
		WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.readersOf("Secret")), builder.WithPredicates(changed)).
		WatchesMetadata(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(r.readersOf("ConfigMap")), builder.WithPredicates(changed)).
		// Each waits for what it installs.
		WithOptions(controller.Options{MaxConcurrentReconciles: 12}).
		Complete(r)
}

// changed lets through what is not only being listed anew.
var changed = predicate.ResourceVersionChangedPredicate{}

// readersOf returns what maps a Secret or ConfigMap to the HelmReleases of its namespace that take values, or the
// kubeconfig, from it. Only those with Flux's label are watched.
func (r *reconciler) readersOf(kind string) handler.MapFunc {
	return func(ctx context.Context, o client.Object) []reconcile.Request {
		var releases helmv2.HelmReleaseList
		if err := r.List(ctx, &releases, client.InNamespace(o.GetNamespace())); err != nil {
			return nil
		}
		var readers []reconcile.Request
		for _, hr := range releases.Items {
			reads := slices.ContainsFunc(hr.Spec.ValuesFrom, func(ref helmv2.ValuesReference) bool {
				return ref.Kind == kind && ref.Name == o.GetName()
			})
			if k := hr.Spec.KubeConfig; k != nil && k.SecretRef != nil && kind == "Secret" {
				reads = reads || k.SecretRef.Name == o.GetName()
			}
			if reads {
				readers = append(readers, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&hr)})
			}
		}
		return readers
	}
}

// usersOf returns what maps a source of a kind to the HelmReleases of its namespace that use it.
func (r *reconciler) usersOf(kind string) handler.MapFunc {
	return func(ctx context.Context, source client.Object) []reconcile.Request {
		var releases helmv2.HelmReleaseList
		if err := r.List(ctx, &releases, client.InNamespace(source.GetNamespace())); err != nil {
			return nil
		}
		var users []reconcile.Request
		for _, hr := range releases.Items {
			if ref := hr.Spec.ChartRef; ref != nil && ref.Kind == kind && ref.Name == source.GetName() {
				users = append(users, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&hr)})
			}
		}
		return users
	}
}

func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	hr := &helmv2.HelmRelease{}
	if err := r.Get(ctx, req.NamespacedName, hr); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !hr.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.delete(ctx, hr)
	}
	if hr.Spec.Suspend {
		return ctrl.Result{}, nil
	}
	before := hr.DeepCopy()
	if controllerutil.AddFinalizer(hr, helmv2.HelmReleaseFinalizer) {
		if err := r.Patch(ctx, hr, client.MergeFrom(before)); err != nil {
			return ctrl.Result{}, err
		}
		before = hr.DeepCopy()
	}

	say := func() error {
		if err := r.Status().Patch(ctx, hr, client.MergeFrom(before)); err != nil {
			return err
		}
		before = hr.DeepCopy()
		return nil
	}
	err := r.release(ctx, hr, say)
	apimeta.RemoveStatusCondition(&hr.Status.Conditions, meta.ReconcilingCondition)
	var why notReady
	if errors.As(err, &why) {
		setCondition(hr, meta.ReadyCondition, metav1.ConditionFalse, why.reason, err.Error())
	}
	hr.Status.ObservedGeneration = hr.Generation
	if at, ok := meta.ReconcileAnnotationValue(hr.Annotations); ok {
		hr.Status.SetLastHandledReconcileRequest(at)
	}
	if err := say(); err != nil {
		return ctrl.Result{}, err
	}
	if errors.Is(err, errWaiting) {
		return ctrl.Result{RequeueAfter: waitInterval}, nil
	}
	return ctrl.Result{RequeueAfter: hr.GetRequeueAfter()}, err
}

// release installs or upgrades, if there is anything to do, and sets the status to what happened. say writes the status
// in between.
func (r *reconciler) release(ctx context.Context, hr *helmv2.HelmRelease, say func() error) error {
	if err := r.checkDependencies(ctx, hr); err != nil {
		return notReady{helmv2.DependencyNotReadyReason, err}
	}
	loaded, artifact, err := r.loadChart(ctx, hr)
	if errors.Is(err, errWaiting) {
		return notReady{"SourceNotReady", err}
	}
	if err != nil {
		return notReady{helmv2.ArtifactFailedReason, err}
	}
	values, err := chartutil.ChartValuesFromReferences(ctx, ctrl.LoggerFrom(ctx), r.Client, hr.Namespace, hr.GetValues(), hr.Spec.ValuesFrom...)
	if err != nil {
		return notReady{"ValuesError", err}
	}
	config, cleanup, err := r.helmConfig(ctx, hr)
	if err != nil {
		return notReady{"InitFailed", err}
	}
	defer cleanup()

	configDigest := chartutil.DigestValues(digest.SHA256, values).String()
	hr.Status.StorageNamespace = hr.GetStorageNamespace()
	hr.Status.LastAttemptedGeneration = hr.Generation
	hr.Status.LastAttemptedRevision = artifact.Revision
	hr.Status.LastAttemptedConfigDigest = configDigest

	latest := hr.Status.History.Latest()
	switch _, err := config.Releases.Last(hr.GetReleaseName()); {
	case errors.Is(err, driver.ErrReleaseNotFound):
		starts(hr, helmv2.ReleaseActionInstall)
		if err := say(); err != nil {
			return err
		}
		rel, err := install(ctx, config, hr, loaded, values)
		if err != nil {
			return notReady{helmv2.InstallFailedReason, err}
		}
		succeed(hr, helmv2.InstallSucceededReason, rel, configDigest, artifact)
	case err != nil:
		return notReady{"InitFailed", err}
	case latest == nil || latest.ConfigDigest != configDigest ||
		latest.ChartVersion != loaded.Metadata.Version || latest.OCIDigest != ociDigest(hr, artifact):
		starts(hr, helmv2.ReleaseActionUpgrade)
		if err := say(); err != nil {
			return err
		}
		rel, err := upgrade(ctx, config, hr, loaded, values)
		if err != nil {
			return notReady{helmv2.UpgradeFailedReason, err}
		}
		succeed(hr, helmv2.UpgradeSucceededReason, rel, configDigest, artifact)
	default:
		// Nothing changed; what may have been not ready in between (a dependency, say) is again.
		if released := apimeta.FindStatusCondition(hr.Status.Conditions, helmv2.ReleasedCondition); released != nil {
			setCondition(hr, meta.ReadyCondition, metav1.ConditionTrue, released.Reason, released.Message)
		}
	}
	return nil
}

// starts sets the status to what helm-controller says while it installs or upgrades.
func starts(hr *helmv2.HelmRelease, action helmv2.ReleaseAction) {
	hr.Status.LastAttemptedReleaseAction = action
	message := fmt.Sprintf("Running '%s' action with timeout of %s", action, hr.GetTimeout().Duration)
	setCondition(hr, meta.ReadyCondition, metav1.ConditionUnknown, meta.ProgressingReason, message)
	setCondition(hr, meta.ReconcilingCondition, metav1.ConditionTrue, meta.ProgressingReason, message)
}

func (r *reconciler) checkDependencies(ctx context.Context, hr *helmv2.HelmRelease) error {
	for _, ref := range hr.Spec.DependsOn {
		dep := &helmv2.HelmRelease{}
		key := types.NamespacedName{Namespace: hr.Namespace, Name: ref.Name}
		if ref.Namespace != "" {
			key.Namespace = ref.Namespace
		}
		if err := r.Get(ctx, key, dep); err != nil {
			return fmt.Errorf("%w: dependency %s: %w", errWaiting, key, err)
		}
		if dep.Status.ObservedGeneration != dep.Generation || !apimeta.IsStatusConditionTrue(dep.Status.Conditions, meta.ReadyCondition) {
			return fmt.Errorf("%w: dependency %s is not ready", errWaiting, key)
		}
	}
	return nil
}

// succeed writes a release into the status.
func succeed(hr *helmv2.HelmRelease, reason string, releaser helmrelease.Releaser, configDigest string, artifact *meta.Artifact) {
	rel := releaser.(*release.Release)
	for _, s := range hr.Status.History {
		s.Status = "superseded"
	}
	snapshot := &helmv2.Snapshot{
		APIVersion: helmv2.CurrentSnapshotAPIVersion,
		Digest:     digest.FromString(rel.Manifest).String(),
		Name:       rel.Name, Namespace: rel.Namespace, Version: rel.Version, Status: rel.Info.Status.String(),
		Action:    hr.Status.LastAttemptedReleaseAction,
		ChartName: rel.Chart.Name(), ChartVersion: rel.Chart.Metadata.Version, AppVersion: rel.Chart.AppVersion(),
		ConfigDigest:  configDigest,
		OCIDigest:     ociDigest(hr, artifact),
		FirstDeployed: metav1.NewTime(rel.Info.FirstDeployed), LastDeployed: metav1.NewTime(rel.Info.LastDeployed),
	}
	history := append(helmv2.Snapshots{snapshot}, hr.Status.History...)
	hr.Status.History = history[:min(len(history), hr.GetMaxHistory())]
	message := fmt.Sprintf("Helm %s succeeded for release %s with chart %s@%s",
		hr.Status.LastAttemptedReleaseAction, snapshot.FullReleaseName(), snapshot.ChartName, snapshot.ChartVersion)
	setCondition(hr, helmv2.ReleasedCondition, metav1.ConditionTrue, reason, message)
	setCondition(hr, meta.ReadyCondition, metav1.ConditionTrue, reason, message)
}

// delete uninstalls and lets the object go. As helm-controller, it leaves the release where it is when the object is
// suspended, and when the kubeconfig is gone.
func (r *reconciler) delete(ctx context.Context, hr *helmv2.HelmRelease) error {
	if !controllerutil.ContainsFinalizer(hr, helmv2.HelmReleaseFinalizer) {
		return nil
	}
	if !hr.Spec.Suspend {
		if err := r.uninstall(ctx, hr); err != nil && !apierrors.IsNotFound(err) {
			before := hr.DeepCopy()
			setCondition(hr, meta.ReadyCondition, metav1.ConditionFalse, helmv2.UninstallFailedReason, err.Error())
			return errors.Join(err, r.Status().Patch(ctx, hr, client.MergeFrom(before)))
		}
	}
	before := hr.DeepCopy()
	controllerutil.RemoveFinalizer(hr, helmv2.HelmReleaseFinalizer)
	return client.IgnoreNotFound(r.Patch(ctx, hr, client.MergeFrom(before)))
}

func setCondition(hr *helmv2.HelmRelease, kind string, status metav1.ConditionStatus, reason, message string) {
	apimeta.SetStatusCondition(&hr.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: hr.Generation,
	})
}
