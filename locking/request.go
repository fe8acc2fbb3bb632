package locking

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxFloor is half of the largest integer that Lua counts exactly, which leaves room for as many grants above
// it. Redis' clock reaches it in the year 2112.
const maxFloor = 1 << 52

const maxName = 256 // maximum length in bytes of a job ID, an operation and a worker's name

// Request asks for the lease of a key.
type Request struct {
	Key string // must not be empty, contain NUL, or end in ":queue" or ":waiters"

	// Job and Operation identify the holder to others, escaped and truncated to 256 bytes.
	Job       string
	Operation string

	Wait   time.Duration // how long to wait for the lease; 0 means Config.Wait
	IfHeld Policy        // what to do if the key is held
	Floor  uint64        // the granted fence is higher than this
}

// Policy is what to do if a key is held.
type Policy int

// The policies.
const (
	WaitInLine Policy = iota // wait in order of arrival
	Skip                     // return ErrHeld, unless only requests with the policy Yield are in the way

	// Yield is for optional work: return ErrHeld whoever is in the way. The holder releases the lease as soon as
	// [Lease.Wanted] is closed. Failures are logged at level debug.
	Yield
)

func (r Request) check() error {
	switch {
	case r.Key == "":
		return fmt.Errorf("%w: Key is empty", ErrBadRequest)
	case strings.ContainsRune(r.Key, 0):
		return fmt.Errorf("%w: Key is %q; it must not contain NUL", ErrBadRequest, r.Key)
	case strings.HasSuffix(r.Key, queueSuffix) || strings.HasSuffix(r.Key, waitersSuffix):
		return fmt.Errorf("%w: Key is %q; this suffix is reserved", ErrBadRequest, r.Key)
	case r.Wait < 0:
		return fmt.Errorf("%w: Wait is %v; must not be negative", ErrBadRequest, r.Wait)
	case r.Floor >= maxFloor:
		return fmt.Errorf("%w: Floor is %d; want less than %d", ErrBadRequest, r.Floor, uint64(maxFloor))
	case r.IfHeld < WaitInLine || r.IfHeld > Yield:
		return fmt.Errorf("%w: IfHeld is %d; want WaitInLine, Skip or Yield", ErrBadRequest, r.IfHeld)
	}
	return nil
}

// printable escapes and truncates a name for use in one line of a log or an error.
func printable(name string) string {
	rest := ""
	if len(name) > maxName {
		name, rest = strings.ToValidUTF8(name[:maxName], ""), "…"
	}
	if strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) || r == utf8.RuneError }) {
		name = strconv.Quote(name)
		name = name[1 : len(name)-1]
	}
	return name + rest
}

// Holder is the holder of a lease, as last reported by Redis.
type Holder struct {
	Worker    string
	Job       string
	Operation string
	Since     time.Time // by Redis' clock
	Fence     uint64
	Remaining time.Duration // until the lease expires, unless renewed

	yields bool // its request has the policy Yield
}

// String returns a description such as: job 37 (worker w1, sync).
func (h Holder) String() string {
	if h == (Holder{}) {
		return "an unknown job"
	}
	who := "worker " + h.Worker
	if h.Operation != "" {
		who += ", " + h.Operation
	}
	if h.Job == "" {
		return "a job without id (" + who + ")"
	}
	return "job " + h.Job + " (" + who + ")"
}
