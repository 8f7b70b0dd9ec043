// Command fleetwright renders what a repository declares, and shows what a hub has.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fleetwright/fleetwright/renderers/object"
)

// version is set by the linker.
var version = "dev"

func main() {
	os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// Exit codes.
const (
	exitFailed = 1 // something is wrong with what was asked for
	exitUsage  = 2 // nothing was done: the command or its input is wrong
)

// failure is an error that decides on the exit code. It may have no text, where all was said.
type failure struct {
	code int
	err  error
}

func (f failure) Error() string { return f.err.Error() }

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot(filepath.Base(args[0]))
	root.SetArgs(args[1:])
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.Execute()
	if err == nil {
		return 0
	}
	f := failure{exitUsage, err} // what cobra finds is about the command line
	errors.As(err, &f)
	report(stderr, "error", f.err)
	return f.code
}

// report writes an error, or each of joined errors, in one line.
func report(w io.Writer, severity string, err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			report(w, severity, err)
		}
	} else if err != nil {
		fmt.Fprintf(w, "%s: %s\n", severity, object.OneLine(err.Error()))
	}
}

func newRoot(program string) *cobra.Command {
	root := &cobra.Command{
		Use:           "fleetwright",
		Short:         "Compose what a fleet of clusters runs, with Flux",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
	}
	// As a plugin of the Flux command line the program is called flux-fleet.
	if plugin, ok := strings.CutPrefix(strings.TrimSuffix(program, ".exe"), "flux-"); ok {
		root.Use = "flux-" + plugin
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "flux " + plugin}
	}
	root.AddCommand(newBuild(), newDiff(), newGet(), newInventory(), newPlugin(), newPolicy(), newVerify(), newWhy(), &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run:   func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), version) },
	})
	for _, cmd := range root.Commands() {
		cmd.Example = strings.ReplaceAll(cmd.Example, "  fleetwright ", "  "+root.DisplayName()+" ")
	}
	return root
}
