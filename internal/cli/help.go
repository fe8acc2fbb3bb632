package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep/internal/config"
	"lockstep/internal/term"
)

// exitCodes documents the exit codes.
var exitCodes = []struct {
	code int
	what string
}{
	{term.ExitDone, "done"},
	{term.ExitFailed, "failed, or a check found a problem"},
	{term.ExitUsage, "wrong usage: an invalid command, argument or setting; nothing was done"},
	{term.ExitUnavailable, "Redis is unavailable"},
	{term.ExitTimedOut, "timed out: no result within --timeout; the change may still be handled"},
	{term.ExitRevoked, "the token was removed: the reader refuses it (lockstep follow)"},
}

// newExitCodesTopic returns a help page without a command.
func newExitCodesTopic() *cobra.Command {
	var text strings.Builder
	text.WriteString("All commands use these exit codes:\n\n")
	for _, c := range exitCodes {
		fmt.Fprintf(&text, "  %d  %s\n", c.code, c.what)
	}
	text.WriteString("\n" +
		"lockstep exec exits with the code of the command that it runs; see lockstep exec --help for\n" +
		"when that does not run. An error is one line on standard error; standard output has only\n" +
		"data.")
	return &cobra.Command{Use: "exit-codes", Short: "Exit codes", Long: text.String()}
}

// ownVariables are variables without a flag.
var ownVariables = [][2]string{
	{"LOCKSTEP_API_TOKEN", "bearer token of the HTTP API, unless api-token-file is set"},
	{"LOCKSTEP_HOOK_NAME_…", "a webhook source: …_FORGE, …_SECRET; see docs/webhooks.md"},
	{"LOCKSTEP_CREDENTIAL_NAME_…", "a credential: …_USERNAME, …_PASSWORD, …_SSH_KEY, …_URLS; see docs/configuration.md"},
	{"HTTP_PROXY, HTTPS_PROXY, NO_PROXY", "proxies for remotes, unless proxy is set"},
	{"SSL_CERT_FILE, SSL_CERT_DIR", "trusted certificate authorities, instead of the system's"},
}

// newEnvironmentTopic returns a help page without a command.
func newEnvironmentTopic() *cobra.Command {
	var text strings.Builder
	text.WriteString("In order of precedence settings come from flags, variables, lockstep.yaml (or --config FILE)\n" +
		"and defaults. Empty variables are ignored. lockstep config print shows the settings in\n" +
		"effect.\n" +
		"\n")
	row := func(name, usage string) { fmt.Fprintf(&text, "  %-34s %s\n", name, usage) }
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	all.SortFlags = false
	config.AddFlags(all, allSettings)
	all.VisitAll(func(f *pflag.Flag) {
		_, usage := pflag.UnquoteUsage(f)
		row(config.VariableName(f.Name), usage)
	})
	text.WriteByte('\n')
	for _, v := range ownVariables {
		row(v[0], v[1])
	}
	return &cobra.Command{
		Use: "environment", Short: "Environment variables", Long: strings.TrimSuffix(text.String(), "\n"),
	}
}
