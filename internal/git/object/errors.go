package object

import (
	"errors"
	"fmt"

	"lockstep/events"
)

// Corruptf says that objects are missing or do not hash right. What is classified already stays so:
// an object that was refused is not a missing one.
func Corruptf(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if _, ok := errors.AsType[*events.Error](err); ok {
		return err
	}
	return events.Errorf(events.Retryable, events.ClassCorrupt, "%w", err)
}

// Hostilef says that the repository holds what must not be checked out.
func Hostilef(format string, args ...any) error {
	return events.Errorf(events.Permanent, events.ClassHostile, format, args...)
}

// Quotaf says that a repository is over a limit of ours.
func Quotaf(format string, args ...any) error {
	return events.Errorf(events.Permanent, events.ClassQuota, format, args...)
}

// RecoverCorrupt turns a panic in go-git, which damaged objects may provoke, into an error of ClassCorrupt. Defer it.
func RecoverCorrupt(err *error) {
	if cause := recover(); cause != nil {
		*err = Corruptf("read the fetched pack: panic: %v", cause)
	}
}
