package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// exported are the fields of AttachedClusters and Clusters that rendering goes by, and people. It lists what is let
// through, and not what is left out, so that no annotation and no new field brings a credential into Git. Of a kubeconfig
// it is the name of the Secret. What changes by itself, as readiness and the number of nodes, would make every export a
// change.
var exported = [][]string{
	{"apiVersion"}, {"kind"},
	{"metadata", "name"}, {"metadata", "namespace"}, {"metadata", "labels"},
	{"metadata", "deletionTimestamp"}, // what a member that leaves has is to end
	{"spec", "kubeconfig", "name"}, {"spec", "kubeconfig", "key"}, {"spec", "configMapRef", "name"},
	{"spec", "kind"}, {"spec", "infraType"}, {"spec", "provider"}, {"spec", "kubeconfigRef", "name"}, {"spec", "kubeconfigRef", "key"},
	{"status", "kubernetesVersion"}, {"status", "kubeconfigSecretRef"},
}

// inventoryHeader begins an inventory in YAML.
const inventoryHeader = `# The members of a hub, for fleetwright build --members: names, labels and versions, no credentials.
# Written by fleetwright inventory export; do not edit, and do not apply.
`

func newInventory() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inventory export",
		Short: "Write down the members of the hub, to commit",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("inventory %s: has to be export", args[0])
			}
			return cmd.Help()
		},
	}
	var h hub
	var output string
	export := &cobra.Command{
		Use:   "export",
		Short: "Print the AttachedClusters and Clusters of the hub: names, labels and versions, no credentials",
		Long: `Print the AttachedClusters and Clusters of the hub, as fleetwright build --members reads them: names, labels, versions of Kubernetes,
and the names of the Secrets that Flux reaches them with. There are no credentials in it, no annotations, and nothing that changes by itself:
as long as nothing was changed on the hub, the same is printed.`,
		Example: `  # All members, to commit
  fleetwright inventory export -A > inventory/members.yaml

  # What a branch renders to for them, without the hub
  fleetwright build clusters/hub --members inventory/members.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "yaml" && output != "json" {
				return fmt.Errorf("--output %s: has to be yaml or json", output)
			}
			if err := h.export(cmd, output); err != nil {
				return failure{exitFailed, err}
			}
			return nil
		},
	}
	h.flags(export.Flags())
	export.Flags().StringVarP(&output, "output", "o", "yaml", "format: yaml or json")
	completion(export, "output", cobra.FixedCompletions([]string{"yaml", "json"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.AddCommand(export)
	return cmd
}

func (h *hub) export(cmd *cobra.Command, output string) error {
	clusters := listings[slices.IndexFunc(listings, func(l listing) bool { return l.use == "clusters" })]
	objects, namespace, err := h.list(cmd.Context(), clusters, "", 30*time.Second)
	if err != nil {
		return err
	}
	if len(objects) == 0 { // committed, it would say that all members are gone
		if namespace != "" {
			return fmt.Errorf("there are no AttachedClusters and Clusters in namespace %s: name another one with --namespace, or all with --all-namespaces", namespace)
		}
		return errors.New("there are no AttachedClusters and Clusters: is it the hub?")
	}
	for i := range objects {
		if objects[i], err = export(objects[i]); err != nil {
			return err
		}
	}
	if output == "yaml" {
		if _, err := io.WriteString(cmd.OutOrStdout(), inventoryHeader); err != nil {
			return err
		}
	}
	return printData(cmd.OutOrStdout(), output, objects, false)
}

// export returns an object with the fields that are exported, and a spec, which all have to have.
func export(o unstructured.Unstructured) (unstructured.Unstructured, error) {
	out := map[string]any{"spec": map[string]any{}}
	for _, path := range exported {
		value, ok, err := unstructured.NestedFieldNoCopy(o.Object, path...)
		if err == nil && ok {
			err = unstructured.SetNestedField(out, value, path...)
		}
		if err != nil {
			return unstructured.Unstructured{}, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return unstructured.Unstructured{Object: out}, nil
}
