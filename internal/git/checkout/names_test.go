package checkout

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing/filemode"

	"lockstep/internal/testenv"
)

func TestEntryNames(t *testing.T) {
	for name, refused := range map[string]bool{
		"": true, ".": true, "..": true, "a/b": true, "/": true, "a\\b": true, "..\\x": true, "a\x00b": true,
		".git": true, ".GIT": true, ".Git": true, "git~1": true, "GIT~1": true,
		".git.": true, ".git ": true, ".git. . ": true, ".git::$INDEX_ALLOCATION": true, ".git:x": true, "git~1:x": true,
		".g\u200cit": true, "\u200d.git": true, ".gi\ufefft": true, ".G\u202eIT": true, ".git\u206f": true,
		strings.Repeat("x", 256): true,

		"...": false, "..a": false, ".gitignore": false, ".gitmodules": false, ".gitattributes": false, "git": false,
		".git~1": false, "git~2": false, ".github": false, "a b": false, "ünïcode": false, "latin1\xe9": false,
		"a:b": false, "-rf": false, "\u200c": false, strings.Repeat("x", 255): false, "trailing.": false,
	} {
		if err := checkEntryName(name, filemode.Regular); (err != nil) != refused {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{".gitmodules", ".GITMODULES", ".gitmodules .", ".git\u200cmodules", "gitmod~1"} {
		if checkEntryName(name, filemode.Symlink) == nil {
			t.Errorf("a symbolic link %q", name)
		}
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
