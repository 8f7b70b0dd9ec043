// Package plan compares what two states of a repository render to: what changes on which member. It is a pure function of
// both, so it says the same wherever and whenever it runs.
package plan

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/repository"
)

// Schema is the version of the document that a Plan is in JSON.
const Schema = "fleetwright.plan/v1"

// Side is one of the two states.
type Side struct {
	*repository.Rendered
	// Name of the state for people: main, HEAD, a folder.
	Name string
	// Contents are what ends up on members; nil if that is not looked at.
	Contents Contents
	// Unread says why something that the other state has could not be read in this one; empty if it is gone. It may be nil.
	Unread func(Ref) string
}

// Contents is what Kustomizations and HelmReleases put on members.
type Contents interface {
	// ID identifies what a child is made of, beside its spec, without making it: where the spec and the ID of two children are
	// the same, they put the same on a member. Where it is not known, it is empty.
	ID(child *application.Rendered) string
	// Objects returns what a child puts on its member; they are only read. The error says why that is not known.
	Objects(child *application.Rendered) ([]*unstructured.Unstructured, error)
}

// Plan is what changes from one state of a repository to another. Lists are sorted, the worst first where that is said.
type Plan struct {
	// Schema is fleetwright.plan/v1.
	Schema string `json:"schema"`
	// From and To are the states.
	From State `json:"from"`
	To   State `json:"to"`
	// Members are counted.
	Members Members `json:"members"`
	// Dangers are what a reviewer has to see, the worst first.
	Dangers []Danger `json:"dangers,omitempty"`
	// Changes are the changes, each with all members that have it, by owner; the one of most members first.
	Changes []Change `json:"changes,omitempty"`
	// OverBudget are the steps that are over a ChangeBudget; those that are not allowed first.
	OverBudget []OverBudget `json:"overBudget,omitempty"`
	// Problems are what cannot be rendered, or is most likely a mistake, in the new state.
	Problems []Problem `json:"problems,omitempty"`
	// Unknown is what is not at hand, so that what ends up on members of it is not compared.
	Unknown []Unknown `json:"unknown,omitempty"`
	// Owners are all that render to something in the new state, with the digests that a hub which has it publishes.
	Owners []Owner `json:"owners,omitempty"`
}

// State is one of the two states.
type State struct {
	// Name for people.
	Name string `json:"name"`
	// Digest of everything that the state renders to.
	Digest string `json:"digest"`
}

// Members counts the members of the new state, and names those that come and go.
type Members struct {
	// Total is how many have, or had, objects.
	Total int `json:"total"`
	// Changed is how many of these something changes on.
	Changed int `json:"changed"`
	// Joining have objects in the new state alone, Leaving in the old one alone.
	Joining []Member `json:"joining,omitempty"`
	Leaving []Member `json:"leaving,omitempty"`
}

// Member is one member that joins or leaves.
type Member struct {
	Namespace string `json:"namespace"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	// Gets, Loses and Keeps name what the member gets, what is taken from it, and what stays there without anybody's care: Kind
	// Application policy.
	Gets  []string `json:"gets,omitempty"`
	Loses []string `json:"loses,omitempty"`
	Keeps []string `json:"keeps,omitempty"`
}

// Action is what happens to an object.
type Action string

// Actions.
const (
	Create Action = "create"
	Update Action = "update"
	Delete Action = "delete"
	// Orphan ends an object on the hub; what it has put on the member stays there.
	Orphan Action = "orphan"
	// Recreate deletes an object on a member and creates it anew.
	Recreate Action = "recreate"
	// Hold leaves an object as it is: in the new state it cannot be rendered, and unknown is not gone.
	Hold Action = "hold"
)

// Ref names an object of what people have written.
type Ref struct {
	Namespace string `json:"namespace"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
}

