package cli

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/term"
	"lockstep/internal/volume"
	"lockstep/internal/workspace"
)

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
