package lfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"lockstep/internal/git"
	"lockstep/internal/git/wire"
)

const (
	workers    = 8 // concurrent requests, as many as git-lfs sends
	maxTries   = 3 // for one object
	retryDelay = 200 * time.Millisecond
)

// Client downloads objects from an LFS server.
type Client struct {
	Server string // URL, see [Config.Server]
	Ref    string // full name, for the server; optional
	Sender *wire.Sender
	Store  *Store

	// Count is called with the number of bytes received, from several goroutines. Optional.
	Count func(bytes int64)
}

// Object is an object with a path that it is needed for.
type Object struct {
	Pointer
	Path string
}

// Download gets objects, each with another OID, into the store, and returns the paths of its new files. It
// stops at the first batch with a missing object. The first error cancels the other requests.
func (c *Client) Download(ctx context.Context, objects []Object) (stored []string, err error) {
	q := &queue{client: c, waiting: objects}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	for range min(workers, len(objects)) {
		group.Go(func() {
			if err := q.work(ctx); err != nil {
				q.mu.Lock()
				q.failed = cmp.Or(q.failed, err)
				q.mu.Unlock()
				cancel()
			}
		})
	}
	group.Wait()
	return q.stored, q.failed
}

// queue is the state of one Download.
type queue struct {
	client *Client

	batching sync.Mutex // held during a batch request

	mu      sync.Mutex // guards the fields below
	waiting []Object   // without an action
	ready   []task
	size    int // of a batch; 0 for maxBatch
	stored  []string
	failed  error // the first error of a worker
}

// task is an object to download.
type task struct {
	Object
	action action
	tries  int
}

// work handles tasks until none are left.
func (q *queue) work(ctx context.Context) error {
	for {
		t, ok, err := q.next(ctx)
		if err != nil || !ok {
			return err
		}
		if err := q.client.get(ctx, &t); err != nil {
			return err
		}
		q.mu.Lock()
		q.stored = append(q.stored, q.client.Store.path(t.OID))
		q.mu.Unlock()
	}
}

// next returns a task. It sends the next batch request if no task is ready.
func (q *queue) next(ctx context.Context) (task, bool, error) {
	q.batching.Lock()
	defer q.batching.Unlock()
	for {
		q.mu.Lock()
		if n := len(q.ready); n > 0 {
			t := q.ready[n-1]
			q.ready = q.ready[:n-1]
			q.mu.Unlock()
			return t, true, nil
		}
		objects := q.waiting[:min(len(q.waiting), cmp.Or(q.size, maxBatch))]
		q.mu.Unlock()
		if len(objects) == 0 {
			return task{}, false, nil
		}
		if err := q.batch(ctx, objects); err != nil {
			return task{}, false, err
		}
	}
}

// batch makes tasks of the first waiting objects.
func (q *queue) batch(ctx context.Context, objects []Object) error {
	actions, missing, err := q.client.batchWithRetries(ctx, objects)
	q.mu.Lock()
	defer q.mu.Unlock()
	if status, ok := errors.AsType[*wire.Status](err); ok && status.Code == http.StatusRequestEntityTooLarge &&
		len(objects) > 1 {
		q.size = len(objects) / 2
		return nil
	}
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return q.client.missing(objects, missing)
	}
	q.waiting = q.waiting[len(objects):]
	for _, o := range slices.Backward(objects) { // the last is taken first
		q.ready = append(q.ready, task{Object: o, action: actions[o.OID]})
	}
	return nil
}

func (c *Client) batchWithRetries(
	ctx context.Context, objects []Object,
) (actions map[OID]action, missing map[OID]int, err error) {
	for try := 1; ; try++ {
		actions, missing, err = c.batch(ctx, objects)
		if err == nil || try == maxTries || !worthRetrying(err) {
			return actions, missing, err
		}
		if err := pause(ctx, try); err != nil {
			return nil, nil, err
		}
	}
}

// worthRetrying reports whether the same request may succeed soon.
func worthRetrying(err error) bool {
	switch git.ClassOf(err) {
	case git.ClassNetwork, git.ClassServer:
		return git.RetryOf(err) == git.Retryable
	}
	return false
}

func pause(ctx context.Context, try int) error {
	select {
	case <-time.After(retryDelay << (try - 1)):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// missing returns the error for objects that the server does not send, by the code for each.
func (c *Client) missing(objects []Object, codes map[OID]int) error {
	var texts []string
	more := 0
	for _, o := range objects {
		code, is := codes[o.OID]
		switch {
		case !is:
		case code >= 500:
			return c.failed(git.Retryable, git.ClassServer, "it failed for object %s of %q (code %d)", o.OID, o.Path, code)
		case code == http.StatusTooManyRequests:
			return c.failed(git.Retryable, git.ClassServer, "it limits requests for object %s of %q", o.OID, o.Path)
		case len(texts) == 3:
			more++
		default:
			texts = append(texts, fmt.Sprintf("object %s of %q (%s)", o.OID, o.Path, reason(code)))
		}
	}
	text := strings.Join(texts, ", ")
	if more > 0 {
		text += fmt.Sprintf(" and at least %d more", more)
	}
	return c.failed(git.Permanent, git.ClassNotFound,
		"it does not have %s; push what is missing with git lfs push --all", text)
}

func reason(code int) string {
	switch code {
	case http.StatusNotFound:
		return "missing"
	case http.StatusGone:
		return "removed by its owner"
	case http.StatusUnauthorized, http.StatusForbidden:
		return "refused"
	}
	return fmt.Sprintf("code %d", code)
}
