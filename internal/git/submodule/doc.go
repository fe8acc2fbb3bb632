// Package submodule reads .gitmodules files and resolves the URLs in them, as Git does. Anybody who can push
// to a repository can write one, so nothing in it is trusted: the caller checks each URL, and sends no
// credential to it that is not meant for it.
//
// It is pure: content in, submodules out. The differences from Git:
//
//	a URL that is neither http, https nor ssh   refused; Git also has git://, file:// and local paths
//	a URL with a password, "." or ".."          refused by the caller
//	a file above 1 MiB                          refused
package submodule
