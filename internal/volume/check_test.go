package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// admitAll checks each commit and admits it.
func admitAll(Tip, bool) Check { return func(context.Context, Candidate) error { return nil } }

// candidate is one with its history since the published commit.
type candidate struct {
	Candidate
	History
}

// checked syncs with a check that records the candidate and returns err.
func (w *world) checked(ref string, depth events.Depth, err error) (c candidate, res SyncResult, got error) {
	req := w.request(ref)
	req.Depth = depth
	req.Check = func(Tip, bool) Check {
		return func(ctx context.Context, admitted Candidate) error {
			history, failed := admitted.Since(ctx, admitted.Published)
			c = candidate{admitted, history}
			return cmp.Or(failed, err)
		}
	}
	res, got = w.volume.Sync(w.t.Context(), req)
	return c, res, got
}

func TestRefusedCommitIsNotPublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.create(map[string]string{"a": "1"})
	w.sync("")
	bad := w.push(map[string]string{"a": "2"})
	refusal := events.Errorf(events.Permanent, events.ClassRefused, "not signed")
	for range 2 { // fetched, then from the store
		c, _, err := w.checked("", 0, refusal)
		if !errors.Is(err, refusal) || c.Commit != bad || c.Object != bad || c.Published != old || !c.Default {
			t.Fatalf("got %v, candidate %+v", err, c)
		}
		kind, content, err := c.Read(bad)
		if err != nil || kind != "commit" || !strings.HasPrefix(string(content), "tree ") {
			t.Errorf("read %s %q, %v", kind, content, err)
		}
		w.mustBeSound(widgets, old)
		mustBeTidy(t, w)
	}
	if _, res, err := w.checked("", 0, nil); err != nil || res.After != bad || !res.Published {
		t.Errorf("admitted: got %+v, %v", res, err)
	}
	w.mustBeSound(widgets, bad)
	if c, _, err := w.checked("", 0, refusal); !errors.Is(err, refusal) || c.Published != bad || !slices.Equal(c.Commits, []string{bad}) {
		t.Errorf("a published commit: got %v, candidate %+v", err, c)
	}
	w.mustBeSound(widgets, bad)
}

func TestNoCheckCostsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	w.sync("")
	asked := 0
	req := w.request("")
	req.Known = Tip{testenv.Must(events.ParseRef(gitserver.Main))(t), commit}
	req.Check = func(tip Tip, isDefault bool) Check {
		if asked++; tip.Commit != commit || !isDefault {
			t.Errorf("asked for %+v, default %v", tip, isDefault)
		}
		return nil
	}
	before := fmt.Sprint(w.git.Stats(widgets))
	if res, err := w.volume.Sync(t.Context(), req); err != nil || res.Asked || asked != 1 {
		t.Errorf("got %+v, %v, asked %d times", res, err, asked)
	}
	if after := fmt.Sprint(w.git.Stats(widgets)); after != before {
		t.Error("the remote was contacted")
	}
}

// TestCandidateHistory checks what a candidate and a result say of history, at several depths.
func TestCandidateHistory(t *testing.T) {
	t.Parallel()
	for _, depth := range []events.Depth{0, 3, events.DepthFull} {
		w := newWorld(t)
		first := w.create(map[string]string{"a": "1"})
		if _, _, err := w.checked("", depth, nil); err != nil {
			t.Fatal(err)
		}
		second := w.push(map[string]string{"a": "2"})
		third := w.push(map[string]string{"a": "3"})
		c, res, err := w.checked("", depth, nil)
		want := History{Commits: []string{third, second}}
		if depth == 0 {
			want = History{Commits: []string{third}, Partial: true, Unknown: true}
		}
		if err != nil || res.Forced || !slices.Equal(c.Commits, want.Commits) || c.Partial != want.Partial || c.Unknown != want.Unknown || c.Rewound {
			t.Errorf("depth %v: got %+v, %+v, %v", depth, c, res, err)
		}
		other := w.commit(gitserver.Main, gitserver.Edit{Parent: first, Write: map[string]string{"a": "4"}})
		c, res, err = w.checked("", depth, nil)
		if known := depth != 0; err != nil || c.Rewound != known || res.Forced != known || c.Unknown == known || c.Commits[0] != other {
			t.Errorf("depth %v, rewritten: got %+v, forced %v, %v", depth, c, res.Forced, err)
		}
	}
}

// TestTagIsReadForItsCheck has the tag's commit in the store already, but not the tag.
func TestTagIsReadForItsCheck(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	w.sync("")
	testenv.Must(w.git.Git(t.Context(), widgets, "", "tag", "-a", "-m", "one", "v1"))(t)
	tag := strings.TrimSpace(testenv.Must(w.git.Git(t.Context(), widgets, "", "rev-parse", "refs/tags/v1"))(t))
	for range 2 {
		c, res, err := w.checked("refs/tags/v1", 0, nil)
		if err != nil || c.Object != tag || c.Commit != commit || res.After != commit {
			t.Fatalf("got %+v, %+v, %v", c, res, err)
		}
		if kind, content, err := c.Read(c.Object); err != nil || kind != "tag" || !strings.HasPrefix(string(content), "object "+commit) {
			t.Errorf("read %s %q, %v", kind, content, err)
		}
	}
}

// TestHistorySinceDamage rewrites history while the published tree is marked as damaged.
func TestHistorySinceDamage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	second := w.push(map[string]string{"a": "2"})
	_, res, err := w.checked("", events.DepthFull, nil)
	if err != nil {
		t.Fatal(err)
	}
	testenv.Must(0, checkout.GitDirOf(w.path(res.Tree)).Unmake())(t)
	w.commit(gitserver.Main, gitserver.Edit{Parent: first, Write: map[string]string{"a": "3"}})
	if c, _, err := w.checked("", events.DepthFull, nil); err != nil || c.Published != second || !c.Rewound || c.Unknown {
		t.Errorf("want published %s, rewound; got %+v, %v", second, c, err)
	}
}

// TestHistorySinceOtherName rewrites a branch that becomes the default branch at the same time.
func TestHistorySinceOtherName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	second := w.push(map[string]string{"a": "2"})
	head := func(branch string) {
		testenv.Must(w.git.Git(t.Context(), widgets, "", "symbolic-ref", "HEAD", "refs/heads/"+branch))(t)
	}
	w.commit("other", gitserver.Edit{Parent: first, Write: map[string]string{"b": "1"}})
	head("other")
	for _, ref := range []string{"", "refs/heads/" + gitserver.Main} {
		if _, _, err := w.checked(ref, events.DepthFull, nil); err != nil {
			t.Fatal(err)
		}
	}
	head(gitserver.Main)
	w.commit(gitserver.Main, gitserver.Edit{Parent: first, Write: map[string]string{"a": "3"}})
	if c, _, err := w.checked("", events.DepthFull, nil); err != nil || !c.Default || c.Published != second || !c.Rewound {
		t.Errorf("want published %s, rewound; got %+v, %v", second, c, err)
	}
}

// recordCandidate returns a check that admits each candidate and keeps it.
func recordCandidate(to *Candidate) Check {
	return func(_ context.Context, c Candidate) error {
		*to = c
		return nil
	}
}
