package hooks

import (
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
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/redisx"
)

// hookSecret is the environment variable with the bare handler's secret.
const hookSecret = "BENCH_HOOK_SECRET"

// StartWatchedReceiver starts a receiver under a prefix, and makes a load of webhooks for it whose repositories are watched there.
func StartWatchedReceiver(ctx context.Context, std term.Streams, dir string, server *rig.Redis, namespace events.Namespace, repos int, secret string) (*hookLoad, *rig.ServedProcess, error) {
	load, err := newHookLoad(repos, secret)
	if err != nil {
		return nil, nil, err
	}
	if err := WatchAll(ctx, server.Client, namespace, load.urls); err != nil {
		return nil, nil, err
	}
	receiver, err := startHookReceiver(ctx, std, dir, secret, "--redis", server.Url, "--prefix", string(namespace))
	return load, receiver, err
}

// startHookReceiver starts lockstep serve as a receiver, with its one source below dir.
func startHookReceiver(ctx context.Context, std term.Streams, dir, secret string, args ...string) (*rig.ServedProcess, error) {
	hooks, err := WriteSource(dir, secret)
	if err != nil {
		return nil, err
	}
	args = append([]string{"serve", "--roles", "receiver", "--listen", "127.0.0.1:0", "--hooks", hooks, "--spool", filepath.Join(dir, "spool")}, args...)
	return rig.StartLockstep(ctx, std, dir, "receiver", args...)
}

// startBareHandler starts the plainest handler.
func startBareHandler(ctx context.Context, std term.Streams, redisURL string, namespace events.Namespace, secret string, payload bool) (*rig.ServedProcess, error) {
	dir, err := os.MkdirTemp("", "lockstep-bench-bare-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	environ := append(slices.Clone(std.Environ), hookSecret+"="+secret)
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return rig.StartServed(ctx, environ, self, dir, "bare", "hooks-bare", "--redis", redisURL, "--prefix", string(namespace), fmt.Sprintf("--payload=%v", payload))
}

func NewBareCommand(std term.Streams) *cobra.Command {
	var redisURL, prefix string
	var payload bool
	cmd := &cobra.Command{
		Use:    "hooks-bare",
		Short:  "The other side of bench hooks",
		Hidden: true,
		Args:   term.WrongUse(term.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			app.SilenceRedis()
			server, errRedis := redisx.Parse(redisURL, "")
			namespace, errPrefix := events.ParseNamespace(prefix)
			if err := errors.Join(errRedis, errPrefix); err != nil {
				return term.UsageError(err)
			}
			client := server.Open()
			defer client.Close()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			fmt.Fprintf(std.Stderr, "msg=listening address=%s\n", listener.Addr())
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
