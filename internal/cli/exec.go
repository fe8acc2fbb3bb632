package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/tree"
)

// What exec exits with when the command does not run: as shells and env do.
const (
	exitGone       = 3
	exitNotRunning = 126
	exitNotFound   = 127
)

func newExecCommand(std term.Streams) *cobra.Command {
	var result string
	cmd := &cobra.Command{
		Use:   "exec {NAME | --result FILE} -- COMMAND [ARG]...",
		Short: "Run a command in a published tree",
		Long: "Run a command in the tree that is published under a name, or in the very tree that a result names. The\n" +
			"tree is one commit, and is kept in its place until the command, and what it has started and not closed\n" +
			"the pin in, has ended: the name may be given to another tree meanwhile. It is not to be written into.\n\n" +
			"A result is one JSON document as it stands on the stream of results. lockstep becomes the command: its\n" +
			"input, output, signals and exit code are the command's own. It finds in its environment LOCKSTEP_TREE,\n" +
			"the tree's absolute path, also its working folder; LOCKSTEP_COMMIT; LOCKSTEP_REF.\n\n" +
			"Exit codes when the command does not run: 1 nothing is published there or the volume fails, 2 wrong use,\n" +
			"3 the result's tree is gone, 126 the command cannot be run, 127 there is no such command.",
		Example: "  lockstep exec acme/widgets --root /srv/repos -- git log -1\n" +
			"  lockstep exec acme/widgets@release%2F1.2 -- sh -c 'find . -name \"*.md\" | indexer --commit \"$LOCKSTEP_COMMIT\"'\n" +
			"  lockstep exec --result result.json -- grep -rl TODO",
		Args: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			names := 1
			if cmd.Flags().Changed("result") {
				names = 0
			}
			if dash != names || len(args) == dash {
				return term.UsageError(fmt.Errorf("want either a name or --result, then -- and a command; see %s --help", cmd.CommandPath()))
			}
			return nil
		},
		ValidArgsFunction: completePublished(std),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := settings(cmd, std)
			if err != nil {
				return err
			}
			t, err := openTree(cfg.Root, result, args)
			if err != nil {
				return treeError(err)
			}
			defer t.Close()
			return become(t, args[cmd.ArgsLenAtDash():], std.Environ)
		},
	}
	config.AddFlags(cmd.Flags(), config.Reading)
	cmd.Flags().StringVar(&result, "result", "", "`file` with a result, - for standard input: run in the tree that it names")
	return cmd
}

// openTree opens the tree that the result in a file names, or, without a file, the one that the first
// argument does.
func openTree(root, file string, args []string) (*tree.Tree, error) {
	if file == "" {
		return tree.Open(root, args[0])
	}
	result, err := readResult(file)
	if err != nil {
		return nil, term.UsageError(fmt.Errorf("--result %s: %w", file, err))
	}
	return tree.OpenResult(root, result)
}

func readResult(file string) (events.Result, error) {
	read := func() ([]byte, error) { return os.ReadFile(file) }
	if file == "-" {
		read = func() ([]byte, error) { return io.ReadAll(os.Stdin) }
	}
	document, err := read()
	if err != nil {
		return events.Result{}, err
	}
	return events.ParseResult(document)
}

// treeError gives an error of package tree its exit code and says what to do.
func treeError(err error) error {
	switch {
	case errors.Is(err, events.ErrBadRepoPath):
		return term.UsageError(err)
	case errors.Is(err, tree.ErrGone):
		return &term.ExitError{Code: exitGone, Err: fmt.Errorf("%w; run in the current one, by its name", err)}
	case errors.Is(err, tree.ErrNotPublished), errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w; check --root and the name, spelled as on disk, or sync it first", err)
	}
	return err
}

// become replaces this process by the command, in the tree. It returns only when that fails. The pin
// is inherited: the tree stays in its place until the command, too, has ended.
func become(t *tree.Tree, command, environ []string) error {
	if err := os.Chdir(t.Dir()); err != nil {
		return err
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return commandError(err)
	}
	if pin := t.Pin(); pin != nil {
		if _, err := unix.FcntlInt(pin.Fd(), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("hand the pin to the command: %w", err)
		}
	}
	set := map[string]string{
		"LOCKSTEP_TREE": t.Dir(), "LOCKSTEP_COMMIT": t.Commit(), "LOCKSTEP_REF": t.Ref().String(), "PWD": t.Dir(),
	}
	environ = slices.DeleteFunc(slices.Clone(environ), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		_, ours := set[name]
		return ours
	})
	for name, value := range set {
		environ = append(environ, name+"="+value)
	}
	return commandError(unix.Exec(path, command, environ))
}

func commandError(err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return &term.ExitError{Code: exitNotFound, Err: err}
	}
	return &term.ExitError{Code: exitNotRunning, Err: err}
}
