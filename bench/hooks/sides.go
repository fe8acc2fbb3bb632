package hooks

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
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
	"lockstep/internal/cli/term"
	"lockstep/internal/redisx"
)

// secretVariable is the environment variable with the secret of the bare handler.
const secretVariable = "BENCH_HOOK_SECRET"

// StartReceiver starts a receiver under a prefix, and makes a load of webhooks for watched repositories.
func StartReceiver(ctx context.Context, env *rig.Env, server *rig.Redis, namespace events.Namespace, repos int, secret string) (*Load, *rig.Process, string, error) {
	load, err := newLoad(repos, secret)
	if err != nil {
		return nil, nil, "", err
	}
	if err := rig.WatchAll(ctx, server.Client, namespace, load.urls); err != nil {
		return nil, nil, "", err
	}
	receiver, addr, err := startReceiver(ctx, env, server, namespace, secret)
	return load, receiver, addr, err
}

// startReceiver starts lockstep serve as a receiver with one source, hub.
func startReceiver(ctx context.Context, env *rig.Env, server *rig.Redis, namespace events.Namespace, secret string) (*rig.Process, string, error) {
	hooks, err := WriteSource(env.Dir, secret)
	if err != nil {
		return nil, "", err
	}
	return env.Serve(ctx, "--roles", "receiver", "--hooks", hooks, "--spool", filepath.Join(env.Dir, "spool"),
		"--redis", server.URL, "--prefix", string(namespace))
}

// startBareHandler starts the bare handler and returns its address.
func startBareHandler(ctx context.Context, env *rig.Env, redisURL string, namespace events.Namespace, secret string, payload bool) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	environ := append(slices.Clone(env.Environ), secretVariable+"="+secret)
	p, err := env.StartProcess(ctx, environ, self, "hooks-bare", "--redis", redisURL, "--prefix", string(namespace), fmt.Sprintf("--payload=%v", payload))
	if err != nil {
		return "", err
	}
	return p.Listening(ctx)
}

// WriteSource makes a folder of sources that has one, hub, of GitHub.
func WriteSource(dir, secret string) (hooks string, err error) {
	hooks = filepath.Join(dir, "hooks")
	if err := os.MkdirAll(filepath.Join(hooks, "hub"), 0o700); err != nil {
		return "", err
	}
	for name, content := range map[string]string{"forge": "github", "secret": secret} {
		if err := os.WriteFile(filepath.Join(hooks, "hub", name), []byte(content), 0o600); err != nil {
			return "", err
		}
	}
	return hooks, nil
}

// NewBareCommand returns the hidden command of the bare handler.
func NewBareCommand(std term.Streams) *cobra.Command {
	var prefix string
	var payload bool
	cmd := rig.WorkerCommand(&cobra.Command{
		Use:   "hooks-bare",
		Short: "Handler that bench hooks compares with",
	}, term.NoArgs, func(_ *cobra.Command, _ []string, server redisx.Server) error {
		namespace, err := events.ParseNamespace(prefix)
		if err != nil {
			return term.UsageError(err)
		}
		client := server.Open()
		defer client.Close()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		fmt.Fprintf(std.Stderr, "msg=listening address=%s\n", listener.Addr())
		srv := &http.Server{Handler: bareHandler(client, namespace.Changes(), []byte(os.Getenv(secretVariable)), payload), ReadHeaderTimeout: 5 * time.Second}
		return srv.Serve(listener)
	})
	cmd.Flags().StringVar(&prefix, "prefix", "", "`prefix` of all keys")
	cmd.Flags().BoolVar(&payload, "payload", true, "add the body too")
	return cmd
}

// bareHandler verifies a GitHub signature and adds the delivery to a stream: its ID, its event and, with payload, its body.
// It does not parse the body or deduplicate.
func bareHandler(client redis.UniversalClient, topic string, secret []byte, payload bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 25<<20))
		if err != nil {
			http.Error(w, "cannot read the body", http.StatusBadRequest)
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
			http.Error(w, "cannot write to Redis", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	}
}
