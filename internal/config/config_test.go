package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"lockstep/internal/config"
)

func flags(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	config.AddFlags(fs, config.Common|config.Working|config.Serving)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return fs
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lockstep.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAFlagWinsOverAVariableOverTheFileOverTheDefault(t *testing.T) {
	file := write(t, "lease: 20s\nslots: 3\nroot: /from/file\nroles: [worker]\n")
	environ := []string{"LOCKSTEP_SLOTS=5", "LOCKSTEP_ROOT=/from/env", "LOCKSTEP_CREDENTIAL_X_PASSWORD=p", "PATH=/bin"}
	c, err := config.Load(flags(t, "--root", "/from/flag"), file, environ)
	if err != nil {
		t.Fatal(err)
	}
	if c.Root != "/from/flag" || c.Slots != 5 || c.Lease != 20*time.Second || c.LockWait != time.Minute {
		t.Errorf("root %s, slots %d, lease %v, lock-wait %v", c.Root, c.Slots, c.Lease, c.LockWait)
	}
	if c.Has(config.RoleReceiver) || !c.Has(config.RoleWorker) {
		t.Errorf("roles %v, want the file's", c.Roles)
	}
}

func TestNonsenseIsRefusedByName(t *testing.T) {
	for name, tc := range map[string]struct {
		args    []string
		file    string
		environ []string
		want    string
	}{
		"a duration without a unit":         {file: "tree-grace: 300\n", want: "tree-grace: want a duration with its unit"},
		"half a slot":                       {file: "slots: 2.7\n", want: "slots: want a whole number"},
		"slots, yes":                        {file: "slots: true\n", want: "slots: want a whole number"},
		"two roots":                         {file: "root: [a, b]\n", want: "root: want a string"},
		"a role that is a number":           {file: "roles: [1]\n", want: "roles: want a list of strings"},
		"no role at all":                    {args: []string{"--roles", ""}, want: "roles: want at least one of receiver, worker"},
		"a password, and no scheme":         {args: []string{"--redis", "u:hunter2@h:1"}, want: "redis-password-file"},
		"an unknown key":                    {file: "leese: 10s\n", want: `unknown setting "leese"`},
		"a nested key":                      {file: "lock:\n  wait: 3s\n", want: `unknown setting`},
		"a file that is not YAML":           {file: "\t{", want: "config file"},
		"a prefix without a hash tag":       {args: []string{"--prefix", "lockstep:"}, want: "hash tag"},
		"a wait shorter than a lease":       {args: []string{"--lock-wait", "5s"}, want: "lock-wait 5s is shorter than lease 10s"},
		"a duration that is none":           {environ: []string{"LOCKSTEP_LEASE=soon"}, want: "LOCKSTEP_LEASE"},
		"no slots":                          {args: []string{"--slots", "0"}, want: "slots 0"},
		"a role that is none":               {args: []string{"--roles", "poet"}, want: `"poet"`},
		"an unguarded public receiver":      {args: []string{"--listen", ":8080"}, want: "api-token-file"},
		"an address without a port":         {args: []string{"--listen", "127.0.0.1"}, want: `listen "127.0.0.1": want host:port`},
		"a port that is none":               {args: []string{"--admin-listen", "127.0.0.1:httq"}, want: `admin-listen "127.0.0.1:httq": want host:port`},
		"a password in an argument":         {args: []string{"--redis", "redis://u:hunter2@h:1"}, want: "redis-password-file"},
		"a Redis URL of another kind":       {args: []string{"--redis", "http://h"}, want: "redis:"},
		"a missing secret file":             {args: []string{"--api-token-file", "/nonexistent"}, want: "api-token-file"},
		"adopted perhaps":                   {file: "adopt: perhaps\n", want: "adopt: want true or false"},
		"half a byte":                       {file: "max-repo-bytes: 1.5\n", want: "max-repo-bytes: want a whole number"},
		"room for nothing":                  {args: []string{"--max-repo-bytes", "0"}, want: "max-repo-bytes 0"},
		"less than no room":                 {args: []string{"--min-free-bytes", "-1"}, want: "min-free-bytes -1"},
		"an endless patrol":                 {args: []string{"--patrol-every", "1ms"}, want: "patrol-every 1ms"},
		"a circuit that opens by itself":    {args: []string{"--circuit-failures", "0"}, want: "circuit-failures 0"},
		"a circuit that never opens":        {args: []string{"--circuit-open", "0s"}, want: "circuit-open 0s"},
		"a log level that is none":          {args: []string{"--log-level", "loud"}, want: `log-level "loud"`},
		"a spool for nothing":               {args: []string{"--spool-max-bytes", "1"}, want: "spool-max-bytes 1"},
		"deliveries that nobody remembers":  {args: []string{"--deliveries-keep", "1s"}, want: "deliveries-keep 1s"},
		"a stream of nothing":               {args: []string{"--stream-max-length", "0"}, want: "stream-max-length 0"},
		"results that nobody can read":      {args: []string{"--results-keep", "1s"}, want: "results-keep 1s"},
		"letters that nobody can read":      {args: []string{"--dead-max-age", "1s"}, want: "dead-max-age 1s"},
		"letters beyond counting":           {args: []string{"--dead-max-length", "100000"}, want: "dead-max-length 100000"},
		"a first retry later than the last": {args: []string{"--retry-base", "10m"}, want: "retry-base"},
	} {
		t.Run(name, func(t *testing.T) {
			path := ""
			if tc.file != "" {
				path = write(t, tc.file)
			}
			_, err := config.Load(flags(t, tc.args...), path, tc.environ)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v, want one with %q", err, tc.want)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Fatalf("the error repeats a password: %v", err)
			}
		})
	}
}

