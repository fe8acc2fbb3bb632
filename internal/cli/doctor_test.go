package cli

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/doctor"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
)

// examined runs lockstep doctor and returns its checks by name.
func examined(t *testing.T, code int, args ...string) map[string]doctor.Check {
	t.Helper()
	stdout, stderr, got := proctest.RunLockstep(t, nil, append([]string{"doctor", "--json"}, args...)...)
	if got != code {
		t.Fatalf("exit code %d, want %d: %s%s", got, code, stdout, stderr)
	}
	var checks []doctor.Check
	if err := json.Unmarshal([]byte(stdout), &checks); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	found := map[string]doctor.Check{}
	for _, c := range checks {
		if found[c.Name].Name != "" || c.Text == "" {
			t.Errorf("check %+v is duplicated or has no text", c)
		}
		found[c.Name] = c
	}
	return found
}

func TestDoctorChecksRedis(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string                                         // for redis-server
		set  func(t *testing.T, client redis.UniversalClient) // called before doctor
		code int
		want map[string]string // verdict and a word of the text, by check
	}{
		"recommended settings": {
			args: []string{"--appendonly", "yes", "--appendfsync", "always"},
			want: map[string]string{"redis": "ok", "redis persistence": "ok always", "redis memory": "ok", "redis scripts": "ok", "redis clock": "ok", "redis role": "ok"},
		},
		"no persistence":      {args: []string{"--appendonly", "no"}, want: map[string]string{"redis persistence": "warn set appendonly yes"}},
		"fsync by the kernel": {args: []string{"--appendonly", "yes", "--appendfsync", "no"}, want: map[string]string{"redis persistence": "warn appendfsync no"}},
		"fsync pauses during a rewrite": {
			args: []string{"--appendonly", "yes", "--appendfsync", "always", "--no-appendfsync-on-rewrite", "yes"},
			want: map[string]string{"redis persistence": "warn no-appendfsync-on-rewrite"},
		},
		"eviction with a memory limit": {
			args: []string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"}, code: term.ExitFailed,
			want: map[string]string{"redis memory": "fail set noeviction"},
		},
		"eviction without a memory limit": {args: []string{"--maxmemory-policy", "allkeys-lru"}, want: map[string]string{"redis memory": "warn set noeviction"}},
		"memory is full": {
			code: term.ExitFailed,
			set: func(t *testing.T, client redis.UniversalClient) {
				proctest.Must(client.ConfigSet(context.Background(), "maxmemory", "1000").Result())(t) // less than it uses
			},
			want: map[string]string{"redis scripts": "fail memory", "redis memory": "warn raise maxmemory"},
		},
		"a replica": {
			code: term.ExitFailed,
			set: func(t *testing.T, client redis.UniversalClient) {
				proctest.Must(client.SlaveOf(context.Background(), "127.0.0.1", "1").Result())(t)
			},
			want: map[string]string{"redis role": "fail master", "redis scripts": "fail refused"},
		},
		"few permissions": {
			set: func(t *testing.T, client redis.UniversalClient) {
				proctest.Must(client.Do(context.Background(), "ACL", "SETUSER", "default", "-info", "-config").Result())(t)
			},
			want: map[string]string{"redis version": "warn 6.2", "redis persistence": "warn could not be determined", "redis memory": "warn CONFIG", "redis scripts": "ok"},
		},
		"CONFIG is refused, appendonly is off": {
			set: func(t *testing.T, client redis.UniversalClient) {
				proctest.Must(client.Do(context.Background(), "ACL", "SETUSER", "default", "-config").Result())(t)
			},
			want: map[string]string{"redis persistence": "warn appendonly is off"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.StartReal(t, tc.args...)
			if tc.set != nil {
				tc.set(t, server.Client())
			}
			found := examined(t, tc.code, "--redis", server.URL(), "--root", t.TempDir())
			for check, want := range tc.want {
				verdict, word, _ := strings.Cut(want, " ")
				if got := found[check]; got.Verdict != verdict || !strings.Contains(got.Text, word) {
					t.Errorf("%s: %+v, want %s", check, got, want)
				}
			}
		})
	}
}

func TestDoctorChecksVolume(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	found := examined(t, term.ExitDone, "--root", root)
	for _, name := range []string{"volume", "file locks", "sync"} {
		if found[name].Verdict != doctor.VerdictOK {
			t.Errorf("%s: %+v", name, found[name])
		}
	}
	if c := found["redis"]; c.Verdict != doctor.VerdictWarn || !strings.Contains(c.Text, "embedded") {
		t.Errorf("without Redis: %+v", c)
	}
	if entries := proctest.Must(os.ReadDir(filepath.Join(root, ".lockstep")))(t); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
	if c := examined(t, term.ExitFailed, "--root", root, "--limits", "min-free-bytes=1152921504606846976")["free space"]; c.Verdict != doctor.VerdictFail || !strings.Contains(c.Text, "min-free-bytes") {
		t.Errorf("full volume: %+v", c)
	}
	if c := examined(t, term.ExitDone, "--root", root, "--slots", "4096")["open files"]; c.Verdict != doctor.VerdictWarn {
		t.Errorf("with many slots: %+v", c)
	}
	file := filepath.Join(root, "file")
	proctest.Must(0, os.WriteFile(file, nil, 0o644))(t)
	if c := examined(t, term.ExitFailed, "--root", file)["volume"]; c.Verdict != doctor.VerdictFail || !strings.Contains(c.Text, "--root") {
		t.Errorf("root is a file: %+v", c)
	}
	if c := examined(t, term.ExitFailed, "--redis", "redis://127.0.0.1:1", "--root", root)["redis"]; c.Verdict != doctor.VerdictFail {
		t.Errorf("unreachable Redis: %+v", c)
	}
	tmpfs := examined(t, term.ExitDone, "--root", filepath.Join("/dev/shm", filepath.Base(root)))
	t.Cleanup(func() { os.RemoveAll(filepath.Join("/dev/shm", filepath.Base(root))) })
	if c := tmpfs["file system"]; c.Verdict != doctor.VerdictWarn || !strings.Contains(c.Text, "in memory") {
		t.Errorf("in memory: %+v", c)
	}
}

func TestDoctorChecksVersionsAndClocks(t *testing.T) {
	t.Parallel()
	for v, want := range map[string]string{"6.0.16": doctor.VerdictFail, "5": doctor.VerdictFail, "6.2.0": doctor.VerdictWarn, "7.0.15": doctor.VerdictOK, "10.1": doctor.VerdictOK, "": doctor.VerdictWarn} {
		if c := doctor.RedisVersion(v); c.Verdict != want {
			t.Errorf("version %q: %+v, want %s", v, c, want)
		}
	}
	sent := time.Now()
	for apart, want := range map[time.Duration]string{0: doctor.VerdictOK, time.Second: doctor.VerdictOK, -time.Minute: doctor.VerdictWarn, 3 * time.Second: doctor.VerdictWarn} {
		if c := doctor.RedisClock(sent.Add(apart), sent, time.Millisecond); c.Verdict != want {
			t.Errorf("%v apart: %+v, want %s", apart, c, want)
		}
	}
}
