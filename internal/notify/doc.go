// Package notify posts results to the apps that watch a repository, at the URLs that their watches name, signed
// according to Standard Webhooks, or runs the commands that the configuration has for apps.
//
// # Guarantees
//
// An app receives the results of a repository in stream order. Each is retried until the app answers 2xx or the
// schedule ends; then it becomes a dead letter. Deliveries are at least once: duplicates have the same webhook-id. An
// unreachable app does not delay other apps; a slow one takes at most four of the posts in flight. A repository does not
// delay other repositories of the same app, except that they share the app's limit on posts in flight. Each app in
// trouble, which has failed and accepted nothing since, gets one post in flight, and all of them together at most half.
//
// # Design
//
//	feed     reads the next results and finds the watches that they concern. In one script, it advances the
//	         consumer group and appends an item to the outbox of each app and repository. Any number of processes
//	         may feed: the script accepts the first and makes the others read again
//	claim    claims the first items of outboxes that are due. A claim lasts one minute, longer than any post; that
//	         of a command is renewed while it runs
//	settle   records the outcome: the item is removed and the next one is due now, the item is retried later, or it
//	         becomes a dead letter and the next one is due now
//
// An item waiting for a retry uses nothing but memory in Redis. The group on results has no pending entries and
// never lags behind because of an app, so it pins neither the stream nor trees.
//
// Each attempt reads the URL from the registry and the secret from the credential's directory, so a corrected URL or
// a rotated secret applies from the next attempt. Items whose watch is gone, or has no URL, are dropped; those that were
// queued for a command fail in a notifier that has none. Outboxes contain no secrets.
//
// A command runs in the tree of its result. If that is gone, it runs in the one published now, by one process only once
// for all such results. If nothing is published on a mounted volume, the item is dropped.
//
// # Failures
//
// docs/failure-modes.md says what apps and operators notice. Inside:
//
//	a process dies during a post    its claim ends within a minute and another process posts it again, with the same
//	                                ID
//	it dies around the feed script  before it, nothing was read; after it, the items are in the outboxes
//	it dies during a command        the kernel kills the program, but not what it has started, which may go on beside
//	                                the repeated run; then as during a post
//	Redis is unreachable            nothing is fed or claimed; posts in flight are repeated unless their outcome can
//	                                be recorded within the claim; a command is killed before its claim ends
//	the process is stopped          posts finish within the grace period; the others are returned, due immediately
//	the group is deleted            a running process creates it again at the last position that it knows. If none
//	                                runs, the first one creates it at the stream's end and skips what came meanwhile
//	Redis loses results             later results are delivered even if their IDs are lower: a reader that gets
//	                                nothing checks the group's position
//	a process is paused or slow     it returns items that it has not posted within a third of the claim
//	a repository is renamed         items under the old name go to the URL of the watch under the new name, which the
//	                                registry knows; there is no order between the two names
//	an app removes its watch        its items are dropped
//	an app answers 410              its watch is silenced and the item returned, to become a dead letter, or to be
//	                                posted to another URL that the watch has meanwhile
//
// The group starts at the end of the stream: results from before the first notifier are not delivered. Dead letters
// that are put back are queued after the repository's other items.
package notify
