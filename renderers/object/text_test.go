package object

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestNearest(t *testing.T) {
	g := NewWithT(t)
	known := []string{"drop-capabilities", "disallow-host-ports", "disallow-host-path", "disable-root-user"}
	for name, want := range map[string]string{"disable-rot-user": "disable-root-user", "disallow-host-port": "disallow-host-ports", "dropcapabilites": "drop-capabilities",
		"disable-root-user": "", "nosuch": "", "x": "", "": ""} {
		g.Expect(Nearest(name, known)).To(Equal(want), name)
	}
	g.Expect(Distance("kitten", "sitting")).To(Equal(3))
}

func TestOneLine(t *testing.T) {
	g := NewWithT(t)
	g.Expect(OneLine(" 必须 \x1b[31mred\n\tnext\u202e \x00")).To(Equal("必须 \uFFFD[31mred next\uFFFD \uFFFD"))
}
