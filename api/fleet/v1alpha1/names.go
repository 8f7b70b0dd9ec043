package v1alpha1

// Labels and annotations that generated objects carry, and annotations that a user sets on Fleets, Applications and
// clusters. The group is the fleet's for all of them, so that one selector finds everything of a member.
const (
	// ManagedByLabel and ManagedByValue mark every generated object.
	ManagedByLabel = "app.kubernetes.io/managed-by"
	ManagedByValue = "fleetwright"

	// FleetLabel names the Fleet that a generated object serves.
	FleetLabel = "fleet.kurator.dev/name"
	// MemberLabel and MemberKindLabel name the member that a generated object serves. An object without them serves
	// the hub itself, or all members.
	MemberLabel     = "fleet.kurator.dev/member"
	MemberKindLabel = "fleet.kurator.dev/member-kind"

	// DigestAnnotation is the digest of what was rendered for a generated object.
	DigestAnnotation = "fleet.kurator.dev/digest"
	// WaitsForAnnotation lists, as Kind/name separated by commas, the generated objects of another kind that had to be
	// ready before this one was created. They end after it.
	WaitsForAnnotation = "fleet.kurator.dev/waits-for"

	// AllowPruneAnnotation, set by a user, allows one prune that is over budget. Its value is the one that the status
	// names: "<metadata.generation>", or "<metadata.generation>-<n>" where an earlier prune has used up the plain form.
	AllowPruneAnnotation = "fleet.kurator.dev/allow-prune"

	// AllowChangeAnnotation, set by a user on what people have written, allows a step that is over a ChangeBudget. Its value is the
	// renderDigest that the step leads to, so that it allows nothing else; several are separated by commas.
	AllowChangeAnnotation = "fleet.kurator.dev/allow-change"

	// RemovePluginAnnotation, set by a user on a Fleet, names a plugin that is to be removed although others need it: what needs
	// it is removed from the members first.
	RemovePluginAnnotation = "fleet.kurator.dev/remove-plugin"

	// ReconcileAnnotation=ReconcileForce is Kurator's way to ask for a reconcile. It is handled once for each time it is set.
	ReconcileAnnotation = "kurator.dev/reconcile"
	ReconcileForce      = "force"
	// PauseAnnotation=PauseTrue is Kurator's way to suspend.
	PauseAnnotation = "kurator.dev/pause"
	PauseTrue       = "true"

	// NotInEffectCondition is True while something is accepted and has no effect; its message says what.
	NotInEffectCondition = "NotInEffect"
)
