package tree_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"lockstep/events"
	"lockstep/tree"
)

// volume creates a volume with acme/widgets, like a worker.
func volume() (root string, synced events.Result, cleanup func()) {
	root, err := os.MkdirTemp("", "example-")
	if err != nil {
		panic(err)
	}
	head := strings.Repeat("a", 40)
	synced, err = events.ParseResult([]byte(`{"specversion":"1.0","id":"push-1/1-0","source":"/lockstep/worker/w1","type":"lockstep.result.synced.v1",
		"subject":"acme/widgets","time":"2026-11-21T12:00:00Z","datacontenttype":"application/json","data":{"repo":"acme/widgets",
		"ref":"refs/heads/main","after":"` + head + `","path":"acme/widgets","tree":".lockstep/repos/acme/widgets/trees/1-aaaaaaaaaaaa","fence":1,
		"files":[{"path":"README","status":"added"}]}}`))
	if err != nil {
		panic(err)
	}
	dir := filepath.Join(root, synced.Tree)
	for name, content := range map[string]string{"README": "hello\n", ".git/lockstep-commit": head, ".git/lockstep-ref": "refs/heads/main", ".git/lockstep-pin": ""} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			panic(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(root, "acme"), 0o755), os.Symlink("../"+synced.Tree, filepath.Join(root, "acme/widgets"))); err != nil {
		panic(err)
	}
	return root, synced, func() { _ = os.RemoveAll(root) }
}

// Open what is published under a name now.
func ExampleOpen() {
	root, _, cleanup := volume()
	defer cleanup()

	t, err := tree.Open(root, "acme/widgets")
	if err != nil {
		panic(err)
	}
	defer t.Close() // until then, the tree stays
	fmt.Println(t.Ref(), t.Commit()[:7])
	err = fs.WalkDir(t.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			fmt.Println(path)
		}
		return err
	})
	if err != nil {
		panic(err)
	}
	// Output:
	// refs/heads/main aaaaaaa
	// README
}

// Open the tree of a result, even if it has been replaced.
func ExampleOpenResult() {
	root, result, cleanup := volume()
	defer cleanup()

	t, err := tree.OpenResult(root, result)
	if errors.Is(err, tree.ErrGone) {
		t, err = tree.Open(root, result.Path) // a later one, whose result follows
	}
	if err != nil {
		panic(err)
	}
	defer t.Close()
	for _, file := range result.Files {
		content, err := fs.ReadFile(t.FS(), file.Path)
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s %s: %s", file.Status, file.Path, content)
	}
	// Output: added README: hello
}

// A child process keeps the tree in place with the pin that it inherits.
func ExampleTree_Pin() {
	root, _, cleanup := volume()
	defer cleanup()

	t, err := tree.Open(root, "acme/widgets")
	if err != nil {
		panic(err)
	}
	defer t.Close()
	child := exec.Command("cat", "README")
	child.Dir, child.Stdout = t.Dir(), os.Stdout
	if pin := t.Pin(); pin != nil {
		child.ExtraFiles = []*os.File{pin}
	}
	if err := child.Run(); err != nil {
		panic(err)
	}
	// Output: hello
}
