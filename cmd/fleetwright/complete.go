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

func completion(cmd *cobra.Command, flag string, complete cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // there is no such flag, or it has a completion already
	}
}
