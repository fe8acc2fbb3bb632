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

var (
	errReply = errors.New("unexpected reply of a script")
	errItem  = errors.New("not a notification written by this program: a field is missing or invalid")
)

// item is a queued notification. Its fields are those of a dead letter. It contains no secret and no URL.
type item struct {
	ID    string            `json:"_watermill_message_uuid"` // webhook-id
	Type  events.ResultType `json:"type"`
	App   string            `json:"app"`
	Repo  events.RepoPath   `json:"repo"`
	Ref   watch.Selector    `json:"ref"`
	Entry string            `json:"entry"` // ID in results
	Body  string            `json:"payload"`
	Runs  bool              `json:"runs,omitempty,string"` // queued by a notifier that has a command for the app

	traceContext
}

// decode decodes an item. It fails for one that no notifier has written, as an entry that was put back may be.
func decode(text []byte) (i item, err error) {
	if err = json.Unmarshal(text, &i); err != nil {
		return item{}, fmt.Errorf("%w: %w", errItem, err)
	}
	if !idPattern.MatchString(i.ID) || i.Repo.IsZero() || watch.CheckApp(i.App) != nil || len(i.Body) > maxBody ||
		!json.Valid([]byte(i.Body)) {
		return item{}, errItem
	}
	return i, nil
}

func (i item) key() watch.Key { return watch.Key{App: i.App, Repo: i.Repo, Ref: i.Ref} }

// keys returns the keys of a script: those of outbox.lua, and more.
func (o Outboxes) keys(more ...string) []string {
	return append([]string{o.key("apps"), o.key("counts"), o.key("sizes"), o.key("tries"), o.key("claims"),
		o.Namespace.Dead(), o.key("troubled")}, more...)
}

// args returns the arguments of a script: those of outbox.lua, and more.
func (o Outboxes) args(more ...any) []any { return append([]any{o.key(""), maxDead}, more...) }

// batch holds the arguments of one call of feed.
type batch struct {
	last    string   // the group's last delivered ID
	results []string // the IDs that follow it
	putBack []string // the IDs of entries put back
	items   int
	queued  []any // for each item its app, repository key and JSON
}

func (b *batch) add(app, repo string, text []byte) {
	b.items++
	b.queued = append(b.queued, app, repo, text)
}

// feed queues a batch. If the group's last delivered ID is not b.last, it changes nothing and returns that ID
// as behind. lost is the number of items dead-lettered because an outbox was full.
func (o Outboxes) feed(ctx context.Context, b batch, most limits) (behind string, lost int64, err error) {
	upto := b.last
	if n := len(b.results); n > 0 {
		upto = b.results[n-1]
	}
	args := o.args(Group, b.last, len(b.results), upto, most.boxItems, most.appBytes, len(b.putBack))
	for _, id := range b.putBack {
		args = append(args, id)
	}
	args = append(append(args, b.items), b.queued...)
	keys := o.keys(o.key("numbers"), o.Namespace.Results(), o.Namespace.Notifications())
	reply, err := feedScript.Run(ctx, o.Redis, keys, args...).Slice()
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

// claim claims due items. busy has the number of posts in flight by app. next is the time until another outbox is due,
// 0 if unknown.
func (o Outboxes) claim(
	ctx context.Context, busy map[string]int, most limits,
) (claims []claim, next time.Duration, err error) {
	token, since := rand.Text(), time.Now()
	args := o.args(most.claim.Milliseconds(), token, most.total, most.perApp)
	for app, n := range busy {
		args = append(args, app, n)
	}
	reply, err := claimScript.Run(ctx, o.Redis, o.keys(), args...).Slice()
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
		c.item, c.unreadable = decode([]byte(texts[4]))
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

// settle records the outcome of a claim, or renews it. It returns false without changing anything if the claim was
// settled, or has ended and another process has the item, so it is safe to call again if it got no reply.
func (o Outboxes) settle(ctx context.Context, c claim, s settlement) (held bool, err error) {
	text := s.err
	if s.what == isFailed {
		text = strings.ToValidUTF8(text[:min(len(text), maxKept)], "")
	}
	args := o.args(c.app, c.repo, c.number, c.token, s.what, s.delay.Milliseconds(), s.reason, text, s.attempts,
		c.item.Entry)
	return settleScript.Run(ctx, o.Redis, o.keys(), args...).Bool()
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
