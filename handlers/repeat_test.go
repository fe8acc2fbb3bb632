package handlers_test

import (
	"context"
	"testing"

	"lockstep/events"
)

// TestResultThatAnAppMayHaveMissedIsRepeated has the state of an import: docs has received an earlier commit, or none, for certain.
func TestResultThatAnAppMayHaveMissedIsRepeated(t *testing.T) {
	for name, hasBefore := range map[string]bool{"from an earlier commit": true, "whole": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			before := w.create(map[string]string{"a": "1"})
			docs := w.watch("docs", "")
			w.watch("search", "")
			w.due("a-0")
			w.push(map[string]string{"b": "2"})
			w.due("b-0")
			stored, files := before, 1
			if !hasBefore {
				before, stored, files = "", "none", 2
			}
			ctx, key := context.Background(), events.DefaultNamespace.Repo(w.repo())
			must(t, w.redis.HSet(ctx, key, "repeat:refs/heads/main:docs", stored).Err())
			w.mustHandle("c-0", events.Change{Type: events.ChangeDue, Repo: w.repo()})
			if got := requested(w.next); got != "pushed docs" {
				t.Fatalf("the poll requested %q, want a sync for docs", got)
			}
			for i, want := range []struct {
				before string
				files  int
			}{{before, files}, {w.git.Head("acme/widgets", "refs/heads/main"), 0}} {
				r := w.mustHandle("d-"+string(rune('0'+i)), events.Change{URL: docs.URL, App: "docs"})
				if r.Before != want.before || len(r.Files) != want.files {
					t.Errorf("result %d: %d files since %q, want %+v", i+1, len(r.Files), r.Before, want)
				}
			}
			if got := requested(w.due("e-0")); got != "" {
				t.Errorf("the next poll requested %q", got)
			}
		})
	}
}

func TestRepeatedResultOfTheNamelessApp(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	change := events.Change{URL: w.git.URL("acme/widgets")}
	w.mustHandle("1-0", change)
	w.push(map[string]string{"b": "2"})
	w.mustHandle("2-0", change)
	ctx, field := context.Background(), "repeat:refs/heads/main:"
	for i, stored := range []string{first, "none"} {
		must(t, w.redis.HSet(ctx, events.DefaultNamespace.Repo(w.repo()), field, stored).Err())
		if r := w.mustHandle(string(rune('3'+i))+"-0", change); len(r.Files) != i+1 {
			t.Errorf("repeat %s: %d files since %q, want %d", stored, len(r.Files), r.Before, i+1)
		}
	}
}
