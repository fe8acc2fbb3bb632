package hot

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"lockstep/bench/rig"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
)

// playPeer lets one process of a peer take part: a shell script.
func playPeer(t *testing.T, server *rig.Redis, limit time.Duration, work string) (Figures, error) {
	t.Helper()
	script := `case $1 in queue) cat >/dev/null;; work) ` + work + `;; esac`
	peer := rig.Contestant{Name: "peer", Argv: []string{"sh", "-c", script, "sh"}}
	load := Load{Processes: 1, Slots: 1, Work: time.Millisecond, Limit: limit}
	figures, _, err := load.Play(t.Context(), &rig.Env{}, server, peer, makeTasks(4, 2), "p:")
	return figures, err
}

func TestPlayCountsLostAndDoubledEvents(t *testing.T) {
	env := &rig.Env{}
	t.Cleanup(env.Close)
	redis := proctest.Must(env.OpenRedis(t.Context(), redistest.Start(t).URL()))(t)
	for name, tc := range map[string]struct {
		lines string
		want  Figures
	}{
		"each once":   {`0 10 11 12\n1 20 21 22\n2 30 31 32\n3 40 41 42\n`, Figures{}},
		"one lost":    {`0 10 11 12\n1 20 21 22\n2 30 31 32\n`, Figures{Lost: 1}},
		"not settled": {`0 10 11 12\n1 20 21 22\n2 30 31 32\n3 40 41 0\n`, Figures{Lost: 1}},
		"one doubled": {`0 10 11 12\n1 20 21 22\n2 30 31 32\n2 33 34 35\n3 40 41 42\n`, Figures{Doubled: 1}},
		"two at once": {`0 10 90 91\n1 10 90 91\n2 10 90 91\n3 10 90 91\n`, Figures{Overlaps: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			proctest.WithLongerTimeouts(t, time.Second, func(limit time.Duration) error {
				got, err := playPeer(t, redis, limit, `echo ready; read start; printf '`+tc.lines+`'; cat >/dev/null`)
				if err != nil || got.Lost != tc.want.Lost || got.Doubled != tc.want.Doubled || got.Overlaps != tc.want.Overlaps {
					return fmt.Errorf("got %+v (%s); want the faults of %+v", got, fmt.Sprint(err), tc.want)
				}
				return nil
			})
		})
	}
}

func TestErrorNamesAPeerThatIsNoWorker(t *testing.T) {
	env := &rig.Env{}
	t.Cleanup(env.Close)
	redis := proctest.Must(env.OpenRedis(t.Context(), redistest.Start(t).URL()))(t)
	for name, tc := range map[string]struct {
		work string
		want string
	}{
		"ends at once":      {`exit 0`, "not ready"},
		"says other things": {`echo hello`, `hello`},
		"fails":             {`echo ready; read start; echo out of order >&2; exit 1`, "out of order"},
		"tells no moments":  {`echo ready; read start; echo done; cat >/dev/null`, `"done"`},
		"goes on for ever":  {`echo ready; read start; for i in 0 1 2 3; do echo $i 1 2 3; done; exec sleep 60`, "did not end"},
	} {
		proctest.WithLongerTimeouts(t, time.Second, func(limit time.Duration) error {
			_, err := playPeer(t, redis, limit, tc.work)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				return fmt.Errorf("a peer that %s: got %s; want %q in it", name, fmt.Sprint(err), tc.want)
			}
			return nil
		})
	}
}
