// Package access decides what the sender of a request may read.
//
//	who, err := access.Gate{Tokens: tokens, Operator: …, Open: …, Private: …}.Identify(r)
//	visible, err := reader.Visible(r.Context(), who, repo) // ErrNotFound, whatever the reason
//	for _, ref := range visible.Refs {
//		t, err := reader.Open(visible, ref) // pinned; the caller closes it
//	}
//
// # Tokens
//
// A token belongs to an app: the name in [watch.Watch]. [Tokens.Create] returns it once; Redis keeps its
// SHA-256 hash, the app and the time. Tokens are 32 random bytes, so a hash needs neither salt nor
// stretching. Each request looks its token up in Redis: a removed token is refused at once, and a Redis that
// does not answer refuses all. When a token was last used is written at most once a minute by each process.
//
// A token is accepted as a bearer token, or as the password of HTTP Basic with any user name, for Git. Tokens
// need TLS or a connection that does not leave the machine; see [Gate.Private].
//
// # What an app reads
//
// The refs that its watches select, each at the commit last settled for that app, with the credential of its
// watch, even if a later commit is published for others already. Once the remote's refusal of that
// credential (class auth or not_found) is confirmed, see [state.Repo.Refuse], the app reads nothing of the
// watch until a sync succeeds. The operator reads all published refs.
//
// # Not found
//
// What an app does not watch does not exist for it: [Reader.Visible] returns the same error, after
// the same single lookup in Redis and the same time, for a repository that only others watch and
// for one that does not exist.
//
// # Failures
//
//	no token, an unknown or a removed one      ErrNoToken, ErrUnknownToken
//	a token over an unencrypted connection     ErrClearText, before it is looked up
//	not watched, nothing settled, denied       ErrNotFound
//	the tree of a visible commit is replaced   ErrReplaced: the app's next sync is not settled yet
//	published, and no ref is in the state      ErrNoState, to the operator: Redis may have lost its data
//	Redis does not answer                      its error; nothing is readable
//	the volume is not mounted                  its error
package access
