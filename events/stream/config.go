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
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// SubscriberConfig configures a [Subscriber]. It has the fields of watermill-redisstream, and more; Client is required.
type SubscriberConfig struct {
	Client redis.UniversalClient // runs the scripts; never closed

	// Unmarshaller decodes an entry's fields; an error makes the entry a dead letter. The default
	// accepts Watermill's wire format and plain fields.
	Unmarshaller redisstream.Unmarshaller

	ConsumerGroup string // if empty, each Subscribe delivers every message: see [Subscriber.Subscribe]
	Consumer      string // name of this consumer, unique within the group; default host, pid and a random part

	// NackResendSleep is the delay after a nack that does not specify one; [NoSleep] for none. By default the
	// delay doubles from 1 s to 1 min, and is chosen at random from its upper half. No goroutine sleeps: see
	// the package documentation.
	NackResendSleep time.Duration

	BlockTime     time.Duration // of a read that waits for new entries; default 1 s with a Reader, else 500 ms
	ClaimInterval time.Duration // of the search for pending entries without a due time; default 30 s
	MaxIdleTime   time.Duration // an entry without a heartbeat for this long is redelivered; default 10 s

	// Where a new group starts, or a Subscribe without a group: "0" at the stream's first entry, "$" after its last, or
	// after an ID. By default a group starts at "0", and a Subscribe without one at "$".
	OldestId       string
	FanOutOldestId string

	DisableIndefiniteInitialBlock bool // has no effect: no read blocks for longer than BlockTime

	// Fields of watermill-redisstream that have no meaning here. NewSubscriber refuses a configuration that sets one.
	ClaimBatchSize            int64
	CheckConsumersInterval    time.Duration
	ConsumerTimeout           time.Duration
	ShouldClaimPendingMessage func(redis.XPendingExt) bool
	ShouldStopOnReadErrors    func(error) bool

	// Reader waits for new entries; a blocked read occupies its connection. The Subscriber closes it on Close, which ends
	// a blocked read at once. If nil, the Subscriber uses Client, and Close may take a BlockTime longer.
	Reader redis.UniversalClient

	// Prefix is the prefix of the Subscriber's keys: the dead-letter stream, "dead", and due, failures, parked and labels,
	// each followed by :{stream}:{group}, where {stream} is the topic without the prefix. On Redis Cluster, prefix and
	// topics must share one hash tag. Default "lockstep:{0}:".
	Prefix string

	Window int   // maximum messages in flight, default 1024; 1 handles one message at a time
	Bytes  int64 // no more is read while the messages in flight have this many bytes, default 32 MiB

	// Room returns how many more messages this process could start soon; the rest is left to other consumers. It is
	// called before each read. While it returns 0, it is called again when a message finishes and every 100 ms. Optional.
	Room func() int

	// Key returns the subject of a message, usually the key of its lock. The Subscriber hands out one message
	// per key at a time, and parks the others until it is finished: see [Delivery.Siblings]. Messages with
	// the key "" are independent, as all are if Key is nil. A message whose key contains NUL, or for which
	// Key panics, becomes a dead letter. Key is called once per message, before anything else uses it, and
	// may set a context derived from the message's own.
	Key func(*message.Message) string

	// Beside reports whether a message is handed out although another one of its key is, because its handler does not wait
	// for the key's lock. A message for which it panics becomes a dead letter. Optional.
	Beside func(*message.Message) bool

	// Vanished is called when n entries have vanished from the stream before they were settled: they were trimmed or
	// deleted. keys has those that are known, fewer than n if some are not. n is 0 if the group was deleted, which
	// may lose any number. It must return quickly. Optional.
	Vanished func(n int64, keys []string)

	Grace time.Duration // how long Close waits for handlers before it cancels them; default 25 s

	Log *slog.Logger // default: the logger of NewSubscriber

	// Functions for metrics. They must be safe for concurrent use and return quickly. A panic in one of them, or in
	// Room or Vanished, ends the process. Optional.
	Delivered func(stream string, attempt int)                     // called when a message is handed out
	Finished  func(stream, outcome string, inFlight time.Duration) // called when a delivery ends
	Lapsed    func(stream string)                                  // called for an entry that its consumer did not finish
}

// NoSleep is a [SubscriberConfig] NackResendSleep for redelivery at once.
const NoSleep time.Duration = -1

// How a delivery can end.
const (
	Acked    = "acked"    // acknowledged without a settlement
	Settled  = "settled"  // acknowledged together with its outputs and state
	Nacked   = "nacked"   // given back after a failed attempt
	Deferred = "deferred" // given back without counting an attempt
	Dead     = "dead"     // dead-lettered
	Lost     = "lost"     // another consumer owns the entry, or it is unknown how it ended
)

// deadCap is the approximate maximum length of the dead-letter stream. The [Trimmer] keeps fewer.
const deadCap = 100_000

