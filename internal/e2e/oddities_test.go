package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

// oddRepositories have contents, histories and refs that are rare but that git clones.
var oddRepositories = []struct {
	name  string
	make  func(*oddRepository)
	refs  []string // to publish besides the default branch
	large bool     // only in soak tests
}{
	{name: "names", make: (*oddRepository).names},
	{name: "case", make: (*oddRepository).caseTwins},
	{name: "order", make: (*oddRepository).order},
	{name: "links", make: (*oddRepository).links},
	{name: "submodules", make: (*oddRepository).submodules},
	{name: "empty", make: (*oddRepository).empty},
	{name: "deep", make: (*oddRepository).deep},
	{name: "twins", make: (*oddRepository).twins},
	{name: "attributes", make: (*oddRepository).attributes},
	{name: "merges", make: (*oddRepository).merges},
	{name: "replaced", make: (*oddRepository).replaced},
	{name: "tags", make: (*oddRepository).tags, refs: []string{"refs/tags/light", "refs/tags/signed", "refs/tags/of-a-tag", "refs/notes/commits"}},
	{name: "branches", make: (*oddRepository).branches, refs: oddBranches},
	{name: "commits", make: (*oddRepository).commits},
	{name: "deltas", make: (*oddRepository).deltas},
	{name: "alternates", make: (*oddRepository).alternates},
	{name: "shallow", make: (*oddRepository).shallow},
	{name: "flat", make: (*oddRepository).flat, large: true},
}

// oddRepository is an empty repository to fill.
type oddRepository struct {
	*testing.T
	git    *gitserver.Server
	repo   string
	format string // of its objects
}

// id returns an object ID of a repeated digit.
func (r *oddRepository) id(digit string) string {
	if r.format == "sha256" {
		return strings.Repeat(digit, 64)
	}
	return strings.Repeat(digit, 40)
}

func (r *oddRepository) commit(edit gitserver.Edit) string {
	r.Helper()
	return proctest.Must(r.git.Commit(r.Context(), r.repo, gitserver.Main, edit))(r.T)
}

func (r *oddRepository) run(stdin string, args ...string) string {
	r.Helper()
	return proctest.Must(r.git.Git(r.Context(), r.repo, stdin, args...))(r.T)
}

func (r *oddRepository) names() {
	files := map[string]string{}
	for i, name := range []string{
		"latin1-caf\xe9", "\xff\xfe", "new\nline", "tab\there", "bell\a", "esc\x1b[31mred", `"quoted"`, "'single'", "-rf", "--help", "*", "?", "[a]",
		"$HOME", "`id`", "a b", " leading", "trailing ", "trailing.", "...", "..a", ".a", "~", "con", "nul.txt", "a:b", "a|b", "<a>", "%00", "%2F", "#a",
		"HEAD", "index", "é-nfc", "e\u0301-nfd", "👩‍👩‍👧", "\u202egnp.exe", ".gitignore", ".gitfoo", "git", "git~2", ".lockstep",
		strings.Repeat("x", 255), strings.Repeat("é", 127), "folder -\n\xe9/deep", "@", "a@b", "a%40b",
	} {
		files[name] = fmt.Sprint("file ", i)
	}
	r.commit(gitserver.Edit{Write: files})
	r.commit(gitserver.Edit{Write: map[string]string{"new\nline": "changed", "\xff\xfe": "changed"}, Delete: []string{"-rf", "latin1-caf\xe9"}})
	r.commit(gitserver.Edit{Write: map[string]string{"latin1-caf\xe8": files["latin1-caf\xe9"]}}) // a rename
}

func (r *oddRepository) caseTwins() {
	r.commit(gitserver.Edit{Write: map[string]string{"readme": "1", "README": "2", "ReadMe": "3", "src/a": "4", "SRC/a": "5", "Src/A": "6"}})
	r.commit(gitserver.Edit{Write: map[string]string{"README": "7"}, Delete: []string{"readme", "SRC"}})
	r.commit(gitserver.Edit{Write: map[string]string{"rEADME": "2"}, Delete: []string{"README"}})
}

