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

// The fields of a circuit breaker. All are "0" or absent after a success.
const (
	failuresField  = "failures"           // failures in a row
	tripsField     = "circuit_trips"      // times it has opened in a row
	openUntilField = "circuit_open_until" // ms of Redis' clock
)

// CircuitPhase is what a circuit breaker lets through.
type CircuitPhase string

// The phases.
const (
	CircuitClosed   CircuitPhase = "closed"    // everything
	CircuitOpen     CircuitPhase = "open"      // nothing
	CircuitHalfOpen CircuitPhase = "half-open" // the next one, as a probe; the lease keeps others out meanwhile
)

// Circuit is a repository's circuit breaker as Redis had it at one moment. The zero value is closed.
type Circuit struct {
	Failures int       // in a row, of those that count
	Trips    int       // how often it has opened in a row; 0 while it is closed
	Until    time.Time // when an open one half-opens, by Redis' clock; zero while it is closed
	Now      time.Time // the moment, by the same clock
}

// Phase is what the circuit lets through at its moment.
func (c Circuit) Phase() CircuitPhase {
	switch {
	case c.Trips == 0:
		return CircuitClosed
	case c.Until.After(c.Now):
		return CircuitOpen
	}
	return CircuitHalfOpen
}

// Remaining is how long the circuit stays open; 0 unless it is open.
func (c Circuit) Remaining() time.Duration { return max(0, c.Until.Sub(c.Now)) }

// ResetFields are the fields that a settled success sets; none when there is nothing to reset.
func (c Circuit) ResetFields() map[string]string {
	if c.Failures == 0 && c.Trips == 0 {
		return nil
	}
	return map[string]string{failuresField: "0", tripsField: "0", openUntilField: "0"}
}

// CircuitPolicy says when a circuit opens, and for how long. All of it must be set.
type CircuitPolicy struct {
	Failures int           // so many in a row open it
	Open     time.Duration // for how long the first time; doubled each time in a row
	Max      time.Duration // the longest
}

// Circuit returns the circuit breaker of repo.
func (s *Store) Circuit(ctx context.Context, repo events.RepoPath) (Circuit, error) {
	_, circuit, err := s.circuit(ctx, repo, "look")
	if err != nil {
		return Circuit{}, fmt.Errorf("load the circuit of %s: %w", repo, err)
	}
	return circuit, nil
}

// Failed counts a failure of repo that befell the holder of the lease with the given fence, and
// reports whether it was this one that opened the circuit. It opens for three quarters to all of the
// time that the policy names, at random, so that repositories of one remote that failed together are
// not probed together. When another lease on repo has been granted since, nothing changes, and that
// is no error.
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
		return "", Circuit{}, errors.New("circuit.lua: a reply that makes no sense")
	}
	var n [4]int64
	for i := range n {
		n[i], _ = reply[i+1].(int64)
	}
	verdict, _ = reply[0].(string)
	c = Circuit{Failures: int(n[0]), Trips: int(n[1]), Until: momentOf(n[2]), Now: momentOf(n[3])}
	return verdict, c, nil
}

// CircuitAt is the repository's circuit breaker as loaded, seen at a moment of Redis' clock.
func (r Repo) CircuitAt(now time.Time) Circuit {
	number := func(field string) int64 {
		n, _ := strconv.ParseInt(r.fields[field], 10, 64)
		return n
	}
	return Circuit{
		Failures: int(number(failuresField)), Trips: int(number(tripsField)),
		Until: momentOf(number(openUntilField)), Now: now,
	}
}

// momentOf is a moment in ms since 1970; zero for 0.
func momentOf(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
