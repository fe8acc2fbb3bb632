package cli

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// TestScripts runs testdata/script, which tests each subcommand as a user types it. $REMOTE is the URL of a repository
// acme/widgets, $SLOW that of slow/widgets, $HOST their host, $REDIS that of an empty Redis, and $PORT is a free port. See scriptCommands for
// additional commands. The condition [long] holds for the long forms. With the race detector it runs only commands that do several things
// at once; make test-large runs all scripts without it.
func TestScripts(t *testing.T) {
	t.Parallel()
	scripts := proctest.Must(filepath.Glob("testdata/script/*.txtar"))(t)
	if testenv.UnderRace() {
		scripts = nil
		for _, name := range []string{"demo", "locks", "reconcile", "serve", "status", "sync", "tail", "workspace"} {
			scripts = append(scripts, filepath.Join("testdata/script", name+".txtar"))
		}
	}
	testscript.Run(t, testscript.Params{
		Files: scripts,
		Cmds:  scriptCommands(),
		Condition: func(name string) (bool, error) {
			if name == "long" {
				return testenv.All(), nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Setup: func(env *testscript.Env) error {
			slow := newGate()
			env.Values[gateKey{}] = slow
			git, err := gitserver.Start(filepath.Join(env.WorkDir, ".remote"), gitserver.WithBefore(slow.before))
			if err != nil {
				return err
			}
			env.Defer(git.Close)
			env.Values[gitKey{}] = git
			for name, repo := range map[string]string{"REMOTE": "acme/widgets", "SLOW": "slow/widgets"} {
				if _, err := git.Create(t.Context(), repo, map[string]string{"README": "hello\n"}); err != nil {
					return err
				}
				env.Setenv(name, git.URL(repo))
			}
			env.Setenv("HOST", strings.Split(git.URL(""), "/")[2])
			env.Setenv("REDIS", redistest.Start(t).URL())
			_, port, err := net.SplitHostPort(proctest.FreeAddress(t))
			env.Setenv("PORT", port)
			return err
		},
	})
}

func answers(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: answers URL")
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if resp, err := http.Get(args[0]); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
	}
	ts.Fatalf("timed out waiting for %s", args[0])
}
