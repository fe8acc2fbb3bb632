package forge

import (
	"errors"
	"net/url"
	"strings"

	"lockstep/events"
)

// endsIn reports whether a remote's path ends in a repository's, in any case, with .git or without. So
// nobody can have the clone at one path made from the repository at another.
func endsIn(remote string, path events.RepoPath) bool {
	_, rest, ok := strings.Cut(remote, "://")
	if !ok {
		return false
	}
	_, below, ok := strings.Cut(rest, "/")
	below = "/" + strings.TrimSuffix(strings.TrimSuffix(below, "/"), ".git")
	return ok && strings.HasSuffix(strings.ToLower(below), "/"+path.Key())
}

// sibling returns the URL of another repository on the same server.
func sibling(of repository, path events.RepoPath) string {
	base := strings.TrimSuffix(strings.TrimSuffix(of.url, "/"), ".git")
	suffix := strings.TrimPrefix(of.url, base)
	return base[:len(base)-len(of.path.String())] + path.String() + suffix
}

// covers reports whether remote is below one of the prefixes: the same scheme, host and port, and a path
// that is equal or goes on after a slash.
func covers(prefixes []string, remote string) bool {
	to, err := url.Parse(remote)
	if err != nil {
		return false
	}
	for _, prefix := range prefixes {
		p, err := url.Parse(prefix)
		if err != nil || p.Host == "" || p.Scheme != to.Scheme || events.HostPort(p) != events.HostPort(to) {
			continue
		}
		below := strings.TrimSuffix(p.Path, "/")
		if to.Path == below || strings.HasPrefix(to.Path, below+"/") {
			return true
		}
	}
	return false
}

// checkPrefix refuses what cannot be the beginning of a URL to clone by.
func checkPrefix(prefix string) error {
	u, err := url.Parse(prefix)
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "ssh" {
		return errors.New("want the beginnings of URLs, as https://git.example.com/acme/")
	}
	if u.User != nil || strings.ContainsAny(prefix, "?#") {
		return errors.New("a URL has a user, a query or a fragment; leave it out")
	}
	return nil
}

// server returns the scheme and host of a URL over HTTP, or "".
func server(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// server returns the server that all of the source's URLs are on, or "".
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
