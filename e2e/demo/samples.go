package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	"github.com/fleetwright/fleetwright/e2e/harness"
)

const samplesPath = "config/samples"

// samples are the manifests of config/samples, with the Applications pointed at the demo's Git server.
type samples struct {
	files        map[string]string
	clusters     []*clusterv1.AttachedCluster
	applications []*appsv1.Application
}

var (
	gitURL       = regexp.MustCompile(`(?m)^(\s*url:).*$`)
	gitBranch    = regexp.MustCompile(`(?m)^(\s*branch:).*$`)
	documentMark = regexp.MustCompile(`(?m)^---\s*$`)
)

func readSamples(appURL string) (*samples, error) {
	files, err := harness.ReadFiles(filepath.Join(harness.Root(), samplesPath), samplesPath)
	if err != nil {
		return nil, err
	}
	s := &samples{files: files}
	var paths []string
	for path := range files {
		paths = append(paths, path)
	}
	sort.Strings(paths)
	decoder := serializer.NewCodecFactory(harness.Scheme).UniversalDeserializer()
	for _, path := range paths {
		files[path] = gitURL.ReplaceAllString(files[path], "$1 "+appURL)
		files[path] = gitBranch.ReplaceAllString(files[path], "$1 main")
		if !strings.HasSuffix(path, ".yaml") || filepath.Base(path) == "kustomization.yaml" {
			continue
		}
		for _, doc := range documentMark.Split(files[path], -1) {
			if strings.TrimSpace(doc) == "" {
				continue
			}
			obj, _, err := decoder.Decode([]byte(doc), nil, nil)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			switch obj := obj.(type) {
			case *clusterv1.AttachedCluster:
				s.clusters = append(s.clusters, obj)
			case *appsv1.Application:
				s.applications = append(s.applications, obj)
			}
			// What has no namespace of its own goes where `kubectl apply` would put it.
			if obj, ok := obj.(client.Object); ok && obj.GetNamespace() == "" {
				obj.SetNamespace("default")
			}
		}
	}
	return s, nil
}

// appFiles returns the demo's app, in every folder that the Applications deliver from.
func (s *samples) appFiles() (map[string]string, error) {
	all := map[string]string{}
	for _, app := range s.applications {
		for _, policy := range app.Spec.SyncPolicies {
			if policy.Kustomization == nil {
				continue
			}
			files, err := harness.ReadFiles(filepath.Join(harness.Root(), "e2e/demo/app"), policy.Kustomization.Path)
			if err != nil {
				return nil, err
			}
			for path, content := range files {
				all[path] = content
			}
		}
	}
	return all, nil
}
