package v1alpha1

import (
	"encoding/json"
	"testing"

	. "github.com/onsi/gomega"
)

func TestSecretRef(t *testing.T) {
	tests := []struct {
		name    string
		written string
		secret  string
	}{
		{"the name alone, as Kurator writes it", `"aws-credential"`, "aws-credential"},
		{"an object", `{"name":"vmware-credential"}`, "vmware-credential"},
		{"an object with more in it", `{"name":"vmware-credential","key":"vcenter"}`, "vmware-credential"},
		{"an object without a name", `{"secret":"vmware-credential"}`, ""},
		{"an object whose name is no text", `{"name":7}`, ""},
		{"an empty name", `""`, ""},
		{"a number", `7`, ""},
		{"a list", `["aws-credential"]`, ""},
		{"nothing", `null`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			in := `{"secretRef":` + tt.written + `}`

			var credential ClusterCredential
			g.Expect(json.Unmarshal([]byte(in), &credential)).To(Succeed())
			g.Expect(credential.SecretRef.Name()).To(Equal(tt.secret))

			out, err := json.Marshal(credential)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(out)).To(Equal(in))
		})
	}
}

func TestNewSecretRef(t *testing.T) {
	g := NewWithT(t)
	ref := NewSecretRef("aws-credential")
	g.Expect(ref.Name()).To(Equal("aws-credential"))
	out, err := json.Marshal(ref)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(out)).To(Equal(`{"name":"aws-credential"}`))
}
