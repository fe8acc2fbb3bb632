package app

import (
	"context"
	"log/slog"
	"time"

	"lockstep/events"
	"lockstep/internal/volume"
)

// syncEvery bounds what an unclean stop can damage with [volume.DurabilityProcess].
const syncEvery = time.Minute

// syncer syncs published trees to disk, and requests repairs after an unclean stop of the machine.
type syncer struct {
	volume   *volume.Volume
	replacer replacer
	log      *slog.Logger
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

// verify has a repository's damage replaced.
func (s syncer) verify(ctx context.Context, repo events.RepoPath) error {
	report, err := s.replacer.verify(ctx, volume.VerifyRequest{Repo: repo})
	if report.Found > 0 {
		s.log.WarnContext(ctx, "damaged by an unclean stop, will be replaced", "repo", repo, "problems", report.Found, "marked", report.Marked)
	}
	return err
}
