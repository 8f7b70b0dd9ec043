package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/cmd/fleetwright/contents"
	"github.com/fleetwright/fleetwright/cmd/fleetwright/manifest"
	"github.com/fleetwright/fleetwright/cmd/fleetwright/page"
	"github.com/fleetwright/fleetwright/renderers/plan"
)

type diffOptions struct {
	source    manifest.Source
	from, to  string
	mergeBase bool
	plugins   []string
	atHand    atHand
	outputs   []string
	color     string
	exitCode  bool
	budget    string
}

// Exit codes of diff, beside those of all commands.
const (
	exitChanges    = 1 // with --exit-code
	exitIncomplete = 3 // something could not be read or rendered
	exitOverBudget = 4 // something is over a ChangeBudget, and is not allowed
)

func newDiff() *cobra.Command {
	var o diffOptions
	cmd := &cobra.Command{
		Use:   "diff [FROM-FOLDER TO-FOLDER | --from REVISION [--to REVISION] [PATH...]]",
		Short: "Say what a change of a repository changes, on which member",
		Long: `Compare two states of a configuration repository: what changes on which member, in the Flux objects on the hub and, behind these, in what
ends up on the member.

The states are two folders, or two revisions of the Git repository that PATH, or the current folder, is in. Without --to, it is the
working tree. --merge-base compares with where the two have parted, as a pull request shows it.

It needs no cluster. What cannot be read or rendered in the new state is said, and counts as unchanged: the controller does not
delete it, either.

Exit code 0: compared. 1: there are changes, with --exit-code. 2: the command is wrong; nothing was compared. 3: something in the
new state could not be read, or rendered as it could before; the rest was compared. 4: something is over a ChangeBudget, and not allowed: the output says
by how much, and which annotation allows it.`,
		Example: `  # What the working tree changes
  fleetwright diff --from HEAD

  # What a branch changes, as a comment for a pull request and as the plan that verify takes
  fleetwright diff --from origin/main --to HEAD --merge-base -o markdown=comment.md -o json=plan.json

  # Two folders
  fleetwright diff before/ after/ --exit-code`,
		RunE: o.run,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault // files
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "", "Git revision of the old state")
	f.StringVar(&o.to, "to", "", "Git revision of the new state; the working tree if left out")
	f.BoolVar(&o.mergeBase, "merge-base", false, "compare with the last common ancestor of --from and --to")
	f.StringArrayVarP(&o.outputs, "output", "o", []string{"text"}, "format, or format=FILE: text, markdown (64 KiB at most), json or html (may be repeated)")
	f.StringVar(&o.color, "color", "auto", "auto, always or never")
	f.StringVar(&o.budget, "budget", "", "file with ChangeBudgets that hold for all namespaces, beside those of the repository")
	f.BoolVar(&o.exitCode, "exit-code", false, "exit with 1 if there are changes")
	f.StringSliceVar(&o.plugins, "plugin", nil, "folder with a plugin that fleets use in spec.plugins (may be repeated)")
	o.atHand.flags(f)
	f.StringVar(&o.source.Members, "members", "", "file with the AttachedClusters and Clusters of the hub, as kubectl get -o yaml prints them")
	f.StringVarP(&o.source.Namespace, "namespace", "n", "default", "namespace of the objects that have none")
	completion(cmd, "output", cobra.FixedCompletions([]string{"text", "markdown", "json", "html"}, cobra.ShellCompDirectiveDefault))
	completion(cmd, "color", cobra.FixedCompletions([]string{"auto", "always", "never"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (o *diffOptions) run(cmd *cobra.Command, args []string) error {
	if !slices.Contains([]string{"auto", "always", "never"}, o.color) {
		return fmt.Errorf("--color %s: has to be auto, always or never", o.color)
	}
	for _, output := range o.outputs {
		if format, _, _ := strings.Cut(output, "="); planWriters[format] == nil {
			return fmt.Errorf("--output %s: has to be text, markdown, json or html", output)
		}
	}
	from, to, cleanup, err := o.states(cmd, args)
	if err != nil {
		return err
	}
	defer cleanup()
	old, _, err := o.read(from)
	if err != nil {
		return err
	}
	defer old.contents.Close()
	is, problems, err := o.read(to)
	if err != nil {
		return err
	}
	defer is.contents.Close()
	warnings := relativeTo(is.root, errors.Join(is.set.Warnings...))
	is.unread(old, errors.Join(problems, warnings)) // a kind that nobody knows is a warning, and may be a slip of the pen
	budgets, err := o.budgets()
	if err != nil {
		return err
	}
	p := plan.Compare(old.Side, is.Side, budgets...)
	check(old.Rendered, old.contents)
	check(is.Rendered, is.contents)
	p.Problems = plan.Problems(old.Side, is.Side)
	is.addNotes(p)
	for _, output := range o.outputs {
		format, file, toFile := strings.Cut(output, "=")
		if err := o.write(cmd, planWriters[format], p, file, toFile); err != nil {
			return err
		}
	}
	for _, taken := range is.contents.Taken() {
		report(cmd.ErrOrStderr(), "note", errors.New(taken))
	}
	report(cmd.ErrOrStderr(), "error", problems)
	report(cmd.ErrOrStderr(), "warning", warnings)
	switch {
	case problems != nil || slices.ContainsFunc(p.Problems, func(p plan.Problem) bool { return p.New && !p.Warning }):
		return failure{code: exitIncomplete}
	case slices.ContainsFunc(p.OverBudget, func(o plan.OverBudget) bool { return !o.Allowed }):
		return failure{code: exitOverBudget}
	case o.exitCode && len(p.Changes) > 0:
		return failure{code: exitChanges}
	}
	return nil
}

// budgets reads the file with ChangeBudgets.
func (o *diffOptions) budgets() ([]*policyv1.ChangeBudget, error) {
	if o.budget == "" {
		return nil, nil
	}
	set, err := manifest.Source{Paths: []string{o.budget}, Namespace: o.source.Namespace}.Read()
	if err == nil && len(set.ChangeBudgets) == 0 {
		err = fmt.Errorf("--budget %s: no ChangeBudget is in it", o.budget)
	}
	return set.ChangeBudgets, err
}

// write writes a plan to a file, or to standard output.
func (o *diffOptions) write(cmd *cobra.Command, write planWriter, p *plan.Plan, file string, toFile bool) error {
	if !toFile {
		return write(cmd.OutOrStdout(), p, o.colored(cmd.OutOrStdout()))
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(write(f, p, o.color == "always"), f.Close())
}

// state is a checkout of one state, and what it is called.
type state struct {
	name, root string
	paths      []string
}

// states returns the two states, and a function that removes what was made for them.
func (o *diffOptions) states(cmd *cobra.Command, args []string) (from, to state, cleanup func(), err error) {
	cleanup = func() {}
	if o.from == "" {
		if o.to != "" || o.mergeBase || len(args) != 2 {
			return from, to, cleanup, errors.New("give two folders, or --from with a Git revision")
		}
		for i, s := range []*state{&from, &to} {
			if info, err := os.Stat(args[i]); err != nil {
				return from, to, cleanup, err
			} else if !info.IsDir() {
				return from, to, cleanup, fmt.Errorf("%s is not a folder", args[i])
			}
			*s = state{name: args[i], root: args[i], paths: []string{args[i]}}
		}
		return from, to, cleanup, nil
	}
	if len(args) == 0 {
		args = []string{"."}
	}
	g, err := openGit(cmd.Context(), args[0])
	if err != nil {
		return from, to, cleanup, err
	}
	o.atHand.self = append(o.atHand.self, g.remotes()...)
	temporary, err := os.MkdirTemp("", "fleetwright-diff-")
	if err != nil {
		return from, to, cleanup, err
	}
	cleanup = func() { os.RemoveAll(temporary) }
	base := o.from
	if o.mergeBase {
		if base, err = g.mergeBase(o.from, o.to); err != nil {
			return from, to, cleanup, err
		}
	}
	paths, err := g.inside(args)
	if err != nil {
		return from, to, cleanup, err
	}
	in := func(root string) (out []string) {
		for _, path := range paths {
			if _, err := os.Lstat(filepath.Join(root, path)); err == nil || len(paths) == 1 {
				out = append(out, filepath.Join(root, path))
			}
		}
		return out
	}
	from = state{name: o.from, root: filepath.Join(temporary, "from")}
	if err := g.checkout(base, from.root); err != nil {
		return from, to, cleanup, err
	}
	from.paths = in(from.root)
	to = state{name: "the working tree", root: g.root}
	if o.to != "" {
		to = state{name: o.to, root: filepath.Join(temporary, "to")}
		if err := g.checkout(o.to, to.root); err != nil {
			return from, to, cleanup, err
		}
	}
	to.paths = in(to.root)
	return from, to, cleanup, nil
}

// readState is a state that was read and rendered.
type readState struct {
	plan.Side
	set      *manifest.Set
	contents *contents.Contents
	root     string
}

// read reads and renders a state. Problems are what of it could not be read; the rest is there.
func (o *diffOptions) read(s state) (out *readState, problems, err error) {
	source := o.source
	source.Paths = s.paths
	set, problems := source.Read()
	known, err := loadPlugins(o.plugins)
	if err != nil {
		return nil, nil, err
	}
	out = &readState{Side: plan.Side{Rendered: renderRepository(set, known), Name: s.name}, set: set, root: s.root}
	if out.contents, err = o.atHand.contents(out.Rendered, s.paths, s.root); err != nil {
		return nil, nil, err
	}
	out.Contents = out.contents
	return out, relativeTo(s.root, problems), nil
}

// addNotes adds what was left out when what ends up on members was made.
func (s *readState) addNotes(p *plan.Plan) {
	notes := s.contents.Notes()
	for _, message := range slices.Sorted(maps.Keys(notes)) {
		p.Unknown = append(p.Unknown, plan.Unknown{Message: message, Children: notes[message]})
	}
}

// relativeTo takes the folder of a checkout, which nobody knows, out of errors.
func relativeTo(root string, err error) error {
	var errs []error
	for _, err := range unjoin(err) {
		text := strings.ReplaceAll(err.Error(), filepath.Clean(root)+string(filepath.Separator), "")
		if strings.HasSuffix(text, " in "+root) {
			text = strings.TrimSuffix(text, root) + "it"
		}
		errs = append(errs, errors.New(text))
	}
	return errors.Join(errs...)
}

// unjoin returns the errors of errors.Join, however deep.
func unjoin(err error) (out []error) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return slices.DeleteFunc([]error{err}, func(err error) bool { return err == nil })
	}
	for _, err := range joined.Unwrap() {
		out = append(out, unjoin(err)...)
	}
	return out
}

// unread has the state say of what the old one has, in a file that cannot be read any more, that it is not known, and not gone.
func (s *readState) unread(old *readState, problems error) {
	broken := map[string]string{}
	for _, err := range unjoin(problems) {
		position, _, _ := strings.Cut(err.Error(), ": ")
		if file, _, ok := strings.Cut(position, ":"); ok {
			position = file
		}
		broken[position] = err.Error()
	}
	s.Unread = func(ref plan.Ref) string {
		file := old.set.Position(ref.Kind, ref.Namespace, ref.Name).File
		if now := s.set.Position(ref.Kind, ref.Namespace, ref.Name); file == "" || now.File != "" {
			return ""
		}
		relative, err := filepath.Rel(old.root, file)
		if err != nil {
			return ""
		}
		return broken[relative]
	}
}

// planWriter writes a plan in one format.
type planWriter func(w io.Writer, p *plan.Plan, color bool) error

var planWriters = map[string]planWriter{"text": writePlanText, "markdown": writePlanMarkdown, "json": writePlanJSON,
	"html": func(w io.Writer, p *plan.Plan, _ bool) error { return page.Write(w, p) }}
