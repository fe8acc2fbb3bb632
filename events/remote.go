package events

import (
	"net"
	"net/url"
	"strings"
)

// CanonicalRemote is a remote's host and path, which are its identity: the scheme (ssh, too), a user's name, a
// default port, a trailing slash, .git and needless escapes make no difference. An escaped slash does: to
// the remote it may be another name. There are no credentials in it. Of what does not parse it is "".
func CanonicalRemote(remote string) string {
	u, err := url.Parse(remote)
	if err != nil {
		return ""
	}
	host := strings.ToLower(u.Hostname())
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	standard := map[string]bool{"": true, "80": u.Scheme != "ssh", "443": u.Scheme != "ssh", "22": u.Scheme == "ssh"}
	if port := u.Port(); !standard[port] {
		host += ":" + port
	}
	path := u.EscapedPath()
	if !strings.Contains(strings.ToLower(path), "%2f") {
		path = (&url.URL{Path: u.Path}).EscapedPath()
	}
	return host + "/" + strings.TrimSuffix(strings.Trim(path, "/"), ".git")
}

// CanonicalHost is the host of a [CanonicalRemote], with its port unless that is a default one.
func CanonicalHost(remote string) string {
	host, _, _ := strings.Cut(CanonicalRemote(remote), "/")
	return host
}

// HostPort returns the host of a URL in lower case, with the port unless it is the scheme's own.
func HostPort(u *url.URL) string {
	port := u.Port()
	if port == "" || port == map[string]string{"https": "443", "http": "80", "ssh": "22"}[u.Scheme] {
		return strings.ToLower(u.Hostname())
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}
