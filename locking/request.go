package locking

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxFloor leaves Redis' Lua, which counts one by one to twice as much, room for as many grants again.
// Redis' clock gets there in the year 2112.
const maxFloor = 1 << 52

// maxName is how much of a job id, of an operation and of a worker's name is kept, in bytes.
const maxName = 256

// Request asks for the lease of a key.
type Request struct {
	Key string // any string that is not empty and does not end in ":queue" or ":waiters"

	// Job and Operation tell others who holds the key, and what for. What cannot be printed in a log
	// line is escaped, what is longer than 256 bytes is cut.
	Job       string
	Operation string

	Wait   time.Duration // how long to wait in line; 0 means Config.Wait
	IfHeld Policy        // what to do when the key is held
	Floor  uint64        // the fence granted is higher than this one
}

// Policy says what becomes of a request for a key that is held.
type Policy int

// The policies.
const (
	WaitInLine Policy = iota // wait for it, in order of arrival
	Skip                     // do without: ErrHeld
)

func (r Request) check() error {
	switch {
	case r.Key == "":
		return errors.New("locking: Request.Key is empty")
	case strings.HasSuffix(r.Key, queueSuffix) || strings.HasSuffix(r.Key, waitersSuffix):
		return fmt.Errorf("locking: Request.Key is %q; the ending is reserved", r.Key)
	case r.Wait < 0:
		return fmt.Errorf("locking: Request.Wait is %v; want a positive duration", r.Wait)
	case r.Floor >= maxFloor:
		return fmt.Errorf("locking: Request.Floor is %d; want less than %d", r.Floor, uint64(maxFloor))
	case r.IfHeld != WaitInLine && r.IfHeld != Skip:
		return fmt.Errorf("locking: Request.IfHeld is %d; want WaitInLine or Skip", r.IfHeld)
	}
	return nil
}

// legible makes a name that came from anywhere fit for one line of a log or an error.
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

// Holder is who has a lease, as last heard.
type Holder struct {
	Worker    string
	Job       string
	Operation string
	Since     time.Time // of Redis' clock
	Fence     uint64
	Remaining time.Duration // until the lease runs out, unless renewed
}

// String says who it is: job 37 (worker w1, sync).
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
