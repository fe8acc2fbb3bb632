package locking_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/redistest"
	"lockstep/locking"
)

// queueAhead puts n waiters of another process at the head of the queue of key: dead ones, or living ones without a
// subscriber.
func queueAhead(t *testing.T, client redis.UniversalClient, key string, n int, dead bool) {
	t.Helper()
	record := fmt.Sprintf(`%d {"channel":"nobody","worker":"d","job":"d","operation":"","floor":"0"}`, time.Now().Add(time.Hour).UnixMicro())
	if dead {
		record = `1 {"channel":"nobody","worker":"d","job":"d","operation":"","floor":"0"}`
	}
	members, records := make([]redis.Z, n), make([]any, 0, 2*n)
	for i := range n {
		token := fmt.Sprint("ahead.", i)
		members[i] = redis.Z{Score: float64(i - n), Member: token}
		records = append(records, token, record)
	}
	if err := client.ZAdd(t.Context(), prefix+key+":queue", members...).Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.HSet(t.Context(), prefix+key+":waiters", records...).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestHandOverLooksPastDeadAndUnreachableWaiters(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		ahead     int
		dead      bool
		byRelease bool // otherwise the waiter polls
		left      int64
	}{
		"a full chunk of dead ones":                 {ahead: 256, dead: true, byRelease: true},
		"several chunks of dead ones":               {ahead: 3000, dead: true, byRelease: true},
		"several chunks of unreachable ones":        {ahead: 700, byRelease: true, left: 700},
		"more unreachable ones than one call tries": {ahead: 1024 + 300, left: 1024 + 300},
		"more dead ones than one call removes":      {ahead: 4096 + 300, dead: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			if tc.ahead > 1000 && !server.Real {
				t.Skip("the embedded Redis may take longer than the timeout of a call")
			}
			client := server.Client()
			a, b := start(t, server, "a", lease(time.Hour)), start(t, server, "b")
			awaitSubscription(t, b, a)
			held := must(t, a, "k", "1")
			wait := queueUp(t, b, t.Context(), locking.Request{Key: "k", Job: "2"})
			queueAhead(t, client, "k", tc.ahead, tc.dead)
			release(t, held)
			owner := client.HGet(t.Context(), prefix+"k", "owner").Val()
			if tc.dead && !tc.byRelease && client.ZCard(t.Context(), prefix+"k:queue").Val() > 301 {
				t.Error("the release removed too few dead waiters")
			}
			l := soon(t, wait, "the living waiter").ok(t)
			if handed := owner == l.Guard().Owner; tc.byRelease && !handed {
				t.Errorf("the release left the lease to %q; want it handed to the living waiter %q", owner, l.Guard().Owner)
			}
			if n := client.ZCard(t.Context(), prefix+"k:queue").Val(); n != tc.left {
				t.Errorf("%d waiters are left in the queue; want %d", n, tc.left)
			}
			release(t, l)
		})
	}
}
