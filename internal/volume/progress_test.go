package volume

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// recorder records the progress reports of a sync.
type recorder struct {
	mu  sync.Mutex
	all []events.Progress
}

func (o *recorder) take(p events.Progress) {
	if !o.mu.TryLock() {
		panic("concurrent call")
	}
	defer o.mu.Unlock()
	o.all = append(o.all, p)
}

// phases returns the phases in the order in which they began, with their units.
func (o *recorder) phases() []string {
	var names []string
	for _, p := range o.all {
		name := string(p.Phase)
		if p.Unit != "" {
			name += " " + p.Unit
		}
		names = append(names, name)
	}
	return slices.Compact(names)
}

// last returns the last report of a phase and unit.
func (o *recorder) last(phase events.Phase, unit string) (last events.Progress) {
	for _, p := range o.all {
		if p.Phase == phase && p.Unit == unit {
			last = p
		}
	}
	return last
}

func (w *world) watchedSync(ref string) *recorder {
	w.t.Helper()
	var o recorder
	req := w.request(ref)
	req.Progress = o.take
	testenv.Must(w.volume.Sync(w.t.Context(), req))(w.t)
	for i, p := range o.all[1:] {
		before := o.all[i]
		if p.Phase == before.Phase && p.Unit == before.Unit && p.Total == before.Total && p.Done <= before.Done {
			w.t.Errorf("%+v comes after %+v", p, before)
		}
		if p.Total > 0 && p.Done > p.Total {
			w.t.Errorf("%+v: more than there are", p)
		}
	}
	return &o
}

func TestSyncReportsPhases(t *testing.T) {
	t.Parallel()
	for _, prepared := range []bool{false, true} {
		t.Run(fmt.Sprintf("prepared=%v", prepared), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.volume = w.open(t.TempDir(), Config{Grace: 1})
			testenv.Must(w.git.Generate(t.Context(), widgets, gitserver.Shape{Files: 500, Bytes: 2 << 20}))(t)

			first := w.watchedSync("")
			all := []string{"list", "fetch bytes", "fetch objects", "compare", "build files", "publish"}
			if got := first.phases(); !slices.Equal(got, all) {
				t.Errorf("a clone: %q, want %q", got, all)
			}
			if p := first.last(events.PhaseBuild, "files"); p.Done != 500 || p.Total != 500 {
				t.Errorf("built %+v, want 500 files of 500", p)
			}
			if p := first.last(events.PhaseFetch, "objects"); p.Total <= 500 || p.Done != p.Total {
				t.Errorf("took in %+v, want all of more than 500 objects", p)
			}
			if p := first.last(events.PhaseFetch, "bytes"); p.Done < 200<<10 {
				t.Errorf("received %+v, want most of a megabyte", p)
			}
			if got := w.watchedSync("").phases(); !slices.Equal(got, []string{"list"}) {
				t.Errorf("nothing is new: %q, want that it was listed", got)
			}
			for n := range 3 {
				w.push(map[string]string{"a": fmt.Sprint(n)})
				if prepared {
					w.prepare()
				}
				pushed := w.watchedSync("")
				if got := pushed.phases(); !slices.Equal(got, all) {
					t.Errorf("a push: %q, want %q", got, all)
				}
				if p := pushed.last(events.PhaseBuild, "files"); p.Done != p.Total || p.Done != 501 {
					t.Errorf("push %d: built %+v, want all of 501 files", n, p)
				}
			}
		})
	}
}

func TestFailedSyncReportsProgress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.volume = w.open(t.TempDir(), Config{MaxTreeBytes: 10})
	w.create(map[string]string{"a": "more than ten bytes"})
	var o recorder
	req := w.request("")
	req.Progress = o.take
	if _, err := w.volume.Sync(t.Context(), req); events.ClassOf(err) != events.ClassQuota {
		t.Fatalf("error %v, want one of quota", err)
	}
	if got := o.phases(); got[len(got)-1] != "build files" {
		t.Errorf("phases %q, want the build as the last", got)
	}
}

func TestReporterCountsConcurrently(t *testing.T) {
	t.Parallel()
	var o recorder
	g := newReporter(o.take)
	g.begin(events.PhaseFetch, "objects", 100)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 30 {
				g.count(1)
			}
		})
	}
	all.Wait()
	g.begin(events.PhaseCompare, "", 0)
	g.begin(events.PhaseCompare, "", 0)
	g.end()
	if p := o.last(events.PhaseFetch, "objects"); p.Done != 100 {
		t.Errorf("%+v, want it bounded by what there is", p)
	}
	if got := o.phases(); len(o.all) > 5 || len(got) != 2 {
		t.Errorf("reports %v", o.all)
	}
	newReporter(nil).begin(events.PhaseList, "", 0) // no callback
	newReporter(nil).count(1)
	newReporter(nil).end()
}

func BenchmarkReporter(b *testing.B) {
	g := newReporter(func(events.Progress) {})
	g.begin(events.PhaseFetch, "objects", int64(b.N))
	for b.Loop() {
		g.count(1)
	}
}
