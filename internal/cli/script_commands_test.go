package cli

import (
	"context"
	"regexp"
	"strconv"
	"strings"
	"time"

	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"

	"github.com/rogpeppe/go-internal/testscript"
)

// scriptCommands returns the additional commands for scripts:
//
//	exits CODE COMMAND…          run the command and check its exit code; stdout and stderr apply to its output
//	eventually PATTERN COMMAND…  run the command until it succeeds and its output matches
//	keep NAME PATTERN            set a variable to the group of the pattern in the last stdout
//	asked                        wait until $SLOW receives a fetch, which hangs until "answer", for a minute at most
//	answer                       let $SLOW respond
//	limit SECONDS                let $HOST answer 429 with this Retry-After, or as usual with 0
//	answers URL                  wait until the URL responds with 200
func scriptCommands() map[string]func(*testscript.TestScript, bool, []string) {
	return map[string]func(*testscript.TestScript, bool, []string){
		"exits": proctest.Exits, "eventually": eventualOutput, "keep": keepMatch, "asked": awaitAsked, "answer": letAnswer, "answers": answers, "limit": limitHost,
	}
}

func eventualOutput(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: eventually PATTERN COMMAND…")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if ts.Exec(args[1], args[2:]...) == nil && pattern.MatchString(ts.ReadFile("stdout")) {
			return
		}
	}
	ts.Fatalf("timed out waiting for %s", args[0])
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

type gitKey struct{}

func limitHost(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: limit SECONDS")
	}
	seconds, err := strconv.Atoi(args[0])
	ts.Check(err)
	ts.Value(gitKey{}).(*gitserver.Server).LimitToken("", time.Duration(seconds)*time.Second)
}

// gate holds fetches from repositories in slow/.
type gate struct {
	asked, open chan struct{}
}

type gateKey struct{}

func newGate() *gate { return &gate{asked: make(chan struct{}, 1000), open: make(chan struct{})} }

func (g *gate) before(ctx context.Context, repo, service string) {
	if !strings.HasPrefix(repo, "slow/") || service != "git-upload-pack" { // the list of refs must begin within a minute
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
		ts.Fatalf("no request for a minute")
	}
}

func letAnswer(ts *testscript.TestScript, _ bool, _ []string) {
	close(ts.Value(gateKey{}).(*gate).open)
}
