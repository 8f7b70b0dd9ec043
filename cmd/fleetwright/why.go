package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fleetwright/fleetwright/cmd/fleetwright/manifest"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/repository"
)

type whyOptions struct {
	source  manifest.Source
	output  string
	plugins []string
	atHand  atHand
}

func newWhy() *cobra.Command {
	var o whyOptions
	cmd := &cobra.Command{
		Use:   "why MEMBER/KIND/[NAMESPACE/]NAME [PATH...]",
		Short: "Say where an object on a member comes from",
		Long: `Say where an object on a member, or one on the hub that is for the member, comes from: the file and line that it is written in, the
Kustomization or HelmRelease that applies it, the Application and policy, or what else people have written to get it, the overrides
that match the member and what they change, and why the member is in the fleet.

PATH is what build takes; the current folder if it is left out. MEMBER is hub for what goes to no member. It needs no cluster.

Exit code 0: found. 1: not found; what could not be looked into is said. 2: the command or the input is wrong.`,
		Example: `  # A Deployment on the member oregon
  fleetwright why oregon/deployment/shop/web

  # What has made a Kustomization on the hub
  fleetwright why oregon/ks/shop-app-oregon clusters/hub`,
		Args: cobra.MinimumNArgs(1),
		RunE: o.run,
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault // files
			}
			members := manifest.Names([]string{".", o.source.Members}, "AttachedCluster", "Cluster")
			for i := range members {
				members[i] += "/"
			}
			return members, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.output, "output", "o", "text", "format: text or json")
	f.StringSliceVar(&o.plugins, "plugin", nil, "folder with a plugin that fleets use in spec.plugins (may be repeated)")
	f.StringVar(&o.source.Members, "members", "", "file, or -, with the AttachedClusters and Clusters of the hub, as inventory export or kubectl get -o yaml print them")
	f.StringVarP(&o.source.Namespace, "namespace", "n", "default", "namespace of the objects that have none")
	o.atHand.flags(f)
	completion(cmd, "output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (o *whyOptions) run(cmd *cobra.Command, args []string) error {
	asked, err := parseAsked(args[0])
	if err != nil {
		return err
	}
	if o.output != "text" && o.output != "json" {
		return fmt.Errorf("--output %s: has to be text or json", o.output)
	}
	o.source.Paths, o.source.Stdin = args[1:], cmd.InOrStdin()
	if len(o.source.Paths) == 0 {
		o.source.Paths = []string{"."}
	}
	set, err := o.source.Read()
	if err != nil {
		return err
	}
	known, err := loadPlugins(o.plugins)
	if err != nil {
		return err
	}
	rendered := renderRepository(set, known)
	member := asked.member
	if err := checkNames("member", []string{member}, declaredMembers(rendered.Declared)); err != nil {
		if member != "hub" {
			return err
		}
		member = ""
	}
	rendered.Result = (&buildOptions{members: []string{member}}).narrow(rendered.Result)
	made, err := o.atHand.contents(rendered, o.source.Paths, o.atHand.root(cmd.Context(), o.source.Paths[0]))
	if err != nil {
		return err
	}
	defer made.Close()
	made.Origins = true
	e := &explaining{set: set, rendered: rendered, made: made, plugins: o.plugins}
	reasons := e.explain(asked)
	if o.output == "json" {
		encoder := json.NewEncoder(cmd.OutOrStdout())
		encoder.SetIndent("", "  ")
		err = encoder.Encode(map[string]any{"member": asked.member, "objects": reasons, "notLookedInto": e.notLookedInto()})
	} else {
		err = printReasons(cmd.OutOrStdout(), asked.member, reasons)
	}
	if err != nil || len(reasons) > 0 {
		return err
	}
	for _, text := range e.notLookedInto() {
		report(cmd.ErrOrStderr(), "warning", errors.New("not looked into: "+text))
	}
	return failure{exitFailed, fmt.Errorf("there is no %s on %s%s", asked, asked.member, suggest(asked.String(), e.names(asked)))}
}

// asked is the object that is asked for.
type asked struct{ member, kind, namespace, name string }

func parseAsked(text string) (a asked, err error) {
	switch parts := strings.Split(text, "/"); {
	case slices.Contains(parts, ""):
		err = fmt.Errorf("%s: there is a name missing: write MEMBER/KIND/NAME or MEMBER/KIND/NAMESPACE/NAME", text)
	case len(parts) == 3:
		a = asked{parts[0], parts[1], "", parts[2]}
	case len(parts) == 4:
		a = asked{parts[0], parts[1], parts[2], parts[3]}
	default:
		err = fmt.Errorf("%s: has to be MEMBER/KIND/NAME or MEMBER/KIND/NAMESPACE/NAME", text)
	}
	a.kind = strings.ToLower(a.kind)
	a.kind = cmp.Or(shortNames[a.kind], a.kind)
	return a, err
}

// String names the object as it was asked for, without the member.
func (a asked) String() string {
	return strings.Trim(a.kind+"/"+a.namespace, "/") + "/" + a.name
}

