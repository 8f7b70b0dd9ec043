package scenarios

import (
	"testing"

	. "github.com/onsi/gomega"

	appsv1 "github.com/fleetwright/fleetwright/api/apps/v1alpha1"
	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

// shop is what the members run.
var shop = files{
	"base/namespace.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NAMESPACE}\n",
	"base/config.yaml":    shopConfig("one"),
	"base/shop.yaml": `
apiVersion: v1
kind: Service
metadata: {name: shop, namespace: $NAMESPACE}
spec: {selector: {app: shop}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop, namespace: $NAMESPACE}
spec:
  replicas: 1
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec: {containers: [{name: shop, image: shop}]}
`,
}

func shopConfig(version string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: shop, namespace: $NAMESPACE}\ndata: {version: " + version + ", size: small}\n"
}

const shopApplication = `
apiVersion: apps.kurator.dev/v1alpha1
kind: Application
metadata: {name: shop}
spec:
  source: {gitRepository: {url: $GIT/shop, interval: 1h, ref: {branch: main}}}
  destination: {fleet: prod}
  syncPolicies:
  - name: app
    kustomization:
      path: ./base
      interval: 1h
      retryInterval: 2s
      patches:
      - target: {kind: ConfigMap, name: shop}
        patch: |
          - {op: add, path: /data/cluster, value: "<< .cluster.name >> in << .cluster.labels.region >>"}
    overrides:
    - selector: {matchLabels: {size: large}}
      kustomization:
        patches:
        - target: {kind: ConfigMap, name: shop}
          patch: |
            - {op: replace, path: /data/size, value: large}
`

// fluxOnHub has the hub's own Flux apply a Git repository to the scenario's namespace, as people do who keep their
// fleet in Git.
const fluxOnHub = `
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: fleet}
spec: {url: $GIT/fleet, interval: 1h, ref: {branch: main}}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: fleet}
spec:
  sourceRef: {kind: GitRepository, name: fleet}
  targetNamespace: $NAMESPACE
  interval: 1h
  retryInterval: 2s
  prune: true
`

