package manifest

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// Load reads the documents of files, folders and, for -, stdin, whatever they are; lists are taken apart. What it cannot read
// is an error each; the rest is read.
func Load(paths []string, stdin io.Reader) ([]Document, error) {
	documents, err := load(paths, stdin, true)
	errs := []error{err}
	var out []Document
	var add func(d Document)
	add = func(d Document) {
		if items, ok := d.Object["items"].([]any); ok && strings.HasSuffix(d.gvk().Kind, "List") {
			for i := range items {
				add(d.item(items, i))
			}
		} else if d.Object == nil {
			errs = append(errs, d.Start.errorf("an item of a list has to be an object"))
		} else {
			out = append(out, d)
		}
	}
	for _, d := range documents {
		add(d)
	}
	return out, errors.Join(errs...)
}

// load reads the documents of files, folders and, for -, stdin; of what is in folders, our own objects or all. What it cannot
// read is an error each; the rest is read.
func load(paths []string, stdin io.Reader, all bool) (documents []Document, err error) {
	var errs []error
	add := func(d []Document, err error) {
		documents = append(documents, d...)
		errs = append(errs, err)
	}
	for _, path := range paths {
		if path == "-" {
			data, err := io.ReadAll(stdin)
			errs = append(errs, err)
			add(parse("stdin", data))
			continue
		}
		info, err := os.Stat(path)
		switch {
		case err != nil:
			errs = append(errs, err)
		case info.IsDir():
			add(loadFolder(path, all))
		default:
			data, err := os.ReadFile(path)
			if errs = append(errs, err); err == nil {
				add(parse(path, data))
			}
		}
	}
	return documents, errors.Join(errs...)
}

// loadFolder reads a folder as Flux does: one with a kustomization is built, and of any other everything below it is
// read, where a folder with a kustomization is built again.
func loadFolder(root string, all bool) (documents []Document, err error) {
	var errs []error
	err = filepath.WalkDir(root+string(filepath.Separator), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path = filepath.Clean(path)
		if entry.IsDir() {
			if strings.HasPrefix(entry.Name(), ".") && len(path) > len(filepath.Clean(root)) {
				return fs.SkipDir // .git, .github
			}
			if file := kustomization(path); file != "" {
				built, err := build(path, file)
				documents, errs = append(documents, built...), append(errs, err)
				return fs.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)) {
			return nil
		}
		data, err := readRegular(path)
		// A folder holds Helm templates and whatever else is YAML to its own programs. None of that is for us, and our
		// objects name their group; in UTF-16, which parse refuses, with a zero in each character.
		if err == nil && (all || bytes.Contains(bytes.ReplaceAll(data, []byte{0}, nil), []byte(groupSuffix))) {
			var read []Document
			read, err = parse(path, data)
			documents = append(documents, read...)
		}
		errs = append(errs, err)
		return nil
	})
	return documents, errors.Join(append(errs, err)...)
}

// readRegular reads a file that nobody has named: of a pipe or a device there might be no end.
func readRegular(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if target, linkErr := os.Readlink(path); linkErr == nil && errors.Is(err, fs.ErrNotExist) {
		return nil, Position{File: path}.errorf("is a link to %s, which is not there", target)
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, Position{File: path}.errorf("is not a regular file, and only such are read of a folder")
	}
	return os.ReadFile(path)
}

func kustomization(folder string) string {
	for _, name := range konfig.RecognizedKustomizationFileNames() {
		file := filepath.Join(folder, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return file
		}
	}
	return ""
}

// build runs kustomize as Flux does, but that nothing is loaded from elsewhere. Its output has lost the lines.
func build(folder, file string) ([]Document, error) {
	defer Offline()()
	at := Position{File: file}
	resources, err := krusty.MakeKustomizer(&krusty.Options{
		LoadRestrictions: types.LoadRestrictionsNone,
		PluginConfig:     types.DisabledPluginConfig(),
	}).Run(regularFiles{filesys.MakeFsOnDisk()}, folder)
	if err != nil {
		text := strings.ReplaceAll(err.Error(), "\n", " ")
		if strings.Contains(text, "no 'git' program") {
			text = ErrRemote.Error() + ": " + text
		}
		return nil, at.errorf("kustomize build: %s", text)
	}
	out, err := resources.AsYaml()
	if err != nil {
		return nil, at.errorf("kustomize build: %w", err)
	}
	documents, err := parse(file, out)
	if err != nil {
		return nil, at.errorf("kustomize build: %w", err)
	}
	for i := range documents {
		documents[i].Start, documents[i].node = at, nil
	}
	return documents, nil
}

type regularFiles struct{ filesys.FileSystem }

func (regularFiles) ReadFile(path string) ([]byte, error) { return readRegular(path) }

// ErrRemote says what to do about what kustomize would have to fetch.
var ErrRemote = errors.New("nothing is loaded from elsewhere: copy what the kustomization refers to into the repository")

// Offline keeps kustomize, which has no such option, from fetching anything: it uses http.DefaultTransport and the git
// on PATH. What it returns undoes it.
func Offline() (restore func()) {
	transport, path := http.DefaultTransport, os.Getenv("PATH")
	http.DefaultTransport = refuse{}
	os.Setenv("PATH", "")
	return func() {
		http.DefaultTransport = transport
		os.Setenv("PATH", path)
	}
}

type refuse struct{}

func (refuse) RoundTrip(*http.Request) (*http.Response, error) { return nil, ErrRemote }
