package intake

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// Received is a webhook request and its outcome.
type Received struct {
	At     time.Time `json:"at"` // when it was answered, by the receiver's clock
	Source string    `json:"source"`
	Forge  string    `json:"forge,omitempty"`
	// a result of a delivery, ping, unavailable, or why it was refused, such as unauthorized
	Outcome  string `json:"outcome"`
	Event    string `json:"event,omitempty"`
	Delivery string `json:"delivery,omitempty"` // ID assigned by the forge, or else generated
	Repo     string `json:"repo,omitempty"`
	Changes  int    `json:"changes,omitempty"`
	Why      string `json:"why,omitempty"` // it was ignored or refused

	Unwatched bool `json:"unwatched,omitempty"` // it was ignored as nobody watches its repositories

	// the signature is valid; if not, only At, Source, Forge, Outcome and Why are set
	Verified bool  `json:"verified,omitempty"`
	Skipped  int64 `json:"skipped,omitempty"` // number of requests dropped before this one, because there were too many
}

const (
	journalVerified = 1000 // kept in Redis
	journalRefused  = 200  // a separate limit, so that they cannot displace verified ones
	journalAtOnce   = 100  // recorded every journalEvery by a process
	journalEvery    = 500 * time.Millisecond
	journalExpires  = 7 * 24 * time.Hour // after the last one
	journalTimeout  = time.Second
	maxJournalText  = 300 // bytes of a field
)

func journalKeys(namespace events.Namespace) (verified, refused string) {
	return string(namespace) + "hooks:received", string(namespace) + "hooks:refused"
}

// Journal records webhook requests in Redis: the last 1,000 of forges and the last 200 refused ones, about
// 500 kB, at most 8 MB. It never delays a request: while Redis is unavailable, or beyond 200 requests per
// second, some are not recorded. It is safe for concurrent use.
type Journal struct {
	redis             redis.UniversalClient
	verified, refused string // keys
	every, timeout    time.Duration

	mu      sync.Mutex
	queued  [2]journalQueue // verified, refused
	timer   *time.Timer     // of the next write; nil if nothing is queued
	closed  bool
	writing sync.WaitGroup
}

type journalQueue struct {
	entries []Received
	skipped int64
}

// NewJournal returns a Journal, which the caller must close.
func NewJournal(client redis.UniversalClient, namespace events.Namespace) *Journal {
	j := &Journal{redis: client, every: journalEvery, timeout: journalTimeout}
	j.verified, j.refused = journalKeys(namespace)
	return j
}

// Record queues a request. If too many are queued, it drops the oldest.
func (j *Journal) Record(r Received) {
	r.At = cmp.Or(r.At, time.Now().UTC())
	for _, text := range []*string{&r.Source, &r.Event, &r.Delivery, &r.Repo, &r.Why} {
		*text = strings.ToValidUTF8((*text)[:min(len(*text), maxJournalText)], "")
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return
	}
	q := &j.queued[0]
	if !r.Verified {
		q = &j.queued[1]
	}
	if len(q.entries) == journalAtOnce {
		q.entries = slices.Delete(q.entries, 0, 1)
		q.skipped++
	}
	q.entries = append(q.entries, r)
	if j.timer == nil {
		j.writing.Add(1)
		j.timer = time.AfterFunc(j.every, func() {
			defer j.writing.Done()
			j.write()
		})
	}
}

// write sends the queued requests to Redis, and drops them if that fails.
func (j *Journal) write() {
	j.mu.Lock()
	queued := j.queued
	j.queued, j.timer = [2]journalQueue{}, nil
	j.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), j.timeout)
	defer cancel()
	_, _ = j.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, key := range []string{j.verified, j.refused} {
			if q := queued[i]; len(q.entries) > 0 {
				q.entries[0].Skipped = q.skipped
				add(ctx, pipe, key, []int64{journalVerified, journalRefused}[i], q.entries)
			}
		}
		return nil // the record is only informational
	})
}

func add(ctx context.Context, pipe redis.Pipeliner, key string, most int64, entries []Received) {
	for _, r := range entries {
		text, err := json.Marshal(r)
		if err != nil { // impossible
			continue
		}
		pipe.XAdd(ctx, &redis.XAddArgs{Stream: key, MaxLen: most, Values: []any{"received", text}})
	}
	pipe.Expire(ctx, key, journalExpires)
}

// Close writes the queued requests and waits for that. Later requests are not recorded.
func (j *Journal) Close() {
	j.mu.Lock()
	j.closed = true
	early := j.timer != nil && j.timer.Stop()
	j.mu.Unlock()
	if early {
		j.write()
		j.writing.Done()
	}
	j.writing.Wait()
}

// Recent returns the recorded webhook requests of all processes, newest first.
func Recent(ctx context.Context, client redis.UniversalClient, namespace events.Namespace) ([]Received, error) {
	verified, refused := journalKeys(namespace)
	var all []Received
	for _, key := range []string{verified, refused} {
		some, err := recorded(ctx, client, key, "-")
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	slices.SortStableFunc(all, func(a, b Received) int { return b.At.Compare(a.At) })
	return all, nil
}

// recorded returns the requests of a key from an entry ID on, newest first.
func recorded(ctx context.Context, client redis.UniversalClient, key, from string) (all []Received, err error) {
	entries, err := client.XRevRange(ctx, key, "+", from).Result()
	if err != nil {
		return nil, fmt.Errorf("read the received webhooks: %w", err)
	}
	for _, e := range entries {
		var r Received
		text, _ := e.Values["received"].(string)
		if json.Unmarshal([]byte(text), &r) == nil {
			all = append(all, r)
		}
	}
	return all, nil
}

// Unwatched returns the number of deliveries recorded since a time, by Redis' clock, whose repository has no watch, and
// the names of these repositories, those with most deliveries first.
func Unwatched(
	ctx context.Context, client redis.UniversalClient, namespace events.Namespace, since time.Time,
) (deliveries int, repos []string, err error) {
	verified, _ := journalKeys(namespace)
	all, err := recorded(ctx, client, verified, strconv.FormatInt(since.UnixMilli(), 10))
	if err != nil {
		return 0, nil, err
	}
	counts := map[string]int{}
	for _, r := range all {
		if r.Unwatched {
			deliveries++
			counts[r.Repo]++
		}
	}
	repos = slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	return deliveries, repos, nil
}
