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

// everyCommand calls fn for each visible command with its path. Help topics are not commands.
func everyCommand(fn func(path string, cmd *cobra.Command)) {
	root := newRootCommand(term.Streams{Stdout: io.Discard, Stderr: io.Discard})
	root.InitDefaultHelpCmd()
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Hidden || cmd.IsAdditionalHelpTopicCommand() {
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
		group := cmd.HasSubCommands()
		switch {
		case cmd.Short == "" || strings.HasSuffix(cmd.Short, "."):
			t.Errorf("%s: Short is %q; want a phrase", path, cmd.Short)
		case !group && cmd.Example == "":
			t.Errorf("%s has no example", path)
		case cmd.RunE == nil:
			t.Errorf("%s has no RunE; a group prints its help", path)
		}
		for line := range strings.Lines(cmd.Example) {
			if !strings.Contains(line, path) && !group {
				t.Errorf("%s: the example %q is for another command", path, strings.TrimSpace(line))
			}
			if !strings.HasPrefix(line, "  ") {
				t.Errorf("%s: the example %q is not indented by two", path, strings.TrimSpace(line))
			}
		}
		for line := range strings.Lines(cmd.Long) {
			if len([]rune(line)) > 125 {
				t.Errorf("%s: a line of Long has %d characters: %s", path, len([]rune(line)), line)
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
