package events_test

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
)

// maxError is the maximum length of every error of this package, in bytes.
const maxError = 1000

func FuzzParseRepoPath(f *testing.F) {
	for _, s := range []string{
		"acme/widgets", "Acme/Widgets", "group/sub/name", "acme/..", "/acme/widgets", "acme/.lockstep", "acme/x.git",
		"acme/widgets@main", "acme/%2e%2e", "acme/\u212a", "a/-b", "~u/r", "a/b\\c",
	} {
		f.Add(s, "acme/widgets/docs")
	}
	f.Fuzz(func(t *testing.T, s, other string) {
		p, err := events.ParseRepoPath(s)
		if err != nil {
			if !errors.Is(err, events.ErrBadRepoPath) || !p.IsZero() || len(err.Error()) > maxError {
				t.Fatalf("%q: %q, %v", s, p, err)
			}
			return
		}
		if !filepath.IsLocal(p.String()) || filepath.Clean(p.String()) != p.String() {
			t.Fatalf("%q is not a clean local path", p)
		}
		if slices.Contains(strings.Split(p.Key(), "/"), ".lockstep") || strings.ContainsAny(p.Key(), "@:{}%\\") {
			t.Fatalf("%q means something else on disk or in Redis", p)
		}
		if again, err := events.ParseRepoPath(p.String()); err != nil || again != p {
			t.Fatalf("%q parses to %q the second time, %v", p, again, err)
		}
		folded, err := events.ParseRepoPath(p.Key())
		if err != nil || folded.Key() != p.Key() || !folded.Equal(p) {
			t.Fatalf("key %q has key %q, %v", p.Key(), folded.Key(), err)
		}
		if fromURL, err := events.RepoPathFromURL("https://h/" + p.String() + ".git"); err != nil || fromURL != p {
			t.Fatalf("%q as a URL gives %q, %v", p, fromURL, err)
		}
		if q, err := events.ParseRepoPath(other); err == nil {
			if p.Contains(p) || p.Contains(q) && (q.Contains(p) || p.Equal(q)) {
				t.Fatalf("%q and %q contain each other", p, q)
			}
		}
	})
}

func FuzzParseRef(f *testing.F) {
	for _, s := range refNames {
		f.Add(s, "refs/heads/refs/tags/v1")
	}
	f.Fuzz(func(t *testing.T, s, other string) {
		r, err := events.ParseRef(s)
		if err != nil {
			if !errors.Is(err, events.ErrBadRef) || !r.IsZero() || len(err.Error()) > maxError {
				t.Fatalf("%q: %q, %v", s, r, err)
			}
			return
		}
		if again, err := events.ParseRef(r.String()); err != nil || again != r {
			t.Fatalf("%q parses to %q the second time, %v", r, again, err)
		}
		if name := "name@" + r.Suffix(); !filepath.IsLocal(name) || strings.Contains(name, "/") || len(name) > 155 {
			t.Fatalf("%q is not one file name", name)
		}
		wire, err := json.Marshal(r)
		var back events.Ref
		if err != nil || json.Unmarshal(wire, &back) != nil || back != r {
			t.Fatalf("%q came back as %q, %v", r, back, err)
		}
		if q, err := events.ParseRef(other); err == nil && (q == r) != (q.Suffix() == r.Suffix()) {
			t.Fatalf("%q and %q have suffixes %q and %q", r, q, r.Suffix(), q.Suffix())
		}
	})
}

func FuzzParseChange(f *testing.F) {
	f.Add(cloudEvent())
	f.Add(cloudEvent("pushed", "removed", "2026-11-21T03:04:05.678+02:00", "0000-01-01T00:00:00+01:00"))
	f.Add([]byte(`{"url":"` + remote + `"}`))
	f.Add([]byte(`{"type":"removed","repo":"acme/widgets","force":"true","on_busy":"skip","id":"1"}`))
	for _, c := range goldenChanges(f) {
		wire, err := json.Marshal(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
	}
	f.Add([]byte(`{"type":"moved","repo":"acme/widgets","to":"acme/gadgets","url":"` + remote + `"}`))
	f.Add([]byte(`{"type":"due","repo":"acme/widgets","on_busy":"skip","id":"1"}`))
	f.Add([]byte(plain("ref", "feat/%2F")))
	f.Add([]byte(`{"url":"ssh://git@h:22/a/b"}`))
	f.Add([]byte(`{"specversion":null,"URL":"HTTP://[::1]/a/b/"}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		c, err := events.ParseChange(doc)
		if err != nil {
			refused(t, c, err)
		} else {
			changeRoundTrip(t, c)
		}
		for _, planted := range plant(doc) {
			c, err := events.ParseChange(planted)
			if err != nil && strings.Contains(err.Error(), password) {
				t.Fatalf("%s: %v", planted, err)
			}
			if err == nil && strings.Contains(c.URL, password) {
				t.Fatalf("%s: the change's URL is %s", planted, c.URL)
			}
		}
	})
}

func changeRoundTrip(t *testing.T, c events.Change) {
	t.Helper()
	if c.ID == "" {
		c.ID = "1795223511284-0" // as the reader of the stream does
	}
	wire, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if back, err := events.ParseChange(wire); err != nil || back != c {
		t.Fatalf("%s\ncame back as %+v, %v\nwant         %+v", wire, back, err, c)
	}
}

const password = "hunter2planted"

// plant returns variants of doc with a password added to each of its texts.
func plant(doc []byte) (variants [][]byte) {
	var root map[string]any
	if len(doc) > 4096 || json.Unmarshal(doc, &root) != nil {
		return nil
	}
	var walk func(object map[string]any)
	walk = func(object map[string]any) {
		for k, v := range object {
			if inner, ok := v.(map[string]any); ok {
				walk(inner)
			}
			text, ok := v.(string)
			if !ok {
				continue
			}
			_, after, _ := strings.Cut(text, "://")
			for _, spoilt := range []string{
				"https://robot:" + password + "@" + after, "https:/robot:" + password + "@" + text,
				password + ":x-oauth-basic@" + text, "https://git.local/a/b?token=" + password,
			} {
				object[k] = spoilt
				if variant, err := json.Marshal(root); err == nil {
					variants = append(variants, variant)
				}
			}
			object[k] = v
		}
	}
	walk(root)
	return variants
}

func FuzzParseResult(f *testing.F) {
	for _, g := range goldenResults(f) {
		wire, err := json.Marshal(g)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
	}
	f.Add([]byte(`{"specversion":"1.0","id":"1","type":"lockstep.result.failed.v1","data":{"repo":"a/b","took_ms":9223372036854775807}}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		r, err := events.ParseResult(doc)
		if err != nil {
			if events.DispositionOf(err) != events.Malformed || len(err.Error()) > maxError {
				t.Fatalf("%v: %.2000v", events.DispositionOf(err), err)
			}
			return
		}
		for _, p := range []string{r.Path, r.Tree} {
			if p != "" && !filepath.IsLocal(p) {
				t.Fatalf("%q leaves the root", p)
			}
		}
		resultRoundTrip(t, r)
	})
}

func resultRoundTrip(t *testing.T, r events.Result) {
	t.Helper()
	wire, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	back, err := events.ParseResult(wire)
	if err != nil {
		t.Fatalf("%s: %v", wire, err)
	}
	// An empty list is omitted, and parses as nil.
	if len(r.Files) == 0 {
		r.Files = nil
	}
	if len(r.Deliveries) == 0 {
		r.Deliveries = nil
	}
	if !reflect.DeepEqual(back, r) {
		t.Fatalf("%s\ncame back as %+v\nwant         %+v", wire, back, r)
	}
}
