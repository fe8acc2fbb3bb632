package access

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"lockstep/internal/watch"
)

// Check returns an error unless the hash and the app can be those of a token.
func (t Token) Check() error {
	if sum, err := hex.DecodeString(t.Hash); err != nil || len(sum) != 32 || hex.EncodeToString(sum) != t.Hash {
		return fmt.Errorf("token %.12q: want a SHA-256 hash, 64 hexadecimal digits in lower case", t.Hash)
	}
	return watch.CheckApp(t.App)
}

// Each calls yield for each token that is accepted, with its hash, in no order, and returns its error. It reads
// some hundred tokens at a time. Tokens that are added or removed meanwhile may be missing, and a token may be
// yielded twice.
func (t *Tokens) Each(ctx context.Context, yield func(Token) error) error {
	for cursor := uint64(0); ; {
		found, next, err := t.redis.HScan(ctx, t.key, cursor, "", 500).Result()
		if err != nil {
			return fmt.Errorf("list tokens: %w", err)
		}
		var some []Token
		var ids []string
		for i := 0; i+1 < len(found); i += 2 {
			var kept record
			err := json.Unmarshal([]byte(found[i+1]), &kept)
			if one := (Token{Hash: found[i], App: kept.App, Created: kept.Created}); err == nil && one.Check() == nil {
				one.ID = one.Hash[:idLength]
				some, ids = append(some, one), append(ids, one.ID)
			}
		}
		if len(some) > 0 {
			used, err := t.redis.HMGet(ctx, t.used, ids...).Result()
			if err != nil {
				return fmt.Errorf("list tokens: %w", err)
			}
			for i, one := range some {
				text, _ := used[i].(string)
				if ms, err := strconv.ParseInt(text, 10, 64); err == nil {
					one.Used = time.UnixMilli(ms).UTC()
				}
				if err := yield(one); err != nil {
					return err
				}
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// CopyTo adds all tokens that are accepted here to others, and returns how many were not there. If tokens are
// required here, they are there, too. It can be repeated.
func (t *Tokens) CopyTo(ctx context.Context, others *Tokens) (added int, err error) {
	required, err := t.Required(ctx)
	if err != nil {
		return 0, err
	}
	if required {
		if err := others.Require(ctx); err != nil {
			return 0, err
		}
	}
	err = t.Each(ctx, func(one Token) error {
		ok, err := others.Restore(ctx, one)
		if ok {
			added++
		}
		return err
	})
	return added, err
}

// Restore adds a token unless it exists, and reports whether it did not. The caller has called [Token.Check].
func (t *Tokens) Restore(ctx context.Context, one Token) (added bool, err error) {
	document, err := json.Marshal(record{App: one.App, Created: one.Created})
	if err != nil {
		return false, err
	}
	if !one.Used.IsZero() { // before the token: what an interrupted call leaves is overwritten by the next use
		if err := t.redis.HSetNX(ctx, t.used, one.Hash[:idLength], one.Used.UnixMilli()).Err(); err != nil {
			return false, fmt.Errorf("store a token: %w", err)
		}
	}
	if err := t.Require(ctx); err != nil { // before the token: an interrupted call opens nothing
		return false, err
	}
	if added, err = t.redis.HSetNX(ctx, t.key, one.Hash, document).Result(); err != nil {
		return false, fmt.Errorf("store a token: %w", err)
	}
	return added, nil
}
