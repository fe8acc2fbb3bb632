package router_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/redisx"
	"lockstep/internal/testenv"
	"lockstep/locking"
	"lockstep/router"
)

// byPayload makes a message's payload its key.
func byPayload(msg *message.Message) ([]locking.Request, error) {
	return []locking.Request{{Key: string(msg.Payload), Job: msg.UUID, Operation: "test"}}, nil
}

// pubsub is one kind of Pub/Sub that the lock middleware runs over.
type pubsub struct {
	pub  message.Publisher
	subs []message.Subscriber
}

func eachPubSub(t *testing.T, server *redistest.Server) map[string]func(t *testing.T) pubsub {
	stock := func(t *testing.T, consumer string) message.Subscriber {
		own, err := redisx.Parse(server.URL(), nil)
		if err != nil {
			t.Fatal(err)
		}
		sub, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{
			Client: own.Open(), ConsumerGroup: "stock", Consumer: consumer, NackResendSleep: 10 * time.Millisecond,
			BlockTime: 50 * time.Millisecond,
		}, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		return sub
	}
	return map[string]func(t *testing.T) pubsub{
		"lockstep": func(t *testing.T) pubsub {
			client := server.Client()
			return pubsub{newPublisher(t, client), []message.Subscriber{newSubscriber(t, client), newSubscriber(t, client)}}
		},
		"watermill-redisstream": func(t *testing.T) pubsub {
			return pubsub{newPublisher(t, server.Client()), []message.Subscriber{stock(t, "a"), stock(t, "b")}}
		},
		"GoChannel": func(*testing.T) pubsub {
			channel := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 100, Persistent: true}, watermill.NopLogger{})
			return pubsub{channel, []message.Subscriber{channel}}
		},
	}
}

func TestLockHandlesOneMessagePerKey(t *testing.T) {
	t.Parallel()
	const keys, perKey = 3, 8
	server := redistest.Start(t)
	for name, make := range eachPubSub(t, server) {
		t.Run(name, func(t *testing.T) {
			topic := prefix + newUUID()
			ps := make(t)
			locker := newLocker(t, server.Client(), 30*time.Second)
			var mu sync.Mutex
			busy, done := map[string]int{}, map[string]bool{}
			finished := newSignal(keys * perKey)
			handler := func(msg *message.Message) ([]*message.Message, error) {
				key := string(msg.Payload)
				mu.Lock()
				busy[key]++
				if busy[key] > 1 {
					t.Errorf("two messages of %s at once", key)
				}
				mu.Unlock()
				if len(router.Leases(msg)) != 1 {
					t.Error("the handler has no lease")
				}
				time.Sleep(2 * time.Millisecond) // long enough for another handler to start
				mu.Lock()
				busy[key]--
				duplicate := done[msg.UUID]
				done[msg.UUID] = true
				mu.Unlock()
				if !duplicate {
					finished.one()
				}
				return nil, nil
			}
			var routes []router.Route
			for i, sub := range ps.subs {
				routes = append(routes, router.Route{Name: name + string(rune('a'+i)), Topic: topic, Subscriber: sub,
					Handler: handler, Locker: locker, Request: byPayload, Dispose: router.Disposer{Log: quiet()}})
			}
			run(t, routes...)
			for i := range keys * perKey {
				publishTo(t, ps.pub, topic, newUUID(), []byte{'k', byte('0' + i%keys)})
			}
			testenv.Receive(t, finished.all, "end of all messages")
		})
	}
}

func TestLockTimeoutRedelivers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, make := range eachPubSub(t, server) {
		t.Run(name, func(t *testing.T) {
			topic, key := prefix+newUUID(), newUUID()
			ps := make(t)
			client := server.Client()
			lease, err := newLocker(t, client, time.Second).Acquire(context.Background(), locking.Request{Key: key, Job: "37"})
			if err != nil {
				t.Fatal(err)
			}
			timedOut, handled := newSignal(1), newSignal(1)
			watch := func(next message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					produced, err := next(msg)
					if timeout, ok := errors.AsType[*locking.TimeoutError](err); ok {
						if timeout.Holder.Job != "37" || events.DispositionOf(err) != events.Contention {
							t.Errorf("%v: holder %q, disposition %v", err, timeout.Holder.Job, events.DispositionOf(err))
						}
						timedOut.one()
					}
					return produced, err
				}
			}
			lock := router.Lock(newLocker(t, client, 50*time.Millisecond), byPayload)
			run(t, router.Route{Name: name, Topic: topic, Subscriber: ps.subs[0],
				Dispose: router.Disposer{Log: quiet(), Retry: router.Retry{Base: 10 * time.Millisecond}},
				Handler: watch(lock(func(*message.Message) ([]*message.Message, error) { handled.one(); return nil, nil })),
			})
			publishTo(t, ps.pub, topic, newUUID(), []byte(key))
			testenv.Receive(t, timedOut.all, "lock timeout")
			if err := lease.Release(context.Background()); err != nil {
				t.Fatal(err)
			}
			testenv.Receive(t, handled.all, "redelivery after the timeout")
		})
	}
}

