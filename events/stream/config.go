package stream

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// SubscriberConfig says what a [Subscriber] works with. Redis and Group are required.
type SubscriberConfig struct {
	// Redis runs the scripts. The Subscriber never closes it. It must not retry by itself
	// (MaxRetries -1): what may run twice is retried here, and only that.
	Redis redis.UniversalClient

	// Reader waits for new entries, and does nothing else; a blocked read keeps its connection. It
	// belongs to the Subscriber, which closes it on Close and so ends a blocked read at once. When
	// nil, Redis is used and Close may take half a second longer.
	Reader redis.UniversalClient

	// Prefix begins the names of the keys that the Subscriber keeps: due, tries, shelf and labels, each
	// followed by :{stream}:{group}, where {stream} is the topic without the prefix. On Redis Cluster
	// prefix, topics and Dead share one hash tag. Default "lockstep:{0}:".
	Prefix string

	Group    string // the consumer group, created at the stream's first entry
	Consumer string // this process among the group's, unlike that of any other; default host, pid and random

	Dead    string // stream for what is given up; default Prefix + "dead"
	DeadCap int64  // about how many entries it keeps, default 100,000

	Window int // messages in flight at most, default 1024
	Batch  int // messages read at once at most, default 128

	// Room says how many more messages this process could soon work on; the rest is left to others. It
	// is asked before each read, and when it says none, again as messages finish and every 100 ms.
	// Nil: the window alone decides.
	Room func() int

	// Key says what a message is about, as its lock does. Of messages with the same key at most Share are
	// in flight; more go back, to come when there is room, and so cannot fill the window. Those that
	// wait are each other's siblings, see [Delivery.Siblings]. A message with the key "" has none, nor
	// has any when Key is nil. A key has no NUL in it. Key is called once for each message read, before
	// anybody else has it, and may set its context to one derived from it.
	Key      func(*message.Message) string
	KeyLimit int // default an eighth of the window

	Visibility time.Duration // how long an entry without a heartbeat counts as being worked on; default 10 s
	Grace      time.Duration // how long handlers may go on after Close before they are cancelled; default 25 s
	Sweep      time.Duration // how often to look for entries without a due moment; default 30 s

	// Backoff is the delay of a nacked message that names none, after so many attempts. The default
	// doubles from 1 s to 1 min, and spreads each delay over its second half.
	Backoff func(attempt int) time.Duration

	// Unmarshaller reads an entry's fields; an error makes the entry a dead letter. The default
	// reads Watermill's wire format, and fields of any other name as plain ones.
	Unmarshaller redisstream.Unmarshaller

	Log      *slog.Logger // default [slog.Default]
	Observer Observer     // default none
}

// Outcome is how a delivery ended.
type Outcome string

// The outcomes.
const (
	Acked    Outcome = "acked"    // acknowledged, nothing more
	Settled  Outcome = "settled"  // acknowledged together with what came of it
	Nacked   Outcome = "nacked"   // given back after a failed attempt
	Deferred Outcome = "deferred" // given back, and not counted as an attempt
	Dead     Outcome = "dead"     // given up
	Lost     Outcome = "lost"     // another consumer has it, or nobody knows
)

// Observer is told what a Subscriber does, for metrics. Its methods are called from many goroutines
// and delay them.
type Observer interface {
	// Delivered tells of a message handed out: which attempt it is, and how many are in flight.
	Delivered(stream string, attempt, inFlight int)
	// Finished tells how a delivery ended and how long it was in flight.
	Finished(stream string, outcome Outcome, took time.Duration)
	// Lapsed tells of an entry whose former consumer died, hung or was cut off.
	Lapsed(stream, consumer string)
}

type noObserver struct{}

func (noObserver) Delivered(string, int, int)              {}
func (noObserver) Finished(string, Outcome, time.Duration) {}
func (noObserver) Lapsed(string, string)                   {}

func (c SubscriberConfig) withDefaults() (SubscriberConfig, error) {
	c.Prefix = cmp.Or(c.Prefix, string(events.DefaultNamespace))
	c.Consumer = cmp.Or(c.Consumer, uniqueConsumer())
	c.Dead = cmp.Or(c.Dead, c.Prefix+"dead")
	c.DeadCap = cmp.Or(c.DeadCap, 100_000)
	c.Window = cmp.Or(c.Window, 1024)
	c.Batch = cmp.Or(c.Batch, 128)
	c.KeyLimit = cmp.Or(c.KeyLimit, max(1, c.Window/8))
	c.Visibility = cmp.Or(c.Visibility, 10*time.Second)
	c.Grace = cmp.Or(c.Grace, 25*time.Second)
	c.Sweep = cmp.Or(c.Sweep, 30*time.Second)
	c.Log = cmp.Or(c.Log, slog.Default())
	if c.Backoff == nil {
		c.Backoff = backoff
	}
	if c.Room == nil {
		c.Room = func() int { return math.MaxInt }
	}
	if c.Key == nil {
		c.Key = func(*message.Message) string { return "" }
	}
	if c.Unmarshaller == nil {
		c.Unmarshaller = unmarshaller{}
	}
	if c.Observer == nil {
		c.Observer = noObserver{}
	}
	switch {
	case c.Redis == nil:
		return c, errors.New("stream: SubscriberConfig.Redis is required")
	case c.Group == "":
		return c, errors.New("stream: SubscriberConfig.Group is required")
	case c.Consumer == parked:
		return c, fmt.Errorf("stream: SubscriberConfig.Consumer may not be %q: entries that wait are pending under that name", parked)
	case c.Window < 0 || c.Batch < 0 || c.Batch > 1000:
		return c, fmt.Errorf("stream: Window %d or Batch %d out of range; want a positive window and a batch of at most 1000", c.Window, c.Batch)
	case c.KeyLimit < 0 || c.KeyLimit > c.Window:
		return c, fmt.Errorf("stream: KeyLimit %d out of range; want 1 to the window, %d", c.KeyLimit, c.Window)
	case c.Visibility < 10*time.Millisecond:
		return c, fmt.Errorf("stream: Visibility %v is too short for a heartbeat; want seconds", c.Visibility)
	case c.Grace < 0 || c.Sweep < 0 || c.DeadCap < 0:
		return c, errors.New("stream: Grace, Sweep and DeadCap cannot be negative")
	}
	return c, nil
}

// uniqueConsumer tells this process from its predecessor on the same host: a stale consumer of the
// same name could not be told from the living one.
func uniqueConsumer() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), watermill.NewShortUUID())
}

func backoff(attempt int) time.Duration {
	d := time.Second << min(max(attempt-1, 0), 6)
	d = min(d, time.Minute)
	return d/2 + rand.N(d/2)
}
