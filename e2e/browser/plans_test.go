package browser

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/fleetwright/fleetwright/renderers/plan"
)

var cities = []string{
	"amsterdam", "athens", "berlin", "brussels", "chicago", "copenhagen", "dallas", "dublin", "frankfurt", "helsinki",
	"lisbon", "london", "madrid", "milan", "oslo", "paris", "portland", "stockholm", "warsaw", "zurich",
}

func without(members []string, these ...string) []string {
	return slices.DeleteFunc(slices.Clone(members), func(m string) bool { return slices.Contains(these, m) })
}

func digest(of ...any) string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(fmt.Sprint(of...))))
}

// owner has children on members, as the new state renders them.
func owner(namespace, kind, name, child string, members []string) plan.Owner {
	app := plan.Application{Name: name, Digest: digest(name, "is"), Was: digest(name, "was")}
	for _, m := range members {
		app.Children = append(app.Children, plan.Child{Kind: child, Name: name + "-app-" + m, Member: m, Digest: digest(m, name)})
	}
	return plan.Owner{Ref: plan.Ref{Namespace: namespace, Kind: kind, Name: name}, Applications: []plan.Application{app}}
}

// example is a plan of 20 members, in which everything happens that can.
func example() *plan.Plan {
	ref := func(kind, name string) plan.Ref { return plan.Ref{Namespace: "fleet", Kind: kind, Name: name} }
	checkout, ingress, ledger := ref("Application", "checkout"), ref("Application", "ingress"), ref("Application", "ledger")
	base, production, pods := ref("ClusterConfig", "base"), ref("Fleet", "production"), ref("FleetSecurityPolicy", "pods")
	stay := without(cities, "zurich")
	canaries := []string{"amsterdam", "berlin", "dublin"}
	ours := []string{"frankfurt", "london", "paris", "stockholm"}
	config := "log-format: json\nkeep-alive: 75\nproxy-body-size: 8m\nproxy-read-timeout: 60\nssl-protocols: TLSv1.2 TLSv1.3\nuse-gzip: true\nworker-processes: 4\n"
	p := &plan.Plan{
		Schema:  plan.Schema,
		From:    plan.State{Name: "origin/main", Digest: digest("from")},
		To:      plan.State{Name: "checkout-2.5", Digest: digest("to")},
		Members: plan.Members{Total: 20, Changed: 20},
		Owners: []plan.Owner{
			owner("fleet", "Application", "checkout", "Kustomization", without(stay, "milan")), owner("fleet", "Application", "ingress", "HelmRelease", stay),
			owner("fleet", "Application", "ledger", "Kustomization", ours), owner("fleet", "ClusterConfig", "base", "Kustomization", stay),
			owner("fleet", "Fleet", "production", "HelmRelease", stay), owner("fleet", "FleetSecurityPolicy", "pods", "Kustomization", without(stay, "chicago", "dallas", "portland")),
		},
		Unknown: []plan.Unknown{{Message: "chart kyverno 3.9.0 is not at hand: give a folder that has kyverno-VERSION.tgz with --charts", Children: 19}},
	}
	image := plan.ObjectChange{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "checkout", Name: "web", Action: plan.Update,
		Fields: []plan.Field{{Path: "spec.template.spec.containers[web].image", From: "registry.example.org/checkout/web:2.4.1", To: "registry.example.org/checkout/web:2.5.0"}}}
	selector := image
	selector.Action, selector.Immutable = plan.Recreate, []string{"spec.selector"}
	selector.Fields = append(slices.Clone(image.Fields), plan.Field{Path: "spec.selector.matchLabels.track", To: "canary"})
	settings := plan.ObjectChange{APIVersion: "v1", Kind: "ConfigMap", Namespace: "ingress", Name: "controller", Action: plan.Update,
		Fields: []plan.Field{{Path: "data[\"nginx.conf\"]", From: config, To: strings.Replace(strings.Replace(config, "8m", "32m", 1), "use-gzip: true\n", "use-brotli: true\n", 1)}}}
	replaced := without(stay, append(slices.Clone(canaries), "oslo", "milan", "madrid")...)
	p.Changes = []plan.Change{
		{Owner: checkout, Application: "checkout", Policy: "app", Kind: "Kustomization", Action: plan.Update, Members: replaced,
			Objects: []plan.ObjectChange{image, {APIVersion: "batch/v1", Kind: "Job", Namespace: "checkout", Name: "migrate-2.5.0", Action: plan.Create}, {APIVersion: "batch/v1", Kind: "Job", Namespace: "checkout", Name: "migrate-2.4.1", Action: plan.Delete}}},
		{Owner: checkout, Application: "checkout", Policy: "app", Kind: "Kustomization", Action: plan.Update, Members: canaries, Objects: []plan.ObjectChange{selector}},
		{Owner: checkout, Application: "checkout", Policy: "app", Kind: "Kustomization", Action: plan.Hold, Members: []string{"madrid"}, Reason: "<< .cluster.labels.tier >>: madrid has no label tier"},
		{Owner: checkout, Application: "checkout", Policy: "app", Kind: "Kustomization", Action: plan.Orphan, Members: []string{"milan", "zurich"},
			Objects: []plan.ObjectChange{{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "checkout", Name: "web", Action: plan.Orphan}, {APIVersion: "v1", Kind: "Service", Namespace: "checkout", Name: "web", Action: plan.Orphan}}},
		{Owner: ingress, Application: "ingress", Kind: "HelmChart", Name: "ingress", Action: plan.Update, Fields: []plan.Field{{Path: "spec.version", From: "4.12.1", To: "5.0.0"}}},
		{Owner: ingress, Application: "ingress", Policy: "controller", Kind: "HelmRelease", Action: plan.Update, Members: without(stay, "oslo", "lisbon", "athens"),
			Fields: []plan.Field{{Path: "spec.values.controller.resources", From: map[string]any{"requests": map[string]any{"cpu": "100m"}}, To: map[string]any{"limits": map[string]any{"memory": "512Mi"}, "requests": map[string]any{"cpu": "250m", "memory": "256Mi"}}}},
			Objects: []plan.ObjectChange{settings, {APIVersion: "apps/v1", Kind: "Deployment", Namespace: "ingress", Name: "controller", Action: plan.Update,
				Fields: []plan.Field{{Path: "spec.replicas", From: 2, To: 3}, {Path: "metadata.labels.team", To: "edge"}, {Path: "metadata.labels.owner", From: "platform"}}}}},
		{Owner: ledger, Application: "ledger", Policy: "db", Kind: "Kustomization", Action: plan.Update, Members: ours,
			Objects: []plan.ObjectChange{{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "ledger", Name: "archive", Action: plan.Delete},
				{APIVersion: "v1", Kind: "Secret", Namespace: "ledger", Name: "credentials", Action: plan.Update, Fields: []plan.Field{{Path: "data.password", Hidden: true}}}}},
		{Owner: base, Application: "base", Policy: "objects", Kind: "Kustomization", Action: plan.Update, Members: []string{"chicago", "dallas", "portland"},
			Objects: []plan.ObjectChange{{APIVersion: "v1", Kind: "ResourceQuota", Namespace: "shop", Name: "default", Action: plan.Update, Fields: []plan.Field{{Path: "spec.hard.pods", From: "200", To: "400"}}}}},
		{Owner: production, Application: "plugin-production-policy", Policy: "kyverno", Kind: "HelmRelease", Action: plan.Update, Members: []string{"athens", "lisbon", "warsaw"},
			Unknown: "chart kyverno 3.9.0 is not at hand: give a folder that has kyverno-VERSION.tgz with --charts"},
		{Owner: pods, Application: "policy-pods", Policy: "policies", Kind: "Kustomization", Action: plan.Update, Members: []string{"helsinki", "stockholm", "copenhagen"},
			Objects: []plan.ObjectChange{{APIVersion: "policies.kyverno.io/v1", Kind: "ValidatingPolicy", Name: "fleet.pods.non-root", Action: plan.Update, Fields: []plan.Field{{Path: "spec.validationActions[0]", From: "Audit", To: "Deny"}}}}},
	}
	for _, r := range []struct {
		ref    plan.Ref
		kind   string
		object plan.ObjectChange
	}{
		{checkout, "Kustomization", plan.ObjectChange{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "checkout", Name: "web"}},
		{ingress, "HelmRelease", plan.ObjectChange{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "ingress", Name: "controller"}},
		{base, "Kustomization", plan.ObjectChange{APIVersion: "v1", Kind: "Namespace", Name: "shop"}},
		{pods, "Kustomization", plan.ObjectChange{APIVersion: "policies.kyverno.io/v1", Kind: "ValidatingPolicy", Name: "fleet.pods.non-root"}},
	} {
		joins, leaves := r.object, r.object
		joins.Action, leaves.Action = plan.Create, plan.Delete
		p.Changes = append(p.Changes, plan.Change{Owner: r.ref, Application: r.ref.Name, Policy: "app", Kind: r.kind, Action: plan.Create, Members: []string{"oslo"}, Objects: []plan.ObjectChange{joins}})
		if r.ref != checkout {
			p.Changes = append(p.Changes, plan.Change{Owner: r.ref, Application: r.ref.Name, Policy: "app", Kind: r.kind, Action: plan.Delete, Members: []string{"zurich"}, Objects: []plan.ObjectChange{leaves}})
		}
	}
	p.Members.Joining = []plan.Member{{Namespace: "fleet", Kind: "AttachedCluster", Name: "oslo", Gets: []string{"Application checkout, policy app (1 object)", "Application ingress, policy controller (1 object)"}}}
	p.Members.Leaving = []plan.Member{{Namespace: "fleet", Kind: "AttachedCluster", Name: "zurich", Loses: []string{"Application ingress, policy controller (1 object)", "ClusterConfig base (1 object)"}, Keeps: []string{"Application checkout, policy app (2 objects)"}}}
	p.Dangers = []plan.Danger{
		{Kind: plan.MemberLeaves, Members: []string{"zurich"}, Message: "leaves; it loses Application ingress, policy controller (1 object), ClusterConfig base (1 object); it keeps, without anybody's care, Application checkout, policy app (2 objects)"},
		{Kind: plan.DeletesData, Owner: &ledger, Members: ours, Message: "deletes PersistentVolumeClaim ledger/archive"},
		{Kind: plan.Recreates, Owner: &checkout, Members: canaries, Message: "Deployment checkout/web is deleted and created anew: spec.selector cannot be changed"},
		{Kind: plan.Enforces, Owner: &pods, Members: []string{"copenhagen", "helsinki", "stockholm"}, Message: "ValidatingPolicy fleet.pods.non-root refuses what breaks it: it was audited"},
		{Kind: plan.MajorVersion, Owner: &ingress, Message: "spec.version of the HelmChart: 4.12.1 → 5.0.0"},
		{Kind: plan.SecretChanges, Owner: &ledger, Members: ours, Message: "changes values that are not shown in Secret ledger/credentials"},
	}
	p.Problems = []plan.Problem{{Owner: checkout, Policy: "app", Members: []string{"madrid"}, Reason: "RenderFailed", Message: "<< .cluster.labels.tier >>: madrid has no label tier", New: true}}
	return p
}

