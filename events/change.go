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

// ChangeType is what a [Change] asks for.
type ChangeType string

// The types of changes, as they stand in a CloudEvents document.
const (
	ChangePushed  ChangeType = "lockstep.change.pushed.v1"  // bring the clone up to date
	ChangeRemoved ChangeType = "lockstep.change.removed.v1" // the repository, or the ref that is named, may be gone: look, then remove
	ChangeMoved   ChangeType = "lockstep.change.moved.v1"   // the repository may be another's name now, To: look, then move the clone
	ChangeDue     ChangeType = "lockstep.change.due.v1"     // it is time to ask the remote whether a watched ref has moved
)

// Operation is what a change of that type comes to, in a word: sync, remove, move or poll.
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

// BusyPolicy is what to do about a repository that another job holds.
type BusyPolicy string

// The busy policies.
const (
	BusyWait BusyPolicy = "wait" // wait in line, and come back after the lock timeout: the default
	BusySkip BusyPolicy = "skip" // leave it to the one who has it: for polls and cron refreshes
)

// Change asks that one repository be brought up to date. Only [ParseChange] and [NewChange] make a
// Change whose parts are known to be sound.
type Change struct {
	ID     string     // the change's identity, kept over retries; at most 255 bytes
	Type   ChangeType // what is asked for
	Source string     // who asks, as "/lockstep/cli" or "/hooks/github"
	Time   time.Time  // when it was asked; zero when the publisher did not say

	Repo       RepoPath   // whose clone
	URL        string     // the remote, http, https or ssh, never with credentials in it; of a move, the new one
	To         RepoPath   // of a move: the new path
	Ref        Ref        // which ref; zero for the remote's default branch, and for all of a repository that is removed
	App        string     // which app asks; empty for nobody in particular
	Credential string     // the name of the credential to use; empty for none
	Before     string     // the commit the ref named before, if the publisher knows
	After      string     // the commit the ref names now, if the publisher knows
	Force      bool       // remove even though the remote still has the repository
	Depth      Depth      // how much history to keep; never less than another app asks for
	OnBusy     BusyPolicy // what to do when another job holds the repository
	Watched    bool       // asked only for as long as App watches the repository
	Foreign    bool       // URL is none of the operator's words: a webhook's payload named it
}

// NewChange fills in what c leaves open (a random id, type, source, time, repository path from the
// URL, busy policy), writes an scp-like remote as a URL (see [RemoteURL]), and refuses what
// [ParseChange] would refuse.
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
	c.URL = RemoteURL(c.URL)
	if c.Repo.IsZero() && c.URL != "" && c.Type != ChangeMoved {
		if err := CheckRemote(c.URL); err != nil { // for its reason says more than that of a path which cannot be derived
			return Change{}, malformed(err)
		}
		repo, err := RepoPathFromURL(c.URL)
		if err != nil {
			return Change{}, malformed(fmt.Errorf("no repo given and none can be derived from url: %w", err))
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
			return errors.New("a move wants the new path, to, and the new url")
		}
		if c.Repo.Contains(c.To) || c.To.Contains(c.Repo) {
			return errors.New("a repository cannot move above or below itself")
		}
	case ChangeDue:
	default:
		return fmt.Errorf("type %s is not one this version handles", quote(string(c.Type)))
	}
	if c.Repo.IsZero() {
		return errors.New("repo is missing")
	}
	if !c.To.IsZero() && c.Type != ChangeMoved {
		return errors.New("to is for moves alone")
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
	if err := c.Depth.check(); err != nil {
		return err
	}
	return checkTime(c.Time)
}

var (
	scpLike  = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]{0,63})@([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):([^:@]+)$`)
	userName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
)

// RemoteURL writes an scp-like remote, "git@host:owner/name.git", as the URL ssh://git@host/owner/name.git,
// and returns all else as it is. Such a path is below the user's home to a plain SSH server, and from the
// root to every forge: here it is the latter. For the former, write ssh://git@host/~/name.
func RemoteURL(remote string) string {
	parts := scpLike.FindStringSubmatch(remote)
	if parts == nil || strings.Contains(remote, "://") {
		return remote
	}
	u := url.URL{Scheme: "ssh", User: url.User(parts[1]), Host: parts[2], Path: "/" + strings.TrimLeft(parts[3], "/")}
	return u.String()
}

// CheckRemote refuses a remote that is not an absolute http, https or ssh URL, or that carries
// credentials, a query or a fragment (even an empty one, since "/info/refs" is to be appended), or
// a "." or ".." in its path, encoded or not, by which a URL below one prefix would mean another; to some
// servers "..;x" and "..\x" are such, too. An
// ssh URL may name a user, and no control character. The error does not repeat the URL.
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
		return errors.New("url carries a password, or a user name with other characters than letters, digits and ._-; name a credential instead")
	case u.Scheme == "ssh" && strings.ContainsFunc(u.Path, isControl):
		return errors.New("url has a control character in its path")
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
		seg, _, _ = strings.Cut(seg, ";") // what follows is a parameter to some servers
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
	return Errorf(Malformed, ClassMalformed, "malformed change: %w", err)
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

// quote quotes s for an error: at most 80 bytes of it, and none when it might be a URL, which a
// publisher may have put, password and all, into the wrong field.
func quote(s string) string {
	if strings.ContainsAny(s, "@:?#%=") {
		return "(text not repeated)"
	}
	if len(s) > 80 {
		s = s[:80] + "…"
	}
	return strconv.Quote(s)
}
