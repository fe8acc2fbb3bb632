package watch_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/watch"
)

func TestPutStoresTheWatch(t *testing.T) {
	b := newBench(t)
	w, err := watch.New(watch.Watch{
		App: "docs", URL: "git@example.com:Acme/Widgets.git", Ref: selector(t, "refs/tags/v*"), Credential: "bot",
		Depth: events.DepthFull, Poll: watch.Never, NotifyURL: "https://docs.example.com/in", NotifySecret: "docs",
		Paths: []string{"docs/**", "*.md"}, Auto: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	b.put(w, of(t, "ci", "Acme/Widgets", ""))
	set := b.set("ACME/widgets")
	if got := names(set.Watches); !slices.Equal(got, []string{"ci ", "docs refs/tags/v*"}) || set.Version == "" {
		t.Fatalf("%q, version %q", got, set.Version)
	}
	if got := fmt.Sprintf("%+v", set.Watches[1]); got != fmt.Sprintf("%+v", w) {
		t.Errorf("%s\nwant %+v", got, w)
	}
	if set := b.set("acme/other"); set.Version != "" || len(set.Watches) != 0 {
		t.Errorf("acme/other has no watches: %+v", set)
	}
}

func TestWritesQueueTheirChange(t *testing.T) {
	b := newBench(t)
	docs, tags, ci := of(t, "docs", "Acme/Widgets", ""), of(t, "docs", "Acme/Widgets", "refs/tags/v*"), of(t, "ci", "Acme/Widgets", "")
	faster, notified := docs, ci
	faster.Poll = watch.Interval(1e9)
	notified.NotifyURL, notified.NotifySecret = "https://ci.example.com/notified", "ci"
	version := ""
	for _, step := range []struct {
		name   string
		do     func() int
		n      int
		queued []string
	}{
		{"the first", func() int { return b.put(docs) }, 1, []string{"due Acme/Widgets"}},
		{"the same again", func() int { return b.put(docs) }, 0, nil},
		{"two, of which one is new", func() int { return b.put(docs, ci) }, 1, []string{"pushed Acme/Widgets"}},
		{"another interval", func() int { return b.put(faster) }, 1, []string{"due Acme/Widgets"}},
		{"two that exist", func() int { return b.put(docs, notified) }, 2, []string{"due Acme/Widgets"}},
		{"a pattern", func() int { return b.put(tags) }, 1, []string{"due for docs Acme/Widgets"}},
		{"one of an app's two", func() int { return b.remove(tags.Key()) }, 1, []string{"due Acme/Widgets"}},
		{"one that is not there", func() int { return b.remove(tags.Key()) }, 0, nil},
		{"another app's", func() int { return b.remove(docs.Key(), tags.Key()) }, 1, []string{"due Acme/Widgets"}},
		{"the last", func() int { return b.remove(ci.Key()) }, 1, []string{"removed by force Acme/Widgets"}},
		{"one after the last", func() int { return b.remove(ci.Key()) }, 0, nil},
	} {
		n, queued := step.do(), b.drain()
		if n != step.n || !slices.Equal(queued, step.queued) {
			t.Errorf("%s: %d, queued %q; want %d, %q", step.name, n, queued, step.n, step.queued)
		}
		now := b.set("acme/widgets").Version
		if step.n > 0 && now == version {
			t.Errorf("%s: unexpected version %q", step.name, now)
		}
		version = now
	}
	if keys := slices.Sorted(maps.Keys(b.dump())); !slices.Equal(keys, []string{"lockstep:{0}:changes"}) {
		t.Errorf("left in Redis: %q", keys)
	}
}

func TestPutRefusesConflicts(t *testing.T) {
	b := newBench(t)
	b.put(of(t, "docs", "acme/widgets", ""), of(t, "docs", "acme/deep/down/below", ""))
	elsewhere := of(t, "ci", "acme/widgets", "")
	elsewhere.URL = "https://example.org/acme/widgets.git"
	new1, new2 := of(t, "a", "acme/new", ""), of(t, "b", "acme/new", "")
	new2.URL = "https://example.com:444/acme/new"
	unsound := of(t, "a", "acme/good", "")
	unsound.App = "not one"
	before := b.dump()
	for name, tc := range map[string]struct {
		put   []watch.Watch
		says  string
		class events.Class
	}{
		"another remote":      {[]watch.Watch{elsewhere}, "acme/widgets is watched at example.com/acme/widgets by app docs", events.ClassConflict},
		"another case":        {[]watch.Watch{of(t, "ci", "acme/Widgets", "")}, "use the same case in the URL", events.ClassConflict},
		"two remotes at once": {[]watch.Watch{new1, new2}, "acme/new is watched at example.com/acme/new by app a", events.ClassConflict},
		"below one":           {[]watch.Watch{of(t, "ci", "acme/Widgets/docs", "")}, "cannot be watched together with acme/widgets", events.ClassConflict},
		"far below one":       {[]watch.Watch{of(t, "ci", "acme/widgets/a/b/c", "")}, "cannot be watched together with acme/widgets", events.ClassConflict},
		"above one":           {[]watch.Watch{of(t, "ci", "acme/deep", "")}, "cannot be watched together with acme/deep/down/below", events.ClassConflict},
		"invalid after valid": {[]watch.Watch{of(t, "a", "acme/good", ""), unsound}, "want at most 100 letters", events.ClassConfig},
	} {
		n, err := b.Put(context.Background(), tc.put...)
		if n != 0 || err == nil || !strings.Contains(err.Error(), tc.says) || events.ClassOf(err) != tc.class ||
			(events.DispositionOf(err) == events.Malformed) != (tc.class == events.ClassConfig) {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
	if after := b.dump(); !maps.Equal(before, after) {
		t.Errorf("refused watches changed the registry: %v", after)
	}
	// A common name prefix is not a conflict, and one remote has many spellings.
	same := of(t, "ci", "acme/widgets", "")
	same.URL = "ssh://git@EXAMPLE.com/acme/widgets/"
	b.put(of(t, "ci", "acme/widgets-docs", ""), of(t, "ci", "acme/widget", ""), of(t, "ci", "acme/deep0", ""), same)
}

func TestPathWithoutOtherWatchesMayChangeRemote(t *testing.T) {
	b := newBench(t)
	docs, tags := of(t, "docs", "acme/widgets", ""), of(t, "docs", "acme/widgets", "refs/tags/v*")
	b.put(docs, tags)
	b.drain()
	for _, w := range []*watch.Watch{&docs, &tags} {
		w.URL = "https://example.org/moved/widgets.git"
	}
	if _, err := b.Put(context.Background(), docs); err == nil {
		t.Error("one of two watches of a path changed its remote")
	}
	if n := b.put(docs, tags); n != 2 { // both together
		t.Errorf("%d changed, want 2", n)
	}
	// Replacing the only watch, at another remote, keeps the repository watched.
	other := of(t, "ci", "acme/widgets", "")
	b.drain()
	if put, removed, err := b.Apply(context.Background(), []watch.Watch{other}, []watch.Key{docs.Key(), tags.Key()}); put != 1 || removed != 2 || err != nil {
		t.Errorf("%d put, %d removed, %v", put, removed, err)
	}
	if queued := b.drain(); !slices.Equal(queued, []string{"due acme/widgets"}) {
		t.Errorf("queued %q", queued)
	}
	// A path below one that is removed in the same call is free.
	below := of(t, "ci", "acme/widgets/docs", "")
	if _, _, err := b.Apply(context.Background(), []watch.Watch{below}, []watch.Key{other.Key()}); err != nil {
		t.Error(err)
	}
	if queued := b.drain(); !slices.Equal(queued, []string{"removed by force acme/widgets", "due acme/widgets/docs"}) {
		t.Errorf("queued %q", queued)
	}
}

func TestPutLimitsWatchesPerRepository(t *testing.T) {
	b := newBench(t)
	var many []watch.Watch
	for i := range 1001 {
		many = append(many, of(t, fmt.Sprint("app", i), "acme/widgets", ""))
	}
	if _, err := b.Put(context.Background(), many...); err == nil || !strings.Contains(err.Error(), "would have 1001 watches, the limit is 1000") {
		t.Fatal(err)
	}
	b.put(many[:1000]...)
	if _, err := b.Put(context.Background(), many[1000]); events.ClassOf(err) != events.ClassConflict {
		t.Error(err)
	}
	if n := len(b.set("acme/widgets").Watches); n != 1000 {
		t.Errorf("%d watches", n)
	}
	var keys []watch.Key
	for _, w := range many {
		keys = append(keys, w.Key())
	}
	if n := b.remove(keys...); n != 1000 {
		t.Errorf("%d removed", n)
	}
}

func TestUndecodableWatchIsAnError(t *testing.T) {
	ctx := context.Background()
	b := newBench(t)
	docs, ci := of(t, "docs", "acme/widgets", ""), of(t, "ci", "acme/widgets", "")
	b.put(docs, ci)
	b.client.HSet(ctx, "lockstep:{0}:watch:of:acme/widgets", "docs ", `{"app":"docs","from":"the future"}`)
	if _, err := b.Of(ctx, docs.Repo); err == nil || !strings.Contains(err.Error(), `acme/widgets by app "docs"`) {
		t.Errorf("%v", err)
	}
	if _, err := b.List(ctx, watch.Query{}); err == nil {
		t.Error("List ignored it")
	}
	b.drain()
	if n := b.remove(ci.Key()); n != 1 {
		t.Error("removed more than the undecodable watch")
	}
	if queued := b.drain(); !slices.Equal(queued, []string{"due acme/widgets"}) {
		t.Errorf("queued %q, but another watch remains", queued)
	}
	if n := b.put(docs); n != 1 {
		t.Error("it could not be put again")
	}
	b.set("acme/widgets")
}

func TestFailedWriteChangesNothing(t *testing.T) {
	ctx := context.Background()
	for _, spoilt := range []string{"changes", "poll", "watch:index", "watch:of:acme/other", "watch:at:example.com/acme/other"} {
		b := newBench(t)
		b.put(of(t, "docs", "acme/widgets", ""))
		b.client.Del(ctx, "lockstep:{0}:"+spoilt)
		b.client.Set(ctx, "lockstep:{0}:"+spoilt, "mine", 0)
		before := b.dump()
		if _, err := b.Put(ctx, of(t, "docs", "acme/other", "")); err == nil {
			t.Errorf("%s is a string, but Put succeeded", spoilt)
		}
		if !strings.HasSuffix(spoilt, "acme/other") {
			if _, err := b.Remove(ctx, of(t, "docs", "acme/widgets", "").Key()); err == nil {
				t.Errorf("%s is a string, but Remove succeeded", spoilt)
			}
		}
		if after := b.dump(); !maps.Equal(before, after) {
			t.Errorf("%s: %v\nbefore: %v", spoilt, after, before)
		}
	}
}

func TestSilence(t *testing.T) {
	ctx := context.Background()
	b := newBench(t)
	docs := of(t, "docs", "acme/widgets", "")
	docs.NotifyURL, docs.NotifySecret = "https://docs.example.com/in", "docs"
	b.put(docs)
	b.drain()
	version := b.set("acme/widgets").Version
	former := docs
	former.NotifyURL = "https://docs.example.com/former"
	if err := b.Silence(ctx, former, "gone"); err != nil || b.set("acme/widgets").Watches[0].Silenced != "" {
		t.Errorf("error %v; want a watch with a new URL left alone", err)
	}
	for _, why := range []string{"2026-11-21T18:00:00Z answered\n410 Gone", "another reason"} {
		if err := b.Silence(ctx, docs, why); err != nil {
			t.Fatal(err)
		}
	}
	set := b.set("acme/widgets")
	if got := set.Watches[0].Silenced; got != "2026-11-21T18:00:00Z answered 410 Gone" {
		t.Errorf("%q", got)
	}
	if queued := b.drain(); len(queued) != 0 || set.Version == version {
		t.Errorf("queued %q, version %s unchanged", queued, version)
	}
	if err := b.Silence(ctx, of(t, "nobody", "acme/none", ""), "x"); err != nil || b.set("acme/none").Version != "" {
		t.Errorf("%v", err)
	}
	if b.put(docs); b.set("acme/widgets").Watches[0].Silenced != "" {
		t.Error("the watch was put again, but is still silenced")
	}
}

func TestMove(t *testing.T) {
	ctx := context.Background()
	const moved = "https://example.com/Acme/Gadgets.git"
	b := newBench(t)
	there := of(t, "ci", "Acme/Gadgets", "")
	there.Depth = 7
	b.put(of(t, "ci", "acme/widgets", ""), of(t, "docs", "acme/widgets", "refs/tags/v*"), there)
	b.drain()
	from, to := path(t, "acme/widgets"), path(t, "Acme/Gadgets")
	for i, want := range []int{2, 0} { // the second move has nothing to do
		if n, err := b.Move(ctx, from, to, moved); n != want || err != nil {
			t.Fatalf("%d: %d, %v", i, n, err)
		}
	}
	set := b.set("acme/gadgets")
	if got := names(set.Watches); !slices.Equal(got, []string{"ci ", "docs refs/tags/v*"}) {
		t.Fatalf("%q", got)
	}
	if ci, docs := set.Watches[0], set.Watches[1]; ci.Depth != 7 || docs.URL != moved || docs.Repo.String() != "Acme/Gadgets" {
		t.Errorf("%+v\n%+v", ci, docs)
	}
	if queued := b.drain(); b.set("acme/widgets").Version != "" || !slices.Equal(queued, []string{"due Acme/Gadgets"}) {
		t.Errorf("queued %q", queued)
	}
	if found, err := b.MovedTo(ctx, from); found != to || err != nil {
		t.Errorf("moved to %s, %v", found, err)
	}
	// A new spelling, and a new URL.
	const renamed = "https://example.com/acme/gadgets"
	if n, err := b.Move(ctx, to, path(t, "acme/gadgets"), renamed); n != 2 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	for _, w := range b.set("acme/gadgets").Watches {
		if w.URL != renamed || w.Repo.String() != "acme/gadgets" {
			t.Errorf("%+v", w)
		}
	}
	if queued := b.drain(); !slices.Equal(queued, []string{"due acme/gadgets"}) {
		t.Errorf("queued %q", queued)
	}
	if n, err := b.Move(ctx, to, path(t, "acme/gadgets"), renamed); n != 0 || err != nil || len(b.drain()) != 0 {
		t.Errorf("again: %d, %v", n, err)
	}
	// And back: what is there now has not moved.
	if n, err := b.Move(ctx, to, from, "https://example.com/acme/widgets"); n != 2 || err != nil {
		t.Fatalf("back: %d, %v", n, err)
	}
	for at, want := range map[events.RepoPath]events.RepoPath{to: from, from: {}} {
		if found, err := b.MovedTo(ctx, at); found != want || err != nil {
			t.Errorf("%s has moved to %s, want %s, %v", at, found, want, err)
		}
	}
}

func TestMoveRefusesConflicts(t *testing.T) {
	ctx := context.Background()
	b := newBench(t)
	b.put(of(t, "docs", "acme/widgets", ""), of(t, "docs", "acme/gadgets", ""), of(t, "ci", "acme/deep/down", ""))
	before := b.dump()
	for to, url := range map[string]string{
		"acme/gadgets":   "https://example.org/acme/gadgets",
		"acme/deep":      "https://example.com/acme/deep",
		"acme/deep/down": "https://example.com/acme/deeper",
	} {
		if n, err := b.Move(ctx, path(t, "acme/widgets"), path(t, to), url); n != 0 || events.ClassOf(err) != events.ClassConflict {
			t.Errorf("%s: %d, %v", to, n, err)
		}
	}
	if after := b.dump(); !maps.Equal(before, after) {
		t.Errorf("%v", after)
	}
}
