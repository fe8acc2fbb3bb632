package events

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// ChangeType is the kind of a [Change].
type ChangeType string

// The types of changes, as written in a CloudEvents document.
const (
	ChangePushed ChangeType = "lockstep.change.pushed.v1" // bring the clone up to date
	// the repository or ref may be gone: ask the remote, then remove the clone.
	ChangeRemoved ChangeType = "lockstep.change.removed.v1"
	// the repository may have moved to To: ask the remote, then move the clone.
	ChangeMoved ChangeType = "lockstep.change.moved.v1"
	ChangeDue   ChangeType = "lockstep.change.due.v1" // a poll is due: ask the remote whether a watched ref has moved
)

// Operation returns the type as a single word: sync, remove, move or poll.
func (t ChangeType) Operation() string {
	switch t {
	case ChangeRemoved:
		return "remove"
	case ChangeMoved:
		return "move"
	case ChangeDue:
		return "poll"
	}
	return "sync"
}

// BusyPolicy is what to do when another job holds the repository.
type BusyPolicy string

// The busy policies.
const (
	BusyWait BusyPolicy = "wait" // wait for the lease, and retry after the lock timeout; the default
	BusySkip BusyPolicy = "skip" // do nothing, for polls and cron refreshes; it still waits for a limited host
)

// Change is a request to bring one repository up to date. Only [ParseChange] and [NewChange] return a validated Change.
// Its JSON is a CloudEvents document, whose data the fields after the first four are.
type Change struct {
	ID     string     `json:"-"` // identity of the change, the same on every retry; at most 255 bytes
	Type   ChangeType `json:"-"` // kind of change
	Source string     `json:"-"` // publisher, such as "/lockstep/cli" or "/hooks/github"
	Time   time.Time  `json:"-"` // when the publisher requested it; zero if unknown

	Repo RepoPath `json:"repo"` // path of the clone
	// remote, http, https or ssh, without credentials; the new URL if Type is ChangeMoved
	URL string   `json:"url,omitempty"`
	To  RepoPath `json:"to,omitzero"` // new path, for ChangeMoved only
	// zero for the remote's default branch, or for the whole repository if Type is ChangeRemoved
	Ref        Ref        `json:"ref,omitzero"`
	App        string     `json:"app,omitempty"`        // app that requested the change; optional
	Credential string     `json:"credential,omitempty"` // name of the credential to use; optional
	Before     string     `json:"before,omitempty"`     // commit the ref named before; empty if unknown
	After      string     `json:"after,omitempty"`      // commit the ref names now; empty if unknown
	Force      bool       `json:"force,omitempty"`      // remove the clone even if the remote still has the repository
	Depth      Depth      `json:"depth,omitempty"`      // history to keep; the deepest request of all apps wins
	OnBusy     BusyPolicy `json:"on_busy,omitempty"`    // what to do when another job holds the repository
	Watched    bool       `json:"watched,omitempty"`    // drop the change if App no longer watches the repository
	Pin        bool       `json:"pin,omitempty"`        // publish After under the ref's name, whatever the ref names now
	Foreign    bool       `json:"foreign,omitempty"`    // URL comes from a webhook's payload, not from the operator
	// whether the tree has the files of its submodules, if no watch of the ref is stricter
	Submodules Submodules `json:"submodules,omitempty"`
}

// NewChange fills in defaults (random ID, type, source, time, repository path derived from the URL, busy policy),
// rewrites an scp-like remote as a URL (see [RemoteURL]), and validates the change as [ParseChange] does.
func NewChange(c Change) (Change, error) {
	if c.ID == "" {
		c.ID = rand.Text()
	}
	if c.Source == "" {
		c.Source = "/lockstep"
	}
	if c.Type == "" {
		c.Type = ChangePushed
	}
	if c.OnBusy == "" {
		c.OnBusy = BusyWait
	}
	if c.Time.IsZero() {
		c.Time = time.Now().UTC()
	}
	var err error
	if c.Submodules, err = ParseSubmodules(string(c.Submodules)); err != nil {
		return Change{}, malformed(err)
	}
	c.URL = RemoteURL(c.URL)
	if c.Repo.IsZero() && c.URL != "" && c.Type != ChangeMoved {
		if err := CheckRemote(c.URL); err != nil { // a clearer error than that of RepoPathFromURL
			return Change{}, malformed(err)
		}
		repo, err := RepoPathFromURL(c.URL)
		if err != nil {
			return Change{}, malformed(fmt.Errorf("no repo given, and url does not contain one: %w", err))
		}
		c.Repo = repo
	}
	if err := c.check(); err != nil {
		return Change{}, malformed(err)
	}
	return c, nil
}

