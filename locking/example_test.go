package locking_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"lockstep/locking"
)

// open returns a Locker on an embedded Redis.
func open() (locker *locking.Locker, closeAll func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	locker, err = locking.New(locking.Config{Redis: client, Prefix: "{refresh}:", Worker: "w1"})
	if err != nil {
		panic(err)
	}
	return locker, func() {
		_ = locker.Close(context.Background())
		_ = client.Close()
		server.Close()
	}
}

func ExampleLocker_Do() {
	locker, closeAll := open()
	defer closeAll()
	err := locker.Do(context.Background(), locking.Request{Key: "example.org", Job: "42", Operation: "refresh"},
		func(ctx context.Context, lease *locking.Lease) error {
			fmt.Println("refreshing", lease.Key())
			return lease.Confirm(ctx) // before publishing the result
		})
	fmt.Println(err)
	// Output:
	// refreshing example.org
	// <nil>
}

func ExampleLocker_Acquire() {
	ctx := context.Background()
	locker, closeAll := open()
	defer closeAll()
	lease, err := locker.Acquire(ctx, locking.Request{Key: "example.org", Job: "37", Operation: "refresh"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Release(ctx)

	_, err = locker.Acquire(ctx, locking.Request{Key: "example.org", Job: "42", IfHeld: locking.Skip})
	fmt.Println(err)

	_, err = locker.Acquire(ctx, locking.Request{Key: "example.org", Job: "43", Wait: 10 * time.Millisecond})
	if timeout, ok := errors.AsType[*locking.TimeoutError](err); ok {
		fmt.Println("still busy with job", timeout.Holder.Job)
	}
	// Output:
	// example.org is held by job 37 (worker w1, refresh)
	// still busy with job 37
}

// Storage that remembers the highest fence can reject an overtaken holder.
func ExampleLease_Fence() {
	ctx := context.Background()
	locker, closeAll := open()
	defer closeAll()
	var highest uint64
	write := func(fence uint64) bool {
		if fence < highest {
			return false
		}
		highest = fence
		return true
	}
	first, _ := locker.Acquire(ctx, locking.Request{Key: "example.org"})
	_ = first.Release(ctx)
	second, _ := locker.Acquire(ctx, locking.Request{Key: "example.org", Floor: highest})
	defer second.Release(ctx)
	fmt.Println(write(second.Fence()), write(first.Fence()))
	// Output: true false
}
