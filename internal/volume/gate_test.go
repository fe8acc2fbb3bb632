package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"lockstep/events"
	"lockstep/internal/git/wire"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// countingGate admits a number of requests and refuses the others.
type countingGate struct{ left, entered, open int }

var errHostLimited = events.Errorf(events.Contention, events.ClassLimited, "the host is at its limit")

func (g *countingGate) Enter(context.Context, string, bool) (wire.Permit, error) {
	g.entered++
	if g.left == 0 {
		return nil, errHostLimited
	}
	g.left--
	g.open++
	return g, nil
}

func (g *countingGate) Done(context.Context, wire.Answer) error {
	g.open--
	return nil
}

func TestEachOperationEntersTheGate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	w.push(map[string]string{"a": "2"})
	repo, url := repoPath(t, widgets), w.git.URL(widgets)
	other := repoPath(t, "acme/other")
	for name, operation := range map[string]func(gate wire.Gate) error{
		"sync": func(gate wire.Gate) error {
			req := w.request("")
			req.Gate = gate
			_, err := w.volume.Sync(t.Context(), req)
			return err
		},
		"list refs": func(gate wire.Gate) error {
			_, err := w.volume.ListRefs(t.Context(), ListRefsRequest{Repo: repo, URL: url, Gate: gate})
			return err
		},
		"remove": func(gate wire.Gate) error {
			_, err := w.volume.Remove(t.Context(), RemoveRequest{Repo: repo, URL: url, Fence: w.fence.Add(1), Gate: gate})
			return err
		},
		"remove ref": func(gate wire.Gate) error {
			w.commit("next", gitserver.Edit{Write: map[string]string{"b": "1"}})
			testenv.Must(w.trySync("next"))(t)
			req := w.request("next")
			_, err := w.volume.RemoveRef(t.Context(), RemoveRequest{Repo: repo, URL: url, Ref: req.Ref, Fence: req.Fence, Gate: gate})
			return err
		},
		"move": func(gate wire.Gate) error {
			testenv.Must(0, w.git.Alias("acme/other", widgets))(t)
			_, err := w.volume.Move(t.Context(), MoveRequest{
				From: repo, To: other, URL: w.git.URL("acme/other"), Fence: w.fence.Add(1), ToFence: w.fence.Add(1), Gate: gate,
			})
			return err
		},
	} {
		gate := &countingGate{}
		err := operation(gate)
		if !errors.Is(err, errHostLimited) || events.ClassOf(err) != events.ClassLimited || events.DispositionOf(err) != events.Contention {
			t.Errorf("%s: %v, want the gate's error", name, err)
		}
		if gate.entered != 1 {
			t.Errorf("%s: entered %d times", name, gate.entered)
		}
	}
}

func TestSyncHoldsOnePermitAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	gate := &countingGate{left: 2}
	req := w.request("")
	req.Gate = gate
	testenv.Must(w.volume.Sync(t.Context(), req))(t)
	w.mustBeSound(widgets, commit)
	if gate.entered != 2 || gate.open != 0 {
		t.Errorf("%+v, want two requests that have ended", gate)
	}
}

// TestLimitedFetchIsNotRepeated refuses the fetch after the list of refs, and a full fetch that is due.
func TestLimitedFetchIsNotRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	store := testenv.Must(w.volume.folder(repoPath(t, widgets)).currentStore(nil))(t)
	for _, due := range []bool{false, true} {
		commit := w.push(map[string]string{"a": "2", "due": map[bool]string{true: "yes"}[due]})
		if due {
			testenv.Must(0, os.WriteFile(filepath.Join(store.dir, refetchMark), nil, 0o600))(t)
		}
		gate := &countingGate{left: 1}
		req := w.request("")
		req.Gate = gate

		_, err := w.volume.Sync(t.Context(), req)

		testenv.MustFail(t, err, events.ClassLimited, events.Contention)
		if gate.entered != 2 {
			t.Errorf("full fetch due %v: %d requests", due, gate.entered)
		}
		if store.needsRefetch() != due {
			t.Errorf("full fetch due %v, and after it was refused %v", due, store.needsRefetch())
		}
		w.sync("")
		w.mustBeSound(widgets, commit)
	}
	if store.needsRefetch() && testenv.Must(w.volume.folder(repoPath(t, widgets)).currentStore(nil))(t) == store {
		t.Error("the full fetch is still due")
	}
}
