package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// worker implements the worker protocol: "ready", a newline from the harness, and a line for each grant.
type worker struct {
	stdin          io.Reader
	stdout         io.Writer
	version        string
	waiters        int
	hold, duration time.Duration
}

// grant is a period during which a waiter held the lock, in nanoseconds of CLOCK_MONOTONIC.
type grant struct{ asked, granted, released int64 }

func (w worker) run(ctx context.Context, l lock) error {
	fmt.Fprintln(w.stdout, "ready", w.version)
	if _, err := bufio.NewReader(w.stdin).ReadString('\n'); err != nil {
		return fmt.Errorf("wait for the start: %w", err)
	}
	// No deadline: the libraries shorten leases or retries to it.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(w.duration, cancel).Stop()

	grants := make([][]grant, w.waiters) // printed at the end, so that the pipe is not measured
	errs := make([]error, w.waiters)
	var waiting sync.WaitGroup
	for i := range w.waiters {
		waiting.Go(func() { grants[i], errs[i] = w.contend(ctx, l) })
	}
	waiting.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	out := bufio.NewWriter(w.stdout)
	for i, of := range grants {
		for _, g := range of {
			fmt.Fprintln(out, i, g.asked, g.granted, g.released)
		}
	}
	return out.Flush()
}

// contend acquires, holds and releases until ctx ends.
func (w worker) contend(ctx context.Context, l lock) ([]grant, error) {
	var grants []grant
	for ctx.Err() == nil {
		g := grant{asked: monotonic()}
		release, err := l.acquire(ctx)
		for ctx.Err() == nil && err != nil && l.gaveUp(err) {
			release, err = l.acquire(ctx)
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return grants, nil
		case err != nil:
			return nil, fmt.Errorf("acquire: %w", err)
		}
		g.granted = monotonic()
		time.Sleep(w.hold)
		g.released = monotonic()
		if err := release(); err != nil {
			return nil, fmt.Errorf("release: %w", err)
		}
		grants = append(grants, g)
	}
	return grants, nil
}

func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // available on every Linux
	}
	return t.Nano()
}
