package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// waits acquires a slot in the background, returns once that waits, and sends its end.
func waits(ctx context.Context, s *Slots) <-chan error {
	before, ended := s.Room(), make(chan error, 1)
	go func() { ended <- s.Acquire(ctx) }()
	for s.Room() == before {
		time.Sleep(time.Millisecond)
	}
	return ended
}

func mustReceive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("no %s after a minute", what)
		panic("unreachable")
	}
}

func TestSlotsAreGrantedInOrder(t *testing.T) {
	t.Parallel()
	s := NewSlots(0) // at least one
	idle := s.Room()
	testenv.Must(0, s.Acquire(t.Context()))(t)
	first := waits(t.Context(), s)
	second := waits(t.Context(), s)
	if s.Room() != idle-2 {
		t.Errorf("room %d with two waiters, %d without", s.Room(), idle)
	}
	for _, next := range []<-chan error{first, second} {
		s.Release()
		if err := mustReceive(t, next, "slot"); err != nil {
			t.Fatal(err)
		}
	}
	for s.Room() != idle {
		time.Sleep(time.Millisecond)
	}
}

func TestClosedSlotsReturnWaiters(t *testing.T) {
	t.Parallel()
	s := NewSlots(1)
	testenv.Must(0, s.Acquire(t.Context()))(t)
	cause := errors.New("the lease is lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancelled := waits(ctx, s)
	waiting := waits(t.Context(), s)
	cancel(cause)
	if err := mustReceive(t, cancelled, "end of the wait"); !errors.Is(err, cause) {
		t.Errorf("cancelled: %v", err)
	}
	s.Close()
	for _, err := range []error{mustReceive(t, waiting, "end of the wait"), s.Acquire(t.Context())} {
		if events.DispositionOf(err) != events.Contention || events.ClassOf(err) != events.ClassBusy {
			t.Errorf("%v, want the change returned", err)
		}
	}
	s.Release()
	if err := s.Acquire(t.Context()); err != nil {
		t.Errorf("a free slot: %v", err)
	}
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
	testenv.Must(0, slots.Acquire(t.Context()))(t)
	var o recorder
	req, idle := w.request(""), slots.Room()
	req.Progress = o.take
	ended := make(chan error, 1)
	go func() {
		_, err := w.volume.Sync(t.Context(), req)
		ended <- err
	}()
	for slots.Room() == idle {
		time.Sleep(time.Millisecond)
	}
	if fetches := w.git.Stats(widgets).UploadPacks; fetches != 1 {
		t.Errorf("%d fetches before the slot, want one", fetches)
	}
	slots.Release()
	if err := mustReceive(t, ended, "end of the sync"); err != nil {
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
		service string
		parts   bool
	}{
		"list": {service: "info/refs"}, "fetch": {service: "git-upload-pack"},
		"submodule": {service: "git-upload-pack", parts: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hung, release := make(chan struct{}), make(chan struct{})
			w := newWorld(t, gitserver.WithBefore(func(ctx context.Context, repo, service string) {
				if repo != "acme/slow" || service != hangs.service {
					return
				}
				close(hung)
				select {
				case <-release:
				case <-ctx.Done():
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
			ended := make(chan error, 1)
			go func() {
				_, err := w.volume.Sync(t.Context(), first)
				ended <- err
			}()
			mustReceive(t, hung, "request to the slow remote")
			w.sync("")
			select {
			case err := <-ended:
				t.Errorf("the slow remote has answered: %v", err)
			default:
			}
			close(release)
			if err := mustReceive(t, ended, "end of the slow sync"); err != nil {
				t.Error(err)
			}
			mustBeFree(t, slots)
		})
	}
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
