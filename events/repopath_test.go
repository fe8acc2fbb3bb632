package events_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"lockstep/events"
)

func TestParseRepoPathAccepts(t *testing.T) {
	for name, in := range map[string]string{
		"owner and name":            "acme/widgets",
		"nested groups":             "group/sub/deeper/name",
		"the deepest":               strings.Repeat("a/", 19) + "a",
		"the longest segment":       "acme/" + strings.Repeat("a", 100),
		"the longest path":          strings.Repeat(strings.Repeat("a", 99)+"/", 5) + strings.Repeat("a", 12),
		"every allowed byte":        "AZaz09/a._-~+",
		"a name that is a dot file": "acme/.github",
		"dots within":               "acme/a..b",
		"git within":                "acme/widgets.github.io",
		"a SourceHut user":          "~sircmpwn/aerc",
		"lockstep, without the dot": "lockstep/lockstep",
		".lockstep, with more":      "acme/.lockstep2",
	} {
		t.Run(name, func(t *testing.T) {
			p, err := events.ParseRepoPath(in)
			if err != nil {
				t.Fatal(err)
			}
			if p.IsZero() || p.String() != in || p.Key() != strings.ToLower(in) {
				t.Errorf("got %q with key %q, zero %v", p.String(), p.Key(), p.IsZero())
			}
		})
	}
}

func TestParseRepoPathRefuses(t *testing.T) {
	for name, in := range map[string]string{
		"nothing":                      "",
		"a single segment":             "acme",
		"a slash alone":                "/",
		"an absolute path":             "/acme/widgets",
		"a trailing slash":             "acme/widgets/",
		"an empty segment":             "acme//widgets",
		"leaving the root":             "../widgets",
		"leaving the owner":            "acme/..",
		"leaving in the middle":        "acme/../../etc",
		"a dot segment":                "acme/./widgets",
		"a leading dash":               "acme/-rf",
		"an owner with a leading dash": "--upload-pack/widgets",
		"a .git suffix":                "acme/widgets.git",
		"a .GIT suffix":                "acme/widgets.GIT",
		"a .git folder":                "acme/widgets/.git",
		"a .git suffix in the middle":  "acme.git/widgets",
		"the reserved folder":          ".lockstep/repos",
		"the reserved folder, below":   "acme/.lockstep/fence",
		"the reserved folder, folded":  "acme/.LockStep",
		"a name with a ref's @":        "acme/widgets@main",
		"a key's colon":                "acme/widgets:queue",
		"a hash tag":                   "acme/{1}",
		"a percent sign":               "acme/%2e%2e",
		"a backslash":                  `acme\widgets/x`,
		"a space":                      "acme/wid gets",
		"a newline":                    "acme/widgets\n",
		"a NUL":                        "acme/widgets\x00",
		"a letter beyond ASCII":        "acme/wïdgets",
		"a sign that folds to ASCII":   "acme/\u212aelvin", // KELVIN SIGN: lower case is k
		"bytes that are not UTF-8":     "acme/\xff",
		"a segment too long":           "acme/" + strings.Repeat("a", 101),
		"a path too long":              strings.Repeat(strings.Repeat("a", 99)+"/", 5) + strings.Repeat("a", 13),
		"a path too deep":              strings.Repeat("a/", 20) + "a",
		"a whole URL":                  "https://github.com/acme/widgets",
	} {
		t.Run(name, func(t *testing.T) {
			p, err := events.ParseRepoPath(in)
			if !errors.Is(err, events.ErrBadRepoPath) {
				t.Fatalf("got %q, %v; want ErrBadRepoPath", p, err)
			}
			if !p.IsZero() {
				t.Errorf("a refused path is not zero: %q", p)
			}
		})
	}
}

