package lfs

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"

	"lockstep/events"
	"lockstep/internal/git/object"
	"lockstep/internal/git/wildmatch"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

func TestPointersAreThoseOfGitLFS(t *testing.T) {
	oid := strings.Repeat("ab", 32)
	valid := "version https://git-lfs.github.com/spec/v1\noid sha256:" + oid + "\nsize 12\n"
	for name, tc := range map[string]struct {
		blob string
		ok   bool
	}{
		"canonical":      {valid, true},
		"CRLF":           {strings.ReplaceAll(valid, "\n", "\r\n"), true},
		"no last line":   {strings.TrimSpace(valid), true},
		"space around":   {"\n\n" + valid + "\n \n", true},
		"empty lines":    {strings.ReplaceAll(valid, "\n", "\n\n"), true},
		"an old version": {strings.Replace(valid, "https://git-lfs.github.com/spec/v1", "https://hawser.github.com/spec/v1", 1), true},
		"size 0":         {strings.Replace(valid, "size 12", "size 0", 1), true},
		"empty":          {"", false},
		"other version":  {strings.Replace(valid, "v1", "v3", 1), false},
		"upper case":     {strings.Replace(valid, oid, strings.ToUpper(oid), 1), false},
		"short OID":      {strings.Replace(valid, oid, oid[2:], 1), false},
		"other hash":     {strings.Replace(valid, "sha256", "sha512", 1), false},
		"negative":       {strings.Replace(valid, "size 12", "size -1", 1), false},
		"no number":      {strings.Replace(valid, "size 12", "size 1k", 1), false},
		"too large":      {strings.Replace(valid, "size 12", "size 99999999999999999999", 1), false},
		"another line":   {valid + "more text\n", false},
		"wrong order":    {"oid sha256:" + oid + "\nversion https://git-lfs.github.com/spec/v1\nsize 12\n", false},
		"extension":      {strings.Replace(valid, "oid", "ext-0-foo sha256:"+oid+"\noid", 1), false},
		"too long":       {valid + strings.Repeat("\n", maxPointer), false},
		"NUL":            {"\x00" + valid, false},
	} {
		p, ok := ParsePointer([]byte(tc.blob))
		if ok != tc.ok || ok && p.OID.String() != oid {
			t.Errorf("%s: %v, %v", name, p, ok)
		}
	}
}

func FuzzPointer(f *testing.F) {
	pointer, _ := gitserver.LFSPointer("content")
	f.Add([]byte(pointer))
	f.Fuzz(func(t *testing.T, blob []byte) {
		if p, ok := ParsePointer(blob); ok && (p.Size < 0 || !bytes.Contains(blob, []byte(p.OID.String()))) {
			t.Errorf("%q yields %v", blob, p)
		}
	})
}

// memory is a tree of files, by path. The ID of a folder or file is the hash of its path.
type memory map[string]string

func memoryID(path string) object.ID { return object.SHA1.Hash(plumbing.BlobObject, []byte(path)) }

func (m memory) Tree(tree object.ID) (entries []object.TreeEntry, err error) {
	known := map[string]bool{}
	for path := range m {
		for end := range len(path) + 1 {
			if end < len(path) && path[end] != '/' {
				continue
			}
			folder, name := "", path[:end]
			if slash := strings.LastIndexByte(name, '/'); slash >= 0 {
				folder, name = name[:slash], name[slash+1:]
			}
			if known[path[:end]] || memoryID(folder) != tree {
				continue
			}
			known[path[:end]] = true
			mode := filemode.Dir
			if end == len(path) {
				mode = filemode.Regular
			}
			entries = append(entries, object.TreeEntry{Name: name, Mode: mode, Hash: memoryID(path[:end])})
		}
	}
	return entries, nil
}

func (m memory) SmallBlob(blob object.ID, limit int64) ([]byte, bool, error) {
	for path, content := range m {
		if memoryID(path) == blob {
			return []byte(content), int64(len(content)) <= limit, nil
		}
	}
	return nil, false, object.Corruptf("no blob %s", blob)
}

