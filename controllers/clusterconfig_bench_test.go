package controllers

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	artifacts "github.com/fluxcd/pkg/artifact/config"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	"github.com/fleetwright/fleetwright/controllers/publisher"
	"github.com/fleetwright/fleetwright/renderers/application"
	"github.com/fleetwright/fleetwright/renderers/baseline"
	"github.com/fleetwright/fleetwright/renderers/member"
)

// thousand renders and publishes a ClusterConfig for 1,000 members, and returns the artifact and the digests of the
// members' Kustomizations.
func thousand(g Gomega, store publisher.Publisher, config *clusterv1.ClusterConfig) (*meta.Artifact, map[string]string) {
	rendered, err := (&Baselines{}).Render(config)
	g.Expect(err).NotTo(HaveOccurred())
	artifact, err := store.Publish(context.Background(), types.NamespacedName{Namespace: "fleet", Name: baseline.Name(config.Name)}, rendered.Revision, rendered.Files)
	g.Expect(err).NotTo(HaveOccurred())
	program, err := application.Compile(rendered.Application)
	g.Expect(err).NotTo(HaveOccurred())
	digests := make(map[string]string, 1000)
	for i := range 1000 {
		m := &member.Member{Name: fmt.Sprintf("m%d", i), Kind: clusterv1.AttachedClusterKind, Ready: true, Labels: map[string]string{"n": fmt.Sprint(i % 10)},
			KubeConfig: &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "kubeconfig"}}}
		child, err := program.Child(&application.Scope{}, program.Policies()[0], m)
		g.Expect(err).NotTo(HaveOccurred())
		digests[m.Name] = child.Object.Digest()
	}
	return artifact, digests
}

func newStore(t testing.TB) publisher.Publisher {
	store, err := publisher.New(artifacts.Options{StoragePath: t.TempDir(), StorageAddress: "127.0.0.1:0", StorageAdvAddress: "artifacts.test",
		ArtifactRetentionTTL: time.Minute, ArtifactRetentionRecords: 2, ArtifactDigestAlgo: "sha256"})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return store
}

func parseConfig(g Gomega, text string) *clusterv1.ClusterConfig {
	config := &clusterv1.ClusterConfig{}
	g.Expect(yaml.UnmarshalStrict([]byte(text), config)).To(Succeed())
	config.Namespace = "fleet"
	return config
}

// Baselines, must hold 2: what changes for 1,000 members. BenchmarkBaseline says what it costs.
func TestOneArtifactForAThousandMembers(t *testing.T) {
	g := NewWithT(t)
	store := newStore(t)
	first, before := thousand(g, store, parseConfig(g, quotas))
	second, after := thousand(g, store, parseConfig(g, strings.Replace(quotas, `"10"`, `"20"`, 1)))
	g.Expect(second.Digest).NotTo(Equal(first.Digest))
	g.Expect(after).To(Equal(before), "another value changes no Kustomization")

	third, after := thousand(g, store, parseConfig(g, strings.Replace(quotas, `"10"`, `"20"`, 1)+`
  overrides: [{clusters: [m7], patches: [{patch: "[]", target: {kind: ResourceQuota}}]}]
`))
	g.Expect(third.Digest).To(Equal(second.Digest), "an override changes no artifact")
	g.Expect(after["m7"]).NotTo(Equal(before["m7"]))
	after["m7"] = before["m7"]
	g.Expect(after).To(Equal(before), "and no other member")
}

func BenchmarkBaseline(b *testing.B) {
	g := NewWithT(b)
	store, n := newStore(b), 0
	for b.Loop() {
		n++ // another value each time, so that there is something to publish
		_, digests := thousand(g, store, parseConfig(g, strings.Replace(quotas, `"10"`, fmt.Sprintf("%q", fmt.Sprint(n)), 1)))
		b.ReportMetric(float64(len(digests)), "Kustomizations/op")
	}
}
