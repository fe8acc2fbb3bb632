// Package lfs gets the files of a repository that are stored in Git LFS: it decides which files those are,
// downloads their objects, and keeps each object once per repository.
//
//	files := lfs.NewForest(objects, map[string]object.ID{"": tree}, selection)
//	pointer, ok, err := files.Pointer("art/logo.psd", blob)
//	…
//	client := &lfs.Client{Server: server, Send: send, Store: store}
//	err = client.Download(ctx, []lfs.Object{{Pointer: pointer, Path: "art/logo.psd"}})
//
// # Which files
//
// A file is in LFS if its attribute filter is lfs and its blob is a valid pointer, as for the filter that
// git-lfs installs. Attributes come from the .gitattributes files of the commit, with macros of the one at
// the top; .git/info/attributes and the machine's files do not count. A blob that looks like a pointer but
// has no such attribute is an ordinary file, as after git clone; git lfs pull 3.3 replaces it and leaves it
// modified. A pointer with extensions stays as it is, because its content depends on programs of the clone's
// owner.
//
// A [Selection] has one filter of globs per watch; a file is fetched if any of them selects it. A filter
// without globs uses lfs.fetchinclude and lfs.fetchexclude of the commit's .lfsconfig, as git-lfs does.
//
// # Server
//
// The server is the repository's URL with .git/info/lfs, or the one that the commit's .lfsconfig names in lfs.url or
// as that of a remote, which must be http or https. Objects are asked for in batches of at most 100, halved if the
// server refuses that many, and downloaded with the transfer basic, up to 8 at once if the host's limits allow. A
// credential is sent only to URLs that its own prefixes cover, whether they come from .lfsconfig, an action or a
// redirect, and to actions that may be presigned and redirects only after they have answered 401, as by git-lfs. The
// header of an action is sent to its href alone. Neither an action nor a redirect may leave https for http. Hosts are
// checked as those of redirects of any remote.
//
// A download that breaks off is continued with a range, also by the next process. Its content is hashed as it
// arrives; it enters the store only with the pointer's size and SHA-256. A response that is compressed with gzip,
// although that is not requested, is decompressed up to that size.
//
// In a tree with submodules, each has its own attributes, .lfsconfig and server.
//
// # Failures
//
//	object missing, removed or refused        permanent, ClassNotFound; the text names it
//	no LFS server at the URL                  permanent, ClassNotFound
//	credential refused or missing             permanent, ClassAuth
//	host not allowed, unsupported URL         permanent, ClassConfig
//	another transfer or hash than requested   permanent, ClassConfig
//	dial, timeout, connection broken          retryable, ClassNetwork, after three attempts
//	5xx, response invalid or too long, wrong  retryable, ClassServer, after three attempts for one object
//	size or hash of an object
//	429; 403 and 503 that say when to retry   ClassBusy, as for any request
//	two sizes for one object                  permanent, ClassConfig
//	attributes that take too long to match    permanent, ClassHostile
//	disk error                                retryable, ClassVolume
//
// Errors contain neither credentials nor text of the server.
package lfs
