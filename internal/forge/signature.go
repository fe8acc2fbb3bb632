package forge

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// clockSkew is the maximum difference between a signed timestamp and the local clock.
const clockSkew = 5 * time.Minute

func unauthorized(why string) error { return fmt.Errorf("%w: %s", ErrUnauthorized, why) }

// mismatch is an error about a well-formed signature that is not that of the body.
type mismatch struct{ error }

func (m mismatch) Unwrap() error { return m.error }

// Precheck returns an error that wraps [ErrUnauthorized] if no body could make a delivery with this header valid: its
// signature is missing, malformed or out of date, or its token is wrong. It costs no more than the header's size.
func Precheck(src Source, header http.Header, now time.Time) error {
	f, ok := forges[src.Kind]
	if !ok {
		return fmt.Errorf("source %s: unknown forge", src.Name)
	}
	err := src.verify(f, header, nil, now)
	if _, needsBody := errors.AsType[mismatch](err); needsBody {
		return nil
	}
	return err
}

// verify verifies that f sent the delivery. A source without secrets accepts any delivery if it is Unsigned. An error
// names the forge that has sent it, if it seems to be another one.
func (s Source) verify(f forge, header http.Header, body []byte, now time.Time) error {
	var err error
	switch {
	case len(s.Secrets) > 0:
		err = f.verify(s, header, body, now)
	case !s.Unsigned:
		err = unauthorized("the source has no secret")
	}
	if sender := senderOf(header); err != nil && sender != "" && first(header, f.eventIn) == "" {
		return fmt.Errorf("%w; the delivery seems to be from %s, but the source is of %s", err, sender, s.Kind)
	}
	return err
}

// senderOf returns the forge that names an event in the header, "" if it is none of these.
func senderOf(header http.Header) Kind {
	for _, kind := range []Kind{Forgejo, Gitea, GitLab, BitbucketDC, GitHub} { // Forgejo and Gitea pretend to be GitHub, too
		if header.Get(forges[kind].eventIn[0]) != "" {
			return kind
		}
	}
	return ""
}

// anySecret reports whether matches, which must compare in constant time, returns true for one of the source's secrets.
// It tries all of them, so that the duration does not reveal which one matched. An empty secret never matches.
func (s Source) anySecret(matches func(secret string) bool) bool {
	found := false
	for _, secret := range s.Secrets {
		if secret != "" && matches(secret) {
			found = true
		}
	}
	return found
}

// verifyHex verifies a signature that consists of prefix and the body's HMAC-SHA256 in hexadecimal.
func verifyHex(src Source, name, signature, prefix string, body []byte) error {
	if signature == "" {
		return unauthorized("the delivery has no " + name)
	}
	digits, ok := strings.CutPrefix(signature, prefix)
	given, err := hex.DecodeString(digits)
	if !ok || err != nil || len(given) != sha256.Size {
		return unauthorized(name + " is not a SHA-256 signature")
	}
	if !src.anySecret(func(secret string) bool { return hmac.Equal(given, mac([]byte(secret), body)) }) {
		return mismatch{unauthorized(name + " is wrong: the forge has another secret, or the body was changed")}
	}
	return nil
}

// verifyToken verifies a header whose value is the secret.
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
		return unauthorized("webhook-timestamp is not a Unix time in seconds")
	}
	if oldest, newest := now.Add(-clockSkew).Unix(), now.Add(clockSkew).Unix(); seconds < oldest || seconds > newest {
		return unauthorized("webhook-timestamp is more than five minutes away from the local clock")
	}
	if !src.anySecret(func(secret string) bool {
		key, err := standardKey(secret)
		return err == nil && len(key) > 0 && hasMAC(signatures, mac(key, []byte(id+"."+at+"."), body))
	}) {
		return mismatch{unauthorized("webhook-signature is wrong: the sender has another secret, or the body was changed")}
	}
	return nil
}

// hasMAC reports whether want is one of the space-separated signatures of the form "v1,<base64>".
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

// standardKey returns the key of a Standard Webhooks secret: the base64 after "whsec_", or else the secret's own bytes.
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
