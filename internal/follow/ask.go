package follow

import (
	"context"

	"lockstep/events"
)

// A slow reader takes seconds to answer. Frames of the stream and results of the local worker are handled
// meanwhile, so the answer may be older than these: then it is requested again.

// inBackground calls request in a goroutine, and has apply call what it returns.
func (f *Follower) inBackground(ctx context.Context, request func() (note func())) {
	f.asking.Go(func() {
		note := request()
		select {
		case f.answers <- note:
		case <-ctx.Done():
		}
	})
}

// touch records that a frame is about the repositories of a result. Answers that were requested before may be older.
func (f *Follower) touch(result events.Result) {
	if !f.listing && len(f.compared) == 0 {
		clear(f.touched)
		return
	}
	f.touched[result.Repo.Key()] = f.position.number
	if !result.To.IsZero() {
		f.touched[result.To.Key()] = f.position.number
	}
}
