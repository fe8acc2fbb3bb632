package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/logtest"
)

const (
	masterName  = "m"
	formTimeout = time.Minute // for servers to find each other
)

// Sentinel is a master with one replica and three Sentinels.
type Sentinel struct {
	Master, Replica *Server

	t     testing.TB
	addrs []string
}

// StartSentinel starts real servers and waits until all of them know each other. It skips the test like [StartReal].
// The replica is promoted when the master has been down for a second.
func StartSentinel(t testing.TB) *Sentinel {
	t.Helper()
	s := &Sentinel{t: t, Master: StartReal(t, "--repl-diskless-sync-delay", "0")}
	s.Replica = StartReal(t, "--replicaof", "127.0.0.1", strconv.Itoa(s.Master.Port()))
	eventually(t, "the replica follows the master", func() bool { return info(s.Replica, "master_link_status") == "up" })
	for range 3 {
		s.addrs = append(s.addrs, startSentinel(t, s.Master.Port()))
	}
	for _, addr := range s.addrs {
		client := redis.NewSentinelClient(&redis.Options{Addr: addr, MaxRetries: -1})
		eventually(t, "the Sentinels know each other", func() bool {
			known, _ := client.Master(context.Background(), masterName).Result()
			return known["num-slaves"] == "1" && known["num-other-sentinels"] == "2"
		})
		_ = client.Close()
	}
	return s
}

