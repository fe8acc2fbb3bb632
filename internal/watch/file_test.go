package watch_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/ext/signatures"
	"lockstep/internal/ext/submodules"
	"lockstep/internal/watch"
)

func TestFileRoundTrip(t *testing.T) {
	full, err := watch.New(watch.Watch{
		App: "docs", URL: "https://example.com/acme/widgets.git", Ref: selector(t, "refs/tags/v*"), Credential: "bot", Depth: 50,
		Poll: watch.Never, NotifyURL: "https://docs.example.com/in", NotifySecret: "docs", Paths: []string{"docs/**", "*.md"}, Auto: true,
		FollowMoves: true, Options: watch.With(signatures.Options{Verify: signatures.VerifyRequire, Keys: "team", NoRewind: true},
			submodules.Options{Mode: events.SubmodulesRequired, Credentials: []string{"libs", "tools"}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	watches := []watch.Watch{full, of(t, "ci", "acme/widgets", "")}
	var text bytes.Buffer
	if err := watch.WriteFile(&text, watches); err != nil {
		t.Fatal(err)
	}
	read, err := watch.ReadFile(&text)
	if err != nil || fmt.Sprint(read) != fmt.Sprint(watches) {
		t.Errorf("%v\n%v\n%v", err, read, watches)
	}
	for _, empty := range []string{"", "watches:\n", "watches: []\n", "# nothing\n"} {
		if read, err := watch.ReadFile(strings.NewReader(empty)); err != nil || len(read) != 0 {
			t.Errorf("%q: %v, %v", empty, read, err)
		}
	}
	number := "watches:\n- app: docs\n  url: https://example.com/acme/widgets\n  depth: 50\n"
	if read, err := watch.ReadFile(strings.NewReader(number)); err != nil || read[0].Depth != 50 {
		t.Errorf("%v, %v", read, err)
	}
}

func TestReadFileErrorsNameTheLine(t *testing.T) {
	const good = "- {app: docs, url: https://example.com/acme/widgets}\n"
	for name, tc := range map[string]struct{ text, says string }{
		"unknown field":       {"watches:\n" + good + "- app: docs\n  urll: x\n", "line 4: field urll not found"},
		"unknown list":        {"watch:\n" + good, "line 1: field watch not found"},
		"not YAML":            {"watches:\n" + good + "- {", "line 3"},
		"not a list":          {"watches: docs\n", "line 1: cannot unmarshal"},
		"duplicate field":     {"watches:\n- app: docs\n  app: ci\n", `line 3: mapping key "app" already defined at line 2`},
		"invalid app":         {"watches:\n" + good + "- app: d cs\n  url: https://example.com/acme/widgets\n", `line 3: app "d cs"`},
		"invalid ref":         {"watches:\n" + good + "- {app: a, ref: a..b, url: https://example.com/acme/widgets}\n", "line 3: ref: not a Git ref"},
		"invalid interval":    {"watches:\n- {app: a, poll: 1ms, url: https://example.com/acme/widgets}\n", "line 2: poll: want a duration"},
		"duplicate watch":     {"watches:\n" + good + "\n" + good, "line 4: docs already watches that ref of acme/widgets, on line 2"},
		"two remotes":         {"watches:\n" + good + "- {app: ci, url: https://example.org/acme/widgets}\n", "line 3: acme/widgets is watched at example.com/acme/widgets by app docs"},
		"nested paths":        {"watches:\n- {app: ci, repo: acme/widgets/x, url: https://example.org/a/b}\n" + good, "line 2: acme/widgets/x cannot be watched together with acme/widgets"},
		"a second document":   {"watches:\n" + good + "---\nwatches: []\n", "more than one"},
		"two invalid watches": {"watches:\n- app: docs\n- app: ci\n", "line 3: url"},
		"too long":            {"# " + strings.Repeat("x", 17<<20), "longer than 16 MiB"},
		"a credential twice":  {"watches:\n- {app: docs, url: https://example.com/acme/widgets, submodules: required, submodule_credentials: [a, b, a]}\n", `line 2: submodule_credentials: "a" is named twice`},
		"a secret in the URL": {"watches:\n- {app: docs, url: 'https://u:hunter2@example.com/acme/widgets'}\n", "line 2: url carries credentials"},
	} {
		_, err := watch.ReadFile(strings.NewReader(tc.text))
		if err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "watch.entry") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func ofDocs(w watch.Watch) bool { return w.App == "docs" }

func TestPlanListsDifferences(t *testing.T) {
	ctx := context.Background()
	b := newBench(t)
	same, changed, gone, others := of(t, "docs", "acme/same", ""), of(t, "docs", "acme/changed", ""), of(t, "docs", "acme/gone", ""), of(t, "ci", "acme/gone", "main")
	same.NotifyURL, same.NotifySecret = "https://docs.example.com/in", "docs"
	b.put(same, changed, gone, others)
	if err := b.Silence(ctx, same, "answered 410 Gone"); err != nil {
		t.Fatal(err)
	}
	before := changed
	changed.Depth = 9
	file := []watch.Watch{same, changed, of(t, "docs", "acme/added", "")}
	for want, prune := range map[string]func(watch.Watch) bool{"": nil, "docs ": ofDocs} {
		plan, err := b.Plan(ctx, file, prune)
		if err != nil || plan.Same != 1 || !slices.Equal(names(plan.Add), []string{"docs "}) || len(plan.Change) != 1 || plan.Change[0].Depth != 9 ||
			strings.Join(names(plan.Remove), ",") != want {
			t.Errorf("removed are to be %q: %+v, %v", want, plan, err)
		}
	}
	if got := b.set("acme/changed").Watches[0]; got.Depth != before.Depth {
		t.Error("Plan changed the registry")
	}
	plan, err := b.Plan(ctx, file, ofDocs)
	if err != nil {
		t.Fatal(err)
	}
	b.drain()
	if err := b.ApplyPlan(ctx, plan); err != nil {
		t.Fatal(err)
	}
	if queued := b.drain(); !slices.Equal(queued, []string{"due acme/gone", "due acme/added", "due acme/changed"}) {
		t.Errorf("queued %q", queued)
	}
	if plan, err := b.Plan(ctx, file, ofDocs); err != nil || plan.Same != 3 || len(plan.Add)+len(plan.Change)+len(plan.Remove) != 0 {
		t.Errorf("second plan: %+v, %v", plan, err)
	}
	if b.set("acme/same").Watches[0].Silenced == "" || len(b.set("acme/gone").Watches) != 1 {
		t.Error("a silenced watch was resumed, or another app's watch is gone")
	}
	file[0].NotifyURL = "https://docs.example.com/new"
	if plan, err := b.Plan(ctx, file, ofDocs); err != nil || len(plan.Change) != 1 || plan.Change[0].Silenced != "" {
		t.Errorf("new notify_url: %+v, %v", plan, err)
	}
}

func TestPlanReportsConflicts(t *testing.T) {
	ctx := context.Background()
	b := newBench(t)
	b.put(of(t, "ci", "acme/widgets", ""), of(t, "docs", "acme/mine", ""))
	elsewhere := of(t, "docs", "acme/widgets", "")
	elsewhere.URL = "https://example.org/acme/widgets"
	for says, w := range map[string]watch.Watch{
		"docs: acme/widgets is watched at example.com/acme/widgets by app ci": elsewhere,
		"docs: acme/widgets/x cannot be watched together with acme/widgets":   of(t, "docs", "acme/widgets/x", ""),
	} {
		if _, err := b.Plan(ctx, []watch.Watch{of(t, "docs", "acme/new", ""), w}, ofDocs); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v", err)
		}
	}
	// Pruned watches do not conflict.
	plan, err := b.Plan(ctx, []watch.Watch{of(t, "docs", "acme/mine/below", "")}, ofDocs)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.ApplyPlan(ctx, plan); err != nil || len(b.set("acme/mine").Watches) != 0 {
		t.Error(err)
	}
}
