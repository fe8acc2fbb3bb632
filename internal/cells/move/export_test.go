package move

import (
	"context"
	"time"
)

func (q *Queue) Claim(ctx context.Context, n int, hold time.Duration) ([]Request, error) {
	return q.claim(ctx, n, hold)
}

func (q *Queue) Retry(ctx context.Context, r Request, delay time.Duration, marked bool) error {
	return q.retry(ctx, r, delay, marked)
}

func (q *Queue) Done(ctx context.Context, r Request) error { return q.done(ctx, r.Repo) }
