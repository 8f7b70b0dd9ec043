package manifest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"regexp"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

// Position is where something is written. Line is 0 where it is not known.
type Position struct {
	File string
	Line int
}

// String returns file:line.
func (p Position) String() string {
	if p.Line == 0 {
		return p.File
	}
	return p.File + ":" + strconv.Itoa(p.Line)
}

func (p Position) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %w", p, fmt.Errorf(format, args...))
}

// Document is one object as it is written.
type Document struct {
	// Object is the object in JSON's types, exactly as kubectl would send it.
	Object map[string]any
	// Start is where the object begins.
	Start Position
	// node is the object in YAML, which knows the lines; nil for what kustomize has built.
	node *yamlv3.Node
	// before is the number of lines of the file before the YAML document that node is in.
	before int
}

// parse reads a stream of YAML documents, or JSON, which is YAML. The values are those of sigs.k8s.io/yaml, with which
// kubectl reads; go.yaml.in/yaml/v3 only tells where they are, and what kubectl would pass over in silence.
func parse(file string, data []byte) ([]Document, error) {
	if bytes.HasPrefix(data, []byte("\xFF\xFE")) || bytes.HasPrefix(data, []byte("\xFE\xFF")) {
		return nil, Position{File: file}.errorf("is in UTF-16: save it as UTF-8")
	}
	data = bytes.TrimPrefix(data, []byte("\uFEFF"))
	data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	data = bytes.ReplaceAll(data, []byte("\r"), []byte("\n"))

	var out []Document
	keys := keys{}
	for _, chunk := range split(data) {
		object, err := toJSON(chunk.text)
		if err != nil {
			return nil, chunk.explain(file, err, data)
		}
		node, err := chunk.node()
		if err != nil {
			return nil, chunk.explain(file, err, data)
		}
		if node == nil {
			continue // nothing but comments
		}
		if err := chunk.check(file, node, keys); err != nil {
			return nil, err
		}
		if object == nil {
			continue
		}
		fields, ok := object.(map[string]any)
		if !ok {
			return nil, Position{file, chunk.before + node.Line}.errorf("a document has to be an object, with apiVersion and kind")
		}
		out = append(out, Document{Object: fields, Start: Position{file, chunk.before + node.Line}, node: node, before: chunk.before})
	}
	return out, nil
}

// chunk is the text of one document.
type chunk struct {
	text   []byte
	before int // lines of the file before it
}

// split splits a stream at its document markers. A marker is one at the start of a line wherever it stands, in a block
// of text too.
func split(data []byte) []chunk {
	var out []chunk
	start, startLine, offset, content := 0, 0, 0, false
	for line := 0; offset < len(data); line++ {
		end := len(data)
		if i := bytes.IndexByte(data[offset:], '\n'); i >= 0 {
			end = offset + i + 1
		}
		text := bytes.TrimRight(data[offset:end], " \t\n")
		begins := bytes.Equal(text, []byte("---")) || bytes.HasPrefix(text, []byte("--- ")) || bytes.HasPrefix(text, []byte("---\t"))
		if begins && content {
			out = append(out, chunk{data[start:offset], startLine})
			start, startLine, content = offset, line, false
		}
		switch {
		case bytes.Equal(text, []byte("...")) || bytes.HasPrefix(text, []byte("... ")) || bytes.HasPrefix(text, []byte("...\t")):
			out = append(out, chunk{data[start:end], startLine})
			start, startLine, content = end, line+1, false
		case begins || len(text) > 0 && text[0] != '#' && text[0] != '%': // comments and directives come before a marker
			content = true
		}
		offset = end
	}
	return append(out, chunk{data[start:], startLine})
}

// node returns the document in YAML; nil if it is empty.
func (c chunk) node() (*yamlv3.Node, error) {
	d := yamlv3.NewDecoder(bytes.NewReader(c.text))
	var document yamlv3.Node
	if err := d.Decode(&document); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if err := d.Decode(new(yamlv3.Node)); !errors.Is(err, io.EOF) {
		return nil, cmp.Or(err, errors.New("there is a second document here, which does not begin with --- on a line of its own"))
	}
	return document.Content[0], nil
}

// toJSON converts a document as kubectl does.
func toJSON(text []byte) (any, error) {
	b, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, err
	}
	var out any
	return out, json.Unmarshal(b, &out)
}

var (
	yamlLine      = regexp.MustCompile(`^(?:error converting YAML to JSON: )?yaml: line (\d+): (.*)`)
	unknownAnchor = regexp.MustCompile(`unknown anchor '(.*)' referenced`)
)

// explain gives an error of the YAML libraries its place.
func (c chunk) explain(file string, err error, data []byte) error {
	message := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "yaml: "), "\n", " ")
	if m := unknownAnchor.FindStringSubmatch(message); m != nil {
		name := regexp.QuoteMeta(m[1])
		line := lineOf(c.text, `(?m)(?:^|[\s\[{,:])\*`+name+`(?:[\s\]},]|$)`)
		if other := lineOf(data, `(?m)(?:^|[\s\[{,:])&`+name+`(?:\s|$)`); other > 0 && other <= c.before {
			return Position{file, c.before + line}.errorf("*%s refers to another document, whose &%s is in line %d: repeat here what it holds", m[1], m[1], other)
		}
		return Position{file, c.before + line}.errorf("*%s refers to an anchor that is not there, or only further down: there has to be an &%s before it", m[1], m[1])
	}
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		line, _ := strconv.Atoi(m[1])
		return Position{file, c.before + line}.errorf("%s", m[2])
	}
	return Position{file, c.before + 1}.errorf("%s", message)
}

