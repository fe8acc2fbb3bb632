// Package feed sends results to many HTTP clients as server-sent events, from one read of Redis.
//
//	from, err := results.Locate(ctx, start) // ErrMalformed, *GoneError, or an error of Redis
//	err = results.Serve(w, r, feed.Client{App: app, Token: hash, From: from}) // ErrClosed or ErrChanged
//
// # Guarantees
//
// A client gets each result that its app may read, in the order of the stream, from its position on. With
// several cells that is the order of each, so there is none between the results of a repository in two cells. If
// results are missing, it gets the event gone, the stream ends, and the next request with its position gets a
// [GoneError]. It may get a result again after it has reconnected.
//
// # Cursors
//
// A [Cursor] has a position in the stream of each cell. A position is the ID of an entry, how many entries
// had been added to the stream up to it, and the epoch of the stream. The epoch is a random text in Redis, so
// a cursor of another deployment, or from before Redis was emptied, is gone. The number shows whether a
// trimmed entry came after the position: entries are only trimmed from the front, so one did if more entries
// were removed in total than had been added. A Redis before 7, and the embedded one, do not count: there a
// position is gone once its own entry is trimmed. read.lua compares the position and reads the next entries
// in one step, so nothing can be trimmed in between.
//
// A cell that was added after a cursor is read from its first result on. A cursor with a cell that was
// removed is gone, as is that of a deployment that has become a cell.
//
// # Design
//
//	tail      one goroutine for each cell, while there is a client: waits for entries, reads them, asks which apps
//	          may read them, and puts them into the inboxes of these apps' clients
//	client    the goroutine of the request, with a cursor. It reads from Redis, a batch at a time, until it has all
//	          results. From then on its inbox gets what follows, until it holds 1,000 results or 256 KiB. An inbox that
//	          is full, or has waited for more than 2 s, because the watches may have changed since, is emptied, and
//	          the client reads from Redis again. Every 15 s it sends its position, or a comment while one of several cells
//	          does not answer. At most 256 clients read a batch at a time
//	ticker    ends streams whose token was removed, every 2 s, and all when cells are added or removed
//
// So a slow client holds up no other, and needs no more memory than an inbox and a batch. A client that does not
// accept a batch within a minute, or within ten seconds while it catches up, is cut off.
//
// # Followers
//
// Programs that follow the results report their positions to [Followers], so that operators see which of them
// lag. An app has at most 1,000 followers.
//
// # Failures
//
//	Redis does not answer         streams stay open, with heartbeats; they continue once Redis
//	                              is back. Results of other cells are sent
//	the process stops             Close ends all streams; clients resume elsewhere
//	a result cannot be decoded    it is skipped, as is one of an unknown newer type
//	a watch cannot be decoded     the repository's results are skipped for apps, and logged
package feed
