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
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/bench"
)

const (
	benchWarmUp = 250 * time.Millisecond // all contend, nothing counts
	roundGrace  = 30 * time.Second       // for processes to start and to end
)

// contestant is a program that speaks the worker protocol of bench/README.md.
type contestant struct {
	name string
	argv []string
}

func parsePeer(flag string) (contestant, error) {
	name, command, _ := strings.Cut(flag, "=")
	argv := strings.Fields(command)
	if name == "" || len(argv) == 0 {
		return contestant{}, fmt.Errorf("--peer is %q; want NAME=COMMAND …", flag)
	}
	return contestant{name, argv}, nil
}

// contestResult is what one contestant did.
type contestResult struct {
	Name    string           `json:"name"`
	Version string           `json:"version,omitempty"`
	Median  bench.HandOffs   `json:"median"`
	Rounds  []bench.HandOffs `json:"rounds"`
}

// contestReport is the whole of it.
type contestReport struct {
	Machine     benchMachine    `json:"machine"`
	Processes   int             `json:"processes"`
	Waiters     int             `json:"waiters"`
	Hold        time.Duration   `json:"hold_ns"`
	Duration    time.Duration   `json:"duration_ns"`
	Contestants []contestResult `json:"contestants"`
}

// runContest has all contestants contend in turn, several times over.
func (b *lockBench) runContest(ctx context.Context, std streams, server *benchRedis, key string) error {
	self, err := thisProgram()
	if err != nil {
		return err
	}
	contestants := []contestant{self}
	for _, flag := range b.peers {
		peer, err := parsePeer(flag)
		if err != nil {
			return usageError(err)
		}
		contestants = append(contestants, peer)
	}
	report := contestReport{Machine: server.machine(), Processes: b.processes, Waiters: b.waiters, Hold: b.hold, Duration: b.duration}
	report.Contestants = make([]contestResult, len(contestants))
	for round := range b.rounds {
		for i, who := range contestants {
			fmt.Fprintf(std.stderr, "round %d of %d: %s\n", round+1, b.rounds, who.name)
			// No round meets what another has left behind.
			figures, version, err := b.contend(ctx, std, server, who, fmt.Sprintf("%s:%d:%d", key, round, i))
			if err != nil {
				return fmt.Errorf("bench %s: %w", who.name, err)
			}
			result := &report.Contestants[i]
			result.Name, result.Version = who.name, version
			result.Rounds = append(result.Rounds, figures)
			result.Median = bench.MedianHandOffs(result.Rounds)
		}
	}
	if err := report.print(std.stdout, b.out); err != nil {
		return err
	}
	return report.verdict()
}

// verdict is an error if any contestant's lock was none.
func (r contestReport) verdict() error {
	var errs []error
	for _, c := range r.Contestants {
		if c.Median.Overlaps > 0 {
			errs = append(errs, fmt.Errorf("bench %s: the key had two holders at once, %d times", c.Name, c.Median.Overlaps))
		}
	}
	return errors.Join(errs...)
}

