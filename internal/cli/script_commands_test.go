package cli

import (
	"context"
	"regexp"
	"strings"
	"time"

	"lockstep/internal/proctest"

	"github.com/rogpeppe/go-internal/testscript"
)

// The commands that scripts have beside testscript's own:
//
//	exits CODE COMMAND…          run it, and want that exit code; stdout and stderr look at what it printed
//	eventually PATTERN COMMAND…  run it until it succeeds and its output matches: for what no signal tells of
//	keep NAME PATTERN            set a variable to what the pattern's group matches in the last stdout
//	asked                        wait until the remote of $SLOW is asked; it does not answer before "answer"
//	answer                       let it answer
//	answers URL                  wait for a URL's first good answer
func scriptCommands() map[string]func(*testscript.TestScript, bool, []string) {
	return map[string]func(*testscript.TestScript, bool, []string){
		"exits": proctest.Exits, "eventually": eventualOutput, "keep": keepMatch, "asked": awaitAsked, "answer": letAnswer, "answers": answers,
	}
}

func eventualOutput(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: eventually PATTERN COMMAND…")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if ts.Exec(args[1], args[2:]...) == nil && pattern.MatchString(ts.ReadFile("stdout")) {
			return
		}
	}
	ts.Fatalf("never %s", args[0])
}

func keepMatch(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: keep NAME PATTERN")
	}
	pattern, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	match := pattern.FindStringSubmatch(ts.ReadFile("stdout"))
	if len(match) != 2 {
		ts.Fatalf("no match of %s with one group in stdout", args[1])
	}
	ts.Setenv(args[0], match[1])
}

// gate holds requests to slow/… back.
type gate struct {
	asked, open chan struct{}
}

type gateKey struct{}

func newGate() *gate { return &gate{asked: make(chan struct{}, 1000), open: make(chan struct{})} }

func (g *gate) before(ctx context.Context, repo, _ string) {
	if !strings.HasPrefix(repo, "slow/") {
		return
	}
	g.asked <- struct{}{}
	select {
	case <-g.open:
	case <-ctx.Done():
	}
}

func awaitAsked(ts *testscript.TestScript, _ bool, _ []string) {
	select {
	case <-ts.Value(gateKey{}).(*gate).asked:
	case <-time.After(time.Minute):
		ts.Fatalf("nobody asks")
	}
}

func letAnswer(ts *testscript.TestScript, _ bool, _ []string) {
	close(ts.Value(gateKey{}).(*gate).open)
}
