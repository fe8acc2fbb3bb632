package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/cells"
	"lockstep/internal/changes"
	"lockstep/internal/config"
	"lockstep/internal/redisx"
	"lockstep/internal/state"
	"lockstep/internal/status"
	"lockstep/internal/term"
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
		Long: "Print each new result, of all repositories or of those with a path prefix, until interrupted: its time,\n" +
			"its entry, for lockstep result, and what it says. Does not affect other consumers. With several cells,\n" +
			"it follows those that there are when it starts; one that does not answer is named.\n\n" + progressHelp,
		Example: "  lockstep tail --redis redis://127.0.0.1:6379\n" +
			"  lockstep tail acme/ --since 10m --changes --redis redis://127.0.0.1:6379\n" +
			"  lockstep tail -o json --count 1 --redis redis://127.0.0.1:6379",
		Args: term.WrongUse(term.OneArgAtMost),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.since < 0 || f.count < 0 {
				return term.UsageError(errors.New("--since and --count: want 0 or more"))
			}
			prefix := strings.ToLower(prefixOf(args))
			err := onCells(cmd, std, term.Forever, func(ctx context.Context, d deployment) error {
				return f.follow(ctx, d.redis, d.cells, prefix, std)
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

const tailPause = time.Second // after which a cell that did not answer is asked again

// errPrinted ends a tail that has printed as many lines as wanted.
var errPrinted = errors.New("printed")

// follow prints the events of all cells, of repositories whose key starts with prefix.
func (f *tailFlags) follow(
	ctx context.Context, client redis.UniversalClient, set *cells.Set, prefix string, std term.Streams,
) error {
	var mu sync.Mutex // guards printed and the output
	printed := 0
	show := func(topic string, entry redis.XMessage) error {
		repo, line := entryLine(entry)
		if !strings.HasPrefix(strings.ToLower(repo), prefix) {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if printed++; f.count > 0 && printed > f.count {
			return errPrinted
		}
		var err error
		if f.out.IsTable() {
			_, err = fmt.Fprintln(std.Stdout, line)
		} else {
			err = f.out.Next(std.Stdout, documentOf(topic, entry))
		}
		if err != nil {
			return err
		}
		if printed == f.count {
			return errPrinted
		}
		return nil
	}
	defer every(progressEvery, func(ctx context.Context) { f.showLongWork(ctx, client, set, prefix, std) })()
	all, ctx := errgroup.WithContext(ctx)
	for _, cell := range set.Members() {
		all.Go(func() error {
			reader, after := stream.NewReader(client), map[string]string(nil)
			for failing := false; ; failing = true {
				now, err := stream.Time(ctx, client, cell.Namespace.Results())
				if err != nil {
					now = time.Now() // by which a cell that is away will be read from here on
				}
				if after == nil {
					from := strconv.FormatInt(now.Add(-f.since).UnixMilli(), 10) + "-0"
					after = map[string]string{cell.Namespace.Results(): from}
					if f.changes {
						after[cell.Namespace.Changes()] = from
					}
				}
				if err == nil {
					failing = false
					err = reader.Follow(ctx, after, show)
				}
				if set.IsSingle() || !redisx.Unavailable(err) || ctx.Err() != nil {
					return err
				}
				if !failing {
					fmt.Fprintln(std.Stderr, "lockstep: cell "+cell.Name+" does not answer, trying again: "+term.OneLine(err))
				}
				redisx.Pause(ctx, tailPause)
			}
		})
	}
	if err := all.Wait(); !errors.Is(err, errPrinted) {
		return err
	}
	return nil
}

// showLongWork prints on standard error how far the changes are that have run for 10 s or longer, up to five per cell.
func (f *tailFlags) showLongWork(
	ctx context.Context, client redis.UniversalClient, set *cells.Set, prefix string, std term.Streams,
) {
	for _, cell := range set.Members() {
		all, _ := state.NewStore(client, cell.Namespace).Activities(ctx) // what follows the results reports an error
		all = slices.DeleteFunc(all, func(a state.Activity) bool {
			return a.At.Sub(a.Since) < progressEvery || !strings.HasPrefix(strings.ToLower(a.Repo), prefix)
		})
		for _, a := range all[:min(len(all), 5)] {
			newProgressLine(a.Repo, a.At.Sub(a.Since), a.Progress).print(std.Stderr, f.out)
		}
	}
}

// entryLine formats an entry and returns its repository.
func entryLine(entry redis.XMessage) (repo, line string) {
	payload, _ := entry.Values["payload"].(string)
	at := entry.ID
	if added := events.EntryTime(entry.ID); !added.IsZero() {
		at = added.Local().Format("15:04:05.000 ") + entry.ID
	}
	if r, err := events.ParseResult([]byte(payload)); err == nil {
		return r.Repo.String(), status.OneLine(at, status.ResultLine(r))
	}
	if c, err := events.ParseChange([]byte(payload)); err == nil {
		return c.Repo.String(), status.OneLine(at, "asked", changes.Kind(c.Type), c.Repo.String(),
			c.Ref.String(), c.App, fmt.Sprintf("%.12s", cmp.Or(c.Pinned(), c.Announced())), c.ID)
	}
	repo, _ = entry.Values["repo"].(string) // an entry with plain fields
	return repo, status.OneLine(at, "asked", "plain", repo)
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
