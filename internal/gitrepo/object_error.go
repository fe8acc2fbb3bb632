package gitrepo

import (
	"errors"
	"fmt"

	"lockstep/events"
)

// corrupt says that objects are missing or do not hash right. What is classified already stays so:
// an object that was refused is not a missing one.
func corrupt(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if _, ok := errors.AsType[*events.Error](err); ok {
		return err
	}
	return events.Errorf(events.Retryable, events.ClassCorrupt, "%w", err)
}

// hostile says that the repository holds what must not be checked out.
func hostile(format string, args ...any) error {
	return events.Errorf(events.Permanent, events.ClassHostile, format, args...)
}

// quota says that a repository is over a limit of ours.
func quota(format string, args ...any) error {
	return events.Errorf(events.Permanent, events.ClassQuota, format, args...)
}

func recoverCorrupt(err *error) {
	if cause := recover(); cause != nil {
		*err = corrupt("read the fetched pack: panic: %v", cause)
	}
}
