package main

import (
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"lockstep/internal/gittest"
	"lockstep/internal/redistest"
)

// TestScripts runs testdata/script: each subcommand as a user types it. $REMOTE is the URL of a
// repository acme/widgets, $REDIS that of an empty Redis.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			git, err := gittest.Start(filepath.Join(env.WorkDir, ".remote"))
			if err != nil {
				return err
			}
			env.Defer(git.Close)
			if _, err := git.Create(t.Context(), "acme/widgets", map[string]string{"README": "hello\n"}); err != nil {
				return err
			}
			env.Setenv("REMOTE", git.URL("acme/widgets"))
			env.Setenv("REDIS", redistest.Start(t).URL())
			return nil
		},
	})
}
