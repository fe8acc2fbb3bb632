package deploy

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"lockstep/internal/config"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// known returns the names of all settings.
func known(t *testing.T) map[string]bool {
	t.Helper()
	cfg := testenv.Must(config.Load(nil, os.DevNull, nil))(t)
	names := map[string]bool{}
	for _, v := range cfg.Values() {
		names[v.Name] = true
	}
	return names
}

// deployed returns the deployment files with their text.
func deployed(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, root := range []string{"../compose.yaml", "cells", "../Dockerfile", "kubernetes", "chart", "systemd"} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				files[path] = string(read(t, path))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func TestDeployedSettingsExist(t *testing.T) {
	settings := known(t)
	variable := regexp.MustCompile(`LOCKSTEP_[A-Z0-9_]+`)
	secret := regexp.MustCompile(`^LOCKSTEP_(API_TOKEN$|HOOK_|CREDENTIAL_)`)
	called := regexp.MustCompile(`(?:lockstep |\[)(?:serve|healthcheck|config|doctor|watch)\b.*`)
	flag := regexp.MustCompile(`--([a-z][a-z-]*)`)
	for path, text := range deployed(t) {
		for _, name := range variable.FindAllString(text, -1) {
			if !secret.MatchString(name) && !settings[strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, config.EnvPrefix), "_", "-"))] {
				t.Errorf("%s: %s is not a setting", path, name)
			}
		}
		for _, command := range called.FindAllString(text, -1) {
			for _, name := range flag.FindAllStringSubmatch(command, -1) {
				if !settings[name[1]] && !slices.Contains([]string{"config", "help", "url"}, name[1]) {
					t.Errorf("%s: unknown flag --%s: %s", path, name[1], command)
				}
			}
		}
	}
}

// TestSettingsLoad loads the settings of each deployment like the program.
func TestSettingsLoad(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	testenv.Must(0, os.WriteFile(secret, []byte("a secret of 18 bytes"), 0o600))(t)
	files := []string{"kubernetes/base/lockstep.yaml", "kubernetes/overlays/example/lockstep.yaml", "systemd/lockstep.yaml"}
	var defaults struct{ Settings map[string]any }
	testenv.Must(0, yaml.Unmarshal(read(t, "chart/values.yaml"), &defaults))(t)
	for name, text := range values(t) {
		var own struct{ Settings map[string]any }
		testenv.Must(0, yaml.Unmarshal([]byte(text), &own))(t)
		settings := maps.Clone(defaults.Settings)
		maps.Copy(settings, own.Settings)
		file := filepath.Join(t.TempDir(), name)
		testenv.Must(0, os.WriteFile(file, testenv.Must(yaml.Marshal(settings))(t), 0o600))(t)
		files = append(files, file)
	}
	for _, file := range files {
		if _, err := config.Load(nil, file, []string{"LOCKSTEP_API_TOKEN_FILE=" + secret, "LOCKSTEP_REDIS_PASSWORD_FILE=" + secret}); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestShippedRedisFlushesBeforeItAnswers checks every redis-server command line in the deployment files.
func TestShippedRedisFlushesBeforeItAnswers(t *testing.T) {
	separators := regexp.MustCompile(`[\s,"\[\]-]+`) // arguments are one per line or in one list, with or without quotes
	for path, text := range deployed(t) {
		for _, command := range strings.Split(text, "redis-server")[1:] {
			if strings.HasPrefix(command, ".service") {
				continue // a unit of systemd
			}
			words := " " + strings.Join(separators.Split(command[:min(len(command), 500)], -1), " ") + " "
			for _, want := range []string{" appendonly yes ", " appendfsync always ", " policy noeviction "} {
				if !strings.Contains(words, want) {
					t.Errorf("redis-server in %s lacks%s", path, want)
				}
			}
		}
	}
}

// TestBuildContextContainsTrackedFiles reads .dockerignore as Git does, which for its patterns is the same: without a tracked file, the image's
// binary would report a modified tree.
func TestBuildContextContainsTrackedFiles(t *testing.T) {
	list := exec.CommandContext(t.Context(), "git", "-C", "..", "ls-files", "--cached", "--ignored", "--exclude-from=.dockerignore")
	if out, err := list.Output(); err != nil {
		t.Skipf("not a Git repository: %v", err)
	} else if len(out) > 0 {
		t.Errorf("missing from the build context: %s", out)
	}
}

// TestUnitsAreHardened requires units without unknown keys, and an exposure level of at most 1.5 out of 10.
func TestUnitsAreHardened(t *testing.T) {
	analyze := tool(t, "systemd-analyze")
	for _, file := range []string{"systemd/lockstep.service", "systemd/lockstep-follow.service"} {
		out, _ := exec.CommandContext(t.Context(), analyze, "--man=no", "verify", file).CombinedOutput() // fails without /usr/bin/lockstep
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "lockstep") && !strings.Contains(line, "is not executable") { // ignore other units of this machine
				t.Errorf("systemd-analyze verify: %s", line)
			}
		}
		if out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold=15", file).CombinedOutput(); err != nil {
			t.Errorf("systemd-analyze security: %v\n%s", err, out)
		}
	}
}

// contain runs the image in a container: user 65532 without capabilities, a read-only root, and no mounts except the two volumes.
const contain = `set -e
root=$1; shift
mount --bind "$root" "$root"
mount -t tmpfs -o uid=65532,gid=65532,mode=755 tmpfs "$root/repos"
mount -t tmpfs -o uid=65532,gid=65532,mode=755 tmpfs "$root/spool"
mount -o remount,bind,ro "$root"
exec setpriv --no-new-privs --bounding-set=-all,+sys_chroot,+setuid,+setgid chroot --userspec=65532:65532 --groups=65532 "$root" /lockstep "$@"`

func TestImageRunsUnprivilegedWithReadOnlyRoot(t *testing.T) {
	testenv.Long(t)
	if err := exec.CommandContext(t.Context(), "unshare", "--mount", "true").Run(); err != nil {
		t.Skipf("skipped: containers require root and unshare(1): %v", err)
	}
	root := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s", "-o", filepath.Join(root, "lockstep"), "../cmd/lockstep")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, dir := range []string{"repos", "spool", "tmp"} {
		testenv.Must(0, os.Mkdir(filepath.Join(root, dir), 0o755))(t)
	}
	run := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "--propagation=slave", "sh", "-c", contain, "sh", root}, args...)...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LOCKSTEP_ROOT=/repos"}
		return cmd.CombinedOutput()
	}
	git := testenv.Must(gitserver.Start(filepath.Join(t.TempDir(), "remote")))(t)
	defer git.Close()
	head := testenv.Must(git.Create(t.Context(), "acme/widgets", map[string]string{"README": "hello\n"}))(t)
	if out, err := run("sync", git.URL("acme/widgets"), "--json"); err != nil || !bytes.Contains(out, []byte(head)) {
		t.Errorf("sync: %v\n%s", err, out)
	}
	if out, err := run("sync", git.URL("acme/widgets"), "--root", "/elsewhere"); err == nil || !bytes.Contains(out, []byte("read-only file system")) {
		t.Errorf("the root is writable: %v\n%s", err, out)
	}
}
