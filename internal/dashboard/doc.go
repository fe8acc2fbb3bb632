// Package dashboard is the service's web page: what comes in and how long it takes, who works on what, who
// holds which lease, what was given up, who watches what, and what is known of each repository. It is live, and
// whoever may change something can take a lease away, and retry or drop a dead letter.
//
// # How a page comes about
//
// Each page is a [page]: a query in its URL, a function that reads what it shows, a template. It is rendered as
// a whole for who asks for it, and can be read without JavaScript. With JavaScript it then follows one stream of
// server-sent events, which carries those of its parts that have changed.
//
//	GET /, /dashboard/leases …      the page
//	GET /dashboard/events?page=…    its parts, as they change
//	POST /dashboard/…               what changes something; answered with a redirect
//	GET /dashboard/static/{hash}/…  embedded files, kept by browsers for good
//
// A [hub] reads and renders. All who look at the same page with the same query, and may see the same, share one
// [view]: Redis is asked once for all of them, and not at all when nobody looks. A page that is dear to read is
// read less often: reading takes at most a twentieth of the time.
//
// Throughput and latency are those of the whole deployment, not of this process: a [tail] follows the stream of
// results while somebody looks, and counts them in buckets of 5 s over 15 min. How long a change took is the time
// between its stream entry and that of its result, both by Redis' clock.
//
// # What it promises
//
//   - Who is not logged in sees no more than the API shows without its token, and changes nothing.
//   - A lease is taken away by its fence: nobody loses one that was not on the page.
//   - A form works only for the session that it was made for.
//   - No script but our own runs: content is escaped, and the policy forbids anything inline.
//   - It costs what it is looked at: so many clients at most, each dropped when it cannot follow, and so many
//     bytes read from Redis at most.
//   - When Redis is away the page says so, shows what it showed, and recovers by itself.
//
// It keeps nothing: neither sessions, which are signed, nor what it has shown.
package dashboard
