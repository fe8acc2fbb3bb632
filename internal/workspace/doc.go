// Package workspace makes writable copies of published trees, with a .git that commits and pushes.
//
//	e := workspace.Exec{Tree: t, Name: "acme/widgets", Command: []string{"make"}, Environ: os.Environ()}
//	status, err := e.Run(ctx)
//
// [Exec] runs a command in a copy that is removed afterwards. [Create] makes a copy that stays and needs
// nothing of the volume.
//
// # Kinds
//
//	overlay  an overlay mount that only the command sees: the tree below, a private folder for writes above it.
//	         Its cost does not depend on the size of the tree. Needs CAP_SYS_ADMIN or a user namespace
//	copy     copies of all files. They share their blocks with the tree's until they are written, where the file
//	         system can
//
// Files are never hard links, because a write would change the published tree.
//
// # How an overlay is mounted
//
// Exec starts this program again ([Inside]) in a new mount namespace and, without CAP_SYS_ADMIN, in a user
// namespace that maps the caller's user and group to themselves. The new process mounts the overlay, makes
// the repository's folder on the volume read-only, gives up its capabilities and replaces itself with the
// command. If the kernel forbids any of these steps, the files are copied instead, and [Exec.Note] says why.
//
// # What keeps a tree
//
// Exec holds the tree's pin (package tree) and that of the store's objects while the command runs: git may
// find and use objects there that the tree does not need. The command inherits only its standard input,
// output and error: with a descriptor of a file on the volume it could change what is read-only for it, or
// hold locks. So a process that outlives the command has no workspace and does not keep the tree.
//
// The command is killed if Exec is. The folder of a killed Exec is removed by the next one; it is recognized
// by its lock (flock), which is free.
package workspace
