package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/internal/app"
	"lockstep/internal/config"
	"lockstep/internal/hosts"
	"lockstep/internal/operate"
	"lockstep/internal/status"
	"lockstep/internal/term"
)

func newHostsCommand(std term.Streams) *cobra.Command {
	return newGroup("hosts", "Show or lift the limits of requests to hosts", "", newHostsListCommand(std),
		newHostsClearCommand(std))
}

func newHostsListCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withListFlags(&cobra.Command{
		Use:     "ls",
		Short:   "List the hosts used within a day, with their limits",
		Example: "  lockstep hosts ls --redis redis://127.0.0.1:6379",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return onShared(cmd, std, 30*time.Second, func(ctx context.Context, d deployment) error {
				list, err := app.ReadHosts(d.cfg, d.redis).List(ctx)
				return showList(std, &out, list, hostColumns, nil, err)
			})
		},
	}, config.Common, &out)
}

func newHostsClearCommand(std term.Streams) *cobra.Command {
	var name string
	var out term.Output
	cmd := withFlags(&cobra.Command{
		Use:   "clear HOST",
		Short: "Lift the block of a host",
		Long: "Lift the block of a host that told Lockstep to wait, or that did not answer, with the blocks of all\n" +
			"its credentials; with --credential, only that one. Waiting changes begin at once, slowly, so a\n" +
			"host that still wants to be left alone gets few requests before it is blocked again. HOST is as\n" +
			"shown by hosts ls, with the port unless it is the default.",
		Example: "  lockstep hosts clear git.example.com --redis redis://127.0.0.1:6379\n  lockstep hosts clear " +
			"git.example.com --credential robot",
		Args: term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			host := strings.ToLower(args[0])
			if host == "" || strings.ContainsAny(host, "/@ ") {
				return term.UsageError(fmt.Errorf("%q is not a host; want a name as shown by lockstep hosts ls, "+
					"without scheme and path", args[0]))
			}
			var only *string
			if cmd.Flags().Changed("credential") {
				only = &name
			}
			return onShared(cmd, std, 30*time.Second, func(ctx context.Context, d deployment) error {
				lifted, err := operate.LiftBlocks(ctx, d.cells, app.ReadHosts(d.cfg, d.redis), host, only)
				if err != nil {
					return err
				}
				if len(lifted) == 0 {
					return notLimited(host, only)
				}
				return out.Show(std, lifted, liftedBlocks(lifted).Table)
			})
		},
	}, config.Common, &out)
	cmd.Flags().StringVar(&name, "credential", "",
		"`name` of the only credential whose block is lifted; empty for anonymous requests")
	return cmd
}

func notLimited(host string, credential *string) error {
	if credential == nil {
		return fmt.Errorf("%s is not blocked; see lockstep hosts ls", host)
	}
	return fmt.Errorf("%s does not block the credential %s; see lockstep hosts ls", host,
		status.CredentialName(*credential))
}

var hostColumns = term.List[hosts.Host]{
	Columns: []term.Column[hosts.Host]{
		{Head: "HOST", Text: func(h hosts.Host) string { return h.Host }},
		{Head: "WAITING", Text: func(h hosts.Host) string { return strconv.Itoa(h.Waiting) }},
		{Head: "REASON", Text: func(h hosts.Host) string { return term.Printable(string(h.Reason)) }},
		{Head: "UNTIL", Time: func(h hosts.Host) time.Time { return h.Until }, None: "-"},
		{Head: "CREDENTIALS", Text: status.HostCredentials},
	},
	Name: func(h hosts.Host) string { return h.Host },
	Empty: "no requests to hosts within a day; sync a repository with lockstep sync URL, or watch one with lockstep " +
		"watch add URL --app NAME",
}

type liftedBlocks []hosts.Lifted

func (l liftedBlocks) Table(w io.Writer) {
	fmt.Fprintln(w, "LIFTED\tREASON\tCREDENTIAL\tUNTIL")
	for _, block := range l {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", term.Printable(block.Host), block.Reason,
			status.CredentialName(block.Credential), block.Until.Format(time.RFC3339))
	}
}
