package serve

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/internal/git/object"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestLostBase fetches a new version of a file whose former one the client has, but the store no longer.
func TestLostBase(t *testing.T) {
	w := newWorld(t, nil)
	lines := strings.Repeat("a line of text\n", 100)
	first := testenv.Must(w.forge.Create(t.Context(), widgets, map[string]string{"a": lines}))(t)
	clone := filepath.Join(t.TempDir(), "clone")
	w.git("/", "clone", "-q", "--mirror", w.url(widgets), clone)
	testenv.Must(w.forge.Commit(t.Context(), widgets, "main", gitserver.Edit{Write: map[string]string{"a": lines + "2"}}))(t)
	blob := w.git(w.forge.Dir(widgets), "rev-parse", first+":a")
	testenv.Must(0, os.Remove(filepath.Join(w.forge.Dir(widgets), "objects", blob[:2], blob[2:])))(t)
	w.git(clone, "fetch", "-q", "origin")
	w.contents(clone)
}

// TestSubmoduleID fetches a file whose ID the client's submodule at the same path has. The client lacks the file.
func TestSubmoduleID(t *testing.T) {
	w := newWorld(t, nil)
	testenv.Must(w.forge.Create(t.Context(), widgets, map[string]string{"a": "1"}))(t)
	store := w.forge.Dir(widgets)
	git := func(stdin string, args ...string) string {
		t.Helper()
		return strings.TrimSpace(testenv.Must(gitserver.Git(t.Context(), store, stdin, args...))(t))
	}
	blob := git("a file", "hash-object", "--stdin") // mktree would find that a stored one is no commit
	push := func(parent, mode, kind string) string {
		tree := git(mode+" "+kind+" "+blob+"\tx\n", "mktree", "--missing")
		commit := git("", "-c", "user.name=A", "-c", "user.email=a@b", "commit-tree", "-m", mode, "-p", parent, tree)
		git("", "update-ref", "refs/heads/main", commit)
		return commit
	}
	first := push("main", "160000", "commit")
	clone := filepath.Join(t.TempDir(), "clone")
	w.git("/", "clone", "-q", "--mirror", w.url(widgets), clone)
	git("a file", "hash-object", "-w", "--stdin")
	push(first, "100644", "blob")
	w.git(clone, "fetch", "-q", "origin")
	w.contents(clone)
}

// TestManyRemoved fetches many versions of a folder from which much was removed before: memory does not grow with each.
func TestManyRemoved(t *testing.T) {
	w := &treeWalk{}
	for range 3 {
		w.noteRemoved([]counterpart{{held: true, entries: make([]object.TreeEntry, searchEntries/2+1)}})
	}
	if len(w.removed) != searchEntries {
		t.Errorf("%d entries are kept", len(w.removed))
	}
}
