package follow

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
)

// TestPushBringsTheConfiguredHistory follows pushes of a reader that has all history: a result does not say how much there is.
func TestPushBringsTheConfiguredHistory(t *testing.T) {
	t.Parallel()
	refs := fmt.Sprintf(`{"refs":[{"ref":"refs/heads/main","commit":%q,"default":true,"depth":"full"}]}`, strings.Repeat("b", 40))
	for _, name := range []string{"acme/widgets", "acme/new"} {
		for _, depth := range []events.Depth{50, events.DepthFull} {
			f, requested := newFollower(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, refs) })
			f.cfg.Depth, f.live = depth, true
			f.position.frame("c1")
			f.follow(t.Context(), events.Result{
				Type: events.ResultSynced, Repo: testenv.Must(events.ParseRepoPath(name))(t), Path: name,
				Ref: testenv.Must(events.ParseRef("main"))(t), After: strings.Repeat("b", 40),
			})
			if len(*requested) != 1 || (*requested)[0].Depth != depth || (*requested)[0].After != strings.Repeat("b", 40) {
				t.Errorf("%s: requested %+v, want one push at depth %s", name, *requested, depth)
			}
			f.position.advance()
			if f.position.cursor == "c1" {
				t.Errorf("%s: the position has passed a push that is not published", name)
			}
		}
	}
}

// TestPushesWhileRefsAreRequested ends with a comparison after the last of the pushes.
func TestPushesWhileRefsAreRequested(t *testing.T) {
	t.Parallel()
	f, _ := newFollower(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"refs":[{"ref":"refs/heads/main","commit":%q,"default":true,"depth":"full"}]}`, strings.Repeat("b", 40))
	})
	f.cfg.Depth = events.DepthFull
	repo, main := testenv.Must(events.ParseRepoPath("acme/widgets"))(t), testenv.Must(events.ParseRef("main"))(t)
	pushes := 0
	push := func() {
		pushes++
		f.position.frame(fmt.Sprint("c", pushes))
		f.follow(t.Context(), events.Result{Type: events.ResultSynced, Repo: repo, Path: "acme/widgets", Ref: main, After: fmt.Sprintf("%040d", pushes)})
	}
	f.ask = func(_ context.Context, request func() func()) {
		note := request()
		if pushes < 6 {
			push()
		}
		note()
	}
	push()
	if f.isOpen(repo) && len(f.checks) == 0 {
		t.Errorf("after %d pushes, one is open and no comparison is due", pushes)
	}
}

// TestHistoryOfPublishedRefs deepens a ref that is published with less history than the reader has now.
func TestHistoryOfPublishedRefs(t *testing.T) {
	t.Parallel()
	repo, main := testenv.Must(events.ParseRepoPath("acme/widgets"))(t), testenv.Must(events.ParseRef("main"))(t)
	for _, tc := range []struct {
		here, reader, configured, want events.Depth // want is 0 if nothing is requested
	}{
		{1, events.DepthFull, events.DepthFull, events.DepthFull}, {1, 20, 50, 20}, {1, 100, 50, 50}, {20, 100, 50, 50},
		{50, 100, 50, 0}, {1, 1, 50, 0}, {events.DepthFull, events.DepthFull, 50, 0}, {1, events.DepthFull, 0, 0}, {1, 0, 50, 0},
	} {
		f, requested := newFollower(t, func(http.ResponseWriter, *http.Request) {})
		f.cfg.Depth = tc.configured
		f.cfg.Volume = deepCopies{f.cfg.Volume.(copies), tc.here}
		f.compareWith(t.Context(), repo, []Ref{{Ref: main, Commit: strings.Repeat("a", 40), Default: true, Depth: tc.reader}})
		switch got := *requested; {
		case tc.want == 0 && len(got) > 0:
			t.Errorf("%+v: requested %+v, want nothing", tc, got)
		case tc.want != 0 && (len(got) != 1 || got[0].Depth != tc.want):
			t.Errorf("%+v: requested %+v", tc, got)
		}
	}
}

// deepCopies are copies that all have the same history.
type deepCopies struct {
	copies
	depth events.Depth
}

func (c deepCopies) Locate(repo events.RepoPath, ref events.Ref) (volume.Located, bool, error) {
	commit, here := c.copies[repo.String()].Commits[ref]
	return volume.Located{Ref: ref, Commit: commit, Depth: c.depth}, here, nil
}
