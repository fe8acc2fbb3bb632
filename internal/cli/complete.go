package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/app"
	"lockstep/internal/cells"
	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
	"lockstep/internal/workspace"
	"lockstep/locking"
)

// shells lists the shells that have a completion script.
var shells = []string{"bash", "zsh", "fish", "powershell"}

func newCompletionCommand(std term.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print a shell completion script",
		Long: "Print a completion script for bash (which needs the package bash-completion), zsh, fish or powershell. It completes\n" +
			"commands and flags and, if LOCKSTEP_REDIS, lockstep.yaml or --redis configures a Redis that answers within a\n" +
			"second, repositories, leases, dead letters and apps.",
		Example: "  source <(lockstep completion bash)\n" +
			"  lockstep completion bash > /etc/bash_completion.d/lockstep\n" +
			"  lockstep completion zsh > \"${fpath[1]}/_lockstep\"\n" +
			"  lockstep completion fish > ~/.config/fish/completions/lockstep.fish\n" +
			"  lockstep completion powershell | Out-String | Invoke-Expression",
		ValidArgs: shells,
		Args: term.WrongUse(func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains(shells, args[0]) {
				return fmt.Errorf("want one of %s", strings.Join(shells, ", "))
			}
			return nil
		}),
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			generate := map[string]func(io.Writer) error{
				"bash":       func(w io.Writer) error { return cmd.Root().GenBashCompletionV2(w, true) },
				"zsh":        cmd.Root().GenZshCompletion,
				"fish":       func(w io.Writer) error { return cmd.Root().GenFishCompletion(w, true) },
				"powershell": cmd.Root().GenPowerShellCompletionWithDesc,
			}
			return generate[args[0]](std.Stdout)
		},
	}
}

// flagValues maps flags to their values.
var flagValues = map[string][]string{
	"roles":         config.Roles,
	"log-level":     {"debug", "info", "warn", "error"},
	"log-format":    {"text", "json"},
	"durability":    {"power", "process"},
	"kind":          {string(workspace.KindAuto), string(workspace.KindOverlay), string(workspace.KindCopy)},
	"outside-links": {"keep", "skip", "refuse"},
	"on-busy":       {string(events.BusyWait), string(events.BusySkip)},
}

// folderFlags take a directory.
var folderFlags = []string{"root", "credentials", "hooks", "spool", "scratch"}

// fileFlags take a file. All other flags complete no file names.
var fileFlags = []string{"config", "redis-password-file", "api-token-file", "ca-file", "known-hosts", "result", "plot"}

