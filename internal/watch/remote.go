package watch

import (
	"strings"

	"lockstep/events"
)

// Place is what a remote is found by: the host and path of [events.CanonicalRemote] without what one and the
// same repository may be spelled with or without. A port is left out, for that of SSH has nothing to do with that of
// HTTP; so is the "scm/" that Bitbucket Data Center has in front of its paths in HTTP alone; and no forge has
// two repositories whose names differ in case alone. Two remotes that are [SameRemote] have one place; two
// of one place, behind two ports, need not be the same.
func Place(remote string) string {
	host, path, _ := strings.Cut(strings.ToLower(events.CanonicalRemote(remote)), "/")
	if colon := strings.LastIndexByte(host, ':'); colon > strings.LastIndexByte(host, ']') {
		host = host[:colon]
	}
	return host + "/" + strings.TrimPrefix(path, "scm/")
}

// SameRemote reports whether two URLs name the same repository, by host and path. A port matters between URLs
// of one kind, HTTP or SSH: behind two there may be two forges.
func SameRemote(a, b string) bool {
	switch {
	case a == b:
		return true
	case isSSH(a) != isSSH(b):
		return Place(a) == Place(b)
	}
	return strings.EqualFold(events.CanonicalRemote(a), events.CanonicalRemote(b))
}

func isSSH(remote string) bool { return strings.HasPrefix(strings.ToLower(remote), "ssh:") }
