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
		"numeric role":                  {file: "roles: [1]\n", want: `unknown role "1"`},
		"boolean in a list":             {file: "roles: [true]\n", want: "roles: want a list of strings"},
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
		"master's password":             {args: []string{"--redis", "redis+sentinel://h:1?master_name=m&password=hunter2"}, want: "redis-password-file"},
		"no file of a password":         {args: []string{"--redis", "redis+sentinel://h:1?master_name=m&sentinel_password_file=/nonexistent"}, want: "sentinel_password_file: open /nonexistent"},
		"unknown Redis scheme":          {args: []string{"--redis", "http://h"}, want: "redis:"},
		"missing secret file":           {args: []string{"--api-token-file", "/nonexistent"}, want: "api-token-file"},
		"short API token":               {environ: []string{"LOCKSTEP_API_TOKEN=x"}, want: "LOCKSTEP_API_TOKEN: shorter than 16 bytes, so it could be guessed; create a token with: openssl rand -hex 32"},
		"API token of 15 bytes":         {environ: []string{"LOCKSTEP_API_TOKEN=123456789abcdef"}, want: "LOCKSTEP_API_TOKEN: shorter than 16 bytes"},
		"fractional bytes":              {file: "limits: max-repo-bytes=1.5\n", want: `limits: max-repo-bytes "1.5": want a whole number of bytes`},
		"zero repository size":          {args: []string{"--limits", "max-repo-bytes=0"}, want: "limits: max-repo-bytes 0: want at least 1MiB"},
		"negative free bytes":           {args: []string{"--limits", "min-free-bytes=-1"}, want: "limits: min-free-bytes -1"},
		"map of limits":                 {file: "limits: {max-repo-bytes: 1GiB}\n", want: "limits: want a list of strings"},
		"unknown scale":                 {environ: []string{"LOCKSTEP_LIMITS=huge"}, want: `limits "huge": want default or large`},
		"two scales":                    {args: []string{"--limits", "large,default"}, want: "limits: large and default exclude each other"},
		"unknown limit":                 {args: []string{"--limits", "max-pack=1GiB"}, want: `limits: no limit is called "max-pack"`},
		"limit without a value":         {args: []string{"--limits", "max-pack-bytes="}, want: `limits: max-pack-bytes ""`},
		"timeout without a unit":        {args: []string{"--limits", "fetch-timeout=90"}, want: `limits: fetch-timeout "90"`},
		"requests of a host":            {args: []string{"--host-requests", "github.com=0"}, want: `host-requests "github.com=0": want a maximum of at least 1`},
		"poll interval too short":       {args: []string{"--poll-every", "1ms"}, want: "poll-every 1ms"},
		"cell with capitals":            {args: []string{"--cell", "EU"}, want: `cell "EU"`},
		"unknown log level":             {args: []string{"--log-level", "loud"}, want: `log-level "loud"`},
		"results-keep too short":        {args: []string{"--results-keep", "1s"}, want: "results-keep 1s"},
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

func TestLimits(t *testing.T) {
	c, err := config.Load(flags(t), "", nil)
	if l := c.Limits; err != nil || l.MaxTreeFiles != 1_000_000 || l.MaxFileBytes != 512<<20 || l.MaxRepoBytes != 32<<30 || l.FetchTimeout != 30*time.Minute || l.MaxVolumeBytes != 0 {
		t.Errorf("by default %+v, %v", l, err)
	}
	file := write(t, "limits: [large, max-repo-bytes=64GiB, fetch-timeout=90m, max-tree-files=5]\n")
	c, err = config.Load(flags(t), file, nil)
	if l := c.Limits; err != nil || l.MaxTreeFiles != 5 || l.MaxFileBytes != 4<<30 || l.MaxRepoBytes != 64<<30 || l.FetchTimeout != 90*time.Minute || l.MinFreeBytes != 512<<20 {
		t.Errorf("in the file %+v, %v", l, err)
	}
	c, err = config.Load(flags(t), file, []string{"LOCKSTEP_LIMITS=min-free-bytes=0, max-pack-bytes=3GiB"}) // instead of the file's
	if l := c.Limits; err != nil || l.MinFreeBytes != 0 || l.MaxPackBytes != 3<<30 || l.MaxRepoBytes != 32<<30 {
		t.Errorf("in a variable %+v, %v", l, err)
	}
	c, err = config.Load(flags(t, "--limits", "max-volume-bytes=1TiB,large"), file, []string{"LOCKSTEP_LIMITS=default"})
	if l := c.Limits; err != nil || l.MaxVolumeBytes != 1<<40 || l.MaxTreeFiles != 8_000_000 || l.FetchTimeout != 2*time.Hour {
		t.Errorf("in a flag %+v, %v", l, err)
	}
}

func TestHostRequests(t *testing.T) {
	for name, tc := range map[string]struct {
		args    []string
		file    string
		environ []string
		usual   int
		single  int
	}{
		"default":         {usual: 16},
		"number":          {file: "host-requests: 8\n", usual: 8},
		"list":            {file: "host-requests: [8, github.com=3]\n", usual: 8, single: 3},
		"variable":        {environ: []string{"LOCKSTEP_HOST_REQUESTS=github.com=3"}, usual: 16, single: 3},
		"flag over a key": {args: []string{"--host-requests", "4,github.com=5"}, file: "host-requests: 8\n", usual: 4, single: 5},
	} {
		t.Run(name, func(t *testing.T) {
			path := ""
			if tc.file != "" {
				path = write(t, tc.file)
			}
			c, err := config.Load(flags(t, tc.args...), path, tc.environ)
			if usual, single := c.RequestsPerHost(); err != nil || usual != tc.usual || single["github.com"] != tc.single {
				t.Errorf("%d, %v, %v", usual, single, err)
			}
		})
	}
}

func TestPublicReceiverWithToken(t *testing.T) {
	c, err := config.Load(flags(t, "--listen", ":8080"), "", []string{"LOCKSTEP_API_TOKEN=t0ken-of-the-test"})
	if err != nil || c.APIToken() != "t0ken-of-the-test" {
		t.Fatalf("token %q, error %v", c.APIToken(), err)
	}
}

func TestAPITokenIsReadAgain(t *testing.T) {
	file := write(t, "the very first t0ken\n")
	c, err := config.Load(flags(t, "--api-token-file", file), "", []string{"LOCKSTEP_API_TOKEN=the t0ken of the variable"})
	if err != nil || c.APIToken() != "the very first t0ken" {
		t.Fatalf("token %q, error %v", c.APIToken(), err)
	}
	copied := c // as processes hand it on
	for _, step := range []struct{ content, want string }{
		{"the next, longer t0ken\n", "the next, longer t0ken"},
		{"", "the next, longer t0ken"},      // being written
		{"short", "the next, longer t0ken"}, // being written
		{"the last t0ken of all", "the last t0ken of all"},
	} {
		if err := os.WriteFile(file, []byte(step.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := copied.APIToken(); got != step.want {
			t.Errorf("after %q: token %q, want %q", step.content, got, step.want)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if got := c.APIToken(); got != "the last t0ken of all" {
		t.Errorf("without the file: token %q", got)
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
