package stream_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

func TestFieldsOfRedisstreamWithoutAMeaningAreRefusedByName(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	for name, change := range map[string]func(*stream.SubscriberConfig){
		"":                       func(c *stream.SubscriberConfig) { c.DisableIndefiniteInitialBlock = true },
		"ClaimBatchSize":         func(c *stream.SubscriberConfig) { c.ClaimBatchSize = 1 },
		"CheckConsumersInterval": func(c *stream.SubscriberConfig) { c.CheckConsumersInterval = 1 },
		"ConsumerTimeout":        func(c *stream.SubscriberConfig) { c.ConsumerTimeout = 1 },
		"ShouldClaimPendingMessage": func(c *stream.SubscriberConfig) {
			c.ShouldClaimPendingMessage = func(redis.XPendingExt) bool { return true }
		},
		"ShouldStopOnReadErrors": func(c *stream.SubscriberConfig) { c.ShouldStopOnReadErrors = func(error) bool { return true } },
		"OldestId":               func(c *stream.SubscriberConfig) { c.OldestId = "yesterday" },
		"FanOutOldestId":         func(c *stream.SubscriberConfig) { c.FanOutOldestId = "yesterday" },
		"BlockTime":              func(c *stream.SubscriberConfig) { c.BlockTime = -1 },
		"Client":                 func(c *stream.SubscriberConfig) { c.Client = nil },
	} {
		cfg := stream.SubscriberConfig{Client: client, ConsumerGroup: group}
		change(&cfg)
		_, err := stream.NewSubscriber(cfg, nil)
		if name == "" && err != nil || name != "" && (err == nil || !strings.Contains(err.Error(), name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMaximumLengthIsPerTopic(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	client := redistest.StartReal(t).Client()
	client.ConfigSet(ctx, "stream-node-max-entries", "1") // so that trimming is exact
	p, err := stream.NewPublisher(stream.PublisherConfig{
		Client: client, DefaultMaxlen: 2, Maxlens: map[string]int64{"three": 3, "all": 0, "default": -1},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for topic, want := range map[string]int64{"three": 3, "all": 5, "default": 2, "another": 2} {
		for range 5 {
			if err := p.Publish(topic, message.NewMessage("m", nil)); err != nil {
				t.Fatal(err)
			}
		}
		if n := length(t, client, topic); n != want {
			t.Errorf("%s has %d entries; want %d", topic, n, want)
		}
	}
}

// losing is a connection that loses replies: it closes instead of returning one.
type losing struct {
	net.Conn
	lose *atomic.Int32
	lost bool
}

func (c *losing) Write(p []byte) (int, error) {
	command := bytes.Contains(p, []byte("evalsha")) || bytes.Contains(p, []byte("xadd"))
	c.lost = c.lost || command && c.lose.Add(-1) >= 0
	return c.Conn.Write(p)
}

func (c *losing) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p) // the command has run
	if c.lost {
		return 0, errors.Join(io.EOF, c.Conn.Close())
	}
	return n, err
}

func TestTheClientsRetriesRepeatNothing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.StartReal(t)
	var lose atomic.Int32
	client := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: 3, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &losing{Conn: conn, lose: &lose}, err
	}})
	defer client.Close()
	p := adder(t, client)
	lose.Store(1)
	if err := p.Publish(topic, message.NewMessage("m", nil)); err == nil || length(t, client, topic) != 1 {
		t.Errorf("%v, %d entries; want an error and one", err, length(t, client, topic))
	}
	w := start(t, server, "a", func(c *stream.SubscriberConfig) { c.Client = client; c.MaxIdleTime = time.Minute })
	m := w.next()
	lose.Store(1)
	if err := delivery(t, m).Settle(ctx, result()); err != nil || length(t, client, results) != 1 {
		t.Errorf("%v, %d results; want it settled once", err, length(t, client, results))
	}
	m.Ack()
}

func TestLogsGoToWatermillsLogger(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	logger := watermill.NewCaptureLogger()
	s, err := stream.NewSubscriber(stream.SubscriberConfig{Client: server.Client(), ConsumerGroup: group, MaxIdleTime: time.Second}, logger)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	messages, err := s.Subscribe(context.Background(), topic)
	if err != nil {
		t.Fatal(err)
	}
	server.Client().XAdd(context.Background(), &redis.XAddArgs{Stream: topic, Values: []string{"_watermill_message_uuid", "no payload"}})
	publish(t, server.Client(), 1)
	receive(t, messages).Ack()
	eventually(t, "the dead letter is logged, with its entry and group", func() bool {
		for _, line := range logger.Captured()[watermill.ErrorLogLevel] {
			if line.Msg == "undecodable entry dead-lettered" && line.Fields["entry"] != nil && line.Fields["group"] == group {
				return true
			}
		}
		return false
	})
}

// goTool runs the go command in a folder.
func goTool(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOPROXY=off", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func writeText(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTheDocumentedProgramCompilesInAnotherModule(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	_, program, _ := strings.Cut(readText(t, "doc.go"), "//\tpackage main")
	program, _, ok := strings.Cut(program, "\n// ")
	if !ok {
		t.Fatal("doc.go has no program")
	}
	dir := t.TempDir()
	writeText(t, filepath.Join(dir, "main.go"), "package main"+strings.NewReplacer("\n//\t", "\n", "\n//", "\n").Replace(program))
	_, requirements, _ := strings.Cut(readText(t, filepath.Join(root, "go.mod")), "\n")
	writeText(t, filepath.Join(dir, "go.mod"), "module example.com/shop\n"+requirements+
		"\nrequire lockstep v0.0.0\nreplace lockstep => "+root+"\n")
	writeText(t, filepath.Join(dir, "go.sum"), readText(t, filepath.Join(root, "go.sum")))
	goTool(t, dir, "build", "-mod=mod", "-o", os.DevNull, ".")
}

func TestProgramForRedisstreamRunsAfterChangingItsImport(t *testing.T) {
	t.Parallel()
	program, err := filepath.Abs("../../examples/publish/go/watermill/main.go")
	if err != nil {
		t.Fatal(err)
	}
	const before = `"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"`
	text := readText(t, program)
	if !strings.Contains(text, before) {
		t.Fatal("the program does not import watermill-redisstream")
	}
	dir := t.TempDir()
	changed, overlay, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "program")
	writeText(t, changed, strings.Replace(text, before, `redisstream "lockstep/events/stream"`, 1))
	replaced, err := json.Marshal(map[string]any{"Replace": map[string]string{program: changed}})
	if err != nil {
		t.Fatal(err)
	}
	writeText(t, overlay, string(replaced))
	goTool(t, filepath.Dir(program), "build", "-overlay", overlay, "-o", binary, ".")

	server := redistest.Start(t)
	changes := start(t, server, "a", nil)
	cmd := exec.Command(binary, "https://git.example.com/acme/widgets.git", "acme/widgets")
	cmd.Env = append(os.Environ(), "REDIS_URL="+server.URL())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m := changes.next() // the program has subscribed to the results before
	payload, err := json.Marshal(map[string]any{
		"type": "lockstep.result.synced.v1", "data": map[string]any{"deliveries": []string{m.UUID}, "after": "c0ffee", "tree": "/tree"},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := stream.Settlement{Outputs: []stream.Output{{Stream: results, Message: message.NewMessage("r", payload)}}}
	if err := delivery(t, m).Settle(context.Background(), s); err != nil {
		t.Fatal(err)
	}
	m.Ack()
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "synced c0ffee in /tree") {
		t.Errorf("%v\n%s", err, &out)
	}
}
