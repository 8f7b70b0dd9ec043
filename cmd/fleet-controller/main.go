// Command fleet-controller is the manager: it runs the controllers on the hub.
package main

import (
	"fmt"
	"os"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	artifacts "github.com/fluxcd/pkg/artifact/config"
	"github.com/fluxcd/pkg/auth"
	authutils "github.com/fluxcd/pkg/auth/utils"
	pkgcache "github.com/fluxcd/pkg/cache"
	runtimeclient "github.com/fluxcd/pkg/runtime/client"
	runtimectrl "github.com/fluxcd/pkg/runtime/controller"
	"github.com/fluxcd/pkg/runtime/events"
	"github.com/fluxcd/pkg/runtime/features"
	"github.com/fluxcd/pkg/runtime/jitter"
	"github.com/fluxcd/pkg/runtime/leaderelection"
	"github.com/fluxcd/pkg/runtime/logger"
	"github.com/fluxcd/pkg/runtime/metrics"
	"github.com/fluxcd/pkg/runtime/pprof"
	"github.com/fluxcd/pkg/runtime/probes"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	flag "github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	kuratorv1 "github.com/fleetwright/fleetwright/api/kurator/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/controllers"
	"github.com/fleetwright/fleetwright/controllers/publisher"
	templates "github.com/fleetwright/fleetwright/fleet-templates"
	catalog "github.com/fleetwright/fleetwright/plugins-catalog"
	"github.com/fleetwright/fleetwright/renderers/plugin"
)

const controllerName = "fleet-controller"

// version is set when a release is built.
var version = "dev"

var (
	scheme   = runtime.NewScheme()
	setupLog = ctrl.Log.WithName("setup")
)

func init() {
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(sourcev1.AddToScheme(scheme))
	utilruntime.Must(kustomizev1.AddToScheme(scheme))
	utilruntime.Must(helmv2.AddToScheme(scheme))
	utilruntime.Must(appsv1.AddToScheme(scheme))
	utilruntime.Must(clusterv1.AddToScheme(scheme))
	utilruntime.Must(fleetv1.AddToScheme(scheme))
	utilruntime.Must(kuratorv1.AddToScheme(scheme))
	utilruntime.Must(policyv1.AddToScheme(scheme))
}

// options are the flags. Those that Flux's controllers have are called as there.
type options struct {
	metricsAddr, healthAddr, eventsAddr string
	concurrent, concurrentProbes        int
	kubeAPIQPS                          float32
	kubeAPIBurst                        int
	defaultKubeConfigServiceAccount     string
	version                             bool

	watch          runtimectrl.WatchOptions
	kubeConfig     runtimeclient.KubeConfigOptions
	jitter         jitter.IntervalOptions
	leaderElection leaderelection.Options
	tokenCache     pkgcache.TokenFlags
	features       features.FeatureGates
	logger         logger.Options
	artifacts      artifacts.Options
}

func (o *options) bind(fs *flag.FlagSet) {
	fs.StringVar(&o.metricsAddr, "metrics-addr", ":8080", "The address the metric endpoint binds to.")
	fs.StringVar(&o.healthAddr, "health-addr", ":9440", "The address the health endpoint binds to.")
	fs.StringVar(&o.eventsAddr, "events-addr", "", "The address of the events receiver.")
	fs.IntVar(&o.concurrent, "concurrent", 4, "The number of Fleets and of Applications that are reconciled at a time.")
	fs.IntVar(&o.concurrentProbes, "concurrent-probes", 20,
		"The number of AttachedClusters and of Clusters that are looked at at a time. One that does not answer takes its place for as long as its timeout.")
	// A limit here would make a fleet of thousands wait for nothing: the API server has its own brake, priority and
	// fairness, which knows how busy it is and who else is waiting.
	fs.Float32Var(&o.kubeAPIQPS, "kube-api-qps", -1, "The maximum queries-per-second of requests sent to the Kubernetes API; negative for no limit.")
	fs.IntVar(&o.kubeAPIBurst, "kube-api-burst", 300, "The maximum burst queries-per-second of requests sent to the Kubernetes API.")
	fs.BoolVar(&o.watch.AllNamespaces, "watch-all-namespaces", true,
		"Watch for resources in all namespaces, if set to false it will only watch the runtime namespace.")
	fs.StringVar(&o.watch.LabelSelector, "watch-label-selector", "",
		"Reconcile the resources with matching labels e.g. 'sharding.fluxcd.io/key=shard1'. What they refer to may have any labels.")
	fs.StringVar(&o.defaultKubeConfigServiceAccount, auth.ControllerFlagDefaultKubeConfigServiceAccount, "", "Default service account used for kubeconfig.")
	fs.BoolVar(&o.version, "version", false, "Print the version and exit.")

	o.kubeConfig.BindFlags(fs)
	o.jitter.BindFlags(fs)
	o.leaderElection.BindFlags(fs)
	o.tokenCache.BindFlags(fs, 100)
	o.features.BindFlags(fs)
	o.logger.BindFlags(fs)
	o.artifacts.BindFlags(fs)
}