func startSentinel(t testing.TB, master int) (addr string) {
	t.Helper()
	dir, log := t.TempDir(), &logtest.Buffer{}
	for range 5 { // another process may take the port
		addr = freeAddr(t)
		_, port, _ := net.SplitHostPort(addr)
		conf := filepath.Join(dir, "sentinel.conf")
		lines := []string{
			"bind 127.0.0.1", "port " + port, "dir " + dir,
			fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 2", masterName, master),
			"sentinel down-after-milliseconds " + masterName + " 1000",
			"sentinel failover-timeout " + masterName + " 3000",
		}
		if err := os.WriteFile(conf, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("redis-server", conf, "--sentinel")
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		exited := make(chan struct{})
		go func() { _ = cmd.Wait(); close(exited) }()
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			<-exited
		})
		for deadline := time.Now().Add(formTimeout); time.Now().Before(deadline); {
			if strings.Contains(log.String(), "+monitor master") {
				return addr
			}
			select {
			case <-exited:
				deadline = time.Time{}
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	t.Fatalf("redis-server --sentinel does not start:\n%s", log)
	return ""
}

// URL returns the Sentinels' URL for [redisx.Parse].
func (s *Sentinel) URL() string {
	return "redis+sentinel://" + s.addrs[0] + "?master_name=" + masterName + "&addr=" + s.addrs[1] + "&addr=" + s.addrs[2]
}

// Replicate waits until the replica has all current data of the master.
func (s *Sentinel) Replicate() {
	s.t.Helper()
	want, _ := strconv.Atoi(info(s.Master, "master_repl_offset"))
	eventually(s.t, "the replica has caught up with the master", func() bool {
		got, err := strconv.Atoi(info(s.Replica, "slave_repl_offset"))
		return err == nil && got >= want
	})
}

// CutOff disconnects the replica from the master. For about ten seconds the replica can still be promoted.
func (s *Sentinel) CutOff() {
	s.t.Helper()
	client := s.Replica.Client()
	ctx := context.Background()
	if err := client.ConfigSet(ctx, "masterauth", "wrong").Err(); err != nil {
		s.t.Fatal(err)
	}
	if err := client.Do(ctx, "CLIENT", "KILL", "TYPE", "master").Err(); err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, "the replica is cut off", func() bool { return info(s.Replica, "master_link_status") == "down" })
}

// Promoted reports whether the replica has become the master.
func (s *Sentinel) Promoted() bool { return info(s.Replica, "role") == "master" }

// Cluster is a Redis Cluster of three masters.
type Cluster struct {
	Nodes    []*Server
	Replicas []*Server // one of each master, in the same order; empty before AddReplicas

	t    testing.TB
	meet []any // command that meets the first node
}

const (
	clusterNodes       = 3
	clusterSlots       = 16384
	clusterNodeTimeout = "5000" // ms
)

// StartCluster starts real servers and waits until they serve all slots. It skips the test like [StartReal].
func StartCluster(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	for i := range clusterNodes {
		node, meet := c.start()
		c.run(node, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
		if i == 0 {
			c.meet = meet
		} else {
			c.run(node, c.meet...)
		}
		c.Nodes = append(c.Nodes, node)
		own := []any{"CLUSTER", "ADDSLOTS"} // a range needs Redis 7
		for slot := i * clusterSlots / clusterNodes; slot < (i+1)*clusterSlots/clusterNodes; slot++ {
			own = append(own, slot)
		}
		c.run(node, own...)
	}
	for _, node := range c.Nodes {
		c.awaitSlots(node)
	}
	return c
}

// start starts a node, and returns the command for other nodes to meet it.
func (c *Cluster) start() (node *Server, meet []any) {
	c.t.Helper()
	_, bus, _ := net.SplitHostPort(freeAddr(c.t))
	node = StartReal(c.t, "--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout",
		clusterNodeTimeout, "--repl-diskless-sync-delay", "0")
	if major() == 6 {
		bus = strconv.Itoa(node.Port() + 10000)
	}
	return node, []any{"CLUSTER", "MEET", "127.0.0.1", node.Port(), bus}
}

func (c *Cluster) run(node *Server, args ...any) {
	c.t.Helper()
	if err := node.Client().Do(context.Background(), args...).Err(); err != nil {
		c.t.Fatalf("%v: %v", args, err)
	}
}

func (c *Cluster) awaitSlots(node *Server) {
	c.t.Helper()
	client := node.Client()
	eventually(c.t, "the cluster serves all slots", func() bool {
		s := client.ClusterInfo(context.Background()).Val()
		return strings.Contains(s, "cluster_state:ok") && strings.Contains(s, "cluster_slots_ok:16384")
	})
}

// AddReplicas adds a replica of each master and waits until it follows, and could take over: until gossip has
// told it the slots of its master, it is never promoted.
func (c *Cluster) AddReplicas() {
	c.t.Helper()
	for _, master := range c.Nodes {
		id, err := master.Client().Do(context.Background(), "CLUSTER", "MYID").Text()
		if err != nil {
			c.t.Fatal(err)
		}
		replica, _ := c.start()
		c.run(replica, c.meet...)
		c.Replicas = append(c.Replicas, replica)
		client := replica.Client()
		eventually(c.t, "the replica knows its master", func() bool {
			return client.Do(context.Background(), "CLUSTER", "REPLICATE", id).Err() == nil
		})
		eventually(c.t, "the replica follows its master", func() bool { return info(replica, "master_link_status") == "up" })
	}
	for _, node := range slices.Concat(c.Nodes, c.Replicas) {
		c.awaitSlots(node)
	}
}

// Fail kills the i-th master, waits until its replica serves its slots, and starts it again as the replica of that one.
func (c *Cluster) Fail(i int) {
	c.t.Helper()
	killed, promoted := c.Nodes[i], c.Replicas[i]
	killed.Stop()
	eventually(c.t, "the replica is promoted", func() bool { return info(promoted, "role") == "master" })
	c.awaitSlots(promoted)
	killed.Restart()
	eventually(c.t, "the killed master follows its replica", func() bool {
		return info(killed, "role") == "slave" && info(killed, "master_link_status") == "up"
	})
	c.Nodes[i], c.Replicas[i] = promoted, killed
}

// HalfMove begins to move the slot of a key to another node, and moves that key alone, as a resharding that
// was interrupted. It returns a function that moves the rest and gives the slot to that node.
func (c *Cluster) HalfMove(key string) (finish func()) {
	c.t.Helper()
	ctx := context.Background()
	slot, err := c.Nodes[0].Client().ClusterKeySlot(ctx, key).Result()
	if err != nil {
		c.t.Fatal(err)
	}
	from := slices.IndexFunc([]int{1, 2, 3}, func(i int) bool { return int(slot) < i*clusterSlots/clusterNodes })
	source, target := c.Nodes[from], c.Nodes[(from+1)%clusterNodes]
	id := func(node *Server) string {
		id, err := node.Client().Do(ctx, "CLUSTER", "MYID").Text()
		if err != nil {
			c.t.Fatal(err)
		}
		return id
	}
	sourceID, targetID := id(source), id(target)
	client := source.Client()
	move := func(keys ...string) {
		args := []any{"MIGRATE", "127.0.0.1", target.Port(), "", 0, 10_000, "KEYS"}
		for _, key := range keys {
			args = append(args, key)
		}
		c.run(source, args...)
	}
	c.run(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", sourceID)
	c.run(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", targetID)
	move(key)
	return func() {
		c.t.Helper()
		for {
			keys, err := client.ClusterGetKeysInSlot(ctx, int(slot), 100_000).Result()
			if err != nil {
				c.t.Fatal(err)
			}
			if len(keys) == 0 {
				break
			}
			move(keys...)
		}
		for _, node := range []*Server{target, source, c.Nodes[(from+2)%clusterNodes]} {
			c.run(node, "CLUSTER", "SETSLOT", slot, "NODE", targetID)
		}
	}
}

// URL returns the cluster's URL for [redisx.Parse].
func (c *Cluster) URL() string {
	return "redis+cluster://" + c.Nodes[0].Addr + "?addr=" + c.Nodes[1].Addr + "&addr=" + c.Nodes[2].Addr
}

// info returns a field of a server's replication info, or "" if the server does not answer.
func info(s *Server, field string) string {
	client := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1})
	defer client.Close()
	for line := range strings.Lines(client.Info(context.Background(), "replication").Val()) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(formTimeout); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out after %v waiting until %s", formTimeout, what)
		}
	}
}
