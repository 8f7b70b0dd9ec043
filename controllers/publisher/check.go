package publisher

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// check refuses files that may not be published: what is published can be read by whoever reaches the server.
func check(files map[string][]byte) error {
	if len(files) == 0 {
		return errors.New("there are no files: Flux would delete all that it applied from them before")
	}
	for _, name := range slices.Sorted(maps.Keys(files)) { // sorted, so that the error is always the same
		if !fs.ValidPath(name) || name == "." {
			return fmt.Errorf("file %q: the name is not a relative path without . and ..", name)
		}
		if err := checkContent(name, files[name]); err != nil {
			return fmt.Errorf("file %s: %w", name, err)
		}
	}
	return nil
}

// checkContent looks at files of every name, because a kustomization may name any as a resource. One that is not YAML,
// nor called so, is no manifest to Flux either.
func checkContent(name string, content []byte) error {
	docs, err := decode(content)
	if slices.ContainsFunc(docs, holdsSecret) {
		return errors.New("it holds a Secret, and nothing secret may be published: deliver it in a Secret that valuesFrom or postBuild.substituteFrom names")
	}
	if err != nil && slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(path.Ext(name))) {
		return fmt.Errorf("it cannot be checked for Secrets: %w", err)
	}
	return nil
}

// decode returns the documents of a YAML or JSON file, up to the first that cannot be read.
func decode(content []byte) (docs []any, err error) {
	for decoder := yaml.NewDecoder(bytes.NewReader(content)); ; {
		var doc any
		if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
			return docs, nil
		} else if err != nil {
			return docs, err
		}
		docs = append(docs, doc)
	}
}

// holdsSecret tells whether a document is a Secret, a list with one, or a kustomization that generates one.
func holdsSecret(doc any) bool {
	fields, ok := doc.(map[string]any)
	if !ok {
		items, _ := doc.([]any) // JSON files may hold a list
		return slices.ContainsFunc(items, holdsSecret)
	}
	if _, ok := fields["secretGenerator"]; ok {
		return true
	}
	kind, _ := fields["kind"].(string)
	version, there := fields["apiVersion"]
	if (kind == "Secret" || kind == "SecretList") && (version == "v1" || !there) { // a patch may leave out its version
		return true
	}
	items, _ := fields["items"].([]any)
	return strings.HasSuffix(kind, "List") && slices.ContainsFunc(items, holdsSecret)
}
