package volume

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestHostileTrees syncs trees that Git itself would not create.
func TestHostileTrees(t *testing.T) {
	t.Parallel()
	// Hash is the name of an object here; commitRaw replaces it with the object's hash.
	file := func(name string) gitserver.Entry { return gitserver.Entry{Mode: "100644", Name: name, Hash: "file"} }
	link := func(name string) gitserver.Entry { return gitserver.Entry{Mode: "120000", Name: name, Hash: "link"} }
	folder := func(name string) gitserver.Entry { return gitserver.Entry{Mode: "40000", Name: name, Hash: "folder"} }
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	w.sync("")
	objects := w.rawObjects()
	for name, tree := range map[string][]gitserver.Entry{
		"dot dot":               {file("..")},
		"dot dot folder":        {folder("..")},
		"dot git":               {folder(".git")},
		"dot GIT":               {folder(".GIT")},
		"short name":            {folder("git~1")},
		"a slash":               {file("../evil")},
		"absolute":              {file("/tmp/evil")},
		"dot git after slash":   {file("a\\.git")},
		"twins":                 {file("a"), file("a")},
		"link and folder twins": {link("a"), folder("a")},
		"gitmodules link":       {link(".gitmodules")},
		"below a folder":        {{Mode: "40000", Name: "deep", Hash: "escape"}},
		"endless link":          {{Mode: "120000", Name: "a", Hash: "long"}},
		"empty link":            {{Mode: "120000", Name: "a", Hash: "empty"}},
	} {
		t.Run(name, func(t *testing.T) {
			w.commitRaw(tree, objects)

			_, err := w.trySync("")

			testenv.MustFail(t, err, events.ClassHostile, events.Permanent)
			w.mustBeSound(widgets, commit)
			mustBeTidy(t, w)
			w.mustHoldNothingHostile()
		})
	}
}

// TestPathTooLongBelowTheRoot syncs a path that Linux allows, but not together with the root's: git writes it relative to its work tree.
func TestPathTooLongBelowTheRoot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	w.sync("")
	w.push(map[string]string{strings.Repeat(strings.Repeat("n", 250)+"/", 16) + strings.Repeat("f", 75): "2"})

	_, err := w.trySync("")

	testenv.MustFail(t, err, events.ClassHostile, events.Permanent)
	if len(err.Error()) > 300 {
		t.Errorf("the error has %d bytes: %.300s", len(err.Error()), err)
	}
	w.mustBeSound(widgets, commit)
	mustBeTidy(t, w)
}

// TestBackslashInNames syncs a repository that git on Linux clones: systemd has such a name.
func TestBackslashInNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const slice = `units/system-systemd\x2dcryptsetup.slice`
	files := map[string]string{slice: "1", `..\x`: "2", `a\b/c`: "3"}
	w.create(map[string]string{"a": "1"})
	w.sync("")
	w.push(files)
	commit := w.push(map[string]string{slice: "2"})
	files["a"], files[slice] = "1", "2"
	clone := t.TempDir()
	testenv.Must(gitserver.Git(t.Context(), clone, "", "clone", "-q", w.git.URL(widgets), "."))(t)

	res := w.sync("")

	w.mustBeSound(widgets, commit)
	w.mustRead(widgets, files)
	if want := readTree(t, clone); !maps.Equal(want, files) {
		t.Errorf("git clones %v", want)
	}
	if i := slices.IndexFunc(res.Files, func(f events.File) bool { return f.Path == slice }); i < 0 {
		t.Errorf("the result lists %+v", res.Files)
	}
}

// rawObjects writes objects for commitRaw and returns their hashes by name.
func (w *world) rawObjects() map[string]string {
	w.t.Helper()
	objects := map[string]string{}
	for name, content := range map[string]string{"file": "evil", "link": w.volume.Root(), "long": strings.Repeat("x", 5000), "empty": ""} {
		objects[name] = testenv.Must(w.git.Blob(w.t.Context(), widgets, content))(w.t)
	}
	for name, entry := range map[string]string{"folder": "x", "escape": ".."} {
		objects[name] = testenv.Must(w.git.Tree(w.t.Context(), widgets, gitserver.Entry{Mode: "100644", Name: entry, Hash: objects["file"]}))(w.t)
	}
	return objects
}

