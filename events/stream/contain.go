package stream

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// contain wraps the functions of the configuration so that a panic in one of them is logged and does not end
// the process. A panic in Unmarshaller, Key or Beside is an error of the message instead: see unmarshal and
// keyOf.
func (c *SubscriberConfig) contain() {
	room, log := c.Room, c.Log
	c.Room = func() int {
		n := 1 // read on, slowly
		contained(log, "Room", func() { n = room() })
		return n
	}
	vanished := c.Vanished
	c.Vanished = func(n int64, keys []string) { contained(log, "Vanished", func() { vanished(n, keys) }) }
	c.Observer = containedObserver{c.Observer, log}
}

func contained(log *slog.Logger, name string, call func()) {
	defer func() {
		if cause := recover(); cause != nil {
			log.Error("callback of SubscriberConfig panicked", "function", name, "error", fmt.Sprint(cause),
				"stack", string(debug.Stack()))
		}
	}()
	call()
}

type containedObserver struct {
	next Observer
	log  *slog.Logger
}

func (o containedObserver) Delivered(stream string, attempt, inFlight int) {
	contained(o.log, "Observer.Delivered", func() { o.next.Delivered(stream, attempt, inFlight) })
}

func (o containedObserver) Finished(stream, outcome string, took time.Duration) {
	contained(o.log, "Observer.Finished", func() { o.next.Finished(stream, outcome, took) })
}

func (o containedObserver) Lapsed(stream, consumer string) {
	contained(o.log, "Observer.Lapsed", func() { o.next.Lapsed(stream, consumer) })
}

// keyOf returns the key of a message, and whether the message is handed out beside another one of its key.
func (c *SubscriberConfig) keyOf(msg *message.Message) (key string, beside bool, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("stream: SubscriberConfig.Key or Beside panicked: %v", cause)
		}
	}()
	if key = c.Key(msg); strings.ContainsRune(key, 0) {
		return "", false, fmt.Errorf("stream: the message's key %q contains NUL", key)
	}
	return key, c.Beside(msg), nil
}
