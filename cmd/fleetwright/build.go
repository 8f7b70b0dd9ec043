package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	"github.com/fleetwright/fleetwright/cmd/fleetwright/contents"
	"github.com/fleetwright/fleetwright/cmd/fleetwright/manifest"
	templates "github.com/fleetwright/fleetwright/fleet-templates"
	catalog "github.com/fleetwright/fleetwright/plugins-catalog"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/object"
	"github.com/fleetwright/fleetwright/renderers/plugin"
	"github.com/fleetwright/fleetwright/renderers/repository"
)

type buildOptions struct {
	source       manifest.Source
	output       string
	dir          string
	members      []string
	applications []string
	plugins      []string
	atHand       atHand
	strict       bool
	expand       bool
	check        bool
	digest       bool
}

func newBuild() *cobra.Command {
	var o buildOptions
	cmd := &cobra.Command{
		Use:   "build PATH...",
		Short: "Print the Flux objects that a repository renders to",
		Long: `Print the Flux objects that Fleetwright would apply for the Fleets and their plugins, Applications, ClusterConfigs, FleetSecurityPolicies, ClusterCompliances and clusters in PATH: a
file, a folder, or - for stdin. A folder is read with all that is below it; one with a kustomization.yaml is built. Other objects are
passed over.

It needs no cluster and opens no connection. What kubectl apply would refuse is refused, with file, line and field.

Exit code 0: all was rendered. 1: something could not be rendered; the rest is printed. 2: the command or the input is
wrong; nothing is printed.`,
		Example: `  # All that a repository renders to
  fleetwright build .

  # What one member gets
  fleetwright build . --member edge-7

  # One file for each member, to look at in a pull request; warnings fail
  fleetwright build . --output-dir rendered --strict

  # What ends up on a member of what ClusterConfigs render
  fleetwright build . --member edge-7 --expand

  # What a hub that has this says in status.renderDigest
  fleetwright build . --digest

  # Members that are on the hub and not in Git
  fleetwright inventory export -A > members.yaml
  fleetwright build . --members members.yaml`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.source.Paths, o.source.Stdin = args, cmd.InOrStdin()
			return o.run(cmd)
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault // files
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.output, "output", "o", "yaml", "format: yaml or json")
	f.StringVar(&o.dir, "output-dir", "", "write one file for each member into this folder, and delete those of members that are gone")
	f.StringSliceVar(&o.members, "member", nil, "only what is for this member (may be repeated)")
	f.StringSliceVar(&o.applications, "application", nil, "only what this Application renders to (may be repeated)")
	f.StringSliceVar(&o.plugins, "plugin", nil, "folder with a plugin that fleets use in spec.plugins (may be repeated)")
	f.StringVar(&o.source.Members, "members", "", "file, or -, with the AttachedClusters and Clusters of the hub, as inventory export or kubectl get -o yaml print them")
	f.StringVarP(&o.source.Namespace, "namespace", "n", "default", "namespace of the objects that have none")
	f.BoolVar(&o.strict, "strict", false, "fail on warnings")
	f.BoolVar(&o.check, "check", false, "warn of what members cannot take of the published files: API versions that their Kubernetes does not serve, CRDs that come from two")
	f.BoolVar(&o.expand, "expand", false, "print what ends up on the members instead: the published files after kustomize. What is not rendered here, as Git sources and charts, is named and left out")
	f.BoolVar(&o.digest, "digest", false, "print digests instead: of each owner, as the hub says in status.renderDigest, and of all that is for each member")
	o.atHand.flags(f)
	completion(cmd, "output", cobra.FixedCompletions([]string{"yaml", "json"}, cobra.ShellCompDirectiveNoFileComp))
	completion(cmd, "member", completeFromPaths(&o.source, "AttachedCluster", "Cluster"))
	completion(cmd, "application", completeFromPaths(&o.source, "Application"))
	return cmd
}

