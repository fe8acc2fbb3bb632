package disk

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLinkReplacesOnlyLinks(t *testing.T) {
	root := t.TempDir()
	write := func(name string) string {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first, second := write("real/a/first"), write("real/b/second")
	if err := os.Symlink("real", filepath.Join(root, "alias")); err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{filepath.Join(root, "new/folder/link"), filepath.Join(root, "alias/link")} {
		for _, path := range []string{first, first, second} {
			if err := Link(path, link); err != nil {
				t.Fatal(err)
			}
			if text, _ := os.ReadFile(link); string(text) != path[len(root)+1:] {
				t.Errorf("%s leads to %q, not to %s", link, text, path)
			}
			if target, _ := os.Readlink(link); filepath.IsAbs(target) {
				t.Errorf("%s has the target %s", link, target)
			}
		}
	}
	file := write("file")
	for _, taken := range []string{file, filepath.Join(root, "real")} {
		if err := Link(first, taken); err == nil {
			t.Errorf("%s was replaced", taken)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(root, "*", "*"+TempInfix+"*")); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}
