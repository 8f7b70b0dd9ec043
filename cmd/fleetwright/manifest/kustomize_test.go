package manifest

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
)

// What kustomize would fetch is refused, and nothing is asked for it.
func TestKustomizeOffline(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer server.Close()
	for name, kustomization := range map[string]string{
		"file": "resources: [" + server.URL + "/fleet.yaml]\n",
		"git":  "resources: ['" + server.URL + "/org/repo.git?ref=v1']\n",
		"ssh":  "resources: ['git@127.0.0.1:org/repo?ref=v1']\n",
		"path": "patches: [{path: " + server.URL + "/patch.yaml}]\nresources: [cm.yaml]\n",
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dir := t.TempDir()
			g.Expect(os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600)).To(Succeed())
			g.Expect(os.WriteFile(filepath.Join(dir, "cm.yaml"), []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"), 0o600)).To(Succeed())
			path := os.Getenv("PATH")
			_, err := Source{Paths: []string{dir}}.Read()
			g.Expect(err).To(MatchError(ContainSubstring(ErrRemote.Error())))
			g.Expect(asked.Load()).To(BeZero())
			g.Expect(os.Getenv("PATH")).To(Equal(path))
		})
	}
}

// A pipe is not waited for.
func TestKustomizedPipe(t *testing.T) {
	g := NewWithT(t)
	t.Chdir(t.TempDir())
	g.Expect(os.WriteFile("kustomization.yaml", []byte("resources: [pipe.yaml]\n"), 0o600)).To(Succeed())
	g.Expect(syscall.Mkfifo("pipe.yaml", 0o600)).To(Succeed())
	_, err := Source{Paths: []string{"."}}.Read()
	g.Expect(err).To(MatchError(ContainSubstring("pipe.yaml: is not a regular file")))
}
