package watch

import (
	"context"
	"crypto/rand"
	_ "embed" // the script
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed due.lua
	dueSource string
	dueScript = redis.NewScript(dueSource)
)

// mostDue is how many repositories one call takes on, so that no script runs for long.
const mostDue = 1000

// TakeDue asks for a look at the remote of up to limit repositories, 1,000 at most, whose poll is due by Redis'
// clock, and puts each down for its interval from now, a tenth more or less. n is how many were asked for.
// Any number of processes may call it at any time: of one repository a look is asked for once in nine tenths
// of its interval. The changes are not waited with for a repository that is busy.
//
// The interval of a repository is the shortest that a watch of it names, and usual among them if a watch
// leaves it to the setting; with a usual of 0 or less these are not polled. A usual that is changed counts for a
// repository from its next poll on.
//
// next is how long it is until another is due: 0 when one is already, 30 days when none is ever; watches
// that are put meanwhile may be due sooner.
func (r *Registry) TakeDue(ctx context.Context, limit int, usual time.Duration) (n int, next time.Duration, err error) {
	keys := []string{r.namespace.Poll(), r.namespace.Changes(), r.ofPrefix()}
	seed := 1 + mathrand.IntN(1<<31-2)
	reply, err := dueScript.Run(ctx, r.redis, keys, max(0, min(limit, mostDue)), max(0, usual.Milliseconds()), seed, rand.Text()).Int64Slice()
	if err != nil {
		return 0, 0, fmt.Errorf("take what is to be polled: %w", err)
	}
	if len(reply) != 3 {
		return 0, 0, fmt.Errorf("take what is to be polled: %w: %v", errReply, reply)
	}
	next = time.Duration(reply[2]) * time.Millisecond
	if next < 0 {
		next = time.Duration(maxInterval)
	}
	return int(reply[0]), next, nil
}
