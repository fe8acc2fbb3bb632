package notify

import (
	"context"
	"crypto/rand"
	_ "embed" // the scripts
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/watch"
)

// The scripts. Their headers describe arguments, results and errors.
var (
	//go:embed outbox.lua
	outboxSource string
	//go:embed feed.lua
	feedSource string
	//go:embed claim.lua
	claimSource string
	//go:embed settle.lua
	settleSource string

	feedScript   = redis.NewScript(outboxSource + feedSource)
	claimScript  = redis.NewScript(outboxSource + claimSource)
	settleScript = redis.NewScript(outboxSource + settleSource)
)

const maxDead = 50_000 // dead letters that are kept

var errReply = errors.New("unexpected reply of a script")

// item is a queued notification. It contains the data that a dead letter needs, but no secret and no URL.
type item struct {
	ID    string            `json:"id"` // webhook-id
	Type  events.ResultType `json:"type"`
	App   string            `json:"app"`
	Repo  events.RepoPath   `json:"repo"`
	Ref   watch.Selector    `json:"ref"`
	Entry string            `json:"entry"` // ID in results
	Body  string            `json:"body"`
	Runs  bool              `json:"runs,omitempty"` // queued by a notifier that has a command for the app

	traceContext
}

func (i item) key() watch.Key { return watch.Key{App: i.App, Repo: i.Repo, Ref: i.Ref} }

type outbox struct {
	redis   redis.UniversalClient
	results string
	again   string // the stream of notifications that were put back
	prefix  string
	keys    []string
	common  []any
	cfg     Config
}

func newOutbox(cfg Config) outbox {
	o := outbox{redis: cfg.Redis, results: cfg.Namespace.Results(), again: cfg.Namespace.Notifications(), cfg: cfg}
	o.prefix = o.again + ":"
	o.keys = []string{o.prefix + "apps", o.prefix + "counts", o.prefix + "sizes", o.prefix + "tries",
		o.prefix + "claims", cfg.Namespace.Dead()}
	o.common = []any{o.prefix, maxDead}
	return o
}

// batch holds the arguments of one call of feed.
type batch struct {
	last    string   // the group's last delivered ID
	results []string // the IDs that follow it
	putBack []putBack
	renames [][2]string // repository keys: from, to
	items   []item
}

type putBack struct {
	id       string
	unusable bool
}

// feed queues a batch. If the group's last delivered ID is not b.last, it changes nothing and returns that ID
// as behind. lost is the number of items dead-lettered because an outbox was full.
func (o outbox) feed(ctx context.Context, b batch) (behind string, lost int64, err error) {
	upto := b.last
	if n := len(b.results); n > 0 {
		upto = b.results[n-1]
	}
	args := append([]any{}, o.common...)
	args = append(args, Group, b.last, len(b.results), upto, o.cfg.BoxItems, o.cfg.AppItems, o.cfg.AppBytes,
		len(b.putBack))
	for _, p := range b.putBack {
		unusable := "0"
		if p.unusable {
			unusable = "1"
		}
		args = append(args, p.id, unusable)
	}
	args = append(args, len(b.renames))
	for _, r := range b.renames {
		args = append(args, r[0], r[1])
	}
	args = append(args, renameRetention.Milliseconds(), len(b.items))
	for _, i := range b.items {
		text, err := json.Marshal(i)
		if err != nil {
			return "", 0, err
		}
		args = append(args, i.App, i.Repo.Key(), text)
	}
	keys := append(append([]string{}, o.keys...), o.prefix+"numbers", o.results, o.again)
	reply, err := feedScript.Run(ctx, o.redis, keys, args...).Slice()
	if err != nil {
		return "", 0, err
	}
	if len(reply) == 2 && reply[0] == "behind" {
		behind, _ = reply[1].(string)
		return behind, 0, nil
	}
	if len(reply) != 2 || reply[0] != "fed" {
		return "", 0, fmt.Errorf("feed: %w", errReply)
	}
	lost, _ = reply[1].(int64)
	return "", lost, nil
}

// claim is the exclusive right to send the first item of an outbox.
type claim struct {
	app, repo     string
	number, token string
	since         time.Time // lower bound of the start
	failed        int       // attempts
	item          item
	unreadable    error // why item could not be decoded
}

