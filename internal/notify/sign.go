package notify

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"time"

	"lockstep/events"
)

// secretPrefix begins a secret that is written in base64, as Standard Webhooks have it. Any other is taken as
// it stands.
const secretPrefix = "whsec_"

var errSecret = errors.New("the signing secret begins with " + secretPrefix + " but what follows is no base64, or nothing")

// signature is the header that signs a post with each of the secrets.
func signature(secrets []string, id string, at time.Time, body []byte) (string, error) {
	signatures := make([]string, len(secrets))
	for i, secret := range secrets {
		key := []byte(secret)
		if text, ok := strings.CutPrefix(secret, secretPrefix); ok {
			var err error
			if key, err = base64.StdEncoding.DecodeString(text); err != nil {
				return "", errSecret // the decoder's error may show a part of it
			}
		}
		if len(key) == 0 { // anybody could sign with that
			return "", errSecret
		}
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "."))
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return strings.Join(signatures, " "), nil
}

var idPattern = regexp.MustCompile(`^msg_[A-Za-z0-9_-]{24}$`)

// idOf is the webhook-id of a result for an app. A result's own id may have anything in it, dots too, which
// separate what is signed.
func idOf(result events.Result, app string) string {
	sum := sha256.Sum256([]byte(result.ID + "\x00" + app))
	return "msg_" + base64.RawURLEncoding.EncodeToString(sum[:18])
}
