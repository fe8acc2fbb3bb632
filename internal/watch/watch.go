package watch

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"lockstep/events"
)

// Watch is an app's standing interest in a repository. Only [New] makes one whose parts are known to
// be sound.
type Watch struct {
	App        string          `json:"app"`                  // whose
	Repo       events.RepoPath `json:"repo"`                 // which clone
	URL        string          `json:"url"`                  // the remote, without credentials
	Ref        Selector        `json:"ref,omitzero"`         // which refs of it; zero for the default branch
	Credential string          `json:"credential,omitempty"` // the name of the credential to use; empty for none
	Depth      events.Depth    `json:"depth,omitempty"`      // how much history
	Poll       Interval        `json:"poll,omitzero"`        // how often the remote is asked without a webhook; zero for the setting poll-every

	// NotifyURL is where the app wants its results posted; empty for nowhere. NotifySecret names the
	// credential that signs them.
	NotifyURL    string `json:"notify_url,omitempty"`
	NotifySecret string `json:"notify_secret,omitempty"`

	// Paths are globs (** crosses folders) of files: of a sync that changed none of them the app is not
	// notified. None: it is notified of each.
	Paths []string `json:"paths,omitempty"`

	Auto bool `json:"auto,omitempty"` // made by itself, for the first webhook of a repository

	// Silenced says since when and why the app is not notified any more; empty while it is.
	Silenced string `json:"silenced,omitempty"`
}

// Key is a watch's identity: an app watches a selection of refs of a repository once.
type Key struct {
	App  string
	Repo events.RepoPath
	Ref  Selector
}

// Key returns the watch's identity.
func (w Watch) Key() Key { return Key{w.App, w.Repo, w.Ref} }

var appPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

const (
	maxPaths = 100
	maxPath  = 1024 // bytes
)

// New fills in what w leaves open (the repository's path, from the URL), writes an scp-like remote as
// a URL, and refuses nonsense. An error says what to do and repeats no URL.
func New(w Watch) (Watch, error) {
	w.URL = events.RemoteURL(w.URL)
	if err := events.CheckRemote(w.URL); err != nil {
		return Watch{}, err
	}
	if w.Repo.IsZero() {
		repo, err := events.RepoPathFromURL(w.URL)
		if err != nil {
			return Watch{}, fmt.Errorf("no repo given and none can be derived from url: %w", err)
		}
		w.Repo = repo
	}
	switch {
	case !appPattern.MatchString(w.App):
		return Watch{}, fmt.Errorf("app %.110q: want letters, digits and ._-, at most 100", w.App)
	case w.Credential != "" && !appPattern.MatchString(w.Credential):
		return Watch{}, fmt.Errorf("credential %.110q: want letters, digits and ._-, at most 100", w.Credential)
	case w.NotifySecret != "" && !appPattern.MatchString(w.NotifySecret):
		return Watch{}, fmt.Errorf("notify_secret %.110q: want a credential's name: letters, digits and ._-, at most 100", w.NotifySecret)
	case len(w.Paths) > maxPaths:
		return Watch{}, fmt.Errorf("paths: want at most %d globs", maxPaths)
	}
	for _, glob := range w.Paths {
		if len(glob) > maxPath || !doublestar.ValidatePattern(glob) {
			return Watch{}, fmt.Errorf("paths: %.110q is no glob", glob)
		}
	}
	if err := checkNotifyURL(w.NotifyURL); err != nil {
		return Watch{}, fmt.Errorf("notify_url: %w", err)
	}
	if w.NotifyURL != "" && w.NotifySecret == "" {
		return Watch{}, errors.New("notify_secret: name the credential whose signingSecret signs what is posted to notify_url")
	}
	return w, nil
}

func checkNotifyURL(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || len(text) > 2048:
		return errors.New("does not parse, or is longer than 2048 bytes")
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return errors.New("want an absolute http or https URL")
	case u.User != nil || u.Fragment != "":
		return errors.New("has credentials or a fragment in it")
	}
	return nil
}

