// Package handlers is what a worker does with a change: it syncs, removes, moves and polls repositories. It
// is public in name only: it works on Lockstep's own volume, registry and state, whose packages are internal.
//
//	h := handlers.Handlers{
//		Volume: volume, States: states, Credentials: credentials, Watches: watches,
//		Extensions: []ext.Extension{signatures.New(credentials), lfs.New(), submodules.New(credentials)},
//	}
//	backoff := handlers.Backoff{Store: states}
//	changes := handlers.Changes{Namespace: namespace, Source: "/example/w1", Handler: backoff.Wrap(h.Handle), Log: log}
//	r, err := router.New(router.Config{Routes: []router.Route{{
//		Name: "changes", Topic: namespace.Changes(), Subscriber: subscriber, Handler: changes.Handle,
//		Locker: locker, Request: changes.Request, Dispose: changes.Dispose(router.Retry{}),
//	}}})
//	if err != nil {
//		return err
//	}
//	return router.Run(ctx, r)
//
// # Guarantees
//
// A handler runs under the repository's lease. It returns an outcome (the result and the state to store),
// which [Changes] settles in one step with the change, or an error, whose [events.Disposition] decides what
// happens to the change. It may run again after a crash at any point: repeating it completes the work.
//
// # Failures
//
//	what fails                                     the change
//	Redis                                          retried, without an attempt counted
//	Redis, whose data is older than the volume     apps get results of the published trees again, with new IDs
//	the remote does not show an announced commit   waits with others for up to ten minutes: see announced.go
//	what it needs has failed lately                retried after that backoff; a poll with on_busy=skip is
//	                                               skipped; see [Backoff]
//	the host is at a limit of requests             retried when the host admits it, also with on_busy=skip
//	the credential is refused                      failed result at once; retried if there may be a better token
//	a forced removal of a watched clone or ref     failed result at once, class conflict
//	a sync for a watch that no longer exists       failed result at once, class unwatched
//	a commit that the rules of a watch refuse      failed result at once, class refused
//	a removal of a ref that still exists           failed result at once, class conflict
//	a move to another repository                   retried, then a dead letter, class conflict
//	anything else                                  decided by the error of the volume
package handlers
