package object

import (
	"fmt"

	"lockstep/internal/git"
)

// Corruptf returns an error for missing or damaged objects: retryable, of ClassCorrupt. If it wraps an error that
// has a class, it keeps that class.
func Corruptf(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if git.IsClassified(err) {
		return err
	}
	return git.Errorf(git.Retryable, git.ClassCorrupt, "%w", err)
}

// Hostilef returns an error for content that must not be checked out: permanent, of ClassHostile.
func Hostilef(format string, args ...any) error {
	return git.Errorf(git.Permanent, git.ClassHostile, format, args...)
}

// Quotaf returns an error for a repository that exceeds a limit: permanent, of ClassQuota.
func Quotaf(format string, args ...any) error {
	return git.Errorf(git.Permanent, git.ClassQuota, format, args...)
}

// RecoverCorrupt turns, when deferred, a panic of go-git on damaged objects into an error of ClassCorrupt.
func RecoverCorrupt(err *error) {
	if cause := recover(); cause != nil {
		*err = Corruptf("read Git objects: panic: %v", cause)
	}
}
