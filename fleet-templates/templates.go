// Package templates holds the templates of baselines as data: what is rendered from them is theirs, not the code's.
package templates

import "embed"

// FS has a folder for each concern.
//
//go:embed networkpolicies node secret
var FS embed.FS
