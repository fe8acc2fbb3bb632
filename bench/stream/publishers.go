package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// PublishersReport compares appendfsync always with everysec.
type PublishersReport struct {
	Duration time.Duration  `json:"duration_ns"`
	Rounds   int            `json:"rounds"`
	Rows     []publisherRow `json:"rows"`
}

// publisherRow has the medians of a number of publishers.
type publisherRow struct {
	Publishers int                  `json:"publishers"`
	Always     publishing           `json:"always"`
	EverySec   publishing           `json:"everysec"`
	Ratio      stats.Range[float64] `json:"ratio"` // events a second with always to those with everysec, in the same round

	rounds [2][]publishing
}

type publishing struct {
	PerSecond float64       `json:"events_per_second"`
	P50       time.Duration `json:"p50_ns"`
	P99       time.Duration `json:"p99_ns"`
}

// runPublishers measures publishers that each add one event after the other.
func (b *bench) runPublishers(ctx context.Context, env *rig.Env) (rig.Report, error) {
	policies := []string{"always", "everysec"}
	var servers [2]*rig.Redis
	for i, policy := range policies {
		var err error
		if servers[i], err = env.OpenRedis(ctx, "--appendonly", "yes", "--appendfsync", policy); err != nil {
			return nil, err
		}
	}
	report := PublishersReport{Duration: b.duration, Rounds: b.rounds}
	for _, n := range b.publishers {
		row := publisherRow{Publishers: n}
		err := env.Alternate(b.rounds, policies, func(_, i int) error {
			p, err := publish(ctx, servers[i], n, b.duration)
			row.rounds[i] = append(row.rounds[i], p)
			return err
		})
		if err != nil {
			return nil, err
		}
		row.Always, row.EverySec = medianPublishing(row.rounds[0]), medianPublishing(row.rounds[1])
		rounds := make([]int, b.rounds)
		for i := range rounds {
			rounds[i] = i
		}
		row.Ratio = stats.RangeOf(rounds, func(i int) float64 { return row.rounds[0][i].PerSecond / row.rounds[1][i].PerSecond })
		report.Rows = append(report.Rows, row)
	}
	return report, nil
}

func medianPublishing(rounds []publishing) publishing {
	return publishing{
		PerSecond: stats.MedianOf(rounds, func(p publishing) float64 { return p.PerSecond }),
		P50:       stats.MedianOf(rounds, func(p publishing) time.Duration { return p.P50 }),
		P99:       stats.MedianOf(rounds, func(p publishing) time.Duration { return p.P99 }),
	}
}

// publish lets n publishers add events for a duration, each on a connection.
func publish(ctx context.Context, server *rig.Redis, n int, during time.Duration) (p publishing, err error) {
	options, err := redis.ParseURL(server.URL)
	if err != nil {
		return p, err
	}
	options.PoolSize, options.MaxRetries = n, -1
	client := redis.NewClient(options)
	defer client.Close()
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Redis: client})
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
	return publishing{float64(len(all)) / time.Since(from).Seconds(), latency.P50, latency.P99}, nil
}

// Table prints the report as text.
func (r PublishersReport) Table(w io.Writer) error {
	fmt.Fprintf(w, "publishers that each add one event of %d bytes after the other; rounds: %d of %v, medians\n\n", payloadBytes, r.Rounds, r.Duration)
	tw := rig.NewTable(w)
	fmt.Fprintln(tw, "publishers\talways, events/s\tp50, ms\tp99, ms\teverysec, events/s\tp50, ms\tp99, ms\tratio\t")
	for _, row := range r.Rows {
		a, e := row.Always, row.EverySec
		fmt.Fprintf(tw, "%d\t%.0f\t%s\t%s\t%.0f\t%s\t%s\t%s\t\n", row.Publishers, a.PerSecond, rig.Millis(a.P50), rig.Millis(a.P99),
			e.PerSecond, rig.Millis(e.P50), rig.Millis(e.P99), rig.RatioRange(row.Ratio))
	}
	return tw.Flush()
}