// commitRaw commits a tree whose entries have names of objects instead of hashes.
func (w *world) commitRaw(entries []gitserver.Entry, objects map[string]string) {
	w.t.Helper()
	raw := slices.Clone(entries)
	for i := range raw {
		raw[i].Hash = objects[raw[i].Hash]
	}
	tree := testenv.Must(w.git.Tree(w.t.Context(), widgets, raw...))(w.t)
	testenv.Must(w.git.CommitTree(w.t.Context(), widgets, gitserver.Main, tree))(w.t)
}

func (w *world) mustHoldNothingHostile() {
	w.t.Helper()
	for _, name := range testenv.Must(filepath.Glob(w.path("*")))(w.t) {
		if base := filepath.Base(name); base != "acme" && base != adminDir {
			w.t.Errorf("planted: %s", name)
		}
	}
}

func TestLargeBlobIsStreamedAndChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	large := strings.Repeat("0123456789abcdef", 1<<18) // 4 MiB
	w.create(map[string]string{"large": large, "small": "1"})
	w.sync("")
	commit := w.push(map[string]string{"large": large + "more", "other": large})
	w.sync("")
	w.mustBeSound(widgets, commit)
	w.mustRead(widgets, map[string]string{"large": large + "more", "small": "1", "other": large})
}

// TestTooLongPathsAreRefused nests folders with long names: a pack of a few kilobytes could expand a
// million files at this depth to gigabytes of paths.
func TestTooLongPathsAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	w.sync("")
	entry := gitserver.Entry{Mode: "100644", Name: "file", Hash: testenv.Must(w.git.Blob(t.Context(), widgets, "x"))(t)}
	for range 17 {
		tree := testenv.Must(w.git.Tree(t.Context(), widgets, entry))(t)
		entry = gitserver.Entry{Mode: "40000", Name: strings.Repeat("d", 250), Hash: tree}
	}
	tree := testenv.Must(w.git.Tree(t.Context(), widgets, entry))(t)
	testenv.Must(w.git.CommitTree(t.Context(), widgets, gitserver.Main, tree))(t)

	_, err := w.trySync("")

	testenv.MustFail(t, err, events.ClassHostile, events.Permanent)
	w.mustBeSound(widgets, commit)
}

func TestTooDeepFoldersAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{strings.Repeat("d/", 256) + "file": "1"})
	w.sync("")
	w.push(map[string]string{strings.Repeat("d/", 257) + "file": "1"})
	_, err := w.trySync("")
	testenv.MustFail(t, err, events.ClassHostile, events.Permanent)
	w.mustBeSound(widgets, commit)
}

func TestTooLargeCommitIsRefused(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.SkipUnderRace(t)
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	w.sync("")
	w.commit(gitserver.Main, gitserver.Edit{Message: strings.Repeat("x", 64<<20)})
	fetched := w.git.Stats(widgets).UploadPacks

	_, err := w.trySync("")

	testenv.MustFail(t, err, events.ClassQuota, events.Permanent)
	if n := w.git.Stats(widgets).UploadPacks - fetched; n != 1 {
		t.Errorf("fetched %d times", n)
	}
	w.mustBeSound(widgets, commit)
}

// TestOddModes syncs entries with modes that Git still reads but no longer writes.
func TestOddModes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	for _, mode := range []string{"100664", "100600", "100755", "100777", "0100644", "0", "20000", "60000", "10644", "777777", "40755", "160001"} {
		t.Run(mode, func(t *testing.T) {
			entry := gitserver.Entry{Mode: mode, Name: "odd", Hash: testenv.Must(w.git.Blob(t.Context(), widgets, "x"))(t)}
			if mode == "40755" {
				entry.Hash = testenv.Must(w.git.Tree(t.Context(), widgets, gitserver.Entry{Mode: "100664", Name: "b", Hash: entry.Hash}))(t)
			}
			tree := testenv.Must(w.git.Tree(t.Context(), widgets, entry))(t)
			commit := testenv.Must(w.git.CommitTree(t.Context(), widgets, gitserver.Main, tree))(t)

			_, err := w.trySync("")

			if err != nil {
				testenv.MustFail(t, err, events.ClassHostile, events.Permanent)
				return
			}
			if got := w.gitIn(widgets, "status", "--porcelain"); got != "" {
				t.Errorf("git status is not clean:\n%s", got)
			}
			if got := w.gitIn(widgets, "log", "-1", "--format=%H"); got != commit {
				t.Errorf("published %s", got)
			}
		})
	}
}

