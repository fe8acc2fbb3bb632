package watch

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"

	"github.com/bmatcuk/doublestar/v4"

	"lockstep/events"
)

// Watch is an app's subscription to refs of a repository. [New] validates one.
type Watch struct {
	App  string          `json:"app" yaml:"app"`
	Repo events.RepoPath `json:"repo" yaml:"repo,omitempty"`
	URL  string          `json:"url" yaml:"url"`                    // the remote, without credentials
	Ref  Selector        `json:"ref,omitzero" yaml:"ref,omitempty"` // zero for the default branch
	// how many of the refs that a pattern matches are kept; zero for [DefaultMaxRefs]
	MaxRefs int `json:"max_refs,omitempty" yaml:"max_refs,omitempty"`
	// name of the credential to fetch with; empty for none
	Credential string       `json:"credential,omitempty" yaml:"credential,omitempty"`
	Depth      events.Depth `json:"depth,omitempty" yaml:"depth,omitempty"` // history to fetch
	Poll       Interval     `json:"poll,omitzero" yaml:"poll,omitempty"`    // zero for the setting poll-every

	// NotifyURL receives the results, if not empty. NotifySecret names the credential that signs them.
	NotifyURL    string `json:"notify_url,omitempty" yaml:"notify_url,omitempty"`
	NotifySecret string `json:"notify_secret,omitempty" yaml:"notify_secret,omitempty"`

	// Paths are globs of files (** crosses directories). Syncs that changed none of them cause no notification.
	Paths []string `json:"paths,omitempty" yaml:"paths,omitempty"`

	// FollowMoves moves the repository, with all its watches, when a poll finds that its remote permanently
	// redirects to another path of the same host.
	FollowMoves bool `json:"follow_moves,omitempty" yaml:"follow_moves,omitempty"`

	Auto bool `json:"auto,omitempty" yaml:"auto,omitempty"` // created for the first webhook of a repository

	// Silenced records when and why notifications to the app were disabled; empty while they are enabled.
	Silenced string `json:"silenced,omitempty" yaml:"-"`

	Options Options `json:"-" yaml:"-"` // of extensions; their fields follow in the document
}

// Key is a watch's identity: an app watches a selection of refs of a repository once.
type Key struct {
	App  string
	Repo events.RepoPath
	Ref  Selector
}

// Key returns the watch's identity.
func (w Watch) Key() Key { return Key{w.App, w.Repo, w.Ref} }

// Selects reports whether the watch is of a ref. isDefault says whether that is the default branch.
func (w Watch) Selects(ref events.Ref, isDefault bool) bool {
	return w.Ref.Matches(ref) || isDefault && w.Ref.IsDefault()
}

var appPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// DefaultMaxRefs is how many of the refs that a pattern matches are kept by default.
const DefaultMaxRefs = 100

const (
	maxRefs  = 1000 // maximum of MaxRefs
	maxPaths = 100
	maxPath  = 1024 // bytes
)

// New validates w, fills in the repository's path from the URL if it is zero, and rewrites an scp-like remote as a
// URL. Errors say what to do and never contain the URL.
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
	if err := CheckApp(w.App); err != nil {
		return Watch{}, err
	}
	switch {
	case w.Credential != "" && !appPattern.MatchString(w.Credential):
		return Watch{}, fmt.Errorf("credential %.110q: want at most 100 letters, digits, dots, underscores or hyphens",
			w.Credential)
	case w.MaxRefs < 0 || w.MaxRefs > maxRefs:
		return Watch{}, fmt.Errorf("max_refs %d: want 1 to %d", w.MaxRefs, maxRefs)
	case w.MaxRefs > 0 && !w.Ref.IsPattern():
		return Watch{}, errors.New("max_refs: only with a pattern as ref")
	}
	if w.NotifySecret != "" {
		if err := CheckCredential("notify_secret", w.NotifySecret); err != nil {
			return Watch{}, err
		}
	}
	if err := CheckGlobs(w.Paths); err != nil {
		return Watch{}, fmt.Errorf("paths: %w", err)
	}
	if err := checkNotifyURL(w.NotifyURL); err != nil {
		return Watch{}, fmt.Errorf("notify_url: %w", err)
	}
	if w.NotifyURL != "" && w.NotifySecret == "" {
		return Watch{}, errors.New("notify_secret: name the credential whose signingSecret signs notifications to notify_url")
	}
	if err := w.checkOptions(); err != nil {
		return Watch{}, err
	}
	return w, nil
}

// CheckApp returns an error unless app can be the name of one.
func CheckApp(app string) error {
	if !appPattern.MatchString(app) {
		return fmt.Errorf("app %.110q: want at most 100 letters, digits, dots, underscores or hyphens", app)
	}
	return nil
}

// CheckCredential returns an error unless name can be the name of a credential. field is the watch's field that names it.
func CheckCredential(field, name string) error {
	if !appPattern.MatchString(name) {
		return fmt.Errorf("%s %.110q: want a credential's name: at most 100 letters, digits, dots, underscores or hyphens",
			field, name)
	}
	return nil
}

// CheckGlobs returns an error for an invalid glob, and for too many.
func CheckGlobs(globs []string) error {
	if len(globs) > maxPaths {
		return fmt.Errorf("want at most %d globs", maxPaths)
	}
	for _, glob := range globs {
		if len(glob) > maxPath || !doublestar.ValidatePattern(glob) {
			return fmt.Errorf("%.110q is not a valid glob", glob)
		}
	}
	return nil
}

func checkNotifyURL(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || len(text) > 2048:
		return errors.New("is invalid or longer than 2048 bytes")
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return errors.New("want an absolute http or https URL")
	case u.User != nil || u.Fragment != "":
		return errors.New("contains credentials or a fragment")
	}
	return nil
}

// Concerns reports whether the app wants to be notified of a change to any of the files.
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

// Change returns the change that updates ref for the watch. after is the announced commit, or "".
func (w Watch) Change(id, source string, ref events.Ref, after string) (events.Change, error) {
	return events.NewChange(events.Change{
		ID: id, Type: events.ChangePushed, Source: source, Repo: w.Repo, URL: w.URL, Ref: ref, After: after,
		App: w.App, Credential: w.Credential, Depth: w.Depth, Watched: true, Foreign: w.Auto,
	})
}

// parse decodes and validates a document.
func parse(document []byte) (Watch, error) {
	var w Watch
	if err := json.Unmarshal(document, &w); err != nil {
		return Watch{}, err
	}
	return New(w)
}
