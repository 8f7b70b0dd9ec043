// Package catalog holds the plugins that Fleetwright comes with, as data: a folder each, with its plugin.yaml.
package catalog

import "embed"

// FS has a folder for each plugin.
//
//go:embed */plugin.yaml
var FS embed.FS
