package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/changes"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/telemetry"
	"lockstep/internal/testenv"
)

// tracked returns the configuration of a server that serves the results of changes.
func tracked(t *testing.T, redisServer *redistest.Server) server.Config {
	t.Helper()
	client := redisServer.Client()
	publisher := testenv.Must(stream.NewPublisher(stream.PublisherConfig{Client: client}, nil))(t)
	return server.Config{
		Publisher: publisher, TopicOf: func(events.RepoPath) (string, error) { return events.DefaultNamespace.Changes(), nil }, Changes: changes.NewTracker(redisServer.Client(), events.DefaultNamespace), Loopback: true,
		Metrics: telemetry.New().Handler(), Log: slog.New(slog.DiscardHandler),
	}
}

// settle reads the next change and settles it, as a worker does.
func settle(t *testing.T, redisServer *redistest.Server) {
	t.Helper()
	client := redisServer.Client()
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{Client: client, Prefix: string(events.DefaultNamespace), ConsumerGroup: "workers"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer subscriber.Close()
	messages := testenv.Must(subscriber.Subscribe(context.Background(), events.DefaultNamespace.Changes()))(t)
	msg := <-messages
	delivery, _ := stream.DeliveryOf(msg)
	change := testenv.Must(events.ParseChange(msg.Payload))(t)
	result := change.Result(events.ResultRemoved, delivery.Entry())
	out, err := changes.ResultMessage(result)
	if err != nil {
		t.Fatal(err)
	}
	err = delivery.Settle(context.Background(), stream.Settlement{Outputs: []stream.Output{{Stream: events.DefaultNamespace.Results(), Message: out}}})
	if err != nil {
		t.Fatal(err)
	}
	msg.Ack()
}

// post publishes a change and returns its ID and the URL of its result.
func post(t *testing.T, url string) (id, location string) {
	t.Helper()
	response := testenv.Must(http.Post(url+"/api/v1/changes", "application/json", strings.NewReader(plain)))(t)
	defer response.Body.Close()
	var accepted struct{ ID, Entry string }
	if err := json.NewDecoder(response.Body).Decode(&accepted); err != nil || response.StatusCode != http.StatusAccepted {
		t.Fatalf("status %d, error %v", response.StatusCode, err)
	}
	location = response.Header.Get("Location")
	if location != "/api/v1/changes/"+accepted.Entry {
		t.Fatalf("location %q of entry %q", location, accepted.Entry)
	}
	return accepted.ID, location
}

func TestWaitForResult(t *testing.T) {
	t.Parallel()
	redisServer := redistest.Start(t)
	srv := httptest.NewServer(documented(t, tracked(t, redisServer)))
	defer srv.Close()
	id, location := post(t, srv.URL)
	for _, query := range []string{"", "?wait=10ms", "?wait=1ns"} {
		if status, text := do(t, "GET", srv.URL+location+query, "", nil); status != http.StatusAccepted || !strings.Contains(text, `"state":"queued"`) {
			t.Errorf("%s before it is read: %d %s", query, status, text)
		}
	}
	got := make(chan string, 1)
	go func() {
		_, text := do(t, "GET", srv.URL+location+"?wait=50s", "", nil)
		got <- text
	}()
	settle(t, redisServer)
	select {
	case text := <-got:
		result, err := events.ParseResult([]byte(text))
		if err != nil || len(result.Deliveries) != 1 || result.Deliveries[0] != id {
			t.Errorf("%v: %s", err, text)
		}
	case <-time.After(time.Minute):
		t.Fatal("the waiting request gets no result")
	}
	if status, text := do(t, "GET", srv.URL+location, "", nil); status != http.StatusOK || !strings.Contains(text, id) {
		t.Errorf("afterwards: %d %s", status, text)
	}
}

func TestGetChangeErrors(t *testing.T) {
	t.Parallel()
	redisServer := redistest.Start(t)
	srv := httptest.NewServer(documented(t, tracked(t, redisServer)))
	defer srv.Close()
	for name, tc := range map[string]struct {
		path   string
		status int
	}{
		"no such change":       {"1795223511284-0", http.StatusNotFound},
		"no change, with wait": {"1795223511284-0?wait=50s", http.StatusNotFound},
		"bad entry ID":         {"soon", http.StatusBadRequest},
		"bad entry, with wait": {"soon?wait=50s", http.StatusBadRequest},
		"no unit":              {"1795223511284-0?wait=30", http.StatusBadRequest},
		"negative duration":    {"1795223511284-0?wait=-1s", http.StatusBadRequest},
		"two entries":          {"1-0/2-0", http.StatusNotFound},
	} {
		if status, text := do(t, "GET", srv.URL+"/api/v1/changes/"+tc.path, "", nil); status != tc.status {
			t.Errorf("%s: %d %s, want %d", name, status, text, tc.status)
		}
	}
	redisServer.Stop()
	if status, text := do(t, "GET", srv.URL+"/api/v1/changes/1-0?wait=10ms", "", nil); status != http.StatusServiceUnavailable {
		t.Errorf("a wait without Redis: %d %s", status, text)
	}
}

// endless is a Changes whose Wait blocks until ctx ends and signals each call.
type endless struct{ waiting chan struct{} }

func (e endless) Progress(context.Context, string) (changes.Progress, error) {
	return changes.Progress{State: changes.Pending}, nil
}

func (e endless) Wait(ctx context.Context, _ string) (changes.Progress, error) {
	e.waiting <- struct{}{}
	<-ctx.Done()
	return changes.Progress{State: changes.Pending}, context.Cause(ctx)
}

func TestLimitOfWaitingRequests(t *testing.T) {
	t.Parallel()
	cfg := tracked(t, redistest.Start(t))
	waits := endless{make(chan struct{})}
	cfg.Changes = waits
	srv := httptest.NewServer(documented(t, cfg))
	defer srv.Close()
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	get := func(ctx context.Context) (int, error) {
		request, err := http.NewRequestWithContext(ctx, "GET", srv.URL+"/api/v1/changes/1-0?wait=60s", nil)
		if err != nil {
			return 0, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return 0, err
		}
		return response.StatusCode, response.Body.Close()
	}
	var waiters sync.WaitGroup
	for range 32 {
		waiters.Go(func() {
			if _, err := get(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("a waiter: %v", err)
			}
		})
		<-waits.waiting
	}
	if status, err := get(context.Background()); err != nil || status != http.StatusTooManyRequests {
		t.Errorf("request above the limit: %d, error %v", status, err)
	}
	leave()
	waiters.Wait()
}

func TestShutdownEndsWaitingRequests(t *testing.T) {
	t.Parallel()
	cfg := tracked(t, redistest.Start(t))
	waits := endless{make(chan struct{}, 1)}
	cfg.Changes = waits
	listener := testenv.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener, cfg) }()
	answered := make(chan int, 1)
	go func() {
		status, _ := do(t, "GET", "http://"+listener.Addr().String()+"/api/v1/changes/1-0?wait=60s", "", nil)
		answered <- status
	}()
	<-waits.waiting
	stop()
	if err := <-served; err != nil {
		t.Errorf("serve: %v; want a clean end", err)
	}
	if status := <-answered; status != http.StatusAccepted {
		t.Errorf("status %d, want 202: the client can wait at another process", status)
	}
}