func (c Change) check() error {
	switch c.Type {
	case ChangePushed:
		if c.URL == "" {
			return errors.New("url is missing")
		}
	case ChangeRemoved:
		if c.URL == "" && !c.Force {
			return errors.New("url is missing; the remote is asked before a clone is removed, unless force is true")
		}
	case ChangeMoved:
		if c.URL == "" || c.To.IsZero() {
			return errors.New("a move requires to, the new path, and url, the new url")
		}
		if c.Repo.Contains(c.To) || c.To.Contains(c.Repo) {
			return errors.New("a repository cannot move above or below itself")
		}
	case ChangeDue:
	default:
		return fmt.Errorf("type %s is unknown", quote(string(c.Type)))
	}
	if c.Repo.IsZero() {
		return errors.New("repo is missing")
	}
	if !c.To.IsZero() && c.Type != ChangeMoved {
		return errors.New("to is allowed only for moves")
	}
	if c.URL != "" {
		if err := CheckRemote(c.URL); err != nil {
			return err
		}
	}
	if c.OnBusy != BusyWait && c.OnBusy != BusySkip {
		return fmt.Errorf("on_busy %s: want wait or skip", quote(string(c.OnBusy)))
	}
	for _, f := range []struct{ name, hash string }{{"before", c.Before}, {"after", c.After}} {
		if f.hash != "" && !isHash(f.hash) {
			return fmt.Errorf("%s %s is not a commit hash", f.name, quote(f.hash))
		}
	}
	for _, f := range []struct{ name, text string }{
		{"id", c.ID}, {"source", c.Source}, {"app", c.App}, {"credential", c.Credential},
	} {
		if len(f.text) > 255 || strings.ContainsFunc(f.text, isControl) || !utf8.ValidString(f.text) {
			return fmt.Errorf("%s is longer than 255 bytes, has control characters or is not UTF-8", f.name)
		}
	}
	if err := c.checkPinned(); err != nil {
		return err
	}
	if err := c.Depth.check(); err != nil {
		return err
	}
	if c.Submodules != SubmodulesOff && c.Type != ChangePushed {
		return errors.New("submodules is allowed only for pushed")
	}
	return checkTime(c.Time)
}

func (c Change) checkPinned() error {
	switch {
	case c.Pin && c.Type != ChangePushed:
		return errors.New("pin is allowed only for pushed")
	case c.Pin && (!isCommit(c.After) || strings.Trim(c.After, "0") == ""):
		return errors.New("pin requires after, the commit to publish, as 40 or 64 hexadecimal digits")
	case c.Ref.Commit() != "" && c.Type == ChangePushed && c.After != "" && c.After != c.Ref.Commit():
		return errors.New("after is another commit than ref; leave it out")
	}
	return nil
}

