// Package wire is a client for Git servers: it lists refs and fetches packs over HTTP, HTTPS and SSH. It writes nothing
// to disk.
//
// A [Network] holds the settings and connections that all remotes share. [Network.Dial] returns a [Session] for one
// operation on one remote, within [Limits]: List, Resolve, Fetch, Close. A Network is safe for concurrent use; a Session
// is not.
//
// # Protocol
//
// It speaks Git protocol version 0. A request names only capabilities that the server offers. Without shallow a server
// sends the full history; without thin-pack or side-band it sends complete or plain packs. All kinds of acknowledgement
// (multi_ack) work, since a fetch is a single request. SSH needs a private key and known_hosts; it uses neither an agent
// nor ssh_config.
//
// [Config.Hosts] is checked against the address when it is dialled.
//
// A [Gate] limits the requests to each host. List and Fetch are one request each, including redirects and, over SSH, the
// connection.
//
// # Failures
//
//	credential refused or missing          permanent, ClassAuth
//	repository not found or hidden         permanent, ClassNotFound
//	ref not found, repository empty        permanent, ClassNoRef
//	dial, DNS, TLS, timeout, slow server   retryable, ClassNetwork
//	SSH host key changed                   permanent, ClassAuth; unknown: ClassConfig
//	host not allowed by Config.Hosts       permanent, ClassConfig
//	HTTP 429; 403 and 503 that say when    ClassLimited: contention with a gate, retryable without
//	to retry or that nothing remains
//	any other HTTP 5xx, invalid protocol,  retryable, ClassServer; the text says which
//	error of the server in the pack,
//	response that ends too early, redirect
//	that is not followed
//	SHA-256 repository                     permanent, ClassConfig
//	response above Limits.MaxPackBytes     permanent, ClassQuota
//
// Errors contain neither credentials nor text from the remote. Those of a gate are returned unchanged.
package wire
