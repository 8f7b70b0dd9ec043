package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// listing is something that get shows: objects of one kind, or of kinds that are shown together.
type listing struct {
	use, short string
	aliases    []string
	resources  []schema.GroupVersionResource
	columns    []string
	rows       func(o *unstructured.Unstructured, s *status, now time.Time) [][]string
	// rules says that what is shown has rules, and can be shown for one member.
	rules bool
}

// status is what the statuses of all our kinds have.
type status struct {
	clusterv1.MemberHealth `json:",inline"`
	RenderDigest           string                   `json:"renderDigest"`
	Members                fleetv1.MemberSummary    `json:"members"`
	Plugins                []fleetv1.PluginStatus   `json:"plugins"`
	PluginEndpoints        []fleetv1.PluginEndpoint `json:"pluginEndpoints"`
	Rules                  []policyv1.RuleStatus    `json:"rules"`
	Compliance             policyv1.Compliance      `json:"compliance"`
}

var (
	memberColumns = []string{"NAME", "READY", "MEMBERS", "AGE", "STATUS"}
	ruleColumns   = []string{"NAME", "READY", "MEMBERS", "COMPLIANT", "FAILING", "AGE", "STATUS"}
)

var listings = []listing{
	{
		use: "fleets", short: "List Fleets", aliases: []string{"fleet"},
		resources: []schema.GroupVersionResource{fleetv1.GroupVersion.WithResource("fleets")},
		columns:   memberColumns, rows: memberRow,
	},
	{
		use: "applications", short: "List Applications", aliases: []string{"application", "apps", "app"},
		resources: []schema.GroupVersionResource{appsv1.GroupVersion.WithResource("applications")},
		columns:   memberColumns, rows: memberRow,
	},
	{
		use: "clusterconfigs", short: "List ClusterConfigs", aliases: []string{"clusterconfig", "baselines", "baseline"},
		resources: []schema.GroupVersionResource{clusterv1.GroupVersion.WithResource("clusterconfigs")},
		columns:   memberColumns, rows: memberRow,
	},
	{
		use: "policies", short: "List FleetSecurityPolicies, and what members report", aliases: []string{"policy", "fleetsecuritypolicies", "fleetsecuritypolicy", "fsp"},
		resources: []schema.GroupVersionResource{policyv1.GroupVersion.WithResource("fleetsecuritypolicies")},
		columns:   ruleColumns, rows: ruleRow, rules: true,
	},
	{
		use: "compliance", short: "List ClusterCompliances, and what members report", aliases: []string{"clustercompliances", "clustercompliance", "compliances"},
		resources: []schema.GroupVersionResource{clusterv1.GroupVersion.WithResource("clustercompliances")},
		columns:   ruleColumns, rows: ruleRow, rules: true,
	},
	{
		use: "plugins", short: "List the plugins of Fleets", aliases: []string{"plugin"},
		resources: []schema.GroupVersionResource{fleetv1.GroupVersion.WithResource("fleets")},
		columns:   []string{"FLEET", "PLUGIN", "READY", "MEMBERS", "STATUS"}, rows: pluginRows,
	},
	{
		use: "clusters", short: "List AttachedClusters and Clusters", aliases: []string{"cluster", "attachedclusters", "attachedcluster"},
		resources: []schema.GroupVersionResource{clusterv1.GroupVersion.WithResource("attachedclusters"), clusterv1.GroupVersion.WithResource("clusters")},
		columns:   []string{"NAME", "KIND", "READY", "VERSION", "NODES", "EXPIRES", "AGE", "STATUS"}, rows: clusterRow,
	},
}

func memberRow(o *unstructured.Unstructured, s *status, now time.Time) [][]string {
	ready, message := s.ready()
	return [][]string{{o.GetName(), ready, cmp.Or(s.Members.Summary, "<none>"), age(o, now), message}}
}

func ruleRow(o *unstructured.Unstructured, s *status, now time.Time) [][]string {
	ready, message := s.ready()
	if c := apimeta.FindStatusCondition(s.Conditions, policyv1.CompliantCondition); c != nil && ready == string(metav1.ConditionTrue) {
		message = c.Message
	}
	return [][]string{{o.GetName(), ready, cmp.Or(s.Members.Summary, "<none>"), cmp.Or(s.Compliance.Summary, "<none>"),
		fmt.Sprint(s.Compliance.Results.Fail + s.Compliance.Results.Error), age(o, now), message}}
}

