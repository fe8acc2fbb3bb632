// Package backup exports what only Redis keeps of a deployment and polls cannot find again: watches, tokens,
// and what apps were given.
//
//	doc, err := backup.Export(ctx, deployment, version)
//	summary, err := backup.Import(ctx, deployment, doc) // the same or another Redis
//
// A [Document] is a [Header], then a line of JSON for each watched [Repository] and for each token. It has no
// secrets: tokens are hashes, credentials are names.
//
// Work in progress is left out: the next poll of a repository catches what was lost. If results of a
// repository are not acknowledged, or wait to be posted, apps receive its last results again, without the
// commit before. So do those of views.
//
// A document is not a snapshot: what changes meanwhile may be as before or after the change.
//
// Import adds what Redis lacks, and changes nothing that exists. It can be repeated. The watches of a
// repository come before its state, with a poll in the same step, because a clone with state and without
// watches would be removed. Tokens come last, because an app that lists too little removes its copies.
//
// With several cells, the document has the directory, and each repository the name of its cell. If the
// directory is lost, Import restores it. A repository goes to the cell that has it, or where it was; its
// state only to the cell that it is from. One document has all cells, because a repository that moves between
// two exports would be in neither.
package backup
