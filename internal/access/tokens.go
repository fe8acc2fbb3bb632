package access

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/watch"
)

// Tokens stores the tokens of apps in Redis. It is safe for concurrent use by any number of processes.
type Tokens struct {
	redis redis.Cmdable
	key   string // hash: SHA-256 of a token, in hexadecimal, to a record; and requiredField
	used  string // hash: ID of a token to the ms of its last use

	mu    sync.Mutex
	wrote map[string]time.Time // when this process last wrote the use of a token, by ID
}

// NewTokens returns the tokens kept below the keys of namespace: that of the directory if there are cells,
// which share them.
func NewTokens(client redis.Cmdable, namespace events.Namespace) *Tokens {
	return &Tokens{
		redis: client, key: namespace.Tokens(), used: namespace.Tokens() + ":used", wrote: map[string]time.Time{},
	}
}

// Token describes a token without revealing it.
type Token struct {
	ID      string    `json:"id"`              // start of its hash
	Hash    string    `json:"token,omitempty"` // SHA-256, in hexadecimal; from [Tokens.Each] only
	App     string    `json:"app"`
	Created time.Time `json:"created"`
	Used    time.Time `json:"used,omitzero"` // last use, up to a minute old; zero if there was none
}

// record is the stored form of a token.
type record struct {
	App     string    `json:"app"`
	Created time.Time `json:"created"`
}

// ErrNoSuchToken means that no token has an ID.
var ErrNoSuchToken = errors.New("no token has this ID; see lockstep tokens ls")

// requiredField is set with the first token, and stays when tokens are removed: requests need a token from then on.
const requiredField = "required"

const (
	prefix      = "lockstep_" // lets scanners for secrets find tokens
	secretBytes = 32
	idLength    = 12 // hexadecimal digits
	maxToken    = 200
	useInterval = time.Minute
)

// Create creates a token for app, and returns it with its description. It is not stored and cannot be shown again.
func (t *Tokens) Create(ctx context.Context, app string) (Token, string, error) {
	if err := watch.CheckApp(app); err != nil {
		return Token{}, "", err
	}
	random := make([]byte, secretBytes)
	_, _ = rand.Read(random) // never fails
	secret := prefix + base64.RawURLEncoding.EncodeToString(random)
	kept := record{App: app, Created: time.Now().UTC().Truncate(time.Second)}
	document, err := json.Marshal(kept)
	if err != nil {
		return Token{}, "", err
	}
	hash := HashOf(secret)
	if err := t.redis.HSet(ctx, t.key, hash, document, requiredField, "").Err(); err != nil {
		return Token{}, "", fmt.Errorf("store the token: %w", err)
	}
	return Token{ID: hash[:idLength], App: app, Created: kept.Created}, secret, nil
}

// List returns all tokens, by app, then by age.
func (t *Tokens) List(ctx context.Context) ([]Token, error) {
	all := []Token{}
	err := t.Each(ctx, func(one Token) error {
		one.Hash = ""
		all = append(all, one)
		return nil
	})
	slices.SortFunc(all, func(a, b Token) int {
		return cmp.Or(strings.Compare(a.App, b.App), a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID))
	})
	return slices.CompactFunc(all, func(a, b Token) bool { return a.ID == b.ID }), err
}

// IsTokenID reports whether id can be the ID of a token.
func IsTokenID(id string) bool {
	return len(id) == idLength && strings.Trim(id, "0123456789abcdef") == ""
}

// Remove removes the token with an ID, which is refused from then on. It returns [ErrNoSuchToken] if there is none.
func (t *Tokens) Remove(ctx context.Context, id string) (removed Token, err error) {
	err = t.Each(ctx, func(one Token) error {
		if one.ID == id {
			removed = one
		}
		return nil
	})
	if err == nil && removed.ID == "" {
		return Token{}, ErrNoSuchToken
	}
	if err == nil {
		_, err = t.redis.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.HDel(ctx, t.key, removed.Hash)
			pipe.HDel(ctx, t.used, id)
			return nil
		})
	}
	if err != nil {
		return Token{}, fmt.Errorf("remove the token: %w", err)
	}
	removed.Hash = ""
	return removed, nil
}

// App returns the app of a token, and records its use. It returns false if the token is unknown or removed.
func (t *Tokens) App(ctx context.Context, secret string) (app string, ok bool, err error) {
	if len(secret) > maxToken {
		return "", false, nil
	}
	hash := HashOf(secret)
	document, err := t.redis.HGet(ctx, t.key, hash).Result()
	if errors.Is(err, redis.Nil) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("look up the token: %w", err)
	}
	var kept record
	if err := json.Unmarshal([]byte(document), &kept); err != nil || watch.CheckApp(kept.App) != nil {
		return "", false, nil
	}
	t.recordUse(ctx, hash[:idLength])
	return kept.App, true, nil
}

// Required reports whether requests need a token: whether there ever was one, as far as Redis has its data.
func (t *Tokens) Required(ctx context.Context) (bool, error) {
	n, err := t.redis.HLen(ctx, t.key).Result()
	if err != nil {
		return false, fmt.Errorf("look up whether tokens are required: %w", err)
	}
	return n > 0, nil // with requiredField
}

// Require makes requests need a token, as if one had been created and removed.
func (t *Tokens) Require(ctx context.Context) error {
	if err := t.redis.HSet(ctx, t.key, requiredField, "").Err(); err != nil {
		return fmt.Errorf("require tokens: %w", err)
	}
	return nil
}

// Removed returns those of tokens, given by their hashes, that were removed, and records the use of the others.
func (t *Tokens) Removed(ctx context.Context, hashes []string) (removed []string, err error) {
	records, err := t.redis.HMGet(ctx, t.key, hashes...).Result()
	if err != nil {
		return nil, fmt.Errorf("look up tokens: %w", err)
	}
	for i, document := range records {
		if document == nil {
			removed = append(removed, hashes[i])
		} else {
			t.recordUse(ctx, hashes[i][:idLength])
		}
	}
	return removed, nil
}

// recordUse writes when a token was used, unless this process wrote it within a minute.
func (t *Tokens) recordUse(ctx context.Context, id string) {
	now := time.Now()
	t.mu.Lock()
	due := now.Sub(t.wrote[id]) >= useInterval
	if due {
		t.wrote[id] = now
	}
	t.mu.Unlock()
	if due {
		t.redis.HSet(ctx, t.used, id, now.UnixMilli()) // a lost time of use is no reason to refuse a request
	}
}

// HashOf returns the hash under which a token is stored.
func HashOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}
