package events_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"lockstep/events"
)

const (
	sha1A  = "0123456789abcdef0123456789abcdef01234567"
	sha1B  = "89abcdef0123456789abcdef0123456789abcdef"
	sha256 = sha1A + "0123456789abcdef01234567"
	remote = "https://github.com/Acme/widgets.git"
)

func TestParseChangeReadsPlainFields(t *testing.T) {
	wait := func(c events.Change) events.Change {
		c.Source, c.URL, c.OnBusy = "/lockstep/plain", remote, events.BusyWait
		c.Repo = repo(t, "Acme/widgets")
		if c.Type == "" {
			c.Type = events.ChangePushed
		}
		return c
	}
	skip := wait(events.Change{})
	skip.OnBusy = events.BusySkip
	elsewhere := wait(events.Change{})
	elsewhere.Repo = repo(t, "team/tools")
	gone := events.Change{
		Type: events.ChangeRemoved, Source: "/lockstep/plain", Repo: repo(t, "acme/widgets"),
		Force: true, OnBusy: events.BusyWait,
	}
	for name, tc := range map[string]struct {
		in   string
		want events.Change
	}{
		"a url is enough": {`{"url":"` + remote + `"}`, wait(events.Change{})},
		"a repo with another name than the url": {
			`{"repo":"team/tools","url":"` + remote + `"}`, elsewhere,
		},
		"every field": {
			`{"id":"7","type":"pushed","repo":"Acme/widgets","url":"` + remote + `","ref":"dev","app":"docs",` +
				`"credential":"bot","before":"` + sha1A + `","after":"` + sha256 + `","force":"false","on_busy":"wait"}`,
			wait(events.Change{
				ID: "7", Ref: ref(t, "refs/heads/dev"), App: "docs", Credential: "bot", Before: sha1A, After: sha256,
			}),
		},
		"a pin of SHA-256":              {`{"url":"` + remote + `","pin":"true","after":"` + sha256 + `"}`, wait(events.Change{Pin: true, After: sha256})},
		"HEAD is the default branch":    {`{"url":"` + remote + `","ref":"HEAD"}`, wait(events.Change{})},
		"the full type":                 {`{"url":"` + remote + `","type":"lockstep.change.pushed.v1"}`, wait(events.Change{})},
		"a busy policy":                 {`{"url":"` + remote + `","on_busy":"skip"}`, skip},
		"empty fields are absent":       {`{"url":"` + remote + `","ref":"","type":"","force":"","on_busy":""}`, wait(events.Change{})},
		"unknown fields are ignored":    {`{"url":"` + remote + `","colour":"red","n":{"x":[1]}}`, wait(events.Change{})},
		"a forced removal needs no url": {`{"type":"removed","repo":"acme/widgets","force":"1"}`, gone},
		"a move names both paths and the new url": {
			`{"type":"moved","repo":"acme/widgets","to":"Acme/gadgets","url":"https://github.com/Acme/gadgets.git"}`,
			events.Change{
				Type: events.ChangeMoved, Source: "/lockstep/plain", Repo: repo(t, "acme/widgets"), To: repo(t, "Acme/gadgets"),
				URL: "https://github.com/Acme/gadgets.git", OnBusy: events.BusyWait,
			},
		},
		"submodules":    {`{"url":"` + remote + `","submodules":"best-effort"}`, wait(events.Change{Submodules: events.SubmodulesBestEffort})},
		"no submodules": {`{"url":"` + remote + `","submodules":"off"}`, wait(events.Change{})},
		"a pinned commit": {
			`{"url":"` + remote + `","ref":"main","after":"` + sha1A + `","pin":"true"}`,
			wait(events.Change{Ref: ref(t, "main"), After: sha1A, Pin: true}),
		},
		"a commit as ref": {`{"url":"` + remote + `","ref":"` + sha1A + `","after":"` + sha1A + `","pin":"false"}`, wait(events.Change{Ref: ref(t, sha1A), After: sha1A})},
		"a poll needs no url": {
			`{"type":"due","repo":"acme/widgets","on_busy":"skip"}`,
			events.Change{Type: events.ChangeDue, Source: "/lockstep/plain", Repo: repo(t, "acme/widgets"), OnBusy: events.BusySkip},
		},
		"that a watch asks is not for plain fields to say": {
			`{"url":"` + remote + `","watched":"true","foreign":"true"}`, wait(events.Change{}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := events.ParseChange([]byte(tc.in)); err != nil || got != tc.want {
				t.Errorf("got  %+v, %v\nwant %+v", got, err, tc.want)
			}
		})
	}
}

// cloudEvent is a valid document; each edit replaces one part of it.
func cloudEvent(edits ...string) []byte {
	doc := `{"specversion":"1.0","id":"42","source":"/hooks/github","type":"lockstep.change.pushed.v1","subject":"Acme/widgets",` +
		`"time":"2026-11-21T03:04:05.678+02:00","datacontenttype":"application/json","data":{"repo":"Acme/widgets","url":"` + remote + `",` +
		`"ref":"refs/heads/main","app":"docs","credential":"bot","before":"` + sha1A + `","after":"` + sha1B + `","on_busy":"skip"}}`
	r := strings.NewReplacer(edits...)
	return []byte(r.Replace(doc))
}

