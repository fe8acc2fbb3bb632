package cli

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/state"
	"lockstep/internal/volume"
)

const (
	barAfter  = time.Second            // a phase that is over sooner gets no bar
	lineEvery = 10 * time.Second       // at most one line in that time, and none of a sync that takes less
	lookEvery = time.Second            // at what workers of a service say
	drawEvery = 100 * time.Millisecond // and look whether a phase has become a long one
)

// labels are the phases in words. What is none of them is not shown: it came from elsewhere.
var labels = map[events.Phase]string{
	"":                  "wait for a worker",
	events.PhaseList:    "ask the remote",
	events.PhaseFetch:   "fetch",
	events.PhaseCompare: "compare",
	events.PhaseBuild:   "build",
	events.PhasePublish: "publish",
	events.PhaseRemove:  "remove",
	events.PhaseMove:    "move",
	events.PhasePoll:    "poll",
}

// view is what progress is drawn on.
type view interface {
	draw(p events.Progress, phase, total time.Duration) // for how long the phase has lasted, and all
	Close(failed bool)
}

// display shows how far a sync is, if that takes long: bars on a terminal, elsewhere a line now and then.
type display struct {
	view  view
	stop  context.CancelFunc
	drawn sync.WaitGroup

	mu    sync.Mutex
	ended []stretch // phases that are over and are to be drawn once more
	now   stretch
}

// stretch is the time that a phase takes.
type stretch struct {
	events.Progress
	began, ended time.Time
}

// newDisplay begins a display on standard error. Close it before anything else is printed.
func newDisplay(std term.Streams, cfg config.Config, repo events.RepoPath, out term.Output) *display {
	ctx, stop := context.WithCancel(context.Background())
	d := &display{view: &lines{w: std.Stderr, repo: repo}, stop: stop, now: stretch{began: time.Now()}}
	if term.Terminal(std.Stderr) && out.IsTable() && cfg.LogLevel == "" && std.Variable("TERM") != "dumb" && std.Variable("CI") == "" {
		d.view = &bars{w: std.Stderr}
	}
	d.drawn.Go(func() { d.Run(ctx) })
	return d
}

// Close ends the display. What is drawn stays.
func (d *display) Close(failed bool) {
	d.stop()
	d.drawn.Wait()
	d.view.Close(failed)
}

// Show is told how far the sync is.
func (d *display) Show(p events.Progress) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if label(p) == "" {
		return
	}
	if now := time.Now(); label(p) != label(d.now.Progress) {
		d.now.ended = now
		d.ended = append(d.ended, d.now)
		d.now.began, d.now.ended = now, time.Time{}
	}
	d.now.Progress = p
}

func (d *display) Run(ctx context.Context) {
	began, tick := time.Now(), time.NewTicker(drawEvery)
	defer tick.Stop()
	draw := func() {
		d.mu.Lock()
		phases := append(d.ended, d.now)
		d.ended = nil
		d.mu.Unlock()
		for _, phase := range phases {
			if phase.ended.IsZero() {
				phase.ended = time.Now()
			}
			d.view.draw(phase.Progress, phase.ended.Sub(phase.began), time.Since(began))
		}
	}
	for {
		select {
		case <-ctx.Done():
			draw()
			return
		case <-tick.C:
			draw()
		}
	}
}

// follow shows what workers of a service say of a change, or of another one for the same repository, until stop
// is called.
func (d *display) follow(ctx context.Context, client redis.UniversalClient, cfg config.Config, change events.Change) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	states := state.NewStore(client, cfg.Namespace())
	var following sync.WaitGroup
	following.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(lookEvery):
			}
			if all, err := states.Activities(ctx); err == nil { // else the result will say what is wrong
				d.Show(progressOf(all, change))
			}
		}
	})
	return func() { cancel(); following.Wait() }
}

// progressOf is how far a change is, or the work that it waits for.
func progressOf(all []state.Activity, change events.Change) (found events.Progress) {
	for _, activity := range all {
		if activity.Job == change.ID {
			return activity.Progress
		}
		if repo, err := events.ParseRepoPath(activity.Repo); err == nil && repo.Equal(change.Repo) {
			found = activity.Progress
		}
	}
	return found
}

// label is what a phase is called, "" for none that is known; a phase has one for each unit.
func label(p events.Progress) string {
	if p.Phase == events.PhaseFetch && p.Unit == "objects" {
		return "take in"
	}
	return labels[p.Phase]
}

// amount is how much of a phase is done, or "".
func amount(p events.Progress) string {
	switch {
	case p.Unit == "bytes":
		return volume.BytesText(p.Done)
	case p.Unit != "objects" && p.Unit != "files":
		return ""
	case p.Total > 0:
		return fmt.Sprintf("%d of %d %s", p.Done, p.Total, p.Unit)
	}
	return fmt.Sprintf("%d %s", p.Done, p.Unit)
}

// lines are for what is no terminal.
type lines struct {
	w    io.Writer
	repo events.RepoPath
	told time.Duration
}

func (l *lines) draw(p events.Progress, _, total time.Duration) {
	if total < l.told+lineEvery {
		return
	}
	l.told = total
	text := label(p)
	if done := amount(p); done != "" {
		text += ", " + done
	}
	fmt.Fprintf(l.w, "%s after %v: %s\n", l.repo, total.Round(time.Second), text)
}

func (l *lines) Close(bool) {}
