package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/operate"
	"lockstep/internal/redistest"
	"lockstep/locking"
)

// hold acquires the lease on acme/widgets.
func hold(t *testing.T, redisServer *redistest.Server) *locking.Lease {
	t.Helper()
	locker, err := locking.New(locking.Config{Redis: redisServer.Client(), Prefix: events.DefaultNamespace.Locks(), Worker: "w1"})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := locker.Acquire(context.Background(), locking.Request{Key: "acme/widgets", Job: "37", Operation: "sync"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = lease.Release(context.Background())
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := locker.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return lease
}

func TestLocksAreReadableWithoutToken(t *testing.T) {
	t.Parallel()
	url, redisServer := startServer(t, "t0ken")
	lease := hold(t, redisServer)
	var list struct{ Locks []operate.Lease }
	status, text := do(t, "GET", url+"/api/v1/locks", "", nil)
	if err := json.Unmarshal([]byte(text), &list); err != nil || status != http.StatusOK || len(list.Locks) != 1 {
		t.Fatalf("%d %s", status, text)
	}
	var lock operate.Lease
	status, text = do(t, "GET", url+"/api/v1/locks/Acme/Widgets", "", nil)
	if err := json.Unmarshal([]byte(text), &lock); err != nil || status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	if !lock.Held || lock.Repo != "acme/widgets" || *lock.Holder != (operate.Party{Worker: "w1", Job: "37", Operation: "sync"}) || lock.Fence != lease.Fence() {
		t.Errorf("lock %+v", lock)
	}
	if status, text := do(t, "GET", url+"/api/v1/locks/acme/other", "", nil); status != http.StatusOK || !json.Valid([]byte(text)) {
		t.Errorf("a free lock: %d %s", status, text)
	}
	if status, text := do(t, "GET", url+"/api/v1/locks/acme", "", nil); status != http.StatusBadRequest {
		t.Errorf("an invalid path: %d %s", status, text)
	}
}

func TestReleaseNeedsTokenAndFence(t *testing.T) {
	t.Parallel()
	url, redisServer := startServer(t, "t0ken")
	lease := hold(t, redisServer)
	target := url + "/api/v1/locks/acme/widgets"
	auth := http.Header{"Authorization": {"Bearer t0ken"}}
	for name, tc := range map[string]struct {
		query  string
		header http.Header
		status int
	}{
		"a wrong token": {fmt.Sprint("?fence=", lease.Fence()), http.Header{"Authorization": {"Bearer token"}}, http.StatusUnauthorized},
		"no fence":      {"", auth, http.StatusBadRequest},
		"another fence": {"?fence=1", auth, http.StatusConflict},
	} {
		if status, text := do(t, "DELETE", target+tc.query, "", tc.header); status != tc.status {
			t.Errorf("%s: %d %s, want %d", name, status, text, tc.status)
		}
	}
	if lease.Context().Err() != nil {
		t.Fatal("one of these requests released the lease")
	}
	status, text := do(t, "DELETE", fmt.Sprint(target, "?fence=", lease.Fence()), "", auth)
	var released operate.ReleasedLease
	if err := json.Unmarshal([]byte(text), &released); err != nil || status != http.StatusOK || released.From.Job != "37" {
		t.Fatalf("%d %s", status, text)
	}
	select {
	case <-lease.Context().Done():
	case <-time.After(time.Minute):
		t.Fatal("the holder's context is not cancelled")
	}
	if cause := context.Cause(lease.Context()); !errors.Is(cause, locking.ErrLost) {
		t.Errorf("cause %v, want ErrLost", cause)
	}
}
