package execute

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// calls records the calls of a function, as name and time since the start.
type calls struct {
	began time.Time
	mu    sync.Mutex
	made  []string
}

func (c *calls) add(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made = append(c.made, name+" "+time.Since(c.began).String())
	return len(c.made)
}

func TestFailedCallsAreRepeatedWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := calls{began: time.Now()}
		l := Latest{AtOnce: 1, First: time.Second, Last: 3 * time.Second, Do: func(_ context.Context, name string) error {
			if c.add(name) < 5 {
				return errors.New("not yet")
			}
			return nil
		}}
		l.Offer(t.Context(), "a")
		time.Sleep(7 * time.Second)
		if l.Open() != 1 {
			t.Errorf("%d names are open", l.Open())
		}
		l.Offer(t.Context(), "a") // a newer tree is not made to wait
		l.Wait()
		if want := []string{"a 0s", "a 1s", "a 3s", "a 6s", "a 7s"}; !slices.Equal(c.made, want) || l.Open() != 0 {
			t.Errorf("%v, want %v; %d open", c.made, want, l.Open())
		}
	})
}

func TestOfferDuringACallIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := calls{began: time.Now()}
		l := Latest{AtOnce: 2, Do: func(_ context.Context, name string) error {
			c.add(name)
			time.Sleep(time.Second)
			return nil
		}}
		for range 3 {
			l.Offer(t.Context(), "a")
			synctest.Wait()
		}
		l.Offer(t.Context(), "b")
		l.Wait()
		slices.Sort(c.made)
		if want := []string{"a 0s", "a 1s", "b 0s"}; !slices.Equal(c.made, want) {
			t.Errorf("%v, want %v", c.made, want)
		}
	})
}

func TestCallsAtOnceAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := calls{began: time.Now()}
		l := Latest{AtOnce: 2, Do: func(context.Context, string) error {
			c.add("")
			time.Sleep(time.Second)
			return nil
		}}
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			l.Offer(t.Context(), name)
		}
		l.Wait()
		if want := []string{" 0s", " 0s", " 1s", " 1s", " 2s"}; !slices.Equal(c.made, want) {
			t.Errorf("%v, want %v", c.made, want)
		}
	})
}

func TestNothingIsCalledAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := calls{began: time.Now()}
		l := Latest{AtOnce: 1, First: time.Hour, Last: time.Hour, Do: func(context.Context, string) error {
			c.add("")
			return errors.New("no")
		}}
		l.Offer(ctx, "a")
		synctest.Wait()
		cancel()
		l.Wait()
		l.Offer(ctx, "b")
		l.Wait()
		if len(c.made) != 1 || time.Since(c.began) != 0 {
			t.Errorf("%v after %v", c.made, time.Since(c.began))
		}
	})
}
