// Package gitea tests Lockstep with a real forge: Gitea, which make test-forge builds from the Go module proxy.
package gitea

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"lockstep/internal/cli"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
)

// TestMain makes this test binary the lockstep command, too.
func TestMain(m *testing.M) {
	testenv.Parallel(2)
	testscript.Main(m, map[string]func(){"lockstep": func() { term.Main(cli.Run) }})
}
