package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"lockstep/bench/hot"
)

// hotRun is one turn of one contestant: all tasks are queued, then its processes begin.
type hotRun struct {
	*hotBench
	who    contestant
	tasks  []hot.Task
	server *benchRedis
	prefix string // of all its keys
}

var errHotLimit = errors.New("its processes do not end")

// play returns what became of the tasks, and the contestant's version.
func (r hotRun) play(ctx context.Context, std streams) (figures hot.HotFigures, version string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.limit, errHotLimit)
	defer cancel()
	defer func() { err = errors.Join(err, r.clear(context.WithoutCancel(ctx))) }()
	if err := r.queue(ctx, std); err != nil {
		return figures, "", err
	}
	workers := make([]*workerProcess, r.processes)
	for i := range workers {
		args := r.args("work", "--slots", strconv.Itoa(r.slots), "--work-ms", strconv.FormatInt(r.work.Milliseconds(), 10))
		if workers[i], err = startWorkerProcess(ctx, std, r.who.argv[0], args); err != nil {
			return figures, "", err
		}
		defer workers[i].kill()
	}
	for _, w := range workers {
		if version, err = w.ready(); err != nil {
			return figures, "", w.explain(ctx, err)
		}
	}
	began, err := monotonic()
	if err != nil {
		return figures, "", err
	}
	for _, w := range workers {
		if _, err := io.WriteString(w.stdin, "\n"); err != nil {
			return figures, "", w.explain(ctx, err)
		}
	}
	done, err := r.watch(ctx, workers)
	return hot.JudgeHot(r.tasks, began, done), version, err
}

// queue has the contestant queue all tasks, before any of its workers is there.
func (r hotRun) queue(ctx context.Context, std streams) error {
	var lines, said bytes.Buffer
	for _, t := range r.tasks {
		fmt.Fprintln(&lines, t.Event, t.Repo)
	}
	cmd := exec.CommandContext(ctx, r.who.argv[0], r.args("queue")...)
	cmd.Env, cmd.Stdin, cmd.Stderr = std.environ, &lines, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("queue the events: %w: it says: %s", err, strings.TrimSpace(said.String()))
	}
	return nil
}

// args makes the arguments of one of the contestant's commands.
func (r hotRun) args(what string, more ...string) []string {
	args := append([]string{}, r.who.argv[1:]...)
	return append(append(args, what, "--redis", r.server.url, "--prefix", r.prefix), more...)
}

// watch reads what the workers say, and ends them when every task has been settled. Those who have
// not come that far when ctx ends are killed, and what they have not said was not done.
func (r hotRun) watch(ctx context.Context, workers []*workerProcess) ([]hot.Done, error) {
	var (
		mu      sync.Mutex
		done    []hot.Done
		settled = map[int]bool{}
	)
	say := func(d hot.Done) {
		mu.Lock()
		defer mu.Unlock()
		done = append(done, d)
		if d.Settled == 0 || settled[d.Event] {
			return
		}
		if settled[d.Event] = true; len(settled) == len(r.tasks) {
			for _, w := range workers {
				_ = w.stdin.Close() // one that has ended already is noticed where it is read
			}
		}
	}
	var g errgroup.Group
	for _, w := range workers {
		g.Go(func() error {
			if err := eachDone(w, say); err != nil && ctx.Err() == nil {
				return w.explain(ctx, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil && (len(settled) == len(r.tasks) || !errors.Is(context.Cause(ctx), errHotLimit)) {
		return nil, context.Cause(ctx)
	}
	return done, nil
}

// eachDone reads the worker's lines until it ends.
func eachDone(w *workerProcess, say func(hot.Done)) error {
	lines := bufio.NewScanner(w.stdout)
	for lines.Scan() {
		d, err := hot.ParseDone(lines.Text())
		if err != nil {
			return err
		}
		say(d)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	w.ended = true
	return w.cmd.Wait()
}

// clear deletes what the run has left in a Redis that others use too.
func (r hotRun) clear(ctx context.Context) error {
	if r.server.private != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, roundGrace)
	defer cancel()
	keys := r.server.client.Scan(ctx, 0, r.prefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := r.server.client.Unlink(ctx, keys.Val()).Err(); err != nil {
			return fmt.Errorf("clear up: %w", err)
		}
	}
	return keys.Err()
}
