package checkout

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing/filemode"

	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestEntryNamesMatchGit compares the names that are refused with those that git on this machine refuses. Names that a
// file system or a tree cannot hold are refused in addition.
func TestEntryNamesMatchGit(t *testing.T) {
	t.Parallel()
	server := testenv.Must(gitserver.Start(t.TempDir()))(t)
	defer server.Close()
	const repo = "acme/names"
	testenv.Must(0, server.CreateEmpty(t.Context(), repo))(t)
	blob := testenv.Must(server.Blob(t.Context(), repo, "target"))(t)
	for _, name := range []string{
		".git", ".GIT", ".Git", "git~1", "GIT~1", ".git.", ".git ", ".git. . ", ".git::$INDEX_ALLOCATION", ".git:x", ".git :x", "git~1:x",
		`.git\x`, `a\.git`, `a\.GIT `, `a\git~1`, `a\.git\b`, `\.git`, `\\.git`, `\a\.git`, `.git\`, `\`, `a\.git:b`,
		`units\x2dcryptsetup.slice`, `a\b`, `..\x`, `\`, `a\`, `\\x`, `a\.gitx`, `.gitx\a`, `C:\x`, `\..\..\x`,
		".g\u200cit", "\u200d.git", ".gi\ufefft", ".G\u202eIT", ".git\u206f",
		".git~1", "git~2", ".git\u200c", "...", "..a", ".gitignore", "git", ".github", "a:b", "-rf", "trailing.", "con", "latin1\xe9", "a\nb",
		".gitmodules", ".GITMODULES", ".gitmodules .", ".gitmodules:$DATA", ".git\u200cmodules", "gitmodules", ".gitmodules.x",
		"gitmod~1", "GITMOD~4", "gitmod~5", "gitmod~1 .", "gitmod~11", "gi7eba~1", "GI7EB~12", "gi7~1234", "~1234567", "gi7eba~0", "gi7eba~12",
		"gi7eca~1", "gi7eba~1:x", `a\.gitmodules`, `a\gi7eba~9`, `a\.gitmodules\b`, ".gitattributes", "..", ".", "",
	} {
		for _, mode := range []filemode.FileMode{filemode.Regular, filemode.Symlink} {
			entry := gitserver.Entry{Mode: fmt.Sprintf("%o", mode), Name: name, Hash: blob}
			tree := testenv.Must(server.Tree(t.Context(), repo, entry))(t)
			_, git := server.Git(t.Context(), repo, "", "read-tree", tree)
			if ours := checkEntryName(name, mode); (ours == nil) != (git == nil) {
				t.Errorf("%q with mode %v: %v, but git says %v", name, mode, ours, git)
			}
		}
	}
	for _, name := range []string{"", "/", "a/b", "a\x00b", strings.Repeat("x", 256)} {
		if checkEntryName(name, filemode.Regular) == nil {
			t.Errorf("%q was accepted", name)
		}
	}
	if err := checkEntryName(strings.Repeat("x", 255), filemode.Regular); err != nil {
		t.Error(err)
	}
}

// FuzzEntryName checks that accepted names are safe to create.
func FuzzEntryName(f *testing.F) {
	for _, seed := range []string{"a", "..", ".git", ".g\u200cit", "a/b", "\xff", ".git ::$DATA"} {
		f.Add(seed)
	}
	root := f.TempDir()
	f.Fuzz(func(t *testing.T, name string) {
		if checkEntryName(name, filemode.Regular) != nil {
			return
		}
		if !filepath.IsLocal(name) || filepath.Base(name) != name || strings.EqualFold(name, ".git") {
			t.Fatalf("%q was accepted", name)
		}
		path := filepath.Join(root, name)
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatalf("%q was accepted, but: %v", name, err)
		}
		testenv.Must(0, os.Remove(path))(t)
	})
}
