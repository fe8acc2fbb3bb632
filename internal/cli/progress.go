package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/state"
	"lockstep/internal/status"
	"lockstep/internal/term"
)

const progressEvery = 10 * time.Second // shorter syncs print nothing

// progressHelp is the part of a help that is about progress.
const progressHelp = "Progress is on standard error, every 10 s; unless the output is a table, as lines of JSON beside\n" +
	"warnings: repo, after_ms, phase (none while it waits), done, total, unit, failed."

// progressLine is how far long work is.
type progressLine struct {
	Repo    string `json:"repo,omitempty"`
	AfterMS int64  `json:"after_ms"` // since its work began
	events.Progress
	Failed int `json:"failed,omitempty"` // of the repositories that are done

	text  string // beside a table
	began time.Time
}

// newProgressLine returns the line of a change that has run for some time.
func newProgressLine(repo string, after time.Duration, p events.Progress) progressLine {
	text := fmt.Sprintf("%s after %v: %s", repo, after.Round(time.Second), term.Clean(status.Progress(p)))
	return progressLine{Repo: repo, AfterMS: after.Milliseconds(), Progress: p, text: text}
}

// print prints the line as text beside a table, else as JSON.
func (l progressLine) print(stderr io.Writer, out term.Output) {
	if !out.IsTable() {
		_ = json.NewEncoder(stderr).Encode(l)
		return
	}
	fmt.Fprintln(stderr, l.text)
}

// showLines prints the last line that was set, every 10 s until stop.
func showLines(stderr io.Writer, out term.Output, first string) (set func(progressLine), stop func()) {
	var current atomic.Pointer[progressLine]
	set = func(l progressLine) { l.began = time.Now(); current.Store(&l) }
	set(progressLine{text: first})
	return set, every(progressEvery, func(context.Context) {
		line := *current.Load()
		line.AfterMS = time.Since(line.began).Milliseconds()
		line.print(stderr, out)
	})
}

// showProgress prints the progress of a change on standard error every 10 s. Call stop before printing anything else.
func showProgress(
	std term.Streams, out term.Output, client redis.UniversalClient, cfg config.Config, change events.Change,
) (stop func()) {
	states := state.NewStore(client, cfg.Namespace())
	began := time.Now()
	return every(progressEvery, func(ctx context.Context) {
		if all, err := states.Activities(ctx); err == nil { // otherwise the result reports the problem
			progressOf(all, change, time.Since(began)).print(std.Stderr, out)
		}
	})
}

// every calls fn in intervals until stop, which waits for it. The context of fn ends then.
func every(interval time.Duration, fn func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				fn(ctx)
			}
		}
	})
	return func() { cancel(); ended.Wait() }
}

// progressOf returns the progress of a change or, if it is not running, of another change of its repository.
func progressOf(all []state.Activity, change events.Change, after time.Duration) progressLine {
	var found events.Progress
	for _, activity := range all {
		repo, err := events.ParseRepoPath(activity.Repo)
		if activity.Job == change.ID || found.Phase == "" && err == nil && repo.Equal(change.Repo) {
			found = activity.Progress
		}
	}
	line := newProgressLine(change.Repo.String(), after, found)
	if found.Phase == "" {
		line.text = fmt.Sprintf("%s after %v: waits for a worker; see lockstep status", line.Repo, after.Round(time.Second))
	}
	return line
}
