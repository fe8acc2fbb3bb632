package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/changes"
	"lockstep/internal/config"
	"lockstep/internal/follow"
	"lockstep/internal/redisx"
	"lockstep/internal/volume"
	"lockstep/locking"
)

// FollowConfig says which reader [Follow] follows, and how.
type FollowConfig struct {
	follow.Config      // Reader, Select, Depth, Name and TokenWait; Follow sets the others
	WipeOnRevoke  bool // delete the copies once the token counts as removed

	volume *volume.Volume
}

// credentialReader is the name of the credential with the token.
const credentialReader = "reader"

// variables returns the variables of the credential with the token, and those of the process.
func (f *FollowConfig) variables(getenv func(string) string) func(string) string {
	return func(name string) string {
		switch name {
		case "LOCKSTEP_CREDENTIAL_READER_BEARER_TOKEN":
			token, _ := f.Reader.Token()
			return token
		case "LOCKSTEP_CREDENTIAL_READER_URLS":
			return f.Reader.GitURLs()
		case "LOCKSTEP_CREDENTIAL_READER_PASSWORD", "LOCKSTEP_CREDENTIAL_READER_USERNAME":
			return ""
		}
		return getenv(name)
	}
}

// Follow keeps the volume at cfg.Root in step with a reader until ctx is done, then drains. It is a service
// with a worker, an embedded Redis and, if cfg has that role, a reader. It returns nil after a clean stop,
// and [follow.ErrRevoked] once the token counts as removed.
func Follow(ctx context.Context, cfg config.Config, f FollowConfig, log *slog.Logger) error {
	cfg.Redis, cfg.Credentials = "", ""
	vol, err := volume.OpenVolume(cfg.Root, VolumeConfig(cfg))
	if err != nil {
		return err
	}
	defer vol.Close()
	record, err := follow.OpenRecord(vol.Root(), f.Reader.URL(), f.Depth, func() (bool, error) { return isEmpty(vol) })
	switch {
	case events.ClassOf(err) == events.ClassVolume: // it may pass
		return err
	case err != nil:
		return invalid(err)
	}
	defer record.Close()
	f.volume, f.Record = vol, record
	return Serve(ctx, Config{Config: cfg, Log: log, Getenv: f.variables(os.Getenv), follow: &f})
}

// runFollower follows until ctx is done.
func runFollower(ctx context.Context, cfg Config) error {
	hb := cfg.health.heartbeat(followerHandler)
	defer hb.notReady(errEnded)
	reader, vol := cfg.follow.Reader, cfg.follow.volume
	reader.Through(vol.Transport())
	client := cfg.Redis.Open()
	defer client.Close()
	pubsub := cfg.Redis.Open()
	defer pubsub.Close()
	cfg.Worker = stream.UniqueConsumer() // not that of the worker
	locker, err := newLocker(cfg, client, pubsub, nil)
	if err != nil {
		return invalid(err)
	}
	defer func() { _ = locker.Close(context.WithoutCancel(ctx)) }()
	runs, err := newFollowerRuns(cfg, vol)
	if err != nil {
		return err
	}
	follows := cfg.follow.Config
	follows.Volume, follows.Credential, follows.SyncAll = vol, credentialReader, cfg.Has(config.RoleReader)
	follows.CompareEvery, follows.Version, follows.Log = cfg.PollEvery, ReadBuild().Version, cfg.Log
	follows.Pending, follows.State = runs.pending, hb.notReady
	follows.Publish = func(ctx context.Context, change events.Change) error {
		return PublishChange(ctx, client, cfg.Namespace(), change)
	}
	follows.Purge = func(ctx context.Context, repo events.RepoPath) error {
		return WithLease(ctx, vol, locker, repo, "purge", locking.WaitInLine, func(ctx context.Context, fence uint64) error {
			return vol.Purge(ctx, repo, fence, "")
		})
	}
	f, err := follow.New(follows)
	if err != nil {
		return invalid(err)
	}
	defer cfg.Metrics.Follower(f.Status)()
	ctx, stopRuns := context.WithCancel(ctx)
	if runs != nil {
		defer runs.Wait()
	}
	defer stopRuns()
	if err := runs.begin(ctx); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	settling, stop := context.WithCancel(ctx)
	defer stop()
	g.Go(func() error { return settleFollowed(settling, cfg, f, runs) })
	g.Go(func() error {
		defer stop()
		err := f.Run(ctx)
		if errors.Is(err, follow.ErrRevoked) {
			err = revoked(ctx, cfg, f, err)
		}
		return err
	})
	return g.Wait()
}

// revoked deletes the copies of a follower whose token was removed, if that is asked for, and returns the
// error that says so.
func revoked(ctx context.Context, cfg Config, f *follow.Follower, err error) error {
	if !cfg.follow.WipeOnRevoke {
		cfg.Log.ErrorContext(ctx, "token removed, stopping; the copies stay", "root", cfg.Root)
		return err
	}
	cfg.Log.ErrorContext(ctx, "token removed, deleting the copies", "root", cfg.Root)
	if wiped := f.Wipe(ctx); wiped != nil {
		return fmt.Errorf("the token was removed, but not all copies are deleted yet; the next start continues: %w", wiped)
	}
	cfg.Log.InfoContext(ctx, "copies deleted", "root", cfg.Root)
	return err
}

// settleFollowed passes the results of the worker to a follower and its command until ctx is done.
func settleFollowed(ctx context.Context, cfg Config, f *follow.Follower, runs *followerRuns) error {
	client := cfg.Redis.Open()
	defer client.Close()
	after := map[string]string{cfg.Namespace().Results(): "0-0"}
	for {
		err := stream.NewReader(client).Follow(ctx, after, func(_ string, e redis.XMessage) error {
			if result, err := changes.ParseResult(e); err == nil {
				runs.settled(ctx, result)
				f.Settle(ctx, result)
			}
			return nil
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case !redisx.Unavailable(err):
			return err
		}
		redisx.Pause(ctx, time.Second)
	}
}

// isEmpty reports whether there is no repository on a volume.
func isEmpty(vol *volume.Volume) (bool, error) {
	for _, err := range vol.Repos() {
		return false, err
	}
	return true, nil
}
