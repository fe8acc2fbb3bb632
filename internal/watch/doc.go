// Package watch keeps who watches what: the registry of apps' standing interests in repositories.
//
// A [Watch] says that an app wants some refs of a repository kept up to date, with which credential, and where to
// tell it. From it follows which changes a webhook makes, what is polled, and which clones are kept at
// all. It holds names of credentials, never a secret.
//
// # What is kept
//
// All keys have the namespace's hash tag, so that one script changes them together, on Redis Cluster too.
//
//	watch:of:{repository}  hash: each watch as JSON in a field "{app} {refs}"; besides these version, repo (the path
//	                       as first spelled), at (the place of the remote), interval (ms: the shortest that a watch
//	                       names, 0 for none), usual ("1" when a watch leaves it to the setting), asked (ms: when a look
//	                       at the remote was last asked for)
//	watch:at:{place}       hash: each repository whose remote is there, and version; a repository has a slash in it
//	watch:index            sorted set of the repositories that are watched, all scores 0: a list in order, page by page
//	poll                   sorted set: repository to the ms when it is to be polled next, or looked at for that
//	deliveries:{source}    sorted set: a delivery's id to the ms when it was accepted
//
// # Paths and places
//
// An app chooses at which path of the volume a repository is kept, and several may keep the same one at several. A
// forge knows nothing of that: its webhooks name the remote. So watches are kept by path, and found by [Place], which
// is the remote's host and path without what one remote may be spelled with or without. What is found there is
// compared closely, by [SameRemote]. All watches of a path name one remote, so a path is at one place.
//
// # Versions
//
// A repository's watches have a version, and so have all those at a place: a random text, another one whenever
// anything of them is written. No version comes twice, also after a Redis that has lost its last writes. Two things
// rely on it. Whoever changes watches reads those of a path, makes up what they are to be, and write.lua writes that
// only if the version is still the same: else it is done over. And a receiver may keep in memory what is watched at
// places: accept.lua takes the changes that it made of that only if the version is the one that is current in that very
// step. So a delivery costs one round trip, no change is ever made for an app that had stopped watching before, and
// none is missing for one that had begun to, at whatever path.
//
// # Why scripts
//
// Between "who watches?" and "then ask for this" somebody may start or stop watching. Each script makes of both
// one step, whose entry in the stream of changes tells where in the order of things it was:
//
//	write.lua   a set is changed, and its place, and a look at the remote asked for; or, the last watch being gone,
//	            the forced removal of the clone. All that was accepted for the watches is before that in the
//	            stream, and nothing of them after it
//	accept.lua  the delivery is not in the ledger, the versions are current, and all its changes are taken: or none
//	due.lua     what is due is asked for and put off in the same step, by Redis' clock. Schedulers need no leader
//
// Each script checks all that it can be refused for before it changes anything.
//
// The stream is read by many workers, not in order; what a change finds when its turn has come counts. So workers
// ask the registry again, under the repository's lease: a removal keeps what is watched again, and a
// change for a watch that is no more fails.
//
// # When something fails
//
//	Redis does not answer              an error, and nothing was done, or all of it. Again: Put and Remove find it done and
//	                                   ask for nothing more; Accept finds the delivery in the ledger, if it has an id
//	two change a set at once           one is first, the other does its part over
//	a set changed under a receiver     Stale: nothing was taken; make the changes anew, of what At says now
//	Redis loses its last writes        watches may be lost, and what was asked for with them; import the file. Versions
//	                                   that are kept in memory are stale then, and never right by chance
//	a scheduler dies                   another takes what is due; one that died behind the script has asked already
//	nobody schedules for a while       all is due once, and not as often as was missed
//	the clock of Redis is set back     a repository is asked for once too often, and then as before
//	a watch cannot be read             Of, At, List and Put of its repository fail, naming it: it is not taken for none, by
//	                                   which a clone would be removed. Remove and a new Put of it work, and Repos has it
//	a path watched at two remotes      refused by Put, Add, Plan and Move, as the volume would refuse the second; so are paths
//	                                   of which one lies in the other, and the 1,001st watch of a repository
//
// # What it does not do
//
// It does not ask remotes, remove clones or send anything: others do, by what is in the stream. It does not know
// whether a credential exists. It keeps no history of who changed what.
package watch