var comment = regexp.MustCompile(`(?m)^[ \t]*#.*$`)

func lineOf(text []byte, pattern string) int {
	text = comment.ReplaceAll(text, nil)
	at := regexp.MustCompile(pattern).FindIndex(text)
	if at == nil {
		return 0
	}
	// What matches may begin with the end of the line before.
	return bytes.Count(text[:at[1]-1], []byte("\n")) + 1
}

// keys knows what kubectl makes of the keys that were seen: yes becomes true, 0x1 becomes 1.
type keys map[string]string

func (k keys) of(n *yamlv3.Node) string {
	n = resolve(n)
	if n.Style&(yamlv3.SingleQuotedStyle|yamlv3.DoubleQuotedStyle|yamlv3.LiteralStyle|yamlv3.FoldedStyle|yamlv3.TaggedStyle) != 0 {
		return n.Value
	}
	key, ok := k[n.Value]
	if !ok {
		key = n.Value
		if object, err := toJSON([]byte(n.Value + ": 0")); err == nil {
			if object, ok := object.(map[string]any); ok {
				for key = range object {
				}
			}
		}
		k[n.Value] = key
	}
	return key
}

func resolve(n *yamlv3.Node) *yamlv3.Node {
	if n.Kind == yamlv3.AliasNode {
		return n.Alias
	}
	return n
}

func isMerge(n *yamlv3.Node) bool { return n.Kind == yamlv3.ScalarNode && n.Tag == "!!merge" }

// check refuses keys that are there twice, of which all but one would be dropped.
func (c chunk) check(file string, n *yamlv3.Node, keys keys) error {
	if n.Kind == yamlv3.MappingNode {
		seen := map[string]int{}
		for i := 0; i < len(n.Content); i += 2 {
			at := Position{file, c.before + n.Content[i].Line}
			key := keys.of(n.Content[i])
			if line, ok := seen[key]; ok {
				return at.errorf("the key %q is in line %d already: take one out", key, c.before+line)
			}
			seen[key] = n.Content[i].Line
			if isMerge(n.Content[i]) {
				for key := range mergedPairs(n.Content[i+1]) {
					if line, ok := seen[keys.of(key)]; ok {
						return at.errorf("<< brings the key %q, which is in line %d already, and programs differ in which of the two counts: write << first, then the key counts", key.Value, c.before+line)
					}
				}
			}
		}
	}
	for _, child := range n.Content {
		if err := c.check(file, child, keys); err != nil {
			return err
		}
	}
	return nil
}

// pairs yields the keys and values of a mapping, and then those that << brings.
func pairs(n *yamlv3.Node) iter.Seq2[*yamlv3.Node, *yamlv3.Node] {
	return func(yield func(key, value *yamlv3.Node) bool) {
		if n == nil {
			return
		}
		if n = resolve(n); n.Kind != yamlv3.MappingNode {
			return
		}
		for i := 0; i < len(n.Content); i += 2 {
			if !isMerge(n.Content[i]) && !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
		for i := 0; i < len(n.Content); i += 2 {
			if isMerge(n.Content[i]) {
				for key, value := range mergedPairs(n.Content[i+1]) {
					if !yield(key, value) {
						return
					}
				}
			}
		}
	}
}

// mergedPairs yields the keys and values that a << with this value brings.
func mergedPairs(n *yamlv3.Node) iter.Seq2[*yamlv3.Node, *yamlv3.Node] {
	n = resolve(n)
	if n.Kind != yamlv3.SequenceNode {
		return pairs(n)
	}
	return func(yield func(key, value *yamlv3.Node) bool) {
		for _, source := range n.Content {
			for key, value := range pairs(source) {
				if !yield(key, value) {
					return
				}
			}
		}
	}
}

// At returns where a field is, or what is left of its path if it is not there: spec.clusters[0].labels.gpu.
func (d *Document) At(path string) Position {
	if d.node == nil {
		return d.Start
	}
	node, line, keys := d.node, d.node.Line, keys{}
	for path != "" {
		var next, at *yamlv3.Node
		rest := path
		if n := resolve(node); n.Kind == yamlv3.SequenceNode {
			var i int
			if _, err := fmt.Sscanf(path, "[%d]", &i); err == nil && i >= 0 && i < len(n.Content) {
				next, at, rest = n.Content[i], n.Content[i], path[strings.IndexByte(path, ']')+1:]
			}
		} else {
			for key, value := range pairs(n) {
				// Keys may have dots themselves: the longest that fits is meant. What << brings comes last and does not count.
				if after, ok := cutKey(path, keys.of(key)); ok && len(after) < len(rest) {
					next, at, rest = value, key, after
				}
			}
		}
		if next == nil {
			break
		}
		node, line, path = next, at.Line, rest
	}
	return Position{d.Start.File, d.before + line}
}

// cutKey cuts a key off the start of a path: key, key.rest, key[0], [key].rest.
func cutKey(path, key string) (string, bool) {
	path = strings.TrimPrefix(path, ".")
	if after, ok := strings.CutPrefix(path, "["+key+"]"); ok {
		return after, true
	}
	after, ok := strings.CutPrefix(path, key)
	return after, ok && (after == "" || after[0] == '.' || after[0] == '[')
}
