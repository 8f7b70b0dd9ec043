// Package browser opens the page that fleetwright diff writes in a real browser.
package browser

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	. "github.com/onsi/gomega"

	"github.com/fleetwright/fleetwright/cmd/fleetwright/page"
	"github.com/fleetwright/fleetwright/renderers/plan"
)

var pictures = flag.String("pictures", "", "folder to write pictures of the page into")

// chromium finds a browser.
func chromium(t *testing.T) string {
	for _, name := range []string{os.Getenv("CHROMIUM"), "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return path
		}
	}
	const hint = "no browser: run make chromium, which installs Debian's package if you are root, or set CHROMIUM to a Chromium or Chrome"
	if os.Getenv("CI") != "" {
		t.Fatal(hint)
	}
	fmt.Println(hint)
	t.Skip(hint)
	return ""
}

// tab is a page that is open in a browser of its own.
type tab struct {
	*WithT
	t   *testing.T
	ctx context.Context

	mutex sync.Mutex
	// noise is what the page has said to the console, and what it asked the network for.
	noise []string
}

func (b *tab) note(format string, args ...any) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.noise = append(b.noise, fmt.Sprintf(format, args...))
}

// open opens the page of a plan from disk. Whatever the test does, the page has to be quiet.
func open(t *testing.T, p *plan.Plan, width, height int64) *tab {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium(t)), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.WindowSize(int(width), int(height)))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)

	b := &tab{WithT: NewWithT(t), t: t, ctx: ctx}
	file := filepath.Join(t.TempDir(), "plan.html")
	f, err := os.Create(file)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(page.Write(f, p)).To(Succeed())
	b.Expect(f.Close()).To(Succeed())

	b.Expect(chromedp.Listen(ctx, func(ev any) {
		switch ev := ev.(type) {
		case *runtime.EventExceptionThrown:
			b.note("exception: %s", ev.ExceptionDetails.Text)
		case *runtime.EventConsoleAPICalled:
			b.note("console: %s", ev.Type)
		case *log.EventEntryAdded:
			b.note("log: %s", ev.Entry.Text)
		case *network.EventRequestWillBeSent:
			if ev.Request.URL != "file://"+file {
				b.note("request: %s", ev.Request.URL)
			}
		}
	})).To(Succeed())
	_, err = chromedp.Call(ctx, network.Enable, network.EnableParams{})
	b.Expect(err).NotTo(HaveOccurred())
	b.do(chromedp.EmulateViewport(width, height), chromedp.Navigate("file://"+file))
	t.Cleanup(func() {
		b.mutex.Lock()
		defer b.mutex.Unlock()
		NewWithT(t).Expect(b.noise).To(BeEmpty(), "the page is quiet, and asks the network for nothing")
	})
	return b
}

func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	b.Expect(chromedp.Do(b.ctx, actions...)).To(Succeed())
}

func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	b.Expect(err).NotTo(HaveOccurred())
	return v
}

func (b *tab) press(keys ...string) {
	b.t.Helper()
	for _, key := range keys {
		for _, event := range kb.Encode([]rune(key)[0]) {
			// A keyboard's text comes with the key, so that who handles the key keeps the text from being typed.
			switch event.Type {
			case input.DispatchKeyEventTypeChar:
				continue
			case input.DispatchKeyEventTypeKeyUp:
			default:
				if event.Type = input.DispatchKeyEventTypeKeyDown; key == kb.Enter {
					event.Text = "\r"
				} else if key >= " " && key <= "~" {
					event.Text = key
				}
			}
			_, err := chromedp.Call(b.ctx, input.DispatchKeyEvent, *event)
			b.Expect(err).NotTo(HaveOccurred())
		}
	}
}

// filter types into the filter, in place of what is there.
func (b *tab) filter(text string) {
	b.t.Helper()
	eval[string](b, `document.activeElement.blur(); ''`)
	b.press("/")
	b.press(strings.Split(text, "")...)
}

// focus says what has the focus, as a screen reader does.
func (b *tab) focus() string {
	b.t.Helper()
	return eval[string](b, `(e => e.getAttribute('aria-label') || (e.labels && e.labels.length ? e.labels[0].textContent : e.textContent))(document.activeElement)`)
}

func (b *tab) text(selector string) string {
	b.t.Helper()
	return eval[string](b, fmt.Sprintf(`(e => e && !e.hidden ? e.innerText : '')(document.querySelector(%q))`, selector))
}

// shown counts the members and columns that the grid shows.
func (b *tab) shown() (count []int) {
	b.t.Helper()
	return eval[[]int](b, `[document.querySelectorAll('[role=rowheader]').length, document.querySelectorAll('[role=columnheader].column').length]`)
}

