package workspace

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/testenv"
)

// Git reads from the configuration what was written.
func TestRemoteConfig(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip(err)
	}
	const url = `https://example.com/a "b\c;#.git`
	const commit = "d670460b4b4aece5915caf5c68d12f560a9fe3e4"
	for _, tc := range []struct {
		ref     string
		shallow bool
		fetch   string
		merge   string // "" for no branch
	}{
		{"refs/heads/main", false, "+refs/heads/*:refs/remotes/origin/*", "main"},
		{"refs/heads/main", true, "+refs/heads/main:refs/remotes/origin/main", "main"},
		{`refs/heads/fix/"quoted";#1`, true, `+refs/heads/fix/"quoted";#1:refs/remotes/origin/fix/"quoted";#1`, `fix/"quoted";#1`},
		{"refs/tags/v1", true, "+refs/tags/v1:refs/tags/v1", ""},
		{"refs/tags/v1", false, "+refs/heads/*:refs/remotes/origin/*", ""},
		{commit, true, "", ""},
		{commit, false, "+refs/heads/*:refs/remotes/origin/*", ""},
	} {
		file := filepath.Join(t.TempDir(), "config")
		testenv.Must(0, os.WriteFile(file, []byte(remoteConfig(url, testenv.Must(events.ParseRef(tc.ref))(t), tc.shallow)), 0o644))(t)
		want := map[string]string{"remote.origin.url": url, "remote.origin.fetch": tc.fetch}
		if tc.merge != "" {
			want["branch."+tc.merge+".merge"] = "refs/heads/" + tc.merge
			want["branch."+tc.merge+".remote"] = "origin"
		}
		for key, value := range want {
			out, _ := exec.Command("git", "config", "--file", file, key).Output()
			if got := strings.TrimSuffix(string(out), "\n"); got != value {
				t.Errorf("%s, shallow %v: %s is %q, want %q", tc.ref, tc.shallow, key, got, value)
			}
		}
	}
	if text := remoteConfig("", testenv.Must(events.ParseRef("main"))(t), true); strings.Contains(text, "remote") {
		t.Errorf("without a remote: %s", text)
	}
}

func TestCheckOutside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testenv.Must(0, os.MkdirAll(filepath.Join(dir, "root/sub"), 0o755))(t)
	testenv.Must(0, os.Symlink("root", filepath.Join(dir, "link")))(t)
	for path, inside := range map[string]bool{"root": true, "root/new/deep": true, "link/new": true, "root2": false, "other": false, ".": false} {
		if err := checkOutside(filepath.Join(dir, path), filepath.Join(dir, "link")); (err != nil) != inside {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestSweepLeavesWhatIsInUse(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	used := testenv.Must(newScratch(base))(t)
	dead := testenv.Must(newScratch(base))(t)
	testenv.Must(0, os.MkdirAll(filepath.Join(dead.dir, "upper/locked"), 0o755))(t)
	testenv.Must(0, os.WriteFile(filepath.Join(dead.dir, "upper/locked/file"), nil, 0o644))(t)
	testenv.Must(0, os.Chmod(filepath.Join(dead.dir, "upper/locked"), 0o555))(t)
	testenv.Must(0, unix.Flock(int(dead.lock.Fd()), unix.LOCK_UN))(t) // a child of another test may share the open file
	testenv.Must(0, dead.lock.Close())(t)
	testenv.Must(0, os.Mkdir(filepath.Join(base, "other"), 0o755))(t)
	sweep(base)
	names := func() (names []string) {
		for _, entry := range testenv.Must(os.ReadDir(base))(t) {
			names = append(names, entry.Name())
		}
		return names
	}
	if left := names(); !slices.Equal(left, []string{filepath.Base(used.dir), "other"}) {
		t.Errorf("left: %v", left)
	}
	testenv.Must(0, used.remove())(t)
	if left := names(); !slices.Equal(left, []string{"other"}) {
		t.Errorf("left: %v", left)
	}
}
