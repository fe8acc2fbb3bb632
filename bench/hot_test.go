package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"lockstep/bench/hot"
	"lockstep/bench/rig"
	"lockstep/internal/cli/term"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
)

func TestBenchHotLosesAndDoublesNothing(t *testing.T) {
	server := redistest.Start(t)
	stdout, stderr, code := runProcess(t, "hot", "--redis", server.URL(), "--events", "40", "--repos", "5", "--work", "1ms",
		"--processes", "2", "--slots", "2", "--rounds", "1", "--peer", "again=bench hot-worker", "--json")
	if code != term.ExitDone {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	var report hot.HotReport
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	if len(report.Contestants) != 2 || report.Contestants[1].Name != "again" {
		t.Fatalf("contestants %+v; want lockstep and again", report.Contestants)
	}
	for _, c := range report.Contestants {
		if err := c.Summary.Err(); err != nil || len(c.Rounds) != 1 || c.Summary.RatioP50.Median <= 0 || c.Summary.RatioP99.Median <= 0 {
			t.Errorf("%s: %+v (%v); want a round without faults", c.Name, c, err)
		}
		for _, r := range c.Rounds {
			// One at a time, the 20 hot events take this long at least.
			if r.Hot.AllDone < 20*time.Millisecond || r.Hot.Cold.Max > r.Hot.AllDone || r.Calm.Cold.Max != r.Calm.AllDone {
				t.Errorf("%s: %+v; want the hot ones counted in all done alone", c.Name, r)
			}
		}
	}
	if left := proctest.Must(server.Client().Keys(t.Context(), "lockstep-bench:*").Result())(t); len(left) > 0 {
		t.Errorf("it leaves %q", left)
	}
	var table bytes.Buffer
	if err := report.Print(&table, term.Output{}); err != nil || !strings.Contains(table.String(), "again") {
		t.Errorf("%v\n%s", err, table.String())
	}
}

// playHot has one process of a peer take part, that is a shell script.
func playHot(t *testing.T, server *rig.Redis, limit time.Duration, work string) (hot.HotFigures, error) {
	t.Helper()
	b := hot.Bench{Processes: 1, Slots: 1, Work: time.Millisecond, Limit: limit}
	script := `case $1 in queue) cat >/dev/null;; work) ` + work + `;; esac`
	run := hot.Run{Bench: &b, Who: rig.Contestant{Name: "peer", Argv: []string{"sh", "-c", script, "sh"}}, Tasks: hot.HotTasks(4, 2), Server: server, Prefix: "p:"}
	figures, _, err := run.Play(t.Context(), term.Streams{})
	return figures, err
}

func TestBenchHotCountsWhatAPeerLosesAndDoubles(t *testing.T) {
	redis := proctest.Must(rig.OpenRedis(t.Context(), redistest.Start(t).URL()))(t)
	t.Cleanup(redis.Close)
	for name, tc := range map[string]struct {
		lines string
		want  hot.HotFigures
	}{
		"each once":   {`0 10 11 12\n1 20 21 22\n2 30 31 32\n3 40 41 42\n`, hot.HotFigures{}},
		"one lost":    {`0 10 11 12\n1 20 21 22\n2 30 31 32\n`, hot.HotFigures{Lost: 1}},
		"not settled": {`0 10 11 12\n1 20 21 22\n2 30 31 32\n3 40 41 0\n`, hot.HotFigures{Lost: 1}},
		"one doubled": {`0 10 11 12\n1 20 21 22\n2 30 31 32\n2 33 34 35\n3 40 41 42\n`, hot.HotFigures{Doubled: 1}},
		"two at once": {`0 10 90 91\n1 10 90 91\n2 10 90 91\n3 10 90 91\n`, hot.HotFigures{Overlaps: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			proctest.WithLongerTimeouts(t, time.Second, func(limit time.Duration) error {
				got, err := playHot(t, redis, limit, `echo ready; read start; printf '`+tc.lines+`'; cat >/dev/null`)
				if err != nil || got.Lost != tc.want.Lost || got.Doubled != tc.want.Doubled || got.Overlaps != tc.want.Overlaps {
					return fmt.Errorf("got %+v (%s); want the faults of %+v", got, fmt.Sprint(err), tc.want)
				}
				return nil
			})
		})
	}
}

func TestABenchHotPeerThatIsNoWorkerIsNamed(t *testing.T) {
	redis := proctest.Must(rig.OpenRedis(t.Context(), redistest.Start(t).URL()))(t)
	t.Cleanup(redis.Close)
	for name, tc := range map[string]struct {
		work string
		want string
	}{
		"ends at once":      {`exit 0`, "not ready"},
		"says other things": {`echo hello`, `hello`},
		"fails":             {`echo ready; read start; echo out of order >&2; exit 1`, "out of order"},
		"tells no moments":  {`echo ready; read start; echo done; cat >/dev/null`, `"done"`},
		"goes on for ever":  {`echo ready; read start; for i in 0 1 2 3; do echo $i 1 2 3; done; exec sleep 60`, "do not end"},
	} {
		proctest.WithLongerTimeouts(t, time.Second, func(limit time.Duration) error {
			_, err := playHot(t, redis, limit, tc.work)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				return fmt.Errorf("a peer that %s: got %s; want %q in it", name, fmt.Sprint(err), tc.want)
			}
			return nil
		})
	}
}

func TestBenchHotFailsWhereEventsAreLost(t *testing.T) {
	sound := hot.HotResult{Name: "sound"}
	broken := hot.HotResult{Name: "broken", Summary: hot.HotSummary{Lost: 3}}
	if err := (hot.HotReport{Contestants: []hot.HotResult{sound}}).Verdict(); err != nil {
		t.Errorf("got %v; want no error", err)
	}
	err := hot.HotReport{Contestants: []hot.HotResult{sound, broken}}.Verdict()
	if err == nil || term.ExitCode(err) != term.ExitFailed || !strings.Contains(err.Error(), "broken") || strings.Contains(err.Error(), "sound") {
		t.Errorf("got %v; want one that names who loses events", err)
	}
}

func TestBenchHotRefusesNonsense(t *testing.T) {
	for name, args := range map[string][]string{
		"no processes":              {"hot", "--processes", "0"},
		"no slots":                  {"hot", "--slots", "0"},
		"no rounds":                 {"hot", "--rounds", "0"},
		"one repository":            {"hot", "--repos", "1"},
		"one event":                 {"hot", "--events", "1"},
		"no work":                   {"hot", "--work", "0s"},
		"work of part of a moment":  {"hot", "--work", "1500us"},
		"no time":                   {"hot", "--limit", "0s"},
		"a peer without a command":  {"hot", "--peer", "x"},
		"an argument":               {"hot", "now"},
		"no Redis URL":              {"hot", "--redis", "ftp://nowhere"},
		"a worker without a part":   {"hot-worker"},
		"a worker of another part":  {"hot-worker", "play"},
		"a worker without a prefix": {"hot-worker", "queue", "--redis", "redis://127.0.0.1:1"},
	} {
		if err := runBench(t, nil, io.Discard, args...); term.ExitCode(err) != term.ExitUsage {
			t.Errorf("%s: got %v; want a usage error", name, err)
		}
	}
}
