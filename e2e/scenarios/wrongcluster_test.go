package scenarios

import (
	"testing"

	. "github.com/onsi/gomega"
)

// H5: manifests that are for the hub go to members, which have no Flux. The hub has its CRDs, so that the error of the
// API server sounds impossible: the status says on which member, for which object, and what to do.
func TestFluxObjectsOnAMember(t *testing.T) {
	s := begin(t)
	s.push("apps", files{"apps/web.yaml": `
apiVersion: source.toolkit.fluxcd.io/v1
kind: HelmRepository
metadata: {name: web, namespace: default}
spec: {url: https://charts.example.org, interval: 1h}
---
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: web, namespace: default}
spec:
  interval: 1h
  chart: {spec: {chart: web, sourceRef: {kind: HelmRepository, name: web}}}
`})
	s.attach("one", env.Members[0])
	s.apply(fleet("prod", "one"))
	s.apply(`
apiVersion: apps.kurator.dev/v1alpha1
kind: Application
metadata: {name: apps}
spec:
  source: {gitRepository: {url: $GIT/apps, interval: 1h, ref: {branch: main}}}
  destination: {fleet: prod}
  syncPolicies:
  - {name: app, kustomization: {path: ./apps, interval: 1h}}
`)
	app := s.reports("apps", "False", "0/1")
	s.Expect(notReady(app.Status.Members)).To(Equal(map[string]string{"one": "NotReady"}))
	s.Expect(memberMessage(app.Status.Members, "one")).To(SatisfyAll(
		HavePrefix("Kustomization/apps-app-one: "),
		MatchRegexp("HelmRe(pository|lease)/default/web"),
		ContainSubstring("members have no Flux"), ContainSubstring("use a helm policy, or a policy without a destination")))
	s.Expect(condition(app.Status.Conditions, "Ready")).To(ContainSubstring("one (NotReady)"))
}
