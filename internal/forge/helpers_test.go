package forge_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/forge"
)

const (
	secret  = "correct-horse-battery-staple"
	earlier = "a-secret-that-was-in-use-before"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// source returns a source of a forge that allows any URL.
func source(kind forge.Kind) forge.Source {
	return forge.Source{Name: "hub", Kind: kind, Secrets: []string{secret}}
}

// headersOf returns the headers with a forge's event name and delivery ID.
var headersOf = map[forge.Kind][2]string{
	forge.GitHub:         {"X-GitHub-Event", "X-GitHub-Delivery"},
	forge.GitLab:         {"X-Gitlab-Event", "Idempotency-Key"},
	forge.Gitea:          {"X-Gitea-Event", "X-Gitea-Delivery"},
	forge.Forgejo:        {"X-Forgejo-Event", "X-Forgejo-Delivery"},
	forge.BitbucketCloud: {"X-Event-Key", "X-Request-UUID"},
	forge.BitbucketDC:    {"X-Event-Key", "X-Request-Id"},
	forge.Azure:          {"X-Nothing", "X-Nothing"},
	forge.Standard:       {"X-Nothing", "Webhook-Id"},
}

// signed returns the headers of a delivery as the source's forge would send it, signed with its first secret.
func signed(src forge.Source, event string, body []byte) http.Header {
	names := headersOf[src.Kind]
	header := http.Header{}
	header.Set(names[0], event)
	header.Set(names[1], "delivery-1")
	switch src.Kind {
	case forge.GitHub:
		header.Set("X-Hub-Signature-256", "sha256="+hexMAC(src.Secrets[0], body))
	case forge.Gitea:
		header.Set("X-Gitea-Signature", hexMAC(src.Secrets[0], body))
	case forge.Forgejo:
		header.Set("X-Forgejo-Signature", hexMAC(src.Secrets[0], body))
	case forge.BitbucketCloud, forge.BitbucketDC:
		header.Set("X-Hub-Signature", "sha256="+hexMAC(src.Secrets[0], body))
	case forge.GitLab:
		header.Set("X-Gitlab-Token", src.Secrets[0])
	case forge.Azure:
		header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("azure:"+src.Secrets[0])))
	case forge.Standard:
		signStandard(header, []byte(src.Secrets[0]), "delivery-1", now, body)
	}
	return header
}

func hexMAC(key string, body []byte) string {
	h := hmac.New(sha256.New, []byte(key))
	h.Write(body)
	return hex.EncodeToString(h.Sum(nil))
}

func signStandard(header http.Header, key []byte, id string, at time.Time, body []byte) {
	seconds := strconv.FormatInt(at.Unix(), 10)
	h := hmac.New(sha256.New, key)
	h.Write([]byte(id + "." + seconds + "." + string(body)))
	header.Set("webhook-id", id)
	header.Set("webhook-timestamp", seconds)
	header.Set("webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(h.Sum(nil)))
}

// summary formats the events of a delivery as "kind repo url ref before after", with "-" for empty values, or "moved repo
// url from repo url".
func summary(d forge.Delivery) string {
	if d.Ping {
		return "ping"
	}
	var lines []string
	for _, e := range d.Events {
		words := []string{string(e.Kind), e.Repo.String(), strings.Join(e.URLs, ",")}
		if e.Kind == forge.Moved {
			words = append(words, "from", e.From.String(), strings.Join(e.FromURLs, ","))
		} else {
			for _, word := range []string{e.Ref.String(), e.Before, e.After} {
				if word == "" {
					word = "-"
				}
				words = append(words, word)
			}
		}
		lines = append(lines, strings.Join(words, " "))
	}
	if len(lines) == 0 {
		return "-"
	}
	return strings.Join(lines, "\n")
}

// checkSound fails the test if a delivery contains invalid values.
func checkSound(t *testing.T, d forge.Delivery) {
	t.Helper()
	if len(d.Events) > 1000 || len(d.ID) > 200 || len(d.Event) > 100 || strings.Contains(d.Ignored, "\n") {
		t.Errorf("%d events, id %q, event %q, ignored %q", len(d.Events), d.ID, d.Event, d.Ignored)
	}
	if (d.Ignored == "") != (len(d.Events) > 0 || d.Ping) {
		t.Errorf("%d events, ignored %q, ping %v", len(d.Events), d.Ignored, d.Ping)
	}
	for _, e := range d.Events {
		if len(e.URLs) == 0 {
			t.Errorf("%v has no URL", e)
		}
		for _, url := range slices.Concat(e.URLs, e.FromURLs) {
			if err := events.CheckRemote(url); err != nil {
				t.Errorf("%q: %v", url, err)
			}
		}
		if _, err := events.ParseRef(e.Ref.String()); err != nil {
			t.Error(err)
		}
		repo := e.Repo
		if repo.IsZero() { // then a watch has it at another path
			repo, _ = events.ParseRepoPath("acme/widgets")
		}
		_, err := events.NewChange(events.Change{Repo: repo, URL: e.URLs[0], Ref: e.Ref, Before: e.Before, After: e.After})
		if err != nil {
			t.Errorf("%v: %v", e, err)
		}
		if e.Kind == forge.Moved {
			if len(e.FromURLs) == 0 {
				t.Errorf("%v has no former URL", e)
			}
		} else if !e.From.IsZero() || len(e.FromURLs) > 0 {
			t.Errorf("%s from %s", e.Kind, e.From)
		}
	}
}
