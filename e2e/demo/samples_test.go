package main

import (
	"testing"

	. "github.com/onsi/gomega"
)

// TestSamples holds that the demo, which is what people run first, reads all of config/samples.
func TestSamples(t *testing.T) {
	g := NewWithT(t)
	s, err := readSamples("http://127.0.0.1/app")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.clusters).NotTo(BeEmpty())
	g.Expect(s.applications).NotTo(BeEmpty())
}
