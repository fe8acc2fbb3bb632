package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/term"
	"lockstep/internal/workspace"
	"lockstep/tree"
)

func newWorkspaceCommand(std term.Streams) *cobra.Command {
	return newGroup("workspace", "Make writable copies of published trees",
		"Make writable copies of published trees, with a .git that commits and pushes. Writes are visible only in that copy.",
		newWorkspaceExecCommand(std), newWorkspaceCreateCommand(std), newWorkspaceInsideCommand())
}

// workspaceFlags are the flags of the commands that make a workspace.
type workspaceFlags struct{ ref string }

func (f *workspaceFlags) add(cmd *cobra.Command) {
	config.AddFlags(cmd.Flags(), config.Reading)
	cmd.Flags().StringVar(&f.ref, "ref", "", "published `ref` other than the default branch")
}

// open opens the tree that is published under a name, or for --ref of the repository with that name.
func (f *workspaceFlags) open(root, name string) (t *tree.Tree, published string, err error) {
	if f.ref == "" {
		t, err := tree.Open(root, name)
		return t, name, treeError(err)
	}
	ref, err := events.ParseRef(f.ref)
	if err != nil {
		return nil, "", term.UsageError(fmt.Errorf("--ref %s: %w", f.ref, err))
	}
	if strings.Contains(name, "@") {
		return nil, "", term.UsageError(fmt.Errorf("--ref %s: the name has a ref already", f.ref))
	}
	published = name + "@" + ref.Suffix()
	t, err = tree.Open(root, published)
	if !errors.Is(err, tree.ErrNotPublished) {
		return t, published, treeError(err)
	}
	// The default branch has the plain name.
	if t, plainErr := tree.Open(root, name); plainErr == nil {
		if t.Ref() == ref {
			return t, name, nil
		}
		err = errors.Join(err, t.Close())
	}
	return nil, "", treeError(err)
}

func newWorkspaceExecCommand(std term.Streams) *cobra.Command {
	var flags workspaceFlags
	var scratch, kind string
	cmd := &cobra.Command{
		Use:   "exec NAME -- COMMAND [ARG]...",
		Short: "Run a command in a writable copy of a published tree",
		Long: "Run a command in a private, writable copy of the tree published under a name, and remove the copy\n" +
			"afterwards. The copy has its own .git: commits stay in it until the command pushes them to the\n" +
			"repository's remote, with the user's own credentials.\n" +
			"\n" +
			"The copy is an overlay mount that only the command and its child processes see. It takes\n" +
			"milliseconds to create, and uses CAP_SYS_ADMIN or else a user namespace with the same user; the\n" +
			"repository's folder on the volume is read-only in it. If the kernel forbids that, the files are\n" +
			"copied, and a line on standard error says why. --kind overlay fails instead.\n" +
			"\n" +
			"Signals reach the command, and lockstep ends with its exit code, or with 128 and the number of the\n" +
			"signal that ended it. Processes that the command leaves behind lose their files. The command gets\n" +
			"LOCKSTEP_WORKSPACE, the copy's path, and LOCKSTEP_TREE, LOCKSTEP_COMMIT and LOCKSTEP_REF as in\n" +
			"lockstep exec, but neither Lockstep's secrets nor variables such as GIT_DIR that would make git use\n" +
			"another repository.\n" +
			"\n" +
			"Exit codes when the command does not run: 1 nothing is published under the name, or the copy failed,\n" +
			"2 wrong usage, 126 the command cannot be run, 127 command not found.",
		Example: "  lockstep workspace exec acme/widgets --root /srv/repos -- make test\n" +
			"  lockstep workspace exec acme/widgets --ref release/1.2 -- sh -c './fix && git commit -am fix && git " +
			"push origin HEAD:fix'",
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 1 || len(args) == 1 {
				return term.UsageError(fmt.Errorf("want a name, then -- and a command; see %s --help", cmd.CommandPath()))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := settings(cmd, std)
			if err != nil {
				return err
			}
			run := workspace.Exec{
				Root: cfg.Root, Command: args[1:], Environ: std.Environ, Kind: workspace.Kind(kind), Scratch: scratch,
				Note: func(note string) { fmt.Fprintf(std.Stderr, "lockstep: %s\n", note) },
			}
			if !slices.Contains([]workspace.Kind{workspace.KindAuto, workspace.KindOverlay, workspace.KindCopy}, run.Kind) {
				return term.UsageError(fmt.Errorf("--kind %s: want auto, overlay or copy", kind))
			}
			if run.Tree, run.Name, err = flags.open(cfg.Root, args[0]); err != nil {
				return err
			}
			defer run.Tree.Close()
			return endLike(run.Run(cmd.Context()))
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&kind, "kind", string(workspace.KindAuto),
		"`kind` of copy: overlay, copy, or auto for the first that is possible")
	cmd.Flags().StringVar(&scratch, "scratch", "", "`folder` for written files (default $TMPDIR or /tmp)")
	return cmd
}

// endLike returns the error that ends this process as the command ended.
func endLike(status syscall.WaitStatus, err error) error {
	if failed, ok := errors.AsType[*workspace.NotStarted](err); ok {
		return commandError(failed.Err)
	}
	switch {
	case err != nil:
		return err
	case status.Signaled():
		return &term.ExitError{Code: 128 + int(status.Signal())}
	case status.ExitStatus() != 0:
		return &term.ExitError{Code: status.ExitStatus()}
	}
	return nil
}

func newWorkspaceInsideCommand() *cobra.Command {
	return &cobra.Command{
		Use: workspace.InsideCommand, Hidden: true,
		Short: "Mount an overlay and become a command (for workspace exec only)", Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return workspace.Inside(cmd.Context(), args) },
	}
}

func newWorkspaceCreateCommand(std term.Streams) *cobra.Command {
	var flags workspaceFlags
	cmd := &cobra.Command{
		Use:   "create NAME DIR",
		Short: "Make a writable copy of a published tree that stays",
		Long: "Copy the tree published under a name to a new or empty folder, with a .git as in workspace exec, and\n" +
			"print what was copied. The files share their blocks with the volume's until they are written, if DIR\n" +
			"is on the same XFS or btrfs. The copy has all objects of the repository's store and no longer needs\n" +
			"the volume: delete it when it is no longer used.",
		Example: "  lockstep workspace create acme/widgets /work/widgets --root /srv/repos",
		Args: term.WrongUse(func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return errors.New("want a name and a folder")
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := settings(cmd, std)
			if err != nil {
				return err
			}
			t, name, err := flags.open(cfg.Root, args[0])
			if err != nil {
				return err
			}
			defer t.Close()
			if err := (workspace.Create{Root: cfg.Root, Tree: t, Dir: args[1]}).Run(cmd.Context()); err != nil {
				return fmt.Errorf("create the workspace: %w", err)
			}
			_, err = fmt.Fprintf(std.Stdout, "copied %s at %.12s to %s\n", name, t.Commit(), term.Printable(args[1]))
			return err
		},
	}
	flags.add(cmd)
	return cmd
}
