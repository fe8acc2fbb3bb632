package stream

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
)

// fanOut delivers every message of a stream without a consumer group, one at a time, and a nacked one again.
type fanOut struct {
	cfg    SubscriberConfig
	outage *outage
	stream string
	last   string // ID of the entry delivered last
	base   context.Context
	out    chan *message.Message
}

func (f *fanOut) run(stop context.Context) {
	defer close(f.out)
	reader := NewReader(f.cfg.reader())
	for wait := firstRetry; stop.Err() == nil; {
		ctx, cancel := context.WithTimeout(stop, f.cfg.BlockTime)
		read, err := reader.Next(ctx, map[string]string{f.stream: f.last})
		cancel()
		if err != nil {
			if stop.Err() == nil { // else Close has closed the Reader
				f.outage.failed(stop, err)
			}
			sleep(stop, wait)
			wait = min(2*wait, lastRetry)
			continue
		}
		f.outage.answered(stop, time.Hour)
		wait = firstRetry
		for _, e := range read[f.stream] {
			f.deliver(stop, e)
			f.last = e.ID
		}
	}
}

// deliver hands a message out until it is acked or stop is done.
func (f *fanOut) deliver(stop context.Context, e redis.XMessage) {
	msg, err := decode(f.cfg.Unmarshaller, e.ID, e.Values)
	if err != nil {
		f.cfg.Log.ErrorContext(stop, "undecodable entry skipped", "stream", f.stream, "entry", e.ID, "error", err)
		return
	}
	for attempt := 1; stop.Err() == nil && f.handOut(stop, msg); attempt++ {
		sleep(stop, f.cfg.nackDelay(msg, attempt))
		msg = msg.Copy()
	}
}

// handOut hands a message out, and reports whether it was nacked.
func (f *fanOut) handOut(stop context.Context, msg *message.Message) bool {
	ctx, cancel := context.WithCancel(f.base)
	defer cancel()
	msg.SetContext(ctx)
	select {
	case f.out <- msg:
	case <-stop.Done():
		return false
	}
	select {
	case <-msg.Acked():
		return false
	case <-msg.Nacked():
		return true
	case <-stop.Done():
		return false
	}
}