func (o *buildOptions) run(cmd *cobra.Command) error {
	switch {
	case len(o.source.Paths) == 0:
		return errors.New("PATH is missing: name a file or a folder, or - for stdin")
	case o.output != "yaml" && o.output != "json":
		return fmt.Errorf("--output %s: has to be yaml or json", o.output)
	case o.dir != "" && o.output != "yaml":
		return errors.New("--output-dir writes YAML: leave --output out")
	case o.expand && (o.dir != "" || o.output != "yaml"):
		return errors.New("--expand prints YAML: leave --output and --output-dir out")
	case o.digest && (o.dir != "" || o.output != "yaml" || o.expand):
		return errors.New("--digest prints a table: leave --output, --output-dir and --expand out")
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
	if err := o.checkNames(rendered.Declared); err != nil {
		return err
	}
	digests := rendered.Digests()
	rendered.Result = o.narrow(rendered.Result)
	var made *contents.Contents
	if o.expand || o.check {
		root := o.atHand.root(cmd.Context(), o.source.Paths[0])
		if made, err = o.atHand.contents(rendered, o.source.Paths, root); err != nil {
			return err
		}
		defer made.Close()
	}
	switch {
	case o.digest:
		err = o.printDigests(cmd.OutOrStdout(), digests)
	case o.expand:
		err = printExpanded(cmd.OutOrStdout(), cmd.ErrOrStderr(), rendered, made)
	case o.dir != "":
		err = writeDir(o.dir, rendered.Result, o.complete(rendered.Result))
	default:
		err = printObjects(cmd.OutOrStdout(), o.output, objects(rendered.Result))
	}
	if o.check {
		check(rendered, made)
	}
	if err != nil {
		return failure{exitFailed, err}
	}
	return o.report(cmd, set, rendered)
}

// printDigests prints the digests of what was asked for, owners first.
func (o *buildOptions) printDigests(w io.Writer, d *repository.Digests) error {
	rows := [][]string{{"KIND", "NAMESPACE", "NAME", "DIGEST"}}
	add := func(digests map[repository.Name]string, wanted func(repository.Name) bool) {
		for _, n := range slices.SortedFunc(maps.Keys(digests), func(a, b repository.Name) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
		}) {
			if wanted(n) {
				rows = append(rows, []string{n.Kind, n.Namespace, n.Name, digests[n]})
			}
		}
	}
	all := len(o.members)+len(o.applications) == 0
	add(d.Owners, func(n repository.Name) bool {
		return all || n.Kind == appsv1.ApplicationKind && slices.Contains(o.applications, n.Name)
	})
	add(d.Members, func(n repository.Name) bool { return n.Name != "" && (all || slices.Contains(o.members, n.Name)) })
	return writeTable(w, rows)
}

// renderRepository renders what was read, with the plugins that are known.
func renderRepository(set *manifest.Set, known map[string]*plugin.Plugin) *repository.Rendered {
	return repository.Render(set.Declared, func(namespace, name string) (*plugin.Plugin, map[string]any) {
		return known[name], pluginConfig(set, namespace, name) // no PluginConfig has one of the catalog
	}, ruleTypes(known))
}

// ruleTypes returns the names of those that are types of rules.
func ruleTypes(known map[string]*plugin.Plugin) (names []string) {
	for name, p := range known {
		if p.IsRuleType() {
			names = append(names, name)
		}
	}
	return names
}

// pluginConfig returns what a PluginConfig of the namespace gives a plugin.
func pluginConfig(set *manifest.Set, namespace, name string) map[string]any {
	for _, c := range set.PluginConfigs {
		for _, p := range c.Spec.Plugins {
			if c.Namespace != namespace || p.Name != name || p.Config == nil {
				continue
			}
			var config map[string]any
			d := json.NewDecoder(bytes.NewReader(p.Config.Raw))
			d.UseNumber()
			if d.Decode(&config) == nil {
				return config
			}
		}
	}
	return nil
}

// loadPlugins returns the plugins of the catalog, and those in folders.
func loadPlugins(dirs []string) (map[string]*plugin.Plugin, error) {
	known, err := plugin.LoadAll(catalog.FS, templates.Rules())
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		p, err := plugin.Load(os.DirFS(dir))
		if err != nil {
			return nil, fmt.Errorf("--plugin %s: %w", dir, err)
		}
		if known[p.Metadata.Name] != nil {
			return nil, fmt.Errorf("--plugin %s: there is a plugin %s already", dir, p.Metadata.Name)
		}
		known[p.Metadata.Name] = p
	}
	return known, nil
}

// complete says whether the result is all there is: then what is not in it is gone.
func (o *buildOptions) complete(r application.Result) bool {
	return len(o.members)+len(o.applications) == 0 &&
		!slices.ContainsFunc(r.Problems, func(p application.Problem) bool { return !p.Warning })
}

// report writes the problems, the worst first.
func (o *buildOptions) report(cmd *cobra.Command, set *manifest.Set, rendered *repository.Rendered) error {
	var errs, warnings []error
	for _, p := range group(rendered.Problems) {
		kind, name := rendered.Written(p.Namespace, p.Application)
		err := fmt.Errorf("%s: %s %s: %s", set.Position(kind, p.Namespace, name), kind, name, describe(p))
		if p.Warning {
			warnings = append(warnings, err)
		} else {
			errs = append(errs, err)
		}
	}
	warnings = append(warnings, set.Warnings...)
	severity := "warning"
	if o.strict {
		severity = "error"
	}
	report(cmd.ErrOrStderr(), "error", errors.Join(errs...))
	report(cmd.ErrOrStderr(), severity, errors.Join(warnings...))
	if len(errs) > 0 || o.strict && len(warnings) > 0 {
		return failure{code: exitFailed}
	}
	return nil
}

