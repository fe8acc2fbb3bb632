package e2e

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"lockstep/internal/proctest"
)

// plainHost is a name for 127.0.0.1 that the browser does not treat as local.
const plainHost = "lockstep.example"

// browser starts a headless Chromium for the test. It skips the test without Chromium, or fails it with
// LOCKSTEP_TEST_CHROMIUM=real.
func browser(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("LOCKSTEP_TEST_CHROMIUM") == "real" {
			t.Fatal("LOCKSTEP_TEST_CHROMIUM=real, but there is no chromium in PATH; install it (Debian: chromium)")
		}
		t.Skip("needs chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(time.Minute), // to start up
		chromedp.Flag("disable-gpu", true), chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("no-proxy-server", true), chromedp.Flag("lang", "en-GB"),
		chromedp.Flag("host-resolver-rules", "MAP "+plainHost+" 127.0.0.1"),
	)
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	return ctx
}

// tab is a browser tab with its own cookies. Requests to other hosts, violations of the content security policy, and console
// errors fail the test.
type tab struct {
	t    *testing.T
	ctx  context.Context
	base string

	mu       sync.Mutex
	expected []string // texts of expected errors
	wrong    []string
}

func openTab(t *testing.T, browser context.Context, base string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx, base: base}
	proctest.Must(0, chromedp.Listen(ctx, b.listen))(t)
	var stop context.CancelFunc
	b.ctx, stop = context.WithTimeout(ctx, 5*time.Minute)
	t.Cleanup(stop)
	b.do(call(network.Enable, network.EnableParams{}), call(log.Enable, cdp.Empty{}))
	b.size(1280, 900)
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, what := range b.wrong {
			t.Errorf("browser: %s", what)
		}
	})
	return b
}

func (b *tab) listen(event any) {
	what := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		what = "exception: " + e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			what += " " + e.ExceptionDetails.Exception.Description
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			what = fmt.Sprintf("console: %s", e.Args[0].Value)
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			what = string(e.Entry.Source) + ": " + e.Entry.Text + " " + e.Entry.URL
		}
	case *network.EventRequestWillBeSent:
		if u, err := url.Parse(e.Request.URL); err == nil && u.Scheme != "data" && u.Scheme != "about" && !strings.HasPrefix(e.Request.URL, b.base) {
			what = "a request to " + e.Request.URL
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if what != "" && !slices.ContainsFunc(b.expected, func(text string) bool { return strings.Contains(what, text) }) {
		b.wrong = append(b.wrong, what)
	}
}

// expect replaces the texts of expected errors.
func (b *tab) expect(texts ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected = texts
}

type action = chromedp.Action[chromedp.Void]

// call returns an action that ignores the result of the command.
func call[P, R any](command cdp.Command[P, R], params P) action {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, command, params)
		return err
	})
}

func (b *tab) do(actions ...action) {
	b.t.Helper()
	proctest.Must(0, chromedp.Do(b.ctx, actions...))(b.t)
}

// size sets the screen size; narrow screens are phones.
func (b *tab) size(width, height int64) {
	b.t.Helper()
	b.do(call(emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 600}))
}

// scheme sets the preferred color scheme, light or dark.
func (b *tab) scheme(name string) {
	b.t.Helper()
	b.do(call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}}))
}

// scripts enables or disables scripts.
func (b *tab) scripts(on bool) {
	b.t.Helper()
	b.do(call(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on}))
}

func (b *tab) open(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.base + path))
}

// live waits until the page receives live updates.
func (b *tab) live() {
	b.t.Helper()
	b.await(`document.getElementById("live")?.dataset.state === "on"`)
}

// value evaluates an expression, and awaits it if it is a promise.
func value[T any](b *tab, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%.200s: %v", expression, err)
	}
	return v
}

func (b *tab) text(expression string) string {
	b.t.Helper()
	return value[string](b, `String(`+expression+`)`)
}

// await waits until an expression is true, on this page or the next.
func (b *tab) await(expression string) {
	b.t.Helper()
	var last error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`Boolean(`+expression+`)`))
		if ok {
			return
		}
		last = err // the page may be loading
	}
	b.t.Fatalf("timed out waiting for %s: %v; text of the page: %s", expression, last, proctest.Tail(b.text(`document.body?.innerText`), 800))
}

