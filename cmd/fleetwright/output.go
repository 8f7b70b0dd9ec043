package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/fleetwright/fleetwright/cmd/fleetwright/contents"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/object"
	"github.com/fleetwright/fleetwright/renderers/repository"
)

// printObjects writes objects as a stream of YAML documents, or as one List in JSON. kubectl apply takes either.
func printObjects(w io.Writer, format string, objects []*object.Object) error {
	if format == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
	}
	for _, o := range objects {
		b, err := yaml.Marshal(o)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "---\n%s", b); err != nil {
			return err
		}
	}
	return nil
}

// printExpanded writes what ends up on each member, as far as it is at hand.
func printExpanded(w, warn io.Writer, rendered *repository.Rendered, made *contents.Contents) error {
	left := map[string]int{}
	for i := range rendered.Objects {
		x := &rendered.Objects[i]
		if repository.IsSource(x) {
			continue
		}
		objects, err := made.Objects(x)
		if err != nil {
			left[fmt.Sprintf("%s of Application %s: %v", x.Kind, x.Application, err)]++
			continue
		}
		fmt.Fprintf(w, "---\n# %s, by %s\n", cmp.Or(x.Member.Name, "the hub"), x.Ref())
		for j, o := range objects {
			b, err := yaml.Marshal(o.Object)
			if err != nil {
				return err
			}
			if j > 0 {
				b = append([]byte("---\n"), b...)
			}
			if _, err := w.Write(b); err != nil {
				return err
			}
		}
	}
	for _, taken := range made.Taken() {
		report(warn, "note", errors.New(taken))
	}
	for _, what := range slices.Sorted(maps.Keys(left)) {
		fmt.Fprintf(warn, "not expanded: %d %s\n", left[what], what)
	}
	return nil
}

// header is the first line of every file that is written into --output-dir. A file without it is not ours.
const header = "# Written by fleetwright build --output-dir, which replaces and deletes it.\n"

// writeDir writes the objects into files by whom they are for. A complete result also ends the files of an earlier one
// for which there is nothing any more.
func writeDir(dir string, result application.Result, complete bool) error {
	files := map[string][]*object.Object{}
	for _, r := range result.Objects {
		name := filepath.Join(r.Metadata.Namespace, fileFor(r))
		files[name] = append(files[name], r.Object)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if ours, err := isOurs(filepath.Join(dir, name)); err != nil {
			return err
		} else if !ours {
			return fmt.Errorf("%s is there and was not written by fleetwright build: move it, or choose another --output-dir", filepath.Join(dir, name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		b := bytes.NewBufferString(header)
		if err := printObjects(b, "yaml", files[name]); err != nil {
			return err
		}
		if err := writeFile(filepath.Join(dir, name), b.Bytes()); err != nil {
			return err
		}
	}
	if !complete || len(files) == 0 { // nothing at all is more often a wrong path than an empty repository
		return nil
	}
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".yaml") {
			return ignoreMissing(err)
		}
		name, err := filepath.Rel(dir, path)
		if err != nil || files[name] != nil {
			return err
		}
		if ours, err := isOurs(path); err != nil || !ours {
			return err
		}
		return os.Remove(path)
	})
}

func fileFor(r application.Rendered) string {
	switch {
	case r.Member.Name != "":
		return filepath.Join("members", r.Member.Name+".yaml")
	case repository.IsSource(&r):
		return "shared.yaml"
	default:
		return "hub.yaml"
	}
}

func writeFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// isOurs says whether a file is one that we wrote, or none.
func isOurs(path string) (bool, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return false, nil // a pipe would have to be waited for
	}
	f, err := os.Open(path)
	if err != nil {
		return true, ignoreMissing(err)
	}
	defer f.Close()
	start := make([]byte, len(header))
	n, err := io.ReadFull(f, start)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false, err
	}
	return string(start[:n]) == header, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
