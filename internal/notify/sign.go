package notify

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"lockstep/events"
)

// secretPrefix marks a secret in base64, as in Standard Webhooks. Other secrets are used as they are.
const secretPrefix = "whsec_"

// minSecret is the minimum length of a signing secret, in bytes. Who guesses it can forge notifications.
const minSecret = 16

// Errors of signature. They do not contain a part of the secret.
var (
	errSecret = errors.New("the signing secret is not base64 after " + secretPrefix)
	errShort  = fmt.Errorf("the signing secret is shorter than %d bytes, and could be guessed; create one with: "+
		"openssl rand -hex 32", minSecret)
)

// signature returns the value of the webhook-signature header, with one signature for each secret.
func signature(secrets []string, id string, at time.Time, body []byte) (string, error) {
	signatures := make([]string, len(secrets))
	for i, secret := range secrets {
		key := []byte(secret)
		if text, ok := strings.CutPrefix(secret, secretPrefix); ok {
			var err error
			if key, err = base64.StdEncoding.DecodeString(text); err != nil {
				return "", errSecret // the decoder's error may contain a part of the secret
			}
		}
		if len(key) < minSecret {
			return "", errShort
		}
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "."))
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return strings.Join(signatures, " "), nil
}

var idPattern = regexp.MustCompile(`^msg_[A-Za-z0-9_-]{24}$`)

// idOf returns the webhook-id of a result for an app. It is a hash because a result's own ID may contain dots, which
// separate the signed parts.
func idOf(result events.Result, app string) string {
	sum := sha256.Sum256([]byte(result.ID + "\x00" + app))
	return "msg_" + base64.RawURLEncoding.EncodeToString(sum[:18])
}
