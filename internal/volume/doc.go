// Package volume brings one repository on a shared volume up to date with its remote: fetch,
// build a tree, publish it under a name. It never starts a git process: package wire talks to
// servers, package object receives packs, package checkout builds trees.
//
// # What it promises
//
// Readers never see a gap or a mix. {root}/{owner}/{name} is a symbolic link to a complete,
// immutable tree of one commit; publishing is one rename of that link. A reader resolves the name
// once and then works inside the tree, which stays for [Config].Grace after it has been replaced, for
// as long as a reader has it pinned (package tree), and while an unsettled result names it, for
// [Config].KeepNamed at most.
//
// A stale holder does no harm. The first act of every [Volume.Sync], [Volume.Remove], [Volume.RemoveRef] and
// [Volume.Move] is to record the caller's fence on the volume, for a move on both paths; whatever readers or
// later syncs depend on changes only under the repository's file lock, with the fence compared. All other work
// happens in folders that carry the fence in their name, so that two holders, one of them stale, never share one.
//
// A crash at any moment leaves a state that readers can read and the next Sync heals.
//
// # Disk
//
//	{root}/{owner}/{name}              → the tree of the remote's default branch
//	{root}/{owner}/{name}@{ref}        → the trees of other refs; a slash in a ref is %2F
//	{root}/.lockstep/volume            the volume's id
//	{root}/.lockstep/bind.lock         held while a path is bound to a remote for the first time
//	{root}/.lockstep/usage             what all repositories took at the last patrol
//	{root}/.lockstep/repos/{owner}/{name}/
//	    lock, fence                    file lock; the highest fence that ever held the lease
//	    repo.json                      spelled path, remote, default branch; or where it has moved to, and when
//	    stores/{n}/                    bare repository, as deep as was asked for; the next n when one is
//	                                   damaged, or has outgrown its packs
//	    trees/{fence}-{commit}/        a tree, with a small .git of its own
//	    trees/.building-{fence}/       a tree not yet whole
//	    retired/{fence}-{commit}       its time: when that tree was replaced; in it, the newest result then
//	    quarantine/{fence}/            objects fetched and not yet proven whole
//	    trash/                         being deleted
//	    usage                          what it took when last measured, and has taken since; may be lost
//	    adopted/{fence}/               a plain clone that stood in its place; never deleted by us
//
// A deeper path keeps its owner, and joins the rest by %2F: group/sub%2Fname. No repository's
// folder therefore lies within another's.
//
// # One sync
//
//	fenced      the fence is recorded on the volume
//	bound       path and remote belong together, for good once a fetch begins; what crashed holders
//	            left is swept, trees past their grace go
//	listed      the remote has been asked for its refs; the credential has been proven; the names to
//	            publish are free or ours
//	fetched     a thin pack for the wanted commit is in quarantine, all it needs is present
//	moved       its objects are in the store, the store's refs name it
//	checked out unchanged files are hard links to the last tree's, the others are written; or, with
//	            [Config].ReuseTrees, a tree that nobody needs any more is recycled
//	indexed     the tree has its .git and index
//	built       all of it is on disk
//	confirmed   the caller says that its lease still holds
//	flipped     the published name is the new tree
//	retired     the old tree's grace runs; what nobody needs is pruned, now and then
//
// # One move
//
// A repository that was renamed on its forge gets a second folder, at its new path, of hard links; the first stays
// where it is for its readers, and goes when they had time to leave. Nothing is fetched.
//
//	fenced      both fences are recorded
//	listed      the new remote is the same repository
//	bound       the new path belongs to it
//	linked      the store is at the new path too, in one step: its objects linked, all else copied
//	built       so are the trees that names link to, their files linked, each with a .git of its own
//	confirmed   the caller says that its leases still hold
//	named       one of the new names is published; so are all then: flipped
//	left        the old path is free, in one step: its binding says where the repository has moved
//	noted       it is known what both take
//
// What died in between is completed by the same request: each step finds what there is. Of a repository that has left,
// the names go after [Config].Grace, at the next [Volume.GC] or Sync there, its trees after a grace of their own, as if
// replaced, and then all but the fence. Another repository may come before: it begins with the next
// generation of the store, takes over names as it publishes them, and takes nothing of the old one's for its own. All
// trees up to the fence of the move are the old one's.
//
// What a sync costs follows the change: only folders that differ are read, and of the index of a pack only
// what is looked up. A new tree is one link for each unchanged file; a recycled tree is not even that.
//
// # Failures
//
//	what happens                           outcome
//	the process dies                       readers keep the last tree; the next Sync sweeps
//	a newer holder has been here           contention, ClassStale; nothing changed
//	the lease cannot be confirmed          Confirm's error; nothing published
//	ctx is cancelled                       its cause; nothing published
//	credential refused or missing          permanent, ClassAuth
//	repository not there, or hidden        permanent, ClassNotFound; the tree stays
//	ref not there, repository empty        permanent, ClassNoRef; the tree stays
//	dial, DNS, TLS, timeout, a trickle     retryable, ClassNetwork
//	an SSH host's key changed              permanent, ClassAuth; not known: ClassConfig
//	a host that Config.Net does not admit  permanent, ClassConfig
//	5xx, protocol garbage                  retryable, ClassServer
//	pack that does not apply               one full fetch instead; then retryable, ClassCorrupt
//	"..", ".git" and the like in a tree    permanent, ClassHostile
//	a path longer than file systems take   permanent, ClassHostile
//	a pack above MaxPackBytes, a tree      permanent, ClassQuota; what was fetched is not kept
//	above MaxTreeFiles or MaxTreeBytes
//	a file above MaxFileBytes              permanent, ClassQuota; refused before it is inflated
//	a commit, tag or tree above 64 MiB     permanent, ClassQuota; the same
//	objects above MaxInflatedBytes in all  permanent, ClassQuota; the same
//	objects beyond MaxTreeFiles + 1 m      permanent, ClassQuota; before any is read
//	volume full, read-only, failing        retryable, ClassVolume
//	another process keeps the file lock    contention, ClassBusy, after 10 s: it may be stopped
//	path bound to another remote           permanent, ClassConflict
//	a plain clone of the remote in the way it and the link change places in one step; it is kept
//	a folder of someone else's in the way  permanent, ClassConflict; so for a clone of another remote, one
//	                                       with worktrees, or where names cannot change places
//	a repository above MaxRepoBytes        permanent, ClassQuota; what was fetched is not kept
//	the volume above MaxVolumeBytes, or    retryable, ClassQuota; nothing is fetched
//	with less than MinFreeBytes free
//	bits that rot                          found by Verify alone; marked, the next Sync makes anew
//	                                       what they are in
//	a ref to be removed is still there,    permanent, ClassConflict; nothing changed
//	or is what the plain name is for
//	a move to a path of another remote,    permanent, ClassConflict; nothing changed
//	to another host, or of what is not
//	shown to be the same repository
//	the same, and there are pushes while   retryable, ClassConflict; nothing changed
//	it is looked at
//	a path below one that has moved away,  retryable, ClassConflict: the name is there until it had its grace
//	within its grace
//	a move, and a tree or store is         moved without it; the next Sync of the new path fetches it
//	damaged
//	removal, and a reader has a tree       contention, ClassBusy; all names are gone, that tree's
//	pinned                                 needs stay until the same request comes again
//
// No error repeats what a remote said, nor a credential.
//
// # What it does not do
//
// It takes no lease: see package locking. It tidies a repository when that is synced, or when
// somebody calls [Volume.GC], as a patrol does. A move looks at no quota: links take little. Remove gives no
// grace, but waits for pinned trees. Large files kept with LFS stay pointers, and submodules stay empty folders.
package volume
