// Package git has what the packages of the Git engine share, which are below it: their errors, and the depth of a
// history. The engine knows nothing of what it is used for.
package git

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Retry says whether a failed operation may be tried again.
type Retry string

// An error without one is [Retryable].
const (
	Retryable  Retry = "retryable"
	Contention Retry = "contention" // it was not tried, as somebody else is in the way
	Permanent  Retry = "permanent"  // trying again cannot help
)

// Class is the kind of fault.
type Class string

// The classes.
const (
	ClassAuth     Class = "auth"      // the remote refused the credential or requires one
	ClassNotFound Class = "not_found" // the remote has no such repository, or hides it; or no such LFS object
	ClassNoRef    Class = "no_ref"    // the repository has no such ref, or is empty
	ClassNetwork  Class = "network"   // the remote could not be reached
	ClassServer   Class = "server"    // the remote answered with an error
	ClassBusy     Class = "busy"      // the remote's host is at a limit of requests
	ClassCorrupt  Class = "corrupt"   // objects are missing or have the wrong hash
	ClassHostile  Class = "hostile"   // the repository contains files that are unsafe to check out
	ClassQuota    Class = "quota"     // a limit on bytes or files is exceeded
	ClassVolume   Class = "volume"    // the disk is full, read-only or failing
	ClassConfig   Class = "config"    // a setting, such as a URL, is wrong
)

// Error is an error with a [Class].
type Error struct {
	Retry      Retry
	Class      Class
	RetryAfter time.Duration // minimum delay before the retry; 0 if unknown
	Err        error
}

// Errorf returns an [Error] that wraps [fmt.Errorf].
func Errorf(r Retry, c Class, format string, args ...any) error {
	return &Error{Retry: r, Class: c, Err: fmt.Errorf(format, args...)}
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Fault implements [Fault].
func (e *Error) Fault() (retry, scope, class string, after time.Duration) {
	return string(e.Retry), scopes[e.Class], string(e.Class), e.RetryAfter
}

// scopes says by class whose trouble an error is: the credential's at the repository, the repository's at its
// remote, the credential's at the host, or our own; that of the operation, which is "", for the other classes.
var scopes = map[Class]string{
	ClassAuth: "credential", ClassNotFound: "credential", ClassNetwork: "repo", ClassServer: "repo",
	ClassCorrupt: "repo", ClassBusy: "host_credential", ClassVolume: "us",
}

// Fault is a classified error: an [Error], or one of a caller's own type that a callback, such as a gate, has
// returned.
type Fault interface {
	error
	Fault() (retry, scope, class string, after time.Duration)
}

// IsClassified reports whether err has a class.
func IsClassified(err error) bool {
	_, ok := errors.AsType[Fault](err)
	return ok
}

// ClassOf returns the class of the outermost [Fault] in err's chain, or "".
func ClassOf(err error) Class {
	if f, ok := errors.AsType[Fault](err); ok {
		_, _, class, _ := f.Fault()
		return Class(class)
	}
	return ""
}

// RetryOf returns whether the operation that failed with err may be tried again.
func RetryOf(err error) Retry {
	if f, ok := errors.AsType[Fault](err); ok {
		retry, _, _, _ := f.Fault()
		return Retry(retry)
	}
	return Retryable
}

// RetryAfter returns the delay that the outermost [Fault] in err's chain requests, or 0.
func RetryAfter(err error) time.Duration {
	if f, ok := errors.AsType[Fault](err); ok {
		_, _, _, after := f.Fault()
		return after
	}
	return 0
}

// Depth is the number of commits of a ref's history; 0 means 1.
type Depth int

// FullDepth is the whole history of a ref.
const FullDepth Depth = -1

// ParseDepth parses the result of [Depth.String]. It returns 0 for any other text.
func ParseDepth(text string) Depth {
	if text == "full" {
		return FullDepth
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0
	}
	return Depth(n)
}

// String returns the number, "full", or "" for 0.
func (d Depth) String() string {
	switch d {
	case FullDepth:
		return "full"
	case 0:
		return ""
	}
	return strconv.Itoa(int(d))
}
