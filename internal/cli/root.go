package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

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
		newTailCommand(std), newReposCommand(std), newDeadCommand(std), newDoctorCommand(std), newExecCommand(std), newDemoCommand(std))
	addGroup(root, &cobra.Group{ID: "advanced", Title: "Advanced commands:"},
		newPublishCommand(std), newHookCommand(std), newNotifyCommand(std), newHostsCommand(std), newLocksCommand(std), newCellsCommand(std), newTokensCommand(std), newFollowCommand(std),
		newWorkspaceCommand(std), newReconcileCommand(std), newExportCommand(std), newImportCommand(std), newConfigCommand(std), newHealthcheckCommand(std),
		newCompletionCommand(std), newVersionCommand(std))
	root.AddCommand(newExitCodesTopic(), newEnvironmentTopic())
	addAliases(root)
	root.SetHelpCommand(newHelpCommand())
	columns, _ := term.TerminalSize(std.Stdout)
	columns = cmp.Or(columns, helpColumns)
	root.SetUsageTemplate("{{if .HasParent}}" + strings.ReplaceAll(root.UsageTemplate(), "Flags.FlagUsages ", fmt.Sprintf("Flags.FlagUsagesWrapped %d ", columns)) +
		"{{else}}" + rootUsage + "{{end}}")
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		cmd.Long = term.Wrap(cmd.Long, columns)
		help(cmd, args)
	})
	setDefaults(root, std)
	return root
}

// helpColumns is the width of help that is not printed on a terminal.
const helpColumns = 100

// rootUsage is the usage of the root command, on one screen.
const rootUsage = `Usage: {{.Name}} COMMAND [flags]
{{range $group := .Groups}}
{{.Title}}
{{- range $.Commands}}{{if and (eq .GroupID $group.ID) .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}
{{end}}
Flags: --config FILE (default lockstep.yaml if it exists), --version, --help

{{.Name}} COMMAND --help describes a command; {{.Name}} help environment and {{.Name}} help exit-codes
describe all variables and exit codes.
`

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
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
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
