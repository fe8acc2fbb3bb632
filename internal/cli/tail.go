package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/status"
)

// tailFlags configures lockstep tail.
type tailFlags struct {
	changes bool
	since   time.Duration
	count   int
	out     term.Output
}

func newTailCommand(std term.Streams) *cobra.Command {
	var f tailFlags
	cmd := &cobra.Command{
		Use:   "tail [PREFIX]",
		Short: "Follow results live",
		Long: "Print each new result, of all repositories or of those with a path prefix, until interrupted. Does not affect other\n" +
			"consumers.",
		Example: "  lockstep tail --redis redis://127.0.0.1:6379\n" +
			"  lockstep tail acme/ --since 10m --changes --redis redis://127.0.0.1:6379\n" +
			"  lockstep tail -o json --count 1 --redis redis://127.0.0.1:6379",
		Args:              term.WrongUse(term.OneArgAtMost),
		ValidArgsFunction: completeFirst(std, repositories),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.since < 0 || f.count < 0 {
				return term.UsageError(errors.New("--since and --count: want 0 or more"))
			}
			prefix := strings.ToLower(prefixOf(args))
			err := onRedis(cmd, std, term.Forever, func(ctx context.Context, cfg config.Config, client redis.UniversalClient) error {
				return f.follow(ctx, client, cfg.Namespace(), prefix, std.Stdout)
			})
			if cmd.Context().Err() != nil { // interrupted by the user
				return nil
			}
			return err
		},
	}
	config.AddFlags(cmd.Flags(), config.Common)
	cmd.Flags().BoolVar(&f.changes, "changes", false, "also print changes")
	cmd.Flags().DurationVar(&f.since, "since", 0, "age of the first event to print, as far as the streams reach back")
	cmd.Flags().IntVar(&f.count, "count", 0, "number of lines to print; 0 for no limit")
	f.out.Add(cmd)
	return cmd
}

const tailBatch = 100

// follow prints the events of repositories whose key starts with prefix.
func (f *tailFlags) follow(ctx context.Context, client redis.UniversalClient, namespace events.Namespace, prefix string, w io.Writer) error {
	topics := []string{namespace.Results()}
	if f.changes {
		topics = append(topics, namespace.Changes())
	}
	now, err := client.Time(ctx).Result()
	if err != nil {
		return err
	}
	from := make([]string, len(topics))
	for i := range from {
		from[i] = strconv.FormatInt(now.Add(-f.since).UnixMilli(), 10) + "-0"
	}
	for printed := 0; ; {
		read, err := client.XRead(ctx, &redis.XReadArgs{Streams: append(append([]string{}, topics...), from...), Count: tailBatch, Block: time.Second}).Result()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			return err
		}
		for _, stream := range read {
			for _, entry := range stream.Messages {
				for i, topic := range topics {
					if topic == stream.Stream {
						from[i] = entry.ID
					}
				}
				repo, line := entryLine(entry)
				if !strings.HasPrefix(strings.ToLower(repo), prefix) {
					continue
				}
				if f.out.IsTable() {
					_, err = fmt.Fprintln(w, line)
				} else {
					err = f.out.Next(w, documentOf(stream.Stream, entry))
				}
				if err != nil {
					return err
				}
				if printed++; printed == f.count {
					return nil
				}
			}
		}
	}
}

// entryLine formats an entry and returns its repository.
func entryLine(entry redis.XMessage) (repo, line string) {
	payload, _ := entry.Values["payload"].(string)
	at := entry.ID
	if added := events.EntryTime(entry.ID); !added.IsZero() {
		at = added.Local().Format("15:04:05.000")
	}
	if r, err := events.ParseResult([]byte(payload)); err == nil {
		return r.Repo.String(), status.OneLine(at, status.ResultLine(r))
	}
	if c, err := events.ParseChange([]byte(payload)); err == nil {
		return c.Repo.String(), status.OneLine(at, "asked", status.Kind(string(c.Type)), c.Repo.String(), c.Ref.String(), c.App, fmt.Sprintf("%.12s", cmp.Or(c.Pinned(), c.Announced())), c.ID)
	}
	repo, _ = entry.Values["repo"].(string) // an entry with plain fields
	return repo, status.OneLine(at, "asked", "plain", repo, entry.ID)
}

// documentOf returns the event of an entry, or its fields if it has none.
func documentOf(stream string, entry redis.XMessage) any {
	payload, _ := entry.Values["payload"].(string)
	if json.Valid([]byte(payload)) {
		return json.RawMessage(payload)
	}
	return plainEntry{stream, entry.ID, entry.Values}
}

// plainEntry is an entry without a valid event.
type plainEntry struct {
	Stream string         `json:"stream"`
	Entry  string         `json:"entry"`
	Fields map[string]any `json:"fields"`
}
