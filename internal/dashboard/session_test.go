package dashboard

import (
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"lockstep/internal/server"
)

func decoded(value string) string {
	b, _ := base64.RawURLEncoding.DecodeString(value)
	return string(b)
}

func TestSessionExpires(t *testing.T) {
	s := newSessions(server.Guard{Token: fixed(token)}, "a")
	signed := func(expires time.Time) *http.Request {
		value := make([]byte, 8+sessionID)
		binary.BigEndian.PutUint64(value, uint64(expires.Unix()))
		value = append(value, sign(s.key(), "session", value)...)
		r := httptest.NewRequest("GET", "/", nil)
		r.AddCookie(cookie(true, base64.RawURLEncoding.EncodeToString(value), 0))
		return r
	}
	if len(s.read(signed(time.Now().Add(time.Minute)))) == 0 {
		t.Error("a session that has not expired is refused")
	}
	if len(s.read(signed(time.Now().Add(-time.Second)))) > 0 {
		t.Error("an expired session is accepted")
	}
	// A value signed for a form is not a valid session.
	r := httptest.NewRequest("GET", "/", nil)
	value := make([]byte, 8+sessionID)
	binary.BigEndian.PutUint64(value, uint64(time.Now().Add(time.Hour).Unix()))
	value = append(value, sign(s.key(), "form", value)...)
	r.AddCookie(cookie(true, base64.RawURLEncoding.EncodeToString(value), 0))
	if len(s.read(r)) > 0 {
		t.Error("a form's signature is accepted for a session")
	}
}
