package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/tools/txtar"
)

const self = "https://git.example.org/platform/fleet"

// TestPullRequests holds what is said of pull requests that people open. GEN_GOLDEN=true writes the comments.
func TestPullRequests(t *testing.T) {
	pulls, err := filepath.Glob("testdata/pulls/*.txtar")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(len(pulls)).To(BeNumerically(">=", 20))
	for _, pull := range pulls {
		t.Run(strings.TrimSuffix(filepath.Base(pull), ".txtar"), func(t *testing.T) {
			g := NewWithT(t)
			to := filepath.Join(t.TempDir(), "to")
			g.Expect(os.CopyFS(to, os.DirFS("testdata/pulls/base"))).To(Succeed())
			changes, err := txtar.ParseFile(pull)
			g.Expect(err).NotTo(HaveOccurred())
			for _, f := range changes.Files {
				name := filepath.Join(to, f.Name)
				if len(f.Data) == 0 {
					g.Expect(os.Remove(name)).To(Succeed())
				} else {
					g.Expect(os.WriteFile(name, f.Data, 0o600)).To(Succeed())
				}
			}
			r := fleetwright("", "diff", "testdata/pulls/base", to, "--self", self, "-n", "fleet", "-o", "markdown")
			comment := strings.ReplaceAll(r.out, to, "to")
			if r.err != "" {
				comment += "\n" + strings.ReplaceAll(r.err, to, "to")
			}
			g.Expect(comment).NotTo(ContainSubstring("hunter2"), "no value of a Secret")
			golden := strings.TrimSuffix(pull, ".txtar") + ".md"
			if os.Getenv("GEN_GOLDEN") != "" {
				g.Expect(os.WriteFile(golden, []byte(comment), 0o600)).To(Succeed())
			}
			want, err := os.ReadFile(golden)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(comment).To(Equal(string(want)))
		})
	}
}
