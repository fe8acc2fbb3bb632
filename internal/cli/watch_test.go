package cli

import (
	"os"
	"strings"
	"testing"

	"lockstep/internal/proctest"
)

// TestWatchGuideMatchesScript checks that TestScripts runs each command of docs/watches.md.
func TestWatchGuideMatchesScript(t *testing.T) {
	t.Parallel()
	guide := string(proctest.Must(os.ReadFile("../../docs/watches.md"))(t))
	script := string(proctest.Must(os.ReadFile("testdata/script/watch_guide.txtar"))(t))
	for line := range strings.Lines(guide) {
		command, ok := strings.CutPrefix(line, "    lockstep ")
		if !ok {
			continue
		}
		command, _, _ = strings.Cut(strings.TrimSpace(command), " > ")
		if !strings.Contains(script, "\nexec lockstep "+command+"\n") {
			t.Errorf("the script does not run: lockstep %s", command)
		}
	}
	_, file, _ := strings.Cut(guide, "```yaml\n")
	file, _, ok := strings.Cut(file, "```")
	if !ok || !strings.Contains(script, "-- guide.yaml --\n"+file) {
		t.Error("the script does not import the file in the guide")
	}
}