// order has names whose order in a tree depends on whether they are folders.
func (r *oddRepository) order() {
	r.commit(gitserver.Edit{Write: map[string]string{"a": "1", "a-b": "2", "a.b": "3", "a0": "4"}})
	r.commit(gitserver.Edit{Write: map[string]string{"a/x": "5"}, Delete: []string{"a"}})
	r.commit(gitserver.Edit{Write: map[string]string{"a-b/x": "6", "a.b/x": "7", "a": "8"}, Delete: []string{"a", "a-b", "a.b"}})
	r.commit(gitserver.Edit{Write: map[string]string{"a/x/y": "5", "a0/x": "4"}, Delete: []string{"a", "a0"}})
}

func (r *oddRepository) links() {
	r.commit(gitserver.Edit{Write: map[string]string{"folder/file": "1", "real": "2"}, Link: map[string]string{
		"to-folder": "folder", "to-file": "folder/file", "dangling": "nowhere", "absolute": "/etc/passwd", "up": "../../../etc/passwd", "here": ".",
		"self": "self", "loop-a": "loop-b", "loop-b": "loop-a", "through": "to-folder/file", "newline": "a\nb", "latin1": "caf\xe9", "slash": "folder/",
		"long": strings.Repeat("long/", 800), "git": ".git/config", "folder/up": "..", "backslash": `a\b`,
	}})
	r.commit(gitserver.Edit{Link: map[string]string{"dangling": "real"}, Write: map[string]string{"to-folder/file": "3"}, Delete: []string{"to-folder", "self"}})
	r.commit(gitserver.Edit{Link: map[string]string{"folder": "to-folder"}, Delete: []string{"folder"}})
	r.commit(gitserver.Edit{Write: map[string]string{"folder/file": "1"}, Link: map[string]string{"to-folder": "folder"}, Delete: []string{"folder", "to-folder"}})
}

func (r *oddRepository) submodules() {
	one, other := r.id("1"), r.id("2")
	modules := "[submodule \"sub\"]\n\tpath = sub\n\turl = ../nowhere\n"
	r.commit(gitserver.Edit{Write: map[string]string{".gitmodules": modules, "a": "1"}, Submodule: map[string]string{"sub": one, "deep/er/sub": one, "unlisted": one}})
	r.commit(gitserver.Edit{Submodule: map[string]string{"sub": other}})
	r.commit(gitserver.Edit{Write: map[string]string{"sub": "a file"}, Delete: []string{"sub", "deep"}})
	r.commit(gitserver.Edit{Submodule: map[string]string{"sub": one, "a": other}, Delete: []string{"sub", "a"}})
	r.commit(gitserver.Edit{Write: map[string]string{"sub/a": "in a folder", "a/b": "too"}, Delete: []string{"sub", "a", "unlisted"}})
	r.commit(gitserver.Edit{Link: map[string]string{"sub": "a"}, Delete: []string{"sub"}})
}

// empty has empty files, an entry that is an empty folder, and commits without any entry.
func (r *oddRepository) empty() {
	r.commit(gitserver.Edit{})
	r.commit(gitserver.Edit{Write: map[string]string{"empty": "", "folder/empty": "", "a": "1"}})
	none := proctest.Must(r.git.Tree(r.Context(), r.repo))(r.T)
	blob := proctest.Must(r.git.Blob(r.Context(), r.repo, "2"))(r.T)
	inner := proctest.Must(r.git.Tree(r.Context(), r.repo, gitserver.Entry{Mode: "40000", Name: "none", Hash: none}))(r.T)
	r.rawTree(gitserver.Entry{Mode: "100644", Name: "a", Hash: blob}, gitserver.Entry{Mode: "40000", Name: "hollow", Hash: inner},
		gitserver.Entry{Mode: "40000", Name: "none", Hash: none})
	r.rawTree(gitserver.Entry{Mode: "100644", Name: "a", Hash: blob}, gitserver.Entry{Mode: "40000", Name: "none", Hash: inner})
	r.commit(gitserver.Edit{Delete: []string{"a", "hollow", "none"}})
	r.commit(gitserver.Edit{Write: map[string]string{"none": "a file"}})
}

