package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/changes"
	"lockstep/internal/config"
	"lockstep/internal/redisx"
	"lockstep/internal/status"
	"lockstep/internal/telemetry"
	"lockstep/internal/term"
)

// errAnswered stops the embedded worker after the result.
var errAnswered = errors.New("answered")

// silent is the default log level of the embedded worker: the command prints the result anyway.
const silent = slog.LevelError + 4

func newSyncCommand(std term.Streams) *cobra.Command {
	var (
		flags   changeFlags
		out     term.Output
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "sync URL",
		Short: "Sync one repository now",
		Long: "Enqueue a change for one repository, wait for its result and print it. With --redis, the workers of\n" +
			"a running service handle it, with their own settings; otherwise an embedded worker and Redis do.\n" +
			progressHelp + "\n\n" +
			"-o event prints the result as a CloudEvent, as the stream and the HTTP API have it. -o json and\n" +
			"--json print the fields of its data on one level, with its id and type, and the fence.",
		Example: "  lockstep sync https://example.com/acme/widgets.git --root repos\n" +
			"  lockstep sync https://example.com/acme/widgets.git --ref release/1.2 --json\n" +
			"  lockstep sync https://example.com/acme/widgets.git --ref d670460b4b4aece5915caf5c68d12f560a9fe3e4\n" +
			"  lockstep sync https://example.com/acme/widgets.git --redis redis://127.0.0.1:6379",
		Args: term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			cfg, err := loadSettings(cmd, std)
			if err == nil && cfg.Redis == "" { // otherwise publishAndWait checks them
				err = checkSettings(cmd, std, cfg)
			}
			if err != nil {
				return err
			}
			change, err := flags.change(events.ChangePushed, args[0])
			if err != nil {
				return err
			}
			if timeout <= 0 {
				return term.UsageError(fmt.Errorf("--timeout %v: want more than 0s", timeout))
			}
			if err := checkEmbeddedFlags(cmd, cfg, std); err != nil {
				return err
			}
			traces, end := traced(cmd, std)
			defer func() { end(err) }()
			if cfg.Redis != "" {
				return publishAndWait(cmd, std, change, timeout, out)
			}
			if !cmd.Flags().Changed("max-attempts") {
				cfg.MaxAttempts = 1 // the user is waiting
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			result, err := syncEmbedded(ctx, cfg, std, out, traces, change)
			if err != nil && timedOut(ctx) {
				return &term.ExitError{Code: term.ExitTimedOut, Err: fmt.Errorf("sync %s: no result within %v; "+
					"the remote or the volume is slow; raise --timeout", change.Repo, timeout)}
			}
			if err != nil {
				return err
			}
			return report(std.Stdout, cfg, result, out)
		},
	}
	config.AddFlags(cmd.Flags(), config.Common|config.Working)
	flags.Add(cmd.Flags())
	out.Add(cmd, term.FormEvent)
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "maximum time to wait for the result")
	return cmd
}

// checkEmbeddedFlags refuses flags of the embedded worker beside --redis. If the Redis comes from the
// environment or a file, it only warns that they have no effect.
func checkEmbeddedFlags(cmd *cobra.Command, cfg config.Config, std term.Streams) error {
	if cfg.Redis == "" {
		return nil
	}
	worker := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(worker, config.Working)
	var typed []string
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if worker.Lookup(flag.Name) != nil {
			typed = append(typed, "--"+flag.Name)
		}
	})
	if len(typed) == 0 {
		return nil
	}
	if cmd.Flags().Changed("redis") {
		return term.UsageError(fmt.Errorf("%s cannot be combined with --redis: the workers of the service have their "+
			"own settings", strings.Join(typed, ", ")))
	}
	app.NewLogger(std.Stderr, cfg, slog.LevelWarn).WarnContext(cmd.Context(), "flags have no effect, as the workers "+
		"of the service have their own settings; to sync with an embedded worker, add --redis ''", "flags", typed)
	return nil
}

// syncEmbedded handles the change with a worker and a Redis inside this process.
func syncEmbedded(
	ctx context.Context, cfg config.Config, std term.Streams, out term.Output, traces *telemetry.Traces,
	change events.Change,
) (result events.Result, err error) {
	cfg.Grace = 0 // an interrupted sync need not finish
	process := app.Config{Config: cfg, Log: app.NewLogger(std.Stderr, cfg, silent), Metrics: telemetry.New(), Traces: traces}
	err = besideWorker(ctx, process, func(ctx context.Context, client redis.UniversalClient) (err error) {
		defer showProgress(std, out, client, cfg, change)()
		result, err = request(ctx, client, cfg, change)
		return err
	})
	return result, err
}

