package manifest

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// TestAdmissionAgrees holds that a real API server with our CRDs refuses what we refuse, takes what we take, and fills in
// the same defaults.
func TestAdmissionAgrees(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("needs an API server: set KUBEBUILDER_ASSETS, or run make test-unit")
	}
	server := &envtest.Environment{CRDDirectoryPaths: []string{"../../../config/crd/bases"}}
	config, err := server.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	create := func(d Document) (*unstructured.Unstructured, error) {
		resources := map[string]string{"Fleet": "fleets", "Application": "applications", "AttachedCluster": "attachedclusters", "Cluster": "clusters", "ClusterConfig": "clusterconfigs", "PluginConfig": "pluginconfigs",
			"FleetSecurityPolicy": "fleetsecuritypolicies", "ClusterCompliance": "clustercompliances", "ChangeBudget": "changebudgets"}
		resource := schema.GroupVersionResource{Group: d.gvk().Group, Version: d.gvk().Version, Resource: resources[d.gvk().Kind]}
		object := &unstructured.Unstructured{Object: d.Object}
		return client.Resource(resource).Namespace("default").Create(t.Context(), object, metav1.CreateOptions{FieldValidation: "Strict", DryRun: []string{"All"}})
	}

	for _, tt := range refused {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			documents, err := parse("f.yaml", []byte(tt.in))
			g.Expect(err).NotTo(HaveOccurred())
			_, err = create(documents[0])
			g.Expect(err).To(HaveOccurred())
		})
	}

	files, err := filepath.Glob("../testdata/accepted/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	admissions := admissions{}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			g := NewWithT(t)
			data, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			documents, err := parse(file, data)
			g.Expect(err).NotTo(HaveOccurred())
			for _, d := range documents {
				d.Object["metadata"].(map[string]any)["namespace"] = "default" // the one that is there
				got, err := create(d)
				g.Expect(err).NotTo(HaveOccurred())
				admission, err := admissions.find(d.gvk())
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(admission.admit(d.Object, false)).To(BeEmpty())
				g.Expect(d.Object["spec"]).To(Equal(got.Object["spec"]))
			}
		})
	}
}
