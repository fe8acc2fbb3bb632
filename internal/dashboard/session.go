package dashboard

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"
	"time"
)

const (
	sessionLasts = 12 * time.Hour
	sessionID    = 16 // bytes
)

// The cookie's names. A browser keeps the first to this very host, and to TLS.
const (
	secureCookie = "__Host-lockstep"
	plainCookie  = "lockstep"
)

// sessions are signed, not kept: with a key that comes from the API token, so that each replica takes those of
// all, and a new token ends all of them. Without a token there are none, and the key, which forms are signed
// with, is the process' own.
type sessions struct {
	key  []byte
	none bool
}

func newSessions(token, realm string) (sessions, error) {
	if token == "" {
		key := make([]byte, sha256.Size)
		_, _ = rand.Read(key) // never fails
		return sessions{key: key, none: true}, nil
	}
	key, err := hkdf.Key(sha256.New, []byte(token), nil, "lockstep dashboard 1 "+realm, sha256.Size)
	if err != nil {
		return sessions{}, fmt.Errorf("dashboard: derive a key from the API token: %w", err)
	}
	return sessions{key: key}, nil
}

type session struct {
	id   string
	ends time.Time
}

// begin sets the cookie of a new session. It is no longer than the time it says itself.
func (s sessions) begin(w http.ResponseWriter, secure bool) {
	value := make([]byte, 8+sessionID)
	binary.BigEndian.PutUint64(value, uint64(time.Now().Add(sessionLasts).Unix()))
	_, _ = rand.Read(value[8:])
	value = append(value, s.sign("session", value)...)
	http.SetCookie(w, cookie(secure, base64.RawURLEncoding.EncodeToString(value), int(sessionLasts.Seconds())))
}

// end has the browser forget its session.
func (s sessions) end(w http.ResponseWriter, secure bool) {
	if secure {
		http.SetCookie(w, cookie(true, "", -1))
	}
	http.SetCookie(w, cookie(false, "", -1))
}

func cookie(secure bool, value string, maxAge int) *http.Cookie {
	name := plainCookie
	if secure {
		name = secureCookie
	}
	return &http.Cookie{Name: name, Value: value, Path: "/", MaxAge: maxAge, Secure: secure, HttpOnly: true, SameSite: http.SameSiteStrictMode}
}

// read returns the request's session, if it is one of ours and has not ended.
func (s sessions) read(r *http.Request) (session, bool) {
	if s.none {
		return session{}, false
	}
	for _, name := range []string{secureCookie, plainCookie} {
		for _, c := range r.CookiesNamed(name) {
			value, err := base64.RawURLEncoding.DecodeString(c.Value)
			if err != nil || len(value) != 8+sessionID+sha256.Size {
				continue
			}
			content, signature := value[:8+sessionID], value[8+sessionID:]
			ends := time.Unix(int64(binary.BigEndian.Uint64(content)), 0)
			if hmac.Equal(signature, s.sign("session", content)) && time.Now().Before(ends) {
				return session{string(content[8:]), ends}, true
			}
		}
	}
	return session{}, false
}

// proof is what a form carries that is made for the given visitor.
func (s sessions) proof(visitor string) string {
	return base64.RawURLEncoding.EncodeToString(s.sign("form", []byte(visitor)))
}

func (s sessions) madeFor(visitor, proof string) bool {
	return hmac.Equal([]byte(proof), []byte(s.proof(visitor)))
}

func (s sessions) sign(what string, content []byte) []byte {
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(what + "\x00"))
	mac.Write(content)
	return mac.Sum(nil)
}
