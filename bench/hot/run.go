package hot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"lockstep/bench/rig"
)

// Load configures how contestants work on queued tasks.
type Load struct {
	Processes, Slots int
	Work             time.Duration // on each task
	Limit            time.Duration // of a run
}

var errLimit = errors.New("the processes did not end within the limit")

// Play lets a contestant queue all tasks and then starts its workers. It returns the figures and the contestant's
// version. All keys begin with prefix.
func (l Load) Play(ctx context.Context, env *rig.Env, server *rig.Redis, c rig.Contestant, tasks []Task, prefix string) (figures Figures, version string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.Limit, errLimit)
	defer cancel()
	defer server.Clear(ctx, prefix)
	if err := queue(ctx, env, c, tasks, "--redis", server.URL, "--prefix", prefix); err != nil {
		return figures, "", err
	}
	workers, version, err := env.StartWorkers(ctx, l.Processes, c, "work", "--redis", server.URL, "--prefix", prefix,
		"--slots", strconv.Itoa(l.Slots), "--work-ms", strconv.FormatInt(l.Work.Milliseconds(), 10))
	defer workers.Kill()
	if err != nil {
		return figures, "", err
	}
	told, err := workers.Go(ctx)
	if err != nil {
		return figures, "", err
	}
	done, err := watch(ctx, workers, len(tasks))
	return judge(tasks, told.From, done), version, err
}

// queue lets the contestant queue all tasks.
func queue(ctx context.Context, env *rig.Env, c rig.Contestant, tasks []Task, args ...string) error {
	w, err := env.StartWorker(ctx, c, append([]string{"queue"}, args...)...)
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, t := range tasks {
		fmt.Fprintln(&lines, t.Event, t.Repo)
	}
	_, _ = io.WriteString(w.Stdin, lines.String()) // fails if the worker has ended, which EachLine reports
	_ = w.Stdin.Close()
	if err := (rig.Workers{w}).EachLine(ctx, func(int, string) error { return nil }); err != nil {
		return fmt.Errorf("queue the events: %w", err)
	}
	return nil
}

// watch reads what the workers print, and stops them when all tasks are settled. Work that is not reported before
// ctx is done counts as not done.
func watch(ctx context.Context, workers rig.Workers, tasks int) ([]done, error) {
	var all []done
	settled := map[int]bool{}
	err := workers.EachLine(ctx, func(_ int, line string) error {
		d, err := parseDone(line)
		if err != nil {
			return err
		}
		all = append(all, d)
		if d.Settled == 0 || settled[d.Event] {
			return nil
		}
		if settled[d.Event] = true; len(settled) == tasks {
			for _, w := range workers {
				_ = w.Stdin.Close() // fails if the worker has ended, which EachLine reports
			}
		}
		return nil
	})
	if errors.Is(err, errLimit) && len(settled) < tasks {
		return all, nil
	}
	return all, err
}
