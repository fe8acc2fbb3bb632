// Package backup exports what only Redis keeps of a deployment to one document, and imports it into the same or another Redis.
//
//	counts, err := backup.Export(ctx, deployment, version, out)
//
//	header, counts, err := backup.Check(in) // reads it to the end; then from the start again:
//	summary, err := backup.Import(ctx, deployment, in, backup.ImportConfig{Report: report})
//
// # Document
//
// A document is a series of JSON values, one on each line: a [Header], a [Repository] for each repository with watches or state, an
// [access.Hashed] for each token, and an [End] with their numbers, without which the document is incomplete. It has no secrets: tokens are
// hashes, credentials are names. With several cells, the header has the directory, and each repository the name of its cell. A newer version that changes the meaning of anything raises [Format], and older versions refuse it. They
// refuse unknown fields too, instead of importing a watch without a rule that it has.
//
// # What is exported
//
// [Keys] says for each key in Redis whether it is exported, and why not. Streams, leases, queues and limits of hosts are not:
// they describe work in progress, and the next poll of a repository catches what was lost. What apps were last given is
// exported, so that their next results continue from there. As apps have not received what they have not acknowledged, or what
// still waits to be posted to them, the document has the commits before that, too: they get these results again, and may read
// meanwhile what they could read.
//
// # Consistency
//
// A document is not a snapshot of Redis, but each repository in it is one, at some moment during the export. Watches or tokens that change
// meanwhile may be as before or after the change. Memory grows with the largest repository and with unsettled results, not with the number
// of repositories.
//
// # Import
//
// What Redis has wins: Import adds watches, states and tokens that are missing, and changes none that exist. A repository's state is added
// only if it has none, so that nothing newer is replaced by what it was at the time of the export. Each step is safe to repeat, so an import
// that was interrupted is continued by running it again. Watches are added before their state, with a poll in the same step, because a clone with
// state and without watches would be removed; tokens come last, because an app that lists too little removes its copies.
//
// # Failures
//
//	Redis does not answer                     an error; repeat the import
//	the process is killed                     repeat the import; an interrupted export leaves the last file
//	the document is incomplete or damaged     an error of [Check]; nothing is imported
//	a newer version wrote it                  an error of [Check] that says so; nothing is imported
//	a repository conflicts with watches       it is left out and reported; the others are imported
//	of Redis: other remote, nested path
//	a cell does not answer                    an error; an export leaves the last file
//	the directory of cells is lost            it is restored; repositories that a cell still has are placed there
//	a repository has moved since              its watches are added in its present cell, without the state of the former volume
//	a cell has another volume now             states of its repositories are left out
//	Redis is bound to another volume          [ErrOtherVolume], before anything is imported, unless without state
package backup
