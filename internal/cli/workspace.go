package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/volume"
	"lockstep/internal/workspace"
	"lockstep/tree"
)

func newWorkspaceCommand(std term.Streams) *cobra.Command {
	return newGroup("workspace", "Make writable copies of published trees",
		"Make writable copies of published trees, with a .git that commits and pushes. Their cost does not depend on the size of\n"+
			"the tree where an overlay can be mounted. What is written to one is seen in no other and not in the tree.",
		newWorkspaceExecCommand(std), newWorkspaceCreateCommand(std), newWorkspaceListCommand(std), newWorkspaceRemoveCommand(std), newWorkspaceInsideCommand())
}

// workspaceFlags are the flags of the commands that make a workspace.
type workspaceFlags struct{ ref, kind string }

func (f *workspaceFlags) add(cmd *cobra.Command) {
	config.AddFlags(cmd.Flags(), config.Reading)
	cmd.Flags().StringVar(&f.ref, "ref", "", "published `ref` other than the default branch")
	cmd.Flags().StringVar(&f.kind, "kind", "auto", "`kind` of copy: overlay, reflink, copy, or auto for the first that is possible")
}

func (f *workspaceFlags) kindOf() (workspace.Kind, error) {
	switch kind := workspace.Kind(f.kind); kind {
	case "auto":
		return "", nil
	case workspace.KindOverlay, workspace.KindReflink, workspace.KindCopy:
		return kind, nil
	}
	return "", term.UsageError(fmt.Errorf("--kind %s: want auto, overlay, reflink or copy", f.kind))
}

// open opens the tree that is published under a name, or for --ref of the repository with that name.
func (f *workspaceFlags) open(root, name string) (t *tree.Tree, published string, err error) {
	if f.ref == "" {
		t, err := tree.Open(root, name)
		return t, name, treeError(err)
	}
	ref, err := events.ParseRef(f.ref)
	if err == nil && strings.Contains(name, "@") {
		err = errors.New("the name has a ref already")
	}
	if err != nil {
		return nil, "", term.UsageError(fmt.Errorf("--ref %s: %w", f.ref, err))
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
	var scratch string
	cmd := &cobra.Command{
		Use:   "exec NAME -- COMMAND [ARG]...",
		Short: "Run a command in a writable copy of a published tree",
		Long: "Run a command in a private, writable copy of the tree published under a name, and remove the copy afterwards. The copy\n" +
			"has a .git of its own: commits stay in it until the command pushes them, to the remote of the repository and with the\n" +
			"user's own credentials.\n\n" +
			"The copy is an overlay mount that only the command and its child processes see, made in milliseconds, with CAP_SYS_ADMIN\n" +
			"or else in a user namespace with the same user; there, the repository's folder on the volume is read-only. If the kernel\n" +
			"forbids that, the files are copied, and a line on standard error says why and what to do. --kind overlay fails instead.\n\n" +
			"Signals reach the command, and its exit code or signal ends lockstep too. Processes that the command leaves behind lose\n" +
			"their files. The command gets LOCKSTEP_WORKSPACE, the copy's path, and LOCKSTEP_TREE, LOCKSTEP_COMMIT and LOCKSTEP_REF as in\n" +
			"lockstep exec, but not Lockstep's secrets, nor variables such as GIT_DIR by which git would use another repository.\n\n" +
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
		ValidArgsFunction: completePublished(std),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := settings(cmd, std)
			if err != nil {
				return err
			}
			kind, err := flags.kindOf()
			if err != nil {
				return err
			}
			t, name, err := flags.open(cfg.Root, args[0])
			if err != nil {
				return err
			}
			defer t.Close()
			status, err := workspace.Exec{
				Root: cfg.Root, Tree: t, Name: name, Command: args[1:], Environ: std.Environ, Kind: kind, Scratch: scratch,
				Note: func(note string) { fmt.Fprintf(std.Stderr, "lockstep: %s\n", note) },
			}.Run(cmd.Context())
			return endLike(status, err)
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&scratch, "scratch", "", "`folder` for what is written (default $TMPDIR or /tmp)")
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

func newWorkspaceCreateCommand(std term.Streams) *cobra.Command {
	var flags workspaceFlags
	var out term.Output
	cmd := &cobra.Command{
		Use:   "create NAME DIR",
		Short: "Make a writable copy of a published tree that stays",
		Long: "Make a private, writable copy of the tree published under a name in a new or empty folder, and print its kind: an overlay\n" +
			"mount if lockstep has CAP_SYS_ADMIN, with its written files in a hidden folder beside DIR; else files that share their blocks\n" +
			"with the volume's (reflink), if DIR is on the same XFS or btrfs; else a copy. A line on standard error says why it is no\n" +
			"overlay.\n\n" +
			"The copy has a .git of its own, as with workspace exec. The tree is kept until workspace rm, also if the repository is\n" +
			"removed, by a file on the volume, which must be writable. An overlay is not mounted any more after a reboot: the same\n" +
			"command mounts it again, with everything that was written.",
		Example: "  lockstep workspace create acme/widgets /work/widgets --root /srv/repos\n" +
			"  lockstep workspace create acme/widgets --ref v1 --kind reflink /srv/work/v1",
		Args: term.WrongUse(func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return errors.New("want a name and a folder")
			}
			return nil
		}),
		ValidArgsFunction: completePublished(std),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := settings(cmd, std)
			if err != nil {
				return err
			}
			kind, err := flags.kindOf()
			if err != nil {
				return err
			}
			t, name, err := flags.open(cfg.Root, args[0])
			if err != nil {
				return err
			}
			defer t.Close()
			created, err := workspace.Create{Root: cfg.Root, Tree: t, Name: name, Dir: args[1], Kind: kind}.Run(cmd.Context())
			if err != nil {
				return fmt.Errorf("create the workspace: %w", err)
			}
			if created.Reason != "" {
				fmt.Fprintf(std.Stderr, "lockstep: not an overlay: %s\n", created.Reason)
			}
			list := []listedWorkspace{newListedWorkspace(workspace.Listed{Workspace: created.Workspace, State: workspace.StateReady})}
			return term.ShowList(std, &out, list[0], list, workspaceColumns)
		},
	}
	flags.add(cmd)
	out.Add(cmd)
	return cmd
}