func main() {
	var opts options
	opts.bind(flag.CommandLine)
	flag.Parse()
	if opts.version {
		fmt.Println(controllerName, version)
		return
	}
	logger.SetLogger(logger.NewLogger(opts.logger))
	if err := run(&opts); err != nil {
		setupLog.Error(err, "cannot run")
		os.Exit(1)
	}
}

func run(opts *options) error {
	ctx := ctrl.SetupSignalHandler()
	if err := opts.jitter.SetGlobalJitter(nil); err != nil {
		return err
	}
	tokens, err := setupWorkloadIdentity(opts)
	if err != nil {
		return err
	}
	var shard labels.Selector
	if opts.watch.LabelSelector != "" {
		if shard, err = runtimectrl.GetWatchSelector(opts.watch); err != nil {
			return fmt.Errorf("--watch-label-selector: %w", err)
		}
	}
	mgr, err := newManager(opts)
	if err != nil {
		return err
	}
	probes.SetupChecks(mgr, setupLog)
	recorder, err := events.NewRecorder(mgr, ctrl.Log, opts.eventsAddr, controllerName)
	if err != nil {
		return fmt.Errorf("creating the event recorder: %w", err)
	}

	publisher, err := publisher.New(opts.artifacts)
	if err != nil {
		return err
	}
	server, err := publisher.Server()
	if err != nil {
		return err
	}
	if err := mgr.Add(server); err != nil {
		return fmt.Errorf("adding the server of artifacts: %w", err)
	}

	if err := controllers.IndexChildren(ctx, mgr); err != nil {
		return fmt.Errorf("indexing children: %w", err)
	}
	members := func() controllers.MemberReconciler {
		return controllers.MemberReconciler{
			Client:            mgr.GetClient(),
			APIReader:         mgr.GetAPIReader(),
			EventRecorder:     recorder,
			KubeConfigOptions: opts.kubeConfig,
			WorkloadIdentity:  authutils.GetRESTConfigFetcher(tokens...),
			Shard:             shard,
		}
	}
	looking := controller.Options{MaxConcurrentReconciles: opts.concurrentProbes}
	if err := (&controllers.AttachedClusterReconciler{MemberReconciler: members()}).SetupWithManager(ctx, mgr, looking); err != nil {
		return fmt.Errorf("setting up the AttachedCluster controller: %w", err)
	}
	if err := (&controllers.ClusterReconciler{MemberReconciler: members()}).SetupWithManager(ctx, mgr, looking); err != nil {
		return fmt.Errorf("setting up the Cluster controller: %w", err)
	}

	durations := runtimectrl.NewMetrics(mgr, metrics.MustMakeRecorder(), controllers.ApplicationFinalizer)
	rendering := controller.Options{MaxConcurrentReconciles: opts.concurrent}
	known, err := plugin.LoadAll(catalog.FS, templates.Rules())
	if err != nil {
		return fmt.Errorf("reading the catalog of plugins and rules: %w", err)
	}
	plugins, facts, reports := controllers.NewPlugins(known), controllers.NewFacts(), controllers.NewReports()
	if err := (&controllers.MemberReader{MemberReconciler: members(), Facts: facts, Reports: reports}).SetupWithManager(mgr, opts.concurrentProbes); err != nil {
		return fmt.Errorf("setting up the reader of members: %w", err)
	}
	if err := (&controllers.PluginFetcher{Client: mgr.GetClient(), Plugins: plugins}).SetupWithManager(mgr, rendering); err != nil {
		return fmt.Errorf("setting up the fetcher of plugins: %w", err)
	}
	if err := (&controllers.PluginConfigReconciler{
		Client:        mgr.GetClient(),
		EventRecorder: recorder,
		Metrics:       durations,
		Plugins:       plugins,
		Shard:         shard,
	}).SetupWithManager(mgr, rendering); err != nil {
		return fmt.Errorf("setting up the PluginConfig controller: %w", err)
	}
	if err := (&controllers.FleetReconciler{
		Client:        mgr.GetClient(),
		APIReader:     mgr.GetAPIReader(),
		EventRecorder: recorder,
		Metrics:       durations,
		Publisher:     publisher,
		Plugins:       plugins,
		Facts:         facts,
		Shard:         shard,
	}).SetupWithManager(mgr, rendering); err != nil {
		return fmt.Errorf("setting up the Fleet controller: %w", err)
	}
	baselines := &controllers.Baselines{}
	keeper := &controllers.Keeper{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Baselines: baselines}
	if err := (&controllers.ApplicationReconciler{
		Client:        mgr.GetClient(),
		APIReader:     mgr.GetAPIReader(),
		EventRecorder: recorder,
		Metrics:       durations,
		Keep:          keeper.Keep,
		Shard:         shard,
	}).SetupWithManager(ctx, mgr, rendering); err != nil {
		return fmt.Errorf("setting up the Application controller: %w", err)
	}

	for name, stager := range map[string]*controllers.ArtifactStager{
		"artifacts":            controllers.NewConfigStager(mgr.GetClient(), publisher, baselines),
		"plugin-artifacts":     controllers.NewFleetStager(mgr.GetClient(), publisher, plugins),
		"policy-artifacts":     controllers.NewSecurityPolicyStager(mgr.GetClient(), publisher, plugins),
		"compliance-artifacts": controllers.NewComplianceStager(mgr.GetClient(), publisher, plugins),
	} {
		stager.Shard = shard
		if err := stager.SetupWithManager(mgr, rendering); err != nil {
			return fmt.Errorf("setting up the stager of %s: %w", name, err)
		}
		if err := mgr.AddReadyzCheck(name, stager.Ready); err != nil {
			return fmt.Errorf("adding the readiness check of %s: %w", name, err)
		}
	}
	if err := (&controllers.ClusterConfigReconciler{
		Client:        mgr.GetClient(),
		EventRecorder: recorder,
		Metrics:       durations,
		Publisher:     publisher,
		Baselines:     baselines,
		Keeper:        keeper,
		Shard:         shard,
	}).SetupWithManager(mgr, rendering); err != nil {
		return fmt.Errorf("setting up the ClusterConfig controller: %w", err)
	}

	rules := controllers.Rules{
		Client:        mgr.GetClient(),
		EventRecorder: recorder,
		Metrics:       durations,
		Publisher:     publisher,
		Plugins:       plugins,
		Reports:       reports,
		Shard:         shard,
	}
	if err := controllers.FleetSecurityPolicies(rules).SetupWithManager(mgr, rendering); err != nil {
		return fmt.Errorf("setting up the FleetSecurityPolicy controller: %w", err)
	}
	if err := controllers.ClusterCompliances(rules).SetupWithManager(mgr, rendering); err != nil {
		return fmt.Errorf("setting up the ClusterCompliance controller: %w", err)
	}

	setupLog.Info("starting", "version", version)
	return mgr.Start(ctx)
}