// contend is one round of one contestant.
func (b *lockBench) contend(ctx context.Context, std streams, server *benchRedis, who contestant, key string) (bench.HandOffs, string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, benchWarmUp+b.duration+roundGrace, errors.New("its processes do not end"))
	defer cancel()
	args := append(who.argv[1:len(who.argv):len(who.argv)], "--redis", server.url, "--key", key, "--waiters", strconv.Itoa(b.waiters),
		"--hold", b.hold.String(), "--duration", (benchWarmUp + b.duration).String())
	workers := make([]*workerProcess, b.processes)
	for i := range workers {
		w, err := startWorkerProcess(ctx, std, who.argv[0], args)
		if err != nil {
			return bench.HandOffs{}, "", err
		}
		defer w.kill()
		workers[i] = w
	}
	version := ""
	for _, w := range workers {
		var err error
		if version, err = w.ready(); err != nil {
			return bench.HandOffs{}, "", w.explain(ctx, err)
		}
	}
	first, err := monotonic()
	if err != nil {
		return bench.HandOffs{}, "", err
	}
	for _, w := range workers {
		if _, err := io.WriteString(w.stdin, "\n"); err != nil {
			return bench.HandOffs{}, "", w.explain(ctx, err)
		}
	}
	last, err := monotonic()
	if err != nil {
		return bench.HandOffs{}, "", err
	}
	perProcess := make([][]bench.Grant, len(workers))
	var g errgroup.Group
	for i, w := range workers {
		g.Go(func() (err error) {
			if perProcess[i], err = w.grants(i, b.waiters); err != nil {
				return w.explain(ctx, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return bench.HandOffs{}, "", err
	}
	var all []bench.Grant
	for _, grants := range perProcess {
		all = append(all, grants...)
	}
	during := bench.Contention{
		Processes: b.processes, Waiters: b.waiters,
		From: last + benchWarmUp.Nanoseconds(), To: first + (benchWarmUp + b.duration).Nanoseconds(),
	}
	return bench.Summarize(during, all), version, nil
}

// workerProcess is one process of a contestant.
type workerProcess struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr bytes.Buffer // not to be read before the process has ended
	ended  bool
}

func startWorkerProcess(ctx context.Context, std streams, name string, args []string) (*workerProcess, error) {
	w := &workerProcess{cmd: exec.CommandContext(ctx, name, args...)}
	w.cmd.Env, w.cmd.Stderr = std.environ, &w.stderr
	w.cmd.WaitDelay = time.Second
	var err error
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.stdout = bufio.NewReader(stdout)
	return w, w.cmd.Start()
}

// ready waits for the worker's first line, and returns the version in it.
func (w *workerProcess) ready() (string, error) {
	line, err := w.stdout.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("a worker is not ready: %w", err)
	}
	version, ok := strings.CutPrefix(strings.TrimSpace(line), "ready")
	if !ok {
		return "", fmt.Errorf("a worker says %q; want ready", line)
	}
	return strings.TrimSpace(version), nil
}

// grants reads the worker's lines and waits for its end.
func (w *workerProcess) grants(process, waiters int) ([]bench.Grant, error) {
	var grants []bench.Grant
	lines := bufio.NewScanner(w.stdout)
	for lines.Scan() {
		g, err := bench.ParseGrant(process, lines.Text())
		if err != nil {
			return nil, err
		}
		if g.Waiter >= waiters {
			return nil, fmt.Errorf("grant %q: there are %d waiters", lines.Text(), waiters)
		}
		grants = append(grants, g)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	w.ended = true
	return grants, w.cmd.Wait()
}

func (w *workerProcess) kill() {
	if !w.ended {
		w.ended = true
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait()
	}
}

// explain ends the process and adds what it had to say, and why it was ended.
func (w *workerProcess) explain(ctx context.Context, err error) error {
	w.kill()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if said := strings.TrimSpace(w.stderr.String()); said != "" {
		return fmt.Errorf("%w: it says: %s", err, said)
	}
	return err
}

func (r contestReport) print(w io.Writer, out output) error {
	if !out.isTable() {
		return out.document(w, r)
	}
	rounds := 0
	for _, c := range r.Contestants {
		rounds = len(c.Rounds)
	}
	fmt.Fprintf(w, "%s\n%d processes × %d waiters, hold %v, %v; rounds: %d, medians (longest wait: of all)\n\n",
		r.Machine, r.Processes, r.Waiters, r.Hold, r.Duration, rounds)
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "\t\t\thand-off, ms\t\tbetween processes, ms\t\tlongest\tfewest/most grants\t\t\t")
	fmt.Fprintln(tw, "\tgrants/s\theld\tp50\tp99\tp50\tp99\twait, s\tper process\tper waiter\toverlaps\t")
	for _, c := range r.Contestants {
		m := c.Median
		fmt.Fprintf(tw, "%s\t%.0f\t%.1f %%\t%s\t%s\t%s\t%s\t%.2f\t%s\t%s\t%d\t\n",
			strings.TrimSpace(c.Name+" "+c.Version), m.GrantsPerSecond, 100*m.Busy,
			millis(m.HandOff.P50), millis(m.HandOff.P99), millis(m.Between.P50), millis(m.Between.P99),
			m.LongestWait.Seconds(), share(m.PerProcess), share(m.PerWaiter), m.Overlaps)
	}
	return tw.Flush()
}

func millis(d time.Duration) string {
	if d == 0 {
		return "–" // there was none
	}
	return fmt.Sprintf("%.3f", float64(d)/float64(time.Millisecond))
}

func share(s bench.Spread) string { return fmt.Sprintf("%d/%d %.2f", s.Fewest, s.Most, s.Ratio) }
