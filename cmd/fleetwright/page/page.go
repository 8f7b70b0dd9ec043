// Package page writes a plan as one page of HTML, which needs no network and no other file.
package page

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"html"
	"io"
	"strings"

	"github.com/fleetwright/fleetwright/renderers/plan"
)

//go:embed page.html
var frame string

//go:embed page.css
var style string

//go:embed page.js
var script string

// Write writes a plan as a page.
func Write(w io.Writer, p *plan.Plan) error {
	data, err := json.Marshal(p) // which escapes <, > and &, so that no value ends the script element
	if err != nil {
		return err
	}
	// All at once: what is in a value is not looked at for the marks of others.
	_, err = strings.NewReplacer(
		"{{title}}", html.EscapeString(p.From.Name+" → "+p.To.Name),
		"{{policy}}", policy, "{{style}}", style, "{{script}}", script, "{{plan}}", string(data),
	).WriteString(w, frame)
	return err
}

// policy has the browser run our script alone, make no HTML of text, and ask no network for anything.
var policy = "default-src 'none'; style-src " + hash(style) + "; script-src " + hash(script) +
	"; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
