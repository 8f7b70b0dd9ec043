package v1alpha1

import (
	"bytes"
	"encoding/json"
)

// SecretRef names a Secret in the same namespace. It may be written as the name alone, as Kurator does, or as an object
// with the field name; it is read and written back exactly as it was. Anything else is kept as well and has no name:
// refusing it here would keep every other object of the same list from being read.
type SecretRef struct {
	// Raw is the reference as it was written, in JSON.
	Raw []byte `json:"-"`
}

// NewSecretRef makes a reference to the Secret of a name, in the form {name: ...}.
func NewSecretRef(name string) SecretRef {
	raw, err := json.Marshal(map[string]string{"name": name})
	if err != nil { // a map of strings always has a JSON form
		panic(err)
	}
	return SecretRef{Raw: raw}
}

// Name of the Secret; empty where the reference has neither form.
func (r SecretRef) Name() string {
	var name string
	if json.Unmarshal(r.Raw, &name) == nil {
		return name
	}
	var object struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(r.Raw, &object) == nil {
		return object.Name
	}
	return ""
}

// UnmarshalJSON keeps the reference as it is written.
func (r *SecretRef) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		r.Raw = nil
		return nil
	}
	r.Raw = bytes.Clone(data)
	return nil
}

// MarshalJSON writes the reference as it was written.
func (r SecretRef) MarshalJSON() ([]byte, error) {
	if len(r.Raw) == 0 {
		return []byte("null"), nil
	}
	return r.Raw, nil
}
