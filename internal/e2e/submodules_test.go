package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/term"
)

// TestSubmodulesOfAService requests a repository with submodules by command. No watch asks for them.
func TestSubmodulesOfAService(t *testing.T) {
	t.Parallel()
	m := newMirror(t, "--poll-every", "0s")
	lib := proctest.Must(m.git.Create(t.Context(), "acme/lib", map[string]string{"l": "library"}))(t)
	proctest.Must(0, m.git.CreateEmpty(t.Context(), "acme/super"))(t)
	commit := proctest.Must(m.git.Commit(t.Context(), "acme/super", gitserver.Main, gitserver.Edit{
		Write:     map[string]string{"a": "1", ".gitmodules": "[submodule \"lib\"]\n\tpath = libs/lib\n\turl = ../lib.git\n"},
		Submodule: map[string]string{"libs/lib": lib},
	}))(t)
	stdout, stderr, code := proctest.RunLockstep(t, nil, "publish", m.git.URL("acme/super"), "--redis", m.redis, "--submodules", "required", "--wait")
	if code != term.ExitDone {
		t.Fatalf("publish: exit code %d: %s %s", code, stdout, stderr)
	}
	file := filepath.Join(m.root, "acme/super/libs/lib/l")
	if content, err := os.ReadFile(file); string(content) != "library" {
		t.Fatalf("the submodule has %q, %v", content, err)
	}
	results := proctest.Must(m.server.Client().XRange(t.Context(), events.DefaultNamespace.Results(), "-", "+").Result())(t)
	last := proctest.DecodeResult(t, results[len(results)-1])
	if last.After != commit || fmt.Sprint(last.Files) != fmt.Sprint([]events.File{
		{Path: ".gitmodules", Status: events.FileAdded}, {Path: "a", Status: events.FileAdded}, {Path: "libs/lib", Status: events.FileAdded},
	}) {
		t.Errorf("the result is %+v", last)
	}
}
