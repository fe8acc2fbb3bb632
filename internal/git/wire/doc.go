// Package wire talks to Git servers: it lists refs and fetches packs over HTTP, HTTPS and SSH. It writes nothing to
// disk.
//
// A [Network] holds what all remotes share: allowed hosts, proxy, certificate authorities, host keys and pooled
// connections. [Network.Dial] returns a [Session] for one operation on one remote, within [Limits]: List, Resolve, Fetch,
// Close. A Session is not safe for concurrent use; a Network is.
//
// # Protocol
//
// It speaks Git's protocol version 0. A request names only capabilities that the server offers. Without shallow a server
// sends whole histories; without thin-pack or a side-band it sends complete or plain packs. Every kind of acknowledgement
// (multi_ack) works, since one request asks for everything. SSH needs a private key, and host keys from known_hosts; it
// uses no agent and no configuration.
//
// The network policy is checked against the address when it is dialled: see [Config.Hosts].
//
// # Failures
//
//	credential refused or missing          permanent, ClassAuth
//	repository not found, or hidden        permanent, ClassNotFound
//	ref not found, repository empty        permanent, ClassNoRef
//	dial, DNS, TLS, timeout, a trickle     retryable, ClassNetwork
//	an SSH host key that changed           permanent, ClassAuth; an unknown one: ClassConfig
//	a host that Config.Hosts excludes      permanent, ClassConfig
//	HTTP 429 and 5xx, protocol garbage     retryable, ClassServer
//	an answer above Limits.MaxPackBytes    permanent, ClassQuota
//
// No error repeats what a remote said, nor a credential.
package wire
