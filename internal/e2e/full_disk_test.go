package e2e

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
)

// TestFullDisk fills the volume of a deployment. The command line, the API and the dashboard say so, which push waits for it and
// what to do, until there is space: then the push is synced without help.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := syscall.Mount("tmpfs", root, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("needs a file system of its own to fill: mount tmpfs: %v", err)
	}
	t.Cleanup(func() { proctest.Must(0, syscall.Unmount(root, syscall.MNT_DETACH))(t) })
	git, server := proctest.StartGit(t), redistest.Start(t)
	proctest.Must(git.Create(t.Context(), "acme/widgets", map[string]string{"a": "1"}))(t)
	s := startServiceOn(t, server, nil, "--roles", "receiver,worker", "--root", root)
	s.awaitSynced(s.publish(git.URL("acme/widgets"), "app", "docs"))

	filler := filepath.Join(root, "filler")
	file := proctest.Must(os.Create(filler))(t)
	block := make([]byte, 4096)
	for {
		if _, err := file.Write(block); errors.Is(err, syscall.ENOSPC) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	proctest.Must(0, file.Close())(t)
	noise := make([]byte, 64<<10)
	_, _ = rand.Read(noise)
	proctest.Must(git.Commit(t.Context(), "acme/widgets", "large", gitserver.Edit{Write: map[string]string{"a": string(noise)}}))(t)
	entry := s.publish(git.URL("acme/widgets"), "app", "docs")

	full := trouble{says: regexp.MustCompile(`^the volume is nearly full$`), see: "volume"}
	waits := trouble{says: regexp.MustCompile(`^volume, retried: 1 repository, acme/widgets$`), see: "repos"}
	const advice = "no space left on device; free space on the volume"
	lockstep := func(args ...string) string {
		t.Helper()
		out, stderr, code := proctest.RunLockstep(t, nil, append(args, "--redis", server.URL(), "--root", root)...)
		if code != 0 {
			t.Fatalf("lockstep %s: exit code %d: %s", strings.Join(args, " "), code, stderr)
		}
		return out
	}
	get := func(path string) string {
		_, text := s.do("GET", path, "")
		return html.UnescapeString(text)
	}
	verdictOf := func(text string) (v verdict) {
		proctest.Must(0, json.Unmarshal([]byte(text), &v))(t)
		return v
	}
	var v verdict
	for name, read := range map[string]func() string{
		"the command line": func() string { return lockstep("status", "-o", "json") },
		"the API":          func() string { return get("/api/v1/status") },
	} {
		proctest.Eventually(t, func() bool { v = verdictOf(read()); return v.has(full) && v.has(waits) }, "a full volume on %s: %+v", name, &v)
	}
	var text string
	for name, read := range map[string]func() string{
		"repos show":   func() string { return lockstep("repos", "show", "acme/widgets") },
		"the API":      func() string { return get("/api/v1/repos/acme/widgets") },
		"its page":     func() string { return get("/dashboard/repo?repo=acme/widgets") },
		"the overview": func() string { return get("/") },
	} {
		proctest.Eventually(t, func() bool { text = read(); return strings.Contains(text, advice) }, "what to do, in %s: %s", name, &text)
	}
	proctest.Eventually(t, func() bool { text = get("/"); return strings.Contains(text, "the volume is nearly full") }, "the volume in %s", &text)

	proctest.Must(0, os.Remove(filler))(t)
	s.awaitSynced(entry)
	proctest.Eventually(t, func() bool {
		v = verdictOf(lockstep("status", "-o", "json"))
		return v.Health == "ok" && !strings.Contains(get("/"), "the volume is nearly full") && !strings.Contains(get("/api/v1/repos/acme/widgets"), advice)
	}, "all is well: %+v", &v)
}
