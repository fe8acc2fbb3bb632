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
	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
	"lockstep/locking"
)

// shells are those that a script can be had for.
var shells = []string{"bash", "zsh", "fish", "powershell"}

func newCompletionCommand(std term.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print a script that completes commands, flags and arguments in a shell",
		Long: "Print a script for bash, zsh, fish or powershell. Beside commands and flags it completes repositories, leases,\n" +
			"dead letters and apps, when LOCKSTEP_REDIS, lockstep.yaml or a --redis before it names the Redis that knows them;\n" +
			"for that it asks for a second at most. The one for bash wants the package bash-completion.",
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

// flagValues are what flags of these names take, in whichever subcommand.
var flagValues = map[string][]string{
	"output":        term.Forms,
	"roles":         config.Roles,
	"log-level":     {"debug", "info", "warn", "error"},
	"log-format":    {"text", "json"},
	"outside-links": {"keep", "skip", "refuse"},
	"on-busy":       {string(events.BusyWait), string(events.BusySkip)},
}

// folderFlags name folders, all others that name nothing complete nothing: a file is seldom meant.
var folderFlags = []string{"root", "credentials", "hooks", "spool"}

// fileFlags name files.
var fileFlags = []string{"config", "redis-password-file", "api-token-file", "ca-file", "known-hosts", "result", "plot"}

// completeAll says of all flags of a command and its subcommands what they take, and that arguments are no files
// unless somebody has said what they are.
func completeAll(cmd *cobra.Command, std term.Streams) {
	if cmd.ValidArgsFunction == nil && len(cmd.ValidArgs) == 0 && !cmd.HasSubCommands() {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, flags := range []*pflag.FlagSet{cmd.LocalNonPersistentFlags(), cmd.PersistentFlags()} {
		flags.VisitAll(func(f *pflag.Flag) {
			if complete := flagCompletion(f, std); complete != nil {
				_ = cmd.RegisterFlagCompletionFunc(f.Name, complete) // it is refused for a flag that has one
			}
		})
	}
	for _, sub := range cmd.Commands() {
		completeAll(sub, std)
	}
}

func flagCompletion(f *pflag.Flag, std term.Streams) cobra.CompletionFunc {
	values, enumerated := flagValues[f.Name]
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
		return nil // as the shell does
	}
	return cobra.NoFileCompletions
}

// completeList completes the last of several values with commas between them.
func completeList(values []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		head := begun[:strings.LastIndexByte(begun, ',')+1]
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
	completeWithin = time.Second // a shell waits for it
	mostCompleted  = 100
)

// source lists what an argument that begins so may be, in Redis.
type source func(ctx context.Context, cfg config.Config, client redis.UniversalClient, begun string) ([]string, error)

// completeFrom completes with what Redis knows. Where none is named, or it does not answer in time, there is
// nothing to choose from: whoever completes is not to be told so on their line.
func completeFrom(std term.Streams, list source) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		const nothing = cobra.ShellCompDirectiveNoFileComp
		cfg, err := settings(cmd, std)
		if err != nil || cfg.Redis == "" {
			return nil, nothing
		}
		server, err := cfg.RedisServer()
		if err != nil {
			return nil, nothing
		}
		client := server.Open()
		defer client.Close()
		ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
		defer cancel()
		found, err := list(ctx, cfg, client, begun)
		if err != nil {
			return nil, nothing
		}
		return found, nothing
	}
}

// completeFirst completes the first argument with what Redis knows, and no other.
func completeFirst(std term.Streams, list source) cobra.CompletionFunc {
	complete := completeFrom(std, list)
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, begun)
	}
}

// repositories are those of which something is known.
func repositories(ctx context.Context, cfg config.Config, client redis.UniversalClient, begun string) ([]string, error) {
	found, _, err := listRepos(ctx, state.NewStore(client, cfg.Namespace()), begun, mostCompleted)
	names := make([]string, len(found))
	for i, repo := range found {
		names[i] = repo.Repo
	}
	return names, err
}

// leases are the repositories that somebody holds.
func leases(ctx context.Context, cfg config.Config, client redis.UniversalClient, begun string) ([]string, error) {
	inspector, err := locking.NewInspector(locking.InspectorConfig{Redis: client, Prefix: cfg.Namespace().Locks()})
	if err != nil {
		return nil, err
	}
	held, err := inspector.List(ctx)
	var names []string
	for _, lock := range held {
		if strings.HasPrefix(lock.Key, strings.ToLower(begun)) {
			names = append(names, lock.Key)
		}
	}
	return names, err
}

// completePublished completes a name below the root, and then a command.
func completePublished(std term.Streams) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
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
		until := time.Now().Add(completeWithin)
		for repo, err := range volume.Repos() {
			if err == nil && strings.HasPrefix(repo.String(), begun) {
				names = append(names, repo.String())
			}
			if len(names) == mostCompleted || time.Now().After(until) {
				break
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// watched are the repositories that some app watches.
func watched(ctx context.Context, cfg config.Config, client redis.UniversalClient, begun string) ([]string, error) {
	page, err := watch.NewRegistry(client, cfg.Namespace()).List(ctx, watch.Query{Prefix: begun, Limit: mostCompleted})
	var names []string
	for _, w := range page.Watches {
		names = append(names, w.Repo.String())
	}
	return slices.Compact(names), err
}

// apps are those of the first thousand watches.
func apps(ctx context.Context, cfg config.Config, client redis.UniversalClient, begun string) ([]string, error) {
	page, err := watch.NewRegistry(client, cfg.Namespace()).List(ctx, watch.Query{Limit: 1000})
	var names []string
	for _, w := range page.Watches {
		if strings.HasPrefix(w.App, begun) {
			names = append(names, w.App)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// deadIDs are the newest dead letters, with why they are there.
func deadIDs(ctx context.Context, cfg config.Config, client redis.UniversalClient, begun string) ([]string, error) {
	dead, err := stream.NewDeadLetters(stream.DeadLettersConfig{Redis: client, Prefix: cfg.Prefix, Dead: cfg.Namespace().Dead()})
	if err != nil {
		return nil, err
	}
	page, err := dead.List(ctx, stream.Query{
		Limit: mostCompleted, Match: func(l stream.Letter) bool { return strings.HasPrefix(l.ID, begun) },
	})
	var ids []string
	for _, letter := range page.Letters {
		ids = append(ids, cobra.CompletionWithDesc(letter.ID, term.Printable(letter.Reason)))
	}
	return ids, err
}