// rawTree commits a tree of exactly these entries.
func (r *oddRepository) rawTree(entries ...gitserver.Entry) {
	r.Helper()
	tree := proctest.Must(r.git.Tree(r.Context(), r.repo, entries...))(r.T)
	args := []string{"commit-tree", "-m", "Raw tree", tree}
	if parent := r.git.Head(r.repo, "refs/heads/"+gitserver.Main); parent != "" {
		args = append(args, "-p", parent)
	}
	r.run("", "update-ref", "refs/heads/"+gitserver.Main, r.run("", args...))
}

// deep nests 100 folders, and has paths nearly as long as Linux allows below a test's folder.
func (r *oddRepository) deep() {
	nested := strings.Repeat("d/", 100)
	long := strings.Repeat(strings.Repeat("n", 250)+"/", 14)
	r.commit(gitserver.Edit{Write: map[string]string{nested + "file": "1", nested + "other": "2", long + "file": "3"}})
	r.commit(gitserver.Edit{Write: map[string]string{nested + "file": "4", long + "file": "5"}})
	r.commit(gitserver.Edit{Write: map[string]string{nested[:100] + "file": "6", "n": "7"}, Delete: []string{nested[:101], long[:250]}})
}

// twins has one content in many files, some of them executable, and links to the same text.
func (r *oddRepository) twins() {
	write, exec, link := map[string]string{}, map[string]string{}, map[string]string{}
	for i := range 300 {
		write[fmt.Sprintf("f%d/plain", i)], exec[fmt.Sprintf("f%d/run", i)], link[fmt.Sprintf("f%d/link", i)] = "same", "same", "same"
	}
	r.commit(gitserver.Edit{Write: write, Exec: exec, Link: link})
	r.commit(gitserver.Edit{Write: map[string]string{"f7/run": "same"}, Exec: map[string]string{"f8/plain": "same"}, Delete: []string{"f9"}})
}

// attributes asks git to change contents on checkout, and has line ends of all kinds and LFS pointers.
func (r *oddRepository) attributes() {
	pointer := "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("ab", 32) + "\nsize 12345\n"
	r.commit(gitserver.Edit{Write: map[string]string{
		".gitattributes": "*.crlf text eol=crlf\n*.auto text=auto\n*.id ident\n*.u16 text working-tree-encoding=UTF-16\n*.bin filter=lfs diff=lfs merge=lfs -text\n" +
			"*.sub export-subst\nsecret export-ignore\n*.raw binary\n",
		".lfsconfig": "[lfs]\n\turl = http://127.0.0.1:1/\n", "a.crlf": "1\n2\n", "b.crlf": "1\r\n2\r\n", "c.auto": "1\r\n2\n3\r", "d.id": "$Id$ $Id: abc $\n",
		"e.u16": "text\n", "f.bin": pointer, "g.sub": "$Format:%H$\n", "secret": "1", "h.raw": "\x00\r\n\n", "folder/.gitattributes": "* eol=crlf\n", "folder/i": "1\n",
	}})
	r.commit(gitserver.Edit{Write: map[string]string{"folder/i": "1\n2\n", "d.id": "$Id: x $\n", ".gitattributes": "* text=auto eol=crlf ident\n"}})
}

// merges has merges of two and of nine parents.
func (r *oddRepository) merges() {
	base := r.commit(gitserver.Edit{Write: map[string]string{"base": "1"}})
	tips := []string{}
	for i := range 8 {
		tips = append(tips, proctest.Must(r.git.Commit(r.Context(), r.repo, fmt.Sprint("side-", i), gitserver.Edit{Parent: base, Write: map[string]string{fmt.Sprint("f", i): "1"}}))(r.T))
	}
	tip := r.commit(gitserver.Edit{Write: map[string]string{"main": "1"}})
	args := []string{"commit-tree", "-m", "Octopus", "-p", tip}
	for _, side := range tips {
		args = append(args, "-p", side)
	}
	r.run("", "update-ref", "refs/heads/"+gitserver.Main, r.run("", append(args, tips[3]+"^{tree}")...))
	r.commit(gitserver.Edit{Write: map[string]string{"after": "1"}})
}

