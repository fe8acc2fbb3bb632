package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/term"
	"lockstep/internal/workspace"
	"lockstep/tree"
)

func newWorkspaceCommand(std term.Streams) *cobra.Command {
	return newGroup("workspace", "Make writable copies of published trees",
		"Make writable copies of published trees, with a .git that commits and pushes. Where an overlay can be mounted, their\n"+
			"cost does not depend on the size of the tree. Writes are visible only in that copy.",
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

// workspaceSource is what a workspace is made of.
type workspaceSource struct {
	*tree.Tree
	root string
	name string         // under which the tree is published
	kind workspace.Kind // "" for any
}

// open opens the tree for a command with these flags. The caller closes it.
func (f *workspaceFlags) open(cmd *cobra.Command, std term.Streams, name string) (workspaceSource, error) {
	cfg, err := settings(cmd, std)
	if err != nil {
		return workspaceSource{}, err
	}
	kind, err := f.kindOf()
	if err != nil {
		return workspaceSource{}, err
	}
	t, name, err := f.find(cfg.Root, name)
	return workspaceSource{t, cfg.Root, name, kind}, err
}

// find opens the tree that is published under a name, or for --ref of the repository with that name.
func (f *workspaceFlags) find(root, name string) (t *tree.Tree, published string, err error) {
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
