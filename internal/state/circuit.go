package state

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

//go:embed circuit.lua
var circuitSource string

var circuitScript = redis.NewScript(circuitSource)

// Fields of a circuit breaker. All are "0" or absent after a success.
const (
	failuresField  = "failures"           // consecutive failures
	tripsField     = "circuit_trips"      // times it has opened since the last success
	openUntilField = "circuit_open_until" // ms of Redis' clock
)

// CircuitPhase is the phase of a circuit breaker.
type CircuitPhase string

// Phases of a circuit breaker.
const (
	CircuitClosed   CircuitPhase = "closed"    // allows every change
	CircuitOpen     CircuitPhase = "open"      // allows none
	CircuitHalfOpen CircuitPhase = "half-open" // allows the next change as a probe; its lease excludes others
)

// Circuit is the state of a repository's circuit breaker at one moment. The zero value is closed.
type Circuit struct {
	Failures int       // consecutive failures that count
	Trips    int       // times it has opened since the last success; 0 while closed
	Until    time.Time // end of the open phase, by Redis' clock; zero while closed
	Now      time.Time // time of the snapshot, by Redis' clock
}

// Phase returns the circuit's phase at c.Now.
func (c Circuit) Phase() CircuitPhase {
	switch {
	case c.Trips == 0:
		return CircuitClosed
	case c.Until.After(c.Now):
		return CircuitOpen
	}
	return CircuitHalfOpen
}

// Remaining returns how long the circuit stays open, or 0 if it is not open.
func (c Circuit) Remaining() time.Duration { return max(0, c.Until.Sub(c.Now)) }

// ResetFields returns the fields to set after a success, or nil if none needs a reset.
func (c Circuit) ResetFields() map[string]string {
	if c.Failures == 0 && c.Trips == 0 {
		return nil
	}
	return map[string]string{failuresField: "0", tripsField: "0", openUntilField: "0"}
}

// CircuitPolicy configures when a circuit opens, and for how long. All fields are required.
type CircuitPolicy struct {
	Failures int           // consecutive failures that open the circuit
	Open     time.Duration // first open time; doubled each time the circuit opens again
	Max      time.Duration // maximum open time
}

// Circuit returns the circuit breaker of repo.
func (s *Store) Circuit(ctx context.Context, repo events.RepoPath) (Circuit, error) {
	_, circuit, err := s.circuit(ctx, repo, "get")
	if err != nil {
		return Circuit{}, fmt.Errorf("load the circuit of %s: %w", repo, err)
	}
	return circuit, nil
}

// Failed counts a failure of repo under the lease with the given fence, and reports whether it opened the circuit. The
// open time is the policy's, shortened by up to a quarter at random, so that repositories that failed together are not
// probed together. If a newer lease on repo has been granted, Failed changes nothing and returns no error.
func (s *Store) Failed(ctx context.Context, repo events.RepoPath, fence uint64, p CircuitPolicy) (circuit Circuit, opened bool, err error) {
	verdict, circuit, err := s.circuit(ctx, repo, "failed", strconv.FormatUint(fence, 10), repo.String(),
		p.Failures, p.Open.Milliseconds(), p.Max.Milliseconds(), 0.75+rand.Float64()/4)
	if err != nil {
		return Circuit{}, false, fmt.Errorf("count a failure of %s: %w", repo, err)
	}
	return circuit, verdict == "opened", nil
}

func (s *Store) circuit(ctx context.Context, repo events.RepoPath, args ...any) (verdict string, c Circuit, err error) {
	keys := []string{s.namespace.Repo(repo), s.namespace.Locks() + repo.Key()}
	reply, err := circuitScript.Run(ctx, s.redis, keys, args...).Slice()
	if err != nil {
		return "", Circuit{}, err
	}
	if len(reply) != 5 {
		return "", Circuit{}, errors.New("circuit.lua: unexpected reply")
	}
	var n [4]int64
	for i := range n {
		n[i], _ = reply[i+1].(int64)
	}
	verdict, _ = reply[0].(string)
	c = Circuit{Failures: int(n[0]), Trips: int(n[1]), Until: momentOf(n[2]), Now: momentOf(n[3])}
	return verdict, c, nil
}

// CircuitAt returns the loaded circuit breaker at a time of Redis' clock.
func (r Repo) CircuitAt(now time.Time) Circuit {
	number := func(field string) int64 {
		n, _ := strconv.ParseInt(r.fields[field], 10, 64)
		return n
	}
	return Circuit{
		Failures: int(number(failuresField)), Trips: int(number(tripsField)), Until: momentOf(number(openUntilField)), Now: now,
	}
}

// momentOf converts ms since 1970 to a time, and 0 to the zero time.
func momentOf(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
