package e2e

import (
	"testing"

	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
)

func TestServiceOnRedisCluster(t *testing.T) {
	t.Parallel()
	git, cluster, root := proctest.StartGit(t), redistest.StartCluster(t), t.TempDir()
	l := newLoad(t, git, redistest.Open(t, cluster.URL()))
	l.repos, l.pushes = 6, 4
	for range 2 {
		proctest.Start(t, "serve", "--redis", cluster.URL(), "--root", root, "--log-level", "warn")
	}
	proctest.Must(0, l.push(t.Context()))(t)
	l.assertDone(t, root)
	used := 0
	for _, node := range cluster.Nodes {
		if proctest.Must(node.Client().DBSize(t.Context()).Result())(t) > 0 {
			used++
		}
	}
	if used != 1 {
		t.Errorf("%d nodes have keys, want one: all keys share a hash tag", used)
	}
}