// listedWorkspace is a workspace in the output.
type listedWorkspace struct {
	ID      string          `json:"id"`
	Name    string          `json:"name"`
	Ref     events.Ref      `json:"ref"`
	Commit  string          `json:"commit"`
	Kind    string          `json:"kind"`
	State   workspace.State `json:"state"`
	Dir     string          `json:"dir"`
	Host    string          `json:"host,omitempty"`
	Written int64           `json:"written_bytes"` // in an overlay
	Created time.Time       `json:"created"`
	Error   string          `json:"error,omitempty"`
}

func newListedWorkspace(l workspace.Listed) listedWorkspace {
	return listedWorkspace{l.ID, l.Name, l.Ref, l.Commit, l.Kind, l.State, l.Dir, l.Host, l.Written, l.Created, l.Err}
}

var workspaceColumns = term.List[listedWorkspace]{
	Columns: []term.Column[listedWorkspace]{
		{Head: "ID", Text: func(l listedWorkspace) string { return l.ID }},
		{Head: "NAME", Text: func(l listedWorkspace) string { return l.Name }},
		{Head: "COMMIT", Text: func(l listedWorkspace) string { return l.Commit[:min(12, len(l.Commit))] }},
		{Head: "KIND", Text: func(l listedWorkspace) string { return l.Kind }},
		{Head: "STATE", Text: func(l listedWorkspace) string { return string(l.State) }},
		{Head: "WRITTEN", Text: func(l listedWorkspace) string {
			if l.Kind != string(workspace.KindOverlay) {
				return ""
			}
			return volume.BytesText(l.Written)
		}},
		{Head: "CREATED", Time: func(l listedWorkspace) time.Time { return l.Created }, None: "-"},
		{Head: "DIR", Text: func(l listedWorkspace) string {
			switch {
			case l.Error != "":
				return term.Printable(l.Error)
			case l.State == workspace.StateElsewhere:
				return l.Host + ":" + term.Printable(l.Dir)
			}
			return term.Printable(l.Dir)
		}},
	},
	Name:  func(l listedWorkspace) string { return l.ID },
	Empty: "no workspaces; make one with lockstep workspace create NAME DIR",
}