func (b *tab) scheme(name string) {
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}})
	b.Expect(err).NotTo(HaveOccurred())
}

func TestFilter(t *testing.T) {
	b := open(t, example(), 1400, 900)
	b.Expect(b.text("h1")).To(Equal("20 of 20 members change, 1 joining, 1 leaving"))
	b.Expect(b.text(".dangers li")).To(MatchRegexp(`^MemberLeaves\s+member zurich leaves`), "the worst comes first")
	b.Expect(b.shown()).To(Equal([]int{21, 6}), "the members and the hub")

	for text, want := range map[string][]int{
		"frankfurt": {1, 6}, "ledger": {4, 1}, "orphan": {2, 1}, "persistentvolumeclaim": {4, 1}, "FleetSecurityPolicy stockholm": {1, 1}, "no such thing": {0, 0},
	} {
		b.filter(text)
		b.Eventually(b.shown).Should(Equal(want), text)
	}
	b.Expect(b.text("#count")).NotTo(BeEmpty())
	b.filter("checkout")
	b.Eventually(b.shown).Should(Equal([]int{20, 1}))
	b.do(chromedp.Click(chromedp.ID("dangerous")))
	b.Eventually(b.shown).Should(Equal([]int{4, 1}), "three with a Deployment that is made anew, and the one that leaves")
	b.do(chromedp.Click(chromedp.ID("dangerous")), chromedp.Click(chromedp.ID("changed")))
	b.filter("portland")
	b.Eventually(b.shown).Should(Equal([]int{1, 3}))

	// The address keeps it.
	b.do(chromedp.Click(chromedp.CSS(`[role=gridcell][aria-label*=base]`)))
	b.Expect(b.text("#details")).To(ContainSubstring("spec.hard.pods"))
	b.do(chromedp.Reload())
	b.Expect(b.shown()).To(Equal([]int{1, 3}))
	b.Expect(b.text("#details h2")).To(Equal("portland · ClusterConfig base"))
	b.Expect(eval[string](b, `document.getElementById('filter').value`)).To(Equal("portland"))
	eval[string](b, `location.hash = 'member=fleet/zurich'`)
	b.Eventually(b.shown).Should(Equal([]int{21, 6}))
	b.Expect(b.text("#details")).To(ContainSubstring("Leaves. It loses Application ingress"))
}

func TestKeyboard(t *testing.T) {
	b := open(t, example(), 1400, 900)
	b.press(kb.Tab)
	b.Expect(b.focus()).To(Equal("Skip to the grid"))
	b.press(kb.Enter)
	b.Expect(b.focus()).To(Equal("Member"))
	b.press(kb.ArrowDown, kb.ArrowDown, kb.ArrowRight)
	b.Expect(b.focus()).To(HavePrefix("zurich, Application checkout: left on the member"))
	b.press(kb.End)
	b.Expect(b.focus()).To(HavePrefix("zurich, FleetSecurityPolicy pods: deleted"))
	b.press(kb.Home, kb.ArrowUp, kb.ArrowUp, kb.ArrowUp)
	b.Expect(b.focus()).To(Equal("Member"), "there is nothing above")
	b.press(kb.PageDown)
	b.Expect(eval[int](b, `document.querySelectorAll('#grid [tabindex="0"]').length`)).To(Equal(1), "one stop for Tab")

	// Into the details and back.
	b.filter("ledger")
	b.Expect(b.focus()).To(HavePrefix("Filter"))
	b.Eventually(b.shown).Should(Equal([]int{4, 1}))
	for range 20 {
		if strings.Contains(eval[string](b, `document.activeElement.getAttribute('role') || ''`), "header") {
			break
		}
		b.press(kb.Tab)
	}
	b.press(kb.Home, kb.ArrowUp, kb.ArrowUp, kb.ArrowUp, kb.ArrowUp, kb.ArrowDown, kb.ArrowRight)
	b.Expect(b.focus()).To(Equal("frankfurt, Application ledger: updated, 2 objects, dangerous"))
	b.press(kb.Enter)
	b.Expect(b.focus()).To(Equal("frankfurt · Application ledger"), "the details are read first")
	b.Expect(b.text("#details")).To(And(ContainSubstring("PersistentVolumeClaim ledger/archive"), ContainSubstring("the values are not shown")))
	b.press(kb.Tab)
	b.Expect(b.focus()).To(Equal("Close the details"))
	b.press(kb.Escape)
	b.Expect(b.text("#details")).To(BeEmpty())
	b.Expect(b.focus()).To(HavePrefix("frankfurt, Application ledger"))
	b.press(kb.ArrowUp, kb.Enter)
	b.Expect(b.focus()).To(Equal("Application ledger"), "a column")
	b.press(kb.Escape, kb.ArrowDown, kb.ArrowLeft, " ")
	b.Expect(b.focus()).To(Equal("frankfurt"), "a member")
	b.press("/", kb.Escape)
	b.Eventually(b.shown).Should(Equal([]int{21, 6}))
}

