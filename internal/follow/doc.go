// Package follow keeps a node's own copy of what a token reads from another deployment's reader.
//
//	f, err := follow.New(follow.Config{
//		Reader: reader, Volume: volume, Record: record, Publish: publish, Purge: purge, Log: log,
//	})
//	if err != nil {
//		return err
//	}
//	go f.Settle(result)  // for each result of the local worker
//	err = f.Run(ctx)     // ErrRevoked once the reader has refused the token for long enough
//
// A follower is an ordinary service whose remotes are the Git URLs of the reader. This package only decides
// what to sync: it lists what the token reads, follows the reader's results, and publishes changes for the
// local worker, which fetches, publishes trees, removes and moves as everywhere else.
//
// # Position
//
// A stream starts with a cursor. The follower then lists, and applies what the stream sends: a change between
// the two is in the list, or in the stream, or in both. The position is the cursor up to which everything is
// published; a result whose tree is not published yet, or could not be, holds it back. [Record] keeps it on
// the volume. A later run resumes from there, and lists too, because the local Redis keeps nothing. Requests
// to a slow reader run beside the stream; an answer that may be older than a frame is requested again. It
// lists again every 30 s or, with thousands of repositories, every few minutes, because no result notifies an
// app that it no longer watches a repository.
//
// # What is removed
//
// What is published here and no longer listed was removed, moved, or is no longer watched. It is removed by a
// change that asks the reader once more, under the lease. After a resumed start this waits until the stream
// has caught up, so that a moved repository is moved. Only repositories that were fetched from this reader
// are removed. A response 404 alone removes nothing, since a proxy may have sent it: the reader's list or a
// result must say so, too.
//
// A commit that was purged at the origin is purged here, too, once the sync that replaces it is published.
// Depth 1 does not show which replaced trees descend from it, so all of the repository are deleted.
//
// # Failures
//
//	connection lost, silent for 45 s      connect again, with backoff and jitter; copies stay
//	too far behind (410)                  restart from the cursor of the response, and list
//	busy (429, 503), slow                 try again after Retry-After and a random time; list with smaller pages
//	a sync fails                          the worker retries; later the repository is compared again, with backoff
//	token refused (401)                   the token is read and the reader asked again every 5 s; after
//	                                      Config.TokenWait Run returns ErrRevoked
//	any other response                    as if the connection was lost; the error is logged and shown by health checks
package follow
