package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	policyv1 "github.com/fleetwright/fleetwright/api/policy/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/plan"
	"github.com/fleetwright/fleetwright/renderers/repository"
)

// ownerKinds are the kinds that render to something.
var ownerKinds = map[string]schema.GroupVersionResource{
	appsv1.ApplicationKind:           appsv1.GroupVersion.WithResource("applications"),
	fleetv1.FleetKind:                fleetv1.GroupVersion.WithResource("fleets"),
	clusterv1.ClusterConfigKind:      clusterv1.GroupVersion.WithResource("clusterconfigs"),
	clusterv1.ClusterComplianceKind:  clusterv1.GroupVersion.WithResource("clustercompliances"),
	policyv1.FleetSecurityPolicyKind: policyv1.GroupVersion.WithResource("fleetsecuritypolicies"),
}

func newVerify() *cobra.Command {
	var h hub
	var file, output string
	cmd := &cobra.Command{
		Use:   "verify --plan FILE",
		Short: "Say whether the hub runs exactly what was reviewed",
		Long: `Compare the hub with a plan that fleetwright diff -o json has written: every object on the hub that the new state renders to has to
be there with the digest of the plan, no other one may be, and nobody may have changed one since it was applied.

What differs is listed with the reason, the worst first: what is missing, what is there and should not be, what was rendered from
something else, what somebody has changed or suspended, and whose owner is not in the plan. Namespaces without an owner in the
plan are not looked at.

Exit code 0: the hub runs exactly what was reviewed. 1: it does not, or could not be read. 2: the command or the plan is wrong.`,
		Example: `  # After a merge, until the hub has it
  fleetwright diff --from HEAD~1 --to HEAD -o json=plan.json
  until fleetwright verify --plan plan.json; do sleep 10; done`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("--output %s: has to be json", output)
			}
			p, err := readPlan(file, cmd.InOrStdin())
			if err != nil {
				return err
			}
			if h.namespace != "" {
				p.Owners = slices.DeleteFunc(p.Owners, func(o plan.Owner) bool { return o.Namespace != h.namespace })
			}
			if len(p.Owners) == 0 {
				return errors.New("nothing is rendered in the new state of the plan, so there is nothing to verify")
			}
			live, err := h.read(cmd.Context(), p)
			if err != nil {
				return failure{exitFailed, err}
			}
			v := verify(p, live)
			if output == "json" {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				err = e.Encode(v)
			} else {
				err = v.write(cmd.OutOrStdout())
			}
			if err != nil || !v.Verified {
				return failure{exitFailed, err}
			}
			return nil
		},
	}
	f := cmd.Flags()
	h.clusterFlags(f)
	f.StringVarP(&h.namespace, "namespace", "n", "", "only what is in this namespace; else all namespaces of the plan")
	f.StringVar(&file, "plan", "", "file, or -, with the plan in JSON")
	f.StringVarP(&output, "output", "o", "", "format: json; else a table")
	completion(cmd, "output", cobra.FixedCompletions([]string{"json"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func readPlan(file string, stdin io.Reader) (*plan.Plan, error) {
	var b []byte
	var err error
	switch file {
	case "":
		return nil, errors.New("--plan is missing: name what fleetwright diff -o json=FILE has written, or - for stdin")
	case "-":
		b, err = io.ReadAll(stdin)
	default:
		b, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, fmt.Errorf("--plan: %w", err)
	}
	p := &plan.Plan{}
	if err := json.Unmarshal(b, p); err != nil {
		return nil, fmt.Errorf("--plan %s: %w", file, err)
	}
	if p.Schema != plan.Schema {
		return nil, fmt.Errorf("--plan %s: its schema is %q, and has to be %s: write it with fleetwright diff -o json", file, p.Schema, plan.Schema)
	}
	return p, nil
}

// read reads what the hub has in the namespaces of a plan: owners, and what is generated.
func (h *hub) read(ctx context.Context, p *plan.Plan) (map[repository.Name]*unstructured.Unstructured, error) {
	client, host, _, err := h.connect(30 * time.Second)
	if err != nil {
		return nil, err
	}
	out := map[repository.Name]*unstructured.Unstructured{}
	seen := map[string]bool{}
	add := func(kind, namespace string, resource schema.GroupVersionResource) error {
		list, err := client.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if _, ours := ownerKinds[kind]; apierrors.IsNotFound(err) && !ours {
			return nil // a hub without a controller of Flux has none of its kinds
		}
		if err != nil {
			return hubError(host, resource, err)
		}
		for i := range list.Items {
			out[repository.Name{Namespace: namespace, Kind: kind, Name: list.Items[i].GetName()}] = &list.Items[i]
		}
		return nil
	}
	for _, owner := range p.Owners {
		namespace := owner.Namespace
		if seen[namespace] {
			continue
		}
		seen[namespace] = true
		for kind, resource := range ownerKinds {
			if err := add(kind, namespace, resource); err != nil {
				return nil, err
			}
		}
		for kind, k := range repository.Kinds {
			if err := add(kind, namespace, k.GroupVersionResource); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// maxListed is how many findings of a state are in a table.
const maxListed = 20

// write prints a verdict for people.
func (v *verdict) write(w io.Writer) error {
	if v.Verified {
		_, err := fmt.Fprintf(w, "the hub runs exactly what was reviewed: %s, %s\n", count(v.Owners, "owner"), count(v.Objects, "object"))
		return err
	}
	rows := [][]string{{"STATE", "NAMESPACE", "OBJECT", "MEMBER", "OWNER", "WHY"}}
	listed := map[deviation]int{}
	for _, f := range v.Findings {
		if listed[f.State]++; listed[f.State] > maxListed {
			continue
		}
		why := f.Why
		if len(f.Fields) > 0 {
			why = strings.Trim(some(f.Fields)+": "+why, ": ")
		}
		owner := f.Owner.Kind + "/" + f.Owner.Name
		rows = append(rows, []string{string(f.State), f.Namespace, f.Kind + "/" + f.Name, f.Member, owner, why})
	}
	if err := writeTable(w, rows); err != nil {
		return err
	}
	for _, s := range deviations {
		if n := listed[s] - maxListed; n > 0 {
			fmt.Fprintf(w, "and %d more that are %s: -o json has all\n", n, s)
		}
	}
	_, err := fmt.Fprintf(w, "the hub does not run what was reviewed: %s in %s of %s\n", count(len(v.Findings), "difference"), count(v.Objects, "object"), count(v.Owners, "owner"))
	return err
}
