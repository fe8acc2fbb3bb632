package app

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"lockstep/events"
	"lockstep/internal/volume"
	"lockstep/locking"
)

// syncEvery bounds what an unclean stop can damage with [volume.DurabilityProcess].
const syncEvery = time.Minute

// syncer writes what was published to disk, and after an unclean stop of the machine has damage replaced.
type syncer struct {
	volume  *volume.Volume
	locker  *locking.Locker
	publish func(context.Context, events.Change) error
	source  string // of the changes that it publishes
	log     *slog.Logger
}

// Run syncs once a minute until ctx is done, and a last time then.
func (s syncer) Run(ctx context.Context) {
	s.recover(ctx)
	runEvery(ctx, syncEvery, func() {
		s.sync(ctx)
		s.recover(ctx) // an earlier attempt may have failed
	})
	s.sync(context.WithoutCancel(ctx))
}

func (s syncer) sync(ctx context.Context) {
	if err := s.volume.SyncPublished(); err != nil {
		s.log.WarnContext(ctx, "syncing the volume failed, will retry", "error", err)
	}
}

func (s syncer) recover(ctx context.Context) {
	verified, err := s.volume.Recover(ctx, s.verify)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.log.WarnContext(ctx, "verifying after an unclean stop failed, will retry", "verified", verified, "error", err)
	case verified > 0:
		s.log.InfoContext(ctx, "verified what was published before an unclean stop", "repositories", verified)
	}
}

// verify marks a repository's damage and requests the syncs that replace it. An unwatched repository waits for its next
// change.
func (s syncer) verify(ctx context.Context, repo events.RepoPath) error {
	return WithLease(ctx, s.volume, s.locker, repo, "verify", locking.WaitInLine, func(ctx context.Context, fence uint64) error {
		report, err := s.volume.Verify(ctx, volume.VerifyRequest{Repo: repo, Fence: fence, Repair: true})
		if events.ClassOf(err) == events.ClassNotFound {
			return nil // removed meanwhile
		}
		if err != nil || report.Found == 0 {
			return err
		}
		s.log.WarnContext(ctx, "damaged by an unclean stop, will be replaced", "repo", repo, "problems", report.Found, "marked", report.Marked)
		change, err := events.NewChange(events.Change{Type: events.ChangeDue, Repo: repo, Source: s.source})
		return errors.Join(err, s.publish(ctx, change))
	})
}
