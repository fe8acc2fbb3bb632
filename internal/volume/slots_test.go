package volume

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// waits acquires a slot in the background, returns once that waits, and sends its end.
func waits(ctx context.Context, s *Slots) <-chan error {
	before, ended := s.Room(), make(chan error, 1)
	go func() { ended <- s.acquire(ctx) }()
	for s.Room() == before {
		time.Sleep(time.Millisecond)
	}
	return ended
}

func TestSlotsAreGrantedInOrder(t *testing.T) {
	t.Parallel()
	s := NewSlots(0) // at least one
	idle := s.Room()
	testenv.Must(0, s.acquire(t.Context()))(t)
	first := waits(t.Context(), s)
	second := waits(t.Context(), s)
	if s.Room() != idle-2 {
		t.Errorf("room %d with two waiters, %d without", s.Room(), idle)
	}
	for _, next := range []<-chan error{first, second} {
		s.free.Release(1)
		if err := testenv.Receive(t, next, "slot"); err != nil {
			t.Fatal(err)
		}
	}
	for s.Room() != idle {
		time.Sleep(time.Millisecond)
	}
}

// TestLargeTreesTakeTurns has slots for two jobs with large trees and a small one.
func TestLargeTreesTakeTurns(t *testing.T) {
	t.Parallel()
	s, none := NewSlots(3), newReporter(nil)
	first, second, small := slot{slots: s}, slot{slots: s}, slot{slots: s}
	testenv.Must(0, first.grow(t.Context(), none))(t)
	ended := make(chan error, 1)
	go func() { ended <- second.grow(t.Context(), none) }()
	testenv.Must(0, small.take(t.Context(), none))(t)
	select {
	case err := <-ended:
		t.Fatalf("a second large tree has a slot: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	first.leave()
	testenv.Must(0, testenv.Receive(t, ended, "turn of the second"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := first.take(ctx, none); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled wait: %v", err)
	}
	second.leave()
	testenv.Must(0, s.free.Acquire(t.Context(), 2))(t) // the turn is free, but no slot
	ctx, cancel = context.WithCancel(t.Context())
	go func() { ended <- first.take(ctx, none) }()
	for s.large.TryAcquire(1) {
		s.large.Release(1)
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := testenv.Receive(t, ended, "end of the wait"); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled wait for the slot: %v", err)
	}
	s.free.Release(2)
	small.leave()
	if !s.large.TryAcquire(1) || !s.free.TryAcquire(3) {
		t.Error("a slot is still held")
	}
}

func TestCancelledWaitReturnsTheCause(t *testing.T) {
	t.Parallel()
	s := NewSlots(1)
	testenv.Must(0, s.acquire(t.Context()))(t)
	cause := errors.New("the lease is lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancelled := waits(ctx, s)
	cancel(cause)
	if err := testenv.Receive(t, cancelled, "end of the wait"); !errors.Is(err, cause) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestClosedSlotsReturnOnlyWhatHasNotBegun closes the slots while one sync waits after its fetch, and another, of a
// commit that the store has, before it has done anything.
func TestClosedSlotsReturnOnlyWhatHasNotBegun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slots := NewSlots(1)
	w.volume = w.open(t.TempDir(), Config{Slots: slots})
	w.createAt("acme/other", map[string]string{"a": "1"})
	w.create(map[string]string{"a": "1"})
	w.sync("")
	testenv.Must(0, w.git.SetRef(t.Context(), widgets, "refs/heads/again", w.git.Head(widgets, "refs/heads/main")))(t)
	testenv.Must(0, slots.acquire(t.Context()))(t)
	fetched := w.syncsAndWaits(slots, w.requestAt("acme/other", ""))
	known := w.syncsAndWaits(slots, w.request("again"))
	slots.Close()
	for _, err := range []error{testenv.Receive(t, known, "end of the sync"), (&slot{slots: slots}).take(t.Context(), nil)} {
		if events.DispositionOf(err) != events.Contention || events.ClassOf(err) != events.ClassBusy {
			t.Errorf("%v, want the change returned", err)
		}
	}
	slots.free.Release(1)
	if err := testenv.Receive(t, fetched, "end of the sync"); err != nil {
		t.Errorf("after its fetch: %v", err)
	}
	w.sync("again") // a slot is free
	mustBeFree(t, slots)
}

func TestOptionalWorkLeavesItsSlotToAnyJob(t *testing.T) {
	t.Parallel()
	s := NewSlots(1)
	never := func(context.Context) error { t.Error("work without a slot"); return nil }
	var next <-chan error
	err := s.TryDo(t.Context(), func(ctx context.Context) error {
		next = waits(t.Context(), s)
		return context.Cause(mustEnd(t, ctx))
	})
	if !errors.Is(err, ErrWanted) {
		t.Errorf("%v, want the work cancelled", err)
	}
	if err := testenv.Receive(t, next, "slot"); err != nil {
		t.Fatal(err)
	}
	if err := s.TryDo(t.Context(), never); !errors.Is(err, ErrWanted) {
		t.Errorf("without a free slot: %v", err)
	}
}

// mustEnd waits until ctx is done.
func mustEnd(t *testing.T, ctx context.Context) context.Context {
	t.Helper()
	testenv.Receive(t, ctx.Done(), "cancellation")
	return ctx
}

// syncsAndWaits syncs in the background, returns once that waits for a slot, and sends its end.
func (w *world) syncsAndWaits(slots *Slots, req SyncRequest) <-chan error {
	idle, ended := slots.Room(), make(chan error, 1)
	go func() {
		_, err := w.volume.Sync(w.t.Context(), req)
		ended <- err
	}()
	for slots.Room() == idle {
		time.Sleep(time.Millisecond)
	}
	return ended
}

// mustBeFree checks that all slots are free.
func mustBeFree(t *testing.T, s *Slots) {
	t.Helper()
	for range s.size {
		if !s.free.TryAcquire(1) {
			t.Fatal("a slot is still held")
		}
	}
	s.free.Release(int64(s.size))
}

func TestSyncWaitsForItsSlot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slots := NewSlots(1)
	w.volume = w.open(t.TempDir(), Config{Slots: slots})
	w.create(map[string]string{"a": "1"})
	testenv.Must(0, slots.acquire(t.Context()))(t)
	var o recorder
	req := w.request("")
	req.Progress = o.take
	ended := w.syncsAndWaits(slots, req)
	if fetches := w.git.Stats(widgets).UploadPacks; fetches != 1 {
		t.Errorf("%d fetches before the slot, want one", fetches)
	}
	slots.free.Release(1)
	if err := testenv.Receive(t, ended, "end of the sync"); err != nil {
		t.Fatal(err)
	}
	if got := o.phases(); got[2] != "wait" || !slices.Contains(got, "publish") {
		t.Errorf("phases %q, want a wait after the fetch", got)
	}
	mustBeFree(t, slots)
	for _, fails := range []func() error{
		func() error { _, err := w.trySync("refs/heads/none"); return err },
		func() error {
			req := w.request("")
			w.push(map[string]string{"a": "2"})
			req.Confirm = func(context.Context) error { return errors.New("lost") }
			_, err := w.volume.Sync(t.Context(), req)
			return err
		},
	} {
		if fails() == nil {
			t.Error("a sync that should fail succeeds")
		}
		mustBeFree(t, slots)
	}
}

func TestNoSlotIsHeldWhileRemoteHangs(t *testing.T) {
	t.Parallel()
	for name, hangs := range map[string]struct {
		service    string
		parts      bool
		lfs, built bool // built: while the tree is built, because an object is damaged
	}{
		"list": {service: "info/refs"}, "fetch": {service: "git-upload-pack"},
		"submodule": {service: "git-upload-pack", parts: true},
		"lfs":       {lfs: true}, "lfs in build": {lfs: true, built: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hung, release := make(chan struct{}), make(chan struct{})
			hang := func(ctx context.Context) {
				close(hung)
				select {
				case <-release:
				case <-ctx.Done():
				}
			}
			w := newWorld(t, gitserver.WithBefore(func(ctx context.Context, repo, service string) {
				if repo == "acme/slow" && service == hangs.service {
					hang(ctx)
				}
			}))
			slots := NewSlots(1)
			w.volume = w.open(t.TempDir(), Config{Slots: slots})
			slow := w.createAt("acme/slow", map[string]string{"a": "1"})
			w.create(map[string]string{"a": "1"})
			first := w.requestAt("acme/slow", "")
			if hangs.parts {
				testenv.Must(0, w.git.CreateEmpty(t.Context(), "acme/super"))(t)
				w.withParts("acme/super", map[string]string{"sub": slow}, map[string]string{"sub": "../slow.git"}, nil)
				first = w.requestAt("acme/super", "")
				first.Submodules = events.SubmodulesRequired
			}
			if hangs.lfs {
				server := w.git.LFS("acme/slow")
				large := gitserver.Edit{Write: map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put("large")}}
				w.commitAt("acme/slow", large)
				if first.LFS = allLFS; hangs.built {
					testenv.Must(w.volume.Sync(t.Context(), first))(t)
					testenv.Must(0, os.WriteFile(w.path("acme/slow", "a.bin"), []byte("altered"), 0o644))(t)
					w.commitAt("acme/slow", gitserver.Edit{Write: map[string]string{"a": "2"}})
					first = w.requestAt("acme/slow", "")
					first.LFS = allLFS
				}
				server.Set(gitserver.LFSHooks{Get: func(_ http.ResponseWriter, r *http.Request, _ string) bool {
					hang(r.Context())
					return false
				}})
			}
			ended := make(chan error, 1)
			go func() {
				_, err := w.volume.Sync(t.Context(), first)
				ended <- err
			}()
			testenv.Receive(t, hung, "request to the slow remote")
			w.sync("")
			select {
			case err := <-ended:
				t.Errorf("the slow remote has answered: %v", err)
			default:
			}
			close(release)
			if err := testenv.Receive(t, ended, "end of the slow sync"); err != nil {
				t.Error(err)
			}
			mustBeFree(t, slots)
		})
	}
}

// TestUnchangedViewsNeedNoSlot compares and publishes views while no slot is free and the slots are closed.
func TestUnchangedViewsNeedNoSlot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slots := NewSlots(1)
	w.volume = w.open(t.TempDir(), Config{Slots: slots})
	w.create(map[string]string{"api/a": "1", "b": "1"})
	views := map[string][]string{"api": {"api"}}
	base := w.sync("")
	w.publishViews(base, views)
	w.push(map[string]string{"api/a": "2"})
	next := w.sync("")
	testenv.Must(0, slots.acquire(t.Context()))(t)
	slots.Close()
	w.publishViews(base, views)
	if changed := testenv.Must(w.compareViews(next.After, base.After, views, nil))(t); len(changed) != 1 {
		t.Errorf("changed: %v", changed)
	}
	idle, ended := slots.Room(), make(chan error, 2)
	go func() { ended <- w.volume.PublishSubtrees(t.Context(), w.viewRequest(next, views)) }()
	go func() {
		_, err := w.compareViews(next.After, "", views, nil)
		ended <- err
	}()
	for slots.Room() != idle-2 {
		time.Sleep(time.Millisecond)
	}
	slots.free.Release(1)
	for range 2 {
		if err := testenv.Receive(t, ended, "end of the wait"); err != nil {
			t.Error(err)
		}
	}
	mustBeFree(t, slots)
}

