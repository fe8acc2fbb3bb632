package locking

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// listenIdle is how long the subscription may be silent before it is asked whether it still works.
const listenIdle = 10 * time.Second

// listen receives the messages that hand leases over, until ctx ends.
func (l *Locker) listen(ctx context.Context) {
	for pause := retryPause; ctx.Err() == nil; pause = sleep(ctx, pause) {
		begun := time.Now()
		subscription := l.cfg.PubSub.Subscribe(ctx, l.channel)
		unhook := context.AfterFunc(ctx, func() { _ = subscription.Close() }) // a read in progress ends no other way
		l.hear(ctx, subscription)
		unhook()
		_ = subscription.Close()
		if time.Since(begun) > maxPause {
			pause = retryPause
		}
	}
}

// hear returns when the subscription has failed.
func (l *Locker) hear(ctx context.Context, subscription *redis.PubSub) {
	for asked := false; ; {
		message, err := subscription.ReceiveTimeout(ctx, listenIdle)
		var network net.Error
		switch silent := errors.As(err, &network) && network.Timeout(); {
		case silent && !asked:
			err = subscription.Ping(ctx)
			asked = true
		case err == nil:
			asked = false
		}
		if err != nil {
			return
		}
		switch m := message.(type) {
		case *redis.Message:
			l.wake(m.Payload)
		case *redis.Subscription:
			l.pokeAll() // what was sent while nobody listened is lost
		}
	}
}

// wake passes a grant on to the ticket that it is for. One that nobody waits for any more, because
// its request ran into a timeout on the way to Redis, is given back at once.
func (l *Locker) wake(payload string) {
	if token, forced := strings.CutPrefix(payload, forcedMark); forced {
		l.revoke(token)
		return
	}
	part := strings.SplitN(payload, " ", 5)
	if len(part) != 5 {
		return
	}
	token, key := part[0], strings.TrimPrefix(part[4], l.cfg.Prefix)
	grant := answer{
		verdict: granted,
		since:   parseMicros(part[1]), fence: uint64(parseMicros(part[2])), expires: parseMicros(part[3]),
	}

	l.mu.Lock()
	ticket, waits := l.tickets[token]
	_, known := l.leases[token]
	l.mu.Unlock()
	switch {
	case waits:
		l.onHandOver(ticket, grant)
	case !known:
		l.work.Go(func() { _, _ = l.callRelease(l.ctx, key, token, nil) })
	}
}

// forcedMark begins the message of force.lua, before the token whose lease was taken away.
const forcedMark = "! "

// revoke ends the lease that was taken away by force. Were the message lost, the next renewal would
// find out.
func (l *Locker) revoke(token string) {
	l.mu.Lock()
	lease, known := l.leases[token]
	l.mu.Unlock()
	if known {
		l.noteLost(lease, true)
	}
}

// pokeAll has every ticket ask again, once.
func (l *Locker) pokeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.tickets {
		t.poke()
	}
}
