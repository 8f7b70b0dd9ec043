package controllers

import (
	"encoding/base64"
	"strconv"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
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
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "c1", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"x": "y"}, ManagedFields: []metav1.ManagedFieldsEntry{{}}},
		Data:       map[string][]byte{"value": []byte(goodKubeconfig), "twice": twice, "password": []byte("s3cret"), "binary": {0, 1, 2}},
	}
	for range 2 { // the cache may strip an object again
		_, err := stripSecret(secret)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(secret).To(Equal(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "c1"},
			Data:       map[string][]byte{"value": pack([]byte(goodKubeconfig)), "twice": pack(twice), "password": nil, "binary": nil},
		}))
	}
	g.Expect(string(unpack(secret.Data["value"]))).To(Equal(goodKubeconfig))
}

func TestUnpack(t *testing.T) {
	g := NewWithT(t)
	g.Expect(unpack(nil)).To(BeNil())
	g.Expect(unpack([]byte("plain"))).To(Equal([]byte("plain")))
	g.Expect(unpack([]byte{packed, 1, 2, 3})).To(BeNil())
	g.Expect(unpack(pack(make([]byte, 50<<20)))).To(HaveLen(corev1.MaxSecretSize))
}

func TestStripFluxObject(t *testing.T) {
	g := NewWithT(t)
	about := metav1.ObjectMeta{
		Name:          "a",
		Annotations:   map[string]string{corev1.LastAppliedConfigAnnotation: "{}", fleetv1.DigestAnnotation: "d1"},
		ManagedFields: []metav1.ManagedFieldsEntry{{}},
	}
	ready := []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue}}

	k := &kustomizev1.Kustomization{ObjectMeta: *about.DeepCopy(), Spec: kustomizev1.KustomizationSpec{Path: "./"}}
	k.Status = kustomizev1.KustomizationStatus{
		Conditions: ready, ObservedGeneration: 3, LastAppliedRevision: "r1", LastAttemptedRevision: "r2",
		ReconcileRequestStatus: meta.ReconcileRequestStatus{LastHandledReconcileAt: "now"},
		Inventory:              &kustomizev1.ResourceInventory{}, History: meta.History{{}},
	}
	for range 2 {
		_, err := stripFluxObject(k)
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(k.Spec.Path).To(Equal("./"))
	g.Expect(k.ManagedFields).To(BeNil())
	g.Expect(k.Annotations).To(BeNil())
	g.Expect(carriedDigest(k)).To(Equal("d1"))
	g.Expect(k.Status).To(Equal(kustomizev1.KustomizationStatus{
		Conditions: ready, ObservedGeneration: 3, LastAppliedRevision: "r1", LastAttemptedRevision: "r2",
		ReconcileRequestStatus: meta.ReconcileRequestStatus{LastHandledReconcileAt: "now"},
	}))

	h := &helmv2.HelmRelease{ObjectMeta: *about.DeepCopy()}
	h.Annotations[fleetv1.WaitsForAnnotation] = "Kustomization/b"
	h.Status = helmv2.HelmReleaseStatus{Conditions: ready, ObservedGeneration: 3, LastAttemptedRevision: "1.2.3", History: helmv2.Snapshots{{}}}
	_, err := stripFluxObject(h)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(h.Annotations).To(Equal(map[string]string{fleetv1.WaitsForAnnotation: "Kustomization/b"}))
	g.Expect(carriedDigest(h)).To(Equal("d1"))
	g.Expect(h.Status).To(Equal(helmv2.HelmReleaseStatus{Conditions: ready, ObservedGeneration: 3, LastAttemptedRevision: "1.2.3"}))
}

// TestShared holds that what objects have alike is there once, and what they have not is as it was.
func TestShared(t *testing.T) {
	g := NewWithT(t)
	release := func(member, values string) *helmv2.HelmRelease {
		h := &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{
			Labels:          map[string]string{fleetv1.MemberLabel: member, "a": "b"},
			OwnerReferences: []metav1.OwnerReference{{Name: "web", UID: "1", Controller: new(true)}},
		}}
		h.Spec.ChartRef = &helmv2.CrossNamespaceSourceReference{Kind: "HelmChart", Name: "web"}
		h.Spec.Values = &apiextensionsv1.JSON{Raw: []byte(values)}
		was := h.DeepCopy()
		_, err := stripFluxObject(h)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(h).To(Equal(was))
		return h
	}
	one, same, other := release("c1", `{"a":1}`), release("c2", `{"a":1}`), release("c3", `{"a":2}`)
	g.Expect(same.Spec.Values).To(BeIdenticalTo(one.Spec.Values))
	g.Expect(other.Spec.ChartRef).To(BeIdenticalTo(one.Spec.ChartRef))
	g.Expect(&other.OwnerReferences[0]).To(BeIdenticalTo(&one.OwnerReferences[0]))
	for i := range 2 * mostCommons {
		shared(strconv.Itoa(i))
	}
	g.Expect(len(commons.m)).To(BeNumerically("<=", mostCommons))
	g.Expect(release("c4", `{"a":1}`).Spec.Values).To(Equal(one.Spec.Values))
}
