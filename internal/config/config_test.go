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

func TestPrecedence(t *testing.T) {
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

func TestInvalidSettings(t *testing.T) {
	for name, tc := range map[string]struct {
		args    []string
		file    string
		environ []string
		want    string
	}{
		"duration without unit":         {file: "tree-grace: 300\n", want: "tree-grace: want a duration with its unit"},
		"fractional slots":              {file: "slots: 2.7\n", want: "slots: want a whole number"},
		"boolean slots":                 {file: "slots: true\n", want: "slots: want a whole number"},
		"list as root":                  {file: "root: [a, b]\n", want: "root: want a string"},
		"numeric role":                  {file: "roles: [1]\n", want: "roles: want a list of strings"},
		"no role":                       {args: []string{"--roles", ""}, want: "roles: want at least one of receiver, worker"},
		"password without scheme":       {args: []string{"--redis", "u:hunter2@h:1"}, want: "redis-password-file"},
		"unknown key":                   {file: "leese: 10s\n", want: `unknown setting "leese"`},
		"nested key":                    {file: "lock:\n  wait: 3s\n", want: `unknown setting`},
		"file is not YAML":              {file: "\t{", want: "config file"},
		"prefix without hash tag":       {args: []string{"--prefix", "lockstep:"}, want: "hash tag"},
		"lock-wait below lease":         {args: []string{"--lock-wait", "5s"}, want: "lock-wait 5s is shorter than lease 10s"},
		"invalid duration":              {environ: []string{"LOCKSTEP_LEASE=soon"}, want: "LOCKSTEP_LEASE"},
		"zero slots":                    {args: []string{"--slots", "0"}, want: "slots 0"},
		"unknown role":                  {args: []string{"--roles", "poet"}, want: `"poet"`},
		"public receiver without token": {args: []string{"--listen", ":8080"}, want: "api-token-file"},
		"address without port":          {args: []string{"--listen", "127.0.0.1"}, want: `listen "127.0.0.1": want host:port`},
		"invalid port":                  {args: []string{"--admin-listen", "127.0.0.1:httq"}, want: `admin-listen "127.0.0.1:httq": want host:port`},
		"password in an argument":       {args: []string{"--redis", "redis://u:hunter2@h:1"}, want: "redis-password-file"},
		"unknown Redis scheme":          {args: []string{"--redis", "http://h"}, want: "redis:"},
		"missing secret file":           {args: []string{"--api-token-file", "/nonexistent"}, want: "api-token-file"},
		"short API token":               {environ: []string{"LOCKSTEP_API_TOKEN=x"}, want: "LOCKSTEP_API_TOKEN: shorter than 16 bytes, so it could be guessed; create a token with: openssl rand -hex 32"},
		"API token of 15 bytes":         {environ: []string{"LOCKSTEP_API_TOKEN=123456789abcdef"}, want: "LOCKSTEP_API_TOKEN: shorter than 16 bytes"},
		"invalid boolean":               {file: "adopt: perhaps\n", want: "adopt: want true or false"},
		"fractional bytes":              {file: "max-repo-bytes: 1.5\n", want: "max-repo-bytes: want a whole number"},
		"zero repository size":          {args: []string{"--max-repo-bytes", "0"}, want: "max-repo-bytes 0"},
		"negative free bytes":           {args: []string{"--min-free-bytes", "-1"}, want: "min-free-bytes -1"},
		"gc interval too short":         {args: []string{"--gc-every", "1ms"}, want: "gc-every 1ms"},
		"zero circuit failures":         {args: []string{"--circuit-failures", "0"}, want: "circuit-failures 0"},
		"zero circuit duration":         {args: []string{"--circuit-open", "0s"}, want: "circuit-open 0s"},
		"unknown log level":             {args: []string{"--log-level", "loud"}, want: `log-level "loud"`},
		"spool too small":               {args: []string{"--spool-max-bytes", "1"}, want: "spool-max-bytes 1"},
		"deliveries-keep too short":     {args: []string{"--deliveries-keep", "1s"}, want: "deliveries-keep 1s"},
		"zero stream length":            {args: []string{"--stream-max-length", "0"}, want: "stream-max-length 0"},
		"results-keep too short":        {args: []string{"--results-keep", "1s"}, want: "results-keep 1s"},
		"dead-max-age too short":        {args: []string{"--dead-max-age", "1s"}, want: "dead-max-age 1s"},
		"dead-max-length too large":     {args: []string{"--dead-max-length", "100000"}, want: "dead-max-length 100000"},
		"dead-max-bytes too small":      {args: []string{"--dead-max-bytes", "1"}, want: "dead-max-bytes 1"},
		"retry-base above retry-max":    {args: []string{"--retry-base", "10m"}, want: "retry-base"},
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

func TestNumbersAndBooleans(t *testing.T) {
	c, err := config.Load(flags(t, "--gc-every", "0s"), write(t, "adopt: false\nmax-repo-bytes: 68719476736\n"), []string{"LOCKSTEP_MIN_FREE_BYTES=0"})
	if err != nil || c.Adopt || c.MaxRepoBytes != 64<<30 || c.MinFreeBytes != 0 || c.GCEvery != 0 {
		t.Fatalf("adopt %v, bytes %d and %d, gc-every %v, error %v", c.Adopt, c.MaxRepoBytes, c.MinFreeBytes, c.GCEvery, err)
	}
	c, err = config.Load(flags(t), "", []string{"LOCKSTEP_ADOPT=false"})
	if err != nil || c.Adopt || c.MaxRepoBytes != 32<<30 || c.GCEvery == 0 {
		t.Fatalf("adopt %v, bytes %d, error %v", c.Adopt, c.MaxRepoBytes, err)
	}
	if c, err = config.Load(flags(t), "", nil); err != nil || !c.Adopt {
		t.Fatalf("adopt %v by default, error %v", c.Adopt, err)
	}
}

func TestPublicReceiverWithToken(t *testing.T) {
	c, err := config.Load(flags(t, "--listen", ":8080"), "", []string{"LOCKSTEP_API_TOKEN=t0ken-of-the-test"})
	if err != nil || c.APIToken() != "t0ken-of-the-test" {
		t.Fatalf("token %q, error %v", c.APIToken(), err)
	}
}

func TestPublicReceiverWithWebhookSources(t *testing.T) {
	for name, tc := range map[string]struct{ args, environ []string }{
		"folder":        {args: []string{"--listen", ":8080", "--hooks", "/etc/lockstep/hooks"}},
		"variable":      {args: []string{"--listen", ":8080"}, environ: []string{"LOCKSTEP_HOOK_GITHUB_FORGE=github"}},
		"without spool": {args: []string{"--listen", ":8080", "--hooks", "x", "--spool", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := config.Load(flags(t, tc.args...), "", tc.environ); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestEmptyValuesAreIgnored(t *testing.T) {
	c, err := config.Load(flags(t), write(t, "root:\nslots:\nlease: 20s\n"), []string{"LOCKSTEP_LEASE=", "LOCKSTEP_ROOT=", "LOCKSTEP_ROLES=worker, receiver"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Root != "repos" || c.Slots < 1 || c.Lease != 20*time.Second || !c.Has(config.RoleWorker) || !c.Has(config.RoleReceiver) {
		t.Errorf("root %q, slots %d, lease %v, roles %q", c.Root, c.Slots, c.Lease, c.Roles)
	}
}