func (c SubscriberConfig) withDefaults(logger watermill.LoggerAdapter) (SubscriberConfig, error) {
	c.Prefix = cmp.Or(c.Prefix, string(events.DefaultNamespace))
	c.Consumer = cmp.Or(c.Consumer, UniqueConsumer())
	c.Window = cmp.Or(c.Window, 1024)
	c.Bytes = cmp.Or(c.Bytes, 32<<20)
	c.OldestId = cmp.Or(c.OldestId, "0")
	c.FanOutOldestId = cmp.Or(c.FanOutOldestId, "$")
	c.MaxIdleTime = cmp.Or(c.MaxIdleTime, 10*time.Second)
	c.Grace = cmp.Or(c.Grace, 25*time.Second)
	c.ClaimInterval = cmp.Or(c.ClaimInterval, 30*time.Second)
	if c.Reader == nil {
		c.BlockTime = cmp.Or(c.BlockTime, blockShared)
	}
	c.BlockTime = cmp.Or(c.BlockTime, blockOwn)
	if c.Log == nil {
		c.Log = slogOf(logger)
	}
	if c.Room == nil {
		c.Room = func() int { return math.MaxInt }
	}
	if c.Key == nil {
		c.Key = func(*message.Message) string { return "" }
	}
	if c.Beside == nil {
		c.Beside = func(*message.Message) bool { return false }
	}
	if c.Vanished == nil {
		c.Vanished = func(int64, []string) {}
	}
	if c.Unmarshaller == nil {
		c.Unmarshaller = unmarshaller{}
	}
	if c.Delivered == nil {
		c.Delivered = func(string, int) {}
	}
	if c.Finished == nil {
		c.Finished = func(string, string, time.Duration) {}
	}
	if c.Lapsed == nil {
		c.Lapsed = func(string) {}
	}
	return c, c.check()
}

// check returns an error if a field, after the defaults, is invalid.
func (c SubscriberConfig) check() error {
	if name := c.refused(); name != "" {
		return fmt.Errorf("stream: SubscriberConfig.%s of watermill-redisstream has no meaning here; do not set it", name)
	}
	switch {
	case c.Client == nil:
		return errors.New("stream: SubscriberConfig.Client is required")
	case c.Consumer == parked:
		return fmt.Errorf("stream: SubscriberConfig.Consumer must not be %q, which owns parked entries", parked)
	case c.Window < 0 || c.Bytes < 0:
		return fmt.Errorf("stream: Window %d or Bytes %d is negative", c.Window, c.Bytes)
	case c.OldestId != "$" && !startID.MatchString(c.OldestId):
		return fmt.Errorf("stream: OldestId %q is invalid; want 0, $ or an entry ID", c.OldestId)
	case c.FanOutOldestId != "$" && !startID.MatchString(c.FanOutOldestId):
		return fmt.Errorf("stream: FanOutOldestId %q is invalid; want 0, $ or an entry ID", c.FanOutOldestId)
	case c.MaxIdleTime < 10*time.Millisecond:
		return fmt.Errorf("stream: MaxIdleTime %v is too short for a heartbeat; want seconds", c.MaxIdleTime)
	case c.Grace < 0 || c.ClaimInterval < 0 || c.BlockTime < 0:
		return errors.New("stream: Grace, ClaimInterval and BlockTime cannot be negative")
	}
	return nil
}

// dead returns the dead-letter stream.
func (c SubscriberConfig) dead() string { return c.Prefix + "dead" }

// keyOf returns the key of a message, and whether the message is handed out beside another one of its key.
func (c SubscriberConfig) keyOf(msg *message.Message) (key string, beside bool, err error) {
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

// reader returns the client for blocking reads.
func (c SubscriberConfig) reader() redis.UniversalClient {
	if c.Reader == nil {
		return c.Client
	}
	return c.Reader
}

// refused returns the name of a field that is set without a meaning here, or "".
func (c SubscriberConfig) refused() string {
	switch {
	case c.ClaimBatchSize != 0:
		return "ClaimBatchSize"
	case c.CheckConsumersInterval != 0:
		return "CheckConsumersInterval"
	case c.ConsumerTimeout != 0:
		return "ConsumerTimeout"
	case c.ShouldClaimPendingMessage != nil:
		return "ShouldClaimPendingMessage"
	case c.ShouldStopOnReadErrors != nil:
		return "ShouldStopOnReadErrors"
	}
	return ""
}

var startID = regexp.MustCompile(`^\d{1,20}(-\d{1,20})?$`)

// UniqueConsumer returns the name of a consumer that no earlier process has used: host, process ID, and random text.
func UniqueConsumer() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), watermill.NewShortUUID())
}

// nackDelay returns the delay after a message's nack: that of its metadata, see Watermill's components/delay, or the
// configured one.
func (c SubscriberConfig) nackDelay(msg *message.Message, attempt int) time.Duration {
	if d, err := time.ParseDuration(msg.Metadata.Get(delay.DelayedForKey)); err == nil {
		return d
	}
	if c.NackResendSleep != 0 {
		return max(0, c.NackResendSleep)
	}
	d := min(time.Second<<min(max(attempt-1, 0), 6), time.Minute)
	return d/2 + rand.N(d/2)
}
