package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/config"
	"lockstep/internal/server"
	"lockstep/internal/state"
	"lockstep/locking"
)

// serviceStatus is one screen's worth of a running service.
type serviceStatus struct {
	Redis   string `json:"redis"`
	Prefix  string `json:"prefix"`
	Changes int64  `json:"changes"` // entries kept in the stream
	Unread  int64  `json:"unread"`  // not delivered yet; -1 when Redis cannot tell
	Pending int64  `json:"pending"` // delivered and not settled
	Due     int64  `json:"due"`     // of the pending, with a due moment
	Late    int64  `json:"late"`    // of the due, whose moment has passed
	Workers int    `json:"workers"` // consumers of the group
	Results int64  `json:"results"`
	Dead    int64  `json:"dead"`

	OldestMS int64 `json:"oldest_unsettled_ms"` // age of the oldest change that is not settled
}

// repoStatus is what is known of one repository.
type repoStatus struct {
	Repo   string            `json:"repo"`
	Heads  map[string]string `json:"heads"` // ref to published commit
	Fence  uint64            `json:"fence,omitempty"`
	Synced *time.Time        `json:"synced,omitempty"`
	Lock   server.Lock       `json:"lock"`
}

func newStatusCommand(std streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status [owner/name]",
		Short: "Show the state of a running service, or of one repository",
		Example: "  lockstep status --redis redis://127.0.0.1:6379\n" +
			"  lockstep status acme/widgets --redis redis://127.0.0.1:6379 --json",
		Args: wrongUse(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onRedis(cmd, std, 10*time.Second, func(ctx context.Context, cfg config.Config, client redis.UniversalClient) error {
				if len(args) == 1 {
					repo, err := events.ParseRepoPath(args[0])
					if err != nil {
						return usageError(err)
					}
					status, err := readRepo(ctx, client, cfg.Namespace(), repo)
					if err != nil {
						return err
					}
					return show(std.stdout, status, asJSON, status.table)
				}
				status, err := readService(ctx, client, cfg)
				if err != nil {
					return err
				}
				return show(std.stdout, status, asJSON, status.table)
			})
		},
	}
	config.AddFlags(cmd.Flags(), config.Common)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func readService(ctx context.Context, client redis.UniversalClient, cfg config.Config) (serviceStatus, error) {
	namespace := cfg.Namespace()
	server, err := cfg.RedisServer()
	if err != nil {
		return serviceStatus{}, err
	}
	changes, err := stream.Stats(ctx, client, cfg.Prefix, namespace.Changes())
	if err != nil {
		return serviceStatus{}, err
	}
	results, err := client.XLen(ctx, namespace.Results()).Result()
	if err != nil {
		return serviceStatus{}, err
	}
	status := serviceStatus{
		Redis: server.String(), Prefix: cfg.Prefix,
		Changes: changes.Length, Unread: changes.Length, // all of them, before the first worker has made the group
		Results: results, Dead: changes.Dead,
	}
	if g, ok := changes.Group(workers); ok {
		status.Unread, status.Pending, status.Workers = g.Lag, g.Pending, g.Consumers
		status.Due, status.Late, status.OldestMS = g.Due, g.Late, g.Oldest.Milliseconds()
	}
	return status, nil
}

func readRepo(ctx context.Context, client redis.UniversalClient, namespace events.Namespace, repo events.RepoPath) (repoStatus, error) {
	known, err := state.NewStore(client, namespace).Load(ctx, repo)
	if err != nil {
		return repoStatus{}, err
	}
	inspector, err := locking.NewInspector(locking.InspectorConfig{Redis: client, Prefix: namespace.Locks()})
	if err != nil {
		return repoStatus{}, err
	}
	lock, err := inspector.Status(ctx, repo.Key())
	if err != nil {
		return repoStatus{}, err
	}
	status := repoStatus{Repo: cmp.Or(known.Spelled(), repo.String()), Heads: known.Heads(), Fence: known.Fence(), Lock: server.NewLock(lock)}
	if at := known.Synced(); !at.IsZero() {
		status.Synced = &at
	}
	return status, nil
}

// show prints a status as JSON or as its table.
func show(w io.Writer, status any, asJSON bool, table func(io.Writer)) error {
	if asJSON {
		return json.NewEncoder(w).Encode(status)
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	table(tw)
	return tw.Flush()
}

func (s serviceStatus) table(w io.Writer) {
	unread := strconv.FormatInt(s.Unread, 10)
	if s.Unread < 0 {
		unread = "unknown"
	}
	fmt.Fprintf(w, "redis\t%s\t%s\n", s.Redis, s.Prefix)
	fmt.Fprintf(w, "changes\t%d kept\t%s unread, %d pending (%d due, %d of them late)\n", s.Changes, unread, s.Pending, s.Due, s.Late)
	fmt.Fprintf(w, "oldest\t%v\tunsettled\n", (time.Duration(s.OldestMS) * time.Millisecond).Round(time.Second))
	fmt.Fprintf(w, "workers\t%d\t\n", s.Workers)
	fmt.Fprintf(w, "results\t%d kept\t\n", s.Results)
	fmt.Fprintf(w, "dead\t%d\t\n", s.Dead)
}

func (s repoStatus) table(w io.Writer) {
	fmt.Fprintf(w, "repository\t%s\n", s.Repo)
	if s.Synced == nil {
		fmt.Fprintf(w, "synced\tnever\n")
	} else {
		fmt.Fprintf(w, "synced\t%s (fence %d)\n", s.Synced.Format(time.RFC3339), s.Fence)
	}
	for _, ref := range slices.Sorted(maps.Keys(s.Heads)) {
		fmt.Fprintf(w, "head\t%s\t%.12s\n", ref, s.Heads[ref])
	}
	if !s.Lock.Held {
		fmt.Fprintf(w, "lease\tfree\n")
		return
	}
	fmt.Fprintf(w, "lease\t%s by job %s on %s since %s\n", s.Lock.Holder.Operation, s.Lock.Holder.Job, s.Lock.Holder.Worker, s.Lock.Since.Format(time.RFC3339))
}
