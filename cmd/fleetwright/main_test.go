package main

import (
	"bytes"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

type outcome struct {
	code     int
	out, err string
}

// fleetwright runs the command line.
func fleetwright(stdin string, args ...string) outcome {
	return runAs("fleetwright", stdin, args...)
}

func runAs(program, stdin string, args ...string) outcome {
	var out, err bytes.Buffer
	code := run(append([]string{program}, args...), strings.NewReader(stdin), &out, &err)
	return outcome{code, out.String(), err.String()}
}

func TestUsage(t *testing.T) {
	g := NewWithT(t)
	g.Expect(fleetwright("", "version")).To(Equal(outcome{out: "dev\n"}))
	g.Expect(fleetwright("", "--help").out).To(ContainSubstring("fleetwright [command]"))
	g.Expect(fleetwright("", "completion", "bash").out).To(ContainSubstring("complete -o default -F __start_fleetwright fleetwright"))

	for _, args := range [][]string{{"nonsense"}, {"build", "--nonsense"}, {"build"}, {"build", ".", "-o", "text"}, {"build", ".", "-o", "json", "--output-dir", "x"},
		{"build", "nowhere"}, {"get", "nonsense"}, {"get", "nonsense", "a"}, {"get", "fleets", "a", "b"}, {"get", "fleets", "-o", "text"}, {"get", "fleets", "a", "-A"},
		{"verify"}, {"verify", "--plan", "nowhere"}, {"verify", "--plan", "-"}, {"verify", "plan.json"}, {"verify", "--plan", "-", "-o", "yaml"},
		{"build", ".", "--digest", "-o", "json"}} {
		r := fleetwright("", args...)
		g.Expect(r.code).To(Equal(exitUsage), "%v", args)
		g.Expect(r.err).To(HavePrefix("error: "), "%v", args)
		g.Expect(r.out).To(BeEmpty(), "%v", args)
	}
}

// The Flux command line runs flux-fleet as flux fleet.
func TestFluxPlugin(t *testing.T) {
	g := NewWithT(t)
	for _, program := range []string{"/opt/plugins/flux-fleet", "flux-fleet.exe"} {
		r := runAs(program, "", "build", "--help")
		g.Expect(r.out).To(ContainSubstring("flux fleet build PATH..."))
		g.Expect(r.out).To(ContainSubstring("  flux fleet build . --member edge-7"))
		g.Expect(r.out).NotTo(ContainSubstring("fleetwright build"))
	}
}