// pluginRows are those of the plugins of a fleet.
func pluginRows(o *unstructured.Unstructured, s *status, _ time.Time) (rows [][]string) {
	for _, p := range s.Plugins {
		rows = append(rows, []string{o.GetName(), p.Name, p.Ready, cmp.Or(p.Members, "<none>"), p.Message})
	}
	return rows
}

func clusterRow(o *unstructured.Unstructured, s *status, now time.Time) [][]string {
	ready, message := s.ready()
	nodes, expires := "<none>", "<none>"
	if s.Nodes != nil {
		nodes = fmt.Sprint(*s.Nodes)
	}
	if at := s.CredentialsExpireAt; at != nil {
		expires = "expired"
		if left := at.Sub(now); left > 0 {
			expires = duration.HumanDuration(left)
		}
	}
	return [][]string{{o.GetName(), o.GetKind(), ready, cmp.Or(s.KubernetesVersion, "<none>"), nodes, expires, age(o, now), message}}
}

func (s *status) ready() (ready, message string) {
	c := apimeta.FindStatusCondition(s.Conditions, meta.ReadyCondition)
	if c == nil {
		return string(metav1.ConditionUnknown), "has no status yet: is the controller running?"
	}
	return string(c.Status), c.Message
}

func age(o *unstructured.Unstructured, now time.Time) string {
	return duration.HumanDuration(now.Sub(o.GetCreationTimestamp().Time))
}

// hub is the cluster that get, inventory and verify ask.
type hub struct {
	kubeconfig, context, namespace string
	allNamespaces                  bool
}

func (h *hub) flags(f *pflag.FlagSet) {
	h.clusterFlags(f)
	f.StringVarP(&h.namespace, "namespace", "n", "", "namespace; else that of the context")
	f.BoolVarP(&h.allNamespaces, "all-namespaces", "A", false, "all namespaces")
}

func (h *hub) clusterFlags(f *pflag.FlagSet) {
	f.StringVar(&h.kubeconfig, "kubeconfig", "", "kubeconfig file; else $KUBECONFIG, else ~/.kube/config")
	f.StringVar(&h.context, "context", "", "context of the kubeconfig; else its current one")
}

func newGet() *cobra.Command {
	var h hub
	var output string
	cmd := &cobra.Command{
		Use:   "get fleets|plugins|applications|clusterconfigs|policies|compliance|clusters [NAME]",
		Short: "Show what the hub has",
		Example: `  # The fleets of all namespaces, and the members that are not well
  fleetwright get fleets -A -o wide

  # One Application
  fleetwright get app web -n shop

  # The plugins of a fleet, and where they can be reached
  fleetwright get plugins production -o wide

  # What breaks rules, and where; and on one member
  fleetwright get policies -o wide
  fleetwright get compliance --member edge-7

  # All members, with their versions and when their credentials expire
  fleetwright get clusters`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("get %s: has to be fleets, plugins, applications, clusterconfigs, policies, compliance or clusters", args[0])
			}
			return cmd.Help()
		},
	}
	f := cmd.PersistentFlags()
	h.flags(f)
	f.StringVarP(&output, "output", "o", "", "format: wide, json, yaml or name")
	formats := []string{"wide", "json", "yaml", "name"}
	completion(cmd, "output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))

	for _, l := range listings {
		var member string
		sub := &cobra.Command{
			Use: l.use + " [NAME]", Short: l.short, Aliases: l.aliases, Args: cobra.MaximumNArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				if output != "" && !slices.Contains(formats, output) {
					return fmt.Errorf("--output %s: has to be %s", output, strings.Join(formats, ", "))
				}
				if h.allNamespaces && len(args) > 0 {
					return errors.New("a NAME is of one namespace: leave out --all-namespaces")
				}
				name := ""
				if len(args) > 0 {
					name = args[0]
				}
				if err := h.get(cmd, l, name, member, output, time.Now()); err != nil {
					return failure{exitFailed, err}
				}
				return nil
			},
			ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
				if len(args) > 0 {
					return nil, cobra.ShellCompDirectiveNoFileComp
				}
				objects, _, _ := h.list(cmd.Context(), l, "", 3*time.Second)
				return names(objects), cobra.ShellCompDirectiveNoFileComp
			},
		}
		if l.rules {
			sub.Flags().StringVar(&member, "member", "", "only what is known of this member")
		}
		cmd.AddCommand(sub)
	}
	return cmd
}

func names(objects []unstructured.Unstructured) []string {
	var out []string
	for _, o := range objects {
		out = append(out, o.GetName())
	}
	return out
}

