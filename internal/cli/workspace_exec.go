package cli

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/spf13/cobra"

	"lockstep/internal/term"
	"lockstep/internal/workspace"
)

func newWorkspaceExecCommand(std term.Streams) *cobra.Command {
	var flags workspaceFlags
	var scratch string
	cmd := &cobra.Command{
		Use:   "exec NAME -- COMMAND [ARG]...",
		Short: "Run a command in a writable copy of a published tree",
		Long: "Run a command in a private, writable copy of the tree published under a name, and remove the copy afterwards. The copy\n" +
			"has its own .git: commits stay in it until the command pushes them to the repository's remote, with the user's own\n" +
			"credentials.\n\n" +
			"The copy is an overlay mount that only the command and its child processes see. It takes milliseconds to create, and\n" +
			"uses CAP_SYS_ADMIN or else a user namespace with the same user; the repository's folder on the volume is read-only in\n" +
			"it. If the kernel forbids that, the files are copied, and a line on standard error says why and what to do. --kind\n" +
			"overlay fails instead.\n\n" +
			"Signals reach the command, and lockstep ends with its exit code or signal. Processes that the command leaves behind\n" +
			"lose their files. The command gets LOCKSTEP_WORKSPACE, the copy's path, and LOCKSTEP_TREE, LOCKSTEP_COMMIT and\n" +
			"LOCKSTEP_REF as in lockstep exec, but neither Lockstep's secrets nor variables such as GIT_DIR that would make git use\n" +
			"another repository.\n\n" +
			"Exit codes when the command does not run: 1 nothing is published under the name, or the copy failed, 2 wrong usage,\n" +
			"126 the command cannot be run, 127 command not found.",
		Example: "  lockstep workspace exec acme/widgets --root /srv/repos -- make test\n" +
			"  lockstep workspace exec acme/widgets --ref release/1.2 -- sh -c './fix && git commit -am fix && git push origin HEAD:fix'",
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 1 || len(args) == 1 {
				return term.UsageError(fmt.Errorf("want a name, then -- and a command; see %s --help", cmd.CommandPath()))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			from, err := flags.open(cmd, std, args[0])
			if err != nil {
				return err
			}
			defer from.Close()
			status, err := workspace.Exec{
				Root: from.root, Tree: from.Tree, Name: from.name, Command: args[1:], Environ: std.Environ, Kind: from.kind, Scratch: scratch,
				Note: func(note string) { fmt.Fprintf(std.Stderr, "lockstep: %s\n", note) },
			}.Run(cmd.Context())
			return endLike(status, err)
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&scratch, "scratch", "", "`folder` for written files (default $TMPDIR or /tmp)")
	return cmd
}

// endLike ends this process as the command ended: it returns the error with the same exit code, or raises the same signal and does not return.
func endLike(status syscall.WaitStatus, err error) error {
	if failed, ok := errors.AsType[*workspace.NotStarted](err); ok {
		return commandError(failed.Err)
	}
	switch {
	case err != nil:
		return err
	case status.Signaled():
		workspace.DieBy(status.Signal())
		return &term.ExitError{Code: 128 + int(status.Signal()), Err: fmt.Errorf("the command was ended by signal %d (%s)", status.Signal(), status.Signal())}
	case status.ExitStatus() != 0:
		return &term.ExitError{Code: status.ExitStatus()}
	}
	return nil
}

func newWorkspaceInsideCommand() *cobra.Command {
	return &cobra.Command{
		Use: workspace.InsideCommand, Hidden: true, Short: "Mount an overlay and become a command (for workspace exec only)",
		RunE: func(cmd *cobra.Command, _ []string) error { return workspace.Inside(cmd.Context()) },
	}
}
