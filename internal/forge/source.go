package forge

import (
	"errors"
	"log/slog"
	"net/url"
	"strings"

	"lockstep/events"
	"lockstep/internal/egress"
)

// Source is a sender of webhooks and the permissions of its deliveries, which are received at POST /hooks/{Name}.
// Its secrets are never printed.
type Source struct {
	Name     string
	Kind     Kind
	Secrets  []string // one, or two during rotation; none only if Unsigned
	Unsigned bool     // accepts deliveries without a signature
	URLs     []string // allowed URL prefixes; any URL if empty
	Auto     *Auto    // nil ignores unwatched repositories
}

// Auto configures automatic watches, created at the first event of an unwatched repository.
type Auto struct {
	App        string
	Credential string   // name of the credential; empty for none
	URLs       []string // allowed URL prefixes
}

// Allows reports whether the repository at remote may be watched automatically.
func (a *Auto) Allows(remote string) bool { return a != nil && covers(a.URLs, remote) }

// String returns the source's name and kind, without its secrets.
func (s Source) String() string { return "source " + s.Name + " (" + string(s.Kind) + ")" }

// GoString implements [fmt.GoStringer], without the secrets.
func (s Source) GoString() string { return s.String() }

// MarshalText implements [encoding.TextMarshaler], without the secrets.
func (s Source) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue implements [slog.LogValuer], without the secrets.
func (s Source) LogValue() slog.Value { return slog.StringValue(s.String()) }

// endsIn reports whether a remote's path ends in the repository's path, ignoring case and a .git suffix. This prevents
// a delivery from filling a clone with the contents of another repository.
func endsIn(remote string, path events.RepoPath) bool {
	_, rest, ok := strings.Cut(remote, "://")
	if !ok {
		return false
	}
	_, below, ok := strings.Cut(rest, "/")
	below = "/" + strings.TrimSuffix(strings.TrimSuffix(below, "/"), ".git")
	return ok && strings.HasSuffix(strings.ToLower(below), "/"+path.Key())
}

// sibling returns the URL of another repository on the server of a remote that ends in the path of.
func sibling(remote string, of, path events.RepoPath) string {
	base := strings.TrimSuffix(strings.TrimSuffix(remote, "/"), ".git")
	suffix := strings.TrimPrefix(remote, base)
	return base[:len(base)-len(of.String())] + path.String() + suffix
}

// covers reports whether remote is below one of the prefixes: it has the same scheme, host and port, and its path
// equals the prefix or continues with a slash. Like the matching of watches, it ignores case, "www." and ".git".
func covers(prefixes []string, remote string) bool {
	to, err := url.Parse(remote)
	if err != nil {
		return false
	}
	for _, prefix := range prefixes {
		p, err := url.Parse(prefix)
		if err != nil || p.Host == "" || p.Scheme != to.Scheme || host(p) != host(to) {
			continue
		}
		below, path := folded(p), folded(to)
		if path == below || strings.HasPrefix(path, below+"/") {
			return true
		}
	}
	return false
}

func host(u *url.URL) string { return strings.TrimPrefix(events.HostPort(u), "www.") }

func folded(u *url.URL) string {
	return strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(u.Path), "/"), ".git")
}

// checkPrefix returns an error for a string that is not a prefix of a clone URL.
func checkPrefix(prefix string) error {
	if err := egress.CheckPrefix(prefix); err != nil {
		return err
	}
	if strings.Contains(prefix, "@") {
		return errors.New("a URL contains a user; remove it")
	}
	return nil
}

// server returns the scheme and host of an HTTP URL, or "".
func server(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// server returns the server of all of the source's URLs, or "" if they differ.
func (s Source) server() string {
	all := ""
	for _, prefix := range s.URLs {
		one := server(prefix)
		if one == "" || all != "" && one != all {
			return ""
		}
		all = one
	}
	return all
}
