package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/bench/rig"
	"lockstep/events/stream"
	"lockstep/internal/stats"
)

// runPublishers measures publishers that each add one event after the other, with appendfsync always and everysec.
func (b *bench) runPublishers(ctx context.Context, env *rig.Env) (report Report, err error) {
	policies := []string{"everysec", "always"}
	var servers [2]*rig.Redis
	for i, policy := range policies {
		if servers[i], err = env.OpenRedis(ctx, "--appendonly", "yes", "--appendfsync", policy); err != nil {
			return report, err
		}
	}
	report.Setup = fmt.Sprintf("publishers that each add one event of %d bytes after the other for %v", payloadBytes, b.duration)
	for _, n := range b.publishers {
		names := []string{fmt.Sprint(n, ", ", policies[0]), fmt.Sprint(n, ", ", policies[1])}
		rows, err := b.compare(env, names, func(_, i int) (sample, error) { return publish(ctx, servers[i], n, b.duration) })
		if err != nil {
			return report, err
		}
		report.Rows = append(report.Rows, rows...)
	}
	return report, nil
}

// publish lets n publishers add events for a duration, each on a connection.
func publish(ctx context.Context, server *rig.Redis, n int, during time.Duration) (p sample, err error) {
	options, err := redis.ParseURL(server.URL)
	if err != nil {
		return p, err
	}
	options.PoolSize, options.MaxRetries = n, -1
	client := redis.NewClient(options)
	defer client.Close()
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Client: client}, nil)
	if err != nil {
		return p, err
	}
	topic := string(rig.NewNamespace()) + "changes"
	defer server.Client.Unlink(context.WithoutCancel(ctx), topic)
	payload := []byte(strings.Repeat("x", payloadBytes))
	took := make([][]time.Duration, n)
	var publishers errgroup.Group
	from := time.Now()
	for i := range n {
		publishers.Go(func() error {
			for began := time.Now(); began.Sub(from) < during; began = time.Now() {
				if _, err := publisher.Add(ctx, topic, message.NewMessage(uuid.NewString(), payload)); err != nil {
					return err
				}
				took[i] = append(took[i], time.Since(began))
			}
			return nil
		})
	}
	if err := publishers.Wait(); err != nil {
		return p, err
	}
	var all []time.Duration
	for _, t := range took {
		all = append(all, t...)
	}
	if len(all) == 0 {
		return p, errors.New("no event was published")
	}
	latency := stats.NewLatency(all)
	return sample{PerSecond: float64(len(all)) / time.Since(from).Seconds(), P50: latency.P50, P99: latency.P99}, nil
}
