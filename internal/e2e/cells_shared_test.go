package e2e

import (
	"encoding/json"
	"net/http"
	"testing"

	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
)

// TestTokensAreThoseOfAllCells uses a token that a deployment had before it became a cell, and one created since, with the readers of two
// cells, and removes both.
func TestTokensAreThoseOfAllCells(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	alone := []string{"LOCKSTEP_REDIS=" + url}
	together := append(alone, "LOCKSTEP_CELL=all")
	run := func(env []string, args ...string) string {
		t.Helper()
		out, errs, code := proctest.RunLockstep(t, env, args...)
		if code != 0 {
			t.Fatalf("lockstep %v: exit code %d\n%s%s", args, code, out, errs)
		}
		return out
	}
	type token struct{ ID, Token string }
	create := func(env []string) (created token) {
		t.Helper()
		proctest.Must(0, json.Unmarshal([]byte(run(env, "tokens", "create", "--app", "docs", "--json")), &created))(t)
		return created
	}
	before := create(alone)
	run(alone, "cells", "add", "eu-1", "--cell-prefix", "lockstep:{0}:")
	run(alone, "cells", "add", "eu-2")
	since := create(together)
	var readers []string
	for _, cell := range []string{"eu-1", "eu-2"} {
		p := proctest.Start(t, "serve", "--redis", url, "--cell", cell, "--roles", "reader", "--root", t.TempDir(), "--listen", "127.0.0.1:0")
		readers = append(readers, "http://"+p.ListenAddress("listening")+"/cells/"+cell+"/api/v1/repos/acme/widgets/refs") // not forwarded
	}
	expect := func(secret string, want int) {
		t.Helper()
		for _, reader := range readers {
			if status, _ := getStatusAs(t, secret, reader); status != want {
				t.Errorf("GET %s: %d, want %d", reader, status, want)
			}
		}
	}
	for _, one := range []token{before, since} {
		expect(one.Token, http.StatusNotFound) // known, and watches nothing
		run(together, "tokens", "rm", one.ID)
		expect(one.Token, http.StatusUnauthorized)
	}
}
