package lfs

import (
	"bytes"
	"errors"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"lockstep/internal/git"
	"lockstep/internal/git/wildmatch"
)

// Config is what counts of a .lfsconfig file. Anybody who can push can write one.
type Config struct {
	URL              string   // of the server; "" if the file names none
	Include, Exclude []string // patterns as in .gitignore
}

const (
	configName = ".lfsconfig"
	maxConfig  = 64 << 10 // bytes
)

// parseConfig parses a .lfsconfig file. It returns the zero Config if the file is not valid, as git-lfs does.
func parseConfig(content []byte) (c Config) {
	defer func() {
		if recover() != nil {
			c = Config{}
		}
	}()
	parsed := config.New()
	if err := config.NewDecoder(bytes.NewReader(content)).Decode(parsed); err != nil {
		return Config{}
	}
	section := parsed.Section("lfs")
	return Config{
		URL:     section.Option("url"),
		Include: splitPatterns(section.Option("fetchinclude")), Exclude: splitPatterns(section.Option("fetchexclude")),
	}
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
// remote over SSH does not have.
func (c Config) Server(remote string) (string, error) {
	if c.URL != "" {
		if err := checkURL(c.URL); err != nil {
			return "", git.Errorf(git.Permanent, git.ClassConfig, "lfs.url in its .lfsconfig %w", err)
		}
		return strings.TrimSuffix(c.URL, "/"), nil
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
