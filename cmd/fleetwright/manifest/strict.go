package manifest

import (
	"encoding/json"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"
)

var strict = serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, serializer.SerializerOptions{Strict: true})

var unknownField = regexp.MustCompile(`^unknown field "(.*)"$`)

// Strict says what the API server would refuse to decode for kubectl apply, with file and line; nothing of kinds that
// Kubernetes does not come with.
func (d *Document) Strict() error {
	b, err := json.Marshal(d.Object)
	if err != nil {
		return d.Start.errorf("%w", err)
	}
	_, _, err = strict.Decode(b, nil, nil)
	if err == nil || runtime.IsNotRegisteredError(err) {
		return nil
	}
	var refusals []refusal
	if unknown, ok := runtime.AsStrictDecodingError(err); ok {
		for _, err := range unknown.Errors() {
			if m := unknownField.FindStringSubmatch(err.Error()); m != nil {
				refusals = append(refusals, refusal{m[1], "unknown field"})
			} else {
				refusals = append(refusals, refusal{"", err.Error()})
			}
		}
	} else {
		refusals = append(refusals, refusal{"", err.Error()})
	}
	u := unstructured.Unstructured{Object: d.Object}
	return d.refuse(strings.TrimSpace(u.GetKind()+" "+u.GetName()), refusals)
}

// Untyped says that a document is no object: what apiVersion and kind it has is not written.
func (d *Document) Untyped() error {
	u := unstructured.Unstructured{Object: d.Object}
	if u.GetKind() == "" || u.GetAPIVersion() == "" {
		return d.Start.errorf("apiVersion or kind is missing")
	}
	return nil
}

// Ours says whether a document is of one of our API groups.
func (d *Document) Ours() bool { return strings.HasSuffix(d.gvk().Group, groupSuffix) }
