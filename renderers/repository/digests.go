package repository

import (
	"strings"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/object"
)

// Name is an object that people have written, or that was made of one.
type Name struct{ Namespace, Kind, Name string }

// Digests are what identifies all that a repository renders to. A hub that has the repository publishes the same.
type Digests struct {
	// All is of everything; empty if there is nothing.
	All string
	// Owners have status.renderDigest of what people have written and of the Applications that were made of it, by name. What
	// renders to nothing is not there.
	Owners map[Name]string
	// Members are of everything that is rendered for each member, the sources that it shares with others included.
	Members map[Name]string
}

// Digests returns the digests of what was rendered.
func (r *Rendered) Digests() *Digests {
	owners, members := map[Name]object.Digests{}, map[Name]object.Digests{}
	add := func(to map[Name]object.Digests, name Name, ref object.Ref, digest string) {
		if to[name] == nil {
			to[name] = object.Digests{}
		}
		to[name][ref] = digest
	}
	for _, app := range r.Declared.Applications {
		kind, name := r.Written(app.Namespace, app.Name)
		if kind == appsv1.ApplicationKind {
			continue
		}
		o, _ := object.New(appsv1.GroupVersion.WithKind(appsv1.ApplicationKind), app.Namespace, app.Name, app.Spec) // it was made of JSON
		add(owners, Name{app.Namespace, kind, name}, o.Ref(), o.Digest())
	}
	// The objects that all members of a policy share, and all of an Application, where the policy is empty.
	type part struct{ namespace, app, policy string }
	common := map[part][]*application.Rendered{}
	for i := range r.Objects {
		x := &r.Objects[i]
		owner := Name{x.Metadata.Namespace, appsv1.ApplicationKind, x.Application}
		if x.Revision != "" {
			owner.Kind, owner.Name = r.Written(x.Metadata.Namespace, x.Application)
		}
		add(owners, owner, x.Ref(), DigestOf(x))
		if IsSource(x) {
			key := part{x.Metadata.Namespace, x.Application, x.Policy}
			common[key] = append(common[key], x)
		}
	}
	for i := range r.Objects {
		x := &r.Objects[i]
		if IsSource(x) {
			continue
		}
		member := Name{x.Metadata.Namespace, x.Member.Kind, x.Member.Name}
		add(members, member, x.Ref(), DigestOf(x))
		for _, policy := range []string{"", x.Policy} {
			for _, source := range common[part{x.Metadata.Namespace, x.Application, policy}] {
				add(members, member, source.Ref(), DigestOf(source))
			}
		}
	}
	d := &Digests{Owners: map[Name]string{}, Members: map[Name]string{}}
	all := object.Digests{}
	for name, digests := range owners {
		d.Owners[name] = digests.Sum()
		all[object.Ref{Kind: name.Kind, Name: name.Namespace + "/" + name.Name}] = d.Owners[name]
	}
	for name, digests := range members {
		d.Members[name] = digests.Sum()
	}
	d.All = all.Sum()
	return d
}

// DigestOf returns what identifies an object: its digest or, of what is published, the revision.
func DigestOf(x *application.Rendered) string {
	if x.Revision != "" {
		return x.Revision
	}
	return x.Digest()
}

// IsSource says whether an object is one that others are made of.
func IsSource(x *application.Rendered) bool {
	return strings.HasPrefix(x.APIVersion, sourcev1.GroupVersion.Group+"/")
}