// TestNames holds that a screen reader has something to say of all that can be used.
func TestNames(t *testing.T) {
	b := open(t, example(), 1400, 900)
	b.do(chromedp.Click(chromedp.CSS(`[role=columnheader].column`)))
	b.Eventually(func(g Gomega) { // the browser makes the tree when it has time
		tree, err := chromedp.Call(b.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
		g.Expect(err).NotTo(HaveOccurred())
		roles := map[string]int{}
		for _, node := range tree.Nodes {
			if node.Ignored || node.Role == nil {
				continue
			}
			role := axText(node.Role)
			switch role {
			case "button", "checkbox", "searchbox", "textbox", "link", "grid", "gridcell", "columnheader", "rowheader", "DisclosureTriangle", "region", "image":
				roles[role]++
				g.Expect(axText(node.Name)).NotTo(BeEmpty(), "a %s has a name", role)
			}
		}
		for _, role := range []string{"button", "checkbox", "searchbox", "link", "grid", "columnheader", "region"} {
			g.Expect(roles).To(HaveKey(role))
		}
		g.Expect(roles).To(And(HaveKeyWithValue("gridcell", 21*6), HaveKeyWithValue("rowheader", 21)), "those out of sight, too")
	}).Should(Succeed())
}

func axText(v *accessibility.Value) (text string) {
	if v != nil {
		_ = json.Unmarshal(v.Value, &text)
	}
	return text
}

// contrast returns the texts of the page that WCAG 2 (AA) finds too weak, by what they and what is behind them is painted with.
const contrast = `(() => {
	const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
	const rgba = color => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
	const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
	const behind = e => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255, 255]; };
	const weak = new Set();
	for (const e of document.body.querySelectorAll('*')) {
		if (!e.checkVisibility() || e.closest('.dim, .skip, script') || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
		const [a, b] = [light(rgba(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
		const ratio = (a + .05) / (b + .05);
		if (ratio < 4.5) weak.add(e.className + ' ' + e.textContent.slice(0, 30) + ': ' + ratio.toFixed(2));
	}
	return [...weak];
})()`

func TestThemes(t *testing.T) {
	b := open(t, example(), 1400, 900)
	background := map[string]string{}
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		background[scheme] = eval[string](b, `getComputedStyle(document.body).backgroundColor`)
		for i := range 6 {
			b.do(chromedp.Click(chromedp.CSS(fmt.Sprintf(`[role=columnheader].column:nth-child(%d)`, i+2))))
			b.Expect(eval[[]string](b, contrast)).To(BeEmpty(), scheme)
		}
	}
	b.Expect(background["light"]).NotTo(Equal(background["dark"]))
}

// TestNarrow holds that nothing sticks out of a small window, whatever the names are.
func TestNarrow(t *testing.T) {
	p := example()
	long := strings.Repeat("a-very-long-name", 15)
	p.From.Name, p.To.Name = long, long
	p.Dangers[1].Message += " " + long
	p.Changes[0].Members = append(p.Changes[0].Members, long)
	p.Changes[0].Objects[0].Fields = append(p.Changes[0].Objects[0].Fields, plan.Field{Path: "spec." + long, From: long, To: long + "\n" + long})
	p.Owners[0].Name = long
	b := open(t, p, 360, 740)
	fits := func() {
		t.Helper()
		b.Expect(eval[int](b, `document.documentElement.scrollWidth`)).To(BeNumerically("<=", 360))
		b.Expect(eval[bool](b, `(d => d.scrollWidth <= d.clientWidth)(document.getElementById('details'))`)).To(BeTrue())
	}
	fits()
	b.do(chromedp.Click(chromedp.CSS(`[role=columnheader][title$=" checkout"]`)))
	b.Expect(b.text("#details")).To(ContainSubstring("image"))
	fits()
}

func TestNothingChanges(t *testing.T) {
	p := example()
	p.Changes, p.Dangers, p.Problems, p.Unknown, p.Members = nil, nil, nil, nil, plan.Members{Total: 19}
	b := open(t, p, 1400, 900)
	b.Expect(b.text("h1")).To(Equal("Nothing changes on 19 members"))
	b.Expect(b.shown()).To(Equal([]int{19, 6}))
	b.do(chromedp.Click(chromedp.CSS(`[role=gridcell]`)))
	b.Expect(b.text("#details")).To(ContainSubstring("Nothing changes here."))

	b = open(t, &plan.Plan{Schema: plan.Schema}, 1400, 900)
	b.Expect(b.text("h1")).To(Equal("Nothing changes on 0 members"))
	b.Expect(b.text("#count")).To(Equal("There is nothing that members have."))
}

