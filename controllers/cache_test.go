package controllers

import (
	"encoding/base64"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// stripped returns what the cache keeps of the data of a Secret.
func stripped(g Gomega, data map[string][]byte) map[string][]byte {
	secret := &corev1.Secret{Data: data}
	out, err := stripSecret(secret.DeepCopy())
	g.Expect(err).NotTo(HaveOccurred())
	return out.(*corev1.Secret).Data
}

func TestStripSecret(t *testing.T) {
	g := NewWithT(t)
	twice := []byte(base64.StdEncoding.EncodeToString([]byte(goodKubeconfig)))
	out, err := stripSecret(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "c1", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"x": "y"}, ManagedFields: []metav1.ManagedFieldsEntry{{}}},
		Data:       map[string][]byte{"value": []byte(goodKubeconfig), "twice": twice, "password": []byte("s3cret"), "binary": {0, 1, 2}},
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).To(Equal(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "c1", Labels: map[string]string{"a": "b"}},
		Data:       map[string][]byte{"value": []byte(goodKubeconfig), "twice": twice, "password": nil, "binary": nil},
	}))
}

func TestStripFluxObject(t *testing.T) {
	g := NewWithT(t)
	about := metav1.ObjectMeta{
		Name:          "a",
		Annotations:   map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "keep": "this"},
		ManagedFields: []metav1.ManagedFieldsEntry{{}},
	}
	ready := []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue}}

	k := &kustomizev1.Kustomization{ObjectMeta: *about.DeepCopy(), Spec: kustomizev1.KustomizationSpec{Path: "./"}}
	k.Status = kustomizev1.KustomizationStatus{
		Conditions: ready, ObservedGeneration: 3, LastAppliedRevision: "r1", LastAttemptedRevision: "r2",
		ReconcileRequestStatus: meta.ReconcileRequestStatus{LastHandledReconcileAt: "now"},
		Inventory:              &kustomizev1.ResourceInventory{}, History: meta.History{{}},
	}
	_, err := stripFluxObject(k)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(k.Spec.Path).To(Equal("./"))
	g.Expect(k.ManagedFields).To(BeNil())
	g.Expect(k.Annotations).To(Equal(map[string]string{"keep": "this"}))
	g.Expect(k.Status).To(Equal(kustomizev1.KustomizationStatus{
		Conditions: ready, ObservedGeneration: 3, LastAppliedRevision: "r1", LastAttemptedRevision: "r2",
		ReconcileRequestStatus: meta.ReconcileRequestStatus{LastHandledReconcileAt: "now"},
	}))

	h := &helmv2.HelmRelease{ObjectMeta: *about.DeepCopy()}
	h.Status = helmv2.HelmReleaseStatus{Conditions: ready, ObservedGeneration: 3, LastAttemptedRevision: "1.2.3", History: helmv2.Snapshots{{}}}
	_, err = stripFluxObject(h)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(h.Annotations).To(Equal(map[string]string{"keep": "this"}))
	g.Expect(h.Status).To(Equal(helmv2.HelmReleaseStatus{Conditions: ready, ObservedGeneration: 3, LastAttemptedRevision: "1.2.3"}))
}
