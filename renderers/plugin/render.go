package plugin

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/member"
	"github.com/fleetwright/fleetwright/renderers/object"
)

const (
	installTimeout = 15 * time.Minute // images are large, and nodes are slow
	applyTimeout   = 5 * time.Minute
	// maxFleetID leaves room for what charts append to make names of Services.
	maxFleetID = 30
	// maxOverrides is what an Application takes.
	maxOverrides = 256
)

// Input is what a plugin is rendered from for one fleet.
type Input struct {
	// Fleet is read for its name and namespace, the clusters that it lists, and the plugins that it uses.
	Fleet *fleetv1.Fleet
	// Use is how the fleet uses the plugin.
	Use Use
	// Members are those of the fleet.
	Members []member.Member
	// Observed is what was read from members.
	Observed Observed
	// Taken are members that another fleet has the plugin on, by name, and that fleet: there, this one has no say.
	Taken map[string]string
}

// Observed is what was read from members, as far as it is known.
type Observed struct {
	// Facts are those of one member, by name.
	Facts map[string]any
	// OfMembers are those of each member.
	OfMembers map[member.Key]map[string]any
	// Kept are the keys that the plugin's Secret on the hub has.
	Kept map[string]bool
}

// Rendered is what a plugin becomes for one fleet.
type Rendered struct {
	// Application delivers it.
	Application *appsv1.Application
	// Files are what the Application delivers from the artifact of its name, and Chart the chart that makes Secrets, from
	// the artifact ChartName; nil if there are none.
	Files, Chart map[string][]byte
	ChartName    string
	// Reads are the facts to read.
	Reads []Read
	// Warnings are for people, a line each.
	Warnings []string
}

// Read is a fact that is to be read from members.
type Read struct {
	*Fact
	// Member is the name of the one to read; empty for all.
	Member string
	// Resource has the names filled in.
	Resource *ResourceReference
}

// Key is where a secret fact is in the plugin's Secret on the hub: that of another member is another one.
func (r *Read) Key() string { return r.Name + "." + r.Member }

// InvalidError says why a plugin cannot be rendered for a fleet: only a change of what is declared mends it.
type InvalidError struct{ error }

func (e InvalidError) Unwrap() error { return e.error }

// Name returns the name of what a plugin of a fleet becomes: its Application, its artifact, and its Secret on the hub.
func Name(fleet, plugin string) string {
	return object.Name(application.MaxNameLength, "plugin", fleet, lower(plugin))
}

// ChartName returns the name of the artifact with the chart that makes Secrets on members.
func ChartName(fleet, plugin string) string {
	return object.Name(application.MaxNameLength, "secret-chart", fleet, lower(plugin)) // a plugin may be called x-secret
}

// rendering is the state of one Render.
type rendering struct {
	*Plugin
	env    evaluation
	in     Input
	values map[string]any // of the variables
	out    *Rendered
	// plugins are the names of those that the fleet uses, and present the components that are there.
	plugins []string
	present map[string]bool
	// clusters are the members as expressions know them.
	clusters map[member.Key]map[string]any
}

func newRendering(p *Plugin, in Input) *rendering {
	return &rendering{Plugin: p, env: evaluation{environment: p.env}, in: in, present: map[string]bool{}, out: &Rendered{}}
}

// Render renders a plugin for a fleet. An error is an InvalidError.
func (p *Plugin) Render(in Input) (*Rendered, error) {
	r := newRendering(p, in)
	if err := r.render(); err != nil {
		return nil, InvalidError{err}
	}
	return r.out, nil
}

// Reads returns the facts that are to be read for a fleet; it needs no observation. An error is an InvalidError.
func (p *Plugin) Reads(in Input) ([]Read, error) {
	r := newRendering(p, in)
	if err := r.setConfig(); err != nil {
		return nil, InvalidError{err}
	}
	if err := r.reads(); err != nil {
		return nil, InvalidError{err}
	}
	return r.out.Reads, nil
}

// Artifacts renders what is published alone: it needs neither members nor facts.
func (p *Plugin) Artifacts(fleet *fleetv1.Fleet, use Use) (files, chart map[string][]byte, err error) {
	r := newRendering(p, Input{Fleet: fleet, Use: use})
	if err := r.setConfig(); err != nil {
		return nil, nil, err
	}
	for i := range p.Spec.Components {
		k := &p.Spec.Components[i]
		if ok, err := r.env.holds(k.When, varConfig, r.values); err != nil {
			return nil, nil, fmt.Errorf("component %s: %w", k.Name, err)
		} else if !ok {
			continue
		}
		switch {
		case k.Secret != nil:
			r.out.Chart = secretChart()
		case k.Objects != nil:
			if _, err := r.files(k); err != nil {
				return nil, nil, fmt.Errorf("component %s: %w", k.Name, err)
			}
		}
	}
	return r.out.Files, r.out.Chart, nil
}

