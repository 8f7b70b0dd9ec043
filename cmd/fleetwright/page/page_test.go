package page

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fleetwright/fleetwright/renderers/plan"
)

func written(t *testing.T, p *plan.Plan) string {
	out := &bytes.Buffer{}
	NewWithT(t).Expect(Write(out, p)).To(Succeed())
	return out.String()
}

func TestNoNetwork(t *testing.T) {
	g := NewWithT(t)
	html := written(t, &plan.Plan{Schema: plan.Schema})
	for _, reference := range []string{`//\w+\.`, `(?i)\bsrc\s*=`, `(?i)url\(`, `@import`, `(?i)<(link|img|iframe|object|embed|base)\b`, `\b(fetch|XMLHttpRequest|WebSocket|EventSource|sendBeacon|import)\(`, `innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(`} {
		g.Expect(regexp.MustCompile(reference).FindString(html)).To(BeEmpty(), reference)
	}
	g.Expect(regexp.MustCompile(`href="[^"]*"`).FindAllString(html, -1)).To(Equal([]string{`href="#grid"`}))
	g.Expect(html).To(ContainSubstring(`content="default-src 'none'; style-src 'sha256-`))

	// The browser runs what it is told the digest of.
	for element, directive := range map[string]string{"style": "style-src", "script": "script-src"} {
		text := regexp.MustCompile(`(?s)<` + element + `>(.*?)</` + element + `>`).FindStringSubmatch(html)
		g.Expect(text).To(HaveLen(2), element)
		g.Expect(html).To(ContainSubstring(directive + " " + hash(text[1])))
	}
}

func TestHostile(t *testing.T) {
	g := NewWithT(t)
	for _, evil := range []string{`</script><script>alert(1)</script>`, `<img src=x onerror=alert(1)>`, `<!--<script>`, `"><b>`, `{{script}}{{plan}}`, "\u2028</SCRIPT >", `</title><b>`, `</style>`} {
		owner := plan.Ref{Namespace: evil, Kind: evil, Name: evil}
		p := &plan.Plan{
			Schema: plan.Schema, From: plan.State{Name: evil, Digest: evil}, To: plan.State{Name: evil},
			Members: plan.Members{Leaving: []plan.Member{{Name: evil}}},
			Dangers: []plan.Danger{{Kind: plan.Deletes, Owner: &owner, Message: evil}},
			Changes: []plan.Change{{Owner: owner, Application: evil, Action: plan.Update, Kind: evil, Members: []string{evil},
				Objects: []plan.ObjectChange{{Kind: evil, Name: evil, Fields: []plan.Field{{Path: evil, From: evil, To: map[string]any{evil: evil}}}}}}},
		}
		html := written(t, p)
		body := strings.ToLower(html)
		g.Expect(strings.Count(body, "<script")).To(Equal(2), evil)
		g.Expect(strings.Count(body, "</script")).To(Equal(2), evil)
		for _, tag := range []string{"<!--", "<img", "<b>", "</title><", "alert(1)</"} {
			g.Expect(body).NotTo(ContainSubstring(tag), evil)
		}
		g.Expect(strings.Count(html, script)).To(Equal(1), evil)

		data := regexp.MustCompile(`(?s)id="plan">(.*?)</script>`).FindStringSubmatch(html)[1]
		var back plan.Plan
		g.Expect(json.Unmarshal([]byte(data), &back)).To(Succeed())
		g.Expect(back.Changes[0].Objects[0].Fields[0].From).To(Equal(evil), "nothing is lost")
	}
}

func TestSameBytes(t *testing.T) {
	p := &plan.Plan{Schema: plan.Schema, Changes: []plan.Change{{Fields: []plan.Field{{Path: "a", To: map[string]any{"b": 1, "c": 2, "d": []any{"e"}}}}}}}
	NewWithT(t).Expect(written(t, p)).To(Equal(written(t, p)))
}
