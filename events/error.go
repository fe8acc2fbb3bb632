package events

import (
	"errors"
	"fmt"
	"time"
)

// Disposition is what an error means for the event being handled.
type Disposition int

// The dispositions. An error without one is [Retryable].
const (
	Retryable  Disposition = iota // deliver again after a backoff; counts as an attempt
	Contention                    // deliver again after a backoff; does not count as an attempt
	Permanent                     // report a failed result now; trying again cannot help
	Malformed                     // not a valid event: dead letter
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

// Class is the kind of fault, for results, metrics and operators.
type Class string

// The classes.
const (
	ClassInternal Class = "internal"  // none of the others
	ClassAuth     Class = "auth"      // the remote refused the credential or requires one
	ClassNotFound Class = "not_found" // the remote has no such repository, or hides it; or no such LFS object
	ClassNoRef    Class = "no_ref"    // the repository has no such ref, or is empty
	ClassNetwork  Class = "network"   // the remote could not be reached
	ClassServer   Class = "server"    // the remote answered with an error
	ClassCorrupt  Class = "corrupt"   // objects are missing or have the wrong hash
	ClassHostile  Class = "hostile"   // the repository contains files that are unsafe to check out
	ClassQuota    Class = "quota"     // a limit on bytes or files is exceeded
	ClassVolume   Class = "volume"    // the volume is full, read-only or failing
	ClassConflict Class = "conflict"  // another repository owns the path, or a similar conflict
	// nothing is wrong: the change must wait for a lease or a host, or its app no longer watches the repository.
	ClassBusy    Class = "busy"
	ClassConfig  Class = "config"  // the event, or a setting such as the name of a credential, is wrong
	ClassRefused Class = "refused" // the rules of a watch refuse the commit
)

// Scope is what an error says something about: whose trouble it is. Only changes that need it wait.
type Scope string

// The scopes.
const (
	ScopeChange         Scope = ""                // the change, or what only it needs, such as another remote
	ScopeCredential     Scope = "credential"      // its credential, refused by the remote, or the repository is hidden
	ScopeRepo           Scope = "repo"            // its repository at the remote
	ScopeHost           Scope = "host"            // the remote's host
	ScopeHostCredential Scope = "host_credential" // its credential at the remote's host
	ScopeUs             Scope = "us"              // this deployment, such as its Redis or its volume
	ScopeNone           Scope = "none"            // nothing: it waits for its turn, or need not be handled
)

// Error is an error that says what to do with the event being handled.
type Error struct {
	Disposition Disposition
	Scope       Scope
	Class       Class
	RetryAfter  time.Duration // delay before the retry; the usual backoff unless positive
	Err         error
}

// AtOnce as Error.RetryAfter returns the event to the stream at once, uncounted, because this process is stopping.
const AtOnce time.Duration = 1

// Errorf returns an [Error] that wraps [fmt.Errorf], with the usual scope of its class: the credential for
// [ClassAuth], this deployment for [ClassVolume], else the change.
func Errorf(d Disposition, c Class, format string, args ...any) error {
	return &Error{Disposition: d, Scope: usualScopes[c], Class: c, Err: fmt.Errorf(format, args...)}
}

var usualScopes = map[Class]Scope{ClassAuth: ScopeCredential, ClassVolume: ScopeUs}

// WithScope returns err with another scope, or nil for nil.
func WithScope(err error, s Scope) error {
	if err == nil {
		return nil
	}
	e := faultOf(err)
	e.Scope, e.Err = s, err
	return &e
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Fault implements [Fault].
func (e *Error) Fault() (disposition, scope, class string, retryAfter time.Duration) {
	return e.Disposition.String(), string(e.Scope), string(e.Class), e.RetryAfter
}

// Fault is a classified error: an [Error], or one of a package that does not import this one, such as the Git
// engine. Its first three values are the texts of a [Disposition], a [Scope] and a [Class].
type Fault interface {
	error
	Fault() (disposition, scope, class string, retryAfter time.Duration)
}

// faultOf returns the values of the outermost [Fault] in err's chain, or those of an error without one.
func faultOf(err error) (e Error) {
	f, ok := errors.AsType[Fault](err)
	if !ok {
		return Error{Class: ClassInternal}
	}
	disposition, scope, class, after := f.Fault()
	for _, d := range []Disposition{Contention, Permanent, Malformed} {
		if d.String() == disposition {
			e.Disposition = d
		}
	}
	e.Scope, e.Class, e.RetryAfter = Scope(scope), Class(class), after
	return e
}

// DispositionOf returns the disposition of the outermost [Fault] in err's chain, or [Retryable] if there is none.
func DispositionOf(err error) Disposition { return faultOf(err).Disposition }

// ClassOf returns the class of the outermost [Fault] in err's chain, or [ClassInternal] if there is none.
func ClassOf(err error) Class { return faultOf(err).Class }

// ScopeOf returns the scope of the outermost [Fault] in err's chain, or [ScopeChange] if that has none.
func ScopeOf(err error) Scope { return faultOf(err).Scope }

// RetryAfter returns the delay that the outermost [Fault] in err's chain requests, or 0 for the usual backoff.
func RetryAfter(err error) time.Duration { return faultOf(err).RetryAfter }