// large is a plan of 500 members with 20 applications each, in which much changes, for each member another thing too.
func large() *plan.Plan {
	p := &plan.Plan{Schema: plan.Schema, From: plan.State{Name: "main", Digest: digest(1)}, To: plan.State{Name: "HEAD", Digest: digest(2)}, Members: plan.Members{Total: 500, Changed: 500}}
	var members []string
	for i := range 500 {
		members = append(members, fmt.Sprintf("member-%03d", i+1))
	}
	actions := []plan.Action{plan.Create, plan.Update, plan.Update, plan.Delete, plan.Orphan, plan.Hold}
	for a := range 20 {
		name := fmt.Sprintf("application-%02d", a+1)
		p.Owners = append(p.Owners, owner("fleet", "Application", name, "Kustomization", members))
		for i, m := range members {
			if (i+a)%3 == 0 {
				continue
			}
			c := plan.Change{Owner: plan.Ref{Namespace: "fleet", Kind: "Application", Name: name}, Application: name, Policy: "app", Kind: "Kustomization", Action: actions[(i*7+a)%len(actions)], Members: []string{m}}
			for o := range 5 {
				c.Objects = append(c.Objects, plan.ObjectChange{APIVersion: "apps/v1", Kind: "Deployment", Namespace: name, Name: fmt.Sprintf("web-%d", o), Action: plan.Update,
					Fields: []plan.Field{{Path: "spec.template.spec.containers[web].env[MEMBER].value", From: m, To: m + "." + name}, {Path: "spec.replicas", From: 2, To: 3}}})
			}
			p.Changes = append(p.Changes, c)
		}
	}
	return p
}
