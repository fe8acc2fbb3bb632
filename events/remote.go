package events

import (
	"net"
	"net/url"
	"strings"
)

// CanonicalRemote returns the host and path of a remote, which identify it. It ignores the scheme, including ssh,
// the user name, a default port, a trailing slash, ".git" and needless escapes. It keeps an escaped slash, which
// may name a different repository. The result contains no credentials. It is "" if the remote is not a valid URL.
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

// CanonicalHost returns the host of [CanonicalRemote], with the port unless it is a default one.
func CanonicalHost(remote string) string {
	host, _, _ := strings.Cut(CanonicalRemote(remote), "/")
	return host
}

// HostPort returns the host of u in lower case, with the port unless it is the default of the scheme.
func HostPort(u *url.URL) string {
	port := u.Port()
	if port == "" || port == map[string]string{"https": "443", "http": "80", "ssh": "22"}[u.Scheme] {
		return strings.ToLower(u.Hostname())
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}
