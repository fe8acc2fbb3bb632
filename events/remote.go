package events

import (
	"net"
	"net/url"
	"strings"
)

// CanonicalRemote returns the host and path of a remote, which identify it. It ignores the scheme, including ssh,
// the user name, "www.", a trailing dot of the host, a default port, a trailing slash, ".git" and needless escapes. It
// keeps an escaped slash, which may name a different repository. The URLs that Azure DevOps has for a repository are one.
// The result contains no credentials. It is "" if the remote is not a valid URL.
func CanonicalRemote(remote string) string {
	u, err := url.Parse(remote)
	if err != nil {
		return ""
	}
	host := strings.TrimPrefix(hostName(u), "www.")
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
	path = strings.TrimSuffix(strings.Trim(path, "/"), ".git")
	if azure, ok := canonicalAzure(host, path, u.User.Username()); ok {
		return azure
	}
	return host + "/" + path
}

// hostName returns the host of u in lower case, without a trailing dot.
func hostName(u *url.URL) string { return strings.TrimSuffix(strings.ToLower(u.Hostname()), ".") }

const azureHost = "dev.azure.com"

// canonicalAzure returns what identifies a repository of Azure DevOps: dev.azure.com/{org}/{project}/_git/{name}. Its
// other URLs have the organization in the host, the path or the user name, and may omit a project of the same name.
func canonicalAzure(host, path, user string) (canonical string, ok bool) {
	org, isOld := strings.CutSuffix(host, ".visualstudio.com")
	segments := strings.Split(path, "/")
	switch {
	case host == "ssh."+azureHost || host == "vs-ssh.visualstudio.com":
		if len(segments) == 4 && segments[0] == "v3" {
			return strings.Join([]string{azureHost, segments[1], segments[2], "_git", segments[3]}, "/"), true
		}
		org = user
	case host == azureHost:
		org, segments = segments[0], segments[1:]
	case !isOld:
		return "", false
	}
	if len(segments) > 0 && strings.EqualFold(segments[0], "DefaultCollection") {
		segments = segments[1:]
	}
	n := len(segments)
	if n < 2 || n > 3 || segments[n-2] != "_git" && segments[n-2] != "_ssh" {
		return "", false
	}
	project, name := segments[0], segments[n-1]
	if n == 2 {
		project = name
	}
	return strings.Join([]string{azureHost, org, project, "_git", name}, "/"), true
}

// CanonicalHost returns the host of [CanonicalRemote], with the port unless it is a default one.
func CanonicalHost(remote string) string {
	host, _, _ := strings.Cut(CanonicalRemote(remote), "/")
	return host
}

// HostPort returns the host of u in lower case, without a trailing dot, and with the port unless it is the default of the
// scheme.
func HostPort(u *url.URL) string {
	port := u.Port()
	if port == "" || port == map[string]string{"https": "443", "http": "80", "ssh": "22"}[u.Scheme] {
		return hostName(u)
	}
	return net.JoinHostPort(hostName(u), port)
}
