package dashboard

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"time"

	"lockstep/internal/server"
)

const (
	sessionLifetime = 12 * time.Hour
	sessionID       = 16 // bytes
)

// Names of the session cookie. Browsers send a __Host- cookie only to this host, and only over TLS.
const (
	secureCookie = "__Host-lockstep"
	plainCookie  = "lockstep"
)

// sessions issues and verifies session cookies and CSRF tokens. Sessions are not stored, except for ended
// ones, but signed with a key derived from the API token, so every replica accepts them, and changing the
// token ends all of them. Without a token there are no sessions, and CSRF tokens are signed with a random
// key.
type sessions struct {
	guard  server.Guard
	realm  string
	random []byte // the key without a token
}

func newSessions(guard server.Guard, realm string) sessions {
	random := make([]byte, sha256.Size)
	_, _ = rand.Read(random) // never fails
	return sessions{guard, realm, random}
}

type session struct {
	id      string
	expires time.Time
}

// start sets the cookie of a new session. The cookie contains its own signed expiry time.
func (s sessions) start(w http.ResponseWriter, secure bool) {
	value := make([]byte, 8+sessionID)
	binary.BigEndian.PutUint64(value, uint64(time.Now().Add(sessionLifetime).Unix()))
	_, _ = rand.Read(value[8:])
	value = append(value, sign(s.key(), "session", value)...)
	http.SetCookie(w, cookie(secure, base64.RawURLEncoding.EncodeToString(value), int(sessionLifetime.Seconds())))
}

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
	return &http.Cookie{
		Name: name, Value: value, Path: "/", MaxAge: maxAge, Secure: secure, HttpOnly: true,
		SameSite: http.SameSiteStrictMode,
	}
}

// maxSessions bounds the cookies of a request that are looked up.
const maxSessions = 8

// read returns the request's sessions, each with a valid signature and not expired. There are several after
// logins over HTTP and HTTPS, or for several hosts of a domain.
func (s sessions) read(r *http.Request) (valid []session) {
	key := s.tokenKey()
	if key == nil {
		return nil
	}
	for _, name := range []string{secureCookie, plainCookie} {
		for _, c := range r.CookiesNamed(name) {
			value, err := base64.RawURLEncoding.DecodeString(c.Value)
			if err != nil || len(value) != 8+sessionID+sha256.Size {
				continue
			}
			content, signature := value[:8+sessionID], value[8+sessionID:]
			expires := time.Unix(int64(binary.BigEndian.Uint64(content)), 0)
			if hmac.Equal(signature, sign(key, "session", content)) && time.Now().Before(expires) && len(valid) < maxSessions {
				valid = append(valid, session{string(content[8:]), expires})
			}
		}
	}
	return valid
}

// csrfToken returns the CSRF token for forms bound to a visitor. See visitor.binding.
func (s sessions) csrfToken(binding string) string {
	return base64.RawURLEncoding.EncodeToString(sign(s.key(), "form", []byte(binding)))
}

func (s sessions) validCSRF(binding, token string) bool {
	return hmac.Equal([]byte(token), []byte(s.csrfToken(binding)))
}

// key returns the key of now.
func (s sessions) key() []byte {
	if key := s.tokenKey(); key != nil {
		return key
	}
	return s.random
}

// tokenKey returns the key that is derived from the token, nil without one.
func (s sessions) tokenKey() []byte { return s.guard.Key("lockstep dashboard 1 " + s.realm) }

func sign(key []byte, purpose string, content []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(purpose + "\x00"))
	mac.Write(content)
	return mac.Sum(nil)
}
