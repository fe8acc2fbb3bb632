package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/bench/lock"
	"lockstep/bench/rig"
	"lockstep/internal/cli/term"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
)

// runBench runs the bench command in this process.
func runBench(t *testing.T, stdin io.Reader, stdout io.Writer, args ...string) error {
	t.Helper()
	cmd := newCommand(term.Streams{Stdout: stdout, Stderr: io.Discard})
	cmd.SetIn(stdin)
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(io.Discard)
	return cmd.ExecuteContext(t.Context())
}

func TestABenchWorkerSpeaksTheProtocol(t *testing.T) {
	server := redistest.Start(t)
	proctest.WithLongerTimeouts(t, 200*time.Millisecond, func(d time.Duration) error {
		if got := benchWaiters(t, server, d); len(got) != 3 {
			return fmt.Errorf("in %v waiters %v got the key; want all 3", d, got)
		}
		return nil
	})
}

// benchWaiters has a worker of three waiters contend for so long, and returns those who got the key.
func benchWaiters(t *testing.T, server *redistest.Server, d time.Duration) map[int]bool {
	t.Helper()
	stdin, start := io.Pipe()
	out, stdout := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := runBench(t, stdin, stdout, "lock-worker", "--redis", server.URL(), "--key", "k", "--waiters", "3", "--hold", "1ms", "--duration", d.String())
		stdout.CloseWithError(err)
		done <- err
	}()
	lines := bufio.NewScanner(out)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "ready") {
		t.Fatalf("first it says %q; want ready (%v)", lines.Text(), lines.Err())
	}
	began := proctest.Must(rig.Monotonic())(t)
	if _, err := io.WriteString(start, "\n"); err != nil {
		t.Fatal(err)
	}
	waiters := map[int]bool{}
	var last int64
	var grants []lock.Grant
	for lines.Scan() {
		g := proctest.Must(lock.ParseGrant(0, lines.Text()))(t)
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
	all := lock.Summarize(lock.Contention{Processes: 1, Waiters: 3, From: began, To: last + 1}, grants)
	if all.Overlaps != 0 || all.Grants != len(grants) {
		t.Errorf("%+v of %d grants; want them all, one after the other", all, len(grants))
	}
	return waiters
}

func TestBenchLockMeasuresProcessesAndPeers(t *testing.T) {
	server := redistest.Start(t)
	var report lock.ContestReport
	proctest.WithLongerTimeouts(t, 300*time.Millisecond, func(d time.Duration) error {
		stdout, stderr, code := runProcess(t, "lock", "--redis", server.URL(), "--processes", "2", "--waiters", "2",
			"--hold", "1ms", "--duration", d.String(), "--rounds", "1", "--peer", "again=bench lock-worker", "--json")
		if code != term.ExitDone {
			t.Fatalf("exit code %d\n%s", code, stderr)
		}
		report = lock.ContestReport{}
		if err := json.Unmarshal([]byte(stdout), &report); err != nil {
			t.Fatalf("%v in %q", err, stdout)
		}
		if len(report.Contestants) != 2 || report.Contestants[1].Name != "again" {
			t.Fatalf("contestants %+v; want lockstep and again", report.Contestants)
		}
		for _, c := range report.Contestants {
			m := c.Median
			if len(c.Rounds) != 1 || m.Overlaps != 0 || m.Busy > 1 {
				t.Fatalf("%s: %+v; want a round, and no two at once", c.Name, c)
			}
			if m.Grants == 0 || m.PerWaiter.Fewest == 0 || m.Busy <= 0 || m.Between.P99 <= 0 {
				return fmt.Errorf("%s: %+v; want everybody to get the key in %v", c.Name, c, d)
			}
		}
		return nil
	})
	var table bytes.Buffer
	if err := report.Print(&table, term.Output{}); err != nil || !strings.Contains(table.String(), "again") {
		t.Errorf("%v\n%s", err, table.String())
	}
}

func TestBenchLockFailsWhereALockIsNone(t *testing.T) {
	sound := lock.ContestResult{Name: "sound"}
	broken := lock.ContestResult{Name: "broken", Median: lock.HandOffs{Overlaps: 3}}
	if err := (lock.ContestReport{Contestants: []lock.ContestResult{sound}}).Verdict(); err != nil {
		t.Errorf("got %v; want no error", err)
	}
	err := lock.ContestReport{Contestants: []lock.ContestResult{sound, broken}}.Verdict()
	if err == nil || term.ExitCode(err) != term.ExitFailed || !strings.Contains(err.Error(), "broken") || strings.Contains(err.Error(), "sound") {
		t.Errorf("got %v; want one that names the broken lock", err)
	}
}

func TestABenchPeerThatIsNoWorkerIsNamed(t *testing.T) {
	server := redistest.Start(t)
	b := lock.Bench{Processes: 2, Waiters: 1, Duration: time.Second}
	redis := proctest.Must(rig.OpenRedis(t.Context(), server.URL()))(t)
	t.Cleanup(redis.Close)
	for name, tc := range map[string]struct {
		argv []string
		want string
	}{
		"ends at once":      {[]string{"true"}, "not ready"},
		"says other things": {[]string{"echo", "hello"}, `"hello --redis`},
		"does not exist":    {[]string{"no-such-program"}, "no-such-program"},
		"fails":             {[]string{"sh", "-c", "echo out of order >&2; exit 1"}, "out of order"},
	} {
		_, _, err := b.Contend(t.Context(), term.Streams{}, redis, rig.Contestant{Name: "peer", Argv: tc.argv}, "k")
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("a peer that %s: got %v; want %q in it", name, err, tc.want)
		}
	}
}

