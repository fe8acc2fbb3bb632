package events_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"lockstep/events"
)

// plain is a valid flat document with one field replaced or added.
func plain(name, value string) string {
	doc := map[string]string{"repo": "acme/widgets", "url": remote}
	doc[name] = value
	var parts []string
	for k, v := range doc {
		parts = append(parts, fmt.Sprintf("%q:%q", k, v))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func TestParseChangeRefusesAsMalformed(t *testing.T) {
	for name, in := range map[string]string{
		"nothing":                     ``,
		"not JSON":                    `repo=acme/widgets`,
		"half a document":             string(cloudEvent()[:100]),
		"something after the end":     string(cloudEvent()) + `{}`,
		"null":                        `null`,
		"a list":                      `[]`,
		"a text":                      `"acme/widgets"`,
		"no field":                    `{}`,
		"nested beyond reason":        strings.Repeat(`{"a":`, 100_000),
		"more than a megabyte":        plain("x", strings.Repeat("a", 1<<20)),
		"a number for a plain field":  `{"repo":"acme/widgets","url":"` + remote + `","app":7}`,
		"plain: repo alone":           `{"repo":"acme/widgets"}`,
		"plain: a removal of nothing": `{"type":"removed","force":"true"}`,
		"plain: a removal to guess":   `{"type":"removed","repo":"acme/widgets"}`,
		"plain: a move to nowhere":    plain("type", "moved"),
		"plain: a move of what":       `{"type":"moved","to":"acme/gadgets","url":"` + remote + `"}`,
		"plain: a move below itself":  `{"type":"moved","repo":"acme/widgets","to":"acme/widgets/docs","url":"` + remote + `"}`,
		"plain: a move above itself":  `{"type":"moved","repo":"acme/widgets/docs","to":"acme/widgets","url":"` + remote + `"}`,
		"plain: a move with no url":   `{"type":"moved","repo":"acme/widgets","to":"acme/gadgets"}`,
		"plain: a bad new path":       `{"type":"moved","repo":"acme/widgets","to":"../etc","url":"` + remote + `"}`,
		"plain: a push to another":    plain("to", "acme/gadgets"),
		"plain: a poll of nothing":    `{"type":"due"}`,
		"plain: a bad repo":           plain("repo", "../etc"),
		"plain: a bad ref":            plain("ref", "a..b"),
		"plain: an unknown type":      plain("type", "renamed"),
		"plain: a result's type":      plain("type", "lockstep.result.synced.v1"),
		"plain: a bad force":          plain("force", "perhaps"),
		"plain: a bad pin":            `{"url":"` + remote + `","after":"` + sha1A + `","pin":"perhaps"}`,
		"plain: a pin of nothing":     plain("pin", "true"),
		"plain: a pin of no commit":   `{"url":"` + remote + `","pin":"true","after":"` + strings.Repeat("0", 40) + `"}`,
		"plain: a pin of 41 digits":   `{"url":"` + remote + `","pin":"true","after":"` + sha1A + `a"}`,
		"plain: submodules":           `{"url":"https://example.com/acme/widgets","submodules":"recursive"}`,
		"plain: submodules of a poll": `{"type":"due","repo":"acme/widgets","submodules":"required"}`,
		"plain: a pinned poll":        `{"type":"due","repo":"acme/widgets","pin":"true","after":"` + sha1A + `"}`,
		"plain: two commits":          `{"url":"` + remote + `","ref":"` + sha1A + `","after":"` + sha1B + `"}`,
		"plain: a bad busy policy":    plain("on_busy", "WAIT"),
		"plain: url names no repo":    `{"url":"https://github.com/"}`,
		"plain: url names one part":   `{"url":"https://github.com/acme"}`,
		"plain: url leaves the root":  `{"url":"https://github.com/acme/%2e%2e/%2e%2e/etc"}`,
		"plain: url hides a slash":    `{"url":"https://github.com/acme%2fwidgets"}`,

		"CloudEvents: specversion 0.3":        string(cloudEvent(`"1.0"`, `"0.3"`)),
		"CloudEvents: specversion empty":      string(cloudEvent(`"1.0"`, `""`)),
		"CloudEvents: specversion a number":   string(cloudEvent(`"1.0"`, `1.0`)),
		"CloudEvents: no id":                  string(cloudEvent(`"id":"42",`, ``)),
		"CloudEvents: no type":                string(cloudEvent(`"type":"lockstep.change.pushed.v1",`, ``)),
		"CloudEvents: a short type":           string(cloudEvent(`lockstep.change.pushed.v1`, `pushed`)),
		"CloudEvents: no version":             string(cloudEvent(`pushed.v1`, `pushed`)),
		"CloudEvents: foreign type":           string(cloudEvent(`lockstep.change.pushed.v1`, `com.github.push`)),
		"CloudEvents: a content type":         string(cloudEvent(`"application/json"`, `"application/xml"`)),
		"CloudEvents: a content type is none": string(cloudEvent(`"application/json"`, `";;"`)),
		"CloudEvents: a bad time":             string(cloudEvent(`2026-11-21T`, `yesterday `)),
		"CloudEvents: before the first year":  string(cloudEvent(`2026-11-21T03:04:05.678+02:00`, `0001-01-01T00:30:00+01:00`)),
		"CloudEvents: after the last year":    string(cloudEvent(`2026-11-21T03:04:05.678+02:00`, `9999-12-31T23:30:00-01:00`)),
		"CloudEvents: no data":                `{"specversion":"1.0","id":"1","source":"/x","type":"lockstep.change.removed.v1"}`,
		"CloudEvents: data is a text":         `{"specversion":"1.0","id":"1","source":"/x","type":"lockstep.change.removed.v1","data":"{}"}`,
		"CloudEvents: a removal of nothing":   `{"specversion":"1.0","id":"1","source":"/x","type":"lockstep.change.removed.v1","data":{"force":true}}`,
		"CloudEvents: a push without url":     string(cloudEvent(`"url":"`+remote+`",`, ``)),
		"CloudEvents: a bad repo":             string(cloudEvent(`"repo":"Acme/widgets"`, `"repo":"/etc/passwd"`)),
		"CloudEvents: a bad ref":              string(cloudEvent(`refs/heads/main`, `refs/heads/.main`)),
		"CloudEvents: force is a text":        string(cloudEvent(`"app"`, `"force":"true","app"`)),
	} {
		t.Run(name, func(t *testing.T) {
			c, err := events.ParseChange([]byte(in))
			refused(t, c, err)
		})
	}
}

func refused(t *testing.T, c events.Change, err error) {
	t.Helper()
	if err == nil {
		t.Fatalf("accepted as %+v", c)
	}
	if c != (events.Change{}) {
		t.Errorf("a refused change is not zero: %+v", c)
	}
	if events.DispositionOf(err) != events.Malformed || events.ClassOf(err) != events.ClassConfig {
		t.Errorf("%v is %v, %v", err, events.DispositionOf(err), events.ClassOf(err))
	}
	if len(err.Error()) > maxError {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
}

// A program can build changes that no valid document represents. Both paths must reject what is invalid.
func TestChangeRefusesUnsoundParts(t *testing.T) {
	for name, edit := range map[string]func(*events.Change){
		"an unknown type":          func(c *events.Change) { c.Type = "lockstep.change.pushed.v2" },
		"an unknown busy policy":   func(c *events.Change) { c.OnBusy = "hurry" },
		"a push without a url":     func(c *events.Change) { c.URL = "" },
		"a removal without a url":  func(c *events.Change) { c.Type, c.URL = events.ChangeRemoved, "" },
		"a short before":           func(c *events.Change) { c.Before = sha1A[:12] },
		"a short after":            func(c *events.Change) { c.After = sha1A[:39] },
		"a hash in capitals":       func(c *events.Change) { c.After = strings.ToUpper(sha1A) },
		"a hash that is an option": func(c *events.Change) { c.After = "--" + sha1A[2:] },
		"a hash between lengths":   func(c *events.Change) { c.Before = sha256[:50] },
		"an id too long":           func(c *events.Change) { c.ID = strings.Repeat("x", 256) },
		"an id with a newline":     func(c *events.Change) { c.ID = "1\n2" },
		"an app too long":          func(c *events.Change) { c.App = strings.Repeat("x", 256) },
		"an app with a NUL":        func(c *events.Change) { c.App = "a\x00" },
		"an app not in UTF-8":      func(c *events.Change) { c.App = "\xff" },
		"a credential too long":    func(c *events.Change) { c.Credential = strings.Repeat("x", 256) },
		"a credential with DEL":    func(c *events.Change) { c.Credential = "a\x7f" },
		"a source too long":        func(c *events.Change) { c.Source = strings.Repeat("x", 256) },
		"a source with an escape":  func(c *events.Change) { c.Source = "/\x1b[2J" },
		"a time beyond RFC 3339":   func(c *events.Change) { c.Time = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
	} {
		t.Run(name, func(t *testing.T) {
			in := events.Change{ID: "1", Repo: repo(t, "acme/widgets"), URL: remote}
			edit(&in)
			c, err := events.NewChange(in)
			refused(t, c, err)
		})
	}
}

func TestCheckRemote(t *testing.T) {
	for name, tc := range map[string]struct {
		in string
		ok bool
	}{
		"https":                     {"https://github.com/acme/widgets.git", true},
		"http with a port":          {"http://127.0.0.1:8080/acme/widgets", true},
		"an IPv6 address":           {"http://[::1]:8080/acme/widgets", true},
		"one path segment":          {"https://git.local/widgets", true},
		"a space, encoded":          {"https://dev.azure.com/acme/my%20project/_git/widgets", true},
		"dots in a name":            {"https://git.local/acme/...a..b.", true},
		"the longest":               {"https://h/" + strings.Repeat("a", 2038), true},
		"too long":                  {"https://h/" + strings.Repeat("a", 2039), false},
		"nothing":                   {"", false},
		"ssh":                       {"ssh://git@github.com/acme/widgets", true},
		"ssh with a port":           {"ssh://git@github.com:2222/acme/widgets", true},
		"ssh below a home":          {"ssh://ada@git.local/~/widgets.git", true},
		"ssh, below the login":      {"ssh://git@git.local:/widgets-/-x.git", true},
		"ssh, an option":            {"ssh://git@git.local:/--upload-pack/x", false},
		"ssh, an option from /":     {"ssh://git@git.local/-x/widgets", false},
		"ssh, no user":              {"ssh://git.local/acme/widgets", true},
		"ssh, an empty user":        {"ssh://@git.local/acme/widgets", false},
		"ssh, a password":           {"ssh://git:hunter2@github.com/acme/widgets", false},
		"ssh, an empty password":    {"ssh://git:@github.com/acme/widgets", false},
		"ssh, an odd user":          {"ssh://-oProxyCommand=id@github.com/acme/widgets", false},
		"ssh, a long user":          {"ssh://" + strings.Repeat("a", 65) + "@github.com/acme/widgets", false},
		"ssh, no path":              {"ssh://git@github.com", false},
		"ssh, a line feed":          {"ssh://git@github.com/acme/wid%0agets", false},
		"ssh, a NUL":                {"ssh://git@github.com/acme/widgets%00", false},
		"ssh, leaving a prefix":     {"ssh://git@github.com/acme/%2e%2e/evil/widgets", false},
		"ssh in git's old spelling": {"git+ssh://git@github.com/acme/widgets", false},
		"scp-like":                  {"git@github.com:acme/widgets", false},
		"git":                       {"git://github.com/acme/widgets", false},
		"a local file":              {"file:///etc/passwd", false},
		"a local path":              {"/srv/git/acme/widgets", false},
		"a remote helper":           {"ext::sh -c id", false},
		"relative to a scheme":      {"//github.com/acme/widgets", false},
		"opaque":                    {"https:acme/widgets", false},
		"no host":                   {"https:///acme/widgets", false},
		"a port without a host":     {"https://:443/acme/widgets", false},
		"no path":                   {"https://github.com", false},
		"a path of slashes":         {"https://github.com///", false},
		"a user and a password":     {"https://robot:hunter2@github.com/acme/widgets", false},
		"a user alone":              {"https://hunter2@github.com/acme/widgets", false},
		"an empty user":             {"https://@github.com/acme/widgets", false},
		"a query":                   {"https://github.com/acme/widgets?token=hunter2", false},
		"an empty query":            {"https://github.com/acme/widgets?", false},
		"a fragment":                {"https://github.com/acme/widgets#hunter2", false},
		"an empty fragment":         {"https://github.com/acme/widgets#", false},
		"leaving a prefix":          {"https://github.com/acme/../evil/widgets", false},
		"with a parameter":          {"https://github.com/acme/..;x=y/evil/widgets", false},
		"with an encoded one":       {"https://github.com/acme/%2e%2e%3b/evil/widgets", false},
		"with a backslash":          {"https://github.com/acme/..%5cevil/widgets", false},
		"dots and a semicolon":      {"https://github.com/acme/..w;x/widgets", true},
		"leaving it encoded":        {"https://github.com/acme/%2E%2e/evil/widgets", false},
		"leaving it by %2f":         {"https://github.com/acme/x%2f..%2f..%2fevil/widgets", false},
		"a dot segment":             {"https://github.com/./acme/widgets", false},
		"a newline":                 {"https://github.com/acme/widgets\nX-Evil: 1", false},
		"a backslash before the at": {`https://github.com\@evil.example/acme/widgets`, false},
		"bytes that are not UTF-8":  {"https://github.com/acme/\xff", false},
	} {
		t.Run(name, func(t *testing.T) {
			err := events.CheckRemote(tc.in)
			if (err == nil) != tc.ok {
				t.Errorf("got %v", err)
			}
			if err != nil && (strings.Contains(err.Error(), "hunter2") || tc.in != "" && strings.Contains(err.Error(), tc.in)) {
				t.Errorf("the error repeats the URL: %v", err)
			}
		})
	}
}

func TestChangeErrorsNameTheCause(t *testing.T) {
	if _, err := events.ParseChange([]byte(plain("repo", "../etc"))); !errors.Is(err, events.ErrBadRepoPath) {
		t.Errorf("got %v; want ErrBadRepoPath", err)
	}
	if _, err := events.ParseChange([]byte(plain("ref", "a..b"))); !errors.Is(err, events.ErrBadRef) {
		t.Errorf("got %v; want ErrBadRef", err)
	}
	if _, err := events.ParseChange(cloudEvent(`"Acme/widgets","url"`, `"-x/y","url"`)); !errors.Is(err, events.ErrBadRepoPath) {
		t.Errorf("got %v; want ErrBadRepoPath", err)
	}
}