func TestNumbersAndSwitches(t *testing.T) {
	c, err := config.Load(flags(t, "--patrol-every", "0s"), write(t, "adopt: false\nmax-repo-bytes: 68719476736\n"), []string{"LOCKSTEP_MIN_FREE_BYTES=0"})
	if err != nil || c.Adopt || c.MaxRepoBytes != 64<<30 || c.MinFreeBytes != 0 || c.PatrolEvery != 0 {
		t.Fatalf("adopt %v, bytes %d and %d, patrol %v, error %v", c.Adopt, c.MaxRepoBytes, c.MinFreeBytes, c.PatrolEvery, err)
	}
	c, err = config.Load(flags(t), "", []string{"LOCKSTEP_ADOPT=false"})
	if err != nil || c.Adopt || c.MaxRepoBytes != 32<<30 || c.PatrolEvery == 0 {
		t.Fatalf("adopt %v, bytes %d, error %v", c.Adopt, c.MaxRepoBytes, err)
	}
	if c, err = config.Load(flags(t), "", nil); err != nil || !c.Adopt {
		t.Fatalf("adopt %v by default, error %v", c.Adopt, err)
	}
}

func TestATokenOpensThePublicReceiver(t *testing.T) {
	c, err := config.Load(flags(t, "--listen", ":8080"), "", []string{"LOCKSTEP_API_TOKEN=t0ken"})
	if err != nil || c.APIToken() != "t0ken" {
		t.Fatalf("token %q, error %v", c.APIToken(), err)
	}
}

func TestWebhookSourcesOpenThePublicReceiverToo(t *testing.T) {
	for name, tc := range map[string]struct{ args, environ []string }{
		"a folder":    {args: []string{"--listen", ":8080", "--hooks", "/etc/lockstep/hooks"}},
		"a variable":  {args: []string{"--listen", ":8080"}, environ: []string{"LOCKSTEP_HOOK_GITHUB_FORGE=github"}},
		"and no disk": {args: []string{"--listen", ":8080", "--hooks", "x", "--spool", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := config.Load(flags(t, tc.args...), "", tc.environ); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWhatIsEmptyIsNotSet(t *testing.T) {
	c, err := config.Load(flags(t), write(t, "root:\nslots:\nlease: 20s\n"), []string{"LOCKSTEP_LEASE=", "LOCKSTEP_ROOT=", "LOCKSTEP_ROLES=worker, receiver"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Root != "repos" || c.Slots < 1 || c.Lease != 20*time.Second || !c.Has(config.RoleWorker) || !c.Has(config.RoleReceiver) {
		t.Errorf("root %q, slots %d, lease %v, roles %q", c.Root, c.Slots, c.Lease, c.Roles)
	}
}