// replaced has replace refs and a graft, which only clients that ask for them see.
func (r *oddRepository) replaced() {
	first := r.commit(gitserver.Edit{Write: map[string]string{"a": "1"}})
	second := r.commit(gitserver.Edit{Write: map[string]string{"a": "2"}})
	third := r.commit(gitserver.Edit{Write: map[string]string{"a": "3"}})
	blob := r.run("", "rev-parse", third+":a")
	r.run("", "replace", blob, r.run("", "rev-parse", first+":a"))
	r.run("", "replace", third, first)
	r.run("", "notes", "add", "-m", "a note", second)
	grafts := filepath.Join(r.git.Dir(r.repo), "info/grafts")
	proctest.Must(0, os.MkdirAll(filepath.Dir(grafts), 0o755))(r.T)
	proctest.Must(0, os.WriteFile(grafts, []byte(third+"\n"), 0o600))(r.T)
}

// tags has tags of commits and of tags, one with a signature, and notes.
func (r *oddRepository) tags() {
	commit := r.commit(gitserver.Edit{Write: map[string]string{"a": "1"}})
	tag := func(object, kind, name, message string) string {
		text := fmt.Sprintf("object %s\ntype %s\ntag %s\ntagger A <a@example.com> 1700000000 +0000\n\n%s", object, kind, name, message)
		hash := r.run(text, "hash-object", "-t", "tag", "-w", "--stdin", "--literally")
		r.run("", "update-ref", "refs/tags/"+name, hash)
		return hash
	}
	r.run("", "update-ref", "refs/tags/light", commit)
	signed := tag(commit, "commit", "signed", "Signed\n-----BEGIN PGP SIGNATURE-----\n\nAAAA\n-----END PGP SIGNATURE-----\n")
	tag(tag(signed, "tag", "of-signed", "no line end"), "tag", "of-a-tag", "")
	r.commit(gitserver.Edit{Write: map[string]string{"a": "2"}})
	r.run("", "notes", "add", "-m", "a note", commit)
}

var oddBranches = []string{
	"refs/heads/a/b/c", "refs/heads/-x", "refs/heads/ümläut", "refs/heads/a'b\"c", "refs/heads/100%", "refs/heads/a%2Fb", "refs/heads/#1", "refs/heads/a@b", "refs/heads/@x",
	"refs/heads/HEAD", "refs/heads/$(id)", "refs/heads/a;b&c|d", "refs/heads/{a,b}", "refs/heads/👍", "refs/heads/refs/heads/a", "refs/heads/a,b", "refs/heads/(x)", "refs/pull/1/head",
	"refs/heads/" + strings.Repeat("long/", 80) + "x", "refs/heads/" + strings.Repeat("é", 120),
}

func (r *oddRepository) branches() {
	first := r.commit(gitserver.Edit{Write: map[string]string{"a": "1"}})
	for i, name := range oddBranches {
		tree := proctest.Must(r.git.Tree(r.Context(), r.repo, gitserver.Entry{Mode: "100644", Name: "a", Hash: r.run(fmt.Sprint("branch ", i), "hash-object", "-w", "--stdin")}))(r.T)
		r.run("", "update-ref", name, r.run("", "commit-tree", "-m", "Branch", "-p", first, tree))
	}
}

