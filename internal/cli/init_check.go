package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/config"
	"lockstep/internal/term"
)

// checkFirstPush waits until the latest push that a webhook reported is published.
func checkFirstPush(cmd *cobra.Command, std term.Streams, timeout time.Duration) error {
	if timeout <= 0 {
		return term.UsageError(fmt.Errorf("--timeout %v: want more than 0s", timeout))
	}
	return onRedis(cmd, std, timeout, func(ctx context.Context, cfg config.Config, client redis.UniversalClient) error {
		fmt.Fprintln(std.Stderr, "lockstep: waiting for a push that arrives by webhook; push to a watched repository now")
		entry, change, err := latestPush(ctx, client, cfg.Namespace())
		if err != nil && timedOut(ctx) {
			return &term.ExitError{Code: term.ExitTimedOut, Err: fmt.Errorf("no push arrived within %v; "+
				"look at the forge's list of deliveries, run lockstep hook test, and check that lockstep watch ls lists the repository", timeout)}
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(std.Stdout, "arrived: a push to %s %s, at %s\n", change.Repo, cmp.Or(shortRef(change.Ref.String()), "(default branch)"), change.Source)
		result, err := await(ctx, client, cfg, entry)
		switch {
		case err != nil && timedOut(ctx):
			return &term.ExitError{Code: term.ExitTimedOut, Err: fmt.Errorf("not published within %v; is a worker running? see lockstep status", timeout)}
		case errors.Is(err, errForgotten):
			return errors.New("the push was handled so long ago that its result is no longer kept; push again, or run lockstep hook test, and repeat this command")
		case err != nil:
			return err
		case result.Type == events.ResultFailed:
			return fmt.Errorf("the push arrived, but was not published: %s", result.Error)
		}
		fmt.Fprintf(std.Stdout, "published: %s at %.12s, in %s below the root\n", result.Repo, result.After, result.Path)
		return nil
	})
}

// latestPush returns the latest push that a webhook reported among the last changes of the stream, and waits for one if there is none.
func latestPush(ctx context.Context, client redis.UniversalClient, namespace events.Namespace) (entry string, change events.Change, err error) {
	for {
		last, err := client.XRevRangeN(ctx, namespace.Changes(), "+", "-", 10*tailBatch).Result()
		if err != nil {
			return "", events.Change{}, err
		}
		for _, message := range last {
			if change, ok := pushByWebhook(message); ok {
				return message.ID, change, nil
			}
		}
		if !app.Sleep(ctx, time.Second) {
			return "", events.Change{}, ctx.Err()
		}
	}
}

// pushByWebhook returns the change of an entry, and false unless it is a push that a webhook reported, other than one of lockstep hook test.
func pushByWebhook(message redis.XMessage) (events.Change, bool) {
	payload, _ := message.Values["payload"].(string)
	change, err := events.ParseChange([]byte(payload))
	return change, err == nil && change.Type == events.ChangePushed && strings.HasPrefix(change.Source, "/hooks/") && !strings.Contains(change.ID, "/"+testDelivery)
}