// attributesOf returns which paths have filter=lfs according to git check-attr in dir, and to Files.
func attributesOf(t *testing.T, dir string, files map[string]string, paths []string) (want, got []string) {
	t.Helper()
	all := memory(maps.Clone(files))
	for path, content := range files {
		full := filepath.Join(dir, filepath.FromSlash(path))
		testenv.Must(0, os.MkdirAll(filepath.Dir(full), 0o755))(t)
		testenv.Must(0, os.WriteFile(full, []byte(content), 0o644))(t)
	}
	for _, path := range paths {
		all[path] = ""
	}
	output := testenv.Must(gitserver.Git(t.Context(), dir, strings.Join(paths, "\x00")+"\x00", "check-attr", "-z", "--stdin", "filter"))(t)
	fields := strings.Split(output, "\x00")
	for i := 0; i+2 < len(fields); i += 3 {
		if fields[i+2] == "lfs" {
			want = append(want, fields[i])
		}
	}
	decided := NewForest(all, map[string]object.ID{"": memoryID("")}, Selection{{}})
	for _, path := range paths {
		if testenv.Must(decided.Selects(path))(t) {
			got = append(got, path)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	return want, got
}

func TestAttributesAreThoseOfGit(t *testing.T) {
	t.Parallel()
	paths := []string{
		"a.bin", "b.bin", "A.BIN", "x/a.bin", "x/y/a.bin", "x/y/z/a.bin", "foo", "foo/bar", "a b.txt", "[1].txt", "1.txt", "é.bin", "x/foo", "-dash", "#hash", "!bang", `back\slash`, "t.tar.gz", "dir/file", "x-1", "x.1",
	}
	paths = conflictFree(paths)
	dir := t.TempDir()
	testenv.Must(gitserver.Git(t.Context(), dir, "", "init", "-q", "."))(t)
	for _, lines := range []string{
		"*.bin filter=lfs\n", "* filter=lfs\n*.bin -filter\n", "*.bin filter=lfs\n*.bin filter=other\n", "*.bin filter=lfs filter=other\n", "*.bin filter=other filter=lfs\n",
		"/a.bin filter=lfs\n", "x/*.bin filter=lfs\n", "x/**/a.bin filter=lfs\n", "**/a.bin filter=lfs\n", "x/** filter=lfs\n", "** filter=lfs\n", "/** filter=lfs", "x** filter=lfs", "**bin filter=lfs\n", "x/**bin filter=lfs\n",
		"x/ filter=lfs\n", "foo/ filter=lfs\nfoo filter=lfs\n", "foo/* filter=lfs\n", "!a.bin filter=lfs\n", "\\!bang filter=lfs\n", "# a.bin filter=lfs\n", "\\#hash filter=lfs\n",
		`"a b.txt" filter=lfs` + "\n", `"a\040b.txt" filter=lfs` + "\n", `"a b.txt filter=lfs` + "\n", `"\303\251.bin" filter=lfs` + "\n", "?.bin filter=lfs\n", "[ab].bin filter=lfs\n", "[!a].bin filter=lfs\n", "[^a].bin filter=lfs\n", "[a-b].bin filter=lfs\n",
		"[[:upper:]]* filter=lfs\n", "[[:bogus:]]* filter=lfs\n", "[]a].bin filter=lfs\n", "[a filter=lfs\n", "\\[1\\].txt filter=lfs\n", "[\\[]1].txt filter=lfs\n", "back\\\\slash filter=lfs\n", "x[-.]1 filter=lfs\n", "x[.-]1 filter=lfs\n",
		"[attr]big filter=lfs\n*.bin big\n", "*.bin big\n[attr]big filter=lfs\n", "[attr]big filter=lfs\n*.bin -big\n", "[attr]big filter=lfs\n*.bin big\na.bin -big\n", "[attr]big filter=lfs\n*.bin big\na.bin !big\n", "[attr]big filter=lfs\n*.bin big\na.bin !filter\n",
		"[attr]one filter=lfs\n[attr]two one\n*.bin two\n", "[attr]big filter=lfs\n[attr]big filter=other\n*.bin big\n", "[attr]big filter=lfs\n*.bin big=yes\n", "[attr] big filter=lfs\n*.bin big\n", "[attr]a a\n*.bin a\n",
		"\ufeff*.bin filter=lfs\n", "*.bin\tfilter=lfs\r\n", "  *.bin   filter=lfs  \n", "*.bin filter=LFS\n", "*.bin filter\n", "*.bin filter=\n", "*.bin bad/name filter=lfs\n", "*.bin -bad=1 filter=lfs\n", strings.Repeat("a", 2100) + " filter=lfs\n*.bin filter=lfs", "*.bin " + strings.Repeat("x", 2050) + " filter=lfs\n", "*.tar.* filter=lfs\n", "dir/file filter=lfs", "*/a.bin filter=lfs\n", "*/*/a.bin filter=lfs", "x/y/ filter=lfs\n", "-dash filter=lfs\n",
	} {
		for _, nested := range testenv.Form([]string{""}, []string{"", "*.bin -filter\n", "a.bin filter=lfs\n", "y/*.bin filter=lfs\n", "/a.bin !filter\n", "[attr]deep filter=lfs\n*.bin deep\n"}) {
			files := map[string]string{".gitattributes": lines, "x/.gitattributes": nested}
			if want, got := attributesOf(t, dir, files, paths); !slices.Equal(want, got) {
				t.Errorf("%.60q, %q: selected %q, git check-attr says %q", lines, nested, got, want)
			}
		}
	}
}

// conflictFree drops files that are also folders.
func conflictFree(paths []string) []string {
	return slices.DeleteFunc(slices.Clone(paths), func(path string) bool {
		return slices.ContainsFunc(paths, func(other string) bool { return strings.HasPrefix(other, path+"/") })
	})
}

func TestHostilePatternsEnd(t *testing.T) {
	t.Parallel()
	var lines strings.Builder
	for range 1000 {
		fmt.Fprintf(&lines, "%s filter=lfs\n", strings.Repeat("**/*a", 60))
	}
	objects := memory{".gitattributes": lines.String()}
	decided := NewForest(objects, map[string]object.ID{"": memoryID("")}, Selection{{}})
	decided.match.Steps = wildmatch.MaxSteps - 1_000_000
	path := strings.Repeat("a", 200) + "b"
	var err error
	for i := 0; err == nil && i < 10_000; i++ {
		_, err = decided.Selects(path)
	}
	testenv.MustFail(t, err, events.ClassHostile, events.Permanent)
}

const bom = "\xef\xbb\xbf"

// servers are the LFS servers of https://example.org/acme/widgets for a branch and a tag, by the .lfsconfig; "" for a tag
// means the same.
var servers = map[string]struct{ config, branch, tag string }{
	"default":                {"", "https://example.org/acme/widgets.git/info/lfs", ""},
	"lfs.url":                {"[lfs]\n\turl = https://lfs.example.org/a/\n", "https://lfs.example.org/a", ""},
	"quoted":                 {"[lfs]\n\turl = \"https://lfs.example.org/a\"\n", "https://lfs.example.org/a", ""},
	"the last":               {"[lfs]\nurl = https://a.example.org/a\n[LFS]\nURL = https://b.example.org/b # no c\n", "https://b.example.org/b", ""},
	"in the section's line":  {"[lfs] url = https://lfs.example.org/a\n", "https://lfs.example.org/a", ""},
	"in two lines":           {"[lfs]\nurl = https://lfs.exam\\\nple.org/a\n", "https://lfs.example.org/a", ""},
	"after a quoted name":    {"[x \"a\\b\"]\ny = 1\n[lfs]\nurl = https://lfs.example.org/a\n", "https://lfs.example.org/a", ""},
	"no value":               {"[lfs]\nurl\n", "https://example.org/acme/widgets.git/info/lfs", ""},
	"of another section":     {"[lfs \"x\"]\nurl = https://lfs.example.org/a\n", "https://example.org/acme/widgets.git/info/lfs", ""},
	"a BOM":                  {bom + "[lfs]\nurl = https://lfs.example.org/a\n", "https://lfs.example.org/a", ""},
	"a BOM and CRLF":         {bom + "[lfs]\r\nurl = https://lfs.example.org/a\r\n", "https://lfs.example.org/a", ""},
	"of origin":              {"[remote \"origin\"]\nlfsurl = https://origin.example.org/a\n", "https://origin.example.org/a", ""},
	"of origin, old syntax":  {"[remote.Origin]\nLFSURL = https://origin.example.org/a\n", "https://origin.example.org/a", ""},
	"of Origin":              {"[remote \"Origin\"]\nlfsurl = https://origin.example.org/a\n", "https://example.org/acme/widgets.git/info/lfs", ""},
	"of origin, and lfs.url": {"[remote \"origin\"]\nlfsurl = https://origin.example.org/a\n[lfs]\nurl = https://lfs.example.org/a\n", "https://lfs.example.org/a", ""},
	"url of origin":          {"[remote \"origin\"]\nurl = https://other.example.org/a\n", "https://example.org/acme/widgets.git/info/lfs", ""},
	"of another remote":      {"[remote \"my.mirror\"]\nlfsurl = https://mirror.example.org/a\n", "https://example.org/acme/widgets.git/info/lfs", ""},
	"of the default remote": {"[remote]\nlfsdefault = my.mirror\n[remote \"my.mirror\"]\nlfsurl = https://mirror.example.org/a\n",
		"https://example.org/acme/widgets.git/info/lfs", "https://mirror.example.org/a"},
	"of both": {"[remote]\nlfsdefault = m\n[remote \"m\"]\nlfsurl = https://mirror.example.org/a\n[remote \"origin\"]\nlfsurl = https://origin.example.org/a\n",
		"https://origin.example.org/a", "https://mirror.example.org/a"},
	"a default without a URL": {"[remote]\nlfsdefault = m\n[remote \"origin\"]\nlfsurl = https://origin.example.org/a\n", "https://origin.example.org/a", ""},
	"the default and lfs.url": {"[remote]\nlfsdefault = m\n[remote \"m\"]\nlfsurl = https://mirror.example.org/a\n[lfs]\nurl = https://lfs.example.org/a\n",
		"https://lfs.example.org/a", ""},
}

func TestServer(t *testing.T) {
	check := func(name, config, remote, ref, want string) {
		t.Helper()
		got, err := parseConfig([]byte(config)).Server(remote, ref)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s, %s: %q, %v", name, ref, got, err)
		}
		if err != nil {
			testenv.MustFail(t, err, events.ClassConfig, events.Permanent)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error has a password: %v", err)
		}
	}
	for name, tc := range servers {
		check(name, tc.config, "https://example.org/acme/widgets", "refs/heads/main", tc.branch)
		check(name, tc.config, "https://example.org/acme/widgets", "refs/tags/v1", cmp.Or(tc.tag, tc.branch))
		check(name, tc.config, "https://example.org/acme/widgets", "", cmp.Or(tc.tag, tc.branch))
	}
	for name, tc := range map[string]struct{ config, remote, want string }{
		".git":         {"", "https://example.org/acme/widgets.git", "https://example.org/acme/widgets.git/info/lfs"},
		"slash":        {"", "https://example.org/acme/widgets/", "https://example.org/acme/widgets.git/info/lfs"},
		"damaged":      {"[lfs\nurl = https://lfs.example.org/a\n", "https://example.org/a.git", "https://example.org/a.git/info/lfs"},
		"SSH remote":   {"", "ssh://git@example.org/a.git", ""},
		"SSH, origin":  {"[remote \"origin\"]\nlfsurl = https://lfs.example.org/a\n", "ssh://git@example.org/a.git", "https://lfs.example.org/a"},
		"ssh":          {"[lfs]\nurl = ssh://git@example.org/a\n", "https://example.org/a.git", ""},
		"file":         {"[lfs]\nurl = file:///srv/a\n", "https://example.org/a.git", ""},
		"a path":       {"[lfs]\nurl = /srv/a\n", "https://example.org/a.git", ""},
		"origin, file": {"[remote \"origin\"]\nlfsurl = file:///srv/a\n", "https://example.org/a.git", ""},
		"a user name":  {"[lfs]\nurl = https://ada@lfs.example.org/a\n", "https://example.org/a.git", "https://lfs.example.org/a"},
		"a password":   {"[lfs]\nurl = https://ada:hunter2@example.org/a\n", "https://example.org/a.git", ""},
	} {
		check(name, tc.config, tc.remote, "refs/heads/main", tc.want)
	}
}

// TestServersAreThoseOfGitLFS compares the servers with those of git-lfs in a clone of a branch and of a tag.
func TestServersAreThoseOfGitLFS(t *testing.T) {
	if _, err := exec.LookPath("git-lfs"); err != nil {
		t.Skip("git-lfs is not installed")
	}
	testenv.Long(t)
	t.Parallel()
	origin := filepath.Join(t.TempDir(), "origin")
	git := func(dir string, args ...string) string {
		t.Helper()
		return testenv.Must(gitserver.Git(t.Context(), dir, "", args...))(t)
	}
	git("", "init", "-q", "--initial-branch=main", origin)
	for name, tc := range servers {
		testenv.Must(0, os.WriteFile(filepath.Join(origin, ".lfsconfig"), []byte(tc.config), 0o644))(t)
		git(origin, "add", "-A")
		git(origin, "commit", "-q", "--allow-empty", "-m", "x")
		git(origin, "tag", "-f", "v1")
		for ref, want := range map[string]string{"main": tc.branch, "v1": cmp.Or(tc.tag, tc.branch)} {
			clone := filepath.Join(t.TempDir(), "clone")
			git("", "clone", "-q", "--branch", ref, "file://"+origin, clone)
			git(clone, "config", "remote.origin.url", "https://example.org/acme/widgets")
			env, got := git(clone, "lfs", "env"), ""
			for _, name := range []string{"", " (m)", " (my.mirror)", " (origin)"} { // without a name only if that is origin
				if _, after, ok := strings.Cut(env, "Endpoint"+name+"="); ok && got == "" {
					got, _, _ = strings.Cut(after, " ")
				}
			}
			if got = strings.TrimSuffix(got, "/"); got != want {
				t.Errorf("%s, %s: want %q, git-lfs has %q", name, ref, want, got)
			}
		}
	}
}

func TestSelectionsAreComparedByTheirFilters(t *testing.T) {
	a := Selection{{Include: []string{"a", "b"}}, {}}
	b := Selection{{}, {Include: []string{"b", "a", "b"}}, {}}
	if a.String() != b.String() || a.String() == (Selection{{}}).String() || Selection(nil).String() != "" {
		t.Errorf("%s, %s", a, b)
	}
	if parsed := testenv.Must(ParseSelection(a.String()))(t); parsed.String() != a.String() {
		t.Errorf("parsed as %s", parsed)
	}
}

func TestExcludesOfLFSConfigAreThoseOfGitLFS(t *testing.T) {
	if _, err := exec.LookPath("git-lfs"); err != nil {
		t.Skip("git-lfs is not installed")
	}
	t.Parallel()
	paths := []string{"a.bin", "x/a.bin", "x/y/a.bin", "x/y/z/b.dat", "skip/one", "skip/x/two", "deep/skip/three", "b.dat"}
	dir := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		return testenv.Must(gitserver.Git(t.Context(), dir, "", args...))(t)
	}
	git("init", "-q", ".")
	testenv.Must(0, os.WriteFile(filepath.Join(dir, ".gitattributes"), []byte("* filter=lfs\n.gitattributes !filter\n"), 0o644))(t)
	for _, path := range paths {
		pointer, _ := gitserver.LFSPointer(path)
		testenv.Must(0, os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755))(t)
		testenv.Must(0, os.WriteFile(filepath.Join(dir, path), []byte(pointer), 0o644))(t)
	}
	git("add", "-A")
	git("commit", "-q", "-m", "x")
	for _, pattern := range []string{"*.bin", "skip", "skip/", "/skip", "x/*", "x/**", "x/y", "**/y", "a.bin", "/a.bin", "x/*.bin", "**", "*", "x/y/**", "skip/*,*.dat", "s*p"} {
		t.Run(pattern, func(t *testing.T) {
			var want, got []string
			for line := range strings.Lines(git("lfs", "ls-files", "--name-only", "-X", pattern, "HEAD") + "\n") {
				if line = strings.TrimSpace(line); line != "" {
					want = append(want, line)
				}
			}
			m := &wildmatch.Matcher{}
			for _, path := range paths {
				if !anyPattern(m, splitPatterns(pattern), path) {
					got = append(got, path)
				}
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("keeps %q, git lfs keeps %q", got, want)
			}
		})
	}
}