// problems are one problem of several members.
type problems struct {
	application.Problem
	members []string
}

// group joins the problems that differ in the member alone: in a large fleet, what is wrong with one is with many.
func group(all []application.Problem) []*problems {
	var out []*problems
	groups := map[application.Problem]*problems{}
	for _, p := range all {
		member := p.Member
		p.Member = ""
		g, ok := groups[p]
		if !ok {
			g = &problems{Problem: p}
			groups[p] = g
			out = append(out, g)
		}
		if member != "" {
			g.members = append(g.members, member)
		}
	}
	return out
}

func describe(p *problems) string {
	text := ""
	if p.Policy != "" {
		text = "policy " + p.Policy + ": "
	}
	const most = 3
	switch n := len(p.members); {
	case n == 1:
		text += "member " + p.members[0] + ": "
	case n > most+1:
		text += fmt.Sprintf("members %s and %d more: ", strings.Join(p.members[:most], ", "), n-most)
	case n > 1:
		text += "members " + strings.Join(p.members, ", ") + ": "
	}
	return text + p.Message
}

func objects(r application.Result) []*object.Object {
	out := make([]*object.Object, len(r.Objects))
	for i := range r.Objects {
		out[i] = r.Objects[i].Object
	}
	return out
}

// narrow keeps what was asked for. With a member's objects go the sources that they share with others.
func (o *buildOptions) narrow(r application.Result) application.Result {
	type part struct{ namespace, application, policy string }
	uses := map[part]bool{}
	for _, x := range r.Objects {
		if slices.Contains(o.members, x.Member.Name) {
			uses[part{x.Metadata.Namespace, x.Application, x.Policy}] = true
			uses[part{x.Metadata.Namespace, x.Application, ""}] = true
		}
	}
	r.Objects = slices.DeleteFunc(r.Objects, func(x application.Rendered) bool {
		if len(o.applications) > 0 && !slices.Contains(o.applications, x.Application) {
			return true
		}
		if len(o.members) == 0 || slices.Contains(o.members, x.Member.Name) {
			return false
		}
		return !repository.IsSource(&x) || !uses[part{x.Metadata.Namespace, x.Application, x.Policy}]
	})
	r.Problems = slices.DeleteFunc(r.Problems, func(p application.Problem) bool {
		return len(o.applications) > 0 && !slices.Contains(o.applications, p.Application) ||
			len(o.members) > 0 && p.Member != "" && !slices.Contains(o.members, p.Member)
	})
	return r
}

// checkNames refuses names that nothing has.
func (o *buildOptions) checkNames(set application.Declared) error {
	var applications []string
	for _, a := range set.Applications {
		applications = append(applications, a.Name)
	}
	return errors.Join(checkNames("--member", o.members, declaredMembers(set)), checkNames("--application", o.applications, applications))
}

// declaredMembers returns the names of all members, whether or not they are there.
func declaredMembers(set application.Declared) (members []string) {
	for _, c := range set.AttachedClusters {
		members = append(members, c.Name)
	}
	for _, c := range set.Clusters {
		members = append(members, c.Name)
	}
	for _, f := range set.Fleets {
		for _, c := range f.Spec.Clusters {
			members = append(members, c.Name)
		}
	}
	for _, a := range set.Applications {
		members = append(members, namedClusters(a)...)
	}
	return members
}

// namedClusters returns the clusters that an Application goes to by their names.
func namedClusters(a *appsv1.Application) (names []string) {
	add := func(d *appsv1.ApplicationDestination) {
		if d != nil && d.Cluster != nil {
			names = append(names, d.Cluster.Name)
		}
	}
	add(a.Spec.Destination)
	for i := range a.Spec.SyncPolicies {
		add(a.Spec.SyncPolicies[i].Destination)
	}
	return names
}

func checkNames(what string, wanted, known []string) error {
	var errs []error
	for _, name := range wanted {
		if !slices.Contains(known, name) {
			errs = append(errs, fmt.Errorf("%s %s: there is none of that name%s", what, name, suggest(name, known)))
		}
	}
	return errors.Join(errs...)
}

// suggest names what is written nearly like a name; everything, if that is not much.
func suggest(name string, known []string) string {
	known = slices.Compact(slices.Sorted(slices.Values(known)))
	near := slices.Clone(known)
	if len(known) > 5 {
		near = slices.DeleteFunc(near, func(k string) bool {
			return object.Distance(name, k) > max(2, len(name)/3) && !strings.Contains(k, name) && !strings.Contains(name, k)
		})
		slices.SortStableFunc(near, func(a, b string) int { return cmp.Compare(object.Distance(name, a), object.Distance(name, b)) })
		near = near[:min(5, len(near))]
	}
	if len(near) == 0 {
		return ""
	}
	return ": did you mean " + strings.Join(near, ", ") + "?"
}
