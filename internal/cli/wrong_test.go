package cli

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
)

func TestInputErrorsAreOneActionableLine(t *testing.T) {
	testenv.SkipUnderRace(t)
	t.Parallel()
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		proctest.Must(0, os.WriteFile(path, []byte(content), 0o600))(t)
		return path
	}
	taken := proctest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = taken.Close() }) // after the subtests, which run in parallel
	const nobody = "redis://127.0.0.1:1"
	serve := []string{"serve", "--log-level", "error", "--root", filepath.Join(dir, "root")}

	for name, tc := range map[string]struct {
		args []string
		env  []string
		code int
		want string // in the error
	}{
		"missing config file":             {args: []string{"serve", "--config", "nowhere.yaml"}, code: term.ExitUsage, want: "config file nowhere.yaml: open nowhere.yaml: no such file"},
		"config file is a directory":      {args: []string{"serve", "--config", dir}, code: term.ExitUsage, want: "is a directory"},
		"config file is not YAML":         {args: []string{"serve", "--config", file("bad.yaml", "lease: [\n")}, code: term.ExitUsage, want: "bad.yaml: yaml: line 1"},
		"invalid duration":                {args: []string{"serve", "--lease", "soon"}, code: term.ExitUsage, want: `"soon" for "--lease" flag`},
		"invalid duration in a variable":  {args: []string{"serve"}, env: []string{"LOCKSTEP_LEASE=soon"}, code: term.ExitUsage, want: `LOCKSTEP_LEASE "soon": want a duration with its unit, such as 90s`},
		"invalid number in a variable":    {args: []string{"serve"}, env: []string{"LOCKSTEP_SLOTS=many"}, code: term.ExitUsage, want: `LOCKSTEP_SLOTS "many": want a whole number`},
		"a root that is a file":           {args: []string{"serve", "--log-level", "error", "--root", file("root-file", "")}, code: term.ExitFailed, want: "root-file"},
		"a port in use":                   {args: append(serve, "--listen", taken.Addr().String()), code: term.ExitFailed, want: "address already in use; choose another address with --listen"},
		"an invalid URL for Redis":        {args: []string{"status", "--redis", "redis://127.0.0.1:port"}, code: term.ExitUsage, want: "redis: the URL does not parse; want redis://host:port"},
		"a password in an argument":       {args: []string{"status", "--redis", "redis://:hunter2@127.0.0.1:1"}, code: term.ExitUsage, want: "use --redis-password-file or LOCKSTEP_REDIS"},
		"Redis is down":                   {args: []string{"status", "--redis", nobody}, code: term.ExitUnavailable, want: "redis at redis://127.0.0.1:1 does not answer; start it, or name another with --redis"},
		"a missing socket":                {args: []string{"status", "--redis", "unix:///nowhere.sock"}, code: term.ExitUnavailable, want: "does not answer"},
		"missing password file":           {args: []string{"status", "--redis", nobody, "--redis-password-file", "nowhere"}, code: term.ExitUsage, want: "redis-password-file: open nowhere"},
		"missing CA file":                 {args: append(serve, "--ca-file", "nowhere"), code: term.ExitUsage, want: "ca-file: open nowhere"},
		"missing known-hosts file":        {args: append(serve, "--known-hosts", "nowhere"), code: term.ExitUsage, want: "known-hosts: open nowhere"},
		"missing credentials directory":   {args: append(serve, "--credentials", "nowhere"), code: term.ExitUsage, want: "credentials: stat nowhere"},
		"an invalid proxy":                {args: append(serve, "--proxy", "nonsense"), code: term.ExitUsage, want: "proxy: want a URL such as http://proxy.example.org:3128"},
		"invalid hosts":                   {args: append(serve, "--hosts", "a/b"), code: term.ExitUsage, want: `hosts: "a/b" is not a host name`},
		"invalid hosts for notifications": {args: append(serve, "--notify-hosts", "***"), code: term.ExitUsage, want: `notify-hosts: "***" is not a host name`},
		"a URL with a password":           {args: []string{"sync", "https://bot:hunter2@example.com/a/b"}, code: term.ExitUsage, want: "url carries credentials; name a credential instead"},
		"an unknown scheme for Git":       {args: []string{"sync", "ftp://example.com/a/b"}, code: term.ExitUsage, want: "use http or https, or ssh"},
		"an unknown command":              {args: []string{"srve"}, code: term.ExitUsage, want: `unknown command "srve" for "lockstep", did you mean serve?`},
		"an unknown flag":                 {args: []string{"serve", "--rot", "x"}, code: term.ExitUsage, want: "unknown flag: --rot; see lockstep serve --help"},
		"webhook sources are a file":      {args: append(serve, "--listen", "127.0.0.1:0", "--hooks", file("hooks", "")), code: term.ExitUsage, want: "webhook sources: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refusedWith(t, tc.env, tc.args, tc.code, tc.want)
		})
	}
}

func TestRedisRefusesPassword(t *testing.T) {
	t.Parallel()
	server := redistest.StartReal(t)
	proctest.Must(server.Client().ConfigSet(t.Context(), "requirepass", "sesame").Result())(t)
	password := filepath.Join(t.TempDir(), "password")
	proctest.Must(0, os.WriteFile(password, []byte("hunter2\n"), 0o600))(t)
	const want = "refused the command; check its password, the user's permissions and --prefix"
	for _, args := range [][]string{
		{"status", "--redis", server.URL()}, {"tail", "--redis", server.URL()}, {"dead", "ls", "--redis", server.URL()},
		{"locks", "ls", "--redis", server.URL(), "--redis-password-file", password},
		{"serve", "--roles", "worker", "--root", t.TempDir(), "--redis", server.URL()},
	} {
		refusedWith(t, nil, args, term.ExitFailed, want)
	}
	refusedWith(t, []string{"LOCKSTEP_REDIS=redis://:hunter2@" + server.Addr}, []string{"status"}, term.ExitFailed, want)
	proctest.Must(0, os.WriteFile(password, []byte("sesame\n"), 0o600))(t)
	if stdout, stderr, code := proctest.RunLockstep(t, nil, "status", "--redis", server.URL(), "--redis-password-file", password); code != term.ExitDone {
		t.Errorf("with the password: exit code %d\n%s%s", code, stdout, stderr)
	}
}

// refusedWith runs lockstep and checks its exit code, and that its only output is one line of error that contains want and
// no password.
func refusedWith(t *testing.T, env, args []string, code int, want string) {
	t.Helper()
	stdout, stderr, got := proctest.RunLockstep(t, env, args...)
	if got != code || stdout != "" || !strings.HasPrefix(stderr, "lockstep: ") || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, want) {
		t.Errorf("lockstep %s: exit code %d, want %d and %q in one line:\n%s%s", strings.Join(args, " "), got, code, want, stdout, stderr)
	}
	if strings.Contains(stderr, "hunter2") {
		t.Errorf("lockstep %s repeats a password: %s", strings.Join(args, " "), stderr)
	}
}
