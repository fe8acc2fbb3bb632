package hot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/bench/rig"
)

// Load configures the workers of contestants.
type Load struct {
	Processes, Slots int
	Work             time.Duration // on each task
	Limit            time.Duration // of a run
}

var errLimit = errors.New("the processes did not end within the limit")

// Play lets a contestant queue all tasks, and then starts its workers. It returns the figures and the contestant's version. All
// keys begin with prefix.
func (l Load) Play(ctx context.Context, env *rig.Env, server *rig.Redis, c rig.Contestant, tasks []Task, prefix string) (Figures, string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.Limit, errLimit)
	defer cancel()
	queue, err := l.startQueue(ctx, env, server, c, prefix)
	if err != nil {
		return Figures{}, "", err
	}
	defer queue.Kill()
	if err := queue.add(tasks...); err != nil {
		return Figures{}, "", err
	}
	_ = queue.Stdin.Close()
	if err := (rig.Workers{queue.Worker}).EachLine(ctx, func(int, string) error { return nil }); err != nil {
		return Figures{}, "", fmt.Errorf("queue the events: %w", err)
	}
	all := record{tasks: tasks, asked: map[int]int64{}}
	return l.work(ctx, env, server, c, prefix, &all, func(start int64) error {
		for _, t := range tasks {
			all.asked[t.Event] = start
		}
		return nil
	}, func(Task) ([]Task, error) { return nil, nil })
}

// loop is a closed loop: clients that each queue an event for a cold repository when their last one is settled, and hot
// repositories that always have a number of events queued.
type loop struct {
	Load
	hot, backlog   int // hot repositories, events queued to each
	repos, clients int // cold repositories, clients
	duration       time.Duration
}

// play runs the loop for its duration, and then waits until all events are settled.
func (l loop) play(ctx context.Context, env *rig.Env, server *rig.Redis, c rig.Contestant, prefix string) (Figures, string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.Limit, errLimit)
	defer cancel()
	queue, err := l.startQueue(ctx, env, server, c, prefix)
	if err != nil {
		return Figures{}, "", err
	}
	defer queue.stop()
	all, cold, until := record{asked: map[int]int64{}}, 0, int64(0)
	add := func(repo string, hot bool) (Task, error) {
		t := Task{Event: len(all.tasks), Repo: repo, Hot: hot}
		all.tasks = append(all.tasks, t)
		all.asked[t.Event] = rig.Monotonic()
		return t, queue.add(t)
	}
	next := func(settled Task) ([]Task, error) {
		if rig.Monotonic() > until {
			return nil, nil
		}
		repo := settled.Repo
		if !settled.Hot {
			cold++
			repo = fmt.Sprintf("bench/cold-%03d", cold%l.repos)
		}
		t, err := add(repo, settled.Hot)
		return []Task{t}, err
	}
	return l.work(ctx, env, server, c, prefix, &all, func(start int64) error {
		until = start + l.duration.Nanoseconds()
		for i := range l.hot * l.backlog {
			if _, err := add(fmt.Sprintf("bench/hot-%02d", i%l.hot), true); err != nil {
				return err
			}
		}
		for range l.clients {
			if _, err := next(Task{}); err != nil {
				return err
			}
		}
		return nil
	}, next)
}

// work starts the workers, calls begin at the start, and next for each task that is settled, until all are.
func (l Load) work(
	ctx context.Context, env *rig.Env, server *rig.Redis, c rig.Contestant, prefix string, all *record, begin func(start int64) error, next func(Task) ([]Task, error),
) (Figures, string, error) {
	workers, version, err := env.StartWorkers(ctx, l.Processes, c, "work", "--redis", server.URL, "--prefix", prefix,
		"--slots", strconv.Itoa(l.Slots), "--work-ms", strconv.FormatInt(l.Work.Milliseconds(), 10))
	defer workers.Kill()
	if err != nil {
		return Figures{}, "", err
	}
	told, err := workers.Go(ctx)
	if err != nil {
		return Figures{}, "", err
	}
	if err := begin(told.From); err != nil {
		return Figures{}, "", err
	}
	settled := map[int]bool{}
	err = workers.EachLine(ctx, func(_ int, line string) error {
		d, err := parseDone(line)
		if err != nil {
			return err
		}
		all.done = append(all.done, d)
		if d.Settled == 0 || settled[d.Event] || d.Event >= len(all.tasks) {
			return nil
		}
		settled[d.Event] = true
		if _, err := next(all.tasks[d.Event]); err != nil {
			return err
		}
		if len(settled) == len(all.tasks) {
			for _, w := range workers {
				_ = w.Stdin.Close() // fails if the worker has ended, which EachLine reports
			}
		}
		return nil
	})
	if errors.Is(err, errLimit) && len(settled) < len(all.tasks) {
		err = nil // what is not reported by then counts as lost
	}
	return all.judge(told.From), version, err
}

// queuer is the process with which a contestant queues events.
type queuer struct{ *rig.Worker }

func (l Load) startQueue(ctx context.Context, env *rig.Env, server *rig.Redis, c rig.Contestant, prefix string) (queuer, error) {
	workers, _, err := env.StartWorkers(ctx, 1, c, "queue", "--redis", server.URL, "--prefix", prefix)
	if err != nil {
		workers.Kill()
		return queuer{}, err
	}
	return queuer{workers[0]}, nil
}

// stop ends the process at the end of its input, so that it can clean up.
func (q queuer) stop() {
	_ = q.Stdin.Close()
	timer := time.AfterFunc(10*time.Second, func() { _ = q.Cmd.Process.Kill() })
	defer timer.Stop()
	_ = q.Wait() // what it could not queue counts as lost
}

// add queues tasks.
func (q queuer) add(tasks ...Task) error {
	for part := range slices.Chunk(tasks, 1000) {
		var lines strings.Builder
		for _, t := range part {
			fmt.Fprintln(&lines, t.Event, t.Repo)
		}
		if _, err := io.WriteString(q.Stdin, lines.String()); err != nil {
			return fmt.Errorf("queue events: %w", err)
		}
	}
	return nil
}