// setDefaults registers completions for the flags of cmd and its subcommands. By default a command takes no arguments and completes
// no file names.
func setDefaults(cmd *cobra.Command, std term.Streams) {
	if cmd.Args == nil {
		cmd.Args = term.WrongUse(term.NoArgs)
	}
	if cmd.ValidArgsFunction == nil && len(cmd.ValidArgs) == 0 && !cmd.HasSubCommands() {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, flags := range []*pflag.FlagSet{cmd.LocalNonPersistentFlags(), cmd.PersistentFlags()} {
		flags.VisitAll(func(f *pflag.Flag) {
			if complete := flagCompletion(f, std); complete != nil {
				_ = cmd.RegisterFlagCompletionFunc(f.Name, complete) // fails for a flag that has one already
			}
		})
	}
	for _, sub := range cmd.Commands() {
		setDefaults(sub, std)
	}
}

func flagCompletion(f *pflag.Flag, std term.Streams) cobra.CompletionFunc {
	values, enumerated := flagValues[f.Name]
	if out, ok := f.Value.(*term.Output); ok {
		values, enumerated = out.Forms(), true
	}
	switch {
	case f.Name == "roles":
		return completeList(values)
	case enumerated:
		return cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	case f.Name == "app":
		return completeFrom(std, apps)
	case f.Name == "repo":
		return completeFrom(std, repositories)
	case slices.Contains(folderFlags, f.Name):
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
	case slices.Contains(fileFlags, f.Name):
		return nil // the shell completes file names
	}
	return cobra.NoFileCompletions
}

// completeList completes the last of several comma-separated values.
func completeList(values []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		head := prefix[:strings.LastIndexByte(prefix, ',')+1]
		var found []cobra.Completion
		for _, value := range values {
			if !slices.Contains(strings.Split(head, ","), value) {
				found = append(found, head+value)
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

const (
	completionTimeout = time.Second // the user waits in the shell
	maxCompletions    = 100
)

// source lists the possible arguments with this prefix from Redis.
type source func(ctx context.Context, cfg config.Config, client redis.UniversalClient, prefix string) ([]string, error)

// completeFrom completes from Redis. It returns no completions if Redis is not configured or does not answer in time.
func completeFrom(std term.Streams, list source) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		var found []string
		err := onCells(cmd, std, completionTimeout, func(ctx context.Context, cfg config.Config, client redis.UniversalClient, set *cells.Set) error {
			for _, a := range cells.Gather(ctx, set.Members(), completionTimeout/2, func(ctx context.Context, cell cells.Member) ([]string, error) {
				return list(ctx, app.InCell(cfg, cell), client, prefix)
			}) {
				found = append(found, a.Value...)
			}
			if !set.IsSingle() {
				slices.Sort(found)
				found = slices.Compact(found)
			}
			return nil
		})
		if err != nil {
			found = nil
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFirst is like completeFrom, for the first argument only.
func completeFirst(std term.Streams, list source) cobra.CompletionFunc {
	complete := completeFrom(std, list)
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, prefix)
	}
}

// repositories lists repositories with a recorded state.
func repositories(ctx context.Context, cfg config.Config, client redis.UniversalClient, prefix string) ([]string, error) {
	found, _, err := listRepos(ctx, state.NewStore(client, cfg.Namespace()), prefix, maxCompletions)
	names := make([]string, len(found))
	for i, repo := range found {
		names[i] = repo.Repo
	}
	return names, err
}

// leases lists the repositories whose lease is held.
func leases(ctx context.Context, cfg config.Config, client redis.UniversalClient, prefix string) ([]string, error) {
	inspector, err := locking.NewInspector(locking.InspectorConfig{Redis: client, Prefix: cfg.Namespace().Locks()})
	if err != nil {
		return nil, err
	}
	held, err := inspector.List(ctx)
	var names []string
	for _, lock := range held {
		if strings.HasPrefix(lock.Key, strings.ToLower(prefix)) {
			names = append(names, lock.Key)
		}
	}
	return names, err
}

// completePublished completes a published name below the root, followed by a command.
func completePublished(std term.Streams) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 || cmd.Flags().Changed("result") {
			return nil, cobra.ShellCompDirectiveDefault
		}
		cfg, err := settings(cmd, std)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		volume, err := volume.ViewVolume(cfg.Root)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []cobra.Completion
		until := time.Now().Add(completionTimeout)
		for repo, err := range volume.Repos() {
			if err == nil && strings.HasPrefix(repo.String(), prefix) {
				names = append(names, repo.String())
			}
			if len(names) == maxCompletions || time.Now().After(until) {
				break
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// watched lists watched repositories.
func watched(ctx context.Context, cfg config.Config, client redis.UniversalClient, prefix string) ([]string, error) {
	page, err := watch.NewRegistry(client, cfg.Namespace()).List(ctx, watch.Query{Prefix: prefix, Limit: maxCompletions})
	var names []string
	for _, w := range page.Watches {
		names = append(names, w.Repo.String())
	}
	return slices.Compact(names), err
}

// apps lists the apps of the first thousand watches.
func apps(ctx context.Context, cfg config.Config, client redis.UniversalClient, prefix string) ([]string, error) {
	page, err := watch.NewRegistry(client, cfg.Namespace()).List(ctx, watch.Query{Limit: 1000})
	var names []string
	for _, w := range page.Watches {
		if strings.HasPrefix(w.App, prefix) {
			names = append(names, w.App)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// deadIDs lists the newest dead letters with their reasons.
func deadIDs(ctx context.Context, cfg config.Config, client redis.UniversalClient, prefix string) ([]string, error) {
	dead, err := stream.NewDeadLetters(stream.DeadLettersConfig{Redis: client, Prefix: cfg.Prefix, Dead: cfg.Namespace().Dead()})
	if err != nil {
		return nil, err
	}
	page, err := dead.List(ctx, stream.Query{
		Limit: maxCompletions, Match: func(l stream.Letter) bool { return strings.HasPrefix(l.ID, prefix) },
	})
	var ids []string
	for _, letter := range page.Letters {
		ids = append(ids, cobra.CompletionWithDesc(letter.ID, term.Printable(letter.Reason)))
	}
	return ids, err
}