func newManager(opts *options) (ctrl.Manager, error) {
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("reaching the hub (set KUBECONFIG outside of a cluster): %w", err)
	}
	cfg.QPS, cfg.Burst = opts.kubeAPIQPS, opts.kubeAPIBurst

	runtimeNamespace := os.Getenv(runtimectrl.EnvRuntimeNamespace)
	caching := controllers.CacheOptions()
	if !opts.watch.AllNamespaces {
		if runtimeNamespace == "" {
			return nil, fmt.Errorf("--watch-all-namespaces=false needs the namespace in the environment variable %s", runtimectrl.EnvRuntimeNamespace)
		}
		caching.DefaultNamespaces = map[string]cache.Config{runtimeNamespace: {}}
	}
	leaderElectionID := controllerName + "-leader-election"
	if opts.watch.LabelSelector != "" { // shards have each their own leader
		leaderElectionID = leaderelection.GenerateID(leaderElectionID, opts.watch.LabelSelector)
	}
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: scheme,
		Logger: ctrl.Log,
		Cache:  caching,
		Client: client.Options{Cache: &client.CacheOptions{
			// Workload identity reads a few; caching would watch all of them.
			DisableFor: []client.Object{&corev1.ConfigMap{}, &corev1.ServiceAccount{}},
		}},
		// The correlator remembers recent events, by default 4,096 of them: of every member that was reached, the one that says so.
		EventBroadcaster:              record.NewBroadcasterWithCorrelatorOptions(record.CorrelatorOptions{LRUCacheSize: 512}), //nolint:staticcheck // it lives as long as the process
		Controller:                    config.Controller{RecoverPanic: new(true)},
		HealthProbeBindAddress:        opts.healthAddr,
		Metrics:                       metricsserver.Options{BindAddress: opts.metricsAddr, ExtraHandlers: pprof.GetHandlers()},
		LeaderElection:                opts.leaderElection.Enable,
		LeaderElectionID:              leaderElectionID,
		LeaderElectionNamespace:       runtimeNamespace,
		LeaderElectionReleaseOnCancel: opts.leaderElection.ReleaseOnCancel,
		LeaseDuration:                 &opts.leaderElection.LeaseDuration,
		RenewDeadline:                 &opts.leaderElection.RenewDeadline,
		RetryPeriod:                   &opts.leaderElection.RetryPeriod,
	})
	if err != nil {
		return nil, fmt.Errorf("creating the manager: %w", err)
	}
	return mgr, nil
}

