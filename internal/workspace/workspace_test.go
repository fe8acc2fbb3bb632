package workspace

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
)

func TestAdviceNamesWhatForbidsAnOverlay(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		failed   stepError
		settings map[string]string
		want     string
	}{
		"limit":             {stepError{step: stepNamespace, err: unix.ENOSPC}, map[string]string{"user/max_user_namespaces": "0"}, "user.max_user_namespaces is 0: raise it"},
		"Debian's setting":  {stepError{step: stepNamespace, err: unix.EPERM}, map[string]string{"kernel/unprivileged_userns_clone": "0"}, "run sysctl kernel.unprivileged_userns_clone=1"},
		"AppArmor":          {stepError{step: stepNamespace, err: unix.EACCES}, map[string]string{"kernel/apparmor_restrict_unprivileged_userns": "1"}, "AppArmor restricts user namespaces: load a profile"},
		"AppArmor at mount": {stepError{step: stepMount, err: unix.EACCES, user: true}, map[string]string{"kernel/apparmor_restrict_unprivileged_userns": "1"}, "AppArmor restricts user namespaces"},
		"container":         {stepError{step: stepNamespace, err: unix.EPERM}, nil, "a seccomp or security profile, such as that of a container, forbids user namespaces"},
		"no namespaces":     {stepError{step: stepNamespace, err: unix.EINVAL}, nil, "CONFIG_USER_NS"},
		"old kernel":        {stepError{step: stepMount, err: unix.EPERM, user: true}, nil, "needs Linux 5.11"},
		"container as root": {stepError{step: stepMount, err: unix.EACCES}, map[string]string{"kernel/apparmor_restrict_unprivileged_userns": "1"}, "forbids mounts"},
		"no overlay":        {stepError{step: stepMount, err: unix.ENODEV}, nil, "modprobe overlay"},
		"scratch":           {stepError{step: stepMount, err: unix.EINVAL, folder: "/tmp/x"}, nil, "/tmp/x cannot hold the written files: choose a folder on ext4"},
		"chroot":            {stepError{step: stepSeparate, err: unix.EINVAL}, nil, "as in a chroot"},
		"other owner":       {stepError{step: stepWrite, err: unix.EACCES, user: true, owner: "user 7, group 8"}, nil, "the tree belongs to user 7, group 8"},
		"full":              {stepError{step: stepWrite, err: unix.ENOSPC}, nil, "free space"},
		"read-only":         {stepError{step: stepMount, err: unix.EROFS}, nil, "choose a writable folder"},
		"anything else":     {stepError{step: stepProtect, err: unix.EIO}, nil, "dmesg"},
	} {
		dir := t.TempDir()
		for path, value := range tc.settings {
			path = filepath.Join(dir, path)
			testenv.Must(0, os.MkdirAll(filepath.Dir(path), 0o755))(t)
			testenv.Must(0, os.WriteFile(path, []byte(value+"\n"), 0o644))(t)
		}
		if got := tc.failed.advice(dir); !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q; want %q", name, got, tc.want)
		}
	}
}

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

func TestUnescape(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{`/a\040b\011\134c`: "/a b\t\\c", `/plain`: "/plain", `/end\04`: `/end\04`, `\999`: `\999`} {
		if got := unescape(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestIsWithin(t *testing.T) {
	t.Parallel()
	dir := testenv.Must(filepath.EvalSymlinks(t.TempDir()))(t)
	testenv.Must(0, os.MkdirAll(filepath.Join(dir, "root/sub"), 0o755))(t)
	testenv.Must(0, os.Symlink("root", filepath.Join(dir, "link")))(t)
	for path, want := range map[string]bool{"root": true, "root/new/deep": true, "link/new": true, "root2": false, "other": false, ".": false} {
		if got := isWithin(filepath.Join(dir, path), filepath.Join(dir, "link")); got != want {
			t.Errorf("%s: %v", path, got)
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
	testenv.Must(0, dead.describe(volume.Workspace{}))(t)
	testenv.Must(0, unix.Flock(int(dead.lock.Fd()), unix.LOCK_UN))(t) // a child of another test may share the open file
	testenv.Must(0, dead.lock.Close())(t)
	begun, old := filepath.Join(base, scratchPrefix+"1"), filepath.Join(base, scratchPrefix+"2")
	for _, dir := range []string{begun, old} {
		testenv.Must(0, os.Mkdir(dir, 0o700))(t)
	}
	hourAgo := time.Now().Add(-time.Hour)
	testenv.Must(0, os.Chtimes(old, hourAgo, hourAgo))(t)
	testenv.Must(0, os.Mkdir(filepath.Join(base, "other"), 0o755))(t)
	removed := testenv.Must(Sweep(base))(t)
	slices.Sort(removed)
	if want := []string{dead.dir, old}; !slices.Equal(removed, slices.Sorted(slices.Values(want))) {
		t.Errorf("removed %q, want %q", removed, want)
	}
	testenv.Must(0, used.remove())(t)
	if left := testenv.Must(os.ReadDir(base))(t); len(left) != 2 {
		t.Errorf("left: %v", left)
	}
}

func TestRemoveLeavesWhatReplacedTheFolder(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	testenv.Must(0, os.WriteFile(file, nil, 0o644))(t)
	link := file + "-link"
	testenv.Must(0, os.Symlink("nowhere", link))(t)
	for _, path := range []string{file, link} {
		testenv.Must(0, removeFiles(volume.Workspace{ID: "one", Dir: path}, false))(t)
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
}

// Before Linux 5.12 there is no mount_setattr.
func TestRemountReadOnly(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir, failed := t.TempDir(), make(chan error)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with its mount namespace
		failed <- func() error {
			for _, err := range []error{
				unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""),
				unix.Mount(dir, dir, "", unix.MS_BIND, ""), remountReadOnly(dir),
			} {
				if err != nil {
					return err
				}
			}
			return os.WriteFile(filepath.Join(dir, "file"), nil, 0o644)
		}()
	}()
	err := <-failed
	if errors.Is(err, unix.EPERM) {
		t.Skip(err)
	}
	if !errors.Is(err, unix.EROFS) {
		t.Errorf("wrote to a read-only mount: %v", err)
	}
	testenv.Must(0, os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))(t) // elsewhere nothing has changed
}
