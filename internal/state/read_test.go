package state_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
)

// largestReply is a hook that records the most values of one reply.
type largestReply struct{ values int }

func (l *largestReply) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (l *largestReply) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		switch c := cmd.(type) {
		case *redis.ScanCmd:
			values, _ := c.Val()
			l.values = max(l.values, len(values))
		case *redis.MapStringStringCmd:
			l.values = max(l.values, 2*len(c.Val()))
		}
		return err
	}
}

func (l *largestReply) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestStateOfManyRefsIsReadInPages reads a state that takes Redis and the connection too long at once.
func TestStateOfManyRefsIsReadInPages(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	const refs = 20_000
	ctx, client := t.Context(), redistest.StartReal(t).Client()
	repo := testenv.Must(events.ParseRepoPath("acme/widgets"))(t)
	for chunk := range slices.Chunk(slices.Collect(func(yield func(int) bool) {
		for i := range refs {
			if !yield(i) {
				return
			}
		}
	}), 1000) {
		var fields []any
		for _, i := range chunk {
			ref := fmt.Sprintf("refs/heads/%06d", i)
			fields = append(fields, "head:"+ref, "a", "given:"+ref+":docs", "b", "chain:"+ref, "- a", "asked:"+ref+":", "1-0 "+ref+" a https://git.example.com/acme/widgets.git")
		}
		if err := client.HSet(ctx, events.DefaultNamespace.Repo(repo), append(fields, "trouble", testenv.Refused("robot:docs"))...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	largest := &largestReply{}
	client.AddHook(largest)
	store := state.NewStore(client, events.DefaultNamespace)
	all := testenv.Must(store.Load(ctx, repo))(t)
	readable := testenv.Must(store.LoadReadable(ctx, repo))(t)
	if len(all.Heads()) != refs || len(all.AllGiven()) != refs || len(readable.Heads()) != refs || len(readable.AllGiven()) != refs || !readable.Denied("docs", "robot") {
		t.Errorf("%d and %d heads, %d and %d given", len(all.Heads()), len(readable.Heads()), len(all.AllGiven()), len(readable.AllGiven()))
	}
	if _, answer, ok := readable.Source(testenv.Must(events.ParseRef("000000"))(t)); ok {
		t.Errorf("what apps may read includes %+v", answer)
	}
	if largest.values > 2*refs {
		t.Errorf("a reply has %d values", largest.values)
	}
}