func TestBenchLockUncontendedComparesWithRawScripts(t *testing.T) {
	server := redistest.Start(t)
	var stdout bytes.Buffer
	if err := runBench(t, nil, &stdout, "lock", "--uncontended", "--redis", server.URL(), "--duration", "50ms", "--rounds", "2", "--json"); err != nil {
		t.Fatal(err)
	}
	var report lock.PairsReport
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Rows) != 2 || report.Rows[0].Goroutines != 1 || report.Rows[1].Goroutines != 16 {
		t.Fatalf("rows %+v; want one of 1 and one of 16 goroutines", report.Rows)
	}
	for _, row := range report.Rows {
		if row.Locker <= 0 || row.Raw <= 0 || row.Ratio <= 0 {
			t.Errorf("%+v; want pairs of both", row)
		}
	}
	left := proctest.Must(server.Client().Keys(t.Context(), "*:raw*").Result())(t)
	if len(left) > 0 {
		t.Errorf("it leaves %q", left)
	}
}

func TestBenchLockHoldsManyLeases(t *testing.T) {
	server := redistest.StartReal(t) // the embedded one has no processor time of its own
	redis := proctest.Must(rig.OpenRedis(t.Context(), server.URL()))(t)
	t.Cleanup(redis.Close)
	const n, lease, d = 300, 500 * time.Millisecond, time.Second
	report := proctest.Must(lock.HoldMany(t.Context(), redis, "k", n, lease, d))(t)
	if report.Leases != n || report.Lost != 0 || report.Duration < d || report.Locker.Used <= 0 || report.Redis.Used <= 0 {
		t.Errorf("%+v; want %d leases held for %v, none lost", report, n, d)
	}
	var table bytes.Buffer
	if err := report.Print(&table, term.Output{}); err != nil || !strings.Contains(table.String(), fmt.Sprintf("%d leases", n)) {
		t.Errorf("%v\n%s", err, table.String())
	}
}

func TestBenchLockStandsFaults(t *testing.T) {
	redistest.StartReal(t).Stop() // or skip: there must be a redis-server, though not this one
	stdout, stderr, code := runProcess(t, "lock", "--faults", "--processes", "3", "--waiters", "2",
		"--duration", "3s", "--lease", "500ms", "--json")
	if code != term.ExitDone {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	var report lock.FaultReport
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	f := report.Figures
	if f.Grants == 0 || f.LongestGap <= 0 || f.LongestGap < f.LongestGapUp || f.Down <= 0 || f.MayGap != 1500*time.Millisecond {
		t.Errorf("%+v; want grants, gaps, and a Redis that was down", f)
	}
	kinds := map[string]int{}
	for _, fault := range report.Faults {
		kinds[fault.Kind]++
	}
	for _, kind := range []string{lock.FaultKill, lock.FaultStop, lock.FaultPubSub, lock.FaultRestart, lock.FaultEmpty} {
		if kinds[kind] == 0 {
			t.Errorf("faults %v; want one of each kind, and %q too", kinds, kind)
		}
	}
	var table bytes.Buffer
	if err := report.Print(&table, term.Output{}); err != nil || !strings.Contains(table.String(), "longest gap, Redis up, s") {
		t.Errorf("%v\n%s", err, table.String())
	}
}

func TestTheVolumeRefusesAFenceBelowOneItHasSeen(t *testing.T) {
	v := lock.FaultVolume{Dir: t.TempDir()}
	for _, w := range []struct {
		fence uint64
		end   bool
	}{{7, false}, {9, false}, {7, true}, {9, true}, {8, false}, {10, false}} {
		if err := v.Write(w.fence, w.end, 3); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, w := range proctest.Must(v.ReadLog())(t) {
		if w.At <= 0 || w.PID != os.Getpid() || w.Goroutine != 3 {
			t.Errorf("%+v; want a moment, and who it was", w)
		}
		got = append(got, fmt.Sprint(w.Fence, w.End, w.Refused))
	}
	want := []string{"7 false false", "9 false false", "7 true true", "9 true false", "8 false true", "10 false false"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if highest := proctest.Must(v.Highest())(t); highest != 10 {
		t.Errorf("highest is %d; want 10", highest)
	}
}

func TestBenchLockRefusesNonsense(t *testing.T) {
	for name, args := range map[string][]string{
		"no waiters":           {"--waiters", "0"},
		"no processes":         {"--processes", "0"},
		"no rounds":            {"--rounds", "0"},
		"no time":              {"--duration", "0s"},
		"a negative hold":      {"--hold", "-1ms"},
		"two measurements":     {"--uncontended", "--hold-many", "3"},
		"idle peers":           {"--uncontended", "--peer", "a=b"},
		"shorter than a lease": {"--hold-many", "3", "--duration", "1s"},
		"a lease for nothing":  {"--lease", "1s"},
		"faults elsewhere":     {"--faults", "--redis", "redis://127.0.0.1:1"},
		"faults and peers":     {"--faults", "--peer", "a=b"},
		"faults and nothing":   {"--faults", "--uncontended"},
		"nobody left":          {"--faults", "--processes", "2"},
		"too short a lease":    {"--faults", "--lease", "100ms"},
		"too soon over":        {"--faults", "--duration", "5s"},
		"an argument":          {"now"},
		"no Redis URL":         {"--redis", "ftp://nowhere"},
	} {
		if err := runBench(t, nil, io.Discard, append([]string{"lock"}, args...)...); term.ExitCode(err) != term.ExitUsage {
			t.Errorf("%s: got %v; want a usage error", name, err)
		}
	}
}
