package events_test

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"lockstep/events"

	"pgregory.net/rapid"
)

func TestParseRefExpands(t *testing.T) {
	for name, tc := range map[string]struct{ in, full, suffix string }{
		"nothing is the default branch": {"", "", ""},
		"HEAD is the default branch":    {"HEAD", "", ""},
		"a short name is a branch":      {"main", "refs/heads/main", "main"},
		"a full name stays":             {"refs/heads/main", "refs/heads/main", "main"},
		"a branch with slashes":         {"feat/login", "refs/heads/feat/login", "feat%2Flogin"},
		"heads alone is no prefix":      {"heads/main", "refs/heads/heads/main", "heads%2Fmain"},
		"a tag":                         {"refs/tags/v1", "refs/tags/v1", "refs%2Ftags%2Fv1"},
		"a pull request":                {"refs/pull/7/head", "refs/pull/7/head", "refs%2Fpull%2F7%2Fhead"},
		"a branch named like a tag":     {"refs/heads/refs/tags/v1", "refs/heads/refs/tags/v1", "refs%2Fheads%2Frefs%2Ftags%2Fv1"},
		"a branch spelled like one":     {"refs%2Ftags%2Fv1", "refs/heads/refs%2Ftags%2Fv1", "refs%252Ftags%252Fv1"},
		"a branch with an at sign":      {"@", "refs/heads/@", "@"},
		"a commit":                      {"0123456789abcdef0123456789abcdef01234567", "0123456789abcdef0123456789abcdef01234567", "0123456789abcdef0123456789abcdef01234567"},
		"a commit in upper case":        {"0123456789ABCDEF0123456789ABCDEF01234567", "0123456789abcdef0123456789abcdef01234567", "0123456789abcdef0123456789abcdef01234567"},
		"a branch named like a commit":  {"refs/heads/0123456789abcdef0123456789abcdef01234567", "refs/heads/0123456789abcdef0123456789abcdef01234567", "refs%2Fheads%2F0123456789abcdef0123456789abcdef01234567"},
		"a commit of SHA-256":           {strings.Repeat("0123456789ABCDEF", 4), strings.Repeat("0123456789abcdef", 4), strings.Repeat("0123456789abcdef", 4)},
		"a branch named like that":      {"refs/heads/" + strings.Repeat("ab", 32), "refs/heads/" + strings.Repeat("ab", 32), "refs%2Fheads%2F" + strings.Repeat("ab", 32)},
		"a branch named with 63 digits": {strings.Repeat("a", 63), "refs/heads/" + strings.Repeat("a", 63), strings.Repeat("a", 63)},
		"a branch named with 39 digits": {"0123456789abcdef0123456789abcdef0123456", "refs/heads/0123456789abcdef0123456789abcdef0123456", "0123456789abcdef0123456789abcdef0123456"},
		"letters beyond ASCII":          {"größe", "refs/heads/größe", "größe"},
		"the longest folder":            {strings.Repeat("a", 150), "refs/heads/" + strings.Repeat("a", 150), strings.Repeat("a", 150)},
		"a long branch":                 {strings.Repeat("a", 151), "refs/heads/" + strings.Repeat("a", 151), strings.Repeat("a", 116) + "%.022f02dc7e7205a5b9d6af240fa68e86"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := events.ParseRef(tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if r.String() != tc.full || r.Suffix() != tc.suffix || r.IsZero() != (tc.full == "") {
				t.Errorf("got %q with suffix %q, zero %v", r, r.Suffix(), r.IsZero())
			}
		})
	}
}

// Names from Git's documentation of check-ref-format, and variations.
var refNames = []string{
	"main", "a/b", "a/b/c", "refs/heads/main", "refs/tags/v1.0", "@", "a@b", "a{b", "-x", "a.b", "größe", "\u00a0", "a%2Fb",
	"HEAD/x", "lock", ".lock", "a.lock", "a.lock/b", "a.lockb", "a.LOCK", ".a", "a/.b", "a./b", "a..b", "a.", "a/b.",
	"a b", "a~b", "a^b", "a:b", "a?b", "a*b", "a[b", "a]b", `a\b`, "a@{b", "@{", "/a", "a/", "a//b", "/", "refs/", "refs//a",
	"a\tb", "a\nb", "a\x01b", "a\x7fb", "refs/heads/", "refs/heads/.", "refs/heads/..",
}

func TestParseRefAgreesWithGit(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is not installed")
	}
	for _, name := range refNames {
		full := name
		if !strings.HasPrefix(name, "refs/") {
			full = "refs/heads/" + name
		}
		valid := exec.Command(git, "check-ref-format", full).Run() == nil
		if r, err := events.ParseRef(name); (err == nil) != valid {
			t.Errorf("%q: git says %v, we say %q, %v", name, valid, r, err)
		}
	}
}

