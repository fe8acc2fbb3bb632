package cli

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"lockstep/internal/term"
	"lockstep/internal/testenv"
)

// TestMain makes this test binary the lockstep command too; testscript puts it into PATH by that name.
func TestMain(m *testing.M) {
	testenv.Parallel(6)
	testscript.Main(m, map[string]func(){"lockstep": func() { term.Main(Run) }})
}