// TestPartsShareOneSlot fetches many submodules at once with a single slot.
func TestPartsShareOneSlot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slots := NewSlots(1)
	w.volume = w.open(t.TempDir(), Config{Slots: slots})
	requests := &together{n: maxFetches, enough: make(chan struct{})}
	base := w.before(requests.wait)
	paths := w.many(2 * maxFetches)
	for n := range 2 {
		req := w.requestParts(events.SubmodulesRequired)
		req.URL = base + "/acme/widgets.git"
		testenv.Must(w.volume.Sync(t.Context(), req))(t)
		w.mustHave(paths)
		mustBeFree(t, slots)
		w.push(map[string]string{"a": fmt.Sprint(n)})
	}
}

// TestTreesOfManyFilesAreRead publishes a tree with more files than are read at any time, and a push to it.
func TestTreesOfManyFilesAreRead(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	slots := NewSlots(2)
	w.volume = w.open(t.TempDir(), Config{Slots: slots})
	tree := testenv.Must(w.git.Git(t.Context(), widgets, "1", "hash-object", "-w", "--stdin"))(t)
	for level, mode := range []string{"100644 blob", "040000 tree", "040000 tree"} {
		var entries strings.Builder
		for i := range []int{100, 100, manyFiles/10_000 + 1}[level] {
			fmt.Fprintf(&entries, "%s %s\t%d\n", mode, tree, i)
		}
		tree = testenv.Must(w.git.Git(t.Context(), widgets, entries.String(), "mktree"))(t)
	}
	for _, parents := range [][]string{nil, {"-p", "refs/heads/" + gitserver.Main}} {
		args := slices.Concat([]string{"-c", "user.name=a", "-c", "user.email=a@example.com", "commit-tree", "-m", "x"}, parents, []string{tree})
		commit := testenv.Must(w.git.Git(t.Context(), widgets, "", args...))(t)
		testenv.Must(0, w.git.SetRef(t.Context(), widgets, "refs/heads/"+gitserver.Main, commit))(t)
		if res := w.sync(""); res.After != commit {
			t.Errorf("%+v, want %s", res, commit)
		}
		last := fmt.Sprint(manyFiles / 10_000)
		for _, path := range []string{"0/0/0", last + "/99/99"} {
			if content, err := os.ReadFile(w.path(widgets, path)); string(content) != "1" {
				t.Errorf("%s: %q, %v", path, content, err)
			}
		}
		if !slots.large.TryAcquire(1) {
			t.Fatal("the turn of large trees is still held")
		}
		slots.large.Release(1)
		tree = testenv.Must(w.git.Git(t.Context(), widgets, testenv.Must(w.git.Git(t.Context(), widgets, "", "ls-tree", tree))(t)+"\n100644 blob "+
			testenv.Must(w.git.Git(t.Context(), widgets, "2", "hash-object", "-w", "--stdin"))(t)+"\tnew\n", "mktree"))(t)
	}
}
