// Package events is the vocabulary of Lockstep: repository paths, refs, changes, results, and errors that say
// what to do with the event that caused them.
//
//	change, err := events.NewChange(events.Change{URL: "https://github.com/acme/widgets.git", App: "docs"})
//	if err != nil {
//		return err // names the field, never repeats a password
//	}
//	document, err := json.Marshal(change) // a CloudEvents document to publish
//	if err != nil {
//		return err
//	}
//	again, err := events.ParseChange(document)
//	fmt.Println(again.Repo, again.Type.Operation(), err) // acme/widgets sync <nil>
//
// # Guarantees
//
// Input is parsed once, and the types prove it. A [RepoPath] or a [Ref] is safe as a folder name and as part
// of a Redis key. A [Change] from [ParseChange] or [NewChange] has a remote URL without credentials. The package
// uses only the standard library and does no I/O, so any program can import it to publish changes or read results.
//
// # Wire format
//
// A change or a result is a CloudEvents 1.0 document in structured JSON mode. Its type ends in a version, as in
// "lockstep.change.pushed.v1". A version may gain fields, which older readers ignore; a field that changes its
// meaning gets a new version. [ParseChange] also accepts a flat JSON object (repo, url, ref, …), so that
// redis-cli or three lines of any language can publish a change.
//
// # States of an event
//
// A change is delivered, handled, and ends in exactly one [Result]. Until then it can be retried any
// number of times; each attempt at the same stream entry has the same result ID. See package stream for delivery.
//
// # Failures
//
// The [Disposition] of a handler's error decides what happens to the event:
//
//	Retryable   redelivered after a backoff; counts as an attempt. The default for errors without a disposition
//	Contention  redelivered after a backoff; does not count, because nothing was tried
//	Permanent   reported as a failed result at once
//	Malformed   dead-lettered: it is not a valid event
//
// The [Scope] says whose trouble it is, so who waits, and RetryAfter when to try again. All three are decided once,
// where the error is first understood. The [Class] names the kind of fault, for people: in results, metrics and
// logs. Errors of packages that do not import this one, such as the Git engine, take part as a [Fault].
package events
