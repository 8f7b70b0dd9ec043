// Package v1alpha1 is the policy.kurator.dev/v1alpha1 API.
//
// +kubebuilder:object:generate=true
// +groupName=policy.kurator.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the types in this package.
var GroupVersion = schema.GroupVersion{Group: "policy.kurator.dev", Version: "v1alpha1"}

// AddToScheme adds the types of this package to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &FleetSecurityPolicy{}, &FleetSecurityPolicyList{}, &ChangeBudget{}, &ChangeBudgetList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
