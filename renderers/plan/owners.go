package plan

import (
	"cmp"
	"slices"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/repository"
)

// owners writes down what a hub that has the new state publishes.
func (c *comparison) owners() {
	was, is := c.from.Digests(), c.to.Digests()
	c.From.Digest, c.To.Digest = was.All, is.All
	owners := map[Ref]*Owner{}
	apps := map[[2]string]*Application{}
	for i := range c.to.Objects {
		x := &c.to.Objects[i]
		key := [2]string{x.Metadata.Namespace, x.Application}
		if apps[key] == nil {
			name := repository.Name{Namespace: key[0], Kind: appsv1.ApplicationKind, Name: key[1]}
			apps[key] = &Application{Name: x.Application, Digest: is.Owners[name], Was: was.Owners[name]}
		}
		apps[key].Children = append(apps[key].Children, Child{Kind: x.Kind, Name: x.Metadata.Name, Member: x.Member.Name, Digest: repository.DigestOf(x)})
	}
	for _, app := range c.to.Declared.Applications {
		kind, name := c.to.Written(app.Namespace, app.Name)
		ref := Ref{Namespace: app.Namespace, Kind: kind, Name: name}
		digest := is.Owners[repository.Name(ref)]
		if digest == "" {
			continue // it renders to nothing
		}
		if owners[ref] == nil {
			owners[ref] = &Owner{Ref: ref, Digest: digest}
		}
		rendered := apps[[2]string{app.Namespace, app.Name}]
		if rendered == nil {
			rendered = &Application{Name: app.Name}
		}
		owners[ref].Applications = append(owners[ref].Applications, *rendered)
	}
	for _, o := range owners {
		slices.SortFunc(o.Applications, func(a, b Application) int { return cmp.Compare(a.Name, b.Name) })
		for _, a := range o.Applications {
			slices.SortFunc(a.Children, func(a, b Child) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
		}
		c.Owners = append(c.Owners, *o)
	}
	slices.SortFunc(c.Owners, func(a, b Owner) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
}
