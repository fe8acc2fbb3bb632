package hot

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

	"lockstep/bench/rig"
	"lockstep/internal/cli/term"
)

// Run is one turn of one contestant: all tasks are queued, then its processes begin.
type Run struct {
	*Bench
	Who    rig.Contestant
	Tasks  []Task
	Server *rig.Redis
	Prefix string // of all its keys
}

var errHotLimit = errors.New("its processes do not end")

// Play returns what became of the tasks, and the contestant's version.
func (r Run) Play(ctx context.Context, std term.Streams) (figures HotFigures, version string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.Limit, errHotLimit)
	defer cancel()
	defer func() { err = errors.Join(err, r.clear(context.WithoutCancel(ctx))) }()
	if err := r.queue(ctx, std); err != nil {
		return figures, "", err
	}
	workers := make([]*rig.Worker, r.Processes)
	for i := range workers {
		args := r.args("work", "--slots", strconv.Itoa(r.Slots), "--work-ms", strconv.FormatInt(r.Work.Milliseconds(), 10))
		if workers[i], err = rig.StartWorker(ctx, std, r.Who.Argv[0], args); err != nil {
			return figures, "", err
		}
		defer workers[i].Kill()
	}
	for _, w := range workers {
		if version, err = w.Ready(); err != nil {
			return figures, "", w.Explain(ctx, err)
		}
	}
	began, err := rig.Monotonic()
	if err != nil {
		return figures, "", err
	}
	for _, w := range workers {
		if _, err := io.WriteString(w.Stdin, "\n"); err != nil {
			return figures, "", w.Explain(ctx, err)
		}
	}
	done, err := r.watch(ctx, workers)
	return JudgeHot(r.Tasks, began, done), version, err
}

// queue has the contestant queue all tasks, before any of its workers is there.
func (r Run) queue(ctx context.Context, std term.Streams) error {
	var lines, said bytes.Buffer
	for _, t := range r.Tasks {
		fmt.Fprintln(&lines, t.Event, t.Repo)
	}
	cmd := exec.CommandContext(ctx, r.Who.Argv[0], r.args("queue")...)
	cmd.Env, cmd.Stdin, cmd.Stderr = std.Environ, &lines, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("queue the events: %w: it says: %s", err, strings.TrimSpace(said.String()))
	}
	return nil
}

// args makes the arguments of one of the contestant's commands.
func (r Run) args(what string, more ...string) []string {
	args := append([]string{}, r.Who.Argv[1:]...)
	return append(append(args, what, "--redis", r.Server.Url, "--prefix", r.Prefix), more...)
}

// watch reads what the workers say, and ends them when every task has been settled. Those who have
// not come that far when ctx ends are killed, and what they have not said was not done.
func (r Run) watch(ctx context.Context, workers []*rig.Worker) ([]Done, error) {
	var (
		mu      sync.Mutex
		done    []Done
		settled = map[int]bool{}
	)
	say := func(d Done) {
		mu.Lock()
		defer mu.Unlock()
		done = append(done, d)
		if d.Settled == 0 || settled[d.Event] {
			return
		}
		if settled[d.Event] = true; len(settled) == len(r.Tasks) {
			for _, w := range workers {
				_ = w.Stdin.Close() // one that has ended already is noticed where it is read
			}
		}
	}
	var g errgroup.Group
	for _, w := range workers {
		g.Go(func() error {
			if err := eachDone(w, say); err != nil && ctx.Err() == nil {
				return w.Explain(ctx, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil && (len(settled) == len(r.Tasks) || !errors.Is(context.Cause(ctx), errHotLimit)) {
		return nil, context.Cause(ctx)
	}
	return done, nil
}

// eachDone reads the worker's lines until it ends.
func eachDone(w *rig.Worker, say func(Done)) error {
	lines := bufio.NewScanner(w.Stdout)
	for lines.Scan() {
		d, err := ParseDone(lines.Text())
		if err != nil {
			return err
		}
		say(d)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	w.Ended = true
	return w.Cmd.Wait()
}

// clear deletes what the run has left in a Redis that others use too.
func (r Run) clear(ctx context.Context) error {
	if r.Server.Private != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, rig.RoundGrace)
	defer cancel()
	keys := r.Server.Client.Scan(ctx, 0, r.Prefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := r.Server.Client.Unlink(ctx, keys.Val()).Err(); err != nil {
			return fmt.Errorf("clear up: %w", err)
		}
	}
	return keys.Err()
}
