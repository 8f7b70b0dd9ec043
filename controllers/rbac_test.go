package controllers

import (
	"os"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// W27: the controller may not do what it does not do.
func TestRoleIsLeast(t *testing.T) {
	g := NewWithT(t)
	b, err := os.ReadFile("../config/rbac/role.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	var role rbacv1.ClusterRole
	g.Expect(yaml.UnmarshalStrict(b, &role)).To(Succeed())
	g.Expect(role.Rules).NotTo(BeEmpty())
	for _, rule := range role.Rules {
		for _, list := range [][]string{rule.APIGroups, rule.Resources, rule.Verbs} {
			g.Expect(list).NotTo(ContainElement("*"))
		}
		g.Expect(rule.Verbs).NotTo(ContainElements("impersonate"))
		g.Expect(rule.Verbs).NotTo(ContainElements("escalate"))
		for _, resource := range rule.Resources {
			switch resource {
			case "configmaps":
				g.Expect(rule.Verbs).To(HaveEach(BeElementOf("get", "list", "watch")))
			case "secrets": // written are those of plugins: what is generated, and what is secret of what was read
				g.Expect(rule.Verbs).NotTo(ContainElements("update", "deletecollection"))
			}
		}
	}
}
