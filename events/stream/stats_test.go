package stream_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

const prefix = "lockstep:{0}:"

func stats(t testing.TB, client redis.UniversalClient) stream.Statistics {
	t.Helper()
	s, err := stream.Stats(context.Background(), client, prefix, topic)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStatisticsOfAMissingStream(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	s := stats(t, client)
	if s.Stream != topic || s.Length != 0 || s.First != "" || s.Last != "" || s.Dead != 0 || len(s.Groups) != 0 || s.Bytes > 0 {
		t.Errorf("%+v", s)
	}
	client.Set(context.Background(), topic, "not a stream", 0)
	if _, err := stream.Stats(context.Background(), client, prefix, topic); err == nil {
		t.Error("a string has statistics")
	}
}

func TestStatisticsReportLagPerGroup(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	publish(t, client, 10)
	read(t, client, topic, "idle", 0) // has never read
	read(t, client, topic, "done", 10)
	w := start(t, server, "a", func(c *stream.SubscriberConfig) {
		c.Window = 4
		c.NackResendSleep = time.Hour
	})
	first := w.next()
	giveUp(t, w, 1, "r")
	parked := w.next()
	parked.Nack()
	eventually(t, "one is in hand, one is parked, and one waits to be handed out", func() bool {
		g, _ := stats(t, client).Group(group)
		return g.Pending == 3 && g.Parked == 1 && g.Due == 3
	})

	s := stats(t, client)
	all := entries(t, client, topic)
	if s.Length != 10 || s.First != all[0].ID || s.Last != all[9].ID || s.Dead != 1 || len(s.Groups) != 3 {
		t.Errorf("%+v", s)
	}
	if server.Real && s.Bytes <= 0 || !server.Real && s.Bytes != -1 {
		t.Errorf("%d bytes", s.Bytes)
	}
	if g, ok := s.Group("idle"); !ok || g.Lag != 10 || g.Pending != 0 || g.Consumers != 0 || g.Oldest <= 0 || g.Oldest > time.Hour {
		t.Errorf("idle: %+v", g)
	}
	if g, ok := s.Group("done"); !ok || g.Lag != 0 || g.Pending != 0 || g.Consumers != 1 || g.Oldest != 0 {
		t.Errorf("done: %+v", g)
	}
	g, ok := s.Group(group)
	lag := redistest.Lag(6) // the window stays full until the other messages are received
	if !server.Real {
		lag = -1 // the embedded Redis does not report the lag
	}
	if !ok || g.Lag != lag || g.Late != 0 || g.Consumers != 1 || g.Oldest <= 0 || g.Oldest > time.Hour {
		t.Errorf("workers: %+v", g)
	}
	if _, ok := s.Group("nobody"); ok {
		t.Error("there is a group that is not there")
	}

	client.ZAdd(ctx, due, redis.Z{Score: 1, Member: parked.UUID}) // not an entry ID, so it stays overdue
	if g, _ := stats(t, client).Group(group); g.Late != 1 {
		t.Errorf("%d late; want 1", g.Late)
	}
	first.Ack()
}

func TestOldestIsTheFirstPendingOrUnreadEntry(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	client := redistest.Start(t).Client()
	now := time.Now()
	id := func(ago time.Duration) string { return fmt.Sprintf("%d-0", now.Add(-ago).UnixMilli()) }
	for _, ago := range []time.Duration{time.Hour, time.Minute} {
		client.XAdd(ctx, &redis.XAddArgs{Stream: topic, ID: id(ago), Values: []string{"n", "1"}})
	}
	near := func(got, want time.Duration) bool { return got >= want && got < want+30*time.Second }
	read(t, client, topic, group, 0)
	if g, _ := stats(t, client).Group(group); !near(g.Oldest, time.Hour) {
		t.Errorf("unread: %v", g.Oldest)
	}
	read(t, client, topic, group, 1, id(time.Hour))
	if g, _ := stats(t, client).Group(group); !near(g.Oldest, time.Hour) {
		t.Errorf("pending: %v", g.Oldest)
	}
	client.XAck(ctx, topic, group, id(time.Hour))
	if g, _ := stats(t, client).Group(group); !near(g.Oldest, time.Minute) {
		t.Errorf("settled, and another unread: %v", g.Oldest)
	}
	read(t, client, topic, group, 1)
	if g, _ := stats(t, client).Group(group); g.Oldest != 0 || g.Lag != 0 {
		t.Errorf("all settled: %+v", g)
	}
}