// claim claims due items. next is the time until another outbox is due, 0 if unknown.
func (o outbox) claim(ctx context.Context, f inFlight) (claims []claim, next time.Duration, err error) {
	token, since := rand.Text(), time.Now()
	slow := max(1, o.cfg.Total/2)
	for app := range f.slow {
		slow -= f.busy[app]
	}
	args := append([]any{}, o.common...)
	args = append(args, o.cfg.claim.Milliseconds(), token, o.cfg.Total-f.posts, slow, o.cfg.PerApp)
	for app, n := range f.busy {
		if _, slow := f.slow[app]; !slow {
			args = append(args, app, n, 0)
		}
	}
	for app := range f.slow {
		args = append(args, app, f.busy[app], 1)
	}
	reply, err := claimScript.Run(ctx, o.redis, o.keys, args...).Slice()
	if err != nil {
		return nil, 0, err
	}
	if len(reply)%5 != 1 {
		return nil, 0, fmt.Errorf("claim: %w: %d values", errReply, len(reply))
	}
	ms, _ := reply[0].(int64)
	next = time.Duration(max(ms, 0)) * time.Millisecond
	for parts := reply[1:]; len(parts) > 0; parts = parts[5:] {
		var texts [5]string
		for i := range texts {
			texts[i], _ = parts[i].(string)
		}
		c := claim{app: texts[0], repo: texts[1], number: texts[2], token: token, since: since}
		c.failed, _ = strconv.Atoi(texts[3])
		c.unreadable = json.Unmarshal([]byte(texts[4]), &c.item)
		claims = append(claims, c)
	}
	return claims, next, nil
}

// The ways to settle a claim, as in settle.lua.
const (
	isDone   = "done"
	isFailed = "failed"
	isBack   = "back"
	isDead   = "dead"
	isKept   = "kept"
)

// The reasons of settlements that are no dead letters, as in settle.lua.
const (
	reasonAccepted = "accepted" // done: by the app
	reasonAsked    = "asked"    // failed: the app named the delay
)

// maxKept is the length of an error that is kept while an item waits for the next attempt, in bytes.
const maxKept = 500

type settlement struct {
	what     string
	delay    time.Duration
	reason   string // of a dead letter, like err and attempts; or see reasonAccepted
	err      string
	attempts int
}

// settle records the outcome of a claim. It is safe to call again if it got no reply.
func (o outbox) settle(ctx context.Context, c claim, s settlement) error {
	_, err := o.runSettle(ctx, c, s)
	return err
}

// keep renews a claim. It returns false if the claim has ended.
func (o outbox) keep(ctx context.Context, c claim) (bool, error) {
	return o.runSettle(ctx, c, settlement{what: isKept, delay: o.cfg.claim})
}

// runSettle reports whether the claim had not ended.
func (o outbox) runSettle(ctx context.Context, c claim, s settlement) (held bool, err error) {
	args := append([]any{}, o.common...)
	text := s.err
	if s.what == isFailed {
		text = strings.ToValidUTF8(text[:min(len(text), maxKept)], "")
	}
	args = append(args, c.app, c.repo, c.number, c.token, s.what, s.delay.Milliseconds(), s.reason, text, s.attempts,
		c.item.Entry)
	reply, err := settleScript.Run(ctx, o.redis, o.keys, args...).Text()
	return reply == "settled", err
}

// movedTo returns the key that a repository was renamed to, "" if it was not renamed.
func (o outbox) movedTo(ctx context.Context, repo events.RepoPath) (string, error) {
	to, err := o.redis.Get(ctx, o.prefix+"moved:"+repo.Key()).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return to, err
}

// held returns how much longer to keep items without a watch; 0 means that they may be dropped. They are kept for some
// time because the watches of a renamed repository move before the rename appears in the stream.
func (o outbox) held(ctx context.Context, c claim) (time.Duration, error) {
	mark := o.prefix + "unwatched:" + c.app + " " + c.repo
	if err := o.redis.SetNX(ctx, mark, 1, 2*o.cfg.hold).Err(); err != nil {
		return 0, err
	}
	left, err := o.redis.PTTL(ctx, mark).Result()
	return max(0, left-o.cfg.hold), err
}

// Waiting returns the number of notifications in all outboxes, in time proportional to the number of apps
// that have any.
func Waiting(ctx context.Context, client redis.UniversalClient, namespace events.Namespace) (int64, error) {
	counts, err := client.HVals(ctx, namespace.Notifications()+":counts").Result()
	if err != nil {
		return 0, fmt.Errorf("count notifications: %w", err)
	}
	var sum int64
	for _, text := range counts {
		n, _ := strconv.ParseInt(text, 10, 64)
		sum += n
	}
	return sum, nil
}
