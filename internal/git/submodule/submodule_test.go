package submodule

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// listed returns the variables of a configuration as git config --list prints them, in no order.
func listed(t *testing.T, content string) (lines []string, ok bool) {
	t.Helper()
	err := ParseConfig([]byte(content), func(section, name, key, value string, hasValue bool) error {
		line := strings.TrimPrefix(section+"."+key, ".")
		if name != "" {
			line = section + "." + name + "." + key
		}
		if hasValue {
			line += "\n" + value
		}
		lines = append(lines, strings.ReplaceAll(line, "\t", " ")) // as Git before 2.45 does within values
		return nil
	})
	slices.Sort(lines)
	return lines, err == nil
}

// mustParseAsGit compares a file with what git makes of it.
func mustParseAsGit(t *testing.T, dir, content string) {
	t.Helper()
	path := filepath.Join(dir, "config")
	testenv.Must(0, os.WriteFile(path, []byte(content), 0o644))(t)
	out, err := gitserver.Git(t.Context(), dir, "", "config", "--file", path, "--list", "--null")
	var want []string
	if out != "" {
		want = strings.Split(strings.ReplaceAll(strings.TrimSuffix(out, "\x00"), "\t", " "), "\x00")
	}
	slices.Sort(want)
	got, ok := listed(t, content)
	if ok != (err == nil) || ok && !slices.Equal(got, want) {
		t.Errorf("%q: got %q, %v; git has %q, %v", content, got, ok, want, err)
	}
}

func TestConfigIsParsedAsGit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, content := range []string{
		"", "[submodule \"a\"]\n\tpath = a\n\turl = ../a.git\n", "\xef\xbb\xbf[a]\nb=c", "[a]b=c\r\nd = e\r\n", "[a \"b\\\"c\\\\d\\e\"]\nx=y", "[a \"b\nc\"]\nx=y",
		"[A.B]\nC-d = e", "[a.b \"c\"]\nx=y", "[a]\nx", "[a]\nx =", "[a]\nx = 1 ; two", "[a]\nx = \"1 ; two\" # three", "[a]\nx = \"1", "[a]\nx = 1\\\n2\n", "[a]\nx = 1  \\\n",
		"[a]\nx = a\\tb\\nc\\bd\\\\\\\"", "[a]\nx = \\q", "[a]\n1x=2", "[a]\nx_y=2", "[a", "[a \"b\"", "[a \"b\" ]\nx=y", "[a b]\nx=y", "# [a]\n[b]\n;c\nd=e#f", "[a]\nx = a  b\t c  ",
		"[a]\nx = \"a \" b", "[a] x = y [b]\nz = 1", "[submodule]\nurl = x", "[a]\nx = 1\\", "[a]\nx\r\n", "[a]\nx y", "[a]\nx\t=\t\"\"\n", "[\xff]\nx=1",
		"[a]\n\xff=1", "[a]\nx=\xff\n", "[a \"\xff\"]\nx=1", "[a]\n[a]\nx=1\nx=2", "   [a]\n   x = 1", "[a]\nx = 'b'", "[a]\n=1", "x=1", "[a]\n[]",
	} {
		mustParseAsGit(t, dir, content)
	}
}

func TestRandomConfigsAreParsedAsGit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pieces := []string{"[a]", "[b \"c\"]", "[submodule \"", "\"]", "\n", "\r\n", " ", "\t", "\"", "\\", "\\n", "=", "x", "y1", "#", ";", "path", "url", "[", "]", ".", "-"}
	for range testenv.Form(30, 1000) {
		content := "[a]\n"
		for range rand.IntN(14) {
			content += pieces[rand.IntN(len(pieces))]
		}
		if !strings.Contains(content, `""]`) && !strings.Contains(content, ".]") { // an empty name, which no submodule has, is not told from none
			mustParseAsGit(t, dir, content)
		}
	}
}

