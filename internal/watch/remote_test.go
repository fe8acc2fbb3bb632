package watch_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"lockstep/events"
	"lockstep/internal/watch"
)

// checkRemotes compares the index by remote with the watches by path.
func (b *bench) checkRemotes(t interface {
	Helper()
	Fatalf(format string, args ...any)
},
) {
	t.Helper()
	ctx := context.Background()
	const sets, places = "lockstep:{0}:watch:of:", "lockstep:{0}:watch:at:"
	want, got := map[string][]string{}, map[string][]string{}
	for _, key := range b.client.Keys(ctx, sets+"*").Val() {
		fields := b.client.HGetAll(ctx, key).Val()
		for field, doc := range fields {
			if !strings.Contains(field, " ") {
				continue
			}
			var w watch.Watch
			if err := json.Unmarshal([]byte(doc), &w); err != nil || watch.RemoteKey(w.URL) != fields["at"] {
				t.Fatalf("%s is at %q: %s", key, fields["at"], doc)
			}
		}
		want[fields["at"]] = append(want[fields["at"]], strings.TrimPrefix(key, sets))
	}
	for _, key := range b.client.Keys(ctx, places+"*").Val() {
		fields := b.client.HGetAll(ctx, key).Val()
		if fields["version"] == "" {
			t.Fatalf("%s has no version", key)
		}
		delete(fields, "version")
		got[strings.TrimPrefix(key, places)] = slices.Collect(maps.Keys(fields))
	}
	for _, paths := range []map[string][]string{want, got} {
		for _, list := range paths {
			slices.Sort(list)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("found by remote: %v\nkept: %v", got, want)
	}
}

// at returns app's watch of a remote at the path repo.
func at(t testing.TB, app, repo, url, ref string) watch.Watch {
	t.Helper()
	w, err := watch.New(watch.Watch{App: app, Repo: path(t, repo), URL: url, Ref: selector(t, ref)})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestByRemoteFindsWatchesAtAnyPath(t *testing.T) {
	b := newBench(t)
	b.put(
		at(t, "docs", "mirror/Widgets", "https://github.com/acme/widgets.git", "main"),
		at(t, "ci", "mirror/Widgets", "ssh://git@github.com/acme/widgets", ""),
		at(t, "docs", "acme/widgets", "https://github.com/acme/widgets", ""),
		at(t, "docs", "scm/prj/widgets", "https://dc.example.com/scm/prj/widgets.git", ""),
		at(t, "docs", "forge/acme/widgets", "https://example.com/forge/acme/widgets.git", ""),
		at(t, "docs", "other/widgets", "https://example.org/acme/widgets.git", ""),
		at(t, "docs", "ported/widgets", "https://example.org:8443/acme/widgets.git", ""),
	)
	for url, want := range map[string][]string{
		"https://GitHub.com/Acme/Widgets":            {"acme/widgets docs ", "mirror/Widgets ci ", "mirror/Widgets docs refs/heads/main"},
		"ssh://git@github.com:22/acme/widgets.git":   {"acme/widgets docs ", "mirror/Widgets ci ", "mirror/Widgets docs refs/heads/main"},
		"https://dc.example.com/scm/PRJ/widgets.git": {"scm/prj/widgets docs "},
		"ssh://git@dc.example.com:7999/prj/widgets":  {"scm/prj/widgets docs "},
		"https://example.com/forge/acme/widgets":     {"forge/acme/widgets docs "},
		"https://example.com/acme/widgets":           nil,
		"https://example.org/acme/widgets":           {"other/widgets docs ", "ported/widgets docs "}, // same key, compared by SameRemote
		"https://example.net/acme/widgets":           nil,
	} {
		found := b.byRemote(url)
		var got []string
		for _, w := range found.Watches {
			got = append(got, fmt.Sprint(w.Repo, " ", w.App, " ", w.Ref))
		}
		if !slices.Equal(got, want) || (found.Version == "") != (len(want) == 0) {
			t.Errorf("%s: version %q, %q; want %q", url, found.Version, got, want)
		}
	}
}

func TestSameRemotesHaveTheSameKey(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		same bool
	}{
		{"https://example.com/acme/widgets.git", "http://EXAMPLE.com:443/Acme/Widgets/", true},
		{"https://example.com/acme/widgets", "ssh://git@example.com:7999/acme/widgets.git", true},
		{"https://example.com:8443/scm/prj/widgets", "ssh://git@example.com:7999/PRJ/widgets", true},
		{"SSH://git@example.com:7999/acme/widgets", "https://example.com/acme/widgets", true},
		{"https://[2001:db8::1]:8443/acme/widgets", "ssh://git@[2001:db8::1]/acme/widgets", true},
		{"https://example.com/acme/widgets", "https://example.com:8443/acme/widgets", false},
		{"ssh://git@example.com/acme/widgets", "ssh://git@example.com:2222/acme/widgets", false},
		{"https://example.com/scm/prj/widgets", "https://example.com/prj/widgets", false},
		{"https://example.com/acme/widgets", "https://example.org/acme/widgets", false},
		{"https://example.com/acme/widgets", "https://example.com/acme/gadgets", false},
		{"https://example.com/acme/widgets", "https://example.com/acme%2Fwidgets", false},
	} {
		if watch.SameRemote(tc.a, tc.b) != tc.same || watch.SameRemote(tc.b, tc.a) != tc.same {
			t.Errorf("%s and %s: want the same %v", tc.a, tc.b, tc.same)
		}
	}
	parts := func(t *rapid.T, of ...string) string { return rapid.SampledFrom(of).Draw(t, "part") }
	aRemote := rapid.Custom(func(t *rapid.T) string {
		return parts(t, "https://", "http://", "ssh://git@", "SSH://") + parts(t, "h", "H", "[::1]", "other") + parts(t, "", ":22", ":443", ":80", ":7999") +
			"/" + parts(t, "", "scm/", "SCM/", "scm%2f", "/") + parts(t, "a/b", "A/b", "a/%62", "a%2Fb") + parts(t, "", "/", ".git", ".GIT")
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := aRemote.Draw(t, "a"), aRemote.Draw(t, "b")
		if watch.SameRemote(a, b) && watch.RemoteKey(a) != watch.RemoteKey(b) {
			t.Fatalf("%s and %s are the same remote, but have the keys %s and %s", a, b, watch.RemoteKey(a), watch.RemoteKey(b))
		}
		if !watch.SameRemote(a, a) || watch.SameRemote(a, b) != watch.SameRemote(b, a) {
			t.Fatalf("%s and %s", a, b)
		}
	})
}

// A write at one path makes changes for all paths of its remote stale.
func TestEveryWriteChangesTheVersionOfTheRemote(t *testing.T) {
	ctx := context.Background()
	const remote, renamed = "https://example.com/acme/widgets", "https://example.com/acme/gadgets"
	for name, tc := range map[string]struct {
		do   func(b *bench) error
		want watch.Verdict
	}{
		"nothing":        {func(b *bench) error { return nil }, watch.Accepted},
		"the same again": {func(b *bench) error { b.put(at(t, "docs", "mirror/widgets", remote, "")); return nil }, watch.Accepted},
		"one of another": {func(b *bench) error { b.put(at(t, "docs", "acme/gadgets", renamed, "")); return nil }, watch.Accepted},
		"one more path":  {func(b *bench) error { b.put(at(t, "docs", "acme/widgets", remote, "")); return nil }, watch.Stale},
		"a path added by SSH": {func(b *bench) error {
			b.put(at(t, "docs", "acme/widgets", "ssh://git@example.com:7999/acme/widgets", ""))
			return nil
		}, watch.Stale},
		"one more app":       {func(b *bench) error { b.put(at(t, "ci", "mirror/widgets", remote, "")); return nil }, watch.Stale},
		"one path less":      {func(b *bench) error { b.remove(at(t, "docs", "copy/widgets", remote, "").Key()); return nil }, watch.Stale},
		"one put elsewhere":  {func(b *bench) error { b.put(at(t, "docs", "copy/widgets", renamed, "")); return nil }, watch.Stale},
		"an app is silenced": {func(b *bench) error { return b.Silence(ctx, at(t, "docs", "copy/widgets", remote, ""), "gone") }, watch.Stale},
		"moved, at its path": {func(b *bench) error {
			_, err := b.Move(ctx, path(t, "copy/widgets"), path(t, "copy/widgets"), renamed)
			return err
		}, watch.Stale},
		"moved, to another path": {func(b *bench) error {
			_, err := b.Move(ctx, path(t, "copy/widgets"), path(t, "copy/gadgets"), remote)
			return err
		}, watch.Stale},
		"another moved here": {func(b *bench) error {
			_, err := b.Move(ctx, path(t, "acme/others"), path(t, "acme/widgets"), remote)
			return err
		}, watch.Stale},
	} {
		b := newBench(t)
		docs := at(t, "docs", "mirror/widgets", remote, "")
		b.put(docs, at(t, "docs", "copy/widgets", remote, ""), of(t, "docs", "acme/others", ""))
		in := watch.Delivery{Versions: b.versions("acme/widgets"), Changes: []events.Change{pushed(t, docs, "1")}}
		if err := tc.do(b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := b.accept(in); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
		b.checkRemotes(t)
	}
}

func TestLastRemoveDeletesTheRemoteKey(t *testing.T) {
	ctx := context.Background()
	const remote = "https://example.com/acme/widgets"
	b := newBench(t)
	one, two := at(t, "docs", "mirror/one", remote, ""), at(t, "docs", "mirror/two", remote, "")
	b.put(one, two)
	b.remove(one.Key())
	if got := names(b.byRemote(remote).Watches); len(got) != 1 {
		t.Errorf("%q", got)
	}
	if _, err := b.Move(ctx, two.Repo, two.Repo, "https://example.com/acme/gadgets"); err != nil {
		t.Fatal(err)
	}
	if found := b.byRemote(remote); found.Version != "" || len(found.Watches) != 0 {
		t.Errorf("moved away: %+v", found)
	}
	b.remove(two.Key())
	if keys := slices.Sorted(maps.Keys(b.dump())); !slices.Equal(keys, []string{"lockstep:{0}:changes"}) {
		t.Errorf("left in Redis: %q", keys)
	}
}

func TestWriteFailsWithoutChangesIfTheRemoteKeyHasAnotherType(t *testing.T) {
	ctx := context.Background()
	for _, spoilt := range []string{"widgets", "gadgets"} { // the remote before and after
		b := newBench(t)
		docs := of(t, "docs", "acme/widgets", "")
		b.put(docs)
		key := "lockstep:{0}:watch:at:example.com/acme/" + spoilt
		b.client.Del(ctx, key)
		b.client.Set(ctx, key, "mine", 0)
		before := b.dump()
		if _, err := b.Move(ctx, docs.Repo, docs.Repo, "https://example.com/acme/gadgets"); err == nil {
			t.Errorf("%s is a string, and a path is of another remote", key)
		}
		if after := b.dump(); !maps.Equal(before, after) {
			t.Errorf("%s: %v\nbefore: %v", spoilt, after, before)
		}
	}
}

// A watch that cannot be decoded hides neither itself nor the others.
func TestUndecodableWatchStaysIndexedByRemote(t *testing.T) {
	ctx := context.Background()
	b := newBench(t)
	docs, ci := of(t, "docs", "acme/widgets", ""), of(t, "ci", "acme/widgets", "")
	b.put(docs, ci)
	b.client.HSet(ctx, "lockstep:{0}:watch:of:acme/widgets", "docs ", "{")
	b.remove(ci.Key())
	if found, err := b.ByRemote(ctx, docs.URL); err == nil || !strings.Contains(err.Error(), `by app "docs"`) {
		t.Errorf("%+v, %v; want it named", found, err)
	}
	b.remove(docs.Key())
	b.checkRemotes(t)
	if found := b.byRemote(docs.URL); found.Version != "" {
		t.Errorf("%+v", found)
	}
}

func TestAddDoesNotReplaceWatches(t *testing.T) {
	ctx := context.Background()
	b := newBench(t)
	auto := func(repo, url string) watch.Watch {
		w := at(t, "search", repo, url, "")
		w.Auto = true
		return w
	}
	if err := b.Add(ctx, auto("acme/widgets", "https://example.com/acme/widgets")); err != nil {
		t.Fatal(err)
	}
	if queued := b.drain(); !slices.Equal(queued, []string{"due acme/widgets"}) {
		t.Errorf("queued %q", queued)
	}
	before := b.dump()
	for name, tc := range map[string]struct {
		w       watch.Watch
		refused bool
	}{
		"same watch":                     {auto("acme/widgets", "https://example.com/acme/widgets.git"), false},
		"watch of another app":           {at(t, "docs", "acme/widgets", "https://example.com/acme/widgets", ""), false},
		"path watched at another remote": {auto("acme/widgets", "https://example.org/acme/widgets"), true},
		"path below it":                  {auto("acme/widgets/docs", "https://example.org/acme/widgets/docs"), true},
	} {
		if err := b.Add(ctx, tc.w); (events.ClassOf(err) == events.ClassConflict) != tc.refused || (err == nil) == tc.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := b.dump(); !maps.Equal(before, after) {
		t.Errorf("%v", after)
	}
}
