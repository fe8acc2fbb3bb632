package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/synadia-io/orbit.go/pcgroups"
)

// jetStream is a contestant with a partitioned consumer group: each member takes the events of its partitions one at a time, in
// order, so that it needs no lock. The process that queues events is also the server, which flushes each event to disk, as Redis
// does with appendfsync always; it gives its URL to the workers by a key in Redis.
var jetStream = contestant{
	version: "nats-server " + version("github.com/nats-io/nats-server/v2") + ", pcgroups " + version("github.com/synadia-io/orbit.go/pcgroups"),
	queue: func(ctx context.Context, s settings) (func(event, repo string) error, func() error, error) {
		dir, err := os.MkdirTemp("", "lockstep-bench-nats-")
		if err != nil {
			return nil, nil, err
		}
		url, stop, err := startNATS(dir)
		if err != nil {
			return nil, nil, errors.Join(err, os.RemoveAll(dir))
		}
		js, err := openJetStream(url)
		if err != nil {
			return nil, nil, err
		}
		if err := createGroup(ctx, js); err != nil {
			return nil, nil, err
		}
		if err := s.client.Set(ctx, s.prefix+"nats", url, 0).Err(); err != nil {
			return nil, nil, err
		}
		return func(event, repo string) error {
				_, err := js.Publish(ctx, "changes."+strings.ReplaceAll(repo, "/", "_"), []byte(event))
				return err
			}, func() error {
				stop()
				return os.RemoveAll(dir)
			}, nil
	},
	work: func(ctx context.Context, s settings, report reporter) (func(context.Context) error, error) {
		url, err := s.client.Get(ctx, s.prefix+"nats").Result()
		if errors.Is(err, redis.Nil) {
			return nil, errors.New("there is no server: jetstream takes part in bench hot only")
		}
		if err != nil {
			return nil, err
		}
		js, err := openJetStream(url)
		if err != nil {
			return nil, err
		}
		members := make([]string, s.slots)
		for i := range members {
			place, err := s.claim(ctx, places)
			if err != nil {
				return nil, err
			}
			members[i] = member(place)
		}
		return func(ctx context.Context) error { return s.consumeMembers(ctx, js, members, report) }, nil
	},
}

const (
	natsStream = "changes"
	natsGroup  = "workers"
)

func member(place int) string { return fmt.Sprint("member-", place) }

// startNATS starts a server that flushes each message to disk.
func startNATS(dir string) (url string, stop func(), err error) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, SyncAlways: true, NoLog: true, NoSigs: true})
	if err != nil {
		return "", nil, err
	}
	s.Start()
	stop = func() {
		s.Shutdown()
		s.WaitForShutdown()
	}
	if !s.ReadyForConnections(30 * time.Second) {
		stop()
		return "", nil, errors.New("nats-server does not start")
	}
	return s.ClientURL(), stop, nil
}

func openJetStream(url string) (jetstream.JetStream, error) {
	conn, err := nats.Connect(url)
	if err != nil {
		return nil, err
	}
	return jetstream.New(conn)
}

// createGroup creates a stream that is partitioned by repository, and a group with a member for each partition.
func createGroup(ctx context.Context, js jetstream.JetStream) error {
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: natsStream, Subjects: []string{"changes.*"},
		SubjectTransform: &jetstream.SubjectTransformConfig{Source: "changes.*", Destination: fmt.Sprintf("{{partition(%d,1)}}.changes.{{wildcard(1)}}", places)},
	})
	if err != nil {
		return err
	}
	members := make([]string, places)
	for i := range members {
		members[i] = member(i)
	}
	_, err = pcgroups.CreateStatic(ctx, js, natsStream, natsGroup, places, nil, members, nil)
	return err
}

// consumeMembers works on the events of members until ctx ends.
func (s settings) consumeMembers(ctx context.Context, js jetstream.JetStream, members []string, report reporter) error {
	failed := make(chan error, 1)
	handle := func(msg jetstream.Msg) {
		event := string(msg.Data())
		began := monotonic()
		time.Sleep(s.work)
		ended, settled := monotonic(), int64(0)
		err := msg.DoubleAck(context.WithoutCancel(ctx))
		if err == nil {
			settled = monotonic()
		}
		if err := errors.Join(err, report(event, began, ended, settled)); err != nil {
			select {
			case failed <- err:
			default:
			}
		}
	}
	config := jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 1, AckWait: 30 * time.Second}
	for _, name := range members {
		consuming, err := pcgroups.StaticConsume(ctx, js, natsStream, natsGroup, name, handle, config)
		if err != nil {
			return err
		}
		defer consuming.Stop()
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}
