package redisx_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/redistest"
	"lockstep/internal/redisx"
	"lockstep/internal/testenv"
)

func TestParse(t *testing.T) {
	for raw, want := range map[string]string{
		"127.0.0.1:6379":                         "redis://127.0.0.1:6379",
		"redis://u:hunter2@h:1/2?max_retries=9":  "redis://h:1/2",
		"rediss://h:1":                           "rediss://h:1",
		"unix:///run/redis.sock?db=1":            "unix:///run/redis.sock",
		"redis+sentinel://h:26379?master_name=m": "redis://h:26379",
		"rediss+cluster://h:1?addr=i:1":          "rediss://h:1",
	} {
		server, err := redisx.Parse(raw, nil)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if server.String() != want {
			t.Errorf("%s has the address %s, want %s", raw, server, want)
		}
		if err := server.Open().Close(); err != nil {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

func TestParseErrorsHideThePassword(t *testing.T) {
	for _, raw := range []string{"http://u:hunter2@h", "redis://u:hunter2@h:port", "redis+moon://u:hunter2@h", "redis+sentinel://u:hunter2@h", "redis://u:hunter2@h/db"} {
		_, err := redisx.Parse(raw, nil)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

func TestClientsDoNotRetry(t *testing.T) {
	server, err := redisx.Parse("redis://127.0.0.1:1?max_retries=5", func() (string, error) { return "secret", nil })
	if err != nil {
		t.Fatal(err)
	}
	client, ok := server.Open().(*redis.Client)
	if !ok {
		t.Fatal("the client of a standalone server is not a redis.Client")
	}
	defer client.Close()
	if opt := client.Options(); opt.MaxRetries != 0 && opt.MaxRetries != -1 {
		t.Errorf("max retries %d", opt.MaxRetries)
	}
}

func TestPasswordIsReadForEachConnection(t *testing.T) {
	t.Parallel()
	deployment := redistest.StartReal(t)
	admin, ctx := deployment.Client(), t.Context()
	set := func(password string) error {
		return admin.Do(ctx, "acl", "setuser", "app", "on", "resetpass", ">"+password, "~*", "+@all").Err()
	}
	var password atomic.Value
	password.Store("one")
	server := testenv.Must(redisx.Parse(strings.Replace(deployment.URL(), "redis://", "redis://app:of-the-url@", 1),
		func() (string, error) { return password.Load().(string), nil }))(t)
	client := server.Open()
	defer client.Close()
	testenv.Must(0, errors.Join(set("one"), client.Ping(ctx).Err()))(t)
	testenv.Must(0, set("two"))(t)
	if err := client.Ping(ctx).Err(); err != nil {
		t.Errorf("a connection with the old password: %v", err)
	}
	testenv.Must(0, admin.Do(ctx, "client", "kill", "user", "app").Err())(t)
	password.Store("two")
	for range 10 { // pooled connections are closed
		if err := client.Ping(ctx).Err(); err == nil {
			return
		}
	}
	t.Errorf("with the new password: %v", client.Ping(ctx).Err())
}

// TestSentinelPasswordIsReadForEachConnection connects through Sentinels whose password changes to a master with a user and
// password of its own.
func TestSentinelPasswordIsReadForEachConnection(t *testing.T) {
	t.Parallel()
	deployment, ctx := redistest.StartSentinel(t), t.Context()
	u := testenv.Must(url.Parse(deployment.URL()))(t)
	query := u.Query()
	var admins []*redis.Client
	for _, addr := range append(query["addr"], u.Host) {
		admin := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
		t.Cleanup(func() { _ = admin.Close() })
		admins = append(admins, admin)
	}
	former, file := "", filepath.Join(t.TempDir(), "password")
	rotate := func(password string) { // each connection of an administrator may be a new one
		for _, admin := range admins {
			_, err := admin.Pipelined(ctx, func(p redis.Pipeliner) error {
				p.AuthACL(ctx, "default", former)
				for _, user := range []string{"default", "watcher"} {
					p.Do(ctx, "acl", "setuser", user, "on", "resetpass", ">"+password, "+@all")
				}
				return nil
			})
			testenv.Must(0, err)(t)
		}
		former = password
	}
	write := func(password string) { testenv.Must(0, os.WriteFile(file, []byte(password+"\n"), 0o600))(t) }
	master := deployment.Master.Client()
	testenv.Must(0, master.Do(ctx, "acl", "setuser", "app", "on", ">of-the-master", "~*", "+@all").Err())(t)
	query.Set("username", "app")
	query.Set("sentinel_password_file", file)
	u.RawQuery = query.Encode()
	connect := func() error {
		server, err := redisx.Parse(u.String(), func() (string, error) { return "of-the-master", nil })
		if err != nil {
			return err
		}
		client := server.Open()
		defer client.Close()
		write(former) // after the start
		who, err := client.Do(ctx, "acl", "whoami").Text()
		if err == nil && who != "app" {
			t.Errorf("the user at the master is %s", who)
		}
		return err
	}

	rotate("one")
	write("zero")
	if err := connect(); err != nil {
		t.Errorf("with a password: %v", err)
	}
	rotate("two")
	if err := connect(); err != nil {
		t.Errorf("with a new password: %v", err)
	}
	u.User = url.User("watcher")
	if err := connect(); err != nil {
		t.Errorf("with a user: %v", err)
	}
	former = "wrong"
	if err := connect(); err == nil || redisx.Unavailable(err) {
		t.Errorf("with a wrong password: %v", err)
	}
	former = ""
	if err := connect(); err == nil || !strings.Contains(err.Error(), "sentinel_password_file: "+file+" is empty") {
		t.Errorf("with an empty file: %v", err)
	}
	if err := connect(); err == nil || !strings.Contains(err.Error(), "sentinel_password_file: "+file+" is empty") {
		t.Errorf("with an empty file at start: %v", err)
	}
}

func TestUnavailable(t *testing.T) {
	embedded, err := redisx.StartEmbedded()
	if err != nil {
		t.Fatal(err)
	}
	client := embedded.Open()
	defer client.Close()
	ctx := context.Background()
	if err := client.Do(ctx, "NONSENSE").Err(); err == nil || redisx.Unavailable(err) {
		t.Errorf("a rejected command counts as unavailable: %v", err)
	}
	if err := client.Get(ctx, "none").Err(); redisx.Unavailable(err) {
		t.Errorf("a missing key counts as unavailable: %v", err)
	}
	embedded.Close()
	if err := client.Ping(ctx).Err(); !redisx.Unavailable(err) {
		t.Errorf("a closed server does not count as unavailable: %v", err)
	}
	_, err = os.ReadDir(filepath.Join(t.TempDir(), "none"))
	if redisx.Unavailable(err) || redisx.Unavailable(&os.PathError{Op: "mkdir", Path: "/repos", Err: syscall.EROFS}) {
		t.Error("a file system error counts as unavailable")
	}
	if redisx.Unavailable(nil) || redisx.Unavailable(errors.New("mine")) {
		t.Error("nil or an unrelated error counts as unavailable")
	}
}

func TestKeysOfTheEmbeddedRedisExpire(t *testing.T) {
	t.Parallel()
	embedded, err := redisx.StartEmbedded()
	if err != nil {
		t.Fatal(err)
	}
	defer embedded.Close()
	client, ctx := embedded.Open(), context.Background()
	defer client.Close()
	began := time.Now()
	client.Set(ctx, "kept", "1", time.Hour)
	client.Set(ctx, "short", "1", time.Second)
	for deadline := time.Now().Add(10 * time.Second); client.Exists(ctx, "short").Val() == 1; {
		if time.Now().After(deadline) {
			t.Fatal("a key with a second to live is there after 10 s")
		}
		time.Sleep(10 * time.Millisecond)
	}
	left, lived := client.PTTL(ctx, "kept").Val(), time.Since(began)
	if least := time.Hour - lived - time.Second; left < least || left > time.Hour-100*time.Millisecond {
		t.Errorf("a key with an hour to live has %v left after %v", left, lived)
	}
}

// BenchmarkEmbeddedRedis measures a script of 50 commands while other keys have a time to live.
func BenchmarkEmbeddedRedis(b *testing.B) {
	for _, keys := range []int{100, 30_000} {
		b.Run(fmt.Sprint(keys, " keys"), func(b *testing.B) {
			embedded, err := redisx.StartEmbedded()
			if err != nil {
				b.Fatal(err)
			}
			defer embedded.Close()
			client, ctx := embedded.Open(), context.Background()
			defer client.Close()
			for n := range keys {
				client.Set(ctx, fmt.Sprintf("lockstep:{0}:repo:acme/widgets%d", n), "1", time.Hour)
			}
			script := redis.NewScript(`for i = 1, 50 do redis.call('GET', KEYS[1]) end`)
			for b.Loop() {
				if err := script.Run(ctx, client, []string{"lockstep:{0}:repo:acme/widgets0"}).Err(); !errors.Is(err, redis.Nil) && err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// lossy is a connection that, once armed, drops the next reply and closes.
type lossy struct {
	net.Conn
	armed *atomic.Bool
}

func (c lossy) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.armed.CompareAndSwap(true, false) {
		_ = c.Conn.Close()
		return 0, io.EOF
	}
	return n, err
}

// wrapConns is a hook that wraps each connection.
type wrapConns func(net.Conn) net.Conn

func (wrap wrapConns) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return wrap(conn), nil
	}
}

func (wrapConns) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (wrapConns) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestCommandWithoutReplyIsNotResent(t *testing.T) {
	ctx := context.Background()
	for name, url := range map[string]func(*testing.T) string{
		"standalone": func(t *testing.T) string { return redistest.StartReal(t).URL() },
		"cluster":    func(t *testing.T) string { return redistest.StartCluster(t).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, err := redisx.Parse(url(t), nil)
			if err != nil {
				t.Fatal(err)
			}
			var armed atomic.Bool
			client := server.Open()
			defer client.Close()
			wrap := wrapConns(func(c net.Conn) net.Conn { return lossy{c, &armed} })
			if cluster, ok := client.(*redis.ClusterClient); ok {
				cluster.OnNewNode(func(node *redis.Client) { node.AddHook(wrap) })
			} else {
				client.AddHook(wrap)
			}
			if err := client.Incr(ctx, "n").Err(); err != nil {
				t.Fatal(err)
			}
			armed.Store(true)
			if err := client.Incr(ctx, "n").Err(); err == nil {
				t.Error("no error although the reply was lost")
			}
			if n, err := client.Get(ctx, "n").Int(); err != nil || n != 2 || armed.Load() {
				t.Errorf("counted %d, %v; want 2, one for each call", n, err)
			}
		})
	}
}

// countDials is a hook that counts dials.
type countDials struct{ n *atomic.Int32 }

func (c countDials) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c.n.Add(1)
		return next(ctx, network, addr)
	}
}

func (countDials) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (countDials) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestUnavailableServerIsDialledOnce counts the dials of a call. More of them, with pauses, would delay every error.
func TestUnavailableServerIsDialledOnce(t *testing.T) {
	server, err := redisx.Parse("redis://127.0.0.1:1", nil)
	if err != nil {
		t.Fatal(err)
	}
	var dials atomic.Int32
	client := server.With(countDials{&dials}).Open()
	defer client.Close()
	if err := client.Ping(t.Context()).Err(); !redisx.Unavailable(err) || dials.Load() != 1 {
		t.Errorf("%d dials, %v", dials.Load(), err)
	}
	for _, url := range []string{"redis+sentinel://127.0.0.1:1?master_name=m&dialer_retries=7", "redis+cluster://127.0.0.1:1?dialer_retries=7"} {
		server, err := redisx.Parse(url, nil)
		if err != nil {
			t.Fatal(err)
		}
		switch client := server.Open().(type) {
		case *redis.Client:
			dials.Store(int32(client.Options().DialerRetries))
		case *redis.ClusterClient:
			dials.Store(int32(client.Options().DialerRetries))
		}
		if dials.Load() != 1 {
			t.Errorf("%s: %d dials", url, dials.Load())
		}
	}
}
