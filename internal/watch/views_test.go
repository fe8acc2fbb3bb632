package watch_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/ext/views"
	"lockstep/internal/redistest"
	"lockstep/internal/view"
	"lockstep/internal/watch"
)

func viewSet(t *testing.T, paths map[string][]string) *view.Set {
	t.Helper()
	set, err := view.New(paths)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// withViews returns a watch with n views.
func withViews(t *testing.T, app string, n int) watch.Watch {
	t.Helper()
	paths := map[string][]string{}
	for i := range n {
		paths[fmt.Sprint("svc", i)] = []string{fmt.Sprintf("services/svc%d", i), "lib/*"}
	}
	w := of(t, app, "acme/widgets", "")
	w.Options = watch.With(views.Options{Views: viewSet(t, paths)})
	return w
}

func TestViewsAreStored(t *testing.T) {
	b := newBench(t)
	for _, n := range []int{0, 1, 10_000} {
		w := withViews(t, "argo", n)
		b.put(w)
		for range 2 {
			set := b.set("acme/widgets")
			if got := views.Of(set.Watches[0]).Views; got.Len() != n || n > 0 && got.Digest() != views.Of(w).Views.Digest() {
				t.Errorf("%d views were stored as %d", n, got.Len())
			}
		}
		var text bytes.Buffer
		if err := watch.WriteFile(&text, []watch.Watch{w}); err != nil {
			t.Fatal(err)
		}
		read, err := watch.ReadFile(&text)
		if err != nil || fmt.Sprint(views.Of(read[0]).Views) != fmt.Sprint(views.Of(w).Views) {
			t.Errorf("%d views in a file: %v", n, err)
		}
	}
	if text, err := json.Marshal(of(t, "docs", "acme/widgets", "")); err != nil || strings.Contains(string(text), "views") {
		t.Errorf("a watch without views: %s, %v", text, err)
	}
}

// A large set is read again only after it has changed, by whatever process.
func TestLargeSetsAreKept(t *testing.T) {
	b := benchOn(t, redistest.StartReal(t)) // the embedded Redis does not count what it sends
	other := watch.NewRegistry(b.client, events.DefaultNamespace)
	ctx, repo := context.Background(), withViews(t, "argo", 1).Repo
	sent := func() int {
		t.Helper()
		text, _, _ := strings.Cut(strings.SplitAfter(b.client.Info(ctx, "stats").Val(), "total_net_output_bytes:")[1], "\r")
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, step := range []struct {
		n     int // views
		bytes int // at most for three reads
	}{{10_000, 1 << 20}, {9_999, 1 << 20}, {1, 10 << 10}, {0, 10 << 10}} {
		var err error
		if step.n == 0 {
			_, err = other.Remove(ctx, withViews(t, "argo", 1).Key())
		} else {
			_, err = other.Put(ctx, withViews(t, "argo", step.n))
		}
		if err != nil {
			t.Fatal(err)
		}
		before := sent()
		for range 3 {
			set, err := b.Of(ctx, repo)
			n := 0
			for _, w := range set.Watches {
				n += views.Of(w).Views.Len()
			}
			if err != nil || n != step.n || (set.Version == "") != (step.n == 0) {
				t.Errorf("%d views were read as %d, version %q, %v", step.n, n, set.Version, err)
			}
			clear(set.Watches) // it is the caller's
		}
		if n := sent() - before; n > step.bytes {
			t.Errorf("three reads of %d views took %d bytes, want at most %d", step.n, n, step.bytes)
		}
	}
}

func TestViewsAreLimited(t *testing.T) {
	b := newBench(t)
	b.put(withViews(t, "argo", 9_999))
	b.put(withViews(t, "flux", 1))
	if _, err := b.Put(context.Background(), withViews(t, "flux", 2)); err == nil || !strings.Contains(err.Error(), "would have 10001 views, the limit is 10000") {
		t.Errorf("10,001 views: %v", err)
	}
	if _, err := b.Plan(context.Background(), []watch.Watch{withViews(t, "flux", 2)}, nil); err == nil || !strings.Contains(err.Error(), "would have 10001 views") {
		t.Errorf("a plan of 10,001 views: %v", err)
	}
	gadgets := of(t, "docs", "acme/gadgets", "")
	gadgets.Options = withViews(t, "docs", 1).Options
	b.put(gadgets)
	if _, err := b.Move(context.Background(), gadgets.Repo, withViews(t, "docs", 1).Repo, "https://example.com/acme/widgets"); err == nil || !strings.Contains(err.Error(), "would have 10001 views") {
		t.Errorf("10,001 views after a move: %v", err)
	}
	w := withViews(t, "docs", 1)
	w.Paths = []string{"docs/**"}
	if _, err := watch.New(w); err == nil {
		t.Error("views are accepted together with paths")
	}
	for text, says := range map[string]string{
		"views: {a: [../b]}":  `line 2: views: view a: path "../b"`,
		"views: {a: b}":       "line 2",
		"views: {a/b: [c]}":   `line 2: views: view "a/b"`,
		"views: {a: []}":      "line 2: views: view a: want 1 to 100 paths",
		"views: {a: ['!b']}":  `write \! for a name`,
		"views: {a: ['[b']}":  "a [ without ]",
		"views: {a: ['{b}']}": "braces",
	} {
		_, err := watch.ReadFile(strings.NewReader("watches:\n- {app: a, url: https://example.com/a/b, " + text + "}\n"))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
}
