// Package volume syncs repositories from their remotes to a shared volume: it fetches, builds a tree and publishes it
// under a name. It starts no git process: package wire talks to servers, object receives packs, checkout builds trees.
//
// # Guarantees
//
// Readers never see a gap or a mix of versions. {root}/{owner}/{name} is a symbolic link to a complete,
// immutable tree of one commit; publishing renames a new link over it. A replaced tree stays for
// [Config].Grace, while a reader pins it (package tree), and while an unsettled result names it, up to
// [Config].KeepNamed.
//
// A stale lease holder does no harm. [Volume.Sync], [Volume.Remove], [Volume.RemoveRef] and [Volume.Move]
// first record the caller's fence on the volume, a move on both paths. Shared state changes only under the
// repository's file lock, after comparing the fence. All other work happens in folders with the fence in
// their name, so no two holders share one.
//
// After a crash at any moment, readers still see a complete tree and the next Sync repairs the rest.
//
// # Disk layout
//
//	{root}/{owner}/{name}              → the tree of the remote's default branch
//	{root}/{owner}/{name}@{ref}        → the trees of other refs; a slash in a ref is %2F
//	{root}/{owner}/{name}@{ref}~/{app}/{selection} → a subtree for an app; without {ref} of the default branch
//	{root}/.lockstep/volume            the volume's ID
//	{root}/.lockstep/bind.lock         held while a path is first bound to a remote
//	{root}/.lockstep/in-use            locked, shared, by each worker of a service
//	{root}/.lockstep/usage             disk usage of all repositories at the last garbage collection
//	{root}/.lockstep/repos/{owner}/{name}/
//	    lock, fence                    file lock; the highest fence recorded
//	    repo.json                      path as first spelled, remote, default branch; where it moved to, and when
//	    stores/{n}/                    bare repository; the next n replaces a damaged or oversized one
//	    trees/{fence}-{commit}/        a tree with its own small .git
//	    trees/{fence}-{subtree}/       a subtree: some files of such a tree, and a .git that is no repository
//	    building/{fence}/              an incomplete tree
//	    prepared/{tree}/               a private copy of that published tree, which the next sync of its ref will change
//	    retired/{fence}-{commit}       mtime: when that tree was replaced; content: the newest result at the time
//	    tidied                         mtime: when a holder last looked at all trees
//	    damaged                        exists while a tree is marked as damaged
//	    quarantine/{fence}/            fetched objects that are not verified yet
//	    trash/                         being deleted
//	    parts/{remote}-{commit}/       submodules: a bare repository of one commit, which no tree reads from
//	    lfs/                           LFS objects and incomplete downloads: see package lfs
//	    subtrees/{app}/{ref}~          a published folder of subtrees, and the whole tree that these were last published from
//	    listed                         refs as the last poll has found them at the remote: those that patterns match, that
//	                                   are missing, and of trees and blobs; may be lost
//	    usage                          disk usage when last measured, and growth since; may be lost
//	    adopted/{fence}/               a plain clone that a link replaced; never deleted by Lockstep
//
// Deeper paths keep the owner and join the rest with %2F: group/sub%2Fname. So no repository's folder is
// inside another's.
//
// # Steps of a sync
//
//	fenced      the fence is recorded on the volume
//	bound       path and remote are bound; leftovers of crashed holders and expired trees are deleted
//	listed      the remote has listed its refs and accepted the credential; the names to publish are free or ours
//	fetched     a thin pack for the commit is in quarantine, and every object that it needs is present
//	moved       its objects are in the store, and the store's refs include the commit
//	checked     the caller's Check, if any, has admitted the commit
//	part        a submodule's commit is in its store; for each that is fetched
//	parts       all submodules are in their stores; skipped if none are wanted
//	lfs         the LFS objects of the tree are in the repository's LFS store; skipped if none are selected
//	taken       the prepared tree is now this sync's incomplete tree; skipped if there is none
//	checked out the changes are applied to the prepared tree, or a tree of hard links to the last one's files is made
//	indexed     the tree has its .git and index
//	built       the tree is flushed to disk
//	confirmed   the caller has confirmed its lease
//	flipped     the published name links to the new tree
//	retired     the old tree's grace has begun
//
// The cost follows the size of the change: only folders that differ are read, and a new tree costs one link
// per unchanged file, or one stat if it is prepared.
//
// It does not grow with what is kept: a sync retires the trees that it replaced, and looks at all trees, for
// those that are due, only if none has for half of the grace, or if it finds leftovers of a crashed holder.
// [Volume.GC] always does.
//
// A tree shares the files of the one before only if they are unmodified: type, permissions, size,
// modification time and inode are compared with the manifest, when a file is linked and, in a prepared tree,
// again before the flip. Others are rewritten from the store. A prepared tree with missing or additional
// names is not used.
//
// # Steps of a preparation
//
// While a repository is idle, [Volume.Prepare] links the published tree of a ref that was pushed to into a
// private one. It stops soon after its context is cancelled. It prepares nothing while the repository, or the
// volume's bytes or inodes, are within a tenth of their limits, and keeps at most 8 such trees per
// repository.
//
//	linked      the private tree is complete
//	prepared    it has its name, by which the next sync finds it
//
// A prepared tree goes with the published tree that it was linked from: when that is replaced, removed,
// marked as damaged, or moves away. One that stays unused goes after [Config].KeepPrepared.
//
// # Steps of a move
//
// A repository that was renamed on its forge gets a second folder of hard links at its new path. The old path stays for
// its readers until the grace ends. Nothing is fetched.
//
//	fenced      both fences are recorded
//	listed      the new remote is the same repository
//	bound       the new path is bound to it
//	linked      the stores, LFS objects and submodules are at the new path: objects are linked, the rest is copied
//	built       a tree like a published one is at the new path: its files linked, with its own .git
//	flipped     it is published, as by a sync; after all of them: published
//	confirmed   the caller has confirmed its leases, so that Bring may move the watches
//	left        the old path is free: its binding says where the repository moved
//
// Repeating the request completes an interrupted move: each step reuses what exists. [Volume.GC] or the next
// Sync at the old path removes the old names after [Config].Grace, the trees after another grace, then
// everything but the fence. Another repository may take the old path earlier: it starts with the next store
// generation and replaces names as it publishes them. Trees up to the fence of the move belong to the old
// repository.
//
// # Steps of a purge
//
// [Volume.Purge] replaces everything that a repository has on the volume: its remote had a secret, and has
// rewritten its history. Readers of published names see no gap.
//
//	purge begun  an empty store is the current one; the others, and so their trees, are marked as purged. Prepared
//	             trees and the stores of submodules are deleted
//
// A sync that finds its ref published from a purged store fetches everything into the new one, and flips the
// name. Purged trees that no name links to have no grace: what pins do not keep is deleted by the same sync, or for
// subtrees by the next one, the rest by the first one after these have ended or by [Volume.GC], and at last the purged
// stores. GC also prunes the LFS objects that no tree has.
//
// # Repositories that are gone
//
// A repository without objects and trees keeps its fence, so that holders from before its removal are stale, until
// [Volume.Forget] deletes its folder. Its caller knows that nobody has held the lease for the safe time, ten leases or
// graces, at least a minute. What an earlier holder, such as a paused one, can do after that is nothing:
//
//	publish, remove, move, prune     its fence is not the recorded one, or there is none: [ErrStale], also in a new folder
//	record its fence once more       it had not begun. Its lease is lost, and not reclaimed after so long (package
//	                                 locking), so Confirm fails; its folder is gone again
//	work with private files          they are in the deleted folder
//	settle, or record a failure      the lock in Redis has another fence, or is gone
//
// Later fences are higher: they are never below Redis' clock, and the deleted one was at least the safe time behind it.
//
// # Failures
//
//	what happens                           outcome
//	the process dies                       readers keep the last tree; the next Sync cleans up
//	a newer holder has recorded its fence  contention, ClassBusy; nothing changed
//	the lease cannot be confirmed          Confirm's error; nothing published
//	ctx is cancelled                       its cause; nothing published
//	credential refused or missing          permanent, ClassAuth
//	repository missing or hidden           permanent, ClassNotFound; the tree stays
//	ref missing, repository empty          permanent, ClassNoRef; the tree stays
//	dial, DNS, TLS, timeout, too slow      retryable, ClassNetwork
//	SSH host key changed; unknown          permanent, ClassAuth; permanent, ClassConfig
//	host not allowed by Config.Net         permanent, ClassConfig
//	5xx, protocol error, error in a pack   retryable, ClassServer; no full fetch
//	neither SHA-1 nor SHA-256              permanent, ClassConfig
//	LFS object missing on its server       permanent, ClassNotFound; those received stay. See package lfs
//	submodule that cannot be fetched, with     as above, and the error names it; a commit that its remote does
//	events.SubmodulesRequired              not have: retryable, ClassNotFound; a broken pack: ClassServer
//	more than 1,000 submodules, or 8       permanent, ClassQuota
//	levels of them
//	pack that does not apply               one full fetch instead; then retryable, ClassCorrupt
//	"..", ".git" and the like in a tree,   permanent, ClassHostile
//	or a path too long for file systems
//	pack above MaxPackBytes, a tree above  permanent, ClassQuota; the fetched objects are deleted
//	MaxTreeFiles or MaxTreeBytes, or a
//	repository above MaxRepoBytes
//	file above MaxFileBytes; commit, tag   permanent, ClassQuota; refused before it is inflated
//	or tree above 64 MiB; objects above
//	MaxInflatedBytes in total
//	more than MaxTreeFiles + 1 m objects   permanent, ClassQuota; refused before any is read
//	volume above MaxVolumeBytes, or less   retryable, ClassQuota; nothing is fetched
//	than MinFreeBytes free
//	volume full, read-only, failing        retryable, ClassVolume
//	file lock held for 10 s                contention, ClassBusy: its holder may be stopped
//	path bound to another remote           permanent, ClassConflict
//	plain clone of the remote in the way   the link replaces it in one step; the clone is kept
//	another folder in the way, or a clone  permanent, ClassConflict
//	that is of another remote, has
//	worktrees, or cannot be exchanged
//	bit rot                                found only by Verify; the next Sync replaces what it marks
//	removing a ref that still exists, or   permanent, ClassConflict; nothing changed
//	that the plain name is published for
//	removing while a reader pins a tree    contention, ClassBusy; all names are gone, and a repeated
//	                                       request removes that tree
//	move to another host, to a path of     permanent, ClassConflict; nothing changed
//	another remote, or of a repository
//	not proved to be the same
//	move during pushes to the repository   retryable, ClassConflict; nothing changed
//	move with a damaged tree or store      moves without it; the next Sync of the new path fetches it
//	a reader writes to published files     the next tree has new files instead; if size and time are
//	                                       restored, Verify finds it and marks the trees
//	path below one that has moved away,    retryable, ClassConflict
//	within its grace
//
// Errors never repeat a remote's text or a credential.
//
// # Limits
//
// Volume takes no lease: see package locking. It cleans a repository up during a sync or [Volume.GC]. A tree
// whose readers are gone is deleted up to one more grace later, or by the next GC. A move checks no quota,
// because links take little space. Remove gives trees no grace, but keeps pinned ones. LFS files stay
// pointers unless [SyncRequest].LFS selects them, and submodules stay empty folders unless
// [SyncRequest].Submodules says otherwise.
//
// # Subtrees
//
// [Volume.PublishSubtrees] links each of an app's selections of a tree to a tree with only its files, whose name
// has the ID of its content, so equal selections share one. Their trees are built from a plan of the whole
// tree, and purged and verified like all others. Only tidying retires them, because it reads all links. Steps:
//
//	subtrees checked out   the trees that do not exist yet are built aside
//	subtree placed         one is flushed to disk and has its name; after all of them: subtrees built
//	confirmed              the caller has confirmed its lease
//	subtrees unfinished    it is noted that links change, so that the next publication compares each; likewise before
//	                       names are removed
//	subtree flipped        one of the names links to its tree; after all of them: subtrees flipped
//
// If a file was altered in the whole tree, the subtree gets a new one of the commit; if that is impossible, the
// whole tree is marked as damaged, and the next sync builds another. A repository that moves leaves its
// subtrees behind: they are published again at the new path.
//
// # Submodules
//
// The files of submodules are files of the tree: linked from the last one, prepared, compared and verified
// like all others, from a manifest beside the index. Each commit of a submodule has its own store, which
// belongs to the repository, so the repository's lease, quota and removal cover it. Stores of commits that no
// tree uses are pruned.
package volume