// Concerns reports whether any of the files is one that the app wants to be notified of.
func (w Watch) Concerns(files []events.File) bool {
	if len(w.Paths) == 0 {
		return true
	}
	return slices.ContainsFunc(files, func(f events.File) bool {
		return slices.ContainsFunc(w.Paths, func(glob string) bool {
			return doublestar.MatchUnvalidated(glob, f.Path) || f.From != "" && doublestar.MatchUnvalidated(glob, f.From)
		})
	})
}

// Change is the change that brings ref up to date for the watch. after is the commit that a publisher
// has announced for it, or "".
func (w Watch) Change(id, source string, ref events.Ref, after string) (events.Change, error) {
	return events.NewChange(events.Change{
		ID: id, Type: events.ChangePushed, Source: source, Repo: w.Repo, URL: w.URL, Ref: ref, After: after,
		App: w.App, Credential: w.Credential, Depth: w.Depth, Watched: true, Foreign: w.Auto,
	})
}

// Selector says which refs a watch is about: the remote's default branch when zero, else one ref, or
// all whose full names match a pattern such as "refs/tags/v*", in which * stands for no slash.
type Selector struct{ text string }

var errBadSelector = errors.New(`want a branch, a full ref, or a pattern as "refs/tags/v*"`)

// ParseSelector parses a ref as [events.ParseRef] does, or a pattern below refs/heads/ or refs/tags/.
func ParseSelector(s string) (Selector, error) {
	if !strings.ContainsAny(s, "*?[") {
		ref, err := events.ParseRef(s)
		return Selector{ref.String()}, err
	}
	if _, err := path.Match(s, ""); err != nil || len(s) > 200 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return Selector{}, errBadSelector
	}
	if !strings.HasPrefix(s, "refs/heads/") && !strings.HasPrefix(s, "refs/tags/") {
		return Selector{}, errBadSelector
	}
	return Selector{s}, nil
}

// IsDefault reports whether s is the remote's default branch, whichever that is.
func (s Selector) IsDefault() bool { return s.text == "" }

// IsPattern reports whether s may select several refs.
func (s Selector) IsPattern() bool { return strings.ContainsAny(s.text, "*?[") }

// Ref is the one ref that s selects, zero for the default branch; false when s is a pattern.
func (s Selector) Ref() (events.Ref, bool) {
	if s.IsPattern() {
		return events.Ref{}, false
	}
	ref, err := events.ParseRef(s.text)
	return ref, err == nil
}

// Matches reports whether s selects ref by its name. The default branch has none.
func (s Selector) Matches(ref events.Ref) bool {
	if s.IsPattern() {
		ok, _ := path.Match(s.text, ref.String())
		return ok
	}
	return s.text != "" && s.text == ref.String()
}

// String is what [ParseSelector] reads.
func (s Selector) String() string { return s.text }

// IsZero is IsDefault.
func (s Selector) IsZero() bool { return s.text == "" }

// MarshalText is String.
func (s Selector) MarshalText() ([]byte, error) { return []byte(s.text), nil }

// UnmarshalText is [ParseSelector].
func (s *Selector) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSelector(string(text))
	return err
}

// Interval is how often a remote is polled: never, or every so often. The zero Interval leaves it to
// the setting.
type Interval time.Duration

// Never is the interval of a watch that is not polled.
const Never Interval = -1

const (
	minInterval = Interval(time.Second)
	maxInterval = Interval(30 * 24 * time.Hour)
)

// ParseInterval parses a duration from 1s to 720h, "never" or "".
func ParseInterval(s string) (Interval, error) {
	switch s {
	case "":
		return 0, nil
	case "never":
		return Never, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || Interval(d) < minInterval || Interval(d) > maxInterval {
		return 0, errors.New(`want a duration from 1s to 720h, or "never"`)
	}
	return Interval(d), nil
}

// String is what [ParseInterval] reads.
func (i Interval) String() string {
	switch i {
	case 0:
		return ""
	case Never:
		return "never"
	}
	return time.Duration(i).String()
}

// MarshalText is String.
func (i Interval) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText is [ParseInterval].
func (i *Interval) UnmarshalText(text []byte) (err error) {
	*i, err = ParseInterval(string(text))
	return err
}

// parse reads a watch as the registry keeps it.
func parse(document []byte) (Watch, error) {
	var w Watch
	if err := json.Unmarshal(document, &w); err != nil {
		return Watch{}, err
	}
	return New(w)
}
