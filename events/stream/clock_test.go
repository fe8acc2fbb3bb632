package stream_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// TestOtherMastersMayBeAway reads the clock and the statistics of a stream while another master of the cluster is stopped.
func TestOtherMastersMayBeAway(t *testing.T) {
	t.Parallel()
	ctx, cluster := t.Context(), redistest.StartCluster(t)
	for _, node := range cluster.Nodes {
		if err := node.Client().ConfigSet(ctx, "cluster-require-full-coverage", "no").Err(); err != nil {
			t.Fatal(err)
		}
	}
	options := &redis.ClusterOptions{MaxRedirects: -1, MaxRetries: -1} // each failure is reported
	for _, node := range cluster.Nodes {
		options.Addrs = append(options.Addrs, node.Addr)
	}
	client := redis.NewClusterClient(options)
	t.Cleanup(func() { client.Close() })
	const topic = "lockstep:{0}:changes"
	testenv.Must(client.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: []string{"a", "b"}}).Result())(t)
	slot := testenv.Must(client.ClusterKeySlot(ctx, topic).Result())(t)
	own := slot * int64(len(cluster.Nodes)) / 16384
	cluster.Nodes[(own+1)%int64(len(cluster.Nodes))].Stop()
	for range 2 * len(cluster.Nodes) { // commands without a key go to the masters in turn
		if now, err := stream.Time(ctx, client, topic); err != nil || time.Since(now).Abs() > time.Minute {
			t.Errorf("time: %v, %v", now, err)
		}
		if s, err := stream.Stats(ctx, client, "lockstep:{0}:", topic); err != nil || s.Length != 1 {
			t.Errorf("statistics: %+v, %v", s, err)
		}
	}
}
