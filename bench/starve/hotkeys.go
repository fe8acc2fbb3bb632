package starve

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
)

// hotKeys is the case of several hot repositories with enough queued changes to fill every read window.
type hotKeys struct {
	load
	hot, changes, cold int
	work, every, limit time.Duration
}

func newHotKeysCommand(std term.Streams) *cobra.Command {
	var c hotKeys
	cmd := newCase(std, &cobra.Command{
		Use:   "hotkeys",
		Short: "Changes to cold repositories beside several hot ones, without Git",
		Long: "Let workers with a pause instead of Git work on changes to cold repositories: first alone, then beside hot\n" +
			"repositories with many queued changes.",
	}, c.check, c.run)
	flags := cmd.Flags()
	c.addFlags(flags, 1, 8)
	flags.IntVar(&c.hot, "hot", 12, "number of hot repositories")
	flags.IntVar(&c.changes, "changes", 200, "number of queued changes to each of them")
	flags.IntVar(&c.cold, "cold", 40, "number of cold repositories, with one change each")
	flags.DurationVar(&c.work, "work", time.Second, "how long the work on a change takes, in whole milliseconds")
	flags.DurationVar(&c.every, "every", 250*time.Millisecond, "interval between changes to cold repositories")
	flags.DurationVar(&c.limit, "limit", time.Minute, "how long to wait for the last of them")
	return cmd
}

func (c *hotKeys) check() error {
	if c.work%time.Millisecond != 0 {
		return errors.New("--work: want whole milliseconds")
	}
	return atLeastOne("--hot, --changes, --cold, --work, --every, --limit, --processes and --slots",
		int64(c.hot), int64(c.changes), int64(c.cold), int64(c.work), int64(c.every), int64(c.limit), int64(c.processes), int64(c.slots))
}

func (c *hotKeys) run(ctx context.Context, env *rig.Env, server *rig.Redis) (rig.Report, error) {
	return c.withPausing(ctx, env, server, c.work, func(changes *ledger, _ *pausing) (rig.Report, error) {
		return c.measure(ctx, env, server, changes)
	})
}

func (c *hotKeys) measure(ctx context.Context, env *rig.Env, server *rig.Redis, changes *ledger) (rig.Report, error) {
	number := 0
	measure := func() (Latency, error) {
		ids, err := changes.publishEvery(ctx, c.every, c.cold, numbered(&number, "cold", c.cold))
		if err != nil {
			return Latency{}, err
		}
		return changes.latency(ctx, ids, c.limit)
	}
	env.Progress("without hot repositories")
	calm, err := measure()
	if err != nil {
		return nil, err
	}
	env.Progress("with them")
	if _, err := changes.publishEvery(ctx, 0, c.hot*c.changes, numbered(&number, "hot", c.hot)); err != nil {
		return nil, err
	}
	if !app.Sleep(ctx, c.work) { // the workers have taken what they take
		return nil, context.Cause(ctx)
	}
	loaded, err := measure()
	if err != nil {
		return nil, err
	}
	report := newReport("hotkeys", server,
		"%d hot repositories × %d changes, %v of work, a change to a cold one every %v, %d processes × %d slots",
		c.hot, c.changes, c.work, c.every, c.processes, c.slots)
	report.compare(calm, loaded)
	report.addWithin(1.3, "p99 ratio", report.RatioP99)
	return report, nil
}

// numbered returns changes of a worker that pauses: their IDs count on, and they take turns over n repositories.
func numbered(next *int, name string, n int) func(i int) (events.Change, error) {
	return func(i int) (events.Change, error) {
		*next++
		return events.Change{ID: strconv.Itoa(*next), URL: fmt.Sprintf("https://example.com/bench/%s-%d.git", name, i%n)}, nil
	}
}
