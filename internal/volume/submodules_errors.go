package volume

import (
	"errors"

	"lockstep/events"
)

// aboutPart makes the trouble of a remote that a commit names, such as that of a submodule or an LFS server, that of
// the change. Other changes of the repository may not need it, and whoever may push chooses it.
func aboutPart(err error) error {
	switch events.ScopeOf(err) {
	case events.ScopeRepo, events.ScopeCredential:
		return events.WithScope(err, events.ScopeChange)
	}
	return err
}

// partError classifies an error about the remote of a submodule. Unlike for the repository's own remote, it is
// unknown whether the commit was ever pushed there.
func partError(err error) error {
	switch events.ClassOf(err) {
	case events.ClassNoRef:
		return events.Errorf(events.Retryable, events.ClassNotFound, "%w", err)
	case events.ClassCorrupt:
		return events.Errorf(events.Retryable, events.ClassServer, "its remote sent a pack that is not complete: %w", err)
	}
	return err
}

// hostFault returns the fault of a host that does not answer, or limits requests, instead of the error of the gate
// that makes a job wait for the host. It returns other errors unchanged, such as those of our own limits, which are
// short.
func hostFault(err error) error {
	if events.ClassOf(err) != events.ClassBusy || events.DispositionOf(err) != events.Contention {
		return err
	}
	waiting, _ := errors.AsType[events.Fault](err)
	if fault, ok := errors.AsType[events.Fault](errors.Unwrap(waiting)); ok {
		return fault
	}
	return err
}

// isUnavailable reports whether an error is about one submodule, rather than about the volume, the lease or the
// limits of its host.
func isUnavailable(err error) bool {
	if events.DispositionOf(err) == events.Contention {
		return false
	}
	switch events.ClassOf(err) {
	case events.ClassNetwork, events.ClassServer, events.ClassNotFound, events.ClassBusy:
		return true
	case events.ClassAuth, events.ClassConfig, events.ClassHostile, events.ClassQuota:
		return events.DispositionOf(err) == events.Permanent
	}
	return false
}
