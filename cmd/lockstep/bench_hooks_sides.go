package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/redisx"
)

// hookSecret is the variable that tells the bare handler its secret.
const hookSecret = "LOCKSTEP_BENCH_HOOK_SECRET"

// servedProcess is a process that takes webhooks at an address. Its log is in a file.
type servedProcess struct {
	cmd  *exec.Cmd
	addr string
	log  string
	done chan struct{} // closed when it has ended
}

// startWatchedReceiver starts a receiver under a prefix, and makes a load of webhooks for it whose repositories are watched there.
func startWatchedReceiver(ctx context.Context, std streams, dir string, server *benchRedis, namespace events.Namespace, repos int, secret string) (*hookLoad, *servedProcess, error) {
	load, err := newHookLoad(repos, secret)
	if err != nil {
		return nil, nil, err
	}
	if err := watchAll(ctx, server.client, namespace, load.urls); err != nil {
		return nil, nil, err
	}
	receiver, err := startHookReceiver(ctx, std, dir, secret, "--redis", server.url, "--prefix", string(namespace))
	return load, receiver, err
}

// startHookReceiver starts lockstep serve as a receiver, with its one source below dir.
func startHookReceiver(ctx context.Context, std streams, dir, secret string, args ...string) (*servedProcess, error) {
	hooks, err := writeSource(dir, secret)
	if err != nil {
		return nil, err
	}
	args = append([]string{"serve", "--roles", "receiver", "--listen", "127.0.0.1:0", "--hooks", hooks, "--spool", filepath.Join(dir, "spool")}, args...)
	return startServed(ctx, std.environ, dir, "receiver", args...)
}

// startBareHandler starts the plainest handler.
func startBareHandler(ctx context.Context, std streams, redisURL string, namespace events.Namespace, secret string, payload bool) (*servedProcess, error) {
	dir, err := os.MkdirTemp("", "lockstep-bench-bare-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	environ := append(slices.Clone(std.environ), hookSecret+"="+secret)
	return startServed(ctx, environ, dir, "bare", "bench", "hooks-bare", "--redis", redisURL, "--prefix", string(namespace), fmt.Sprintf("--payload=%v", payload))
}

// startServed starts this program with a log below dir, and returns once it says where it listens.
func startServed(ctx context.Context, environ []string, dir, name string, args ...string) (*servedProcess, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &servedProcess{log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(program, args...)
	p.cmd.Dir = dir // where no lockstep.yaml is
	p.cmd.Env = slices.DeleteFunc(slices.Clone(environ), func(pair string) bool {
		return strings.HasPrefix(pair, config.EnvPrefix) && !strings.HasPrefix(pair, hookSecret)
	})
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start lockstep %s: %w", name, err)
	}
	go func() { _ = p.cmd.Wait(); close(p.done) }()
	for {
		said, err := os.ReadFile(p.log)
		if err != nil {
			p.kill()
			return nil, err
		}
		if _, after, ok := bytes.Cut(said, []byte("msg=listening address=")); ok {
			if addr, _, whole := bytes.Cut(after, []byte("\n")); whole {
				p.addr = string(addr)
				return p, nil
			}
		}
		select {
		case <-p.done:
			return nil, fmt.Errorf("lockstep %s ended: %s", name, said)
		case <-ctx.Done():
			p.kill()
			return nil, context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// kill ends the process at once.
func (p *servedProcess) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

func newBenchHooksBareCommand(std streams) *cobra.Command {
	var redisURL, prefix string
	var payload bool
	cmd := &cobra.Command{
		Use:    "hooks-bare",
		Short:  "The other side of lockstep bench hooks",
		Hidden: true,
		Args:   wrongUse(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			silenceRedis()
			server, errRedis := redisx.Parse(redisURL, "")
			namespace, errPrefix := events.ParseNamespace(prefix)
			if err := errors.Join(errRedis, errPrefix); err != nil {
				return usageError(err)
			}
			client := server.Open()
			defer client.Close()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			fmt.Fprintf(std.stderr, "msg=listening address=%s\n", listener.Addr())
			srv := &http.Server{Handler: bareHandler(client, namespace.Changes(), []byte(os.Getenv(hookSecret)), payload), ReadHeaderTimeout: 5 * time.Second}
			return srv.Serve(listener)
		},
	}
	cmd.Flags().StringVar(&redisURL, "redis", "", "`URL` of the Redis to use")
	cmd.Flags().StringVar(&prefix, "prefix", "", "`prefix` of all keys")
	cmd.Flags().BoolVar(&payload, "payload", true, "add what was sent, too")
	return cmd
}

// bareHandler verifies a GitHub signature and adds the delivery to a stream: its id and event, and with
// payload what was sent, without which nobody could tell what was pushed. It reads nothing of that, and knows
// no delivery again.
func bareHandler(client redis.UniversalClient, topic string, secret []byte, payload bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 25<<20))
		if err != nil {
			http.Error(w, "the body could not be read", http.StatusBadRequest)
			return
		}
		mac := hmac.New(sha256.New, secret)
		mac.Write(body)
		given, err := hex.DecodeString(strings.TrimPrefix(r.Header.Get("X-Hub-Signature-256"), "sha256="))
		if err != nil || !hmac.Equal(given, mac.Sum(nil)) {
			http.Error(w, "wrong signature", http.StatusUnauthorized)
			return
		}
		values := []any{"delivery", r.Header.Get("X-GitHub-Delivery"), "event", r.Header.Get("X-GitHub-Event")}
		if payload {
			values = append(values, "payload", body)
		}
		if err := client.XAdd(r.Context(), &redis.XAddArgs{Stream: topic, Values: values}).Err(); err != nil {
			http.Error(w, "Redis does not take it", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	}
}