// shortNames are those of kubectl api-resources.
var shortNames = map[string]string{
	"cj": "cronjob", "cm": "configmap", "crd": "customresourcedefinition", "deploy": "deployment", "ds": "daemonset", "hpa": "horizontalpodautoscaler",
	"ing": "ingress", "limits": "limitrange", "netpol": "networkpolicy", "ns": "namespace", "pc": "priorityclass", "pdb": "poddisruptionbudget",
	"po": "pod", "pv": "persistentvolume", "pvc": "persistentvolumeclaim", "quota": "resourcequota", "rs": "replicaset", "sa": "serviceaccount",
	"sc": "storageclass", "sts": "statefulset", "svc": "service", "vpol": "validatingpolicy",
	"gitrepo": "gitrepository", "hc": "helmchart", "helmrepo": "helmrepository", "hr": "helmrelease", "ks": "kustomization", "ocirepo": "ocirepository",
}

// matches says whether an object is the one that is asked for.
func (a asked) matches(kind, namespace, name string) bool {
	plural, singular := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: kind})
	return a.name == name && (a.namespace == "" || a.namespace == namespace) && (a.kind == singular.Resource || a.kind == plural.Resource)
}

// reason is why an object is there, from the object up to the member.
type reason struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	// Hub says that it is on the hub, for the member.
	Hub   bool   `json:"hub,omitempty"`
	Steps []step `json:"steps"`
}

// step is one thing on the way, and where it is written.
type step struct {
	Role string `json:"role"`
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
	What string `json:"what,omitempty"`
	Why  string `json:"why,omitempty"`
	// Changes are the fields that an override changes.
	Changes []string `json:"changes,omitempty"`
}

func printReasons(w io.Writer, member string, reasons []reason) error {
	for i, r := range reasons {
		if i > 0 {
			fmt.Fprintln(w)
		}
		on := member
		if r.Hub && member != "hub" {
			on = "the hub, for " + member
		}
		fmt.Fprintf(w, "%s on %s\n", titled(r.Kind, r.Namespace, r.Name), on)
		table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
		for _, s := range r.Steps {
			text := strings.Trim(s.What+": "+s.Why, ": ")
			if len(s.Changes) > 0 {
				text += "; changes " + capped(s.Changes)
			}
			fmt.Fprintf(table, "  %s\t%s\t%s\n", s.Role, cmp.Or(manifest.Position{File: s.File, Line: s.Line}.String(), "-"), text)
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// capped lists the fields that an override changes, if they are not too many.
func capped(changes []string) string {
	const most = 5
	text := strings.Join(changes[:min(most, len(changes))], ", ")
	if n := len(changes) - most; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

func titled(kind, namespace, name string) string {
	if namespace == "" {
		return kind + " " + name
	}
	return kind + " " + namespace + "/" + name
}

// explain returns why all the objects that were asked for are there.
func (e *explaining) explain(a asked) []reason {
	out := []reason{}
	for i := range e.rendered.Objects {
		x := &e.rendered.Objects[i]
		if a.matches(x.Kind, x.Metadata.Namespace, x.Metadata.Name) {
			out = append(out, reason{x.APIVersion, x.Kind, x.Metadata.Namespace, x.Metadata.Name, true, e.steps(x, nil)})
		}
		for _, o := range e.objects(x) {
			if a.matches(o.GetKind(), o.GetNamespace(), o.GetName()) {
				out = append(out, reason{o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName(), false, e.steps(x, o)})
			}
		}
	}
	return out
}

// objects returns what a child puts on its member, as far as it is at hand.
func (e *explaining) objects(x *application.Rendered) []*unstructured.Unstructured {
	if repository.IsSource(x) {
		return nil
	}
	objects, _ := e.made.Objects(x) // notLookedInto says what is not
	return objects
}

// names returns the names of all objects, as they might have been asked for.
func (e *explaining) names(a asked) (names []string) {
	add := func(kind, namespace, name string) {
		if a.namespace == "" {
			namespace = ""
		}
		names = append(names, asked{"", strings.ToLower(kind), namespace, name}.String())
	}
	for i := range e.rendered.Objects {
		x := &e.rendered.Objects[i]
		add(x.Kind, x.Metadata.Namespace, x.Metadata.Name)
		for _, o := range e.objects(x) {
			add(o.GetKind(), o.GetNamespace(), o.GetName())
		}
	}
	return names
}

// notLookedInto says what of that which is for the member is not known.
func (e *explaining) notLookedInto() []string {
	out := []string{}
	for _, p := range e.rendered.Problems {
		if !p.Warning || p.Reason == application.HeldReason {
			kind, name := e.rendered.Written(p.Namespace, p.Application)
			out = append(out, titled(kind, p.Namespace, name)+": "+describe(&problems{Problem: p}))
		}
	}
	for i := range e.rendered.Objects {
		x := &e.rendered.Objects[i]
		if repository.IsSource(x) {
			continue
		}
		if _, err := e.made.Objects(x); err != nil {
			out = append(out, fmt.Sprintf("%s: %v", titled(x.Kind, x.Metadata.Namespace, x.Metadata.Name), err))
		}
	}
	return out
}

// shown returns the name of a file as one in the current folder, if it is one.
func shown(file string) string {
	folder, err := os.Getwd()
	if err == nil {
		folder, err = filepath.EvalSymlinks(folder)
	}
	if err != nil || !filepath.IsAbs(file) {
		return file
	}
	if relative, err := filepath.Rel(folder, file); err == nil && filepath.IsLocal(relative) {
		return relative
	}
	return file
}
