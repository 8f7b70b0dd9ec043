// Command demo shows Fleetwright at work on this machine: a hub, two members, Flux, and what config/samples delivers
// from a Git server of its own. It stays up until it is interrupted; with DEMO_ONCE=1 it ends when all is delivered.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"

	k8sappsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	"github.com/fleetwright/fleetwright/e2e/harness"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	say("Starting a hub, two members, Flux and Fleetwright …")
	env, err := harness.Start(ctx, harness.Options{Members: 2})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			env.KeepLogs()
		}
		err = errors.Join(err, env.Close())
	}()
	if err := env.StartController(ctx); err != nil {
		return err
	}
	samples, err := readSamples(env.Git.URL("app"))
	if err != nil {
		return err
	}
	if err := deliver(ctx, env, samples); err != nil {
		return err
	}
	for _, app := range samples.applications {
		if err := waitReady(ctx, env.Hub.Client, app); err != nil {
			return err
		}
	}
	for _, member := range env.Members {
		if err := show(ctx, member); err != nil {
			return err
		}
	}
	if os.Getenv("DEMO_ONCE") != "" {
		say("Done.")
		return nil
	}
	invite(env, samples)
	<-ctx.Done()
	say("\nStopping …")
	return nil
}

func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// deliver does what a person does to begin: put the app and the fleet into Git, give the hub the members'
// kubeconfigs, and have Flux on the hub apply the fleet.
func deliver(ctx context.Context, env *harness.Env, s *samples) error {
	app, err := s.appFiles()
	if err != nil {
		return err
	}
	say("Pushing the app to %s and %s to %s …", env.Git.URL("app"), samplesPath, env.Git.URL("fleet"))
	if _, err := env.Git.Push(ctx, "app", app); err != nil {
		return err
	}
	if _, err := env.Git.Push(ctx, "fleet", s.files); err != nil {
		return err
	}

	members := map[string]*harness.Cluster{}
	for _, member := range env.Members {
		members[member.Name] = member
	}
	for _, cluster := range s.clusters {
		member := members[cluster.Name]
		if member == nil {
			return fmt.Errorf("%s has AttachedCluster %s; the demo has member1 and member2", samplesPath, cluster.Name)
		}
		say("Giving the hub the kubeconfig of %s: Secret %s/%s …", cluster.Name, cluster.Namespace, cluster.Spec.Kubeconfig.Name)
		secret := member.KubeconfigSecret(cluster.Namespace, cluster.Spec.Kubeconfig.Name)
		if key := cluster.Spec.Kubeconfig.Key; key != "" {
			secret.Data = map[string][]byte{key: member.Kubeconfig}
		}
		if err := env.Hub.CreateNamespace(ctx, cluster.Namespace); err != nil {
			return err
		}
		if err := env.Hub.Client.Create(ctx, secret); err != nil {
			return err
		}
	}

	fleet := metav1.ObjectMeta{Namespace: harness.FluxNamespace, Name: "fleet"}
	interval := metav1.Duration{Duration: time.Minute}
	say("Having Flux on the hub apply %s …", samplesPath)
	if err := env.Hub.Client.Create(ctx, &sourcev1.GitRepository{ObjectMeta: fleet, Spec: sourcev1.GitRepositorySpec{
		URL: env.Git.URL("fleet"), Interval: interval, Reference: &sourcev1.GitRepositoryRef{Branch: "main"},
	}}); err != nil {
		return err
	}
	return env.Hub.Client.Create(ctx, &kustomizev1.Kustomization{ObjectMeta: fleet, Spec: kustomizev1.KustomizationSpec{
		SourceRef: kustomizev1.CrossNamespaceSourceReference{Kind: sourcev1.GitRepositoryKind, Name: fleet.Name},
		Path:      samplesPath, Interval: interval, RetryInterval: &metav1.Duration{Duration: 2 * time.Second}, Prune: true,
	}})
}

// waitReady waits until an Application is ready, and says each time that its message changes.
func waitReady(ctx context.Context, hub client.Client, app *appsv1.Application) error {
	said := ""
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		if err := hub.Get(ctx, client.ObjectKeyFromObject(app), app); err != nil {
			return false, client.IgnoreNotFound(err)
		}
		ready := apimeta.FindStatusCondition(app.Status.Conditions, meta.ReadyCondition)
		if ready == nil {
			return false, nil
		}
		if line := fmt.Sprintf("Application %s/%s: Ready=%s %s", app.Namespace, app.Name, ready.Status, ready.Message); line != said {
			say("%s", line)
			said = line
		}
		return ready.Status == metav1.ConditionTrue && app.Status.ObservedGeneration == app.Generation, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for Application %s/%s to be ready: %w", app.Namespace, app.Name, err)
	}
	return nil
}

// show lists what Flux has applied on a member.
func show(ctx context.Context, member *harness.Cluster) error {
	say("\nOn %s:", member.Name)
	byNamespace, byName := kustomizev1.GroupVersion.Group+"/namespace", kustomizev1.GroupVersion.Group+"/name"
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "  KIND\tNAMESPACE\tNAME\tLABELS\tAPPLIED BY")
	for _, kind := range []schema.GroupVersionKind{
		corev1.SchemeGroupVersion.WithKind("Namespace"), corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		corev1.SchemeGroupVersion.WithKind("Service"), k8sappsv1.SchemeGroupVersion.WithKind("Deployment"),
	} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind)
		if err := member.Client.List(ctx, list, client.HasLabels{byName}); err != nil {
			return err
		}
		for _, obj := range list.Items {
			by := obj.Labels[byNamespace] + "/" + obj.Labels[byName]
			delete(obj.Labels, byNamespace)
			delete(obj.Labels, byName)
			delete(obj.Labels, corev1.LabelMetadataName)
			fmt.Fprintf(table, "  %s\t%s\t%s\t%s\tKustomization %s\n",
				kind.Kind, obj.Namespace, obj.Name, labels.FormatLabels(obj.Labels), by)
		}
	}
	return table.Flush()
}

// invite says what to try.
func invite(env *harness.Env, s *samples) {
	bin := filepath.Join(harness.Root(), "bin")
	say(`
The hub and the members stay up until Ctrl-C. In another terminal:

  export PATH=%s:$PATH KUBECONFIG=%s
  kubectl get fleets,attachedclusters,applications -A
  kubectl get kustomizations,helmreleases -A
  flux get all -A`, bin, env.Hub.KubeconfigFile)
	for _, member := range env.Members {
		say("  kubectl --kubeconfig %s get deployments -A", member.KubeconfigFile)
	}
	say("\nChange what is delivered; the repositories are plain folders:\n\n  cd %s/git/app && $EDITOR . && git commit -am change", env.Dir)
	for _, app := range s.applications {
		say("  flux reconcile source git %s -n %s", app.Name, app.Namespace)
	}
	say("\nLogs are in %s/logs.", env.Dir)
}