func TestLockWaiterDelaysNoOtherKey(t *testing.T) {
	t.Parallel()
	client := startRedis(t)
	lease, err := newLocker(t, client, time.Second).Acquire(context.Background(), locking.Request{Key: "busy"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Release(context.Background()) }()
	free := newSignal(1)
	run(t, router.Route{Name: "r", Topic: topic, Subscriber: newSubscriber(t, client),
		Locker: newLocker(t, client, time.Minute), Request: byPayload, Dispose: router.Disposer{Log: quiet()},
		Handler: func(*message.Message) ([]*message.Message, error) { free.one(); return nil, nil }})
	pub := newPublisher(t, client)
	publishTo(t, pub, topic, "1", []byte("busy"))
	publishTo(t, pub, topic, "2", []byte("free"))
	testenv.Receive(t, free.all, "message of a free key")
}

// signal closes all after n calls of one.
type signal struct {
	mu  sync.Mutex
	n   int
	all chan struct{}
}

func newSignal(n int) *signal { return &signal{n: n, all: make(chan struct{})} }

func (s *signal) one() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n--; s.n == 0 {
		close(s.all)
	}
}

func TestClosingLockerReturnsMessage(t *testing.T) {
	t.Parallel()
	client := startRedis(t)
	locker := newLocker(t, client, time.Second)
	lock := router.Lock(locker, byPayload)
	began := make(chan struct{})
	ended := make(chan error, 1)
	msg := message.NewMessage("1", []byte("k"))
	before := msg.Context()
	go func() {
		_, err := lock(func(msg *message.Message) ([]*message.Message, error) {
			close(began)
			<-msg.Context().Done()
			return nil, msg.Context().Err()
		})(msg)
		ended <- err
	}()
	testenv.Receive(t, began, "handler")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_ = locker.Close(ctx)
	err := testenv.Receive(t, ended, "end of the handler")
	if events.DispositionOf(err) != events.Contention || events.ClassOf(err) != events.ClassBusy {
		t.Errorf("%v is %v, %v; want it returned without a failure", err, events.DispositionOf(err), events.ClassOf(err))
	}
	if msg.Context() != before {
		t.Error("the message keeps the lease's context")
	}
}

// refusing is a Locker that returns an error.
type refusing struct{ err error }

func (r refusing) AcquireAll(context.Context, ...locking.Request) (locking.Leases, error) {
	return nil, r.err
}

func TestScopeOfALockThatIsNotAcquired(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err         error
		scope       events.Scope
		disposition events.Disposition
		after       time.Duration
	}{
		"busy":         {locking.ErrTimeout, events.ScopeNone, events.Contention, 0},
		"held":         {locking.ErrHeld, events.ScopeNone, events.Permanent, 0},
		"closed":       {locking.ErrClosed, events.ScopeNone, events.Contention, events.AtOnce},
		"Redis failed": {locking.ErrUnavailable, events.ScopeUs, events.Contention, 0},
		"bad request":  {locking.ErrBadRequest, events.ScopeChange, events.Permanent, 0},
	} {
		lock := router.Lock(refusing{fmt.Errorf("acquire: %w", tc.err)}, byPayload)
		_, err := lock(func(*message.Message) ([]*message.Message, error) { return nil, nil })(message.NewMessage("1", []byte("k")))
		if !errors.Is(err, tc.err) || events.ScopeOf(err) != tc.scope || events.DispositionOf(err) != tc.disposition ||
			events.RetryAfter(err) != tc.after {
			t.Errorf("%s: scope %q, %v, after %v: %v", name, events.ScopeOf(err), events.DispositionOf(err), events.RetryAfter(err), err)
		}
	}
}
