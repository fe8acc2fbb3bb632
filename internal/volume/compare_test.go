package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// unlimited is a pace that counts what is read besides looking at files.
func unlimited(read *int64) checkout.Pace {
	return func(_ context.Context, bytes int64) error {
		if bytes != 4096 {
			*read += bytes
		}
		return nil
	}
}

// pass returns the paths that one pass finds altered, of the only repository with any.
func pass(t *testing.T, c *Comparer) (paths []string) {
	t.Helper()
	for altered, err := range c.Pass(t.Context()) {
		testenv.Must(0, err)(t)
		paths = append(paths, altered.Paths...)
	}
	return paths
}

// rewrite overwrites a file's inode with content of the same size, and restores its times.
func rewrite(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	content := slices.Repeat([]byte{'!'}, int(info.Size()))
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Close(), os.Chtimes(path, info.ModTime(), info.ModTime()))
}

// TestAlterationsAreReplaced alters the published tree in ways that its next tree does not notice, and in others. A pass finds each, and
// the next sync replaces the tree. Nothing of it is in later trees, and the result lists the whole tree.
func TestAlterationsAreReplaced(t *testing.T) {
	t.Parallel()
	replaced := func(path string, by func() error) error { return errors.Join(os.RemoveAll(path), by()) }
	for name, tc := range map[string]struct {
		alter func(tree string) error
		found []string
	}{
		"a file":           {func(tree string) error { return rewrite(tree + "/dir/stays") }, []string{"dir/stays"}},
		"a large file":     {func(tree string) error { return rewrite(tree + "/large") }, []string{"large"}},
		"files":            {func(tree string) error { return errors.Join(rewrite(tree+"/dir/stays"), rewrite(tree+"/a")) }, []string{"a", "dir/stays"}},
		"an executable":    {func(tree string) error { return os.Chmod(tree+"/dir/stays", 0o755) }, []string{"dir/stays"}},
		"another size":     {func(tree string) error { return os.Truncate(tree+"/a", 0) }, []string{"a"}},
		"a file is gone":   {func(tree string) error { return os.Remove(tree + "/dir/stays") }, []string{"dir/stays"}},
		"a folder is gone": {func(tree string) error { return os.RemoveAll(tree + "/dir") }, []string{"dir/stays", "dir/sub/b"}},
		"another file":     {func(tree string) error { return os.WriteFile(tree+"/dir/more", []byte("more"), 0o644) }, []string{"dir/more"}},
		"a hidden folder":  {func(tree string) error { return os.MkdirAll(tree+"/.more/deep", 0o755) }, []string{".more"}},
		"a renamed file":   {func(tree string) error { return os.Rename(tree+"/a", tree+"/c") }, []string{"a"}},
		"a link": {func(tree string) error {
			return replaced(tree+"/a", func() error { return os.Symlink("/etc/passwd", tree+"/a") })
		}, []string{"a"}},
		"a link elsewhere": {func(tree string) error {
			return replaced(tree+"/link", func() error { return os.Symlink("b", tree+"/link") })
		}, []string{"link"}},
		"a file as a folder": {func(tree string) error {
			return replaced(tree+"/a", func() error { return os.Mkdir(tree+"/a", 0o755) })
		}, []string{"a"}},
		"a folder as a link": {func(tree string) error {
			return replaced(tree+"/dir", func() error { return os.Symlink("/tmp", tree+"/dir") })
		}, []string{"dir/stays", "dir/sub/b"}},
		"a pipe": {func(tree string) error {
			return replaced(tree+"/a", func() error { return unix.Mkfifo(tree+"/a", 0o644) })
		}, []string{"a"}},
		"the manifest": {func(tree string) error {
			return os.WriteFile(checkout.GitDirOf(tree).Manifest(), []byte("fake"), 0o644)
		}, []string{".git/lockstep-index"}},
		"no manifest":      {func(tree string) error { return os.Remove(checkout.GitDirOf(tree).Manifest()) }, []string{".git/lockstep-index"}},
		"no .git":          {func(tree string) error { return os.RemoveAll(tree + "/.git") }, []string{".git"}},
		"the whole tree":   {os.RemoveAll, []string{".git"}},
		"all of its names": {func(tree string) error { return replaced(tree, func() error { return os.Mkdir(tree, 0o755) }) }, []string{".git"}},
	} {
		for _, prepared := range []bool{false, true} {
			if !testenv.All() && (!prepared || !slices.Contains([]string{"files", "a file is gone", "another file"}, name)) {
				continue
			}
			t.Run(fmt.Sprintf("%s, prepared=%v", name, prepared), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				want := map[string]string{"a": "same", "dir/stays": "same", "dir/sub/b": "b", "large": fmt.Sprintf("%600000d", 1), "changes": "0"}
				testenv.Must(w.git.Create(t.Context(), widgets, want))(t)
				w.commit(gitserver.Main, gitserver.Edit{Link: map[string]string{"link": "a"}})
				w.sync("")
				want["changes"] = "1"
				commit := w.push(want)
				res := w.sync("") // shares files with the tree before
				if prepared {
					w.prepare()
				}
				c := w.volume.NewComparer(1 << 40)
				if found := pass(t, c); len(found) > 0 {
					t.Fatalf("found %v in an intact tree", found)
				}
				testenv.Must(0, tc.alter(w.path(res.Tree)))(t)
				found := pass(t, c)
				if !slices.Equal(found, tc.found) {
					t.Errorf("found %v, want %v", found, tc.found)
				}

				report := testenv.Must(w.volume.Verify(t.Context(), VerifyRequest{Repo: repoPath(t, widgets), Fence: w.fence.Add(1), Repair: true, Paths: found}))(t)
				if report.Found == 0 {
					t.Errorf("report %+v", report)
				}
				if again := pass(t, c); len(again) > 0 && isThere(t, w.path(res.Tree, ".git")) {
					t.Errorf("found %v again before the sync", again)
				}
				before := res.Tree
				req := w.request("")
				req.Base = func(events.Ref, string) string { return commit } // as a worker knows from the state
				res = testenv.Must(w.volume.Sync(t.Context(), req))(t)
				if res.Tree == before || res.Before != commit || res.After != commit {
					t.Errorf("not replaced: %+v", res)
				}
				if isThere(t, w.path(before, ".git", "lockstep-damaged")) && (!res.Full || len(res.Files) != 6) {
					t.Errorf("the result does not list the whole tree: %+v", res)
				}
				w.mustBeSound(widgets, commit)
				for i := range 2 {
					if prepared {
						w.prepare()
					}
					want["changes"] = fmt.Sprint(i + 2)
					commit = w.push(want)
					w.sync("")
					w.mustBeSound(widgets, commit)
				}
				got := readTree(t, w.path(widgets))
				delete(got, "link")
				if !maps.Equal(got, want) {
					t.Errorf("the tree has other files")
				}
				if found := pass(t, c); len(found) > 0 {
					t.Errorf("found %v at the end", found)
				}
			})
		}
	}
}

