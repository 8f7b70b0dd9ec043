// Package templates holds the templates of baselines as data: what is rendered from them is theirs, not the code's.
package templates

import (
	"embed"
	"io/fs"
)

// FS has a folder for each concern.
//
//go:embed networkpolicies node rules secret
var FS embed.FS

// Rules has a folder for each type of rules that a ClusterCompliance may have, with its plugin.yaml.
func Rules() fs.FS {
	rules, err := fs.Sub(FS, "rules")
	if err != nil {
		panic(err) // it is embedded
	}
	return rules
}
