package watch

import (
	"strings"

	"lockstep/events"
)

// RemoteKey returns the key that a remote is indexed by: the host and path of [events.CanonicalRemote] in lower case,
// without the parts in which URLs of one repository may differ. It omits the port, because SSH and HTTP use different
// ones, and the "scm/" that Bitbucket Data Center adds to HTTP paths only. No forge has two repositories whose names
// differ only in case. Remotes that are [SameRemote] have the same key; two forges behind different ports of a host
// may share one.
func RemoteKey(remote string) string {
	host, path, _ := strings.Cut(strings.ToLower(events.CanonicalRemote(remote)), "/")
	if colon := strings.LastIndexByte(host, ':'); colon > strings.LastIndexByte(host, ']') {
		host = host[:colon]
	}
	return host + "/" + strings.TrimPrefix(path, "scm/")
}

// SameRemote reports whether two URLs name the same repository, by host and path. It compares ports if both URLs use
// SSH or both use HTTP, because two ports may belong to two forges.
func SameRemote(a, b string) bool {
	switch {
	case a == b:
		return true
	case isSSH(a) != isSSH(b):
		return RemoteKey(a) == RemoteKey(b)
	}
	return strings.EqualFold(events.CanonicalRemote(a), events.CanonicalRemote(b))
}

func isSSH(remote string) bool { return strings.HasPrefix(strings.ToLower(remote), "ssh:") }
