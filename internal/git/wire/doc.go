// Package wire is a client for Git servers: it lists refs and fetches packs over HTTP, HTTPS and SSH. It writes nothing
// to disk.
//
// A [Network] holds the settings and connections that all remotes share. [Network.Dial] returns a [Session]
// for one operation on one remote, within [Limits]: List, Resolve, Fetch, Close. A Network is safe for
// concurrent use; a Session is not.
//
// # Protocol
//
// It speaks Git protocol version 2, and version 0 with servers that answer in it. Under version 2, List asks
// only for the refs that it needs, so the cost of a listing does not depend on the number of refs. HEAD names
// the default branch; if its branch does not exist, or HEAD names none, all refs are listed, and the default
// branch is chosen from them as under version 0.
//
// Over HTTP, the first request to a remote asks for its capabilities. A Network remembers them for 10,000
// remotes, so later sessions send ls-refs as their first request. If the answer is not one to ls-refs (a
// redirect, a status below 500, a page), the capabilities are forgotten and asked for again, once; after a
// status of 500 or more they are forgotten. A remote that redirects is not remembered: redirects are followed
// on the request for capabilities only, never from https to http, and a credential does not follow to another
// origin. Over SSH, the lists of refs and the first fetch share a connection. SSH needs a private key and
// known_hosts; it uses neither an agent nor ssh_config.
//
// A request names only capabilities that the server offers. Without shallow a server sends the full history;
// under version 0, without thin-pack or side-band it sends complete or plain packs. All kinds of
// acknowledgement (multi_ack) work, since a fetch is a single request. A list of refs
// has at most 64 MiB, a list of capabilities 64 KiB. [Timeouts] bound the silence of a host. The server says with object-format whether a
// repository has object IDs of SHA-1 or SHA-256; all IDs of a session must be of that format.
//
// [Config.Hosts] is checked against the address when it is dialled.
//
// A [Limiter] limits the requests to each host. List and Fetch are one request each, including redirects, the
// request for capabilities and, over SSH, the connection.
//
// # Failures
//
//	credential refused or missing          permanent, ClassAuth
//	repository not found or hidden         permanent, ClassNotFound
//	ref not found, repository empty,       permanent, ClassNoRef
//	commit not sent by its hash
//	dial, DNS, TLS, timeout, slow server   retryable, ClassNetwork
//	SSH host key changed                   permanent, ClassAuth; unknown: ClassConfig
//	host not allowed by Config.Hosts       permanent, ClassConfig
//	HTTP 429; 403 and 503 that say when    ClassBusy: contention with a limiter, retryable without
//	to retry or that nothing remains
//	any other HTTP 5xx, invalid protocol,  retryable, ClassServer; the text says which
//	error of the server in the pack,
//	response that ends too early, redirect
//	that is not followed
//	object format other than those two     permanent, ClassConfig
//	response above Limits.MaxPackBytes     permanent, ClassQuota
//
// Errors contain neither credentials nor text from the remote. Those of a gate are returned unchanged.
package wire
