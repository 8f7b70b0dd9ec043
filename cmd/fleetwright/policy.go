package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fleetwright/fleetwright/cmd/fleetwright/manifest"
	"github.com/fleetwright/fleetwright/renderers/plugin"
	"github.com/fleetwright/fleetwright/renderers/rule"
)

func newPolicy() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy test",
		Short: "Try rules on manifests, without a cluster",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("policy %s: has to be test", args[0])
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(newPolicyTest())
	return cmd
}

type policyTest struct {
	rules   []string
	plugins []string
	output  string
	strict  bool
	source  manifest.Source
}

func newPolicyTest() *cobra.Command {
	var o policyTest
	cmd := &cobra.Command{
		Use:   "test FILE...",
		Short: "Try the rules of FleetSecurityPolicies and ClusterCompliances on manifests",
		Long: `Try the rules of FleetSecurityPolicies and ClusterCompliances on manifests, as if these were created on a member. FILE is a file, a
folder, or - for stdin. A folder is read with all that is below it; one with a kustomization.yaml is built.

The rules come from --rules, or else from FILE, too. With the Fleets beside them, the namespaces of their plugins are left alone as on
the members. They are evaluated by the CEL of Kubernetes, in which Kyverno evaluates them on the members.

What kubectl apply would refuse to decode, a field that a Deployment does not have, say, is said with file and line. Rules that look at
none of the manifests are named.

It needs no cluster and opens no connection.

Exit code 0: no rule that is enforced is broken. 1: one is, or could not be evaluated, or a manifest could not be decoded. 2: the command
or its input is wrong, or there is nothing to try.`,
		Example: `  # What the manifests of an application break
  fleetwright policy test deploy/ --rules fleet/

  # What Helm renders
  helm template web charts/web | fleetwright policy test - --rules fleet/policies.yaml`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("FILE is missing: name a file or a folder with manifests, or - for stdin")
			}
			if o.output != "" && o.output != "json" {
				return fmt.Errorf("--output %s: has to be json", o.output)
			}
			return o.run(cmd, args)
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault // files
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.rules, "rules", nil, "file or folder with the rules, and the Fleets that they are for (may be repeated)")
	f.StringSliceVar(&o.plugins, "plugin", nil, "folder with a type of rules, or a plugin, of your own (may be repeated)")
	f.StringVarP(&o.output, "output", "o", "", "format: json")
	f.StringVarP(&o.source.Namespace, "namespace", "n", "default", "namespace of the rules that have none")
	f.BoolVar(&o.strict, "strict", false, "fail on rules that are only audited, too")
	return cmd
}

// tried is what a rule says of an object, for machines.
type tried struct {
	Object      string   `json:"object"`
	At          string   `json:"at"`
	From        string   `json:"from"`
	Rule        string   `json:"rule"`
	Enforcement string   `json:"enforcement"`
	Result      string   `json:"result"`
	Messages    []string `json:"messages,omitempty"`
}

func (o *policyTest) run(cmd *cobra.Command, paths []string) error {
	known, err := loadPlugins(o.plugins)
	if err != nil {
		return err
	}
	o.source.Paths, o.source.Stdin = o.rules, cmd.InOrStdin()
	if len(o.rules) == 0 {
		for _, path := range paths {
			if path == "-" {
				return errors.New("what is on stdin is tried on the rules of --rules: name them")
			}
		}
		o.source.Paths = paths
	}
	set, err := o.source.Read()
	if err != nil {
		return err
	}
	documents, err := manifest.Load(paths, cmd.InOrStdin())
	if err != nil {
		return err
	}
	documents, warnings, err := typed(documents, paths)
	if err != nil {
		return err
	}
	sets, errs := rule.Sets(set.Declared, func(namespace, name string) (*plugin.Plugin, map[string]any) {
		return known[name], pluginConfig(set, namespace, name)
	}, ruleTypes(known))
	if len(sets) == 0 && len(errs) == 0 {
		return fmt.Errorf("there is no FleetSecurityPolicy and no ClusterCompliance in %s", strings.Join(o.source.Paths, ", "))
	}
	if !slices.ContainsFunc(documents, func(d manifest.Document) bool { return !d.Ours() }) {
		report(cmd.ErrOrStderr(), "warning", errors.Join(warnings...))
		return errors.Join(append(errs, fmt.Errorf("there are no manifests to try in %s: name files or folders with what is deployed, or pipe it in: helm template … | fleetwright policy test - --rules %s",
			strings.Join(paths, ", "), strings.Join(o.source.Paths, ",")))...)
	}
	for i := range documents {
		if err := documents[i].Strict(); err != nil {
			errs = append(errs, err)
		}
	}
	all := []tried{}
	for _, s := range sets {
		trial, err := s.Try()
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", s.Kind.Kind, s.Name, err))
			continue
		}
		results := tryRules(s, trial, documents)
		all = append(all, results...)
		if names := unused(s, results); len(names) > 0 {
			warnings = append(warnings, fmt.Errorf("%s %s: not tried, as they look at none of the manifests: %s", s.Kind.Kind, s.Name, strings.Join(names, ", ")))
		}
	}
	report(cmd.ErrOrStderr(), "warning", errors.Join(warnings...))
	if err := o.print(cmd, all); err != nil {
		return failure{exitFailed, err}
	}
	if len(errs) > 0 || slices.ContainsFunc(all, o.fails) {
		return failure{exitFailed, errors.Join(errs...)}
	}
	return nil
}

