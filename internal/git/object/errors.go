package object

import (
	"errors"
	"fmt"

	"lockstep/events"
)

// Corruptf returns an error for missing or damaged objects: retryable, of ClassCorrupt. If it wraps an error that
// has a class, it keeps that class.
func Corruptf(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if _, ok := errors.AsType[*events.Error](err); ok {
		return err
	}
	return events.Errorf(events.Retryable, events.ClassCorrupt, "%w", err)
}

// Hostilef returns an error for content that must not be checked out: permanent, of ClassHostile.
func Hostilef(format string, args ...any) error {
	return events.Errorf(events.Permanent, events.ClassHostile, format, args...)
}

// Quotaf returns an error for a repository that exceeds a limit: permanent, of ClassQuota.
func Quotaf(format string, args ...any) error {
	return events.Errorf(events.Permanent, events.ClassQuota, format, args...)
}

// RecoverCorrupt turns, when deferred, a panic of go-git on damaged objects into an error of ClassCorrupt.
func RecoverCorrupt(err *error) {
	if cause := recover(); cause != nil {
		*err = Corruptf("read Git objects: panic: %v", cause)
	}
}