func TestRepoPathFromURL(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"plain":                     {"https://github.com/acme/widgets", "acme/widgets"},
		"with the .git suffix":      {"https://github.com/acme/widgets.git", "acme/widgets"},
		"with a trailing slash":     {"https://github.com/acme/widgets.git/", "acme/widgets"},
		"with a port":               {"http://git.local:3000/acme/widgets", "acme/widgets"},
		"nested groups":             {"https://gitlab.com/group/sub/name.git", "group/sub/name"},
		"spelled as it is":          {"https://github.com/Acme/Widgets", "Acme/Widgets"},
		"an encoded letter":         {"https://github.com/acme/%77idgets", "acme/widgets"},
		"credentials are left out":  {"https://robot:hunter2@github.com/acme/widgets", "acme/widgets"},
		"one segment":               {"https://github.com/acme", ""},
		"no path":                   {"https://github.com", ""},
		"traversal":                 {"https://github.com/acme/../widgets", ""},
		"encoded traversal":         {"https://github.com/acme/%2e%2e/widgets", ""},
		"mixed traversal":           {"https://github.com/acme/%2E./widgets", ""},
		"doubly encoded traversal":  {"https://github.com/acme/%252e%252e/widgets", ""},
		"traversal by %2f":          {"https://github.com/acme/..%2f..%2fetc", ""},
		"a slash by %2f":            {"https://github.com/acme%2fwidgets", ""},
		"a slash by %2F":            {"https://github.com/group/acme%2Fwidgets", ""},
		"a backslash by %5c":        {"https://github.com/acme/..%5cwidgets", ""},
		"an encoded NUL":            {"https://github.com/acme/widgets%00", ""},
		"the reserved folder":       {"https://github.com/%2elockstep/repos", ""},
		"a git folder":              {"https://github.com/acme/widgets/.git", ""},
		"the suffix twice":          {"https://github.com/acme/widgets.git.git", ""},
		"an scp-like remote":        {"git@github.com:acme/widgets.git", ""},
		"an encoding that is wrong": {"https://github.com/acme/%zz", ""},
		"nothing":                   {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := events.RepoPathFromURL(tc.in)
			if tc.want == "" {
				if !errors.Is(err, events.ErrBadRepoPath) {
					t.Fatalf("got %q, %v; want ErrBadRepoPath", p, err)
				}
				return
			}
			if err != nil || p.String() != tc.want {
				t.Errorf("got %q, %v; want %q", p, err, tc.want)
			}
		})
	}
}

func TestRepoPathErrorsKeepSecrets(t *testing.T) {
	const secret = "hunter2"
	for name, in := range map[string]string{
		"a password":                "https://robot:hunter2@github.com/acme",
		"a token for a user":        "https://hunter2@github.com/acme",
		"a token before a colon":    "hunter2:x-oauth-basic@github.com/acme/widgets",
		"a slash forgotten":         "https:/robot:hunter2@github.com/acme/widgets",
		"the scheme forgotten":      "robot:hunter2@github.com/acme/widgets",
		"a broken host":             "https://robot:hunter2@git hub/acme/widgets",
		"a broken port":             "https://robot:hunter2@github.com:x/acme/widgets",
		"a token in the path":       "https://github.com/hunter2/ac me/widgets",
		"a token that is the path":  "https://github.com/hunter2",
		"a token in the query":      "https://github.com/acme?private_token=hunter2",
		"a path with a token query": "acme/widgets?private_token=hunter2",
		"an encoded at sign":        "robot%3Ahunter2%40github.com/acme/widgets",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := events.RepoPathFromURL(in); err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("RepoPathFromURL: %v", err)
			}
			if name == "a token in the path" {
				return // as a path, "hunter2" is an ordinary name
			}
			if _, err := events.ParseRepoPath(in); err == nil || strings.Contains(err.Error(), secret) {
				t.Errorf("ParseRepoPath: %v", err)
			}
			if err := events.CheckRemote(in); err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("CheckRemote: %v", err)
			}
		})
	}
}

func TestRepoPathEqualIgnoresCase(t *testing.T) {
	a, b := repo(t, "Acme/Widgets"), repo(t, "acme/wIDGETS")
	if !a.Equal(b) || a.Key() != b.Key() {
		t.Errorf("%q and %q differ", a, b)
	}
	if a.String() != "Acme/Widgets" {
		t.Errorf("the spelling is lost: %q", a)
	}
	if a.Equal(repo(t, "acme/widget")) {
		t.Error("different names are equal")
	}
}

func TestContainsMeansNesting(t *testing.T) {
	outer := repo(t, "acme/widgets")
	for in, want := range map[string]bool{
		"acme/widgets/docs":    true,
		"Acme/WIDGETS/docs/v1": true,
		"acme/widgets":         false,
		"acme/widgets2":        false,
		"acme/widgets2/docs":   false,
		"acme/other":           false,
	} {
		if got := outer.Contains(repo(t, in)); got != want {
			t.Errorf("acme/widgets contains %s: %v", in, got)
		}
	}
	var zero events.RepoPath
	if zero.Contains(outer) || outer.Contains(zero) || zero.Contains(zero) {
		t.Error("the zero path takes part in nesting")
	}
}

func TestRepoPathMarshalsAsText(t *testing.T) {
	var got struct{ A, B events.RepoPath }
	if err := json.Unmarshal([]byte(`{"A":"Acme/Widgets","B":""}`), &got); err != nil {
		t.Fatal(err)
	}
	if got.A != repo(t, "Acme/Widgets") || !got.B.IsZero() {
		t.Errorf("got %+v", got)
	}
	if out, err := json.Marshal(got); err != nil || string(out) != `{"A":"Acme/Widgets","B":""}` {
		t.Errorf("got %s, %v", out, err)
	}
	if err := json.Unmarshal([]byte(`{"A":"../x"}`), &got); !errors.Is(err, events.ErrBadRepoPath) {
		t.Errorf("got %v; want ErrBadRepoPath", err)
	}
}

func repo(t testing.TB, s string) events.RepoPath {
	t.Helper()
	p, err := events.ParseRepoPath(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