func TestModules(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		content string
		want    map[string]string // URLs by path, "-" for one to skip
		fails   bool
	}{
		"two":                        {"[submodule \"a\"]\npath=a\nurl=u\n[submodule \"b\"]\nurl=v\npath=d/b", map[string]string{"a": "u", "d/b": "v"}, false},
		"the last value":             {"[submodule \"a\"]\npath=a\nurl=u\nurl=v\n[submodule \"a\"]\npath=b", map[string]string{"b": "v"}, false},
		"two with a path":            {"[submodule \"a\"]\npath=p\nurl=u\n[submodule \"b\"]\npath=p\nurl=v", map[string]string{"p": "v"}, false},
		"no path":                    {"[submodule \"a\"]\nurl=u", nil, false},
		"no URL":                     {"[submodule \"a\"]\npath=a", map[string]string{"a": ""}, false},
		"names out of .git/modules":  {"[submodule \"../a\"]\npath=a\nurl=u\n[submodule \"b/../../c\"]\npath=b\nurl=u\n[submodule \"c\\\\..\"]\npath=c\nurl=u", nil, false},
		"a name with dots":           {"[submodule \"a..b/...\"]\npath=a\nurl=u", map[string]string{"a": "u"}, false},
		"options":                    {"[submodule \"a\"]\npath=-a\nurl=u\n[submodule \"b\"]\npath=b\nurl=-u", map[string]string{"b": ""}, false},
		"update none":                {"[submodule \"a\"]\npath=a\nurl=u\nupdate=none", map[string]string{"a": "-"}, false},
		"update checkout after none": {"[submodule \"a\"]\npath=a\nurl=u\nupdate=none\nupdate=checkout", map[string]string{"a": "u"}, false},
		"a command":                  {"[submodule \"a\"]\npath=a\nurl=u\nupdate=!touch x", nil, true},
		"no value":                   {"[submodule \"a\"]\npath=a\nurl", nil, true},
		"other sections":             {"[core]\npath=a\n[submodule]\nurl=u\nrecurse", nil, false},
		"not a configuration":        {"path = a\n%", nil, true},
		"too long":                   {strings.Repeat("#", MaxSize+1), nil, true},
	} {
		modules, err := Parse([]byte(tc.content))
		got := map[string]string{}
		for path, m := range modules {
			if got[path] = m.URL; m.Skip {
				got[path] = "-"
			}
		}
		if (err != nil) != tc.fails || !maps.Equal(got, tc.want) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

// TestURLsAreResolvedAsGit compares relative URLs with those that git submodule init records.
func TestURLsAreResolvedAsGit(t *testing.T) {
	t.Parallel()
	urls := []string{
		"../x", "./x", "../../x.git", "../../../x/y", "../../../../x", "../x/", "./", "../", "././x", ".././x", "./../x", "../x/../y", "https://other.example/x", "git@host:a/b",
		"../..", "../../../../evil.example/x",
	}
	for _, base := range []string{
		"https://host.example/acme/widgets", "https://host.example/acme/widgets.git/", "ssh://git@host.example:2222/a/b/c/d", "http://host.example/w", "https://host.example:8443/acme//widgets",
	} {
		dir := t.TempDir()
		git := func(args ...string) string {
			return testenv.Must(gitserver.Git(t.Context(), dir, "", args...))(t)
		}
		git("init", "-q", "--object-format=sha1")
		git("config", "remote.origin.url", base)
		file, entries := "", ""
		for i, url := range urls {
			file += fmt.Sprintf("[submodule \"s%d\"]\n\tpath = s%d\n\turl = %s\n", i, i, url)
			entries += fmt.Sprintf("160000 %s\ts%d\n", strings.Repeat("1", 40), i)
		}
		testenv.Must(gitserver.Git(t.Context(), dir, entries, "update-index", "--index-info"))(t)
		testenv.Must(0, os.WriteFile(filepath.Join(dir, ".gitmodules"), []byte(file), 0o644))(t)
		init, want := []string{"submodule", "init"}, map[string]string{}
		for i, url := range urls {
			name := fmt.Sprintf("s%d", i)
			got, err := Resolve(base, url)
			if err == nil {
				init, want["submodule."+name+".url"] = append(init, name), got
			} else if _, err := gitserver.Git(t.Context(), dir, "", "submodule", "init", name); err == nil {
				t.Errorf("%s from %s is refused, but not by git", url, base)
			}
		}
		git(init...)
		for line := range strings.Lines(git("config", "--get-regexp", `^submodule\..*\.url$`)) {
			name, got, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			if got != want[name] {
				t.Errorf("%s from %s is %q, git has %q", name, base, want[name], got)
			}
			delete(want, name)
		}
		if len(want) > 0 {
			t.Errorf("git does not have %q", want)
		}
	}
}

// TestUserNamesInURLs: git clones such a submodule, with the user name for a credential helper.
func TestUserNamesInURLs(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{ // "" for an error
		"https://ada@host.example/acme/lib.git":             "https://host.example/acme/lib.git",
		"http://ada@host.example:8080/acme/lib":             "http://host.example:8080/acme/lib",
		"HTTPS://ada%40example.org@[::1]:8443/acme/my%20x/": "https://[::1]:8443/acme/my%20x/",
		"https://ghp_s3cret@host.example/acme/lib":          "https://host.example/acme/lib",
		"https://@host.example/acme/lib":                    "https://host.example/acme/lib",
		"https://ada:s3cret@host.example/acme/lib":          "",
		"https://s3cret:x-oauth-basic@host.example/lib":     "",
		"https://:s3cret@host.example/acme/lib":             "",
		"https://ada:@host.example/acme/lib":                "",
		"https://host.example/acme/@lib":                    "https://host.example/acme/@lib",
		"ssh://git@host.example/acme/lib":                   "ssh://git@host.example/acme/lib",
		"git@host.example:acme/lib":                         "git@host.example:acme/lib",
		`https://host.example\@evil.example/acme/lib`:       `https://host.example\@evil.example/acme/lib`, // refused by CheckRemote
	} {
		got, err := Resolve("https://host.example/acme/widgets", url)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%s: %q, %v", url, got, err)
		}
		if err != nil && (strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "everybody who can read")) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("[submodule \"a\"]\n\tpath = a\n\turl = ../a.git\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		modules, err := Parse(content)
		for path, m := range modules {
			if err != nil || m.Path != path || !isSafeName(m.Name) || strings.HasPrefix(m.URL, "-") {
				t.Errorf("%q: %+v, %v", path, m, err)
			}
		}
	})
}

// TestErrorsAreShort has a name as long as the file may be.
func TestErrorsAreShort(t *testing.T) {
	t.Parallel()
	for _, option := range []string{"url", "update = ?"} {
		_, err := Parse([]byte("[submodule \"" + strings.Repeat("\xff", MaxSize-100) + "\"]\n" + option + "\n"))
		if err == nil || len(err.Error()) > 1000 {
			t.Errorf("%s: an error of %d bytes", option, len(fmt.Sprint(err)))
		}
	}
}
