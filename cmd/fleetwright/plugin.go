package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	templates "github.com/fleetwright/fleetwright/fleet-templates"
	catalog "github.com/fleetwright/fleetwright/plugins-catalog"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/plugin"
	"github.com/fleetwright/fleetwright/renderers/rule"
)

func newPlugin() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plugin lint|list",
		Short: "Check plugins, and list those of the catalog",
		Example: `  # The plugins of a repository
  fleetwright plugin lint plugins

  # What one becomes
  echo 'message: hello' | fleetwright plugin lint plugins/podinfo --config -`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("plugin %s: has to be lint or list", args[0])
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(newPluginLint(), newPluginList())
	return cmd
}

func newPluginLint() *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use:   "lint DIR...",
		Short: "Check plugins: folders with a plugin.yaml",
		Long: `Check plugins: folders with a plugin.yaml, or folders of such folders. Every expression in them is compiled.

With --config, a type of rules is rendered for the rule sample of the ClusterCompliance sample, with these params; a plugin is rendered for a fleet called sample with the members member1 and member2, and the Application
that would deliver it is printed, with the files that it delivers. What is read from members is not known there, so what
needs it is on hold.

It needs no cluster and opens no connection.

Exit code 0: all is well. 1: something is wrong with a plugin. 2: the command is wrong.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("DIR is missing: name a folder with a plugin.yaml")
			}
			return lint(cmd, args, config)
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "file, or -, with what a fleet configures: render the plugin with it")
	return cmd
}

func lint(cmd *cobra.Command, paths []string, config string) error {
	var dirs []string
	for _, path := range paths {
		found, err := pluginDirs(path)
		if err != nil {
			return err
		}
		dirs = append(dirs, found...)
	}
	if config != "" && len(dirs) != 1 {
		return fmt.Errorf("--config is for one plugin, and there are %d", len(dirs))
	}
	known, err := loadPlugins(nil)
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		file := filepath.Join(dir, plugin.DefinitionFile)
		p, err := readPlugin(file, known)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
			continue
		}
		if config == "" {
			if p.IsRuleType() {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: type of rules %s with %d policies and %d objects\n", file, p.Metadata.Name, len(p.PolicyNames()), len(p.Spec.Objects))
				continue
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: plugin %s with %d components\n", file, p.Metadata.Name, len(p.Spec.Components))
			continue
		}
		raw, err := readConfig(config, cmd.InOrStdin())
		if err != nil {
			return fmt.Errorf("--config %s: %w", config, err)
		}
		if p.IsRuleType() {
			files, err := renderRule(p, raw)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", file, err))
			} else if err := printFiles(cmd.OutOrStdout(), files); err != nil {
				return failure{exitFailed, err}
			}
			continue
		}
		rendered, err := renderSample(p, raw)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
			continue
		}
		for _, text := range rendered.Warnings {
			report(cmd.ErrOrStderr(), "warning", errors.New(text))
		}
		if err := printPlugin(cmd.OutOrStdout(), rendered); err != nil {
			return failure{exitFailed, err}
		}
	}
	if len(errs) > 0 {
		return failure{exitFailed, errors.Join(errs...)}
	}
	return nil
}

// pluginDirs returns a folder with a plugin.yaml, or the folders in it that have one.
func pluginDirs(path string) ([]string, error) {
	if _, err := os.Stat(filepath.Join(path, plugin.DefinitionFile)); err == nil {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, entry := range entries {
		if _, err := os.Stat(filepath.Join(path, entry.Name(), plugin.DefinitionFile)); err == nil {
			dirs = append(dirs, filepath.Join(path, entry.Name()))
		}
	}
	if len(dirs) == 0 {
		return nil, fmt.Errorf("%s: there is no %s in it, nor in a folder in it", path, plugin.DefinitionFile)
	}
	return dirs, nil
}

// readPlugin reads a plugin that does not have the name of a known one, which comes with Fleetwright, unless it is that.
func readPlugin(file string, known map[string]*plugin.Plugin) (*plugin.Plugin, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		var pathError *fs.PathError
		if errors.As(err, &pathError) {
			err = pathError.Err // the path is said anyway
		}
		return nil, err
	}
	folder := filepath.Base(filepath.Dir(file))
	for _, from := range []fs.FS{catalog.FS, templates.Rules()} {
		if own, err := fs.ReadFile(from, path.Join(folder, plugin.DefinitionFile)); err == nil && bytes.Equal(own, b) {
			return known[folder], nil
		}
	}
	p, err := plugin.Parse(b)
	if err != nil {
		return nil, err
	}
	for name := range known {
		if strings.EqualFold(name, p.Metadata.Name) {
			return nil, fmt.Errorf("metadata.name: %s comes with Fleetwright, and cannot be replaced: choose another name", name)
		}
	}
	return p, nil
}

// readConfig returns what a fleet configures, as JSON.
func readConfig(file string, stdin io.Reader) (*apiextensionsv1.JSON, error) {
	read := os.ReadFile
	if file == "-" {
		read = func(string) ([]byte, error) { return io.ReadAll(stdin) }
	}
	b, err := read(file)
	if err != nil {
		return nil, err
	}
	if b, err = yaml.YAMLToJSONStrict(b); err != nil {
		return nil, err
	}
	return &apiextensionsv1.JSON{Raw: b}, nil
}

// renderSample renders a plugin for a fleet of two members.
func renderSample(p *plugin.Plugin, config *apiextensionsv1.JSON) (*plugin.Rendered, error) {
	fleet := &fleetv1.Fleet{}
	fleet.Name, fleet.Namespace = "sample", "default"
	fleet.Spec.Plugins = []fleetv1.FleetPlugin{{Name: p.Metadata.Name, Config: config}}
	in := plugin.Input{Fleet: fleet}
	for _, name := range []string{"member1", "member2"} {
		fleet.Spec.Clusters = append(fleet.Spec.Clusters, fleetv1.FleetCluster{Name: name})
		in.Members = append(in.Members, member.Member{Name: name, Kind: clusterv1.AttachedClusterKind, Ready: true})
	}
	in.Use = plugin.Uses(fleet)[0]
	return p.Render(in)
}

// renderRule renders a rule of a type for a cluster, and returns the files that it becomes.
func renderRule(p *plugin.Plugin, params *apiextensionsv1.JSON) (map[string][]byte, error) {
	sample := &clusterv1.ClusterCompliance{}
	sample.Name, sample.Namespace = "sample", "default"
	sample.Spec.ClusterName = "member1"
	sample.Spec.Rules = []clusterv1.ComplianceRule{{Name: "sample", Type: p.Metadata.Name, Params: params}}
	rendered, err := rule.Render(rule.Input{Set: rule.OfCompliance(sample), Find: func(string, bool) (*plugin.Plugin, map[string]any, error) { return p, nil, nil }})
	if err != nil {
		return nil, err
	}
	return rendered.Files, rendered.Rules[0].Err
}

// printPlugin writes the Application of a plugin, and then the files that it delivers, of which the path is a comment.
func printPlugin(w io.Writer, rendered *plugin.Rendered) error {
	b, err := json.Marshal(rendered.Application)
	if err != nil {
		return err
	}
	var app map[string]any
	if err := json.Unmarshal(b, &app); err != nil {
		return err
	}
	delete(app, "status")
	if b, err = yaml.Marshal(app); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "---\n%s", b); err != nil {
		return err
	}
	return printFiles(w, rendered.Files)
}

// printFiles writes files, of which the path is a comment.
func printFiles(w io.Writer, files map[string][]byte) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if _, err := fmt.Fprintf(w, "---\n# %s\n%s", name, bytes.TrimPrefix(files[name], []byte("---\n"))); err != nil {
			return err
		}
	}
	return nil
}

func newPluginList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the plugins of the catalog and what they consist of, and the types of rules",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			plugins, err := plugin.LoadAll(catalog.FS, templates.Rules())
			if err != nil {
				return failure{exitFailed, err}
			}
			return listPlugins(cmd.OutOrStdout(), plugins)
		},
	}
}

// listPlugins writes a line a component, and then a line a type of rules.
func listPlugins(w io.Writer, plugins map[string]*plugin.Plugin) error {
	rows := [][]string{{"PLUGIN", "COMPONENT", "CHART", "VERSION", "REPOSITORY", "RUNS ON"}}
	for _, name := range slices.Sorted(maps.Keys(plugins)) {
		for _, k := range plugins[name].Spec.Components {
			chart, version, repository := "<objects>", "", ""
			switch {
			case k.Chart != nil:
				chart, version, repository = k.Chart.Name, k.Chart.Version, k.Chart.Repository
			case k.Secret != nil:
				chart = "<secret>"
			}
			rows = append(rows, []string{name, k.Name, chart, cmp.Or(version, "-"), cmp.Or(repository, "-"), cmp.Or(k.RunsOn, plugin.OnMembers)})
		}
	}
	if err := writeTable(w, rows); err != nil {
		return err
	}
	fmt.Fprintln(w)
	rows = [][]string{{"TYPE", "POLICIES", "DESCRIPTION"}}
	for _, name := range slices.Sorted(maps.Keys(plugins)) {
		if p := plugins[name]; p.IsRuleType() {
			rows = append(rows, []string{name, fmt.Sprint(len(p.PolicyNames())), p.Spec.Description})
		}
	}
	return writeTable(w, rows)
}
