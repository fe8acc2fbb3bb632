package cli

import (
	"context"

	"github.com/spf13/cobra"

	"lockstep/internal/app"
	"lockstep/internal/config"
	"lockstep/internal/term"
)

// Run runs the lockstep command with these arguments and returns its exit code.
func Run(ctx context.Context, args []string, std term.Streams) int {
	return term.Execute(ctx, newRootCommand(std), args, std)
}

func newRootCommand(std term.Streams) *cobra.Command {
	root := term.NewRoot(std, &cobra.Command{
		Use:     "lockstep",
		Short:   "Keep shared Git clones in step with their remotes",
		Long:    "Lockstep turns a push into one fresh checkout on a shared volume and one event for every consumer.",
		Version: versionLine(app.ReadBuild()),
	})
	root.SetVersionTemplate("{{.Version}}\n")
	root.PersistentFlags().String("config", "", "settings `file` (default lockstep.yaml if it exists)")
	addGroup(root, &cobra.Group{ID: "basic", Title: "Basic commands:"},
		newInitCommand(std), newServeCommand(std), newWatchCommand(std), newSyncCommand(std), newStatusCommand(std),
		newTailCommand(std), newResultCommand(std), newReposCommand(std), newDeadCommand(std), newDoctorCommand(std), newExecCommand(std),
		newDemoCommand(std))
	addGroup(root, &cobra.Group{ID: "advanced", Title: "Advanced commands:"},
		newPublishCommand(std), newHookCommand(std), newNotifyCommand(std), newHostsCommand(std), newLocksCommand(std), newWorkersCommand(std),
		newCellsCommand(std), newTokensCommand(std), newFollowCommand(std), newGitSyncCommand(std),
		newWorkspaceCommand(std), newReconcileCommand(std), newExportCommand(std), newImportCommand(std),
		newConfigCommand(std), newHealthcheckCommand(std), newVersionCommand(std))
	root.AddCommand(newExitCodesTopic(), newEnvironmentTopic())
	addAliases(root)
	root.SetHelpCommandGroupID("advanced")
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Args = term.WrongUse(knownCommand)
	}
	root.SetCompletionCommandGroupID("advanced")
	root.InitDefaultCompletionCmd()
	setDefaults(root)
	return root
}

// knownCommand rejects arguments that name no command or help topic.
func knownCommand(cmd *cobra.Command, args []string) error {
	about, rest, err := cmd.Root().Find(args)
	if err != nil {
		return err
	}
	return term.NoArgs(about, rest)
}

// setDefaults makes cmd and its subcommands take no arguments unless they check them.
func setDefaults(cmd *cobra.Command) {
	if cmd.Args == nil || cmd.Name() == "completion" {
		cmd.Args = term.WrongUse(term.NoArgs)
	}
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	for _, sub := range cmd.Commands() {
		setDefaults(sub)
	}
}

// addGroup adds commands under a heading of the help, in this order.
func addGroup(root *cobra.Command, group *cobra.Group, commands ...*cobra.Command) {
	root.AddGroup(group)
	for _, cmd := range commands {
		cmd.GroupID = group.ID
	}
	root.AddCommand(commands...)
}

// aliases are other names of subcommands.
var aliases = map[string][]string{"ls": {"list"}, "rm": {"remove", "delete"}, "drop": {"rm", "remove", "delete"}}

// addAliases adds the aliases to all subcommands of cmd.
func addAliases(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		sub.Aliases = append(sub.Aliases, aliases[sub.Name()]...)
		addAliases(sub)
	}
}

// newGroup returns a command that only has subcommands.
func newGroup(use, short, long string, subcommands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Long: long}
	cmd.AddCommand(subcommands...)
	return cmd
}

// withFlags adds settings and the output form to a command.
func withFlags(cmd *cobra.Command, settings config.Group, out *term.Output) *cobra.Command {
	config.AddFlags(cmd.Flags(), settings)
	out.Add(cmd)
	return cmd
}

// withListFlags adds settings and the output forms of a list to a command.
func withListFlags(cmd *cobra.Command, settings config.Group, out *term.Output) *cobra.Command {
	config.AddFlags(cmd.Flags(), settings)
	out.AddList(cmd)
	return cmd
}
