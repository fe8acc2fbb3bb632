// Package forge verifies and reads the webhooks of forges.
//
// [Receive] takes a delivery as it came, proves by its signature that the forge sent it, and says in one
// vocabulary, [Event], what has happened: a branch or tag was pushed or deleted, another branch is the default,
// a repository was removed, moved or archived. All else a forge may send is no error: [Delivery.Ignored] says
// why nothing came of it, since a forge that is answered with an error stops sending.
//
// A webhook means "look now", never "this is what changed": whoever works on an event asks the remote. So
// what is read here may be old, repeated or incomplete, but it is always sound: a repository's name is a
// [events.RepoPath], its URL has passed [events.CheckRemote], ends in that name and is among those that the
// source may speak of, a ref is a branch or a tag, a commit is a hash.
//
// Event names and delivery ids come in headers, which the forges do not sign. Whoever has seen a signed body
// can have it read as another event of the same forge, at worst as a removal, which the remote is asked about.
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
	Standard       Kind = "standard"     // Standard Webhooks, for everything else
)

// forge is how the deliveries of one forge are verified and read.
type forge struct {
	verify  func(src Source, header http.Header, body []byte, now time.Time) error
	idIn    []string // the header, by any of these names, that has the delivery's id; the same when it is sent again
	eventIn []string // the header that has the event's name
	read    func(r *reader, body []byte) error
}

var forges = map[Kind]forge{
	GitHub:         {verifyGitHub, []string{"X-GitHub-Delivery"}, []string{"X-GitHub-Event"}, readGitHub},
	GitLab:         {verifyGitLab, []string{"Idempotency-Key"}, []string{"X-Gitlab-Event"}, readGitLab},
	Gitea:          {verifyGitea, []string{"X-Gitea-Delivery"}, []string{"X-Gitea-Event"}, readGitea},
	Forgejo:        {verifyGitea, []string{"X-Forgejo-Delivery", "X-Gitea-Delivery"}, []string{"X-Forgejo-Event", "X-Gitea-Event"}, readGitea},
	BitbucketCloud: {verifyBitbucket, []string{"X-Request-UUID"}, []string{"X-Event-Key"}, readBitbucketCloud},
	BitbucketDC:    {verifyBitbucket, []string{"X-Request-Id"}, []string{"X-Event-Key"}, readBitbucketDC},
	Standard:       {verifyStandard, []string{"Webhook-Id"}, nil, readStandard},
}

// first returns the first of the headers by these names that is there.
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
		return "", errors.New("not a forge that is known here: want github, gitlab, gitea, forgejo, bitbucket-cloud, bitbucket-dc or standard")
	}
	return Kind(s), nil
}

// EventKind is what an [Event] says has happened.
type EventKind string

// The kinds of events.
const (
	Pushed         EventKind = "pushed"          // Ref may name another commit; the zero Ref: some refs do
	RefDeleted     EventKind = "ref_deleted"     // Ref is gone
	DefaultChanged EventKind = "default_changed" // another branch is the default
	Removed        EventKind = "removed"         // the repository is gone
	Moved          EventKind = "moved"           // the repository was From, and is Repo now
	Archived       EventKind = "archived"        // nothing will be pushed any more
)

// Event is one thing that has happened to one repository.
type Event struct {
	Kind    EventKind       `json:"kind"`
	Repo    events.RepoPath `json:"repo"`
	URL     string          `json:"url"`                // to clone it by, without credentials
	Ref     events.Ref      `json:"ref,omitzero"`       // pushed, ref_deleted: which; default_changed: the new one, if known
	Before  string          `json:"before,omitempty"`   // the commit that Ref named, if known
	After   string          `json:"after,omitempty"`    // the commit that Ref names, if known
	Default events.Ref      `json:"default,omitzero"`   // pushed: the default branch, if the forge says
	From    events.RepoPath `json:"from,omitzero"`      // moved: what it was called
	FromURL string          `json:"from_url,omitempty"` // moved: where it was
}

// Delivery is one webhook delivery, verified and read.
type Delivery struct {
	Source  string  `json:"source"`            // the name of the [Source]
	ID      string  `json:"id,omitempty"`      // the forge's id for it, at most 200 printable bytes; "" if it has none
	Event   string  `json:"event,omitempty"`   // the forge's name for what happened, at most 100 printable bytes
	Ping    bool    `json:"ping,omitempty"`    // sent to see whether anybody listens
	Ignored string  `json:"ignored,omitempty"` // why there are no events, one line
	Events  []Event `json:"events,omitempty"`  // at most 1,000
}

const (
	maxID        = 200 // bytes
	maxEventName = 100 // bytes
)

// ErrUnauthorized is wrapped by the errors of [Receive] about a delivery that is not proved to come from
// the forge: its signature is missing, cut short or wrong, or was made more than five minutes ago or ahead
// where the forge signs the time.
var ErrUnauthorized = errors.New("not proved to come from the forge")

// Receive verifies a delivery to src and reads it. header is the request's, and body the request's as it
// came, every byte of it. An error that does not wrap [ErrUnauthorized] says that the body cannot be read.
// No error repeats a secret, or what was sent.
func Receive(src Source, header http.Header, body []byte, now time.Time) (Delivery, error) {
	f, ok := forges[src.Kind]
	if !ok {
		return Delivery{}, fmt.Errorf("source %s: its forge is not known here", src.Name)
	}
	if err := src.verify(f, header, body, now); err != nil {
		return Delivery{}, err
	}
	r := &reader{src: src, header: header, d: Delivery{
		Source: src.Name, ID: deliveryID(first(header, f.idIn)), Event: eventName(first(header, f.eventIn)),
	}}
	if err := f.read(r, body); err != nil {
		return Delivery{}, err
	}
	return r.done(), nil
}

// deliveryID returns id, or a hash of what is too long or odd to be kept.
func deliveryID(id string) string {
	if len(id) > maxID || !isPrintable(id) {
		sum := sha256.Sum256([]byte(id))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return id
}

// eventName returns name, or "" for what is no event's name.
func eventName(name string) string {
	if len(name) > maxEventName || !isPrintable(name) {
		return ""
	}
	return name
}

func isPrintable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}