func (r *rendering) render() error {
	if r.IsRuleType() {
		return fmt.Errorf("%s is a type of rules: use it in a ClusterCompliance", r.Metadata.Name)
	}
	if err := r.setConfig(); err != nil {
		return err
	}
	r.setObserved()
	if err := r.rules(); err != nil {
		return err
	}
	if err := r.reads(); err != nil {
		return err
	}

	name := Name(r.in.Fleet.Name, r.Metadata.Name)
	app := &appsv1.Application{}
	app.APIVersion, app.Kind = appsv1.GroupVersion.String(), appsv1.ApplicationKind
	app.Name, app.Namespace = name, r.in.Fleet.Namespace
	app.Spec.Source.SourceRef = &appsv1.SourceReference{Kind: sourcev1.ExternalArtifactKind, Name: name}
	app.Spec.DeletionPolicy = r.deletionPolicy()
	for _, other := range r.Spec.After {
		if slices.Contains(r.plugins, other) {
			app.Spec.DependsOn = append(app.Spec.DependsOn, appsv1.NameReference{Name: Name(r.in.Fleet.Name, other)})
		}
	}
	for i := range r.Spec.Components {
		k := &r.Spec.Components[i]
		policy, err := r.component(k)
		if err != nil {
			return fmt.Errorf("component %s: %w", k.Name, err)
		}
		if policy != nil {
			r.present[k.Name] = true
			app.Spec.SyncPolicies = append(app.Spec.SyncPolicies, *policy)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.in.Use.Components)) {
		if !slices.ContainsFunc(r.Spec.Components, func(k Component) bool { return k.Name == name && k.Chart != nil }) {
			return fmt.Errorf("components.%s: the plugin has no chart of that name, but %s", name, cmp.Or(strings.Join(r.charts(), ", "), "none at all"))
		}
		if !r.present[name] {
			r.warn("components.%s has no effect: it is not installed", name)
		}
	}
	if len(app.Spec.SyncPolicies) == 0 {
		return errors.New("nothing is to be installed")
	}
	if _, err := application.Compile(app); err != nil {
		return err
	}
	r.out.Application, r.out.ChartName = app, ChartName(r.in.Fleet.Name, r.Metadata.Name)
	return nil
}

func (r *rendering) deletionPolicy() string {
	return cmp.Or(r.in.Use.DeletionPolicy, r.Spec.DeletionPolicy, appsv1.DeletionPolicyDelete)
}

func (r *rendering) charts() (names []string) {
	for _, k := range r.Spec.Components {
		if k.Chart != nil {
			names = append(names, k.Name)
		}
	}
	return names
}

func (r *rendering) warn(format string, args ...any) {
	r.out.Warnings = append(r.out.Warnings, fmt.Sprintf(format, args...))
}

// setConfig sets the variables that are known without members.
func (r *rendering) setConfig() error {
	if r.in.Use.Err != nil {
		return r.in.Use.Err
	}
	config, err := r.config()
	if err != nil {
		return err
	}
	listed := []any{}
	for _, c := range r.in.Fleet.Spec.Clusters {
		listed = append(listed, c.Name)
	}
	plugins := []any{}
	for _, u := range Uses(r.in.Fleet) {
		r.plugins, plugins = append(r.plugins, u.Name), append(plugins, u.Name)
	}
	r.values = map[string]any{
		"config": native(config),
		"fleet":  map[string]any{"name": r.in.Fleet.Name, "id": fleetID(r.in.Fleet.Name), "namespace": r.in.Fleet.Namespace, "clusters": listed, "plugins": plugins},
	}
	vars := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(r.Spec.Vars)) {
		v, ok, err := r.env.eval(r.Spec.Vars[name], varVars, r.values)
		if err != nil {
			return fmt.Errorf("vars.%s: %w", name, err)
		}
		if ok {
			vars[name] = v
		}
	}
	r.values["vars"] = vars
	return nil
}

// setObserved sets the variables that are known of members.
func (r *rendering) setObserved() {
	members := []any{}
	r.clusters = make(map[member.Key]map[string]any, len(r.in.Members))
	for i := range r.in.Members {
		if m := &r.in.Members[i]; !m.Leaving && m.Reason != member.DuplicateReason {
			r.clusters[m.Key()] = r.cluster(m)
			members = append(members, r.clusters[m.Key()])
		}
	}
	facts := map[string]any{}
	maps.Copy(facts, r.in.Observed.Facts)
	r.values["members"], r.values["facts"] = members, native(facts)
}

// cluster is what expressions know of a member.
func (r *rendering) cluster(m *member.Member) map[string]any {
	labels := map[string]any{}
	for k, v := range m.Labels {
		labels[k] = v
	}
	facts := map[string]any{}
	maps.Copy(facts, r.in.Observed.OfMembers[m.Key()])
	c := map[string]any{"name": m.Name, "kind": m.Kind, "labels": labels, "ready": m.Ready, "facts": native(facts)}
	if v, err := semver.NewVersion(m.Kubernetes); err == nil {
		c["kubernetes"] = fmt.Sprintf("%d.%d.%d", v.Major(), v.Minor(), v.Patch())
	}
	return c
}