// TestAlteredInodeOfAnotherRef alters a file that the trees of two refs share. Both are replaced, whichever was looked at.
func TestAlteredInodeOfAnotherRef(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	main := w.create(map[string]string{"a": "same", "b": "1"})
	w.sync("")
	commit := w.commit("next", gitserver.Edit{Write: map[string]string{"b": "2"}, Parent: main})
	res := w.sync("next")
	if inode(t, w.path(widgets, "a")) != inode(t, w.path(res.Tree, "a")) {
		t.Fatal("the trees share no file")
	}
	w.prepareRef("next")
	testenv.Must(0, rewrite(w.path(res.Tree, "a")))(t)
	report := testenv.Must(w.volume.Verify(t.Context(), VerifyRequest{Repo: repoPath(t, widgets), Fence: w.fence.Add(1), Repair: true, Paths: []string{"a"}}))(t)
	if len(report.Marked) != 2 || w.isPrepared(widgets) {
		t.Errorf("marked %v", report.Marked)
	}
	w.sync("next")
	w.mustBeSound(widgets+"@next", commit)
	w.sync("")
	w.mustVerify()
}

// TestCompareReadsChangedFilesOnly compares an unmodified tree a second time.
func TestCompareReadsChangedFilesOnly(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "same", "b": "1"})
	began := time.Now()
	res := w.sync("")
	var read int64
	c := w.volume.NewComparer(1)
	c.pace = unlimited(&read)
	pass(t, c)
	if read != 5 {
		t.Errorf("read %d bytes", read)
	}
	isNew := time.Since(began) < time.Second // a slow machine may have taken longer than ctimes take to settle
	if pass(t, c); isNew && read != 10 {
		t.Errorf("read %d bytes", read)
	}
	time.Sleep(2100 * time.Millisecond) // until its ctimes are in the past
	pass(t, c)
	read = 0
	if pass(t, c); read != 0 {
		t.Errorf("read %d bytes", read)
	}
	testenv.Must(0, rewrite(w.path(res.Tree, "a")))(t)
	if found := pass(t, c); read != 5 || !slices.Equal(found, []string{"a"}) {
		t.Errorf("read %d bytes, found %v", read, found)
	}
}