var (
	scpLike  = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]{0,63})@([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):([^:@]+)$`)
	userName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	httpName = regexp.MustCompile(`^(?i:(https?://))([A-Za-z0-9][A-Za-z0-9._%+-]{0,38})@([^@]+)$`)
	// tokens of GitHub, GitLab and Atlassian; those of Gitea and Azure DevOps are longer than a name.
	tokenName = regexp.MustCompile(`^(gh[a-z]_|github_pat_|gl[a-z]*-|AT[A-Z]{2})`)
)

// RemoteURL rewrites what a forge's clone button gives as a URL, and returns anything else unchanged. An scp-like remote,
// "git@host:owner/name.git", becomes ssh://git@host:/owner/name.git: the empty port marks a path that is sent without its
// slash, as Git does. A plain SSH server resolves it below the user's home, and ssh://git@host/owner/name.git from the
// root; to a forge, and to [CanonicalRemote], they are the same. A user name in an http or https URL, as
// "https://ada@host/owner/name", is dropped: the user name is that of the credential. It stays if it may be a token, so
// that [CheckRemote] refuses it.
func RemoteURL(remote string) string {
	if named := httpName.FindStringSubmatch(remote); named != nil && !tokenName.MatchString(named[2]) {
		return named[1] + named[3]
	}
	parts := scpLike.FindStringSubmatch(remote)
	if parts == nil || strings.Contains(remote, "://") {
		return remote
	}
	host, path := parts[2], parts[3]
	if !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "~") {
		host += ":"
	}
	u := url.URL{Scheme: "ssh", User: url.User(parts[1]), Host: host, Path: "/" + strings.TrimLeft(path, "/")}
	return u.String()
}

// CheckRemote returns an error unless remote is an absolute http, https or ssh URL without credentials, query or
// fragment (not even an empty one, since "/info/refs" is appended). The path must not contain "." or "..", encoded or
// not, nor "..;x" and "..\x", which some servers treat alike: such a URL could escape the prefix that a credential is
// limited to. An ssh URL may contain a user name but no control character. The error never repeats the URL.
func CheckRemote(remote string) error {
	if len(remote) > 2048 {
		return errors.New("url is longer than 2048 bytes")
	}
	u, err := url.Parse(remote)
	switch {
	case err != nil:
		return errors.New("url does not parse")
	case u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "ssh":
		return errors.New("url scheme is not supported; use http or https, or ssh, as ssh://git@host/path")
	case u.Scheme == "ssh" && !isSSHUser(u.User):
		return errors.New("url carries a password, or a user name with other characters than letters, " +
			"digits and ._-; name a credential instead")
	case u.Scheme == "ssh" && strings.ContainsFunc(u.Path, isControl):
		return errors.New("url has a control character in its path")
	case u.Scheme == "ssh" && strings.HasPrefix(u.Path, "/-"): // the server may take it for an option
		return errors.New("url has a path that begins with a dash")
	case u.Scheme != "ssh" && u.User != nil:
		return errors.New("url carries credentials; name a credential instead")
	case u.Hostname() == "" || strings.Trim(u.Path, "/") == "":
		return errors.New("url names no repository")
	case strings.ContainsAny(remote, "?#"):
		return errors.New("url has a query or a fragment")
	case !utf8.ValidString(remote):
		return errors.New("url is not UTF-8")
	}
	for seg := range strings.FieldsFuncSeq(u.Path, func(r rune) bool { return r == '/' || r == '\\' }) {
		seg, _, _ = strings.Cut(seg, ";") // some servers treat the rest as a parameter
		if seg == "." || seg == ".." {
			return errors.New("url has a \".\" or \"..\" in its path")
		}
	}
	return nil
}

func isSSHUser(user *url.Userinfo) bool {
	if user == nil {
		return true
	}
	_, password := user.Password()
	return !password && userName.MatchString(user.Username())
}

func malformed(err error) error {
	return Errorf(Malformed, ClassConfig, "malformed change: %w", err)
}

func isHash(s string) bool {
	if len(s) != 40 && len(s) != 64 {
		return false
	}
	for i := range len(s) {
		if (s[i] < '0' || s[i] > '9') && (s[i] < 'a' || s[i] > 'f') {
			return false
		}
	}
	return true
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// quote quotes s for an error message, at most 80 bytes of it. It withholds text that might be a URL: a
// publisher may have put one, with its password, into the wrong field.
func quote(s string) string {
	if strings.ContainsAny(s, "@:?#%=") {
		return "(text not repeated)"
	}
	if len(s) > 80 {
		s = s[:80] + "…"
	}
	return strconv.Quote(s)
}

// Announced returns the commit that the ref now names according to the change, or "". A hash of zeros, by which
// forges report a deleted ref, counts as none, and so does a commit by its hash, see [Change.Pinned].
func (c Change) Announced() string {
	if strings.Trim(c.After, "0") == "" || c.Pinned() != "" {
		return ""
	}
	return c.After
}

// Pinned returns the commit that a sync publishes whatever the ref names now, or "" if it publishes what the ref names.
func (c Change) Pinned() string {
	switch {
	case c.Type != ChangePushed:
		return ""
	case c.Pin:
		return c.After
	}
	return c.Ref.Commit()
}

// Result returns the result of type t of the change in a stream entry; the caller fills in the fields
// specific to the type. The ID is the same for every attempt at the same entry, so consumers can detect
// duplicates; see also [Result.Entry].
func (c Change) Result(t ResultType, entry string) Result {
	return Result{
		ID: c.ID + "/" + entry, Type: t, Time: time.Now().UTC(),
		Repo: c.Repo, App: c.App, Ref: c.Ref, Deliveries: []string{c.ID},
	}
}
