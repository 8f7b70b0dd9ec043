package baseline

import (
	"os"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// TestAPIServerTakes holds that an API server takes everything that the cases of testdata put on a member, and knows every
// field of it.
func TestAPIServerTakes(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("KUBEBUILDER_ASSETS names no API server: make test-unit does")
	}
	g := NewWithT(t)
	env := &envtest.Environment{}
	// The namespaces of the cases do not have the ServiceAccounts and quotas that a controller manager would see to.
	env.ControlPlane.GetAPIServer().Configure().Append("disable-admission-plugins", "ServiceAccount", "ResourceQuota")
	config, err := env.Start()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(env.Stop()).To(Succeed()) })
	c, err := client.New(config, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())

	taken := 0
	for of, config := range cases(t) {
		if r, err := Render(config); err != nil || r.Application == nil {
			g.Expect(err).NotTo(HaveOccurred())
			continue
		}
		objects, err := onMember(t, config, map[string]string{"region": "eu", "pods": "5", "replicas": "3", "swappiness": "7"})
		g.Expect(err).NotTo(HaveOccurred(), of)
		for _, o := range objects {
			if o.GetNamespace() == "" {
				continue
			}
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: o.GetNamespace()}}
			if err := c.Create(t.Context(), ns); !apierrors.IsAlreadyExists(err) {
				g.Expect(err).NotTo(HaveOccurred())
			}
		}
		for _, o := range objects {
			name := of + ": " + KeyOf(o).String()
			err := c.Patch(t.Context(), o, client.Apply, client.DryRunAll, client.FieldOwner("test"), client.FieldValidation("Strict")) //nolint:staticcheck // of unstructured objects
			g.Expect(err).NotTo(HaveOccurred(), name)
			taken++
		}
	}
	g.Expect(taken).To(BeNumerically(">", 20))
}