// The main job, from the first push to the last: people only ever push to Git.
func TestMainJob(t *testing.T) {
	s := begin(t)
	one, two, three := env.Members[0], env.Members[1], env.Members[2]
	on := func(version, size, cluster string) map[string]string {
		return map[string]string{"version": version, "size": size, "cluster": cluster}
	}

	t.Log("a fleet of two and an Application are pushed to Git, and are what runs")
	s.push("shop", shop)
	s.push("fleet", files{
		"one.yaml":  attachedCluster("one", "region=eu", "size=small"),
		"two.yaml":  attachedCluster("two", "region=us", "size=large"),
		"prod.yaml": fleet("prod", "one", "two"),
		"shop.yaml": shopApplication,
	})
	s.kubeconfig("one", one.Kubeconfig)
	s.kubeconfig("two", two.Kubeconfig)
	s.kubeconfig("three", three.Kubeconfig)
	s.apply(fluxOnHub)
	s.Eventually(s.data(one, s.ns, "shop")).Should(Equal(on("one", "small", "one in eu")))
	s.Eventually(s.data(two, s.ns, "shop")).Should(Equal(on("one", "large", "two in us")))
	s.Eventually(s.gone(&appsv1.Application{ObjectMeta: s.named("shop")})).Should(BeFalse())
	s.ready("shop", "2/2")
	s.Eventually(func() string {
		return condition(get(s, &fleetv1.Fleet{}, "prod").Status.Conditions, "Ready")
	}).Should(HavePrefix("True "))
	all := []string{"ConfigMap " + s.ns + "/shop", "Deployment " + s.ns + "/shop", "Namespace /" + s.ns, "Service " + s.ns + "/shop"}
	s.Expect(names(s.applied(one)())).To(ConsistOf(all))
	s.Expect(s.applied(three)()).To(BeEmpty(), "a cluster that is no member gets nothing")

	t.Log("a change of the manifests reaches both")
	s.push("shop", files{"base/config.yaml": shopConfig("two")})
	s.pushed("shop")
	s.Eventually(s.data(one, s.ns, "shop")).Should(HaveKeyWithValue("version", "two"))
	s.Eventually(s.data(two, s.ns, "shop")).Should(HaveKeyWithValue("version", "two"))

	t.Log("so does a change of the Application: another path, another patch")
	s.push("shop", files{
		"next/kustomization.yaml": "resources: [../base]\npatches:\n- patch: |\n    - {op: add, path: /data/next, value: \"yes\"}\n  target: {kind: ConfigMap}\n",
		"base/kustomization.yaml": "resources: [namespace.yaml, config.yaml, shop.yaml]\n",
	})
	s.pushed("shop")
	s.push("fleet", files{"shop.yaml": replace(shopApplication, "./base", "./next", "<< .cluster.name >> in", "<< .cluster.name >> at")})
	s.pushed("fleet")
	s.Eventually(s.data(one, s.ns, "shop")).Should(SatisfyAll(HaveKeyWithValue("next", "yes"), HaveKeyWithValue("cluster", "one at eu")))
	s.Eventually(s.data(two, s.ns, "shop")).Should(SatisfyAll(HaveKeyWithValue("next", "yes"), HaveKeyWithValue("cluster", "two at us"), HaveKeyWithValue("size", "large")))
	s.ready("shop", "2/2")

	t.Log("a member that joins gets everything; the others are not touched")
	oneHas, twoHas, versions := s.applied(one)(), s.applied(two)(), s.resourceVersions()
	s.push("fleet", files{"three.yaml": attachedCluster("three", "region=ap", "size=large"), "prod.yaml": fleet("prod", "one", "two", "three")})
	s.pushed("fleet")
	s.Eventually(s.data(three, s.ns, "shop")).Should(SatisfyAll(HaveKeyWithValue("cluster", "three at ap"), HaveKeyWithValue("size", "large")))
	s.ready("shop", "3/3")
	s.Expect(names(s.applied(three)())).To(ConsistOf(all))
	s.Expect(without(s.resourceVersions(), "shop-app-three")).To(Equal(versions))

	t.Log("a member that leaves loses everything; the others keep theirs")
	s.push("fleet", files{"prod.yaml": fleet("prod", "one", "three")})
	s.pushed("fleet")
	s.Eventually(s.applied(two)).Should(BeEmpty())
	s.ready("shop", "2/2")
	s.Expect(s.applied(one)()).To(Equal(oneHas))
	s.Expect(names(s.applied(three)())).To(ConsistOf(all))
	s.Expect(twoHas).NotTo(BeEmpty())

	t.Log("all is taken out of Git at once; a cluster stays known until its child has ended")
	release := s.hold(s.kustomization("shop-app-one"))
	s.push("fleet", files{"one.yaml": "", "two.yaml": "", "three.yaml": "", "prod.yaml": "", "shop.yaml": "",
		"empty.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: empty}\n"})
	s.pushed("fleet")
	s.Eventually(s.gone(&clusterv1.AttachedCluster{ObjectMeta: s.named("three")})).Should(BeTrue())
	s.Eventually(s.health("one")).Should(HavePrefix("False Terminating: waiting for 1 objects of Application shop to end"))
	s.Expect(s.gone(&appsv1.Application{ObjectMeta: s.named("shop")})()).To(BeFalse())
	release()
	s.Eventually(s.gone(&clusterv1.AttachedCluster{ObjectMeta: s.named("one")})).Should(BeTrue())
	s.Eventually(s.gone(&appsv1.Application{ObjectMeta: s.named("shop")})).Should(BeTrue())
	for _, member := range env.Members {
		s.Eventually(s.applied(member)).Should(BeEmpty(), member.Name)
	}
	s.Expect(s.left()).To(BeEmpty(), "the hub has no children and no sources left")
}
