package lfs

import (
	"cmp"
	"errors"
	"net/url"
	"path"
	"slices"
	"strings"

	"lockstep/internal/git"
	"lockstep/internal/git/submodule"
	"lockstep/internal/git/wildmatch"
)

// Config is what counts of a .lfsconfig file. Anybody who can push can write one.
type Config struct {
	URL              string            // lfs.url
	URLs             map[string]string // remote.{name}.lfsurl, by name
	Remote           string            // remote.lfsdefault
	Include, Exclude []string          // patterns as in .gitignore
}

const (
	configName = ".lfsconfig"
	maxConfig  = 64 << 10 // bytes
)

// parseConfig parses a .lfsconfig file. It returns the zero Config if the file is not valid.
func parseConfig(content []byte) Config {
	c := Config{URLs: map[string]string{}}
	err := submodule.ParseConfig(content, func(section, name, key, value string, hasValue bool) error {
		switch {
		case !hasValue:
		case section == "remote" && name != "" && key == "lfsurl":
			c.URLs[name] = value
		case section == "remote" && name == "" && key == "lfsdefault":
			c.Remote = value
		case section != "lfs" || name != "":
		case key == "url":
			c.URL = value
		case key == "fetchinclude":
			c.Include = splitPatterns(value)
		case key == "fetchexclude":
			c.Exclude = splitPatterns(value)
		}
		return nil
	})
	if err != nil {
		return Config{}
	}
	return c
}

func splitPatterns(text string) (patterns []string) {
	for pattern := range strings.SplitSeq(text, ",") {
		if pattern = strings.TrimSpace(pattern); pattern != "" {
			patterns = append(patterns, pattern)
		}
	}
	return patterns
}

// anyPattern reports whether one of the patterns matches the path or a folder above it.
func anyPattern(m *wildmatch.Matcher, patterns []string, file string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		anchored := strings.Contains(strings.TrimSuffix(pattern, "/"), "/")
		folder := strings.HasSuffix(pattern, "/")
		pattern = strings.Trim(pattern, "/")
		for at := file; at != "." && at != ""; at = path.Dir(at) {
			text := at
			if !anchored {
				text = path.Base(at)
			}
			if (at != file || !folder) && m.Match(pattern, text) {
				return true
			}
		}
		return false
	})
}

// Server returns the URL of the LFS server of a remote: that of the .lfsconfig, or the default, which a
// remote over SSH does not have. ref is a full name, or "" for a submodule. As in a clone, remote.lfsdefault does not
// apply to a branch, whose remote is origin.
func (c Config) Server(remote, ref string) (string, error) {
	named := cmp.Or(c.URL, c.URLs["origin"])
	if !strings.HasPrefix(ref, "refs/heads/") {
		named = cmp.Or(c.URL, c.URLs[c.Remote], named)
	}
	if named != "" {
		named, err := submodule.WithoutUser(named)
		if err == nil {
			err = checkURL(named)
		}
		if err != nil {
			return "", git.Errorf(git.Permanent, git.ClassConfig, "the URL in its .lfsconfig %w", err)
		}
		return strings.TrimSuffix(named, "/"), nil
	}
	if strings.HasPrefix(remote, "ssh:") {
		return "", git.Errorf(git.Permanent, git.ClassConfig,
			"LFS objects are not fetched over SSH; watch the repository over https, or name its LFS server with "+
				"lfs.url in .lfsconfig")
	}
	remote = strings.TrimSuffix(remote, "/")
	if !strings.HasSuffix(remote, ".git") {
		remote += ".git"
	}
	return remote + "/info/lfs", nil
}

// checkURL refuses URLs other than http and https, and those with a password. The error completes a sentence
// and does not repeat the URL.
func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "":
		return errors.New("is not a URL with a host")
	case u.Scheme != "http" && u.Scheme != "https":
		return errors.New("has another scheme than http and https, which Lockstep does not support")
	case u.User != nil:
		return errors.New("contains a user name or a password; use a credential instead")
	}
	return nil
}
