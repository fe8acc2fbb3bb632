package app

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/volume"
	"lockstep/locking"
)

// TestPreparerWaitsUntilTheRepositoryIsFree pushes twice while another job has the lease. Only the last tree is prepared, once
// the job has ended.
func TestPreparerWaitsUntilTheRepositoryIsFree(t *testing.T) {
	t.Parallel()
	ctx, git, client := t.Context(), proctest.StartGit(t), redistest.Start(t).Client()
	proctest.Must(git.Create(ctx, "acme/widgets", map[string]string{"a": "0"}))(t)
	var pushed []volume.PrepareRequest
	v := proctest.Must(volume.OpenVolume(t.TempDir(), volume.Config{
		Replaced: func(req volume.PrepareRequest) { pushed = append(pushed, req) },
	}))(t)
	t.Cleanup(v.Close)
	locker := proctest.Must(locking.New(locking.Config{Redis: client, PubSub: client, Prefix: "lock:", Worker: "w"}))(t)
	repo := proctest.Must(events.ParseRepoPath("acme/widgets"))(t)
	lease := proctest.Must(locker.Acquire(ctx, locking.Request{Key: repo.Key(), Job: "1"}))(t)
	for n := range 3 {
		edit := gitserver.Edit{Write: map[string]string{"a": fmt.Sprint(n + 1)}}
		proctest.Must(git.Commit(ctx, "acme/widgets", gitserver.Main, edit))(t)
		req := volume.SyncRequest{Repo: repo, URL: git.URL("acme/widgets"), Fence: lease.Fence() + uint64(n)}
		proctest.Must(v.Sync(ctx, req))(t)
	}
	if len(pushed) != 2 || v.IsPreparable(pushed[0]) || !v.IsPreparable(pushed[1]) {
		t.Fatalf("after a clone and two pushes, %v; want the second to be preparable", pushed)
	}

	p := newPreparer(volume.NewSlots(1), slog.New(slog.DiscardHandler))
	p.volume, p.locker = v, locker
	for _, req := range pushed {
		p.add(preparation{PrepareRequest: req})
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(running)
	}()
	time.Sleep(2 * prepareAfter)
	if !v.IsPreparable(pushed[1]) {
		t.Error("prepared while another job has the lease")
	}
	if err := lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, func() bool { return !v.IsPreparable(pushed[1]) }, "the tree is prepared")
	stop()
	<-ended
	proctest.Must(0, locker.Close(ctx))(t)
}