// TestReplacedDuringComparison replaces and deletes a tree while it is compared: after each file.
func TestReplacedDuringComparison(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.volume = w.open(t.TempDir(), Config{Grace: 1})
	want := map[string]string{}
	for i := range 4 {
		want[fmt.Sprintf("d%d/f", i)] = fmt.Sprint(i)
	}
	w.create(want)
	w.sync("")
	for after := range 8 { // each file is looked at, and read
		c, steps := w.volume.NewComparer(1), 0
		c.pace = func(context.Context, int64) error {
			if steps++; steps == after+1 {
				want["d1/f"] = fmt.Sprint("push ", after)
				w.push(want)
				w.sync("")
				w.gc(true)
				w.volume.AwaitDeletions()
			}
			return nil
		}
		if found := pass(t, c); len(found) > 0 {
			t.Errorf("replaced after %d steps: found %v", after, found)
		}
		if steps <= after {
			t.Errorf("there are %d steps", steps)
		}
	}
}

// TestPacerKeepsRate reads for a second, and for another beside syncs.
func TestPacerKeepsRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		busy := false
		p := &pacer{rate: 1 << 20, busy: func() bool { return busy }}
		for _, want := range []time.Duration{time.Second, busyShare * time.Second} {
			began := time.Now()
			for range 1 << 10 {
				testenv.Must(0, p.wait(t.Context(), 1<<10))(t)
			}
			if took := time.Since(began); took < want-paceSlack || took > want+paceSlack {
				t.Errorf("took %v, want %v", took, want)
			}
			busy = true
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		wanted := errors.New("wanted")
		cancel(wanted)
		if err := p.wait(ctx, 1<<40); !errors.Is(err, wanted) {
			t.Error(err)
		}
	})
}

// TestPreparedCopiesAreCounted prepares a tree of files that cannot be linked any more.
func TestPreparedCopiesAreCounted(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": string(make([]byte, 1<<20)), "b": "1"})
	res := w.sync("")
	w.gc(true)
	linkUntilFull(t, w.path(res.Tree, "a"))
	before := w.volume.Usage(repoPath(t, widgets)).Added
	w.prepare()
	if added := w.volume.Usage(repoPath(t, widgets)).Added - before; added < 1<<20 {
		t.Errorf("the copy is not counted: %d bytes", added)
	}
	if inode(t, filepath.Join(w.nextTree(), "a")) == inode(t, w.path(res.Tree, "a")) {
		t.Error("the file is not a copy")
	}
	commit := w.push(map[string]string{"b": "2"})
	w.sync("")
	w.mustBeSound(widgets, commit)
}

// linkUntilFull links a file until its file system allows no further link.
func linkUntilFull(t *testing.T, path string) {
	t.Helper()
	dir := t.TempDir()
	for i := range 70_000 {
		err := os.Link(path, filepath.Join(dir, fmt.Sprint(i)))
		if errors.Is(err, unix.EMLINK) {
			return
		}
		testenv.Must(0, err)(t)
	}
	t.Skip("this file system has no limit of links that can be reached")
}
