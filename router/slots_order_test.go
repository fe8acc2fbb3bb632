package router_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/router"
)

// crowd is messages that wait for a slot. Each job records its key and waits until it may end.
type crowd struct {
	t      *testing.T
	slots  *router.Slots
	handle message.HandlerFunc
	begun  chan string // keys of the jobs, in order
	end    chan struct{}
	all    sync.WaitGroup
}

func newCrowd(t *testing.T, slots int) *crowd {
	t.Helper()
	c := &crowd{t: t, slots: router.NewSlots(slots), begun: make(chan string, 10_000), end: make(chan struct{})}
	c.handle = keyed(c.slots.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		c.begun <- string(msg.Payload)
		<-c.end
		return nil, nil
	}))
	t.Cleanup(func() {
		close(c.end)
		c.all.Wait()
	})
	return c
}

func keyed(next message.HandlerFunc) message.HandlerFunc {
	return router.WithKey(func(msg *message.Message) string { return string(msg.Payload) })(next)
}

// add adds a message and returns once it has a slot or waits for one.
func (c *crowd) add(key string, waits bool) {
	c.t.Helper()
	room := c.slots.Room()
	c.all.Go(func() { _, _ = c.handle(message.NewMessage("", []byte(key))) })
	for waits && c.slots.Room() == room {
		runtime.Gosched()
	}
}

// next ends a job and returns the key of the one that takes its slot.
func (c *crowd) next() string {
	c.t.Helper()
	c.end <- struct{}{}
	return within(c.t, c.begun, "next job")
}

func TestColdKeysDoNotWaitForHotOnes(t *testing.T) {
	t.Parallel()
	const hot, perHot, cold = 12, 40, 40
	c := newCrowd(t, 1)
	c.add("h0", false)
	within(t, c.begun, "first job")
	for range perHot {
		for i := range hot {
			c.add(fmt.Sprintf("h%d", i), true)
		}
	}
	for range 3 * hot { // all of them have been served
		c.next()
	}
	for i := range cold {
		key := fmt.Sprintf("c%d", i)
		c.add(key, true)
		if i%2 == 0 {
			continue // two at a time
		}
		for range 2 {
			if got := c.next(); !strings.HasPrefix(got, "c") {
				t.Fatalf("%s got a slot while %s waited", got, key)
			}
		}
	}
	rest := map[string]int{}
	for range hot * (perHot - 3) {
		rest[c.next()]++
	}
	for i := range hot {
		if n := rest[fmt.Sprintf("h%d", i)]; n != perHot-3 {
			t.Errorf("h%d got %d more turns, want %d", i, n, perHot-3)
		}
	}
}

func TestHotKeysTakeTurns(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 1)
	c.add("a", false)
	within(t, c.begun, "first job")
	for _, key := range []string{"a", "a", "a", "b", "b", "c"} {
		c.add(key, true)
	}
	var order []string
	for range 6 {
		order = append(order, c.next())
	}
	if want := []string{"b", "c", "a", "b", "a", "a"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

// TestNewKeysDoNotStarveAKnownOne serves keys that were never seen before without end, beside one that has just been served.
func TestNewKeysDoNotStarveAKnownOne(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 1)
	c.add("known", false)
	within(t, c.begun, "first job")
	c.add("known", true)
	c.add("new 0", true)
	for i := 1; ; i++ {
		c.add(fmt.Sprintf("new %d", i), true)
		if c.next() == "known" {
			break
		}
		if i > 1000 {
			t.Fatal("the known key waited for 1000 new ones")
		}
	}
}

func TestMessagesWithoutKeyAreInOrder(t *testing.T) {
	t.Parallel()
	slots := router.NewSlots(1)
	begun, end := make(chan string), make(chan struct{})
	handle := slots.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		begun <- msg.UUID
		<-end
		return nil, nil
	})
	var all sync.WaitGroup
	defer all.Wait()
	for i := range 5 {
		room := slots.Room()
		all.Go(func() { _, _ = handle(message.NewMessage(fmt.Sprint(i), nil)) })
		if i == 0 {
			within(t, begun, "first job")
			continue
		}
		for slots.Room() == room {
			runtime.Gosched()
		}
	}
	for i := 1; i < 5; i++ {
		end <- struct{}{}
		if got := within(t, begun, "next job"); got != fmt.Sprint(i) {
			t.Errorf("message %s before %d", got, i)
		}
	}
	end <- struct{}{}
}

// inHand is a message that is being handled.
type inHand struct{ *message.Message }

func (w inHand) Yield() (resume func(context.Context) error) { return router.Yield(w.Message) }

// yielding runs a message whose handler is f, with these slots, and returns its error.
func yielding(ctx context.Context, t *testing.T, slots *router.Slots, repo string, f func(job inHand) error) <-chan error {
	t.Helper()
	msg := message.NewMessage(repo, nil)
	msg.SetContext(ctx)
	handle := router.WithKey(func(*message.Message) string { return repo })(slots.Middleware(
		func(msg *message.Message) ([]*message.Message, error) { return nil, f(inHand{msg}) }))
	ended := make(chan error, 1)
	go func() {
		_, err := handle(msg)
		ended <- err
	}()
	return ended
}

