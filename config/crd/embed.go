// Package crd holds the CustomResourceDefinitions that are generated from the Go types in api.
package crd

import "embed"

// Bases are the CustomResourceDefinitions, one a file.
//
//go:embed bases/*.yaml
var Bases embed.FS