func TestParseChangeReadsCloudEvents(t *testing.T) {
	want := events.Change{
		ID: "42", Type: events.ChangePushed, Source: "/hooks/github",
		Time: time.Date(2026, 11, 21, 1, 4, 5, 678e6, time.UTC),
		Repo: repo(t, "Acme/widgets"), URL: remote, Ref: ref(t, "refs/heads/main"), App: "docs", Credential: "bot",
		Before: sha1A, After: sha1B, OnBusy: events.BusySkip,
	}
	with := func(edit func(*events.Change)) events.Change {
		c := want
		edit(&c)
		return c
	}
	for name, tc := range map[string]struct {
		in   []byte
		want events.Change
	}{
		"as written": {cloudEvent(), want},
		"the busy policy has a default": {
			cloudEvent(`,"on_busy":"skip"`, ``), with(func(c *events.Change) { c.OnBusy = events.BusyWait }),
		},
		"the time may be absent": {
			cloudEvent(`"time":"2026-11-21T03:04:05.678+02:00",`, ``), with(func(c *events.Change) { c.Time = time.Time{} }),
		},
		"the content type may be absent":         {cloudEvent(`"datacontenttype":"application/json",`, ``), want},
		"the content type may name a charset":    {cloudEvent(`"application/json"`, `"application/json; charset=utf-8"`), want},
		"the ref may be short":                   {cloudEvent(`"refs/heads/main"`, `"main"`), want},
		"extension attributes are ignored":       {cloudEvent(`"id"`, `"traceparent":"00-1","comexampleextra":1,"id"`), want},
		"unknown data of a later minor is, too":  {cloudEvent(`"app"`, `"shiny":{"new":true},"app"`), want},
		"a ref of HEAD means the default branch": {cloudEvent(`"refs/heads/main"`, `"HEAD"`), with(func(c *events.Change) { c.Ref = events.Ref{} })},
		"a removal": {
			cloudEvent(`pushed`, `removed`, `"ref"`, `"force":true,"ref"`),
			with(func(c *events.Change) { c.Type, c.Force = events.ChangeRemoved, true }),
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := events.ParseChange(tc.in); err != nil || got != tc.want {
				t.Errorf("got  %+v, %v\nwant %+v", got, err, tc.want)
			}
		})
	}
}

func TestPinnedCommitOfAChange(t *testing.T) {
	for name, tc := range map[string]struct {
		change            events.Change
		pinned, announced string
	}{
		"a ref":                   {events.Change{Ref: ref(t, "main")}, "", ""},
		"an announced commit":     {events.Change{Ref: ref(t, "main"), After: sha1A}, "", sha1A},
		"a pinned commit":         {events.Change{Ref: ref(t, "main"), After: sha1A, Pin: true}, sha1A, ""},
		"of the default branch":   {events.Change{After: sha1A, Pin: true}, sha1A, ""},
		"a commit as ref":         {events.Change{Ref: ref(t, sha1A)}, sha1A, ""},
		"a commit as ref, twice":  {events.Change{Ref: ref(t, sha1A), After: sha1A, Pin: true}, sha1A, ""},
		"a removal of a commit":   {events.Change{Type: events.ChangeRemoved, Ref: ref(t, sha1A)}, "", ""},
		"a branch named like one": {events.Change{Ref: ref(t, "refs/heads/"+sha1A)}, "", ""},
	} {
		tc.change.URL = remote
		c, err := events.NewChange(tc.change)
		if err != nil || c.Pinned() != tc.pinned || c.Announced() != tc.announced {
			t.Errorf("%s: pinned %q, announced %q, %v", name, c.Pinned(), c.Announced(), err)
		}
	}
}

func TestNewChangeFillsInDefaults(t *testing.T) {
	before := time.Now()
	c, err := events.NewChange(events.Change{URL: remote})
	if err != nil {
		t.Fatal(err)
	}
	if c.ID == "" || c.Source == "" || c.Type != events.ChangePushed || c.OnBusy != events.BusyWait || c.Repo != repo(t, "Acme/widgets") {
		t.Errorf("got %+v", c)
	}
	if c.Time.Before(before.Truncate(0)) || c.Time.After(time.Now()) {
		t.Errorf("time %v", c.Time)
	}
	if again, _ := events.NewChange(events.Change{URL: remote}); again.ID == c.ID {
		t.Error("two changes share an id")
	}
}

func TestNewChangeKeepsGivenFields(t *testing.T) {
	want := events.Change{
		ID: "42", Type: events.ChangeRemoved, Source: "/cron", Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
		Repo: repo(t, "team/tools"), URL: remote, Ref: ref(t, "dev"), App: "docs", Credential: "bot",
		Before: sha1A, After: sha1B, Force: true, OnBusy: events.BusySkip,
	}
	if got, err := events.NewChange(want); err != nil || got != want {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
}

func TestParseChangeReadsNewChange(t *testing.T) {
	for name, in := range map[string]events.Change{
		"the least":    {URL: remote},
		"a removal":    {Type: events.ChangeRemoved, Repo: repo(t, "acme/widgets"), Force: true},
		"a local time": {URL: remote, Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("x", 3600))},
		"odd texts":    {URL: remote, ID: `<a>&"\`, App: "größe \u2028", Source: strings.Repeat("<", 255)},
	} {
		t.Run(name, func(t *testing.T) {
			want, err := events.NewChange(in)
			if err != nil {
				t.Fatal(err)
			}
			doc, err := json.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			got, err := events.ParseChange(doc)
			if err != nil {
				t.Fatal(err)
			}
			if !got.Time.Equal(want.Time) {
				t.Errorf("time %v became %v", want.Time, got.Time)
			}
			got.Time = want.Time
			if got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
	if _, err := events.NewChange(events.Change{}); !errors.As(err, new(*events.Error)) {
		t.Errorf("a change of nothing: %v", err)
	}
}

func ref(t testing.TB, s string) events.Ref {
	t.Helper()
	r, err := events.ParseRef(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
