package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/telemetry"
	"lockstep/internal/testenv"
)

// TestScaleCountsWhatWorkersCanDo counts the workers wanted: for one change and for several before there is any worker, for changes
// that a worker handles, and for those that only wait for their next attempt. At the end it asks a receiver, which caches the figures.
func TestScaleCountsWhatWorkersCanDo(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	git, redisServer := proctest.StartGit(t), redistest.Start(t)
	client, ctx := redisServer.Client(), context.Background()
	blocked := make(chan struct{})
	release := sync.OnceFunc(func() { close(blocked) })
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-blocked
		w.WriteHeader(http.StatusInternalServerError)
	}))
	t.Cleanup(remote.Close)
	t.Cleanup(release)

	expect := func(what string, want telemetry.Demand, workers int64) {
		t.Helper()
		proctest.Eventually(t, func() bool {
			stats := proctest.Must(stream.Stats(ctx, client, string(events.DefaultNamespace), events.DefaultNamespace.Changes()))(t)
			got := telemetry.DemandOf(stats, events.WorkersGroup)
			return got == want && got.Consumers(4) == workers
		}, "%s: want %+v and %d workers", what, want, workers)
	}
	send := func(repo, remote string) {
		t.Helper()
		err := client.XAdd(ctx, &redis.XAddArgs{Stream: events.DefaultNamespace.Changes(), Values: []string{"repo", repo, "url", remote, "ref", "refs/heads/main"}}).Err()
		proctest.Must(0, err)(t)
	}

	expect("nothing", telemetry.Demand{}, 0)
	send("acme/slow-0", remote.URL+"/acme/slow-0.git")
	expect("one change, no worker", telemetry.Demand{Ready: 1}, 1)
	for n := range 6 {
		repo := fmt.Sprintf("acme/good-%d", n)
		proctest.Must(git.Create(ctx, repo, map[string]string{"README.md": "hello\n"}))(t)
		send(repo, git.URL(repo))
	}
	send("acme/slow-1", remote.URL+"/acme/slow-1.git")
	send("acme/slow-2", remote.URL+"/acme/slow-2.git")
	expect("nine changes, no worker", telemetry.Demand{Ready: 9}, 3)

	worker := proctest.Start(t, "serve", "--redis", redisServer.URL(), "--root", t.TempDir(), "--roles", "worker", "--slots", "4", "--lease", "10m", "--lock-wait", "10m")
	expect("three changes wait for their remote", telemetry.Demand{Running: 3}, 1)
	release()
	expect("three changes wait for their next attempt", telemetry.Demand{Parked: 3}, 0)
	if code := worker.Terminate(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	send("acme/good-0", git.URL("acme/good-0"))
	expect("one change, the worker has stopped", telemetry.Demand{Ready: 1, Parked: 3}, 1)

	receiver := proctest.Start(t, "serve", "--redis", redisServer.URL(), "--roles", "receiver", "--listen", "127.0.0.1:0", "--slots", "4")
	url := "http://" + receiver.ListenAddress("listening")
	want := server.Scale{Ready: 1, Parked: 3, Wanted: 1, Slots: 4}
	proctest.Eventually(t, func() bool { // a busy Redis does not answer in time
		var got server.Scale
		proctest.Must(0, json.Unmarshal([]byte(get(t, url+"/api/v1/scale")), &got))(t)
		return got == want
	}, "%+v", want)
	proctest.Eventually(t, func() bool { return strings.Contains(get(t, url+"/metrics"), "\nlockstep_workers_wanted 1\n") }, "the metric says that one worker is wanted")
}

// get returns the body of an answer.
func get(t *testing.T, url string) string {
	t.Helper()
	resp := proctest.Must(http.Get(url))(t)
	defer resp.Body.Close()
	return string(proctest.Must(io.ReadAll(resp.Body))(t))
}
