package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"

	"lockstep/internal/config"
	"lockstep/internal/telemetry"
)

func newRootCommand(std streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "lockstep",
		Short: "Keep shared Git clones in step with their remotes",
		Long: "Lockstep turns a push into one fresh checkout on a shared volume and one event for whoever depends\n" +
			"on it: one worker at a time per repository, every repository in parallel, nothing lost.\n\n" +
			"Every setting is a flag, a LOCKSTEP_* variable or a key in lockstep.yaml, in that order of precedence.",
		Example:           "  lockstep sync https://example.com/acme/widgets.git --root repos\n  lockstep serve --redis redis://127.0.0.1:6379 --root repos",
		SilenceUsage:      true,
		SilenceErrors:     true,
		Args:              wrongUse(noArgs),
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return flagsTogether(cmd) },
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true}, // ours refuses a shell that it does not know
	}
	root.SetOut(std.stdout)
	root.SetErr(std.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
	})
	root.PersistentFlags().String("config", "", "`file` of settings (default lockstep.yaml if there is one)")
	root.AddCommand(
		newSyncCommand(std), newServeCommand(std), newHealthcheckCommand(std), newPublishCommand(std), newExecCommand(std),
		newStatusCommand(std), newTailCommand(std), newLocksCommand(std), newReposCommand(std), newWatchCommand(std), newReconcileCommand(std), newDoctorCommand(std), newConfigCommand(std), newDeadCommand(std), newDemoCommand(std), newBenchCommand(std), newVersionCommand(std), newCompletionCommand(std),
		newExitCodesTopic(), newEnvironmentTopic(),
	)
	root.SetHelpCommand(newHelpCommand())
	columns, _ := terminalSize(std.stdout)
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "Flags.FlagUsages ", fmt.Sprintf("Flags.FlagUsagesWrapped %d ", columns)))
	completeAll(root, std)
	return root
}

// silenceRedis keeps go-redis from logging what it returns as errors too.
func silenceRedis() { redis.SetLogger(&logging.VoidLogger{}) }

// onRedis runs fn on the Redis that is named, for a subcommand that makes no sense without one. What
// Redis does not answer within the time becomes an error that says what to do.
func onRedis(cmd *cobra.Command, std streams, within time.Duration, fn func(context.Context, config.Config, redis.UniversalClient) error) error {
	cfg, err := settings(cmd, std)
	if err != nil {
		return err
	}
	if cfg.Redis == "" {
		return usageError(errors.New("--redis is required: name the one that the service uses"))
	}
	server, err := cfg.RedisServer()
	if err != nil {
		return usageError(err)
	}
	client := server.Open()
	defer client.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), within)
	defer cancel()
	return redisError(server, fn(ctx, cfg, client))
}

// newLogger logs from the level that is set, or else from the subcommand's usual one.
func newLogger(w io.Writer, cfg config.Config, usual slog.Level) *slog.Logger {
	level := usual
	if cfg.LogLevel != "" {
		_ = level.UnmarshalText([]byte(cfg.LogLevel)) // checked by config.Load
	}
	opts := &slog.HandlerOptions{Level: level}
	if cfg.LogFormat == "json" {
		return slog.New(telemetry.LogHandler(slog.NewJSONHandler(w, opts)))
	}
	return slog.New(telemetry.LogHandler(slog.NewTextHandler(w, opts)))
}
