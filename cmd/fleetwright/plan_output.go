package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/pmezard/go-difflib/difflib"
	"golang.org/x/term"
	"sigs.k8s.io/yaml"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
	"github.com/fleetwright/fleetwright/renderers/plan"
)

func writePlanJSON(w io.Writer, p *plan.Plan, _ bool) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(p)
}

// colored says whether to write with color.
func (o *diffOptions) colored(w io.Writer) bool {
	if f, ok := w.(interface{ Fd() uintptr }); ok && o.color == "auto" {
		_, no := os.LookupEnv("NO_COLOR")
		return !no && term.IsTerminal(int(f.Fd()))
	}
	return o.color == "always"
}

// Marks of lines, which say their color.
const (
	markAdd    = '+'
	markRemove = '-'
	markChange = '~'
	markDanger = '!'
)

var colors = map[byte]string{markAdd: "\x1b[32m", markRemove: "\x1b[31m", markChange: "\x1b[33m", markDanger: "\x1b[1;31m"}

// writePlanText writes a plan for people at a terminal.
func writePlanText(w io.Writer, p *plan.Plan, color bool) error {
	out := &bytes.Buffer{}
	fmt.Fprintf(out, "%s → %s: %s\n", p.From.Name, p.To.Name, summary(p))
	for _, o := range p.OverBudget {
		fmt.Fprintf(out, "! %s\n", budgetText(&o))
	}
	for _, d := range p.Dangers {
		fmt.Fprintf(out, "! %s\n", dangerText(&d))
	}
	for _, problem := range p.Problems {
		fmt.Fprintf(out, "%s\n", problemText(&problem))
	}
	for i, c := range p.Changes {
		if i == 0 || c.Owner != p.Changes[i-1].Owner {
			fmt.Fprintf(out, "\n%s %s/%s\n", c.Owner.Kind, c.Owner.Namespace, c.Owner.Name)
		}
		fmt.Fprintf(out, "  %s\n", membersText(&c))
		for _, line := range changeLines(&c) {
			fmt.Fprintf(out, "  %s\n", line)
		}
	}
	if len(p.Unknown) > 0 {
		fmt.Fprintln(out)
	}
	for _, u := range p.Unknown {
		fmt.Fprintf(out, "not compared on members: %s (%d objects on the hub)\n", u.Message, u.Children)
	}
	for line := range strings.Lines(printable(out.String())) {
		mark := strings.TrimLeft(line, " ")
		if code := ""; color && mark != "" {
			if code = colors[mark[0]]; code != "" {
				line = code + strings.TrimSuffix(line, "\n") + "\x1b[0m\n"
			}
		}
		if _, err := io.WriteString(w, line); err != nil {
			return err
		}
	}
	return nil
}

// summary says in one line what happens: the members first.
func summary(p *plan.Plan) string {
	if len(p.Changes) == 0 {
		return fmt.Sprintf("nothing changes on %s", count(p.Members.Total, "member"))
	}
	held := 0
	for _, c := range p.Changes {
		if c.Action == plan.Hold {
			held++
		}
	}
	text := fmt.Sprintf("%d of %s change", p.Members.Changed, count(p.Members.Total, "member"))
	if n := len(p.Members.Joining); n > 0 {
		text += fmt.Sprintf(", %d of them new: %s", n, some(memberNames(p.Members.Joining)))
	}
	if n := len(p.Members.Leaving); n > 0 {
		text += fmt.Sprintf(", %d leaving: %s", n, some(memberNames(p.Members.Leaving)))
	}
	if held > 0 {
		text += fmt.Sprintf("; %s cannot be rendered, and what is there stays", count(held, "thing"))
	}
	return text
}

