package watch_test

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"lockstep/events"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// TestCreate adds a watch once. It refuses another one with other options, and resumes what the registry has noted.
func TestCreate(t *testing.T) {
	b := newBench(t)
	w := of(t, "docs", "acme/widgets", "")
	w.Depth = 5
	create := func(w watch.Watch) (added, changed bool, err error) {
		_, added, changed, err = b.Create(t.Context(), w)
		return added, changed, err
	}
	if added, changed, err := create(w); !added || !changed || err != nil {
		t.Fatalf("added %v, changed %v, %v", added, changed, err)
	}
	other := w
	other.Depth, other.Credential = 6, "bot"
	existing, _, _, err := b.Create(t.Context(), other)
	if !errors.Is(err, watch.ErrExists) || existing.Depth != 5 || b.set("acme/widgets").Watches[0].Depth != 5 {
		t.Errorf("%v, existing %+v", err, existing)
	}
	if added, changed, err := create(w); added || changed || err != nil {
		t.Errorf("again: added %v, changed %v, %v", added, changed, err)
	}
	noted := w
	noted.Silenced, noted.Auto = "2026-11-21T18:00:00Z answered 410", true
	b.put(noted)
	if added, changed, err := create(w); added || !changed || err != nil {
		t.Errorf("silenced: added %v, changed %v, %v", added, changed, err)
	}
	if got := b.set("acme/widgets").Watches[0]; got.Silenced != "" || got.Auto {
		t.Errorf("still %+v", got)
	}
}

// TestCreateWithAnotherSpelling leaves a watch as it is, without a write or a poll, if only the path or the host is spelled in another way.
func TestCreateWithAnotherSpelling(t *testing.T) {
	b := newBench(t)
	w := of(t, "docs", "acme/widgets", "")
	b.put(w)
	b.drain()
	stored := func() string {
		return fmt.Sprint(b.client.HGetAll(t.Context(), events.DefaultNamespace.Watches()+"of:"+w.Repo.Key()).Val())
	}
	before := stored()
	again := w
	again.Repo = testenv.Must(events.ParseRepoPath("ACME/Widgets"))(t)
	existing, added, changed, err := b.Create(t.Context(), again)
	if added || changed || err != nil || existing.Repo != w.Repo {
		t.Errorf("added %v, changed %v, %v, existing %+v", added, changed, err, existing)
	}
	if queued := b.drain(); len(queued) > 0 {
		t.Errorf("queued %q", queued)
	}
	if after := stored(); after != before || len(before) < 10 {
		t.Errorf("stored\n%s\nbefore\n%s", after, before)
	}
}

// TestChange changes one option of a watch in many writers at a time, each of which keeps what the others have written.
func TestChange(t *testing.T) {
	b := newBench(t)
	w := of(t, "docs", "acme/widgets", "")
	w.NotifyURL, w.NotifySecret = "https://docs.example.com/in", "docs"
	b.put(w, of(t, "ci", "acme/widgets", ""))
	var writers sync.WaitGroup
	for i := range 8 {
		writers.Go(func() {
			_, _, err := b.Change(t.Context(), watch.Key{App: "docs", Repo: path(t, "Acme/Widgets")}, func(w *watch.Watch) error {
				w.Paths = append(w.Paths, strconv.Itoa(i))
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	set := b.set("acme/widgets").Watches
	if len(set) != 2 || len(set[1].Paths) != 8 || set[1].NotifyURL != w.NotifyURL {
		t.Errorf("got %+v", set)
	}
	if _, _, err := b.Change(t.Context(), of(t, "docs", "acme/widgets", "dev").Key(), nil); !errors.Is(err, watch.ErrNotWatched) {
		t.Errorf("of another ref: %v", err)
	}
	moved := func(w *watch.Watch) error { w.URL = "https://elsewhere.example.com/a/b.git"; return nil }
	if _, _, err := b.Change(t.Context(), w.Key(), moved); events.DispositionOf(err) != events.Permanent {
		t.Errorf("to another remote: %v", err)
	}
}
