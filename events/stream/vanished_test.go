package stream_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

// reported are the calls of Vanished.
type reported struct {
	mu    sync.Mutex
	calls []string
}

func (r *reported) add(n int64, keys []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, fmt.Sprint(n, " ", strings.Join(keys, ",")))
}

func (r *reported) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// TestVanishedEntries trims entries in each state by hand. Each loss is reported once, and entries that come later are delivered.
func TestVanishedEntries(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	trim := func(client redis.UniversalClient) { client.XTrimMaxLen(ctx, topic, 0) }
	for name, tc := range map[string]struct {
		lose func(t *testing.T, client redis.UniversalClient, w *worker)
		want []string
	}{
		"unread, all": {func(t *testing.T, client redis.UniversalClient, w *worker) {
			pipe := client.TxPipeline() // nobody reads in between
			for i := range 3 {
				pipe.XAdd(ctx, xadd(topic, "id", fmt.Sprint("lost-", i)))
			}
			pipe.XTrimMaxLen(ctx, topic, 0)
			_, _ = pipe.Exec(ctx)
		}, []string{"3 "}},
		"unread, some, by the MAXLEN of a publisher": {func(t *testing.T, client redis.UniversalClient, w *worker) {
			pipe := client.TxPipeline()
			for i := range 5 {
				add := xadd(topic, "id", fmt.Sprint("some-", i))
				add.MaxLen = 2
				pipe.XAdd(ctx, add)
			}
			_, _ = pipe.Exec(ctx)
			w.next().Ack()
			w.next().Ack()
		}, []string{"3 "}},
		"unread, twice": {func(t *testing.T, client redis.UniversalClient, w *worker) {
			for range 2 {
				pipe := client.TxPipeline()
				pipe.XAdd(ctx, xadd(topic, "id", "lost"))
				pipe.XTrimMaxLen(ctx, topic, 0)
				_, _ = pipe.Exec(ctx)
				publish(t, client, 1)
				w.next().Ack()
			}
		}, []string{"1 ", "1 "}},
		"nacked, with its key": {func(t *testing.T, client redis.UniversalClient, w *worker) {
			publishKeyed(t, client, "hot", 1)
			m := w.next()
			if err := delivery(t, m).Nack(ctx, 50*time.Millisecond, false); err != nil {
				t.Fatal(err)
			}
			trim(client)
		}, []string{"1 hot"}},
		"parked, and read as a sibling": {func(t *testing.T, client redis.UniversalClient, w *worker) {
			publishKeyed(t, client, "hot", 2)
			m := w.next()
			eventually(t, "one is parked", func() bool { return pending(t, client)["(parked)"] == 1 })
			trim(client)
			if n := len(allSiblings(t, delivery(t, m), 10)); n != 0 {
				t.Errorf("%d siblings; want none", n)
			}
			m.Ack()
		}, []string{"1 hot"}},
		"that of a dead consumer, without its key": {func(t *testing.T, client redis.UniversalClient, w *worker) {
			publish(t, client, 1)
			m := w.next()
			entry := delivery(t, m).Entry()
			client.XClaim(ctx, &redis.XClaimArgs{Stream: topic, Group: group, Consumer: "dead", Messages: []string{entry}})
			trim(client)
			client.ZAdd(ctx, due, redis.Z{Member: entry})
		}, []string{"1 "}},
		"in flight, but settled": {func(t *testing.T, client redis.UniversalClient, w *worker) {
			publish(t, client, 1)
			m := w.next()
			trim(client)
			m.Ack()
		}, nil},
		"settled": {func(t *testing.T, client redis.UniversalClient, w *worker) {
			publish(t, client, 3)
			for range 3 {
				w.next().Ack()
			}
			clean(t, client)
			trim(client)
		}, nil},
		"the group": {func(t *testing.T, client redis.UniversalClient, w *worker) {
			client.XGroupDestroy(ctx, topic, group)
		}, []string{"0 "}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.StartReal(t) // the embedded Redis does not count what a stream has lost
			client, losses := server.Client(), &reported{}
			publish(t, client, 1)
			w := start(t, server, "a", func(c *stream.SubscriberConfig) {
				c.Vanished, c.Key = losses.add, byMetadata
			})
			w.next().Ack()
			clean(t, client)
			tc.lose(t, client, w)
			eventually(t, "the loss is reported", func() bool { return len(losses.list()) >= len(tc.want) })
			if name != "the group" { // whose entries come again
				publish(t, client, 1)
				w.next().Ack()
			}
			if got := losses.list(); !slices.Equal(got, tc.want) {
				t.Errorf("reported %q; want %q", got, tc.want)
			}
		})
	}
}
