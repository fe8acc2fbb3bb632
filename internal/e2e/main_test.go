// Package e2e tests processes of lockstep together: real Redis, real Git over HTTP, several workers, kill -9.
package e2e

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"lockstep/internal/cli"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
)

// TestMain makes this test binary the lockstep command too, and a worker that kills itself; testscript puts it into
// PATH by those names.
func TestMain(m *testing.M) {
	testenv.Parallel(6)
	testscript.Main(m, map[string]func(){
		"lockstep":       func() { term.Main(cli.Run) },
		"lockstep-dying": dyingMain,
	})
}