// Change is the same change for some members.
type Change struct {
	// Owner is what people have written, and Application what it renders to; they are the same for an Application.
	Owner       Ref    `json:"owner"`
	Application string `json:"application"`
	// Policy is the name of the sync policy; empty for what all share.
	Policy string `json:"policy,omitempty"`
	Action Action `json:"action"`
	// Kind of the object on the hub: Kustomization, HelmRelease or a source.
	Kind string `json:"kind"`
	// Name of the object on the hub, where it is one.
	Name string `json:"name,omitempty"`
	// Members that have this change; empty for what all share, and for the hub itself.
	Members []string `json:"members,omitempty"`
	// Fields are what changes in the object on the hub.
	Fields []Field `json:"fields,omitempty"`
	// Objects are what changes on each of the members.
	Objects []ObjectChange `json:"objects,omitempty"`
	// Unknown says why what ends up on the members is not known.
	Unknown string `json:"unknown,omitempty"`
	// Reason of Hold, and of Orphan where that is not the deletionPolicy.
	Reason string `json:"reason,omitempty"`

	release string // the Helm release that it is, on its member
}

// ObjectChange is what happens to an object on a member.
type ObjectChange struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	Action     Action `json:"action"`
	// Fields that change; of a new or deleted object, none.
	Fields []Field `json:"fields,omitempty"`
	// Immutable names the fields that the API server does not change of an object that is there: it is created anew where the
	// action is recreate, and otherwise the update fails.
	Immutable []string `json:"immutable,omitempty"`
	// MovedFrom is the policy that had the object: it is handed over, and not deleted.
	MovedFrom string `json:"movedFrom,omitempty"`

	object *unstructured.Unstructured // as it is to be, or was
}

// Field is a value that changes. One that is not there is nil.
type Field struct {
	// Path as in metadata.labels.team or spec.containers[app].image.
	Path string `json:"path"`
	From any    `json:"from,omitempty"`
	To   any    `json:"to,omitempty"`
	// Hidden says that the values are a secret's, and are not here.
	Hidden bool `json:"hidden,omitempty"`
}

// DangerKind is what is dangerous.
type DangerKind string

// Kinds of dangers, the worst first.
const (
	BudgetLifted      DangerKind = "BudgetLifted"
	MemberLeaves      DangerKind = "MemberLeaves"
	SelectsNothing    DangerKind = "SelectsNothing"
	DeletesData       DangerKind = "DeletesData" // PersistentVolumeClaims and volumes, CRDs, namespaces
	Deletes           DangerKind = "Deletes"
	Recreates         DangerKind = "Recreates"
	SelectsEverything DangerKind = "SelectsEverything"
	Enforces          DangerKind = "Enforces"
	MajorVersion      DangerKind = "MajorVersion"
	SecretChanges     DangerKind = "SecretChanges"
)

// Danger is something that a reviewer has to see.
type Danger struct {
	Kind DangerKind `json:"kind"`
	// Owner of what is dangerous; empty for a member that leaves.
	Owner *Ref `json:"owner,omitempty"`
	// Members that it happens on.
	Members []string `json:"members,omitempty"`
	// Message says it to people, without the owner and the members.
	Message string `json:"message"`
}

// Problem is something that cannot be rendered, or not as it was meant.
type Problem struct {
	Owner   Ref      `json:"owner"`
	Policy  string   `json:"policy,omitempty"`
	Members []string `json:"members,omitempty"`
	Reason  string   `json:"reason"`
	Message string   `json:"message"`
	Warning bool     `json:"warning,omitempty"`
	// New says that the old state does not have it.
	New bool `json:"new,omitempty"`
}

// Unknown is something that is not at hand.
type Unknown struct {
	Message string `json:"message"`
	// Children is how many children it is of, in the new state.
	Children int `json:"children"`
}

// Owner is something that renders to objects.
type Owner struct {
	Ref
	// Digest is status.renderDigest of the owner; of an Application, that is also in Applications.
	Digest string `json:"digest"`
	// Applications are what it renders to, by name; of an Application, that itself.
	Applications []Application `json:"applications"`
}

// Application is what an Application renders to.
type Application struct {
	Name string `json:"name"`
	// Digest is status.renderDigest of the Application; Was is that of the old state, empty if it was not there.
	Digest string `json:"digest"`
	Was    string `json:"was,omitempty"`
	// Children are the objects on the hub, sources included, and their digests, which their annotation fleet.kurator.dev/digest
	// has. Of an ExternalArtifact, it is the revision of what is published.
	Children []Child `json:"children,omitempty"`
}

// Child is an object on the hub.
type Child struct {
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Member string `json:"member,omitempty"`
	Digest string `json:"digest"`
}
