// Package notify tells apps what became of the repositories that they watch: it posts results to the URLs
// that their watches name, signed as Standard Webhooks are.
//
// # What it promises
//
// An app is told of its repository's results in the order of the stream, each until it has answered 2xx or
// the schedule has ended, and never silently not: what is given up becomes a dead letter. What it is told
// twice has the same webhook-id. One app that is slow, or gone, delays no other, and one repository of an
// app no other of it but for the app's share of posts in flight. Apps that are slow share half of these, one each.
//
// # How
//
//	feed     reads the next results, decides which watches they concern, and in one script takes them for
//	         the consumer group and puts an item into the box of each app and repository. Any process may feed at any
//	         time: the script lets the first and tells the others to look again.
//	claim    takes heads of boxes that are due, and makes them due again after a minute, which no post takes
//	settle   notes what came of one: the next is due now; or this one later, with one attempt more; or it is a
//	         dead letter, and the next is due now
//
// Retries hold nothing but an item in Redis. The group on results has no pending entries and is never behind
// for an app's sake, so it pins neither stream nor trees.
//
// Where an app is told and with which secret is looked up in the registry, and in the credential's folder, each
// time that it is tried: a URL that is corrected and a secret that is rotated count from the next attempt on. What waits
// for a watch that is gone, or has no URL any more, is dropped. No secret is in a box.
//
// # When things fail
//
//	a process dies in mid-post      its claim ends within a minute and another sends it again, by the same id
//	it dies before the feed script  nothing was taken; whoever reads next feeds it. After it: all is in the boxes
//	the app is down, or answers     again by the schedule, about three days; then a dead letter, and the next goes on
//	other than 2xx                  with a schedule of its own
//	the app answers 410             the watch is silenced, and what waits for it becomes dead letters; nothing, if its
//	                                URL is another by now
//	more waits than is kept         the oldest becomes a dead letter, "outbox full"
//	Redis is away                   nothing is fed or claimed; what is being posted is sent again unless it can be
//	                                noted within the claim
//	the process is told to stop     posts finish within the grace; those that do not are given back, due at once
//	the group is deleted            it is made anew where it was, as far as a process that runs knows; if none does,
//	                                at the stream's end by the first, and what came in between is not told
//	Redis loses its last results,   what comes next is told, though its ids may be earlier ones: who has waited in vain
//	or all                          looks where the group is
//	a process is stopped, or slow   it gives back what it has not begun to post within a third of the claim
//	the repository is renamed       what waits under the former name goes where the watch under the new one says;
//	                                the two names are no one order
//	the app unwatches               what waits is dropped, a minute after that is noticed: it may be a rename
//
// # What it does not do
//
// The group begins at the end of the stream: what was there before the first process played the role is not
// told. Dead letters that are put back come last of their repository. Trees that a result names are kept for
// those who follow the stream, not for apps that are told late.
//
// # Where to find it
//
//	notify.go    what can be set, Run          feed.go      results into boxes
//	choose.go    whom a result concerns        outbox.go    calls of the *.lua scripts
//	body.go      what is posted                send.go      boxes to posts
//	sign.go      how it is signed              post.go      one post
//	schedule.go  when again                    trace.go     spans of attempts
package notify
