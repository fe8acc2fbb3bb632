// Package forge verifies and decodes webhooks of Git forges.
//
// [Receive] verifies a delivery's signature and converts it to a list of [Event]: a branch or tag was pushed or
// deleted, the default branch changed, or a repository was removed, moved or archived. Other deliveries are not
// errors, because a forge that receives errors stops sending: [Delivery.Ignored] says why there are no events.
//
// A webhook means "check the remote", not "this is what changed", because it may be late, repeated or incomplete.
// Its fields are always valid: a repository's name is a [events.RepoPath]; its URL has passed
// [events.CheckRemote], ends in that name and is among the source's URLs; a ref is a branch or a tag; a commit is a
// hash.
//
// Forges send the event name and the delivery ID in headers that they do not sign. An attacker who has
// captured a signed body can replay it as another event of the same forge, at worst as a removal, which is
// verified with the remote.
package forge

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"lockstep/events"
)

// Kind names a forge.
type Kind string

// The forges.
const (
	GitHub         Kind = "github"
	GitLab         Kind = "gitlab"
	Gitea          Kind = "gitea"
	Forgejo        Kind = "forgejo"
	BitbucketCloud Kind = "bitbucket-cloud"
	BitbucketDC    Kind = "bitbucket-dc" // Data Center and Server
	Azure          Kind = "azure"        // Azure DevOps Services and Server
	Standard       Kind = "standard"     // Standard Webhooks, for everything else
)

// forge describes how to verify and decode the deliveries of a forge.
type forge struct {
	verify  func(src Source, header http.Header, body []byte, now time.Time) error
	idIn    []string // headers that may contain the delivery ID, which is the same in redeliveries
	eventIn []string // headers that may contain the event name
	read    func(r *reader, body []byte)
}

var forges = map[Kind]forge{
	GitHub: {verifyGitHub, []string{"X-GitHub-Delivery"}, []string{"X-GitHub-Event"}, readGitHub},
	GitLab: {verifyGitLab, []string{"Idempotency-Key"}, []string{"X-Gitlab-Event"}, readGitLab},
	Gitea:  {verifyGitea, []string{"X-Gitea-Delivery"}, []string{"X-Gitea-Event"}, readGitea},
	Forgejo: {verifyGitea, []string{"X-Forgejo-Delivery", "X-Gitea-Delivery"},
		[]string{"X-Forgejo-Event", "X-Gitea-Event"}, readGitea},
	BitbucketCloud: {verifyBitbucket, []string{"X-Request-UUID"}, []string{"X-Event-Key"}, readBitbucketCloud},
	BitbucketDC:    {verifyBitbucket, []string{"X-Request-Id"}, []string{"X-Event-Key"}, readBitbucketDC},
	Azure:          {verifyAzure, nil, nil, readAzure}, // both are in the body
	Standard:       {verifyStandard, []string{"Webhook-Id"}, nil, readStandard},
}

// first returns the first non-empty header of names.
func first(header http.Header, names []string) string {
	for _, name := range names {
		if value := header.Get(name); value != "" {
			return value
		}
	}
	return ""
}

// ParseKind parses the name of a forge.
func ParseKind(s string) (Kind, error) {
	if _, ok := forges[Kind(s)]; !ok {
		return "", errors.New("unknown forge: want github, gitlab, gitea, forgejo, bitbucket-cloud, bitbucket-dc, " +
			"azure or standard")
	}
	return Kind(s), nil
}

// EventKind is the kind of an [Event].
type EventKind string

// The kinds of events.
const (
	Pushed         EventKind = "pushed"          // Ref may have a new commit; a zero Ref means that any ref may
	RefDeleted     EventKind = "ref_deleted"     // Ref was deleted
	DefaultChanged EventKind = "default_changed" // the default branch changed
	Removed        EventKind = "removed"         // the repository was deleted
	Moved          EventKind = "moved"           // the repository moved from From to Repo
	Archived       EventKind = "archived"        // the repository became read-only
)

// Event is something that happened to a repository.
type Event struct {
	Kind     EventKind       `json:"kind"`
	Repo     events.RepoPath `json:"repo,omitzero"`       // zero if the forge's name for it is not a valid path
	URLs     []string        `json:"urls"`                // clone URLs, without credentials, at least one
	Ref      events.Ref      `json:"ref,omitzero"`        // ref pushed or deleted, or the new default branch, if known
	Before   string          `json:"before,omitempty"`    // previous commit of Ref, if known
	After    string          `json:"after,omitempty"`     // new commit of Ref, if known
	Default  events.Ref      `json:"default,omitzero"`    // default branch of a pushed repository, if known
	From     events.RepoPath `json:"from,omitzero"`       // previous path of a moved repository, zero as Repo
	FromURLs []string        `json:"from_urls,omitempty"` // previous clone URLs of a moved repository
}

// Name returns the path of the repository, or its first URL.
func (e Event) Name() string {
	if e.Repo.IsZero() && len(e.URLs) > 0 {
		return e.URLs[0]
	}
	return e.Repo.String()
}

// Delivery is a verified and decoded webhook delivery.
type Delivery struct {
	Source  string  `json:"source"`            // name of the [Source]
	ID      string  `json:"id,omitempty"`      // assigned by the forge, at most 200 printable bytes; "" if there is none
	Event   string  `json:"event,omitempty"`   // the forge's event name, at most 100 printable bytes
	Ping    bool    `json:"ping,omitempty"`    // connection test only
	Ignored string  `json:"ignored,omitempty"` // why there are no events; one line
	Events  []Event `json:"events,omitempty"`  // at most 1,000
}

const (
	maxID        = 200 // bytes
	maxEventName = 100 // bytes
)

// ErrUnauthorized is wrapped by errors of [Receive] about the signature: it is missing, truncated or wrong, or its
// signed timestamp, if any, is more than five minutes off the local clock.
var ErrUnauthorized = errors.New("delivery not authenticated")

// Receive verifies and decodes a delivery to src. body must be the unmodified request body. Errors that do not wrap
// [ErrUnauthorized] mean that the body cannot be decoded. Errors contain neither secrets nor parts of the delivery.
func Receive(src Source, header http.Header, body []byte, now time.Time) (Delivery, error) {
	f, ok := forges[src.Kind]
	if !ok {
		return Delivery{}, fmt.Errorf("source %s: unknown forge", src.Name)
	}
	if err := src.verify(f, header, body, now); err != nil {
		return Delivery{}, err
	}
	r := &reader{src: src, header: header, d: Delivery{
		Source: src.Name, ID: deliveryID(first(header, f.idIn)), Event: eventName(first(header, f.eventIn)),
	}}
	if f.read(r, body); r.err != nil {
		return Delivery{}, r.err
	}
	return r.done(), nil
}

// deliveryID returns id, or its hash if it is too long or not printable.
func deliveryID(id string) string {
	if len(id) > maxID || !isPrintable(id) {
		sum := sha256.Sum256([]byte(id))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return id
}

// eventName returns name, or "" if it is too long or not printable.
func eventName(name string) string {
	if len(name) > maxEventName || !isPrintable(name) {
		return ""
	}
	return name
}

func isPrintable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}
