package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/redistest"
)

// examined runs lockstep doctor and returns its checks by name.
func examined(t *testing.T, code int, args ...string) map[string]check {
	t.Helper()
	stdout, stderr, got := runLockstep(t, nil, append([]string{"doctor", "--json"}, args...)...)
	if got != code {
		t.Fatalf("exit code %d, want %d: %s%s", got, code, stdout, stderr)
	}
	var checks []check
	if err := json.Unmarshal([]byte(stdout), &checks); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	found := map[string]check{}
	for _, c := range checks {
		if found[c.Name].Name != "" || c.Text == "" {
			t.Errorf("check %+v is there twice, or says nothing", c)
		}
		found[c.Name] = c
	}
	return found
}

func TestDoctorLooksAtRedis(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string                                         // of redis-server
		set  func(t *testing.T, client redis.UniversalClient) // before the examination
		code int
		want map[string]string // check → verdict, and a word of its text
	}{
		"in good health": {
			args: []string{"--appendonly", "yes", "--appendfsync", "always"},
			want: map[string]string{"redis": "ok", "redis persistence": "ok always", "redis memory": "ok", "redis scripts": "ok", "redis clock": "ok", "redis role": "ok"},
		},
		"nothing persists":        {args: []string{"--appendonly", "no"}, want: map[string]string{"redis persistence": "warn set appendonly yes"}},
		"the kernel decides when": {args: []string{"--appendonly", "yes", "--appendfsync", "no"}, want: map[string]string{"redis persistence": "warn everysec"}},
		"every second":            {args: []string{"--appendonly", "yes"}, want: map[string]string{"redis persistence": "ok 2 s"}},
		"keys are evicted": {
			args: []string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"}, code: exitFailed,
			want: map[string]string{"redis memory": "fail set noeviction"},
		},
		"keys would be evicted": {args: []string{"--maxmemory-policy", "allkeys-lru"}, want: map[string]string{"redis memory": "warn set noeviction"}},
		"memory is full": {
			code: exitFailed,
			set: func(t *testing.T, client redis.UniversalClient) {
				must(client.ConfigSet(context.Background(), "maxmemory", "1000").Result())(t) // less than it has
			},
			want: map[string]string{"redis scripts": "fail memory", "redis memory": "warn raise maxmemory"},
		},
		"a replica": {
			code: exitFailed,
			set: func(t *testing.T, client redis.UniversalClient) {
				must(client.SlaveOf(context.Background(), "127.0.0.1", "1").Result())(t)
			},
			want: map[string]string{"redis role": "fail master", "redis scripts": "fail refused"},
		},
		"little is permitted": {
			set: func(t *testing.T, client redis.UniversalClient) {
				must(client.Do(context.Background(), "ACL", "SETUSER", "default", "-info", "-config").Result())(t)
			},
			want: map[string]string{"redis version": "warn 6.2", "redis persistence": "warn CONFIG", "redis memory": "warn CONFIG", "redis scripts": "ok"},
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

func TestDoctorLooksAtTheVolume(t *testing.T) {
	root := t.TempDir()
	found := examined(t, exitDone, "--root", root)
	for _, name := range []string{"volume", "hard links", "rename over a link", "file locks", "sync", "exchange of names", "case"} {
		if found[name].Verdict != verdictOK {
			t.Errorf("%s: %+v", name, found[name])
		}
	}
	if c := found["redis"]; c.Verdict != verdictWarn || !strings.Contains(c.Text, "embedded") {
		t.Errorf("without a Redis: %+v", c)
	}
	if entries := must(os.ReadDir(filepath.Join(root, ".lockstep")))(t); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
	if c := examined(t, exitFailed, "--root", root, "--min-free-bytes", "1152921504606846976")["free space"]; c.Verdict != verdictFail || !strings.Contains(c.Text, "min-free-bytes") {
		t.Errorf("on a volume without room: %+v", c)
	}
	if c := examined(t, exitDone, "--root", root, "--slots", "4096")["open files"]; c.Verdict != verdictWarn {
		t.Errorf("with many slots: %+v", c)
	}
	file := filepath.Join(root, "file")
	must(0, os.WriteFile(file, nil, 0o644))(t)
	if c := examined(t, exitFailed, "--root", file)["volume"]; c.Verdict != verdictFail || !strings.Contains(c.Text, "--root") {
		t.Errorf("at a file: %+v", c)
	}
	if c := examined(t, exitFailed, "--redis", "redis://127.0.0.1:1", "--root", root)["redis"]; c.Verdict != verdictFail {
		t.Errorf("with a Redis that is away: %+v", c)
	}
	tmpfs := examined(t, exitDone, "--root", filepath.Join("/dev/shm", filepath.Base(root)))
	t.Cleanup(func() { os.RemoveAll(filepath.Join("/dev/shm", filepath.Base(root))) })
	if c := tmpfs["file system"]; c.Verdict != verdictWarn || !strings.Contains(c.Text, "in memory") {
		t.Errorf("in memory: %+v", c)
	}
}

func TestDoctorKnowsVersionsAndClocks(t *testing.T) {
	for v, want := range map[string]string{"6.0.16": verdictFail, "5": verdictFail, "6.2.0": verdictWarn, "7.0.15": verdictOK, "10.1": verdictOK, "": verdictWarn} {
		if c := redisVersion(v); c.Verdict != want {
			t.Errorf("version %q: %+v, want %s", v, c, want)
		}
	}
	sent := time.Now()
	for apart, want := range map[time.Duration]string{0: verdictOK, time.Second: verdictOK, -time.Minute: verdictWarn, 3 * time.Second: verdictWarn} {
		if c := redisClock(sent.Add(apart), sent, time.Millisecond); c.Verdict != want {
			t.Errorf("%v apart: %+v, want %s", apart, c, want)
		}
	}
}