// connect returns a client of the hub, its address, and the namespace that is asked for; empty if that is all.
func (h *hub) connect(timeout time.Duration) (client dynamic.Interface, host, namespace string, err error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = h.kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: h.context})
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, "", "", errors.New("no cluster is configured: name a kubeconfig with --kubeconfig or KUBECONFIG, and a context in it with --context")
	}
	if err != nil {
		return nil, "", "", err
	}
	namespace = h.namespace
	if namespace == "" && !h.allNamespaces {
		if namespace, _, err = loader.Namespace(); err != nil {
			return nil, "", "", err
		}
	}
	if h.allNamespaces {
		namespace = metav1.NamespaceAll
	}
	config.Timeout = timeout
	client, err = dynamic.NewForConfig(config)
	return client, config.Host, namespace, err
}

// list returns the objects of a listing, or the one of a name, sorted, and the namespace that was asked.
func (h *hub) list(ctx context.Context, l listing, name string, timeout time.Duration) ([]unstructured.Unstructured, string, error) {
	client, host, namespace, err := h.connect(timeout)
	if err != nil {
		return nil, "", err
	}
	// A list, for one name too: then a 404 says that there is no such kind, never that there is no such object.
	options := metav1.ListOptions{}
	if name != "" {
		options.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
	}
	var out []unstructured.Unstructured
	for _, resource := range l.resources {
		list, err := client.Resource(resource).Namespace(namespace).List(ctx, options)
		if err != nil {
			return nil, "", hubError(host, resource, err)
		}
		out = append(out, list.Items...)
	}
	slices.SortStableFunc(out, func(a, b unstructured.Unstructured) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return out, namespace, nil
}

// hubError says why objects of one kind could not be listed.
func hubError(host string, resource schema.GroupVersionResource, err error) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%s does not know %s: is it the hub, and are Fleetwright's CRDs installed there?", host, resource.GroupResource())
	}
	return fmt.Errorf("%s: %w", host, err)
}

func (h *hub) get(cmd *cobra.Command, l listing, name, member, output string, now time.Time) error {
	objects, namespace, err := h.list(cmd.Context(), l, name, 30*time.Second)
	if err != nil {
		return err
	}
	where := ""
	if namespace != "" {
		where = " in namespace " + namespace
	}
	if name != "" && len(objects) == 0 {
		all, _, err := h.list(cmd.Context(), l, "", 30*time.Second)
		if err != nil {
			return err
		}
		return fmt.Errorf("there is no %s among the %s%s%s", name, l.use, where, suggest(name, names(all)))
	}
	w := cmd.OutOrStdout()
	if member != "" {
		if objects, err = ofMember(objects, member); err != nil {
			return err
		}
	}
	switch output {
	case "json", "yaml":
		return printData(w, output, objects, name != "")
	case "name":
		for _, o := range objects {
			fmt.Fprintf(w, "%s.%s/%s\n", strings.ToLower(o.GetKind()), o.GroupVersionKind().Group, o.GetName())
		}
		return nil
	}
	if len(objects) == 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "there are no %s%s\n", l.use, where)
		return nil
	}
	return printTable(w, l, objects, h.allNamespaces, output == "wide" || member != "", now)
}

// ofMember leaves of the lists in the status what is about one member.
func ofMember(objects []unstructured.Unstructured, member string) ([]unstructured.Unstructured, error) {
	for i := range objects {
		for path, key := range map[string]string{"members.notReady": "name", "compliance.members": "name", "compliance.findings": "member"} {
			fields := append([]string{"status"}, strings.Split(path, ".")...)
			items, ok, err := unstructured.NestedSlice(objects[i].Object, fields...)
			if err != nil {
				return nil, err
			}
			if !ok {
				continue
			}
			items = slices.DeleteFunc(items, func(item any) bool {
				m, ok := item.(map[string]any)
				return !ok || m[key] != member
			})
			if err := unstructured.SetNestedSlice(objects[i].Object, items, fields...); err != nil {
				return nil, err
			}
		}
	}
	return objects, nil
}

// printData writes objects as kubectl does: one as it is, several as a List.
func printData(w io.Writer, format string, objects []unstructured.Unstructured, one bool) error {
	items := make([]any, len(objects))
	for i, o := range objects {
		o.SetManagedFields(nil)
		items[i] = o.Object
	}
	var out any = map[string]any{"apiVersion": "v1", "kind": "List", "items": items}
	if one && len(items) == 1 {
		out = items[0]
	}
	if format == "yaml" {
		b, err := yaml.Marshal(out)
		if err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "    ")
	return e.Encode(out)
}

