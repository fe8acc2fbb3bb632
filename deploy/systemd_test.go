package deploy

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/internal/cli"
	"lockstep/internal/term"
)

const (
	unitFile       = "systemd/lockstep.service"
	followUnitFile = "systemd/lockstep-follow.service"
)

// unit returns the values of each key of a unit file.
func unit(t *testing.T, file string) map[string][]string {
	t.Helper()
	set := map[string][]string{}
	for line := range strings.Lines(string(read(t, file))) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			set[key] = append(set[key], value)
		}
	}
	return set
}

func TestUnitMatchesItsSettings(t *testing.T) {
	u, cfg := unit(t, unitFile), loadWith(t, "systemd/lockstep.yaml", nil)
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

// TestFollowUnitDiffersWhereItMust compares the unit of a follower with that of the service: it has another command, and no Redis, spool or
// settings.
func TestFollowUnitDiffersWhereItMust(t *testing.T) {
	u, service := unit(t, followUnitFile), unit(t, unitFile)
	own := []string{"Description", "Documentation", "After", "RequiresMountsFor", "EnvironmentFile", "LoadCredential", "ExecStart", "RestartPreventExitStatus", "StateDirectoryMode"}
	for _, keys := range []map[string][]string{u, service} {
		for key := range keys {
			if !slices.Contains(own, key) && !slices.Equal(u[key], service[key]) {
				t.Errorf("%s is %q, and %q for the service", key, u[key], service[key])
			}
		}
	}
	if got := u["RestartPreventExitStatus"][0]; got != fmt.Sprint(term.ExitUsage, " ", term.ExitRevoked) {
		t.Errorf("RestartPreventExitStatus=%s", got)
	}
	_, args, _ := strings.Cut(u["ExecStart"][0], " follow ")
	var help bytes.Buffer
	if code := cli.Run(t.Context(), []string{"follow", "--help"}, term.Streams{Stdout: &help, Stderr: &help}); code != term.ExitDone {
		t.Fatal(help.String())
	}
	for _, flag := range regexp.MustCompile(`--[a-z-]+`).FindAllString(args, -1) {
		if !strings.Contains(help.String(), flag+" ") {
			t.Errorf("lockstep follow has no flag %s", flag)
		}
	}
}

// analyze runs systemd-analyze on a copy of a unit with an existing program.
func analyze(t *testing.T, file string, args ...string) (output string, err error) {
	t.Helper()
	program, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not in PATH; on Debian, install the package systemd")
	}
	dir := t.TempDir()
	lockstep := filepath.Join(dir, "lockstep")
	text := strings.ReplaceAll(string(read(t, file)), "/usr/bin/lockstep", lockstep)
	for path, content := range map[string]string{
		lockstep: "#!/bin/true\n", filepath.Join(dir, filepath.Base(file)): text,
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
	cmd := exec.CommandContext(t.Context(), program, append(args, filepath.Join(dir, filepath.Base(file)))...)
	cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestSystemdAnalyzeVerify(t *testing.T) {
	for _, file := range []string{unitFile, followUnitFile} {
		out, err := analyze(t, file, "--man=no", "verify")
		for line := range strings.Lines(out) {
			if strings.Contains(line, "lockstep") { // ignore other units of this machine
				t.Errorf("systemd-analyze verify: %s", line)
			}
		}
		if err != nil {
			t.Errorf("systemd-analyze verify: %v\n%s", err, out)
		}
	}
}

// TestUnitIsHardened requires an exposure level of at most 1.5 out of 10.
func TestUnitIsHardened(t *testing.T) {
	for _, file := range []string{unitFile, followUnitFile} {
		out, err := analyze(t, file, "security", "--offline=true", "--threshold=15")
		if err != nil {
			t.Errorf("systemd-analyze security: %v\n%s", err, out)
		}
		t.Log(regexp.MustCompile(`Overall exposure level.*`).FindString(out))
	}
}
