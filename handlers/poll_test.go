package handlers_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"lockstep/events"
)

// tag tags acme/widgets at a commit.
func (w *world) tag(commit string, names ...string) {
	w.t.Helper()
	for _, name := range names {
		must(w.t, w.git.Tag(context.Background(), "acme/widgets", name, commit))
	}
}

// publishedTags are the tags of acme/widgets that readers find.
func (w *world) publishedTags() []string {
	w.t.Helper()
	published, _, err := w.handlers.Repos.Published(w.repo())
	must(w.t, err)
	var tags []string
	for ref := range published.Commits {
		if name, ok := cutTag(ref); ok {
			tags = append(tags, name)
		}
	}
	slices.Sort(tags)
	return tags
}

func cutTag(ref events.Ref) (string, bool) {
	const tags = "refs/tags/"
	text := ref.String()
	return text[min(len(tags), len(text)):], len(text) > len(tags) && text[:len(tags)] == tags
}

// The last 20 tags of a pattern are kept: older ones make room, each once, and nothing is asked for in vain.
func TestPatternKeepsLatestTags(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	w.watch("release", "refs/tags/v*")
	for n := range 20 {
		w.tag(first, fmt.Sprintf("v1.%d", n))
	}
	if asked := w.due("a-0"); len(asked) != 20 || len(w.publishedTags()) != 20 {
		t.Fatalf("asked for %q, published %q; want 20 tags", askedOf(asked), w.publishedTags())
	}
	w.tag(first, "v2.0", "v2.1")
	if got := askedOf(w.due("b-0")); got != "pushed release refs/tags/v2.0, pushed release refs/tags/v2.1" {
		t.Errorf("asked for %q, want what is new", got)
	}
	if got := askedOf(w.due("c-0")); got != "removed  refs/tags/v1.0, removed  refs/tags/v1.1" {
		t.Errorf("asked for %q, want the oldest to make room", got)
	}
	if got := askedOf(w.due("d-0")); got != "" || len(w.publishedTags()) != 20 {
		t.Errorf("asked for %q, published %q; want no more", got, w.publishedTags())
	}
}

// A webhook has an old tag published, too; as long as there is room for it, it is nobody's to take away.
func TestOldTagIsKeptUntilReplaced(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	release := w.watch("release", "refs/tags/v*")
	for n := range 30 {
		w.tag(first, fmt.Sprintf("v1.%d", n))
	}
	old, err := events.ParseRef("refs/tags/v1.3")
	must(t, err)
	change, err := release.Change("c1", "/test", old, first)
	must(t, err)
	w.mustHandle("1-0", change)
	if asked := w.due("a-0"); len(asked) != 20 || len(w.publishedTags()) != 21 {
		t.Errorf("asked for %q, published %q; want the last 20, and what a webhook told", askedOf(asked), w.publishedTags())
	}
	if got := askedOf(w.due("b-0")); got != "removed  refs/tags/v1.3" {
		t.Errorf("asked for %q, want the oldest to make room", got)
	}
	if got := askedOf(w.due("c-0")); got != "" {
		t.Errorf("asked for %q, want nothing", got)
	}
}

// What somebody asked for by hand is theirs, though a watch's sync has answered it on the way.
func TestManualSyncIsKeptWhenCoalesced(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	must(t, w.git.SetRef(context.Background(), "acme/widgets", "refs/heads/dev", first))
	w.latest = "9-0"
	w.watch("docs", "")
	dev := w.watch("docs", "dev")
	change, err := dev.Change("c1", "/test", mustRef("dev"), "")
	must(t, err)
	outcome, err := w.outcome("1-0", change)
	must(t, err)
	byHand := w.job("2-0", events.Change{URL: dev.URL, App: "docs", Ref: mustRef("dev")})
	covered, ok := outcome.Covers(context.Background(), byHand)
	if !ok {
		t.Fatal("the change by hand is not covered")
	}
	must(t, w.redis.HSet(context.Background(), events.DefaultNamespace.Repo(w.repo()), outcome.State).Err())
	if len(covered.State) > 0 {
		must(t, w.redis.HSet(context.Background(), events.DefaultNamespace.Repo(w.repo()), covered.State).Err())
	}
	w.due("a-0")
	w.unwatch(dev)
	if got := askedOf(w.due("b-0")); got != "" {
		t.Errorf("asked for %q, want what was asked for by hand kept", got)
	}
	if _, err := os.Lstat(filepath.Join(w.root, "acme/widgets@dev")); err != nil {
		t.Errorf("the branch: %v", err)
	}
}

// A remote that lists nothing, or does not say its default branch, takes nothing from those who watch that.
func TestEmptyRemoteUnpublishesNothing(t *testing.T) {
	for name, arrange := range map[string]func(w *world){
		"empty": func(w *world) {
			must(w.t, w.git.DeleteRef(context.Background(), "acme/widgets", "refs/heads/main"))
		},
		"no default branch": func(w *world) {
			head := w.git.Head("acme/widgets", "refs/heads/main")
			must(w.t, w.git.SetRef(context.Background(), "acme/widgets", "refs/heads/other", head))
			must(w.t, w.git.DeleteRef(context.Background(), "acme/widgets", "refs/heads/main"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(map[string]string{"a": "1"})
			w.watch("docs", "")
			w.due("a-0")
			arrange(w)
			if got := askedOf(w.due("b-0")); got != "" || !w.published() {
				t.Errorf("asked for %q, published %v; want the name kept", got, w.published())
			}
		})
	}
}
