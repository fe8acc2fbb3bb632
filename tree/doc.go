// Package tree opens the trees that Lockstep publishes, for programs that read them.
//
//	t, err := tree.Open("/srv/repos", "acme/widgets") // or OpenResult, for the tree that a result names
//	if err != nil {
//		return err
//	}
//	defer t.Close() // until then, the tree stays
//	fmt.Println(t.Ref(), t.Commit())
//	return fs.WalkDir(t.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
//		fmt.Println(path)
//		return err
//	})
//
// It needs only the volume, which may be mounted read-only; it uses neither Redis nor a Lockstep process. It starts no
// goroutine.
//
// # Guarantees
//
// A tree is one complete commit and never changes. An open [Tree] is pinned: it stays in place, under its
// path too, until it is closed or the process ends, however long ago it was replaced.
//
// # How a pin works
//
// A pin is a shared lock (flock) on the tree's file .git/lockstep-pin. Before a replaced tree is recycled, that lock is
// acquired exclusively, without waiting; if that fails, the tree is left alone. The recycler may win the race, so after
// locking, a reader checks that the file it locked is still in place. If not, [Open] starts again with the name, and
// [OpenResult] returns [ErrGone]. The pins of a process that dies are released with its open files.
//
// Locks work as far as the file system supports them; docs/reading.md lists file systems.
//
// # Failures
//
//	what                                             error
//	nothing is published under the name              ErrNotPublished
//	the tree has been recycled                       ErrGone
//	a result's tree is not the path of a tree        an error; nothing outside the trees is opened
//	a result has no tree: only synced results do     an error
//	the volume cannot be read                        the file system's error
package tree
