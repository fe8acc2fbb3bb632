package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"lockstep/internal/term"
	"lockstep/internal/workspace"
)

func newWorkspaceCreateCommand(std term.Streams) *cobra.Command {
	var flags workspaceFlags
	var out term.Output
	cmd := &cobra.Command{
		Use:   "create NAME DIR",
		Short: "Make a writable copy of a published tree that stays",
		Long: "Make a private, writable copy of the tree published under a name in a new or empty folder, and print its kind: an\n" +
			"overlay mount if lockstep has CAP_SYS_ADMIN, with its written files in a hidden folder beside DIR; otherwise files that\n" +
			"share their blocks with the volume's (reflink), if DIR is on the same XFS or btrfs; otherwise a copy. If it is not an\n" +
			"overlay, a line on standard error says why.\n\n" +
			"The copy has its own .git, as with workspace exec. A file on the volume, which must be writable, keeps the tree until\n" +
			"workspace rm, even if the repository is removed. After a reboot an overlay is not mounted: run the same command to\n" +
			"mount it again, with all written files.",
		Example: "  lockstep workspace create acme/widgets /work/widgets --root /srv/repos\n" +
			"  lockstep workspace create acme/widgets --ref v1 --kind reflink /srv/work/v1",
		Args: term.WrongUse(func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return errors.New("want a name and a folder")
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, err := flags.open(cmd, std, args[0])
			if err != nil {
				return err
			}
			defer from.Close()
			created, err := workspace.Create{Root: from.root, Tree: from.Tree, Name: from.name, Dir: args[1], Kind: from.kind}.Run(cmd.Context())
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
