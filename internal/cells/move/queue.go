package move

import (
	"context"
	_ "embed" // the script
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
)

// Request is a request to move a repository to the cell that keeps it.
type Request struct {
	Repo  events.RepoPath `json:"repo"`
	From  string          `json:"from"`          // the cell where it is
	Epoch int64           `json:"epoch"`         // of the directory when it was requested
	Pin   bool            `json:"pin,omitempty"` // it stays in the new cell whatever the weights

	Requested time.Time    `json:"requested"`
	Tries     int          `json:"tries,omitempty"` // failed attempts
	Error     string       `json:"error,omitempty"` // of the last attempt
	Class     events.Class `json:"class,omitempty"`
	Refused   bool         `json:"refused,omitempty"` // the error is permanent
}

// Queue keeps the requests to move repositories to one cell. It is safe for concurrent use by any number of processes.
type Queue struct {
	redis     redis.UniversalClient
	namespace events.Namespace
}

// NewQueue returns the queue of the cell with a prefix.
func NewQueue(client redis.UniversalClient, namespace events.Namespace) *Queue {
	return &Queue{redis: client, namespace: namespace}
}

//go:embed claim.lua
var claimSource string

var claimScript = redis.NewScript(claimSource)

func (q *Queue) requests() string { return q.namespace.Arrivals() }

func (q *Queue) due() string { return q.namespace.Arrivals() + ":due" }

// Request adds a request, due now. If one is kept for the repository already, Request returns false; if again
// is set, it replaces that one, and makes it due now unless it is begun.
func (q *Queue) Request(ctx context.Context, r Request, again bool) (added bool, err error) {
	if r.Requested.IsZero() {
		r.Requested = time.Now().UTC()
	}
	document, err := json.Marshal(r)
	if err != nil {
		return false, err
	}
	var kept *redis.BoolCmd
	_, err = q.redis.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		kept = pipe.HExists(ctx, q.requests(), r.Repo.Key())
		if again {
			pipe.HSet(ctx, q.requests(), r.Repo.Key(), document)
		} else {
			pipe.HSetNX(ctx, q.requests(), r.Repo.Key(), document)
		}
		pipe.ZAddArgs(ctx, q.due(), redis.ZAddArgs{
			LT: again, NX: !again, Members: []redis.Z{{Score: 0, Member: r.Repo.Key()}},
		})
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("request the move of %s: %w", r.Repo, err)
	}
	return !kept.Val(), nil
}

// Get returns the request for a repository, or false.
func (q *Queue) Get(ctx context.Context, repo events.RepoPath) (Request, bool, error) {
	document, err := q.redis.HGet(ctx, q.requests(), repo.Key()).Result()
	if errors.Is(err, redis.Nil) {
		return Request{}, false, nil
	}
	if err != nil {
		return Request{}, false, fmt.Errorf("read the move of %s: %w", repo, err)
	}
	var r Request
	if err := json.Unmarshal([]byte(document), &r); err != nil {
		return Request{}, false, fmt.Errorf("read the move of %s: %w", repo, err)
	}
	return r, true, nil
}

// Len returns the number of requests.
func (q *Queue) Len(ctx context.Context) (int64, error) {
	n, err := q.redis.HLen(ctx, q.requests()).Result()
	if err != nil {
		return 0, fmt.Errorf("count the moves to the cell: %w", err)
	}
	return n, nil
}

// Failed returns up to limit requests whose last attempt failed.
func (q *Queue) Failed(ctx context.Context, limit int) (failed []Request, err error) {
	for cursor := uint64(0); ; {
		page, next, err := q.redis.HScan(ctx, q.requests(), cursor, "*", 1000).Result()
		if err != nil {
			return nil, fmt.Errorf("read the moves to the cell: %w", err)
		}
		for i := 1; i < len(page); i += 2 {
			var r Request
			if json.Unmarshal([]byte(page[i]), &r) == nil && r.Error != "" {
				failed = append(failed, r)
			}
		}
		if cursor = next; cursor == 0 || len(failed) >= limit {
			return failed[:min(limit, len(failed))], nil
		}
	}
}

// claim returns up to n requests that are due, which nobody else gets within hold.
func (q *Queue) claim(ctx context.Context, n int, hold time.Duration) (claimed []Request, err error) {
	documents, err := claimScript.Run(ctx, q.redis, []string{q.requests(), q.due()}, n, hold.Milliseconds()).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("claim moves: %w", err)
	}
	for _, document := range documents {
		var r Request
		if err := json.Unmarshal([]byte(document), &r); err != nil {
			return nil, fmt.Errorf("claim moves: %w", err)
		}
		claimed = append(claimed, r)
	}
	return claimed, nil
}

// dueAt returns the score of a request that is due at a time: negative once it is begun, so that claim.lua
// finds it first.
func dueAt(at time.Time, begun bool) float64 {
	if begun {
		return -float64(at.UnixMilli())
	}
	return float64(at.UnixMilli())
}

// renew renews the claim of a request for a time from now. It does nothing if the request is gone.
func (q *Queue) renew(ctx context.Context, repo events.RepoPath, hold time.Duration) error {
	now, err := stream.Time(ctx, q.redis, q.due())
	if err != nil {
		return err
	}
	return q.redis.ZAddXX(ctx, q.due(), redis.Z{Score: dueAt(now.Add(hold), true), Member: repo.Key()}).Err()
}

// done removes a request.
func (q *Queue) done(ctx context.Context, repo events.RepoPath) error {
	_, err := q.redis.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.HDel(ctx, q.requests(), repo.Key())
		pipe.ZRem(ctx, q.due(), repo.Key())
		return nil
	})
	if err != nil {
		return fmt.Errorf("remove the request to move %s: %w", repo, err)
	}
	return nil
}

// retry keeps a request with the outcome of an attempt, due after a delay. After the mark it comes before
// those that are not begun.
func (q *Queue) retry(ctx context.Context, r Request, delay time.Duration, marked bool) error {
	document, err := json.Marshal(r)
	if err != nil {
		return err
	}
	now, err := stream.Time(ctx, q.redis, q.due())
	if err != nil {
		return fmt.Errorf("keep the request to move %s: %w", r.Repo, err)
	}
	_, err = q.redis.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.HSet(ctx, q.requests(), r.Repo.Key(), document)
		pipe.ZAdd(ctx, q.due(), redis.Z{Score: dueAt(now.Add(delay), marked), Member: r.Repo.Key()})
		return nil
	})
	if err != nil {
		return fmt.Errorf("keep the request to move %s: %w", r.Repo, err)
	}
	return nil
}
