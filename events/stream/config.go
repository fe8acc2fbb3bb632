package stream

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// SubscriberConfig configures a [Subscriber]. Redis and Group are required.
type SubscriberConfig struct {
	// Redis runs the scripts. The Subscriber never closes it. It must not retry by itself (MaxRetries -1).
	Redis redis.UniversalClient

	// Reader waits for new entries; a blocked read occupies its connection. The Subscriber closes it on Close, which ends
	// a blocked read at once. If nil, the Subscriber uses Redis, and Close may take half a second longer.
	Reader redis.UniversalClient

	// Prefix is the prefix of the Subscriber's keys: due, tries, shelf and labels, each followed by :{stream}:{group}, where
	// {stream} is the topic without the prefix. On Redis Cluster, prefix, topics and Dead must share one hash tag. Default
	// "lockstep:{0}:".
	Prefix string

	Group    string // consumer group
	Start    string // where a new group starts: "0" at the stream's first entry (default), "$" after its last, or after an ID
	Consumer string // name of this consumer, unique within the group; default host, pid and a random part

	Dead    string // dead-letter stream; default Prefix + "dead"
	DeadCap int64  // approximate maximum length of Dead, default 100,000

	Window int   // maximum messages in flight, default 1024; 1 handles one message at a time
	Bytes  int64 // no more is read while the messages in flight have this many bytes, default 32 MiB
	Batch  int   // maximum messages per read, default 128

	// Room returns how many more messages this process could start soon; the rest is left to other consumers. It is
	// called before each read. While it returns 0, it is called again when a message finishes and every 100 ms. Optional.
	Room func() int

	// Key returns the subject of a message, usually the key of its lock. The Subscriber hands out one message per key at a
	// time, and parks the others until it is finished: see [Delivery.Siblings]. Messages with the key "" are independent, as
	// all are if Key is nil. A message whose key contains NUL, or for which Key panics, becomes a dead letter. Key is called
	// once per message, before anything else uses it, and may set a context derived from the message's own.
	Key func(*message.Message) string

	Visibility time.Duration // an entry without a heartbeat for this long is redelivered; default 10 s
	Grace      time.Duration // how long Close waits for handlers before it cancels them; default 25 s
	Sweep      time.Duration // interval of the search for pending entries without a due time; default 30 s

	// Backoff returns the delay after a nack that does not specify one. By default the delay doubles from 1 s to
	// 1 min, and is chosen at random from its upper half.
	Backoff func(attempt int) time.Duration

	// Unmarshaller decodes an entry's fields; an error makes the entry a dead letter. The default
	// accepts Watermill's wire format and plain fields.
	Unmarshaller redisstream.Unmarshaller

	Log      *slog.Logger // default [slog.Default]
	Observer Observer     // default none
}

// Outcome is how a delivery ended.
type Outcome string

// How a delivery can end.
const (
	Acked    Outcome = "acked"    // acknowledged without a settlement
	Settled  Outcome = "settled"  // acknowledged together with its outputs and state
	Nacked   Outcome = "nacked"   // given back after a failed attempt
	Deferred Outcome = "deferred" // given back without counting an attempt
	Dead     Outcome = "dead"     // dead-lettered
	Lost     Outcome = "lost"     // another consumer owns the entry, or it is unknown how it ended
)

// Observer receives events of a Subscriber, for metrics. It must be safe for concurrent use and return quickly.
type Observer interface {
	// Delivered is called when a message is handed out.
	Delivered(stream string, attempt, inFlight int)
	// Finished is called when a delivery ends, after being in flight for took.
	Finished(stream string, outcome Outcome, took time.Duration)
	// Lapsed is called for an entry that its previous consumer did not finish because it died, hung or was cut off.
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
	c.Bytes = cmp.Or(c.Bytes, 32<<20)
	c.Start = cmp.Or(c.Start, "0")
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
	c.contain()
	switch {
	case c.Redis == nil:
		return c, errors.New("stream: SubscriberConfig.Redis is required")
	case c.Group == "":
		return c, errors.New("stream: SubscriberConfig.Group is required")
	case c.Consumer == parked:
		return c, fmt.Errorf("stream: SubscriberConfig.Consumer must not be %q, which owns parked entries", parked)
	case c.Window < 0 || c.Batch < 0 || c.Batch > 1000:
		return c, fmt.Errorf("stream: Window %d or Batch %d out of range; want a positive window and a batch of at most 1000", c.Window, c.Batch)
	case c.Bytes < 0:
		return c, fmt.Errorf("stream: Bytes %d is negative", c.Bytes)
	case c.Start != "$" && !startID.MatchString(c.Start):
		return c, fmt.Errorf("stream: Start %q is invalid; want 0, $ or an entry ID", c.Start)
	case c.Visibility < 10*time.Millisecond:
		return c, fmt.Errorf("stream: Visibility %v is too short for a heartbeat; want seconds", c.Visibility)
	case c.Grace < 0 || c.Sweep < 0 || c.DeadCap < 0:
		return c, errors.New("stream: Grace, Sweep and DeadCap cannot be negative")
	}
	return c, nil
}

var startID = regexp.MustCompile(`^\d{1,20}(-\d{1,20})?$`)

// uniqueConsumer returns a name that no earlier process on this host has used.
func uniqueConsumer() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), watermill.NewShortUUID())
}

func backoff(attempt int) time.Duration {
	d := min(time.Second<<min(max(attempt-1, 0), 6), time.Minute)
	return d/2 + rand.N(d/2)
}