func TestLinksOutOfTheTree(t *testing.T) {
	t.Parallel()
	links := map[string]string{
		"in": "dir/file", "up": "../x", "dir/up": "../../x", "abs": "/etc/passwd", "git": ".git/config", "dir/fine": "../file",
		"p": ".", "passwd": strings.Repeat("p/", 12) + strings.Repeat("../", 12) + "etc/passwd", "config": "p/.git/config",
		"chain": "config", "chain2": "p/chain", "beyond": "dir/up/x", "parent": "p/..", "dropped": "deep/../../x",
		"bin/tool": "../lib/node_modules/tool/cli.js", "lib/node_modules": "modules", "lib/modules/tool/index.js": "cli.js",
		"lib/modules/tool/self": ".", "deep": "lib/modules/tool", "bin/mate": "../deep/self/index.js", "loop": "loop", "a": "b", "b": "a",
		"to/loop": "../loop/x", "dangling": "nowhere/at/all", "module": "sub/x", "git/not": "../dir/.git/config",
	}
	outside := map[string]bool{
		"up": true, "dir/up": true, "abs": true, "git": true, "passwd": true, "config": true, "chain": true, "chain2": true, "beyond": true,
		"parent": true, "dropped": true,
	}
	delete(links, "git/not") // git is a link
	links["dir/sub"] = "../dir/.git/config"
	for _, policy := range []checkout.LinkPolicy{checkout.LinksKeep, checkout.LinksSkip, checkout.LinksRefuse} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.volume = w.open(t.TempDir(), Config{Links: policy, Grace: 1})
			w.create(map[string]string{"file": "1", "lib/modules/tool/cli.js": "x"})
			w.commit(gitserver.Main, gitserver.Edit{Link: links, Submodule: map[string]string{"sub": anID("aa")}})
			res, err := w.trySync("")
			if policy == checkout.LinksRefuse {
				testenv.MustFail(t, err, events.ClassHostile, events.Permanent)
				mustBeTidy(t, w)
				return
			}
			testenv.Must(0, err)(t)
			for _, file := range res.Files {
				if file.Outside != outside[file.Path] {
					t.Errorf("%s is marked %v", file.Path, file.Outside)
				}
			}
			for i := range 4 { // linked and prepared trees
				for path := range links {
					if _, err := os.Lstat(w.path(widgets, path)); (err == nil) != (policy == checkout.LinksKeep || !outside[path]) {
						t.Errorf("%s: %v", path, err)
					}
				}
				w.push(map[string]string{"file": fmt.Sprint(i)})
				if w.sync(""); i > 0 {
					w.prepare()
				}
			}
		})
	}
}

// TestRenamesOfNamesThatAreNotUTF8 checks that a consumer of JSON learns the bytes of both names.
func TestRenamesOfNamesThatAreNotUTF8(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"caf\xe9": "one", "th\xe9": "two", "plain": "three"})
	w.sync("")
	w.commit(gitserver.Main, gitserver.Edit{
		Write:  map[string]string{"café": "one", "th\xe8": "two", "pl\xe0in": "three"},
		Delete: []string{"caf\xe9", "th\xe9", "plain"},
	})

	res := w.sync("")

	var files []events.File
	testenv.Must(0, json.Unmarshal(testenv.Must(json.Marshal(res.Files))(t), &files))(t)
	got := map[string]string{}
	for _, f := range files {
		name := func(text, raw string) string {
			if raw == "" {
				return text
			}
			return string(testenv.Must(base64.StdEncoding.DecodeString(raw))(t))
		}
		got[name(f.From, f.FromRaw)] = name(f.Path, f.Raw)
	}
	if want := map[string]string{"caf\xe9": "café", "th\xe9": "th\xe8", "plain": "pl\xe0in"}; !maps.Equal(got, want) {
		t.Errorf("renames %q, want %q", got, want)
	}
}
