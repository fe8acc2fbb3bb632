package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep/internal/cli/term"
	"lockstep/internal/config"
)

// exitCodes are what each code means, for people and for documents.
var exitCodes = []struct {
	code int
	what string
}{
	{term.ExitDone, "done"},
	{term.ExitFailed, "failed: what was asked for did not come about, or a check found something"},
	{term.ExitUsage, "wrong use: a command, an argument or a setting that makes no sense; nothing was done"},
	{term.ExitUnavailable, "Redis cannot be reached, or cannot serve at present"},
	{term.ExitTimedOut, "timed out: no result within --timeout; what was asked for may still come about"},
}

// newExitCodesTopic is a page of help and no command.
func newExitCodesTopic() *cobra.Command {
	var text strings.Builder
	text.WriteString("Every command ends with one of these:\n\n")
	for _, c := range exitCodes {
		fmt.Fprintf(&text, "  %d  %s\n", c.code, c.what)
	}
	text.WriteString("\nlockstep exec ends with the code of the command that it runs; see lockstep exec --help for when that does not\n" +
		"run. What went wrong is one line on standard error; standard output has data alone.")
	return &cobra.Command{Use: "exit-codes", Short: "What exit codes mean", Long: text.String()}
}

// ownVariables are those that set something and have no flag.
var ownVariables = [][2]string{
	{"LOCKSTEP_API_TOKEN", "bearer token of the HTTP API, when no api-token-file is named"},
	{"LOCKSTEP_HOOK_NAME_…", "a source of webhooks: …_FORGE, …_SECRET; see docs/webhooks.md"},
	{"LOCKSTEP_CREDENTIAL_NAME_…", "a credential: …_USERNAME, …_PASSWORD, …_SSH_KEY, …_URLS; see docs/configuration.md"},
	{"HTTP_PROXY, HTTPS_PROXY, NO_PROXY", "proxies for remotes, unless proxy is set"},
	{"SSL_CERT_FILE, SSL_CERT_DIR", "certificate authorities to trust, in place of the system's"},
	{"NO_COLOR", "not empty: no colours on a terminal; TERM=dumb likewise"},
}

// newEnvironmentTopic is a page of help and no command.
func newEnvironmentTopic() *cobra.Command {
	var text strings.Builder
	text.WriteString("A flag wins over a variable, that over lockstep.yaml (or --config FILE), that over the default. An empty\n" +
		"variable sets nothing. lockstep config print says what is in force.\n\n")
	row := func(name, usage string) { fmt.Fprintf(&text, "  %-34s %s\n", name, usage) }
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	all.SortFlags = false
	config.AddFlags(all, allSettings)
	all.VisitAll(func(f *pflag.Flag) {
		_, usage := pflag.UnquoteUsage(f)
		row(config.EnvPrefix+strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_")), usage)
	})
	text.WriteByte('\n')
	for _, v := range ownVariables {
		row(v[0], v[1])
	}
	return &cobra.Command{Use: "environment", Short: "The variables that set something", Long: strings.TrimSuffix(text.String(), "\n")}
}

// newHelpCommand is Cobra's but for its exit code: help for what does not exist is wrong use.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND | TOPIC]",
		Short:   "Help about a command or a topic",
		Example: "  lockstep help locks release\n  lockstep help exit-codes",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err == nil {
				err = term.NoArgs(about, rest)
			}
			if err != nil {
				return term.UsageError(errors.New(err.Error() + "; see lockstep help"))
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
			about, _, err := cmd.Root().Find(args)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var names []cobra.Completion
			for _, sub := range about.Commands() {
				if !sub.Hidden && strings.HasPrefix(sub.Name(), begun) {
					names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}
