package lock

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"lockstep/bench/rig"
	"lockstep/internal/cli/term"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
)

func TestWorkerSpeaksTheProtocol(t *testing.T) {
	server := redistest.Start(t)
	proctest.WithLongerTimeouts(t, 200*time.Millisecond, func(d time.Duration) error {
		if got := contendingWaiters(t, server, d); len(got) != 3 {
			return fmt.Errorf("in %v waiters %v got the key; want all 3", d, got)
		}
		return nil
	})
}

// contendingWaiters runs a worker of three waiters for a duration, and returns the waiters that got the key.
func contendingWaiters(t *testing.T, server *redistest.Server, d time.Duration) map[int]bool {
	t.Helper()
	stdin, start := io.Pipe()
	out, stdout := io.Pipe()
	done := make(chan error, 1)
	go func() {
		cmd := NewWorkerCommand(term.Streams{Stdout: stdout, Stderr: io.Discard})
		cmd.SetIn(stdin)
		cmd.SetArgs([]string{"--redis", server.URL(), "--key", "k", "--waiters", "3", "--hold", "1ms", "--duration", d.String()})
		err := cmd.ExecuteContext(t.Context())
		stdout.CloseWithError(err)
		done <- err
	}()
	lines := bufio.NewScanner(out)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "ready") {
		t.Fatalf("the first line is %q; want ready (%v)", lines.Text(), lines.Err())
	}
	began := rig.Monotonic()
	if _, err := io.WriteString(start, "\n"); err != nil {
		t.Fatal(err)
	}
	waiters := map[int]bool{}
	var last int64
	var grants []grant
	for lines.Scan() {
		g := proctest.Must(parseGrant(0, lines.Text()))(t)
		if g.Asked < began || g.Released-g.Granted < time.Millisecond.Nanoseconds() {
			t.Errorf("grant %+v: asked before the start at %d, or not held for 1 ms", g, began)
		}
		waiters[g.Waiter] = true
		last = max(last, g.Released)
		grants = append(grants, g)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	all := summarize(contention{Processes: 1, Waiters: 3, Span: rig.Span{From: began, To: last + 1}}, grants)
	if all.Overlaps != 0 || all.Grants != len(grants) {
		t.Errorf("%+v of %d grants; want them all, one after the other", all, len(grants))
	}
	return waiters
}

func TestErrorNamesAPeerThatIsNoWorker(t *testing.T) {
	server := redistest.Start(t)
	b := bench{processes: 2, waiters: 1, duration: time.Second}
	env := &rig.Env{}
	t.Cleanup(env.Close)
	redis := proctest.Must(env.OpenRedis(t.Context(), server.URL()))(t)
	for name, tc := range map[string]struct {
		argv []string
		want string
	}{
		"ends at once":      {[]string{"true"}, "not ready"},
		"says other things": {[]string{"echo", "hello"}, `"hello --redis`},
		"does not exist":    {[]string{"no-such-program"}, "no-such-program"},
		"fails":             {[]string{"sh", "-c", "echo out of order >&2; exit 1"}, "out of order"},
	} {
		_, _, err := b.contend(t.Context(), &rig.Env{}, redis, rig.Contestant{Name: "peer", Argv: tc.argv}, "k")
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("a peer that %s: got %v; want %q in it", name, err, tc.want)
		}
	}
}

func TestHoldManyLeases(t *testing.T) {
	server := redistest.StartReal(t) // the embedded Redis does not report its CPU time
	env := &rig.Env{}
	t.Cleanup(env.Close)
	redis := proctest.Must(env.OpenRedis(t.Context(), server.URL()))(t)
	const n = 300
	var report HoldReport
	proctest.WithLongerTimeouts(t, 500*time.Millisecond, func(lease time.Duration) error {
		d := 2 * lease
		report = proctest.Must(holdMany(t.Context(), redis, "k", n, lease, d))(t)
		if report.Leases != n || report.Lost != 0 || report.Duration < d || report.Locker.Used <= 0 || report.Redis.Used <= 0 {
			return fmt.Errorf("%+v; want %d leases held for %v, none lost", report, n, d)
		}
		return nil
	})
	var table bytes.Buffer
	if err := report.Table(&table); err != nil || !strings.Contains(table.String(), fmt.Sprintf("%d leases", n)) {
		t.Errorf("%v\n%s", err, table.String())
	}
}
