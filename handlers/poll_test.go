package handlers_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// tag tags acme/widgets at a commit.
func (w *world) tag(commit string, names ...string) {
	w.t.Helper()
	for _, name := range names {
		must(w.t, w.git.Tag(context.Background(), "acme/widgets", name, commit))
	}
}

// publishedTags returns the published tags of acme/widgets.
func (w *world) publishedTags() []string {
	w.t.Helper()
	published, _, err := w.handlers.Volume.Published(w.repo())
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

// Each sync and poll that the remote answers is recorded, also if nothing has changed, and none that it refuses.
func TestAnswersOfTheRemoteAreRecorded(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.watch("docs", "")
	answered := func() time.Time {
		known, err := w.states.Load(context.Background(), w.repo())
		must(t, err)
		return known.Answered()
	}
	w.due("a-0")
	first := answered()
	w.later += time.Hour
	if got := requested(w.due("b-0")); got != "" {
		t.Errorf("requested %q, want nothing", got)
	}
	second := answered()
	if first.IsZero() || second.Sub(first) < time.Hour {
		t.Errorf("answered at %v, then at %v", first, second)
	}
	w.git.AcceptTokens("acme/widgets", "other")
	w.later += time.Hour
	if _, err := w.handle("c-0", events.Change{Type: events.ChangeDue, Repo: w.repo()}); err == nil || !answered().Equal(second) {
		t.Errorf("%v, answered at %v, want the last answer", err, answered())
	}
}

func TestManualSyncIsKeptWhenCoalesced(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	must(t, w.git.SetRef(context.Background(), "acme/widgets", "refs/heads/dev", first))
	w.latest = "9-0"
	w.watch("docs", "")
	dev := w.watch("docs", "dev")
	change := testenv.Must(dev.Change("c1", "/test", mustRef("dev"), ""))(t)
	outcome := testenv.Must(w.outcome("1-0", change))(t)
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
	if got := requested(w.due("b-0")); got != "" {
		t.Errorf("requested %q, want the manual sync kept", got)
	}
	if _, err := os.Lstat(filepath.Join(w.root, "acme/widgets@dev")); err != nil {
		t.Errorf("the branch: %v", err)
	}
}

// The state may be older than the volume, as after an import: nobody knows then who asked for a ref.
func TestRefThatTheStateLacksStays(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	must(t, w.git.SetRef(context.Background(), "acme/widgets", "refs/heads/dev", first))
	dev := w.watch("docs", "dev")
	w.mustHandle("1-0", events.Change{URL: dev.URL, App: "docs", Ref: mustRef("dev")})
	w.unwatch(dev)
	must(t, w.redis.Del(context.Background(), events.DefaultNamespace.Repo(w.repo())).Err())
	w.watch("docs", "")
	w.due("a-0")
	if got := requested(w.due("b-0")); got != "" || w.names() != "dev main" {
		t.Errorf("requested %q, published %s", got, w.names())
	}
}

// A remote without its default branch unpublishes nothing at first: it may be a replica that lags. Ten minutes later it does.
func TestEmptyRemoteUnpublishesLater(t *testing.T) {
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
			if got := requested(w.due("b-0")); got != "" || !w.published() {
				t.Errorf("requested %q, published %v; want the name kept", got, w.published())
			}
			w.later += 10 * time.Minute
			w.mustHandle("c-0", events.Change{Type: events.ChangeDue, Repo: w.repo()})
			if w.published() || len(w.more) != 1 || w.more[0].App != "docs" || w.more[0].Type != events.ResultRemoved || !watch.Notable(w.more[0]) {
				t.Errorf("published %v, %+v; want it removed, and its app told", w.published(), w.more)
			}
		})
	}
}
