package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const unitFile = "systemd/lockstep.service"

// unit returns the values of each key of the unit file.
func unit(t *testing.T) map[string][]string {
	t.Helper()
	set := map[string][]string{}
	for line := range strings.Lines(string(read(t, unitFile))) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			set[key] = append(set[key], value)
		}
	}
	return set
}

func TestUnitMatchesItsSettings(t *testing.T) {
	u, cfg := unit(t), loadWith(t, "systemd/lockstep.yaml", nil)
	if stop, err := time.ParseDuration(u["TimeoutStopSec"][0]); err != nil || stop < cfg.Grace+afterGrace {
		t.Errorf("TimeoutStopSec=%s, but draining may take %v", u["TimeoutStopSec"][0], cfg.Grace+afterGrace)
	}
	if !slices.Contains(u["ReadWritePaths"], cfg.Root) {
		t.Errorf("root %s is not writable: ReadWritePaths=%s", cfg.Root, u["ReadWritePaths"])
	}
	if state := "/var/lib/" + u["StateDirectory"][0] + "/"; !strings.HasPrefix(cfg.Spool, state) {
		t.Errorf("the spool %s is not below %s", cfg.Spool, state)
	}
	if !slices.Contains(u["Type"], "notify") || !slices.Contains(u["RestartPreventExitStatus"], "2") || !slices.Contains(u["Restart"], "on-failure") {
		t.Error("Type, Restart or RestartPreventExitStatus")
	}
	if !slices.Contains(u["Environment"], "GOTRACEBACK=crash") || !slices.Contains(u["LimitCORE"], "0") {
		t.Error("a panic must not exit with code 2, which prevents a restart, nor leave a core dump with secrets")
	}
	tmpfiles := string(read(t, "systemd/tmpfiles.conf"))
	if !strings.Contains(tmpfiles, "d "+cfg.Root+" 0755 "+u["User"][0]) {
		t.Errorf("%s is not created", cfg.Root)
	}
	if !strings.Contains(string(read(t, "systemd/sysusers.conf")), "u "+u["User"][0]+" ") {
		t.Errorf("the user %s is not created", u["User"][0])
	}
}

// analyze runs systemd-analyze on a copy of the unit with an existing program.
func analyze(t *testing.T, args ...string) (output string, err error) {
	t.Helper()
	program, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not in PATH; on Debian, install the package systemd")
	}
	dir := t.TempDir()
	lockstep := filepath.Join(dir, "lockstep")
	text := strings.ReplaceAll(string(read(t, unitFile)), "/usr/bin/lockstep", lockstep)
	for path, content := range map[string]string{
		lockstep: "#!/bin/true\n", filepath.Join(dir, "lockstep.service"): text,
		filepath.Join(dir, "lockstep.service.d", "credentials.conf"): string(read(t, "systemd/credentials.conf")),
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if path == lockstep {
			mode = 0o755
		}
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), program, append(args, filepath.Join(dir, "lockstep.service"))...)
	cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestSystemdAnalyzeVerify(t *testing.T) {
	out, err := analyze(t, "--man=no", "verify")
	for line := range strings.Lines(out) {
		if strings.Contains(line, "lockstep") { // ignore other units of this machine
			t.Errorf("systemd-analyze verify: %s", line)
		}
	}
	if err != nil {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// TestUnitIsHardened requires an exposure level of at most 1.5 out of 10.
func TestUnitIsHardened(t *testing.T) {
	out, err := analyze(t, "security", "--offline=true", "--threshold=15")
	if err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
	t.Log(regexp.MustCompile(`Overall exposure level.*`).FindString(out))
}
