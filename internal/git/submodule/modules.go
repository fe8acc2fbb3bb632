package submodule

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// Module is a submodule as a .gitmodules file describes it.
type Module struct {
	Name string
	Path string // where it is in the tree; "" if the file does not say so
	URL  string // as in the file; see [Resolve]
	Skip bool   // it is not checked out: its update is none
}

// MaxSize is the maximum size of a .gitmodules file, in bytes.
const MaxSize = 1 << 20

// Parse returns the submodules of a .gitmodules file by path. It ignores names, paths and URLs that Git
// ignores because they are dangerous. The error is about the file as a whole, and completes a sentence that
// begins with its name.
func Parse(content []byte) (map[string]Module, error) {
	byPath, byName := map[string]*Module{}, map[string]*Module{}
	err := ParseConfig(content, func(section, name, key, value string, hasValue bool) error {
		if section != "submodule" || !isSafeName(name) {
			return nil
		}
		m := byName[name]
		if m == nil {
			m = &Module{Name: name}
			byName[name] = m
		}
		switch key {
		case "path", "url", "update":
			if !hasValue {
				return fmt.Errorf("has no value for %s of submodule %s", key, quote(name))
			}
		}
		return m.set(key, value, byPath)
	})
	if err != nil {
		return nil, err
	}
	modules := map[string]Module{}
	for path, m := range byPath {
		modules[path] = *m
	}
	return modules, nil
}

// set sets an option. The last value counts.
func (m *Module) set(key, value string, byPath map[string]*Module) error {
	isOption := strings.HasPrefix(value, "-") // to a command, of Git versions before 2.19.1
	switch {
	case key == "path" && !isOption:
		if m.Path != "" {
			delete(byPath, m.Path)
		}
		m.Path = value
		byPath[value] = m
	case key == "url" && !isOption:
		m.URL = value
	case key == "update":
		switch value {
		case "none", "checkout", "rebase", "merge":
			m.Skip = value == "none"
		default:
			return fmt.Errorf("has an update of submodule %s that Git refuses", quote(m.Name))
		}
	}
	return nil
}

// quote quotes at most 80 bytes of a name.
func quote(name string) string {
	if len(name) > 80 {
		name = name[:80] + "…"
	}
	return strconv.Quote(name)
}

// isSafeName reports whether Git accepts the name of a submodule, which it uses as a path: check_submodule_name of Git.
func isSafeName(name string) bool {
	for part := range strings.FieldsFuncSeq(name, func(r rune) bool { return r == '/' || r == '\\' }) {
		if part == ".." {
			return false
		}
	}
	return name != ""
}

// errStrip is Git's "cannot strip one component off url".
var errStrip = errors.New("its URL has more ../ than the URL that it is relative to has parts")

// Resolve returns the URL of a submodule. One that begins with ./ or ../ is relative to base, the URL of the
// repository whose tree has the submodule: relative_url of Git. Any other is returned as [WithoutUser] does. The result
// is not checked.
func Resolve(base, url string) (string, error) {
	if !strings.HasPrefix(url, "./") && !strings.HasPrefix(url, "../") {
		url, err := WithoutUser(url)
		if err != nil {
			return "", fmt.Errorf("its URL %w", err)
		}
		return url, nil
	}
	base = strings.TrimSuffix(base, "/")
	separator := "/"
	for {
		if rest, ok := strings.CutPrefix(url, "./"); ok {
			url = rest
			continue
		}
		rest, ok := strings.CutPrefix(url, "../")
		if !ok {
			return base + separator + strings.TrimSuffix(url, "/"), nil
		}
		url = rest
		if slash := strings.LastIndexByte(base, '/'); slash >= 0 {
			base = base[:slash]
		} else if colon := strings.LastIndexByte(base, ':'); colon >= 0 {
			base, separator = base[:colon], ":"
		} else if base != "." {
			base = "."
		} else {
			return "", errStrip
		}
	}
}

// errPassword completes a sentence that begins with what the URL is of.
var errPassword = errors.New("contains a password, which everybody who can read the repository sees; remove it there, " +
	"revoke it, and use a credential")

// WithoutUser removes the user name from an http or https URL in a file of a repository. Git asks for that user's
// password; here the credential for the URL has both. A token may be written as a user name, so it must not get into
// logs. It returns an error for a URL with a password, and any other as it is.
func WithoutUser(remote string) (string, error) {
	u, err := url.Parse(remote)
	if err != nil || u.User == nil || u.Scheme != "http" && u.Scheme != "https" {
		return remote, nil
	}
	if _, has := u.User.Password(); has {
		return "", errPassword
	}
	u.User = nil
	return u.String(), nil
}
