package watch_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/ext/signatures"
	"lockstep/internal/watch"
)

func TestNewRefusesInvalidWatchesWithoutQuotingURLs(t *testing.T) {
	const url = "https://git.example.com/acme/widgets.git"
	for name, tc := range map[string]struct {
		w    watch.Watch
		says string
	}{
		"no app":                        {watch.Watch{URL: url}, "app"},
		"an app with a space":           {watch.Watch{App: "a b", URL: url}, "want at most 100 letters"},
		"no URL":                        {watch.Watch{App: "docs"}, "url"},
		"URL with a password":           {watch.Watch{App: "docs", URL: "https://u:hunter2@git.example.com/acme/widgets"}, "credentials"},
		"no path in the URL":            {watch.Watch{App: "docs", URL: "https://git.example.com/widgets"}, "no repo given"},
		"credential with a path":        {watch.Watch{App: "docs", URL: url, Credential: "../bot"}, "credential"},
		"notify URL with a file scheme": {watch.Watch{App: "docs", URL: url, NotifyURL: "file:///etc/passwd", NotifySecret: "s"}, "http or https"},
		"a notify URL with a user":      {watch.Watch{App: "docs", URL: url, NotifyURL: "https://u:hunter2@example.com/", NotifySecret: "s"}, "contains credentials"},
		"a notify URL, unsigned":        {watch.Watch{App: "docs", URL: url, NotifyURL: "https://example.com/"}, "notify_secret"},
		"verify, misspelled":            {watch.Watch{App: "docs", URL: url, Options: watch.With(signatures.Options{Verify: "required", Keys: "team"})}, "verify: want off, report or require"},
		"verify without keys":           {watch.Watch{App: "docs", URL: url, Options: watch.With(signatures.Options{Verify: signatures.VerifyRequire})}, "verify_keys: name the credential"},
		"keys without verify":           {watch.Watch{App: "docs", URL: url, Options: watch.With(signatures.Options{Verify: "off", Keys: "team"})}, "verify: set report or require"},
		"invalid name of keys":          {watch.Watch{App: "docs", URL: url, Options: watch.With(signatures.Options{Verify: signatures.VerifyReport, Keys: "a/b"})}, "verify_keys"},
		"no rewind of one commit":       {watch.Watch{App: "docs", URL: url, Depth: 1, Options: watch.With(signatures.Options{NoRewind: true})}, "no_rewind: set depth"},
		"max-refs without a pattern":    {watch.Watch{App: "docs", URL: url, MaxRefs: 5}, "max_refs: only with a pattern"},
		"negative max-refs":             {watch.Watch{App: "docs", URL: url, MaxRefs: -1}, "want 1 to 1000"},
		"too many max-refs":             {watch.Watch{App: "docs", URL: url, MaxRefs: 1001}, "want 1 to 1000"},
		"invalid glob":                  {watch.Watch{App: "docs", URL: url, Paths: []string{"docs/["}}, "is not a valid glob"},
		"too many globs":                {watch.Watch{App: "docs", URL: url, Paths: make([]string, 101)}, "at most 100"},
	} {
		_, err := watch.New(tc.w)
		if err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "example.com") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSelectors(t *testing.T) {
	for text, tc := range map[string]struct {
		is, matches, not string // "" if refused
	}{
		"main":            {"refs/heads/main", "refs/heads/main", "refs/tags/main"},
		"refs/tags/v1":    {"refs/tags/v1", "refs/tags/v1", "refs/tags/v10"},
		"refs/tags/v*":    {"refs/tags/v*", "refs/tags/v1.2", "refs/tags/v1/2"},
		"refs/heads/*/x":  {"refs/heads/*/x", "refs/heads/a/x", "refs/heads/a/b/x"},
		"refs/*":          {},
		"*":               {},
		"refs/tags/[":     {},
		"refs/tags/v *":   {},
		"a..b":            {},
		"refs/tags/v[12]": {"refs/tags/v[12]", "refs/tags/v2", "refs/tags/v3"},
	} {
		s, err := watch.ParseSelector(text)
		if s.String() != tc.is || (err == nil) != (tc.is != "") {
			t.Errorf("%q: %q, %v", text, s, err)
		}
		if err != nil {
			continue
		}
		matching, _ := events.ParseRef(tc.matches)
		other, _ := events.ParseRef(tc.not)
		if !s.Matches(matching) || s.Matches(other) || s.Matches(events.Ref{}) || s.IsDefault() {
			t.Errorf("%q: %s %v, %s %v", text, matching, s.Matches(matching), other, s.Matches(other))
		}
		if ref, ok := s.Ref(); ok == s.IsPattern() || ok && ref.String() != tc.is {
			t.Errorf("%q: %s, %v", text, ref, ok)
		}
	}
	s, err := watch.ParseSelector("")
	if ref, ok := s.Ref(); err != nil || !s.IsDefault() || !ok || !ref.IsZero() {
		t.Errorf("%v, %v", s, err)
	}
}

func TestIntervals(t *testing.T) {
	for text, want := range map[string]watch.Interval{
		"": 0, "never": watch.Never, "1s": watch.Interval(time.Second), "720h": watch.Interval(720 * time.Hour),
		"999ms": -2, "721h": -2, "-1ns": -2, "0s": -2, "often": -2,
	} {
		got, err := watch.ParseInterval(text)
		if refused := want == -2; refused != (err != nil) || !refused && got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
		if again, err := watch.ParseInterval(got.String()); err != nil || again != got {
			t.Errorf("%q: %v is parsed as %v, %v", text, got, again, err)
		}
	}
}

func TestConcerns(t *testing.T) {
	files := func(paths ...string) (list []events.File) {
		for _, p := range paths {
			from, to, moved := strings.Cut(p, " ")
			if !moved {
				from, to = "", from
			}
			list = append(list, events.File{Path: to, From: from})
		}
		return list
	}
	for _, tc := range []struct {
		globs []string
		files []events.File
		want  bool
	}{
		{nil, nil, true},
		{[]string{"docs/**"}, files("docs/a/b.md"), true},
		{[]string{"docs/**"}, files("src/docs/a"), false},
		{[]string{"docs/*"}, files("docs/a/b.md"), false},
		{[]string{"*.md"}, files("a/b.md", "c.md"), true},
		{[]string{"docs/**"}, files("docs/a src/a"), true}, // moved away
		{[]string{"docs/**"}, nil, false},
	} {
		w := watch.Watch{Paths: tc.globs}
		if got := w.Concerns(tc.files); got != tc.want {
			t.Errorf("%q of %v: %v", tc.globs, tc.files, got)
		}
	}
}

func TestWatchJSONRoundTrip(t *testing.T) {
	const document = `{"app":"docs","repo":"acme/widgets","url":"https://example.com/acme/widgets.git","ref":"refs/tags/v*",` +
		`"credential":"bot","depth":"50","poll":"10m0s","notify_url":"https://docs.example.com/in","notify_secret":"docs","paths":["docs/**"],"auto":true}`
	var w watch.Watch
	if err := json.Unmarshal([]byte(document), &w); err != nil {
		t.Fatal(err)
	}
	w, err := watch.New(w)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := json.Marshal(w); err != nil || string(got) != document {
		t.Errorf("%s, %v", got, err)
	}
	plain := of(t, "docs", "acme/widgets", "")
	if got, err := json.Marshal(plain); err != nil || string(got) != `{"app":"docs","repo":"acme/widgets","url":"https://example.com/acme/widgets.git"}` {
		t.Errorf("%s, %v", got, err)
	}
}
