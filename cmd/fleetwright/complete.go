package main

import (
	"github.com/spf13/cobra"

	"github.com/fleetwright/fleetwright/cmd/fleetwright/manifest"
)

// completeFromPaths completes the names of objects of some kinds in the PATHs that are on the command line so far.
func completeFromPaths(source *manifest.Source, kinds ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return manifest.Names(append(args, source.Members), kinds...), cobra.ShellCompDirectiveNoFileComp
	}
}
