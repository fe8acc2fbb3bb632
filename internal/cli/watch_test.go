package cli

import (
	"os"
	"strings"
	"testing"

	"lockstep/internal/proctest"
)

// Each command and the file of docs/watches.md is in the script that TestScripts runs.
func TestTheGuideToWatchesIsRun(t *testing.T) {
	guide := string(proctest.Must(os.ReadFile("../../docs/watches.md"))(t))
	script := string(proctest.Must(os.ReadFile("testdata/script/watch_guide.txtar"))(t))
	commands := 0
	for line := range strings.Lines(guide) {
		command, ok := strings.CutPrefix(line, "    lockstep ")
		if !ok {
			continue
		}
		commands++
		command, _, _ = strings.Cut(strings.TrimSpace(command), " > ")
		if !strings.Contains(script, "\nexec lockstep "+command+"\n") {
			t.Errorf("the script does not run: lockstep %s", command)
		}
	}
	_, file, _ := strings.Cut(guide, "```yaml\n")
	file, _, ok := strings.Cut(file, "```")
	if !ok || !strings.Contains(script, "-- guide.yaml --\n"+file) || commands < 8 {
		t.Errorf("%d commands, and the file is not the script's", commands)
	}
}
