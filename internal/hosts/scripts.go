package hosts

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lua
var lua embed.FS

var (
	enterScript = script("host", "enter")
	doneScript  = script("host", "done")
	pumpScript  = script("host", "pump")
	listScript  = script("host", "list")
	clearScript = script("host", "clear")
	renewScript = script("renew")
	claimScript = script("claim")
)

// script joins files of the lua folder.
func script(names ...string) *redis.Script {
	source := ""
	for _, name := range names {
		part, err := lua.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(err)
		}
		source += string(part)
	}
	return redis.NewScript(source)
}

// encode makes a host or credential name safe as a part of a key: the result contains no colon and no brace.
func encode(name string) string { return url.QueryEscape(name) }

func decode(name string) string {
	decoded, err := url.QueryUnescape(name)
	if err != nil {
		return name
	}
	return decoded
}

// Names of keys, after the prefix.
const (
	hostInfix       = "host:" // followed by the host
	dueSuffix       = "hosts:due"
	seenSuffix      = "hosts:seen"
	processesSuffix = "hosts:processes"
)

func (b *Budgets) stateKey(host string) string { return b.cfg.Prefix + hostInfix + encode(host) }
func (b *Budgets) dueKey() string              { return b.cfg.Prefix + dueSuffix }
func (b *Budgets) seenKey() string             { return b.cfg.Prefix + seenSuffix }
func (b *Budgets) processesKey() string        { return b.cfg.Prefix + processesSuffix }

// reply is the answer of enter.lua, done.lua and pump.lua, with times converted to the local clock.
type reply struct {
	verdict           string
	limit             int
	reason            Reason // of the host's block, or ""
	until             time.Time
	credentialBlocked time.Time
	waiting           int      // repositories that wait for the credential
	woken             []Waiter // those for which a permit is now reserved
}

// call runs a script that starts with host.lua. It fails at once for a second after Redis has failed to answer.
func (b *Budgets) call(ctx context.Context, script *redis.Script, host, credential string, args ...any) (reply, error) {
	keys := []string{b.stateKey(host), b.dueKey(), b.seenKey()}
	argv := append([]any{b.offset.Load(), b.maximum(host), encode(host), encode(credential)}, args...)
	before := b.now()
	raw, err := b.run(ctx, script, keys, argv...)
	if err != nil {
		return reply{}, err
	}
	if len(raw) != 8 {
		return reply{}, fmt.Errorf("unexpected reply of %d values", len(raw))
	}
	now := number(raw[1])
	r := reply{
		verdict: text(raw[0]), limit: int(number(raw[2])), reason: Reason(text(raw[3])), waiting: int(number(raw[6])),
		until: moment(before, now, number(raw[4])), credentialBlocked: moment(before, now, number(raw[5])),
	}
	woken, _ := raw[7].([]any)
	for _, waiter := range woken {
		name, key, _ := strings.Cut(text(waiter), ":")
		r.woken = append(r.woken, Waiter{Credential: decode(name), Key: key})
	}
	b.remember(host, credential, r)
	return r, nil
}

var errAway = errors.New("redis did not answer recently")

// run runs any script of this package.
func (b *Budgets) run(ctx context.Context, script *redis.Script, keys []string, args ...any) ([]any, error) {
	if b.away() {
		return nil, errAway
	}
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	raw, err := script.Run(limited, b.cfg.Redis, keys, args...).Slice()
	if errors.Is(err, redis.Nil) { // the script returns nothing
		err = nil
	}
	if ctx.Err() == nil {
		b.noteRedis(ctx, err)
	}
	return raw, err
}

// moment converts a time of Redis' clock to the local clock, and 0 to the zero time.
func moment(local time.Time, now, ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return local.Add(time.Duration(ms-now) * time.Millisecond)
}

func text(v any) string  { s, _ := v.(string); return s }
func number(v any) int64 { n, _ := v.(int64); return n }

// parse parses a score of a sorted set. An invalid one counts as zero.
func parse(score string) int64 {
	f, _ := strconv.ParseFloat(score, 64)
	return int64(f)
}