func TestYieldedSlotServesAnotherJob(t *testing.T) {
	t.Parallel()
	slots := router.NewSlots(1)
	ctx := context.Background()
	yielded, answer := make(chan struct{}), make(chan struct{})
	resumed := false
	waits := yielding(ctx, t, slots, "acme/slow", func(job inHand) error {
		resume := job.Yield()
		close(yielded)
		<-answer
		err := resume(ctx)
		resumed = err == nil
		return errors.Join(err, resume(ctx)) // once is enough
	})
	within(t, yielded, "yield")
	working, finish := make(chan struct{}), make(chan struct{})
	works := yielding(ctx, t, slots, "acme/fast", func(inHand) error {
		close(working)
		<-finish
		return nil
	})
	within(t, working, "job in the yielded slot")
	idle := slots.Room()
	close(answer)
	for slots.Room() != idle-1 { // it waits for its slot
		runtime.Gosched()
	}
	select {
	case <-waits:
		t.Error("two jobs with one slot")
	default:
	}
	close(finish)
	if err := errors.Join(within(t, works, "end"), within(t, waits, "end")); err != nil || !resumed {
		t.Errorf("%v, resumed %v", err, resumed)
	}
	if slots.Room() != idle {
		t.Errorf("room %d, want %d", slots.Room(), idle)
	}
	if err := within(t, yielding(ctx, t, slots, "acme/last", func(inHand) error { return nil }), "job afterwards"); err != nil {
		t.Error(err)
	}
}

// TestJobThatDoesNotResume ends jobs while their slot is given back: it must be free exactly once.
func TestJobThatDoesNotResume(t *testing.T) {
	t.Parallel()
	slots := router.NewSlots(1)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	working, finish := make(chan struct{}), make(chan struct{})
	busy := func() <-chan error {
		ended := yielding(context.Background(), t, slots, "acme/busy", func(inHand) error {
			working <- struct{}{}
			<-finish
			return nil
		})
		within(t, working, "busy job")
		return ended
	}
	var other <-chan error
	for _, f := range []func(job inHand) error{
		func(job inHand) error { job.Yield(); return nil },
		func(job inHand) error {
			resume := job.Yield()
			other = busy() // takes the slot
			if err := resume(cancelled); !errors.Is(err, context.Canceled) {
				t.Errorf("resume: %v", err)
			}
			return nil
		},
	} {
		if err := within(t, yielding(context.Background(), t, slots, "acme/widgets", f), "end"); err != nil {
			t.Error(err)
		}
	}
	finish <- struct{}{}
	within(t, other, "end")
	first := busy()
	second := yielding(context.Background(), t, slots, "acme/second", func(inHand) error {
		working <- struct{}{}
		<-finish
		return nil
	})
	select {
	case <-working:
		t.Error("two jobs with one slot")
	case <-time.After(50 * time.Millisecond): // a job that is wrongly let in needs far less
	}
	finish <- struct{}{}
	within(t, working, "second job")
	finish <- struct{}{}
	if err := errors.Join(within(t, first, "end"), within(t, second, "end")); err != nil {
		t.Error(err)
	}
}

func TestCloseLetsYieldedJobsContinue(t *testing.T) {
	t.Parallel()
	slots := router.NewSlots(1)
	ctx := context.Background()
	yielded, answer := make(chan struct{}), make(chan struct{})
	continues := yielding(ctx, t, slots, "acme/slow", func(job inHand) error {
		resume := job.Yield()
		close(yielded)
		<-answer
		return resume(ctx)
	})
	within(t, yielded, "yield")
	working, finish := make(chan struct{}), make(chan struct{})
	works := yielding(ctx, t, slots, "acme/busy", func(inHand) error {
		close(working)
		<-finish
		return nil
	})
	within(t, working, "job in the yielded slot")
	idle := slots.Room()
	close(answer)
	returns := yielding(ctx, t, slots, "acme/late", func(inHand) error { return nil })
	for slots.Room() != idle-2 { // one waits for its slot again, the other for its first
		runtime.Gosched()
	}
	slots.Close()
	if err := within(t, returns, "end of the wait"); events.ClassOf(err) != events.ClassShutdown {
		t.Errorf("a job that had not begun: %v", err)
	}
	close(finish)
	if err := errors.Join(within(t, works, "end"), within(t, continues, "end")); err != nil {
		t.Errorf("jobs in flight: %v", err)
	}
}

// TestManyJobsYield checks the limit with many jobs that yield, some of which are cancelled.
func TestManyJobsYield(t *testing.T) {
	t.Parallel()
	const size, jobs = 3, 300
	slots := router.NewSlots(size)
	var mu sync.Mutex
	busy, most := 0, 0
	step := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		busy += n
		most = max(most, busy)
	}
	var ended []<-chan error
	for i := range jobs {
		ctx, cancel := context.WithCancel(context.Background())
		ended = append(ended, yielding(ctx, t, slots, fmt.Sprintf("acme/r%d", i%20), func(job inHand) error {
			step(1)
			for range 3 {
				step(-1)
				resume := job.Yield()
				runtime.Gosched()
				if i%7 == 0 {
					cancel()
				}
				if err := resume(ctx); err != nil {
					return err
				}
				step(1)
			}
			step(-1)
			return nil
		}))
		t.Cleanup(cancel)
	}
	for _, c := range ended {
		_ = within(t, c, "end of a job")
	}
	if slots.Room() != 4*size {
		t.Errorf("room %d, want %d", slots.Room(), 4*size)
	}
	if most > size || busy != 0 {
		t.Errorf("%d jobs at once with %d slots, %d at the end", most, size, busy)
	}
}