func memberNames(of []plan.Member) (names []string) {
	for _, m := range of {
		names = append(names, m.Name)
	}
	return names
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// some names a few, and counts the others.
func some(names []string) string {
	const most = 5
	if len(names) > most+1 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

func dangerText(d *plan.Danger) string {
	text := d.Message
	if d.Owner != nil {
		text = fmt.Sprintf("%s %s: %s", d.Owner.Kind, d.Owner.Name, text)
	}
	switch {
	case d.Kind == plan.MemberLeaves:
		return fmt.Sprintf("member %s %s", strings.Join(d.Members, ", "), text)
	case len(d.Members) > 0:
		return fmt.Sprintf("%s, on %s: %s", text, count(len(d.Members), "member"), some(d.Members))
	}
	return text
}

func budgetText(o *plan.OverBudget) string {
	text := fmt.Sprintf("%s %s/%s: ", o.Owner.Kind, o.Owner.Namespace, o.Owner.Name)
	if o.Application != o.Owner.Name || o.Owner.Kind != "Application" {
		text += "Application " + o.Application + ": "
	}
	text += "over budget: " + strings.Join(o.Over, "; ")
	if o.Allowed {
		return text + ": allowed by its annotation " + fleetv1.AllowChangeAnnotation
	}
	return text + fmt.Sprintf(": to allow just this, annotate the %s with %s: %s", o.Owner.Kind, fleetv1.AllowChangeAnnotation, o.Allow)
}

func problemText(p *plan.Problem) string {
	severity := "error"
	if p.Warning {
		severity = "warning"
	}
	if !p.New {
		severity += ", as before"
	}
	text := fmt.Sprintf("%s: %s %s: ", severity, p.Owner.Kind, p.Owner.Name)
	if p.Policy != "" {
		text += "policy " + p.Policy + ": "
	}
	if len(p.Members) > 0 {
		text += some(p.Members) + ": "
	}
	return text + p.Message
}

func membersText(c *plan.Change) string {
	switch n := len(c.Members); {
	case n == 0 && c.Name != "":
		return "on the hub:"
	case n == 1:
		return "member " + c.Members[0] + ":"
	default:
		return fmt.Sprintf("%d members, the same change: %s:", n, some(c.Members))
	}
}

var verbs = map[plan.Action]string{plan.Create: "+", plan.Delete: "-", plan.Orphan: "-", plan.Update: "~", plan.Recreate: "!", plan.Hold: "="}

// changeLines says what a change is, a mark at the start of each line that has one.
func changeLines(c *plan.Change) (lines []string) {
	what := c.Kind
	if c.Name != "" {
		what += " " + c.Name
	}
	if c.Application != c.Owner.Name || c.Owner.Kind != "Application" {
		what += ", Application " + c.Application
	}
	if c.Policy != "" {
		what += ", policy " + c.Policy
	}
	switch c.Action {
	case plan.Orphan:
		what += ": ends"
		if c.Reason != "" {
			what += "; " + c.Reason
		} else {
			what += "; what it has put on the member stays there"
		}
	case plan.Delete:
		what += ": ends"
	case plan.Hold:
		what += ": stays as it is: " + c.Reason
	}
	lines = append(lines, verbs[c.Action]+" "+what)
	for _, f := range c.Fields {
		lines = append(lines, fieldLines(&f, "    ")...)
	}
	for _, o := range c.Objects {
		text := o.String()
		switch {
		case o.MovedFrom != "":
			text += ", from " + o.MovedFrom
		case o.Action == plan.Orphan:
			text += ": stays, without anybody's care"
		case len(o.Immutable) > 0:
			text += ": " + strings.Join(o.Immutable, ", ") + " cannot be changed"
		}
		lines = append(lines, "    "+verbs[o.Action]+" on the member: "+text)
		for _, f := range o.Fields {
			lines = append(lines, fieldLines(&f, "        ")...)
		}
	}
	if c.Unknown != "" {
		lines = append(lines, "    ? on the member: not known: "+c.Unknown)
	}
	return lines
}

// maxFieldLines bounds what is said of one field.
const maxFieldLines = 40

func fieldLines(f *plan.Field, indent string) (lines []string) {
	if f.Hidden && f.From == nil && f.To == nil {
		return []string{indent + "~ " + f.Path + ": changes (the values are not shown)"}
	}
	from, to := valueText(f.From), valueText(f.To)
	if !strings.Contains(from+to, "\n") && len(from)+len(to) < 120 {
		switch {
		case f.From == nil:
			return []string{fmt.Sprintf("%s+ %s: %s", indent, f.Path, to)}
		case f.To == nil:
			return []string{fmt.Sprintf("%s- %s: %s", indent, f.Path, from)}
		}
		return []string{fmt.Sprintf("%s~ %s: %s → %s", indent, f.Path, from, to)}
	}
	mark := "~"
	switch {
	case f.From == nil:
		mark = "+"
	case f.To == nil:
		mark = "-"
	}
	lines = append(lines, indent+mark+" "+f.Path+":")
	var a, b []string
	if f.From != nil {
		a = strings.Split(strings.TrimSuffix(from, "\n"), "\n")
	}
	if f.To != nil {
		b = strings.Split(strings.TrimSuffix(to, "\n"), "\n")
	}
	matcher := difflib.NewMatcher(a, b)
	for _, group := range matcher.GetGroupedOpCodes(2) {
		for _, op := range group {
			if op.Tag == 'e' {
				for _, line := range a[op.I1:op.I2] {
					lines = append(lines, indent+"    "+line)
				}
				continue
			}
			for _, line := range a[op.I1:op.I2] {
				lines = append(lines, indent+"  - "+line)
			}
			for _, line := range b[op.J1:op.J2] {
				lines = append(lines, indent+"  + "+line)
			}
		}
	}
	if len(lines) > maxFieldLines {
		lines = append(lines[:maxFieldLines], fmt.Sprintf("%s    … and %d more lines", indent, len(lines)-maxFieldLines))
	}
	return lines
}

func valueText(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		if v == "" || strings.TrimSpace(v) != v && !strings.Contains(v, "\n") {
			return fmt.Sprintf("%q", v)
		}
		return v
	case map[string]any, []any:
		b, err := yaml.Marshal(v)
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// maxComment is the most bytes of a comment: GitHub and GitLab take more characters than this.
const maxComment = 64<<10 - 1024

// writePlanMarkdown writes a plan as a comment of a pull request: the worst first, and what does not fit is counted.
func writePlanMarkdown(w io.Writer, p *plan.Plan, _ bool) error {
	out := &bytes.Buffer{}
	fmt.Fprintf(out, "<!-- fleetwright diff -->\n### %s\n\n`%s` → `%s`\n", markdownText(summary(p)), code(p.From.Name), code(p.To.Name))
	left := 0
	add := func(text string, most int) bool {
		if out.Len()+len(text) > most {
			left++
			return false
		}
		out.WriteString(text)
		return true
	}
	list := func(title string, items []string, most int) {
		left = 0
		for i, item := range items {
			if i == 0 {
				fmt.Fprintf(out, "\n**%s**\n\n", title)
			}
			add("- "+item+"\n", most)
		}
		if left > 0 {
			fmt.Fprintf(out, "- … and %d more\n", left)
		}
	}
	var budgets, dangers, problems []string
	for _, o := range p.OverBudget {
		budgets = append(budgets, "⛔ "+markdownText(budgetText(&o)))
	}
	for _, d := range p.Dangers {
		dangers = append(dangers, "⚠️ "+markdownText(dangerText(&d)))
	}
	for _, problem := range p.Problems {
		problems = append(problems, markdownText(problemText(&problem)))
	}
	list("Over budget", budgets, maxComment/6)
	list("To look at first", dangers, maxComment/3)
	list("Problems", problems, maxComment/2)
	left = 0
	changes := slices.Clone(p.Changes)
	slices.SortStableFunc(changes, func(a, b plan.Change) int { return rank(&b) - rank(&a) })
	for _, c := range changes {
		lines := strings.Join(changeLines(&c), "\n")
		fence := strings.Repeat("`", max(3, longestRun(lines, '`')+1))
		text := fmt.Sprintf("\n<details><summary>%s %s: %s</summary>\n\n%sdiff\n%s\n%s\n\n</details>\n", c.Owner.Kind, htmlText(c.Owner.Name),
			htmlText(strings.TrimSuffix(membersText(&c), ":")), fence, diffMarks(lines), fence)
		if !add(text, maxComment-2048) {
			short := fmt.Sprintf("\n- %s %s: %s: too long to be shown here\n", c.Owner.Kind, markdownText(c.Owner.Name), markdownText(strings.TrimSuffix(membersText(&c), ":")))
			if out.Len()+len(short) < maxComment-2048 {
				out.WriteString(short)
				left--
			}
		}
	}
	if left > 0 {
		fmt.Fprintf(out, "\n… and %s more, which do not fit here: run `fleetwright diff`, or look into its HTML page.\n", count(left, "change"))
	}
	var unknown []string
	for _, u := range p.Unknown {
		unknown = append(unknown, markdownText(fmt.Sprintf("%s (%d objects on the hub)", u.Message, u.Children)))
	}
	list("Not compared on members", unknown, maxComment)
	_, err := io.WriteString(w, printable(out.String()))
	return err
}

// rank puts the worst of changes first.
func rank(c *plan.Change) int {
	switch c.Action {
	case plan.Delete:
		return 3
	case plan.Orphan:
		return 2
	}
	if slices.ContainsFunc(c.Objects, func(o plan.ObjectChange) bool { return o.Action == plan.Delete || o.Action == plan.Recreate }) {
		return 1
	}
	return 0
}

// diffMarks writes lines so that a viewer of diffs colors them: the mark comes first.
func diffMarks(text string) string {
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		trimmed := strings.TrimLeft(line, " ")
		if trimmed != "" && strings.IndexByte("+-~!", trimmed[0]) >= 0 {
			mark := trimmed[:1]
			if mark == "~" {
				mark = "!"
			}
			line = mark + strings.Repeat(" ", len(line)-len(trimmed)) + trimmed[1:]
		} else {
			line = " " + line
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

func longestRun(text string, of byte) (longest int) {
	run := 0
	for i := range len(text) {
		if run++; text[i] != of {
			run = 0
		}
		longest = max(longest, run)
	}
	return longest
}

var (
	markdownEscapes = strings.NewReplacer("\\", "\\\\", "`", "\\`", "*", "\\*", "_", "\\_", "[", "\\[", "]", "\\]", "<", "&lt;", ">", "&gt;", "&", "&amp;", "#", "\\#", "|", "\\|", "@", "@\u200b", "\n", " ")
	htmlEscapes     = strings.NewReplacer("<", "&lt;", ">", "&gt;", "&", "&amp;", "\n", " ", "@", "@\u200b")
)

func markdownText(s string) string { return markdownEscapes.Replace(s) }
func htmlText(s string) string     { return htmlEscapes.Replace(s) }
func code(s string) string         { return strings.ReplaceAll(s, "`", "'") }

// printable replaces what would change how a terminal or a page looks.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\u200b' && !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, s)
}