// commits has headers, encodings, dates and names that current Git would not write.
func (r *oddRepository) commits() {
	r.commit(gitserver.Edit{Write: map[string]string{"a": "0"}})
	for i, header := range []string{
		"author A <a@example.com> 1700000000 +0000\ncommitter C <c@example.com> 1700000000 +0000\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n AAAA\n -----END PGP SIGNATURE-----\nx-unknown value\n continued\nHG:extra branch:default\n\nsigned\n",
		"author A <a@example.com> 1700000000 +9999\ncommitter C <c@example.com> 1700000000 -7512\n\ntimezones\n",
		"author A <a@example.com> 1700000000 -0000\ncommitter C <c@example.com> 1700000000 +051800\nencoding no-such-encoding\n\ncaf\xe9\n",
		"author  <> 0 +0000\ncommitter  <> 0 +0000\n\n",
		"author A <a@example.com> 99999999999999999999 +0000\ncommitter C <c@example.com> -1 +0000\n\nno line end",
		"author A <<a@example.com>> 1700000000\ncommitter C\n\nbroken names\n",
		"author A <a> 1700000000 +0000\ncommitter C <c> 1700000000 +0000\nmergetag object " + r.id("1") + "\n type commit\n tag x\n tagger T <t> 1 +0000\n \n m\nencoding ISO-8859-1\n\nNUL \x00 in it\n",
		"author A <a> 1700000000 +0000\nauthor B <b> 1700000000 +0000\ncommitter C <c> 1700000000 +0000\n\n" + strings.Repeat("long ", 200_000) + "\n",
	} {
		blob := proctest.Must(r.git.Blob(r.Context(), r.repo, fmt.Sprint(i+1)))(r.T)
		tree := proctest.Must(r.git.Tree(r.Context(), r.repo, gitserver.Entry{Mode: "100644", Name: "a", Hash: blob}))(r.T)
		text := fmt.Sprintf("tree %s\nparent %s\n%s", tree, r.git.Head(r.repo, "refs/heads/"+gitserver.Main), header)
		r.run("", "update-ref", "refs/heads/"+gitserver.Main, r.run(text, "hash-object", "-t", "commit", "-w", "--stdin", "--literally"))
	}
}

// deltas has long chains of deltas within a commit and between commits.
func (r *oddRepository) deltas() {
	var text bytes.Buffer
	for i := range testenv.Soak(500, 3000) {
		fmt.Fprintf(&text, "line %d of a text that repeats itself\n", i*7919%3000)
	}
	for push := range testenv.Soak(4, 12) {
		files := map[string]string{}
		for i := range 80 {
			fmt.Fprintf(&text, "push %d, file %d\n", push, i)
			files[fmt.Sprintf("versions/file-%03d", i)] = text.String()
		}
		r.commit(gitserver.Edit{Write: files})
	}
	r.run("", "repack", "-adfq", "--depth=50", "--window=80")
}

// alternates has its objects in another repository, as forks on a forge have.
func (r *oddRepository) alternates() {
	r.commit(gitserver.Edit{Write: map[string]string{"a": "1"}})
	r.commit(gitserver.Edit{Write: map[string]string{"a": "2"}})
	pool := filepath.Join(r.TempDir(), "objects")
	objects := filepath.Join(r.git.Dir(r.repo), "objects")
	proctest.Must(0, os.Rename(objects, pool))(r.T)
	proctest.Must(0, os.MkdirAll(filepath.Join(objects, "info"), 0o755))(r.T)
	proctest.Must(0, os.WriteFile(filepath.Join(objects, "info/alternates"), []byte("# a comment\n"+pool+"\n"), 0o600))(r.T)
	r.commit(gitserver.Edit{Write: map[string]string{"a": "3"}})
}

// shallow is itself a clone with a part of the history.
func (r *oddRepository) shallow() {
	for i := range 5 {
		r.commit(gitserver.Edit{Write: map[string]string{"a": fmt.Sprint(i), fmt.Sprint("f", i): "1"}})
	}
	boundary := r.run("", "rev-parse", "HEAD~2")
	proctest.Must(0, os.WriteFile(filepath.Join(r.git.Dir(r.repo), "shallow"), []byte(boundary+"\n"), 0o600))(r.T)
	r.run("", "-c", "gc.pruneExpire=now", "gc", "--quiet", "--prune=now")
}

// flat has 30,000 files in one folder.
func (r *oddRepository) flat() {
	files := make(map[string]string, 30_000)
	for i := range 30_000 {
		files[fmt.Sprintf("flat/%05d", i)] = fmt.Sprint("file ", i)
	}
	r.commit(gitserver.Edit{Write: files})
	r.commit(gitserver.Edit{Write: map[string]string{"flat/12345": "changed", "flat/new": "1"}, Delete: []string{"flat/00000"}})
}