// press sends a key press.
func (b *tab) press(key string) {
	b.t.Helper()
	b.do(chromedp.KeyEvent(key))
}

// tabTo presses Tab until an element that matches has the focus.
func (b *tab) tabTo(selector string) {
	b.t.Helper()
	for range 80 {
		b.press(kb.Tab)
		if b.text(fmt.Sprintf(`document.activeElement.matches(%q)`, selector)) == "true" {
			if b.text(`getComputedStyle(document.activeElement).outlineStyle`) == "none" {
				b.t.Errorf("%s has no visible focus", selector)
			}
			return
		}
	}
	b.t.Fatalf("%s is not reachable with Tab", selector)
}

// click clicks on a visible element.
func (b *tab) click(selector string) {
	b.t.Helper()
	b.do(chromedp.Click(chromedp.CSS(selector), chromedp.NodeVisible))
}

func (b *tab) logIn(token string) {
	b.t.Helper()
	b.do(chromedp.SetValue(chromedp.CSS("#token"), token))
	b.click("form[action='/dashboard/login'] button")
}

// fits checks that the page and its navigation fit the width of the screen.
func (b *tab) fits() {
	b.t.Helper()
	if hidden := b.text(`[...document.querySelectorAll("nav li a")].filter((a) => a.getBoundingClientRect().right > innerWidth).map((a) => a.textContent)`); hidden != "" {
		b.t.Errorf("%s: outside the screen: %s", b.text(`location.pathname`), hidden)
	}
	if wide := b.text(`document.documentElement.scrollWidth - document.documentElement.clientWidth`); wide != "0" {
		b.t.Errorf("%s is wider than the screen by %s", b.text(`location.pathname`), wide)
	}
}

var axeSource = sync.OnceValues(func() (string, error) {
	file, err := os.Open("../../internal/dashboard/testdata/axe.min.js.gz")
	if err != nil {
		return "", err
	}
	defer file.Close()
	unzip, err := gzip.NewReader(file)
	if err != nil {
		return "", err
	}
	source, err := io.ReadAll(unzip)
	return string(source), err
})

// accessible checks the page with axe.
func (b *tab) accessible(options string) {
	b.t.Helper()
	source := proctest.Must(axeSource())(b.t)
	value[int](b, source+"\n;0")
	found := value[string](b, `axe.run({resultTypes: ["violations"], ...`+options+`}).then((r) => JSON.stringify(r.violations.map((v) => ({id: v.id, help: v.help, nodes: v.nodes.map((n) => n.html.slice(0, 200) + " " + n.failureSummary.slice(0, 300))}))))`)
	var violations []struct {
		ID, Help string
		Nodes    []string
	}
	proctest.Must(0, json.Unmarshal([]byte(found), &violations))(b.t)
	for _, v := range violations {
		b.t.Errorf("%s: %s: %s: %s", b.text(`location.pathname`), v.ID, v.Help, strings.Join(v.Nodes[:min(3, len(v.Nodes))], "\n"))
	}
}

// typing types into a field.
func (b *tab) typing(selector, text string) {
	b.t.Helper()
	b.do(chromedp.SendKeys(chromedp.CSS(selector), text))
}

// pictures has the files of the screenshots in the documentation.
var pictures = map[string]string{
	"overview-light": "overview", "overview-dark": "overview-dark", "leases-light": "leases", "letter-light": "dead-letter", "overview-phone": "phone",
}

// screenshot saves a picture of the page in the directory LOCKSTEP_SCREENSHOTS, if set, and then also updates the
// documentation's.
func (b *tab) screenshot(name string) {
	b.t.Helper()
	var paths []string
	if shown, ok := pictures[name]; ok && os.Getenv("LOCKSTEP_SCREENSHOTS") != "" {
		paths = append(paths, "../../docs/screenshots/"+shown+".png")
	}
	if dir := os.Getenv("LOCKSTEP_SCREENSHOTS"); dir != "" {
		paths = append(paths, dir+"/"+name+".png")
	}
	for _, path := range paths {
		picture, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
		if err == nil {
			err = os.WriteFile(path, picture, 0o644)
		}
		if err != nil {
			b.t.Fatal(err)
		}
	}
}
