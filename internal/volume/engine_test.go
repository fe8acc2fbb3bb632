package volume

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/git"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/wire"
)

func TestErrorsOfTheEngineHaveTheirClass(t *testing.T) {
	for class, want := range map[git.Class]events.Class{
		git.ClassAuth: events.ClassAuth, git.ClassNotFound: events.ClassNotFound, git.ClassNoRef: events.ClassNoRef, git.ClassNetwork: events.ClassNetwork,
		git.ClassServer: events.ClassServer, git.ClassBusy: events.ClassBusy, git.ClassCorrupt: events.ClassCorrupt, git.ClassHostile: events.ClassHostile,
		git.ClassQuota: events.ClassQuota, git.ClassVolume: events.ClassVolume, git.ClassConfig: events.ClassConfig,
	} {
		for retry, disposition := range map[git.Retry]events.Disposition{
			"": events.Retryable, git.Retryable: events.Retryable, git.Contention: events.Contention, git.Permanent: events.Permanent,
		} {
			err := fmt.Errorf("fetch: %w", &git.Error{Retry: retry, Class: class, RetryAfter: time.Minute, Err: errors.New("text")})
			if events.ClassOf(err) != want || events.DispositionOf(err) != disposition || events.RetryAfter(err) != time.Minute || err.Error() != "fetch: text" {
				t.Errorf("%s, %s: %s, %s, %v: %v", class, retry, events.ClassOf(err), events.DispositionOf(err), events.RetryAfter(err), err)
			}
		}
		if own := events.Errorf(events.Permanent, want, "of a gate"); git.ClassOf(own) != class || git.RetryOf(own) != git.Permanent {
			t.Errorf("an error of a caller: %s, %s; want %s", git.ClassOf(own), git.RetryOf(own), class)
		}
	}
}

func TestNamesOfTheEngineAreThoseOfEvents(t *testing.T) {
	if wire.DetachedHead != events.DetachedHead.String() {
		t.Error(wire.DetachedHead)
	}
	for _, d := range []events.Depth{0, 1, 50, events.DepthFull} {
		if of := git.Depth(d); of.String() != d.String() || git.ParseDepth(of.String()) != of {
			t.Errorf("depth %q: %q", d, of)
		}
	}
	for status, want := range map[checkout.FileStatus]events.FileStatus{
		checkout.FileAdded: events.FileAdded, checkout.FileModified: events.FileModified, checkout.FileDeleted: events.FileDeleted,
		checkout.FileRenamed: events.FileRenamed, checkout.FileModeChanged: events.FileModeChanged,
	} {
		if string(status) != string(want) {
			t.Errorf("%s, want %s", status, want)
		}
	}
}
