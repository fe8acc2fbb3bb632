package archive

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"lockstep/internal/gitserver"
)

// shape is a kind of tree.
type shape struct {
	name   string
	judged bool // the target of the throughput applies
	fill   func(b *bench, edit gitserver.Edit) error
}

var shapes = []shape{
	{"text", true, func(b *bench, edit gitserver.Edit) error { // 3,000 files of 12 KiB
		random := newText()
		for n := range b.share(3000) {
			edit.Write[fmt.Sprintf("src/%03d/%02d/file%d.txt", n%200, n%37, n)] = random(12 << 10)
		}
		return nil
	}},
	{"source", true, func(b *bench, edit gitserver.Edit) error { return b.addSource(edit) }},
	{"tiny", true, func(b *bench, edit gitserver.Edit) error { // 200,000 files of 40 bytes in 2,000 folders
		random := newText()
		for n := range b.share(200_000) {
			edit.Write[fmt.Sprintf("d%04d/file%d", n%2000, n)] = random(40)[:40]
		}
		return nil
	}},
	{"large", false, func(b *bench, edit gitserver.Edit) error { // one file of 300 MB
		edit.Write["large.txt"] = newText()(b.share(300_000_000))
		return nil
	}},
	{"noise", false, func(b *bench, edit gitserver.Edit) error { // 30 files of 2 MB that cannot be compressed
		random := rand.NewChaCha8([32]byte{})
		for n := range b.share(30) {
			content := make([]byte, 2_000_000)
			_, _ = random.Read(content)
			edit.Write[fmt.Sprintf("noise-%d", n)] = string(content)
		}
		return nil
	}},
	{"links", false, func(b *bench, edit gitserver.Edit) error { // 50,000 symbolic links
		for n := range b.share(50_000) {
			edit.Link[fmt.Sprintf("d%d/link%d", n%100, n)] = fmt.Sprintf("../d%d/link%d", n%99, n+1)
		}
		return nil
	}},
	{"deep", false, func(b *bench, edit gitserver.Edit) error { // 5,000 files, 60 folders deep
		random := newText()
		for n := range b.share(5_000) {
			edit.Write[fmt.Sprintf("%s%d/file", strings.Repeat("deep/", 60), n)] = random(400)
		}
		return nil
	}},
}

func shapeNames() (names []string) {
	for _, one := range shapes {
		names = append(names, one.name)
	}
	return names
}

func (b *bench) share(n int) int { return max(1, n*b.percent/100) }

// commit makes a repository with the tree, and returns the number of its files.
func (s shape) commit(ctx context.Context, b *bench, git *gitserver.Server, repo string) (files int, err error) {
	if err := git.CreateEmpty(ctx, repo); err != nil {
		return 0, err
	}
	edit := gitserver.Edit{Write: map[string]string{}, Exec: map[string]string{}, Link: map[string]string{}}
	if err := s.fill(b, edit); err != nil {
		return 0, err
	}
	if _, err := git.Commit(ctx, repo, gitserver.Main, edit); err != nil {
		return 0, err
	}
	_, err = git.Git(ctx, repo, "", "gc", "--quiet")
	return len(edit.Write) + len(edit.Exec) + len(edit.Link), err
}

// addSource adds the files of a folder.
func (b *bench) addSource(edit gitserver.Edit) error {
	dir := b.source
	if dir == "" {
		root, err := exec.Command("go", "env", "GOROOT").Output() //nolint:noctx // ends at once
		if err != nil {
			return fmt.Errorf("find the sources of Go: %w; name others with --source", err)
		}
		dir = filepath.Join(strings.TrimSpace(string(root)), "src")
	}
	found := 0
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			if err == nil && entry.Name() == ".git" {
				return fs.SkipDir
			}
			return err
		}
		if found++; (found-1)%100 >= b.percent {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		edit.Write[name] = string(content)
		return err
	})
	if err == nil && found == 0 {
		err = errors.New("no files in " + dir)
	}
	return err
}

// newText returns a function that returns text that deflates to about a third.
func newText() func(size int) string {
	seed := uint64(1)
	return func(size int) string {
		var text strings.Builder
		for text.Len() < size {
			seed = seed*6364136223846793005 + 1442695040888963407
			fmt.Fprintf(&text, "line %x of a text\n", seed>>40)
		}
		return text.String()
	}
}