// typed returns the documents that are objects. One that is not is refused where its file was named, as kubectl apply does: a
// rule would pass it over. In folders there are files of other programs; of these it is a warning.
func typed(documents []manifest.Document, paths []string) (objects []manifest.Document, warnings []error, err error) {
	var errs []error
	for _, d := range documents {
		switch err := d.Untyped(); {
		case err == nil:
			objects = append(objects, d)
		case d.Start.File == "stdin" || slices.Contains(paths, d.Start.File):
			errs = append(errs, err)
		default:
			warnings = append(warnings, fmt.Errorf("%w: it is not tried", err))
		}
	}
	return objects, warnings, errors.Join(errs...)
}

// tryRules tries rules on manifests.
func tryRules(s rule.RenderedSet, trial *rule.Trial, documents []manifest.Document) (all []tried) {
	for _, d := range documents {
		object := &unstructured.Unstructured{Object: d.Object}
		for _, v := range trial.Object(object) {
			t := tried{Object: describeObject(object), At: d.Start.String(), From: s.Kind.Kind + " " + s.Name, Rule: v.Rule.Name,
				Enforcement: map[bool]string{true: "enforce", false: "audit"}[v.Rule.Enforce], Result: "pass", Messages: v.Broken}
			switch {
			case v.Err != nil:
				t.Result, t.Messages = "error", append(t.Messages, v.Err.Error())
			case len(v.Broken) > 0:
				t.Result = "fail"
			}
			all = append(all, t)
		}
	}
	return all
}

// unused returns the rules that look at nothing: whether they hold is not known.
func unused(s rule.RenderedSet, results []tried) (names []string) {
	for _, r := range s.Rules {
		if r.Err == nil && !slices.ContainsFunc(results, func(t tried) bool { return t.Rule == r.Name }) {
			names = append(names, r.Name)
		}
	}
	return names
}

// fails says whether a result is one that the command fails for.
func (o *policyTest) fails(t tried) bool {
	return t.Result == "error" || t.Result == "fail" && (t.Enforcement == "enforce" || o.strict)
}

func (o *policyTest) print(cmd *cobra.Command, all []tried) error {
	if o.output == "json" {
		e := json.NewEncoder(cmd.OutOrStdout())
		e.SetIndent("", "    ")
		return e.Encode(all)
	}
	rows, count := [][]string{{"OBJECT", "RULE", "ENFORCEMENT", "RESULT", "MESSAGE"}}, map[string]int{}
	for _, t := range all {
		count[t.Result]++
		if t.Result != "pass" {
			rows = append(rows, []string{t.Object, strings.TrimPrefix(t.From, "FleetSecurityPolicy ") + "/" + t.Rule, t.Enforcement, t.Result, strings.Join(t.Messages, "; ")})
		}
	}
	if len(rows) > 1 {
		if err := writeTable(cmd.OutOrStdout(), rows); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%d pass, %d fail, %d error\n", count["pass"], count["fail"], count["error"])
	return err
}

func describeObject(o *unstructured.Unstructured) string {
	name := o.GetName()
	if name == "" {
		name = o.GetGenerateName()
	}
	return strings.TrimSpace(o.GetKind() + " " + strings.TrimPrefix(o.GetNamespace()+"/"+name, "/"))
}