func newWorkspaceListCommand(std term.Streams) *cobra.Command {
	var out term.Output
	var scratch string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List workspaces",
		Long: "List the workspaces of all repositories of the volume, and those of this user's workspace exec on this machine.\n\n" +
			"States: running (of workspace exec), killed (left behind by an exec or create that was killed: run\n" +
			"workspace rm --stale), ready, unmounted (an overlay after a reboot: run workspace create again), incomplete (being created),\n" +
			"gone (its folder was removed, but it still pins a tree: run workspace rm --stale), elsewhere (on another machine),\n" +
			"damaged (its record is unreadable).",
		Example: "  lockstep workspace ls --root /srv/repos\n  lockstep workspace ls --root /srv/repos --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			listed, err := listWorkspaces(cmd, std, scratch)
			if err != nil {
				return err
			}
			list := make([]listedWorkspace, 0, len(listed))
			for _, l := range listed {
				list = append(list, newListedWorkspace(l))
			}
			return term.ShowList(std, &out, list, list, workspaceColumns)
		},
	}
	addScratchFlag(cmd, &scratch)
	return withListFlags(cmd, config.Reading, &out)
}

func addScratchFlag(cmd *cobra.Command, scratch *string) {
	cmd.Flags().StringVar(scratch, "scratch", "", "`folder` given to workspace exec (default $TMPDIR or /tmp)")
}

func listWorkspaces(cmd *cobra.Command, std term.Streams, scratch string) ([]workspace.Listed, error) {
	cfg, err := settings(cmd, std)
	if err != nil {
		return nil, err
	}
	v, err := volume.ViewVolume(cfg.Root)
	if err != nil {
		return nil, err
	}
	if scratch == "" {
		scratch = os.TempDir()
	}
	return workspace.List(v, scratch)
}

func newWorkspaceRemoveCommand(std term.Streams) *cobra.Command {
	var force, stale bool
	var scratch string
	cmd := &cobra.Command{
		Use:   "rm {ID | DIR}... | --stale",
		Short: "Remove workspaces",
		Long: "Remove workspaces with everything in them, pushed or not, and release their trees. --stale removes those of killed\n" +
			"workspace commands, and those whose folder is gone.\n\n" +
			"--force also removes an overlay that is in use, and forgets a workspace on another machine or with an unreadable record,\n" +
			"which releases its tree but deletes no other file.",
		Example: "  lockstep workspace rm /work/widgets --root /srv/repos\n  lockstep workspace rm --stale --root /srv/repos",
		Args: func(cmd *cobra.Command, args []string) error {
			if stale, _ := cmd.Flags().GetBool("stale"); stale == (len(args) > 0) {
				return term.UsageError(fmt.Errorf("want workspaces or --stale; see %s --help", cmd.CommandPath()))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			listed, err := listWorkspaces(cmd, std, scratch)
			if err != nil {
				return err
			}
			chosen := slices.DeleteFunc(slices.Clone(listed), func(l workspace.Listed) bool { return !l.IsStale() })
			if !stale {
				if chosen, err = chooseWorkspaces(listed, args); err != nil {
					return err
				}
			}
			for _, l := range chosen {
				if removeErr := workspace.Remove(l, force); removeErr != nil {
					err = errors.Join(err, removeErr)
					continue
				}
				fmt.Fprintf(std.Stdout, "removed %s of %s at %s\n", term.Dash(l.ID), term.Dash(l.Name), term.Printable(l.Dir))
			}
			return err
		},
	}
	config.AddFlags(cmd.Flags(), config.Reading)
	addScratchFlag(cmd, &scratch)
	cmd.Flags().BoolVar(&force, "force", false, "also if it is in use or on another machine")
	cmd.Flags().BoolVar(&stale, "stale", false, "remove all that are of no use any more")
	return cmd
}

// chooseWorkspaces returns the workspaces with these IDs, folders or records.
func chooseWorkspaces(listed []workspace.Listed, args []string) (chosen []workspace.Listed, err error) {
	for _, arg := range args {
		dir, err := workspace.PathOf(arg)
		if err != nil {
			return nil, err
		}
		found := false
		for _, l := range listed {
			if l.ID == arg || l.Dir == dir && l.State != workspace.StateElsewhere || l.Record == arg {
				chosen, found = append(chosen, l), true
			}
		}
		if !found {
			return nil, fmt.Errorf("%s is not a workspace of this volume; see lockstep workspace ls", arg)
		}
	}
	return chosen, nil
}
