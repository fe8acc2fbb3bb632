package main

import (
	"os/exec"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"lockstep/internal/cli"
	"lockstep/internal/cli/term"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

// TestMain makes this test binary the bench and lockstep commands too; testscript puts it into PATH by those names.
func TestMain(m *testing.M) {
	testenv.Parallel(4)
	testscript.Main(m, map[string]func(){
		"bench":    func() { term.Main(run) },
		"lockstep": func() { term.Main(cli.Run) },
	})
}

func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:  "testdata/script",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": proctest.Exits},
		Setup: func(env *testscript.Env) error {
			lockstep, err := exec.LookPath("lockstep")
			env.Setenv("BENCH_LOCKSTEP", lockstep)
			return err
		},
	})
}

// runProcess runs bench as a process, with this test binary as the lockstep command.
func runProcess(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	lockstep, err := exec.LookPath("lockstep")
	if err != nil {
		t.Fatal(err)
	}
	return proctest.Run(t, "bench", []string{"BENCH_LOCKSTEP=" + lockstep}, args...)
}