func printTable(w io.Writer, l listing, objects []unstructured.Unstructured, namespaces, wide bool, now time.Time) error {
	var notReady, endpoints, rules, results, findings [][]string
	rows := [][]string{l.columns}
	if namespaces {
		rows[0] = append([]string{"NAMESPACE"}, rows[0]...)
	}
	for i := range objects {
		o := &objects[i]
		var s status
		if fields, ok := o.Object["status"].(map[string]any); ok {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &s); err != nil {
				return fmt.Errorf("%s %s: status: %w", o.GetKind(), o.GetName(), err)
			}
		}
		for _, row := range l.rows(o, &s, now) {
			if namespaces {
				row = append([]string{o.GetNamespace()}, row...)
			}
			rows = append(rows, row)
		}
		for _, m := range s.Members.NotReady {
			notReady = append(notReady, []string{o.GetNamespace(), o.GetName(), cmp.Or(m.Name, "<hub>"), m.Reason, m.Message})
		}
		if n := s.Members.NotReadyOmitted; n > 0 {
			notReady = append(notReady, []string{o.GetNamespace(), o.GetName(), fmt.Sprintf("and %d more", n), "", ""})
		}
		for _, r := range s.Rules {
			rules = append(rules, []string{o.GetNamespace(), o.GetName(), r.Name, cmp.Or(r.Type, "<own>"), r.Enforcement, r.Ready,
				fmt.Sprint(r.Results.Pass), fmt.Sprint(r.Results.Fail + r.Results.Error), fmt.Sprint(r.FailingMembers), r.Message})
		}
		for _, m := range s.Compliance.Members {
			read := "<now>"
			if m.ReadAt != nil {
				read = duration.HumanDuration(now.Sub(m.ReadAt.Time)) + " ago"
			}
			results = append(results, []string{o.GetNamespace(), o.GetName(), m.Name, fmt.Sprint(m.Results.Fail), fmt.Sprint(m.Results.Error), fmt.Sprint(m.Results.Pass), read, cmp.Or(strings.Join(m.Rules, ","), "<none>"), m.Message})
		}
		if n := s.Compliance.MembersOmitted; n > 0 {
			results = append(results, []string{o.GetNamespace(), o.GetName(), fmt.Sprintf("and %d more", n)})
		}
		for _, f := range s.Compliance.Findings {
			findings = append(findings, []string{o.GetNamespace(), o.GetName(), f.Member, f.Rule, f.Result, f.Severity, f.Resource, f.Message})
		}
		for _, e := range s.PluginEndpoints {
			endpoints = append(endpoints, []string{o.GetNamespace(), o.GetName(), e.Plugin, e.Name, e.Cluster, e.Address})
		}
	}
	if err := writeTable(w, rows); err != nil || !wide {
		return err
	}
	for _, more := range []struct {
		title   string
		columns []string
		rows    [][]string
	}{
		{"Members that are not well", []string{"NAMESPACE", "NAME", "MEMBER", "REASON", "MESSAGE"}, notReady},
		{"Rules", []string{"NAMESPACE", "NAME", "RULE", "TYPE", "ENFORCEMENT", "READY", "PASS", "FAIL", "MEMBERS", "MESSAGE"}, rules},
		{"Members that break rules, or could not be read", []string{"NAMESPACE", "NAME", "MEMBER", "FAIL", "ERROR", "PASS", "READ", "RULES", "MESSAGE"}, results},
		{"The worst of what breaks rules", []string{"NAMESPACE", "NAME", "MEMBER", "RULE", "RESULT", "SEVERITY", "RESOURCE", "MESSAGE"}, findings},
		{"Endpoints of plugins", []string{"NAMESPACE", "FLEET", "PLUGIN", "NAME", "MEMBER", "ADDRESS"}, endpoints},
	} {
		if len(more.rows) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s:\n", more.title)
		if err := writeTable(w, append([][]string{more.columns}, more.rows...)); err != nil {
			return err
		}
	}
	return nil
}

// writeTable writes a table with kubectl's spacing, and no spaces at the ends of lines. A cell is one line, in which nothing is
// for a terminal: it may hold what a user wrote, or a member answered.
func writeTable(w io.Writer, rows [][]string) error {
	var table bytes.Buffer
	t := tabwriter.NewWriter(&table, 6, 4, 3, ' ', 0)
	for _, row := range rows {
		cells := make([]string, max(len(row), len(rows[0])))
		for i, cell := range row {
			cells[i] = object.OneLine(cell)
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(table.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}