func TestParseRefAgreesWithGitOnAnything(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is not installed")
	}
	rapid.Check(t, func(t *rapid.T) {
		full := "refs/heads/" + rapid.StringMatching(`[a-c.@{}~/ %k-]{1,8}(\.lock)?(/[a-z.]{0,4})?`).Draw(t, "name")
		valid := exec.Command(git, "check-ref-format", full).Run() == nil
		if _, err := events.ParseRef(full); (err == nil) != valid {
			t.Fatalf("%q: git says %v, we say %v", full, valid, err)
		}
	})
}

func TestParseRefRefusesMoreThanGit(t *testing.T) {
	for name, in := range map[string]string{
		"a name right below refs":  "refs/stash",
		"bytes that are not UTF-8": "caf\xe9",
		"a part too long":          "a/" + strings.Repeat("a", 251),
		"a name too long":          strings.Repeat(strings.Repeat("a", 246)+"/", 4)[:987] + "/aa",
		"a NUL":                    "a\x00b",
		"a hash of zeros":          strings.Repeat("0", 40),
	} {
		t.Run(name, func(t *testing.T) {
			if r, err := events.ParseRef(in); !errors.Is(err, events.ErrBadRef) || !r.IsZero() {
				t.Errorf("got %q, %v; want ErrBadRef", r, err)
			}
		})
	}
}

func TestRefErrorsAreBoundedAndKeepSecrets(t *testing.T) {
	for _, in := range []string{
		"https://robot:hunter2@github.com/acme/widgets",
		"robot:hunter2@github.com",
		"refs/heads/x//robot:hunter2@github.com",
		strings.Repeat("\x01", 1<<20),
		strings.Repeat("a", 1<<20) + ".lock",
	} {
		_, err := events.ParseRef(in)
		if err == nil || len(err.Error()) > 600 || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%.60q: %.700v", in, err)
		}
	}
}

func genRef(t *rapid.T, label string) events.Ref {
	// A small alphabet with many characters that need escaping, so that similar pairs are likely.
	name := rapid.StringMatching(`(refs/(heads|tags|heads/refs/heads)/)?(refs|%2F|%|a|25|/b|heads/){1,5}`).Draw(t, label)
	r, err := events.ParseRef(name)
	if err != nil {
		t.Skip(err)
	}
	if rapid.IntRange(0, 9).Draw(t, label+" is about a commit") == 0 {
		name := rapid.StringMatching(`(refs/heads/)?(refs/heads/)?(a{40}|a{64})`).Draw(t, label)
		r, err = events.ParseRef(name)
		if err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func TestNoTwoRefsShareASuffix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := genRef(t, "a"), genRef(t, "b")
		if (a == b) != (a.Suffix() == b.Suffix()) {
			t.Fatalf("%q and %q have suffixes %q and %q", a, b, a.Suffix(), b.Suffix())
		}
	})
}

func TestParseSuffix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := genRef(t, "ref")
		if back, err := events.ParseSuffix(r.Suffix()); err != nil || back != r {
			t.Fatalf("%q came back as %q, %v", r, back, err)
		}
	})
	for _, bad := range []string{"a..b", "a%2F%2Fb", "%2Fa"} {
		if _, err := events.ParseSuffix(bad); !errors.Is(err, events.ErrBadRef) {
			t.Errorf("%s: got %v; want ErrBadRef", bad, err)
		}
	}
}

func TestLongNamesAreCut(t *testing.T) {
	seen := map[string]string{}
	for _, part := range []string{"a", "é", "€", "😀", "a/", "%", "é/a", "a%b/"} {
		for n := range 320 {
			name := strings.Repeat("x", n%7) + strings.TrimSuffix(strings.Repeat(part, n+1), "/") + "y"
			r, err := events.ParseRef(name)
			if err != nil {
				continue // a part is too long
			}
			suffix := r.Suffix()
			begin, _, isCut := strings.Cut(suffix, "%.")
			begin = strings.NewReplacer("%2F", "/", "%25", "%").Replace(begin)
			if len(suffix) > 150 || isCut && len(suffix) < 145 || !isCut && begin != name || !strings.HasPrefix(name, begin) ||
				!utf8.ValidString(suffix) || strings.Contains(suffix, "/") {
				t.Errorf("%q has suffix %q", name, suffix)
			}
			if other, ok := seen[suffix]; ok && other != r.String() {
				t.Errorf("%q and %q have the same suffix", other, name)
			}
			seen[suffix] = r.String()
		}
	}
}

func TestSuffixIsOneFileName(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genRef(t, "ref").Suffix()
		if strings.Contains(s, "/") || len(s) > 150 || !utf8.ValidString(s) {
			t.Fatalf("suffix %q", s)
		}
	})
}

func TestRefMarshalsAsText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := genRef(t, "ref")
		text, err := r.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var back events.Ref
		if err := back.UnmarshalText(text); err != nil || back != r {
			t.Fatalf("%q came back as %q, %v", r, back, err)
		}
	})
	var r events.Ref
	if err := r.UnmarshalText([]byte("a..b")); !errors.Is(err, events.ErrBadRef) {
		t.Errorf("got %v; want ErrBadRef", err)
	}
}
