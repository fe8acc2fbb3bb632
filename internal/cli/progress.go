package cli

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/follow"
	"lockstep/internal/state"
	"lockstep/internal/term"
	"lockstep/internal/volume"
)

const (
	barAfter  = time.Second      // shorter phases get no bar
	lineEvery = 10 * time.Second // shorter syncs print no line
	lookEvery = time.Second      // poll of the workers' activities
	drawEvery = 100 * time.Millisecond
)

// labels names the phases. Other phases, from newer workers, are not shown.
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
	follow.PhaseFollow:  "sync",
}

// view draws progress.
type view interface {
	draw(p events.Progress, phase, total time.Duration) // durations of the phase and of the whole sync
	Close(failed bool)
}

// display shows the progress of a long sync: bars on a terminal, otherwise lines.
type display struct {
	view  view
	stop  context.CancelFunc
	drawn sync.WaitGroup

	mu    sync.Mutex
	ended []stretch // ended phases to draw once more
	now   stretch
}

// stretch is a phase with its start and end.
type stretch struct {
	events.Progress
	began, ended time.Time
}

// newDisplay starts a display on standard error. Close it before printing anything else.
func newDisplay(std term.Streams, cfg config.Config, repo events.RepoPath, out term.Output) *display {
	ctx, stop := context.WithCancel(context.Background())
	d := &display{view: &lines{w: std.Stderr, repo: repo}, stop: stop, now: stretch{began: time.Now()}}
	if term.Terminal(std.Stderr) && out.IsTable() && cfg.LogLevel == "" && std.Variable("TERM") != "dumb" && std.Variable("CI") == "" {
		d.view = &bars{w: std.Stderr}
	}
	d.drawn.Go(func() { d.Run(ctx) })
	return d
}

// Close stops the display and keeps its last state on the screen.
func (d *display) Close(failed bool) {
	d.stop()
	d.drawn.Wait()
	d.view.Close(failed)
}

// Show updates the progress.
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

// follow shows the progress of a change that a service handles, or of the change that it waits for, until stop is called.
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
			if all, err := states.Activities(ctx); err == nil { // otherwise the result reports the problem
				d.Show(progressOf(all, change))
			}
		}
	})
	return func() { cancel(); following.Wait() }
}

// progressOf returns the progress of the change or, if it is not running, of another change of its repository.
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

// label returns the name of a phase, or "" if unknown. A fetch has two names, by unit.
func label(p events.Progress) string {
	if p.Phase == events.PhaseFetch && p.Unit == "objects" {
		return "take in"
	}
	return labels[p.Phase]
}

// amount formats the work done in a phase, or returns "" if it is not counted.
func amount(p events.Progress) string {
	switch {
	case p.Unit == "bytes":
		return volume.BytesText(p.Done)
	case p.Unit != "objects" && p.Unit != "files" && p.Unit != "refs":
		return ""
	case p.Total > 0:
		return fmt.Sprintf("%d of %d %s", p.Done, p.Total, p.Unit)
	}
	return fmt.Sprintf("%d %s", p.Done, p.Unit)
}

// lines prints progress where there is no terminal.
type lines struct {
	w    io.Writer
	repo events.RepoPath
	last time.Duration // when the last line was printed
}

func (l *lines) draw(p events.Progress, _, total time.Duration) {
	if total < l.last+lineEvery {
		return
	}
	l.last = total
	text := label(p)
	if p.Phase == "" {
		text += "; see lockstep status"
	}
	if done := amount(p); done != "" {
		text += ", " + done
	}
	fmt.Fprintf(l.w, "%s after %v: %s\n", l.repo, total.Round(time.Second), text)
}

func (l *lines) Close(bool) {}
