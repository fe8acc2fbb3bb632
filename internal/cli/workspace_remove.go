package cli

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"lockstep/internal/config"
	"lockstep/internal/term"
	"lockstep/internal/workspace"
)

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
