package redisx_test

import (
	"context"
	"testing"

	"lockstep/internal/redistest"
	"lockstep/internal/redisx"
	"lockstep/internal/testenv"
)

// TestDurabilityIsThatOfTheNodeWithTheKey has one node of three with weaker settings than the others: only keys on that node are in danger.
func TestDurabilityIsThatOfTheNodeWithTheKey(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	for i, node := range cluster.Nodes {
		fsync := "always"
		if i == 1 {
			fsync = "everysec"
		}
		for name, value := range map[string]string{"appendonly": "yes", "appendfsync": fsync} {
			testenv.Must(0, node.Client().ConfigSet(context.Background(), name, value).Err())(t)
		}
	}
	client := testenv.Must(redisx.Parse(cluster.URL(), nil))(t).Open()
	defer client.Close()
	for key, want := range map[string]redisx.DurabilityLevel{"{c}": redisx.WeaklyDurable, "{b}": redisx.Durable, "{a}": redisx.Durable} { // slots 7365, 3300, 15495
		for range 10 { // commands without a key go to a random node
			if got := redisx.ReadDurability(t.Context(), client, key); got.Level != want {
				t.Errorf("of key %s: %+v, want %s", key, got, want)
			}
		}
	}
}
