package forge

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// clockSkew is how far a signed time may be from ours.
const clockSkew = 5 * time.Minute

func unauthorized(why string) error { return fmt.Errorf("%w: %s", ErrUnauthorized, why) }

// verify proves that f sent the delivery. A source without a secret takes what comes if it was told to.
func (s Source) verify(f forge, header http.Header, body []byte, now time.Time) error {
	if len(s.Secrets) == 0 {
		if s.Unsigned {
			return nil
		}
		return unauthorized("the source has no secret")
	}
	return f.verify(s, header, body, now)
}

// anySecret reports whether matches, which compares in constant time, holds for one of the source's secrets.
// All are tried, so that the time taken does not tell which it was. An empty one never matches.
func (s Source) anySecret(matches func(secret string) bool) bool {
	found := false
	for _, secret := range s.Secrets {
		if secret != "" && matches(secret) {
			found = true
		}
	}
	return found
}

// verifyHex verifies a signature that is the body's HMAC-SHA256 in hexadecimal, after prefix.
func verifyHex(src Source, name, signature, prefix string, body []byte) error {
	if signature == "" {
		return unauthorized("the delivery has no " + name)
	}
	digits, ok := strings.CutPrefix(signature, prefix)
	given, err := hex.DecodeString(digits)
	if !ok || err != nil || len(given) != sha256.Size {
		return unauthorized(name + " is no SHA-256 signature")
	}
	if !src.anySecret(func(secret string) bool { return hmac.Equal(given, mac([]byte(secret), body)) }) {
		return unauthorized(name + " is wrong: the forge has another secret, or the body was changed")
	}
	return nil
}

// verifyToken verifies a header that is the secret itself.
func verifyToken(src Source, name, token string) error {
	if token == "" {
		return unauthorized("the delivery has no " + name)
	}
	given := sha256.Sum256([]byte(token))
	if !src.anySecret(func(secret string) bool {
		want := sha256.Sum256([]byte(secret))
		return subtle.ConstantTimeCompare(given[:], want[:]) == 1
	}) {
		return unauthorized(name + " is wrong")
	}
	return nil
}

// verifyStandard verifies a delivery by the Standard Webhooks specification, with symmetric keys.
func verifyStandard(src Source, header http.Header, body []byte, now time.Time) error {
	id, at, signatures := header.Get("Webhook-Id"), header.Get("Webhook-Timestamp"), header.Get("Webhook-Signature")
	if id == "" || at == "" || signatures == "" {
		return unauthorized("the delivery has no webhook-id, webhook-timestamp or webhook-signature")
	}
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return unauthorized("webhook-timestamp is no time in seconds")
	}
	if oldest, newest := now.Add(-clockSkew).Unix(), now.Add(clockSkew).Unix(); seconds < oldest || seconds > newest {
		return unauthorized("webhook-timestamp is more than five minutes away from our clock")
	}
	if !src.anySecret(func(secret string) bool {
		key, err := standardKey(secret)
		return err == nil && len(key) > 0 && hasMAC(signatures, mac(key, []byte(id+"."+at+"."), body))
	}) {
		return unauthorized("webhook-signature is wrong: the sender has another secret, or the body was changed")
	}
	return nil
}

// hasMAC reports whether want is among signatures, "v1,<base64>", which have spaces between them.
func hasMAC(signatures string, want []byte) bool {
	found := false
	for signature := range strings.FieldsSeq(signatures) {
		text, ok := strings.CutPrefix(signature, "v1,")
		given, err := base64.StdEncoding.DecodeString(text)
		if ok && err == nil && hmac.Equal(given, want) {
			found = true
		}
	}
	return found
}

// standardKey returns the key that a secret of Standard Webhooks stands for: what follows "whsec_" in
// base64, or else its own bytes.
func standardKey(secret string) ([]byte, error) {
	if text, ok := strings.CutPrefix(secret, "whsec_"); ok {
		return base64.StdEncoding.DecodeString(text)
	}
	return []byte(secret), nil
}

func mac(key []byte, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, key)
	for _, part := range parts {
		h.Write(part)
	}
	return h.Sum(nil)
}