// TestHostile holds that what people write into names and values is text.
func TestHostile(t *testing.T) {
	const evil = `</script><script>document.title = 'evil'</script><img src="x" onerror="document.title = 'evil'"><!--<script>{{script}}`
	p := example()
	p.To.Name, p.Dangers[0].Message = evil, evil
	p.Changes[0].Objects[0].Fields[0].To = evil
	p.Changes[0].Objects[0].Name = evil
	p.Changes[0].Policy = evil
	p.Owners[0].Name = evil
	b := open(t, p, 1400, 900)
	b.do(chromedp.Click(chromedp.CSS(`[role=columnheader].column:nth-child(3)`)))
	b.Expect(b.text("#details")).To(ContainSubstring(evil))
	b.Expect(eval[string](b, `document.title`)).To(Equal("origin/main → " + evil + " · fleetwright diff"))
	b.Expect(eval[int](b, `document.querySelectorAll('img').length + document.querySelectorAll('script').length`)).To(Equal(2), "the plan and ours")
}

// slow is for how long tasks of the page have blocked the main thread beyond 50 ms, and how long the longest was, in ms.
const slow = `new Promise(done => {
	let blocked = 0, longest = 0;
	new PerformanceObserver(list => list.getEntries().forEach(e => { blocked += e.duration - 50; longest = Math.max(longest, e.duration); })).observe({type: 'longtask', buffered: true});
	setTimeout(() => done([blocked, longest].map(Math.round)), 500);
})`

func TestLarge(t *testing.T) {
	b := open(t, large(), 1400, 900)
	b.Expect(b.shown()).To(Equal([]int{500, 20}))
	measured := eval[[]int](b, slow)
	t.Logf("opening: %d ms blocked, the longest task %d ms", measured[0], measured[1])
	b.Expect(measured[0]).To(BeNumerically("<", 2000), "ms that opening blocks")

	b.filter("member-4")
	b.Eventually(b.shown).Should(Equal([]int{100, 20}))
	b.do(chromedp.Click(chromedp.ID("changed")))
	b.filter("application")
	b.Eventually(b.shown).Should(Equal([]int{500, 20}))
	after := eval[[]int](b, slow)
	t.Logf("filtering: %d ms blocked", after[0]-measured[0])
	b.Expect(after[0]-measured[0]).To(BeNumerically("<", 2000), "ms that filtering blocks")

	// Through the grid.
	eval[string](b, `document.querySelector('#grid [tabindex="0"]').focus(); ''`)
	eval[string](b, `window.latest = []; new PerformanceObserver(list => latest.push(...list.getEntries().filter(e => e.name === 'keydown').map(e => e.duration))).observe({type: 'event', durationThreshold: 16}); ''`)
	for range 30 {
		b.press(kb.ArrowDown)
	}
	b.press(kb.PageDown, kb.End, kb.Enter, kb.Escape, kb.Home)
	b.Expect(b.focus()).To(HavePrefix("member-"))
	keys := eval[[]float64](b, `new Promise(done => setTimeout(() => done(latest), 300))`)
	t.Logf("keys in the grid that took more than a frame, in ms: %v", keys)
	slices.Sort(keys)
	if len(keys) > 0 {
		b.Expect(keys[len(keys)/2]).To(BeNumerically("<", 100), "ms until a key is seen")
		b.Expect(keys[len(keys)-1]).To(BeNumerically("<", 1000), "ms until a key is seen, at the worst")
	}
	b.do(chromedp.Click(chromedp.CSS(`[role=columnheader].column`)))
	b.Expect(b.text("#details h2")).To(ContainSubstring("application-01"))
}

func (b *tab) picture(name string) {
	b.do(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, 1, 1)) // so that it points at nothing
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(os.WriteFile(filepath.Join(*pictures, name), png, 0o600)).To(Succeed())
	b.Expect(len(png)).To(BeNumerically("<", 200<<10))
}

// TestPictures writes the pictures of the docs.
func TestPictures(t *testing.T) {
	if *pictures == "" {
		t.Skip("-pictures names no folder")
	}
	b := open(t, example(), 1280, 880)
	b.do(chromedp.Click(chromedp.CSS(`[aria-label^="amsterdam, Application ingress"]`)))
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		b.picture("plan-" + scheme + ".png")
	}
}
