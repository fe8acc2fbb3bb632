package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/execute"
	"lockstep/internal/term"
	"lockstep/tree"
)

// Exit codes when the command does not run, as used by shells and env.
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
		Long: "Run a command in the tree published under a name, or in the tree that a result names. The tree is\n" +
			"one commit. It stays in place, even if a new tree is published meanwhile, until the command and all\n" +
			"child processes that inherit its pin have ended. Do not write to it: use lockstep workspace exec.\n" +
			"\n" +
			"A result is one JSON document from the results stream, or of lockstep result -o json. The command\n" +
			"replaces the lockstep process, so input, output, signals and exit code are its own. It runs in the\n" +
			"tree and gets the tree's absolute path, its commit and its ref as LOCKSTEP_TREE, LOCKSTEP_COMMIT\n" +
			"and LOCKSTEP_REF. Git trusts the tree, although it belongs to the workers' user.\n" +
			"\n" +
			"Exit codes when the command does not run: 1 nothing is published under the name or the volume\n" +
			"failed, 2 wrong usage, 3 the result's tree is gone, 126 the command cannot be run, 127 command not\n" +
			"found.",
		Example: "  lockstep exec acme/widgets --root /srv/repos -- git log -1\n" +
			"  lockstep exec acme/widgets@release%2F1.2 -- sh -c 'find . -name \"*.md\" | indexer --commit " +
			"\"$LOCKSTEP_COMMIT\"'\n" +
			"  lockstep exec --result result.json -- grep -rl TODO",
		Args: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			names := 1
			if cmd.Flags().Changed("result") {
				names = 0
			}
			if dash != names || len(args) == dash {
				return term.UsageError(fmt.Errorf("want either a name or --result, then -- and a command; "+
					"see %s --help", cmd.CommandPath()))
			}
			return nil
		},
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
	cmd.Flags().StringVar(&result, "result", "", "`file` with the result that names the tree, - for standard input")
	return cmd
}

// openTree opens the tree named by the result in file or, without a file, by the first argument.
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
	var shown struct{ Result json.RawMessage } // by lockstep result
	if json.Unmarshal(document, &shown) == nil && shown.Result != nil {
		document = shown.Result
	}
	return events.ParseResult(document)
}

// treeError adds exit codes and advice to errors of package tree.
func treeError(err error) error {
	switch {
	case errors.Is(err, events.ErrBadRepoPath):
		return term.UsageError(err)
	case errors.Is(err, tree.ErrGone):
		return &term.ExitError{Code: exitGone,
			Err: fmt.Errorf("%w; to use the current tree, pass its name instead of --result", err)}
	case errors.Is(err, tree.ErrNotPublished), errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w; check --root and the name, spelled as on disk, or sync it first", err)
	}
	return err
}

// become replaces this process with the command and returns only on failure. The command inherits the pin,
// which keeps the tree.
func become(t *tree.Tree, command, environ []string) error {
	if err := os.Chdir(t.Dir()); err != nil {
		return err
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return commandError(err)
	}
	if _, err := unix.FcntlInt(t.Pin().Fd(), unix.F_SETFD, 0); err != nil {
		return fmt.Errorf("hand the pin to the command: %w", err)
	}
	variables := append(execute.TreeVariables(t, t.Dir()), execute.GitVariables(environ, t)...)
	cmd := exec.Cmd{Dir: t.Dir(), Env: slices.Concat(environ, variables)}
	return commandError(unix.Exec(path, command, cmd.Environ()))
}

func commandError(err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return &term.ExitError{Code: exitNotFound, Err: err}
	}
	return &term.ExitError{Code: exitNotRunning, Err: err}
}
