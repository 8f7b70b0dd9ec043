// Package publisher stores rendered files where Flux fetches them, as the artifact of an ExternalArtifact.
package publisher

import (
	"context"

	"github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/types"
)

// Publisher stores rendered files where Flux can fetch them. It is an interface so that an OCI registry can take the
// place of the file server. It is safe for concurrent use.
type Publisher interface {
	// Publish stores files, contents by slash-separated path, under the name of an object, and returns what the
	// object's ExternalArtifact is to say. The revision stands for the contents: the one that was published last
	// costs nothing and returns the same artifact. No files, a path that leads elsewhere, and files that hold a Secret
	// are errors, and leave what is published as it was.
	Publish(ctx context.Context, owner types.NamespacedName, revision string, files map[string][]byte) (*meta.Artifact, error)
	// Remove forgets everything of an object. It is not an error if there is nothing.
	Remove(owner types.NamespacedName) error
}
