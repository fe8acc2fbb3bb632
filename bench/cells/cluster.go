package cells

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/bench/rig"
	"lockstep/internal/app"
)

const (
	masters = 3
	slots   = 16384
)

// cluster is a private Redis Cluster.
type cluster struct {
	*rig.Redis
	nodes []*rig.Redis
}

// openCluster starts a Redis Cluster of three masters, and waits until it serves all slots.
func openCluster(ctx context.Context, env *rig.Env) (*cluster, error) {
	c := &cluster{}
	for i := range masters {
		bus, err := rig.FreeAddress()
		if err != nil {
			return nil, err
		}
		_, port, err := net.SplitHostPort(bus)
		if err != nil {
			return nil, err
		}
		node, err := env.OpenPrivateRedis(ctx, "--cluster-enabled", "yes", "--cluster-port", port)
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, node)
		own := []any{"CLUSTER", "ADDSLOTSRANGE", i * slots / masters, (i+1)*slots/masters - 1}
		if err := node.Client.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(); err != nil {
			return nil, err
		}
		if err := node.Client.Do(ctx, own...).Err(); err != nil {
			return nil, fmt.Errorf("start a cluster: %w; it needs Redis 7", err)
		}
		if i == 0 {
			continue
		}
		host, client, err := net.SplitHostPort(node.Client.(*redis.Client).Options().Addr)
		if err != nil {
			return nil, err
		}
		if err := c.nodes[0].Client.Do(ctx, "CLUSTER", "MEET", host, client, port).Err(); err != nil {
			return nil, err
		}
	}
	for _, node := range c.nodes {
		if err := awaitSlots(ctx, node); err != nil {
			return nil, err
		}
	}
	var err error
	c.Redis, err = env.OpenRedis(ctx, "redis+cluster://"+c.nodes[0].Client.(*redis.Client).Options().Addr)
	return c, err
}

func awaitSlots(ctx context.Context, node *rig.Redis) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		info := node.Client.ClusterInfo(ctx).Val()
		if strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_ok:"+strconv.Itoa(slots)) {
			return nil
		}
		if !app.Sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("the cluster does not serve all slots: %w", context.Cause(ctx))
		}
	}
}

// cpu returns the CPU time of all nodes.
func (c *cluster) cpu(ctx context.Context) (total time.Duration, err error) {
	for _, node := range c.nodes {
		spent, err := node.CPU(ctx)
		if err != nil {
			return 0, err
		}
		total += spent
	}
	return total, nil
}
