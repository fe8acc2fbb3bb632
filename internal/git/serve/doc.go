// Package serve serves bare repositories to Git clients over smart HTTP, read-only, directly from their packs and loose
// objects. It starts no git process.
//
//	handler, err := serve.New(serve.Config{Source: source})
//	defer handler.Close()
//	mux.Handle("/git/", handler) // git clone https://host/git/acme/widgets.git
//
// A [Source] finds the repository of a request, and decides what its sender sees of it.
//
// # Protocol
//
// It speaks Git protocol version 2, and version 0 with clients that do not ask for 2. Under version 2:
// ls-refs (peel, symrefs, unborn, ref-prefix), and fetch (want, have, done, wait-for-done, shallow, deepen,
// deepen-relative, deepen-since, deepen-not, thin-pack, ofs-delta, include-tag). Under version 0: all that
// Git offers except filters and the older forms of multi_ack_detailed and side-band-64k. Requests may be
// compressed with gzip. Object IDs are of SHA-1 or SHA-256. Clients known to work: Git, go-git 5, Dulwich, libgit2 and JGit; ADR 19 has the versions.
//
// # What a client may read
//
// A want is served if it is reachable from a visible ref; otherwise the answer is "not our ref", whether or
// not the object exists, and after the same walk. A have is acknowledged if the store has it or, if the store
// is restricted, if it is one of the 20,000 newest visible commits or a former one. History below a commit
// that a client calls shallow is sent only if that commit is reachable.
//
// A store that keeps only part of the history serves requests with a finite depth, as far as its history
// goes. Others get an error: Git would assume that the result is complete, or fetch nothing and report
// success.
//
// # Packs
//
// Objects are sent as they are stored: a whole pack if all of it is wanted, otherwise single objects, and
// deltas whose base is sent too or, with thin-pack, which the client has. An object that is stored in full is
// sent as a delta on the version of the file or folder that the client has at the same path, or that was
// removed from another path, if both have at most 1 MiB. Other objects are compressed again. Only trees that
// differ between commits are read, and blobs above 1 MiB are never read into memory.
//
// Clients that ask for the same pack at the same time get it from one [spool]: 128 KiB in memory, the rest in
// an unlinked temporary file of at most 1 GiB. Once all files have 16 GiB, or those of one sender a quarter of
// that, no file grows beyond 1 MiB or what it has. A longer pack proceeds at the pace of its slowest client, as does
// each one beyond 384 KiB if the temporary folder cannot be used. Its writer runs until all of them have left. Memory needed for a pack: about
// 200 bytes per commit until its objects are selected, one bit per object of the store, 12 bytes per object of each
// pack that objects are sent from, and the indexes of its packs.
//
// # Bounds
//
// A request has at most 32 MiB, compressed or not, and 250,000 lines. All requests together hold about 4
// million lines and refs in memory, those of one sender a quarter of them; requests and lists of refs with
// less than 4,096 are not counted. A client must send the next part of its request, and receive each 64 KiB
// of the response, within a minute. A request takes at most an hour. While as many packs as there are CPUs, but at
// least 2, are being made, others wait. A pack that waits for slow clients is not counted. At most 16 of these may wait for each CPU, 8
// of one sender; further ones get an error. A client whose pack is being made gets an empty line every 5 seconds.
//
// # Failures
//
//	no such repository, no credentials     HTTP status of the source's [Refusal]
//	the source fails                       503 with Retry-After
//	more than 1,000 requests at a time,    503 with Retry-After
//	or 250 of one sender
//	too many lines and refs                ERR and a text, or 503 with Retry-After
//	not a request of Git's                 403, 404, 405 or 415
//	invalid or too large request, filter,  ERR and a text; Git shows it
//	unknown want, shallow store
//	damaged or missing object              ERR, or an error in the pack; logged
//	error after the pack has begun         an error in the pack; without side-band the connection breaks
package serve
