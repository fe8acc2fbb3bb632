package cli

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"lockstep/internal/proctest"
	"lockstep/internal/term"
)

// everyCommand calls fn for each visible command with its path, except those of Cobra. Help topics are not commands.
func everyCommand(fn func(path string, cmd *cobra.Command)) {
	root := newRootCommand(term.Streams{Stdout: io.Discard, Stderr: io.Discard})
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Hidden || cmd.IsAdditionalHelpTopicCommand() || cmd.Name() == "help" || cmd.Name() == "completion" {
			return
		}
		fn(cmd.CommandPath(), cmd)
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
}

func TestEachCommandHasHelp(t *testing.T) {
	t.Parallel()
	everyCommand(func(path string, cmd *cobra.Command) {
		if cmd.Short == "" || cmd.Example == "" && !cmd.HasSubCommands() {
			t.Errorf("%s has no description or no example", path)
		}
		for line := range strings.Lines(cmd.Example) {
			if !strings.Contains(line, path) {
				t.Errorf("%s: the example %q is for another command", path, strings.TrimSpace(line))
			}
		}
	})
}

// TestEachCommandHasAScript checks that some script runs each command, correctly and with a usage error.
func TestEachCommandHasAScript(t *testing.T) {
	t.Parallel()
	var scripts strings.Builder
	for _, file := range proctest.Must(filepath.Glob("testdata/script/*.txtar"))(t) {
		scripts.Write(proctest.Must(os.ReadFile(file))(t))
		scripts.WriteByte('\n')
	}
	everyCommand(func(path string, _ *cobra.Command) {
		for what, before := range map[string]string{"runs": `(exec|exits [0-9]+|eventually '.*')`, "has a usage error": `exits 2`} {
			line := regexp.MustCompile(`(?m)^(\[.*\] )?` + before + ` ` + regexp.QuoteMeta(path) + `( |$)`)
			if !line.MatchString(scripts.String()) {
				t.Errorf("no script in testdata/script in which %s %s", path, what)
			}
		}
	})
}
