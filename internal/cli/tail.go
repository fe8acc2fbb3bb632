package cli

import (
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

// tailFlags say what lockstep tail follows.
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
		Short: "Follow what becomes of repositories, live",
		Long: "Print each result as it comes, of all repositories or of those whose paths begin with a prefix, until\n" +
			"interrupted. Nothing is taken from anybody: what others read, they still read.",
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
			err := onRedis(cmd, std, term.ForEver, func(ctx context.Context, cfg config.Config, client redis.UniversalClient) error {
				return f.follow(ctx, client, cfg.Namespace(), prefix, std.Stdout)
			})
			if cmd.Context().Err() != nil { // interrupted, as it is meant to be
				return nil
			}
			return err
		},
	}
	config.AddFlags(cmd.Flags(), config.Common)
	cmd.Flags().BoolVar(&f.changes, "changes", false, "print what is asked for, too")
	cmd.Flags().DurationVar(&f.since, "since", 0, "begin with what came so long ago, as far as it is kept")
	cmd.Flags().IntVar(&f.count, "count", 0, "end after so many lines; 0: never")
	f.out.Add(cmd)
	return cmd
}

const tailBatch = 100

// follow prints events of repositories whose keys begin with prefix.
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

// entryLine shows an entry, and says which repository it is about.
func entryLine(entry redis.XMessage) (repo, line string) {
	payload, _ := entry.Values["payload"].(string)
	at := entry.ID
	if added := events.EntryTime(entry.ID); !added.IsZero() {
		at = added.Local().Format("15:04:05.000")
	}
	if r, err := events.ParseResult([]byte(payload)); err == nil {
		return r.Repo.String(), status.Shown(at, status.ResultLine(r))
	}
	if c, err := events.ParseChange([]byte(payload)); err == nil {
		return c.Repo.String(), status.Shown(at, "asked", status.KindOf(string(c.Type)), c.Repo.String(), c.Ref.String(), c.App, fmt.Sprintf("%.12s", c.Announced()), c.ID)
	}
	repo, _ = entry.Values["repo"].(string) // of plain fields
	return repo, status.Shown(at, "asked", "plain", repo, entry.ID)
}

// documentOf is an entry's event; of one that has none, its fields.
func documentOf(stream string, entry redis.XMessage) any {
	payload, _ := entry.Values["payload"].(string)
	if json.Valid([]byte(payload)) {
		return json.RawMessage(payload)
	}
	return plainEntry{stream, entry.ID, entry.Values}
}

// plainEntry is an entry that somebody has written without an event, or with a broken one.
type plainEntry struct {
	Stream string         `json:"stream"`
	Entry  string         `json:"entry"`
	Fields map[string]any `json:"fields"`
}