// besideWorker calls fn beside a worker and a Redis inside this process.
func besideWorker(
	ctx context.Context, process app.Config, fn func(context.Context, redis.UniversalClient) error,
) error {
	embedded, err := redisx.StartEmbedded()
	if err != nil {
		return err
	}
	defer embedded.Close()
	process.Redis, process.NoPrepare = embedded.Server, true
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return app.RunWorker(ctx, process) })
	g.Go(func() error {
		client := embedded.Open()
		defer client.Close()
		if err := fn(ctx, client); err != nil {
			return err
		}
		return errAnswered
	})
	if err := g.Wait(); !errors.Is(err, errAnswered) {
		return err
	}
	return nil
}

// request publishes the change and waits for its result.
func request(
	ctx context.Context, client redis.UniversalClient, cfg config.Config, change events.Change,
) (events.Result, error) {
	entry, err := changes.Publish(ctx, client, cfg.Namespace(), change)
	if err != nil {
		return events.Result{}, err
	}
	return await(ctx, client, cfg, entry)
}

// report prints the result. It returns an error if the change failed.
func report(w io.Writer, cfg config.Config, r events.Result, out term.Output) error {
	where := filepath.Join(cfg.Root, r.Path)
	if cfg.Redis != "" {
		where = r.Path + " below the root of the service"
	}
	if !out.IsTable() {
		if err := reportData(w, r, out); err != nil {
			return err
		}
	}
	switch {
	case r.Type == events.ResultFailed:
		return errors.New(r.Error)
	case !out.IsTable():
		return nil
	case r.Type == events.ResultRemoved:
		_, err := fmt.Fprintf(w, "%s was removed after this change was published\n", r.Repo)
		return err
	case r.Type == events.ResultMoved:
		_, err := fmt.Fprintf(w, "moved %s to %s\n", r.Repo, r.To)
		return err
	case r.Type == events.ResultPolled:
		left := ""
		if r.LeftOut > 0 {
			left = fmt.Sprintf("; %d refs left out: lockstep repos show %s", r.LeftOut, r.Repo)
		}
		_, err := fmt.Fprintf(w, "polled %s: %d changes published%s\n", r.Repo, r.Due, left)
		return err
	case r.Unchanged():
		_, err := fmt.Fprintf(w, "%s is up to date: %s at %.12s, in %s\n%s", r.Repo, r.Ref, r.After, where, status.MissingLines(r))
		return err
	}
	more, noun := "", "files"
	switch {
	case r.Truncated:
		more = " or more"
	case len(r.Files) == 1:
		noun = "file"
	}
	views := ""
	if r.Views != nil {
		views = fmt.Sprintf(", %d of %d views changed", r.Views.Changed, r.Views.Changed+r.Views.Unchanged)
	}
	_, err := fmt.Fprintf(w, "synced %s: %s at %.12s, %d%s %s changed%s, in %s (%v)\n%s",
		r.Repo, r.Ref, r.After, len(r.Files), more, noun, views, where, r.Took.Round(time.Millisecond), status.MissingLines(r))
	return err
}

// reportData prints the result: with -o event as the API and the stream have it, otherwise the fields of its
// data, with id and type.
func reportData(w io.Writer, r events.Result, out term.Output) error {
	if out.Form == term.FormEvent {
		return out.Document(w, r)
	}
	document, err := json.Marshal(r)
	if err != nil {
		return err
	}
	var envelope struct {
		ID   string         `json:"id"`
		Type string         `json:"type"`
		Data map[string]any `json:"data"`
	}
	if err := json.Unmarshal(document, &envelope); err != nil {
		return err
	}
	envelope.Data["id"], envelope.Data["type"], envelope.Data["fence"] = envelope.ID, envelope.Type, r.Fence
	if r.Type == events.ResultSynced {
		envelope.Data["before"] = r.Before // present even if empty
	}
	if r.Type == events.ResultSynced && r.Files == nil {
		envelope.Data["files"] = []events.File{}
	}
	return out.Document(w, envelope.Data)
}
