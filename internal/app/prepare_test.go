package app

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
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

	stop := prepareAll(t, v, locker, volume.NewSlots(1), pushed)
	time.Sleep(2 * prepareAfter)
	if !v.IsPreparable(pushed[1]) {
		t.Error("prepared while another job has the lease")
	}
	if err := lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, func() bool { return !v.IsPreparable(pushed[1]) }, "the tree is prepared")
	stop()
	proctest.Must(0, locker.Close(ctx))(t)
}

// TestPreparerGivesWayToJobs syncs another repository with the only slot while a tree is prepared. The preparation is
// repeated after that.
func TestPreparerGivesWayToJobs(t *testing.T) {
	t.Parallel()
	ctx, git, client := t.Context(), proctest.StartGit(t), redistest.Start(t).Client()
	proctest.Must(git.Create(ctx, "acme/widgets", map[string]string{"a": "0"}))(t)
	proctest.Must(git.Create(ctx, "acme/gadgets", map[string]string{"a": "0"}))(t)
	slots, linked, queued := volume.NewSlots(1), make(chan struct{}), make(chan struct{})
	var first sync.Once
	v := proctest.Must(volume.OpenVolume(t.TempDir(), volume.Config{Slots: slots, Step: func(name string) {
		if name == "linked" {
			first.Do(func() {
				close(linked)
				<-queued
			})
		}
	}}))(t)
	t.Cleanup(v.Close)
	locker := proctest.Must(locking.New(locking.Config{Redis: client, PubSub: client, Prefix: "lock:", Worker: "w"}))(t)
	sync := func(path string) volume.PrepareRequest {
		repo := proctest.Must(events.ParseRepoPath(path))(t)
		res := proctest.Must(v.Sync(ctx, volume.SyncRequest{Repo: repo, URL: git.URL(path), Fence: 1}))(t)
		return volume.PrepareRequest{Repo: repo, Ref: res.Ref}
	}
	next := sync("acme/widgets")
	stop := prepareAll(t, v, locker, slots, []volume.PrepareRequest{next})
	<-linked
	idle := slots.Room()
	go func() {
		for slots.Room() == idle {
			time.Sleep(time.Millisecond)
		}
		if !v.IsPreparable(next) {
			t.Error("prepared already")
		}
		close(queued)
	}()
	sync("acme/gadgets")
	proctest.Eventually(t, func() bool { return !v.IsPreparable(next) }, "the tree is prepared")
	stop()
	proctest.Must(0, locker.Close(ctx))(t)
}

// prepareAll runs a preparer for the requests until stop.
func prepareAll(
	t *testing.T, v *volume.Volume, locker *locking.Locker, slots *volume.Slots, reqs []volume.PrepareRequest,
) (stop func()) {
	p := newPreparer(slots, slog.New(slog.DiscardHandler))
	p.volume, p.locker = v, locker
	for _, req := range reqs {
		p.add(preparation{PrepareRequest: req})
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return stop
}
