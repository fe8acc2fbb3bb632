// Package workspace makes writable copies of published trees, with a .git that commits and pushes.
//
//	status, err := workspace.Exec{Tree: t, Name: "acme/widgets", Command: []string{"make"}, Environ: os.Environ()}.Run(ctx)
//
// [Exec] runs a command in a copy that is removed afterwards. [Create] makes a copy that stays until [Remove].
//
// # Kinds
//
//	overlay  an overlay mount: the tree below, a private folder for writes above it. Its cost does not depend on the
//	         size of the tree. Needs CAP_SYS_ADMIN or, for Exec, a user namespace
//	reflink  files that share their blocks with those of the tree until they are written; XFS, btrfs
//	copy     copies of all files
//
// Files are never hard links, because a write would change the published tree.
//
// # How an overlay is mounted for a command
//
// Exec starts this program again ([Inside]) in a new mount namespace and, without CAP_SYS_ADMIN, in a user namespace that maps
// the caller's user and group to themselves. The new process mounts the overlay, makes the repository's folder on the volume
// read-only, gives up its capabilities and replaces itself with the command. If the kernel forbids any of these steps, the
// files are copied instead, and [Exec.Note] says why and what to do.
//
// # What keeps a tree
//
// Exec holds the tree's pin (package tree) while the command runs, and the command is killed if Exec is. The command inherits
// only its standard input, output and error: with a descriptor of a file on the volume it could change what is read-only for it,
// or hold locks. So a process that outlives the command has no workspace and does not keep the tree. Create writes a record to the volume (volume.Workspace), which pins the tree until Remove, across reboots. Both also keep
// objects of the store that the tree does not need, because git may find and use them there.
//
// # Leftovers
//
// The command is killed if Exec is. The folder of a killed Exec is removed by the next one, or by [Sweep]; it is recognized by
// its lock (flock), which is free. After a reboot, an overlay made by Create is no longer mounted, but its written files
// remain: Create with the same name and folder mounts it again.
package workspace
