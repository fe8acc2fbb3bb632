package events

import (
	"errors"
	"fmt"
	"time"
)

// Disposition says what an error means for the event it befell.
type Disposition int

// The dispositions. An error that carries none is [Retryable]: what we did not foresee is more
// often passing than permanent, and attempts are bounded.
const (
	Retryable  Disposition = iota // deliver again after a backoff; counts as an attempt
	Contention                    // deliver again after a backoff; does not count as an attempt
	Permanent                     // report a failed result now; trying again cannot help
	Malformed                     // not an event at all: dead letter
)

// String returns the disposition's name.
func (d Disposition) String() string {
	switch d {
	case Retryable:
		return "retryable"
	case Contention:
		return "contention"
	case Permanent:
		return "permanent"
	case Malformed:
		return "malformed"
	}
	return fmt.Sprintf("Disposition(%d)", int(d))
}

// Class names the kind of fault, for results, metrics and whoever decides what to do about it.
type Class string

// The classes.
const (
	ClassInternal  Class = "internal"  // none of the others
	ClassAuth      Class = "auth"      // the remote refused the credential, or wants one
	ClassNotFound  Class = "not_found" // the remote has no such repository, or hides it
	ClassNoRef     Class = "no_ref"    // the repository has no such ref, or is empty
	ClassNetwork   Class = "network"   // the remote could not be reached
	ClassServer    Class = "server"    // the remote answered with an error of its own
	ClassCorrupt   Class = "corrupt"   // objects are missing or do not hash right
	ClassHostile   Class = "hostile"   // the repository holds what must not be checked out
	ClassQuota     Class = "quota"     // more bytes or files than are allowed
	ClassVolume    Class = "volume"    // the volume is full, read-only or failing
	ClassConflict  Class = "conflict"  // the path belongs to another repository, or the like
	ClassStale     Class = "stale"     // a newer holder has been here
	ClassBusy      Class = "busy"      // another job holds the repository
	ClassMalformed Class = "malformed" // the event cannot be read
	ClassNewer     Class = "newer"     // the event is of a type, or a version of one, that came after this program
	ClassConfig    Class = "config"    // a setting, such as a credential's name, is wrong
	ClassBehind    Class = "behind"    // the remote does not have the commit yet that its webhook announced
	ClassShutdown  Class = "shutdown"  // this process is stopping
	ClassCircuit   Class = "circuit"   // the repository failed too often in a row, and is left alone for a while
	ClassUnwatched Class = "unwatched" // the app that had asked does not watch the repository any more
)

// Error is an error with a [Disposition] and a [Class].
type Error struct {
	Disposition Disposition
	Class       Class
	RetryAfter  time.Duration // how long to wait before the event is delivered again; 0: by the usual backoff
	Err         error
}

// Errorf makes an [Error] whose Err is made as by [fmt.Errorf].
func Errorf(d Disposition, c Class, format string, args ...any) error {
	return &Error{Disposition: d, Class: c, Err: fmt.Errorf(format, args...)}
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// DispositionOf returns the disposition of the outermost [Error] in err's chain, and [Retryable]
// when there is none.
func DispositionOf(err error) Disposition {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Disposition
	}
	return Retryable
}

// ClassOf returns the class of the outermost [Error] in err's chain, and [ClassInternal] when there
// is none.
func ClassOf(err error) Class {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	return ClassInternal
}

// RetryAfter returns how long the outermost [Error] in err's chain asks to wait before the event is
// delivered again, and 0, by the usual backoff, when it asks for nothing or there is none.
func RetryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.RetryAfter
	}
	return 0
}