func (r *rendering) rules() error {
	var errs []error
	for _, rule := range r.Spec.Rules {
		text, err := r.broken(rule, varFleet, r.values)
		if err != nil {
			return err
		}
		if text != "" {
			errs = append(errs, errors.New(text))
		}
	}
	for _, rule := range r.Spec.Warnings {
		text, err := r.broken(rule, varFleet, r.values)
		if err != nil {
			return err
		}
		if text != "" {
			r.warn("%s", text)
		}
	}
	return errors.Join(errs...)
}

// broken returns the message of a rule that does not hold; empty if it does.
func (r *rendering) broken(rule Rule, vars variables, values map[string]any) (string, error) {
	ok, err := r.env.holds(rule.Rule, vars, values)
	if err != nil || ok {
		return "", err
	}
	return r.env.text(rule.Message, vars, values)
}

// reads fills in what is to be read from members.
func (r *rendering) reads() error {
	for i := range r.Spec.Facts {
		f := &r.Spec.Facts[i]
		if ok, err := r.env.holds(f.When, varConfig, r.values); err != nil {
			return fmt.Errorf("fact %s: %w", f.Name, err)
		} else if !ok {
			continue
		}
		read := Read{Fact: f}
		if f.From != "" {
			m, err := r.oneMember(f.From)
			if err != nil {
				return fmt.Errorf("fact %s: %w", f.Name, err)
			}
			read.Member = m.Name
		}
		if f.Resource != nil {
			ref := *f.Resource
			for _, s := range []*string{&ref.Namespace, &ref.Name} {
				text, err := r.env.text(*s, varConfig, r.values)
				if err != nil {
					return fmt.Errorf("fact %s: %w", f.Name, err)
				}
				*s = text
			}
			read.Resource = &ref
		}
		r.out.Reads = append(r.out.Reads, read)
	}
	return nil
}

// Value returns what a fact is in the object that was read; nil if it is not there yet.
func (p *Plugin) Value(f *Fact, object map[string]any) (any, error) {
	e := evaluation{environment: p.env}
	v, ok, err := e.eval(f.Value, varObject, map[string]any{"object": native(object)})
	if err != nil || !ok || v == "" {
		return nil, err
	}
	return v, nil
}

// oneMember returns the member that a template names.
func (r *rendering) oneMember(template string) (*member.Member, error) {
	name, err := r.env.text(template, varConfig, r.values)
	if err != nil {
		return nil, err
	}
	for i := range r.in.Members {
		if m := &r.in.Members[i]; m.Name == name && m.Reason != member.DuplicateReason {
			return m, nil
		}
	}
	return nil, fmt.Errorf("%q is no member of Fleet %s", name, r.in.Fleet.Name)
}

// component returns the sync policy of a component; nil if it is not there.
func (r *rendering) component(k *Component) (*appsv1.ApplicationSyncPolicy, error) {
	if ok, err := r.env.holds(k.When, varConfig, r.values); err != nil || !ok {
		return nil, err
	}
	policy := &appsv1.ApplicationSyncPolicy{Name: lower(k.Name)}
	for _, name := range k.DependsOn {
		if r.present[name] {
			policy.DependsOn = append(policy.DependsOn, appsv1.NameReference{Name: lower(name)})
		}
	}
	var members []*member.Member
	switch k.RunsOn {
	case "", OnMembers:
		policy.Destination = &appsv1.ApplicationDestination{Fleet: r.in.Fleet.Name}
		for i := range r.in.Members {
			if m := &r.in.Members[i]; !m.Leaving && m.Reason != member.DuplicateReason {
				members = append(members, m)
			}
		}
	case OnHub:
	default:
		m, err := r.oneMember(k.RunsOn)
		if err != nil {
			return nil, err
		}
		policy.Destination = &appsv1.ApplicationDestination{Cluster: &appsv1.ClusterReference{Name: m.Name, Kind: m.Kind}}
		members = append(members, m)
	}

	var err error
	switch {
	case k.Chart != nil:
		err = r.chart(policy, k)
	case k.Secret != nil:
		err = r.secret(policy, k)
	default:
		err = r.objects(policy, k)
	}
	if err != nil {
		return nil, err
	}
	if missing := r.missing(k); missing != "" {
		policy.Overrides = append(policy.Overrides, appsv1.Override{Selector: &metav1.LabelSelector{}, Hold: missing})
	}
	if err := r.differences(policy, k, members); err != nil {
		return nil, err
	}
	if len(policy.Overrides) > maxOverrides {
		return nil, fmt.Errorf("differs in %d ways between members, and may in %d", len(policy.Overrides), maxOverrides)
	}
	return policy, nil
}

// fleetID returns what the names of Services on the hub may begin with: a DNS label that begins with a letter.
func fleetID(name string) string {
	id := strings.ReplaceAll(name, ".", "-")
	if id == "" || id[0] < 'a' || id[0] > 'z' {
		id = "fleet-" + id
	}
	if id != name {
		id += "-" + hash(name) // another fleet may have that name
	}
	return object.Name(maxFleetID, id)
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:3])
}

// lower makes names of objects of those of plugins and components.
func lower(name string) string { return strings.ToLower(name) }