// setupWorkloadIdentity sets up what members with a configMapRef are reached with, by the flags that Flux has for it.
func setupWorkloadIdentity(opts *options) ([]auth.Option, error) {
	supported := map[string]bool{}
	auth.SetFeatureGates(supported)
	if err := opts.features.WithLogger(setupLog).SupportedFeatures(supported); err != nil {
		return nil, fmt.Errorf("--feature-gates: %w", err)
	}
	enabled, err := features.Enabled(auth.FeatureGateObjectLevelWorkloadIdentity)
	if err != nil {
		return nil, err
	}
	if enabled {
		auth.EnableObjectLevelWorkloadIdentity()
	}
	if opts.defaultKubeConfigServiceAccount != "" {
		auth.SetDefaultKubeConfigServiceAccount(opts.defaultKubeConfigServiceAccount)
	}
	if auth.InconsistentObjectLevelConfiguration() {
		return nil, auth.ErrInconsistentObjectLevelConfiguration
	}
	if opts.tokenCache.MaxSize <= 0 {
		return nil, nil
	}
	tokens, err := pkgcache.NewTokenCache(opts.tokenCache.MaxSize,
		pkgcache.WithMaxDuration(opts.tokenCache.MaxDuration),
		pkgcache.WithMetricsRegisterer(ctrlmetrics.Registry),
		pkgcache.WithMetricsPrefix("gotk_token_"))
	if err != nil {
		return nil, fmt.Errorf("creating the token cache: %w", err)
	}
	return []auth.Option{auth.WithCache(*tokens, pkgcache.InvolvedObject{})}, nil
}
