package checkout

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"lockstep/events"
	"lockstep/internal/git/object"
	"lockstep/internal/testenv"
)

// FuzzTreeEntries checks out trees whose entries have arbitrary names and modes, at the top and in a folder. No file
// may appear outside the tree or be .git on some file system; a refusal must be permanent.
func FuzzTreeEntries(f *testing.F) {
	for _, name := range []string{
		"a", "..", ".", "", "/", "a/b", "../x", "/etc", ".git", ".GIT", "git~1", ".git ", ".g\u200cit", "a\\b", "..\\x",
		".gitmodules", "latin1\xe9", "a\nb", strings.Repeat("x", 256), strings.Repeat("x", 255), "-rf", "con", "a:b",
	} {
		for _, mode := range []string{"100644", "100755", "120000", "160000", "40000", "100664", "0", "170000"} {
			f.Add(name, mode, "target")
		}
	}
	f.Add("link", "120000", "../../etc/passwd")
	f.Add("link", "120000", "a\x00b")
	f.Fuzz(func(t *testing.T, name, mode, content string) {
		dir := t.TempDir()
		bare, dst := filepath.Join(dir, "bare"), filepath.Join(dir, "in", "tree")
		storage := filesystem.NewStorage(osfs.New(bare), cache.NewObjectLRUDefault())
		put := func(kind plumbing.ObjectType, raw []byte) object.ID {
			obj := storage.NewEncodedObject()
			obj.SetType(kind)
			obj.SetSize(int64(len(raw)))
			writer := testenv.Must(obj.Writer())(t)
			testenv.Must(writer.Write(raw))(t)
			testenv.Must(0, writer.Close())(t)
			hash := testenv.Must(storage.SetEncodedObject(obj))(t)
			return object.IDOf(hash[:])
		}
		blob := put(plumbing.BlobObject, []byte(content))
		hash := blob
		if mode == "40000" {
			hash = put(plumbing.TreeObject, rawEntry("100644", "inside", blob))
		}
		hostile := rawEntry(mode, name, hash)
		below := put(plumbing.TreeObject, hostile)
		root := put(plumbing.TreeObject, bytes.Join([][]byte{hostile, rawEntry("40000", "zfolder", below)}, nil))

		objects := object.Open(bare)
		defer objects.Close()
		err := checkOutTree(t, objects, root, dst)
		if err != nil && events.DispositionOf(err) != events.Permanent && events.ClassOf(err) != events.ClassCorrupt {
			t.Errorf("refused, but retryable: %v", err)
		}
		mustStayInside(t, dir, dst)
	})
}

func rawEntry(mode, name string, hash object.ID) []byte {
	return append([]byte(fmt.Sprintf("%s %s\x00", mode, name)), hash.Bytes()...)
}

// checkOutTree plans and builds a tree, as a sync does.
func checkOutTree(t *testing.T, objects *object.Store, root object.ID, dst string) (err error) {
	defer object.RecoverCorrupt(&err)
	found, err := differences(t.Context(), objects, object.ZeroID, root, 1000)
	if err != nil {
		return err
	}
	p := &Plan{tree: root, changed: found}
	if err := p.check(objects, 1000); err != nil {
		return err
	}
	testenv.Must(0, os.MkdirAll(dst, 0o755))(t)
	b := &builder{writer: writer{objects: objects, links: LinksKeep}, maxBytes: 1 << 20, items: testenv.Must(p.Items())(t), count: func(int64) {}}
	_, _, err = b.build(t.Context(), dst, "")
	return err
}

func mustStayInside(t *testing.T, dir, dst string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == filepath.Join(dir, "bare") {
			return fs.SkipDir
		}
		if rel, inside := strings.CutPrefix(path, dst+"/"); inside {
			if name := filepath.Base(rel); isDotGit(name) {
				t.Errorf("%q was checked out", rel)
			}
			return nil
		}
		if !strings.HasPrefix(dst, path) {
			t.Errorf("%q is outside the tree", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
