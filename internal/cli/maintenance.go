package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/app"
	"lockstep/internal/config"
	"lockstep/internal/redisx"
	"lockstep/internal/term"
	"lockstep/internal/volume"
	"lockstep/locking"
)

// maintainer works on the repositories of a volume, each under its lease.
type maintainer struct {
	volume    *volume.Volume
	locker    *locking.Locker       // nil if offline
	redis     redis.UniversalClient // nil if offline
	namespace events.Namespace
	stderr    io.Writer   // for progress
	out       term.Output // its form
}

// maintenanceFlags select repositories on the volume.
type maintenanceFlags struct {
	all, offline bool
	out          term.Output
}

func (f *maintenanceFlags) Add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.all, "all", false, "all repositories on the volume")
	f.addCommon(cmd)
}

func (f *maintenanceFlags) addCommon(cmd *cobra.Command) {
	config.AddFlags(cmd.Flags(), config.Common|config.Keeping)
	cmd.Flags().BoolVar(&f.offline, "offline", false, "work without Redis; no worker may be running")
	f.out.Add(cmd)
}

// repos parses the arguments. It returns none for --all.
func (f *maintenanceFlags) repos(args []string) ([]events.RepoPath, error) {
	if f.all != (len(args) == 0) {
		return nil, term.UsageError(errors.New("name repositories or use --all"))
	}
	return parseRepos(args)
}

func parseRepos(args []string) ([]events.RepoPath, error) {
	repos := make([]events.RepoPath, 0, len(args))
	for _, arg := range args {
		repo, err := events.ParseRepoPath(arg)
		if err != nil {
			return nil, term.UsageError(err)
		}
		repos = append(repos, repo)
	}
	return repos, nil
}

// onVolume runs fn with the volume and, unless offline, a locker of the deployment.
func (f *maintenanceFlags) onVolume(
	cmd *cobra.Command, std term.Streams, fn func(context.Context, maintainer) error,
) error {
	cfg, err := settings(cmd, std)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	if _, err := volume.ViewVolume(cfg.Root); err != nil {
		return err // OpenVolume would create one
	}
	volumeConfig := app.VolumeConfig(cfg)
	if f.offline {
		volumeConfig.Results = func(context.Context) (volume.Horizon, error) {
			return volume.Horizon{}, errors.New("offline") // protects trees named by results for as long as possible
		}
		volume, err := volume.OpenVolume(cfg.Root, volumeConfig)
		if err != nil {
			return err
		}
		defer volume.Close()
		return fn(ctx, maintainer{volume: volume, namespace: cfg.Namespace(), stderr: std.Stderr, out: f.out})
	}
	if cfg.Redis == "" {
		return term.UsageError(fmt.Errorf("%s is required; use the same URL as the service, or stop all workers and "+
			"use --offline", config.Names("redis")))
	}
	server, err := cfg.RedisServer()
	if err != nil {
		return term.UsageError(err)
	}
	if cfg, err = oneCell(ctx, cfg); err != nil {
		return err
	}
	commands, pubsub := server.Open(), server.Open()
	defer commands.Close()
	defer pubsub.Close()
	volumeConfig.Results = app.ResultWatermarks(commands, cfg.Namespace())
	volume, err := volume.OpenVolume(cfg.Root, volumeConfig)
	if err != nil {
		return err
	}
	defer volume.Close()
	if err := app.ClaimVolume(ctx, commands, cfg.Namespace(), volume); err != nil {
		return redisx.Explain(server, err)
	}
	locker, err := locking.New(locking.Config{
		Redis: commands, PubSub: pubsub, Prefix: cfg.Namespace().Locks(), Lease: cfg.Lease, Wait: cfg.LockWait,
		Worker: "cli-" + stream.UniqueConsumer(), Log: app.NewLogger(std.Stderr, cfg, slog.LevelError), KeyName: "repo",
	})
	if err != nil {
		return err
	}
	defer func() { _ = locker.Close(context.WithoutCancel(ctx)) }()
	return redisx.Explain(server, fn(ctx, maintainer{volume, locker, commands, cfg.Namespace(), std.Stderr, f.out}))
}

// each calls fn for the given repositories, or for all if there are none, and counts the errors. Only ctx
// ends it early. It prints its progress on standard error every 10 s.
func (m maintainer) each(
	ctx context.Context, repos []events.RepoPath, fn func(repo events.RepoPath, err error) error,
) (failed int) {
	set, stop := showLines(m.stderr, m.out, "looking for repositories, none found yet")
	defer stop()
	done := 0
	visit := func(repo events.RepoPath, err error) bool {
		set(progressLine{
			Repo: repo.String(), Progress: events.Progress{Done: int64(done), Unit: "repositories"}, Failed: failed,
			text: fmt.Sprintf("%d repositories done, %d of them failed; now %s, since %s", done, failed, repo,
				time.Now().Format(time.TimeOnly)),
		})
		if done++; fn(repo, err) != nil {
			failed++
		}
		return ctx.Err() == nil
	}
	all := m.volume.Repos()
	if len(repos) > 0 {
		all = func(yield func(events.RepoPath, error) bool) {
			for _, repo := range repos {
				if !yield(repo, nil) {
					return
				}
			}
		}
	}
	for repo, err := range all {
		if !visit(repo, err) {
			break
		}
	}
	return failed
}

// onDisk is the disk usage of a repository, as ls, show and gc print it.
type onDisk struct {
	Bytes   int64            `json:"bytes"` // last measured size plus what was added since
	Files   int64            `json:"files"` // last measured
	Trees   int              `json:"trees"`
	Store   int              `json:"store,omitempty"` // generation
	Adopted []volume.Adopted `json:"adopted,omitempty"`
}

func newOnDisk(u volume.Usage, store int) *onDisk {
	return &onDisk{Bytes: u.Bytes + u.Added, Files: u.Files, Trees: u.Trees, Store: store, Adopted: u.Adopted}
}

func (d *onDisk) adopted() string {
	if d == nil || len(d.Adopted) == 0 {
		return "-"
	}
	bytes := int64(0)
	for _, clone := range d.Adopted {
		bytes += clone.Bytes
	}
	return volume.BytesText(bytes)
}

func (d *onDisk) Table(w io.Writer) {
	if d == nil {
		return
	}
	fmt.Fprintf(w, "on disk\t%s in %d files\n", volume.BytesText(d.Bytes), d.Files)
	fmt.Fprintf(w, "trees\t%d\n", d.Trees)
	fmt.Fprintf(w, "store\tgeneration %d\n", d.Store)
	for _, clone := range d.Adopted {
		fmt.Fprintf(w, "adopted clone\t%s (%s); no longer used: delete it when you do not need it\n", clone.Path,
			volume.BytesText(clone.Bytes))
	}
}

// describe returns the disk usage of a repository, nil if it has none or volume is nil.
func describe(volume *volume.Volume, path string) (*onDisk, error) {
	if volume == nil {
		return nil, nil
	}
	repo, err := events.ParseRepoPath(path)
	if err != nil {
		return nil, err
	}
	detail, exists, err := volume.Describe(repo)
	if err != nil || !exists {
		return nil, err
	}
	return newOnDisk(detail.Usage, detail.Store), nil
}
